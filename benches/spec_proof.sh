#!/usr/bin/env bash
# Is the text the same with speculation on and off? The built-in model answers prompts about this project's own files on a device,
# greedy and with temperature 0.9, without drafts, with the default, and at depths 3 and 15; every text has to be the first one.
#
#   benches/spec_proof.sh PROGRAM DEVICE [TOKENS]
#
# Prints a line a prompt and a summary; exit code 1 if any text differs.
set -u
program=$(realpath "$1"); device=$2; tokens=${3:-256}
here=$(cd "$(dirname "$0")/.." && pwd)
prompts=(
    "What is sala-chat?" "What does /load do?" "How do I go back to an earlier turn?" "Tell me about the weather in Lima."
    "List ten words that begin with s." "Write a short letter to Anna about the boxes." "What is 12 + 30?" "Repeat this: lamp, rope, coin, lamp, rope, coin, lamp."
    "Explain in a few sentences why the sky is blue." "Count from one to fifty." "Which keys do I press to stop an answer?" "Write a poem about ropes."
)
same=0; all=0; drafted=0
for i in "${!prompts[@]}"; do
    for temperature in 0 0.9; do
        first=; line=
        for spec in off auto 3 15; do
            answer=$("$program" --demo --device "$device" -p "${prompts[$i]}" -f "$here/CHANGELOG.md" --temp $temperature --seed $((i + 1)) \
                --max-tokens "$tokens" --spec $spec --no-save --json 2>/dev/null </dev/null) || { echo "no answer: $answer"; exit 1; }
            text=$(sed 's/.*"text":\("\([^"\\]\|\\.\)*"\).*/\1/' <<<"$answer")
            made=$(sed -n 's/.*"drafted":\([0-9]*\).*/\1/p' <<<"$answer")
            drafted=$((drafted + ${made:-0}))
            if [ "$spec" = off ]; then first=$text; continue; fi
            all=$((all + 1))
            if [ "$text" = "$first" ]; then same=$((same + 1)); line+=" $spec:same"; else line+=" $spec:DIFFERS"; fi
        done
        echo "prompt $i, temperature $temperature:$line"
    done
done
echo "$same of $all texts are the ones without drafts; $drafted tokens were drafted ($device)"
[ "$same" = "$all" ]
