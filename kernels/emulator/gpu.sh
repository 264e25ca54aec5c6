#!/usr/bin/env bash
# On a machine with an NVIDIA GPU and a toolkit: the checks on the real device, then the rates of the decode kernels.
#   kernels/emulator/gpu.sh [OUTDIR]      needs kernels/prebuilt (kernels/build.sh)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../target/gpu}
cuda=${CUDA_HOME:-/usr/local/cuda}
mkdir -p "$out"
flags="-std=c++20 -O2 -DSALA_GPU -DSALA_IMAGES=\"$here/../prebuilt\" -I$cuda/include -L$cuda/lib64/stubs -L/usr/local/nvidia/lib64"
g++ $flags -o "$out/check" "$here/check.cpp" "$here/gpu.cpp" -lcuda &
g++ $flags -o "$out/rates" "$here/rates.cpp" "$here/gpu.cpp" -lcuda &
wait
"$out/check" | grep -v '^ok' || true
"$out/rates"
