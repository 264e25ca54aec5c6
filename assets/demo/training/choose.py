"""What the program would choose from the likelihoods that judge.py wrote, for other values of the quote_ keys (src/text/quotes.rs).

    python choose.py OUT.jsonl MARGIN JUDGED LEAST        # right / not found / wrong, absent ones right, a line for each set

A quote counts as its first sentence (a row of a table): where the model goes on to the next line, the program has a few right answers more."""
import json, re, sys
from collections import Counter

CLEAR, FAVOUR, NEAR = 1.5, 2.0, 2.0


def choose(c, judged):
    """greedy along the first tokens, as they are favoured -> index, least lead on the way"""
    favour = [judged * x["judge"] for x in c]; alive = list(range(len(c))); depth = 0; lead = 1e9
    while True:
        by = {}
        for i in alive:
            if depth < len(c[i]["ids"]): by.setdefault(c[i]["ids"][depth], []).append(i)
        if not by: break
        best = max(favour[i] for i in alive)
        scores = sorted(((c[v[0]]["lm"][depth] + max(favour[i] for i in v) - best, k) for k, v in by.items()), reverse=True)
        if len(scores) > 1: lead = min(lead, scores[0][0] - scores[1][0])
        alive = by[scores[0][1]]; depth += 1
        if len(alive) == 1: break
    return max(alive, key=lambda i: favour[i]), lead


def main():
    margin, judged, least = map(float, sys.argv[2:5]); sets = {}
    for l in open(sys.argv[1], encoding="utf-8"):
        r = json.loads(l); c = sets.setdefault(r["set"], Counter()); quotes = False
        if r["c"]:
            i, lead = choose(r["c"], judged); others = max((y for _, y in r["top"] if y != r["open"]), default=-1e9)
            bias = min(FAVOUR, min(FAVOUR, CLEAR * (lead - margin)) + judged * (r["c"][i]["judge"] - least)) if r["open"] + NEAR >= others else 0
            quotes = r["open"] + bias >= others
        if r["gold"] == "NONE": c["absent right" if not quotes else "absent wrong"] += 1
        elif not quotes: c["not found"] += 1
        else:
            flat = re.sub(r"\s+", " ", r["c"][i]["t"]).lower()
            c["right" if any(g.lower() in flat for g in r["gold"].split("|")) else "wrong"] += 1
    for name, c in sets.items(): print(name, f"{c['right']} / {c['not found']} / {c['wrong']}, {c['absent right']} of {c['absent right'] + c['absent wrong']}")


if __name__ == "__main__": main()
