#!/usr/bin/env bash
# One go on a GPU machine: everything that can only be known there, most important first, each part with its own time limit,
# going on after failures. Needs the built program and nothing else (no cargo, no toolkit).
#
#   benches/gpu_session.sh PROGRAM OUT_DIR [COMMIT]
#
# Files in OUT_DIR (at most 6): summary.txt, doctor.json, fixtures.json, chat.json, bench.json (one object a line),
# log.txt. The summary is printed last.
set -u
program=$(realpath "$1"); out=$2; commit=${3:-unknown}
budget=${SALA_SESSION_SECONDS:-240}
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
log=$out/log.txt; summary=$out/summary.txt
: >"$log"; : >"$summary"; : >"$out/bench.json"; : >"$out/chat.json"
begun=$(date +%s)
left() { echo $((budget - ($(date +%s) - begun))); }
say() { printf '%s\n' "$*" | tee -a "$summary"; }

# cuBLASLt from wherever this machine keeps it.
lt=$(ldconfig -p 2>/dev/null | sed -n 's/.*=> \(.*libcublasLt\.so\.[0-9]*\)$/\1/p' | head -1)
[ -n "$lt" ] || lt=$(find /usr/local /opt /usr/lib -name 'libcublasLt.so.1[23]' 2>/dev/null | head -1)
[ -z "$lt" ] || export LD_LIBRARY_PATH=$(dirname "$lt")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SALA_CHAT_DATA_DIR=$(mktemp -d)
say "commit $commit, cuBLASLt ${lt:-not found}"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,memory.used --format=csv,noheader 2>/dev/null | tee -a "$summary"

# part NAME LIMIT_SECONDS FILE COMMAND...: runs within what is left; standard output goes to FILE ("+FILE" appends).
part() {
    local name=$1 limit=$2 file=$3; shift 3
    local rest; rest=$(left)
    if [ "$rest" -lt 4 ]; then say "-- $name: no time left"; return 1; fi
    [ "$limit" -gt "$rest" ] && limit=$rest
    local start; start=$(date +%s)
    printf '\n== %s: %s\n' "$name" "$*" >>"$log"
    case $file in
        +*) timeout -k 2 "$limit" "$@" </dev/null >>"${file#+}" 2>>"$log" ;;
        *) timeout -k 2 "$limit" "$@" </dev/null >"$file" 2>>"$log" ;;
    esac
    local code=$?
    say "-- $name: exit $code after $(($(date +%s) - start)) s"
    return 0
}

show() { # FILE PYTHON: a short table, if this machine has python
    command -v python3 >/dev/null && python3 - "$1" <<PY 2>>"$log" | tee -a "$summary"
import json, sys
def objects(path):
    text = open(path).read().strip(); d = json.JSONDecoder(); i = 0
    while i < len(text):
        o, i = d.raw_decode(text, i)
        yield o
        while i < len(text) and text[i].isspace(): i += 1
for o in objects(sys.argv[1]):
$2
PY
}
misses='    print("  ", o.get("device"), "GEMM library:", o.get("gemm_library"), "missed", o.get("missed"), "of", len(o.get("checks", [])))
    for c in o.get("checks", []):
        if not c.get("ok", True): print("   MISS", c.get("name"), c.get("message") or c.get("error"))'
rows='    m = o.get("machine", {}); c = m.get("ceilings") or {}
    print("  ", o.get("model"), o.get("fill"), "ceilings", {k: round(v) for k, v in c.items()}, m.get("notes"))
    for r in o.get("results", []):
        print("  ", {k: (round(v, 3) if isinstance(v, float) else v) for k, v in r.items() if k not in ("verify", "memory")})
        for v in r.get("verify", []): print("      ", {k: round(x, 3) for k, x in v.items()})
        if "memory" in r: print("      ", {k: round(x / 2**30, 2) for k, x in r["memory"].items()})'

bench() { "$program" bench --json --device cuda --commit "$commit" "$@"; }
export -f bench 2>/dev/null || true

# 1. Decode first: the figures that matter most, contexts filled with random rows.
part "decode and verify, filled caches" 60 "+$out/bench.json" "$program" bench --json --device cuda --commit "$commit" --model synthetic:9b \
    --fill random --context 4096,131072,1048576 --decode 64 --sample 16384
show "$out/bench.json" "$rows"

# 2. Is it right?
part "kernels against the CPU" 75 "$out/doctor.json" "$program" doctor --kernels --device cuda --json
show "$out/doctor.json" "$misses"
part "golden data" 25 "$out/fixtures.json" "$program" doctor --fixtures "$here/tests/fixtures" --device cuda --json
show "$out/fixtures.json" "$misses"

# 3. The built-in model chats the same on both.
question="What does /load do?"
for device in cuda cpu; do
    part "chat on $device" 12 "+$out/chat.json" "$program" -p "$question" --demo --device $device --temp 0 --seed 1 --max-tokens 64 --no-save --json
done
show "$out/chat.json" '    print("  ", o.get("device"), repr(o.get("text"))[:160], o.get("timing"), o.get("message", ""))'

# 4. Real reading: 128K and, as far as time goes, 1M.
part "prefill of 4K and 128K" 30 "+$out/bench.json" "$program" bench --json --device cuda --commit "$commit" --model synthetic:9b \
    --context 4096,131072 --decode 32 --no-verify --no-save
if [ "$(left)" -gt 70 ]; then
    part "prefill of 1M" 80 "+$out/bench.json" "$program" bench --json --device cuda --commit "$commit" --model synthetic:9b \
        --context 1048576 --decode 32 --no-verify --no-save
fi

say; say "all of it: $(($(date +%s) - begun)) s"
show "$out/bench.json" "$rows" >/dev/null
tail -c 1500 "$log"
rm -rf "$SALA_CHAT_DATA_DIR"
