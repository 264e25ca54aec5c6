#!/usr/bin/env bash
# A model folder like the release at full size, and everything that can be done with one, on a GPU machine. Needs the built
# program, python3 with PyTorch, 21 GB of disk; takes three minutes on an H200.
#
#   benches/release_folder.sh PROGRAM FOLDER OUT_DIR [--only PART,PART] [--tokens N]
#
# FOLDER is made if it is not there. What is measured: benches/release_folder.py.
set -eu
program=$1 folder=$2 out=$3; shift 3
here=$(cd "$(dirname "$0")" && pwd)
lt=$(ldconfig -p 2>/dev/null | sed -n 's/.*=> \(.*libcublasLt\.so\.[0-9]*\)$/\1/p' | head -1)
[ -n "$lt" ] || lt=$(find /usr/local /opt /usr/lib -name 'libcublasLt.so.1[23]' 2>/dev/null | head -1)
[ -z "$lt" ] || export LD_LIBRARY_PATH=$(dirname "$lt")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ -f "$folder/config.json" ] || python3 "$here/release_folder.py" make "$folder"
exec python3 "$here/release_folder.py" run "$program" "$folder" "$out" "$@"
