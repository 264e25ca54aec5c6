#!/usr/bin/env bash
# Lends the GPU and takes it back: memory before, while parked and after, and the time from the next question to its first token.
#
#   benches/park_gpu.sh PROGRAM MODEL [TOKENS] [OPTIONS OF THE PROGRAM...]
#
# MODEL is a folder: the first start packs its weights and keeps them, in the background, and the returns use them. The session is a
# made-up document of about TOKENS tokens (131072), read for real. On a GPU:
#   benches/park_gpu.sh ./sala-chat FOLDER 131072 --device cuda --weights 4bit
set -eu
program=$(realpath "$1"); model=$2; tokens=${3:-131072}; shift $(($# < 3 ? $# : 3))
work=$(mktemp -d "${TMPDIR:-/tmp}/park.XXXXXX")
trap 'kill "${pid:-}" 2>/dev/null; rm -rf "$work"' EXIT
export SALA_CHAT_DATA_DIR=$work/data SALA_CHAT_LOAD_CONFIRM_TOKENS=100000000
# About 14 tokens a line.
awk -v n=$((tokens / 14)) 'BEGIN { for (i = 1; i <= n; i++) printf "Entry %d of the ledger: box %d holds %d ropes.\n", i, i % 97, i * 7 % 1009 }' >"$work/ledger.txt"
touch "$work/said"
mkfifo "$work/lines"
"$program" --plain --model "$model" --temp 0 --max-tokens 16 "$@" <"$work/lines" >>"$work/said" 2>&1 &
pid=$!
exec 3>"$work/lines"

smi() { # LABEL
    local used apps
    used=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader 2>/dev/null | tr '\n' ' ' || true)
    apps=$(nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader 2>/dev/null | tr '\n' ';' || true)
    printf '%-22s GPU memory used: %s processes on the GPU: %s host memory of the program: %s\n' \
        "$1" "${used:-no nvidia-smi }" "${apps:-none}" "$(awk '/VmRSS/ { print int($2 / 1024) " MiB" }' /proc/"$pid"/status)"
}

# Sends a line and waits for the text that ends it, for five minutes.
enter() { # LINE TEXT
    local from; from=$(wc -c <"$work/said")
    printf '%s\n' "$1" >&3
    for ((i = 0; i < 6000; i++)); do
        tail -c +"$((from + 1))" "$work/said" | grep -q -- "$2" && return 0
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    echo "no \"$2\" after: $1" >&2; tail -n 20 "$work/said" >&2; exit 1
}

# Lines of a pipe run in order: the numbers are those of this question.
first_token() { # LABEL QUESTION
    printf '%s\n' "$2" >&3
    enter "/stats" "kept state"
    printf '%-22s %s\n' "$1" "$(grep -o 'first token after [0-9.]* s' "$work/said" | tail -1)"
}

smi "before the start"
enter "/load $work/ledger.txt" "ledger"
enter "/stats" "kept state"
first_token "first question" "What does box 12 hold?"
first_token "next question" "What does box 13 hold?"
smi "loaded"
# The index of kept weights is written last.
if grep -q "are being kept in" "$work/said"; then
    for ((i = 0; i < 240; i++)); do
        compgen -G "$work/data/weights/*/*.index.json" >/dev/null && break
        sleep 0.5
    done
    compgen -G "$work/data/weights/*/*.index.json" >/dev/null && echo "packed weights are kept" || echo "packed weights are NOT kept yet"
fi
for n in 1 2 3; do
    enter "/park" "Parked: "
    smi "parked ($n)"
    first_token "after parking ($n)" "What does box $((20 + n)) hold?"
    smi "back ($n)"
done
printf '/stats\n/quit\n' >&3
wait "$pid" || true
grep -E "model|context|memory|of this" "$work/said" | tail -4
