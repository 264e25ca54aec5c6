#!/usr/bin/env bash
# Builds the kernels for a CPU: emulator/build.sh [OUT], default target/emulator/libsala_kernels.so. Needs g++ only.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../target/emulator/libsala_kernels.so}
dir=$(dirname "$out")/objects
mkdir -p "$dir"
flags="-std=c++20 -O2 -march=native -fPIC -fno-strict-aliasing -ffp-contract=off -Wall -Wno-unknown-pragmas -DSALA_EMULATOR -I$here/.."
newest() { local f; for f in "${@:2}"; do [ "$f" -nt "$1" ] && return 0; done; return 1; }
objects=()
build() { # object, source on stdin, dependencies
    if [ ! -e "$1" ] || newest "$1" "${@:2}" "$here"/../*.cuh "$here"/emulator.h "$here"/build.sh; then g++ $flags -x c++ -c - -o "$1.new"; mv "$1.new" "$1"; fi
    objects+=("$1")
}
build "$dir/emulator.o" "$here/emulator.cpp" < <(echo "#include \"$here/emulator.cpp\"")
for source in "$here"/../*.cu; do
    # Kernel names, also of those a macro makes.
    names=$(g++ -std=c++20 -E -P -DSALA_EMULATOR -I"$here/.." -x c++ "$source" | tr '\n' ' ' | grep -o 'extern "C" void [a-z0-9_]*(' | sed 's/.*void //; s/(//')
    build "$dir/$(basename "$source" .cu).o" "$source" < <(echo "#include \"$source\""; for n in $names; do echo "EMU_REGISTER($n);"; done)
done
if [ ! -e "$out" ] || newest "$out" "${objects[@]}"; then g++ -shared -o "$out.new" "${objects[@]}" && mv "$out.new" "$out"; fi
if [ "${CHECK:-}" ]; then g++ -std=c++20 -O2 -march=native -o "$(dirname "$out")/check" "$here/check.cpp" -L"$(dirname "$out")" -l:"$(basename "$out")" -Wl,-rpath,"$(cd "$(dirname "$out")" && pwd)"; fi
