#!/usr/bin/env bash
# Compiles the kernels ahead of time: one fat binary per .cu file under prebuilt/, and a manifest of hashes.
#   kernels/build.sh            builds what its sources have outgrown
#   kernels/build.sh --check    fails if an image does not belong to its sources (hashes only, needs no compiler)
#   kernels/build.sh --verbose  also prints registers and spills
#
# The compiler is the nvcc of $NVCC, $CUDA_HOME, the PATH, or else of the Python wheels named below, installed into target/.
# 13.0, because its wheels are the first that hold the whole compiler; the images then need a driver of the 580 series or newer.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
images=$here/prebuilt
manifest=$images/MANIFEST
wheels="nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96"

# Machine code per generation (A100; other Ampere; Ada; Hopper; Blackwell in servers and at home), PTX for later generations.
# Files that use instructions of Hopper alone (wgmma.cuh) have machine code with these, 90a, instead of 90.
targets() { # source
    local cc hopper=90
    ! grep -q '^#include "wgmma.cuh"' "$1" || hopper=90a
    for cc in 80 86 89 $hopper 100 120; do printf '%s\n' -gencode "arch=compute_$cc,code=sm_$cc"; done
    printf '%s\n' -gencode arch=compute_80,code=compute_80
}
flags=(-std=c++17 -O3 --fatbin -Xfatbin -compress-all --compress-mode=size)

# What an image depends on: its source, the headers it includes, the targets and flags.
headers() { # file: the headers it includes, theirs first
    local h
    for h in $(sed -n 's/^#include "\([a-z_0-9]*\.cuh\)".*/\1/p' "$1"); do headers "$here/$h"; echo "$here/$h"; done
}
source_hash() { { targets "$1"; printf '%s\n' "${flags[@]}"; cat $(headers "$1" | awk '!seen[$0]++') "$1"; } | sha256sum | cut -c1-64; }
recorded() { awk -v n="$1" '$1 == n { print $2, $3 }' "$manifest" 2>/dev/null || true; }
up_to_date() { # name, source
    local image=$images/$1.fatbin
    [ -e "$image" ] && [ "$(recorded "$1")" = "$(source_hash "$2") $(sha256sum <"$image" | cut -c1-64)" ]
}

verbose=()
case "${1:-}" in
--check)
    stale=0
    for source in "$here"/*.cu; do
        name=$(basename "$source" .cu)
        up_to_date "$name" "$source" || { echo "kernels/prebuilt/$name.fatbin does not belong to its sources: run kernels/build.sh" >&2; stale=1; }
    done
    exit $stale
    ;;
--verbose) verbose=(-Xptxas -v) ;;
esac

find_nvcc() {
    local wheel=$here/../target/nvcc/nvidia/cu13/bin/nvcc
    if [ -n "${NVCC:-}" ]; then echo "$NVCC"
    elif [ -n "${CUDA_HOME:-}" ]; then echo "$CUDA_HOME/bin/nvcc"
    elif command -v nvcc; then :
    else
        [ -x "$wheel" ] || python3 -m pip install --quiet --target "$here/../target/nvcc" $wheels >&2
        echo "$wheel"
    fi
}

mkdir -p "$images"
nvcc=
lines=()
for source in "$here"/*.cu; do
    name=$(basename "$source" .cu)
    hash=$(source_hash "$source")  # before compiling: a source edited meanwhile leaves a stale image, not a wrong record
    if ! up_to_date "$name" "$source"; then
        [ -n "$nvcc" ] || nvcc=$(find_nvcc)
        echo "$name" >&2
        "$nvcc" "${flags[@]}" $(targets "$source") ${verbose[@]+"${verbose[@]}"} --threads 0 -o "$images/$name.fatbin" "$source"
    fi
    lines+=("$name $hash $(sha256sum <"$images/$name.fatbin" | cut -c1-64)")
done
printf '%s\n' "${lines[@]}" >"$manifest"
du -ch "$images"/*.fatbin | tail -1 >&2
