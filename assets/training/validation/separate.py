"""Counts runs of six words that the documents of the question sets share with the training data; prints no text of theirs.

    python separate.py            # fails if a set that must stay apart shares more than 3 of its runs"""
import glob, os, re, sys

HERE = os.path.dirname(os.path.abspath(__file__)); DATA = os.path.dirname(HERE)


def runs(text, n=6):
    w = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(w[i:i + n]) for i in range(len(w) - n + 1)}


data = set()
for f in glob.glob(DATA + "/*.txt"): data |= runs(open(f, encoding="utf-8").read())
bad = 0
for name, apart in (("evaluation/questions.txt", True), ("validation/questions2.txt", True), ("validation/questions4.txt", True), ("validation/questions.txt", False), ("validation/questions3.txt", False)):
    own = set()
    for part in open(f"{DATA}/{name}", encoding="utf-8").read().split("=== ")[1:]: own |= runs(part.split("\n??\n")[0])
    shared = len(own & data); bad += apart and shared > 3
    print(f"{name}: {shared} of {len(own)} runs of six words are in the training data")
sys.exit(bad)
