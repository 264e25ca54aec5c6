"""Asks a checkpoint about the sets of validation/ in PyTorch, and prints for every question what the program would know:
how likely a quote begins, how likely each sentence begins it, and the second look at each sentence (verify.py).

    python judge.py MODEL_FOLDER OUT.jsonl validation/questions.txt ... [held]      # held: the documents kept out (careful.py)
"""
import json, os, re, subprocess, sys
import torch
from generate_data import Encoder
from model import CONFIG, Sala
from verify import QUESTION_TOKENS, SENTENCE_TOKENS, candidates

HERE = os.path.dirname(os.path.abspath(__file__))
OPENING, AHEAD = 'The document says: "', 10


def cases(path):
    if path == "held": text = subprocess.run([sys.executable, HERE + "/careful.py", "held"], capture_output=True, text=True, check=True).stdout
    else: text = open(path, encoding="utf-8").read()
    for part in text.split("=== ")[1:]:
        name, rest = part.split("\n", 1); doc, qs = rest.split("\n??\n")
        for l in qs.strip().split("\n"):
            q, gold = l.rsplit(" >> ", 1); yield name, doc.strip() + "\n", q, gold


def pad(n, m=128): return -(-n // m) * m


@torch.no_grad()
def run(m, rows, dev, cd, most=1 << 17):
    """log probabilities at the wanted places: rows of (ids, places) -> a list of [places, vocab]"""
    out = [None] * len(rows); order = sorted(range(len(rows)), key=lambda i: len(rows[i][0])); i = 0
    while i < len(order):
        j = i
        while j < len(order) and (j == i or pad(len(rows[order[j]][0])) * (j - i + 1) <= most): j += 1
        grp = order[i:j]; T = pad(len(rows[grp[-1]][0])); X = torch.zeros(len(grp), T, dtype=torch.long)
        for r, k in enumerate(grp): X[r, :len(rows[k][0])] = torch.tensor(rows[k][0])
        h = m(X.to(dev), cd).view(len(grp), T, -1)
        for r, k in enumerate(grp): out[k] = torch.log_softmax(m.logits(h[r, rows[k][1]], cd), -1).cpu()
        i = j; m.tabs.clear()
    return out


def main():
    model, out, *sets = sys.argv[1:]
    dev = "cuda" if torch.cuda.is_available() else "cpu"; cd = torch.bfloat16 if dev == "cuda" else torch.float32
    enc = Encoder(HERE + "/../tokenizer.json"); m = Sala(CONFIG)
    from safetensors.torch import load_file
    with torch.no_grad():
        for i in (1, 2):
            for n, t in load_file(f"{model}/model-{i:05d}-of-00002.safetensors").items(): m.w(n).copy_(t.float())
    m.to(dev).eval(); f = open(out, "w"); op = enc.text(OPENING); limit = int(os.environ.get("LIMIT", 10 ** 9))
    for s in sets:
        todo = list(cases(s))[:limit]; rows = []; meta = []
        for name, doc, q, gold in todo:
            base, _ = enc.row([("user", f'<document name="{name}">\n{doc}</document>'), ("assistant", f"I have read {name}. What would you like to know?"), ("user", q)], open_turn=True)
            cs = candidates(doc); qt = enc.text(q)[:QUESTION_TOKENS]; ids = list(base); places = []
            for a, b in cs:
                ids += [5] + qt + enc.nl + enc.text(doc[a:b])[:SENTENCE_TOKENS] + [6]; places.append(len(ids) - 1)
            rows.append((base + op, [len(base) - 1, len(base) + len(op) - 1])); rows.append((ids, places))
            n0 = len(rows); begin = {}
            for a, b in cs:
                t = tuple(enc.text(doc[a:b])[:AHEAD])
                if t not in begin: begin[t] = len(rows); rows.append((base + op + list(t), list(range(len(base) + len(op) - 1, len(base) + len(op) + len(t) - 1))))
            meta.append((name, doc, q, gold, cs, n0 - 2, begin))
        lp = run(m, rows, dev, cd)
        again = []                                # the likeliest once more, without the others between them
        for name, doc, q, gold, cs, i, begin in meta:
            best = sorted(range(len(cs)), key=lambda k: -float(lp[i + 1][k, 4] - lp[i + 1][k, 5]))[:6]; base = rows[i][0][:len(rows[i][0]) - len(op)]; ids = list(base); places = []; qt = enc.text(q)[:QUESTION_TOKENS]
            for k in sorted(best): ids += [5] + qt + enc.nl + enc.text(doc[cs[k][0]:cs[k][1]])[:SENTENCE_TOKENS] + [6]; places.append(len(ids) - 1)
            again.append((sorted(best), ids, places))
        twice = run(m, [x[1:] for x in again], dev, cd)
        for (name, doc, q, gold, cs, i, begin), (best, _, _), t2 in zip(meta, again, twice):
            second = {k: round(float(t2[n, 4] - t2[n, 5]), 3) for n, k in enumerate(best)}
            first, looked = lp[i], lp[i + 1]; c = []
            for k, (a, b) in enumerate(cs):
                t = tuple(enc.text(doc[a:b])[:AHEAD]); r = lp[begin[t]]
                c.append({"t": doc[a:b], "at": a, "ids": t, "lm": [round(float(r[x, y]), 3) for x, y in enumerate(t)], "judge": round(float(looked[k, 4] - looked[k, 5]), 3), "again": second.get(k)})
            top = first[0].topk(3)
            f.write(json.dumps({"set": s, "name": name, "q": q, "gold": gold, "open": round(float(first[0, op[0]]), 3), "none": round(float(first[0, enc.text("I")[0]]), 3),
                                "top": [[int(x), round(float(y), 3)] for x, y in zip(top.indices, top.values)], "c": c}) + "\n")
        print(s, len(todo), flush=True)


if __name__ == "__main__": main()
