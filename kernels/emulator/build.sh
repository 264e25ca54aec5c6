#!/usr/bin/env bash
# Builds the kernels for a CPU (emulator.h) as a shared library: emulator/build.sh [OUT]. OUT is
# target/emulator/libsala_kernels.so by default. Needs g++ only.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../target/emulator/libsala_kernels.so}
dir=$(dirname "$out")/objects
mkdir -p "$dir"
flags="-std=c++20 -O2 -march=native -fPIC -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -Wall -Wno-unknown-pragmas -DSALA_EMULATOR -I$here/.."
newest() { local f; for f in "${@:2}"; do [ "$f" -nt "$1" ] && return 0; done; return 1; }
object() { local name; name=$(basename "$1"); echo "$dir/${name%.*}.o"; }
compile() { # source
    local o n names
    o=$(object "$1")
    # Names of the kernels. Macros declare some of them, so the source is preprocessed first.
    names=$(g++ -std=c++20 -E -P -DSALA_EMULATOR -I"$here/.." -x c++ "$1" | tr '\n' ' ' | grep -o 'extern "C" void [a-z0-9_]*(' | sed 's/.*void //; s/(//')
    { echo "#include \"$1\""; for n in $names; do echo "EMU_REGISTER($n);"; done; } | g++ $flags -x c++ -c - -o "$o.new"
    mv "$o.new" "$o"
}
export here dir flags
export -f object compile
objects=()
stale=()
for source in "$here"/emulator.cpp "$here"/../*.cu; do
    o=$(object "$source")
    objects+=("$o")
    if [ ! -e "$o" ] || newest "$o" "$source" "$here"/../*.cuh "$here"/emulator.h "$here"/build.sh; then stale+=("$source"); fi
done
# One job a processor.
[ ${#stale[@]} = 0 ] || printf '%s\0' "${stale[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -euc 'compile "$1"' compile
if [ ! -e "$out" ] || newest "$out" "${objects[@]}"; then g++ -shared -o "$out.new" "${objects[@]}" && mv "$out.new" "$out"; fi
