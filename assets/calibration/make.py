"""Writes text.txt: what `sala-chat model quantize --calibrate` reads when no documents are named.

Every second document of assets/training/docs9..23.txt with its slots filled, some of this repository's source and documentation, and
Chinese (own.txt). About 120 KB, all of it written for this project. Run it in this folder; the result does not depend on when.
"""
import random
import re

DEMO = "../training/"
MOST = 88_000
dice = random.Random(5)
FIRST = "Nora Ivan Mara Piet Selma Tarik Agnes Luca Hanne Omar".split()
LAST = "Kessler Adair Brandvold Okafor Moreau Silva Winter Hoang Petrov Lund".split()
PLACES = "Karholm Velstad Torwick Minmere Selquay Pravik Lomfell Basmoor".split()
SLOTS = dict(line.split("=", 1) for line in open(DEMO + "slots.txt").read().split("\n") if "=" in line)
MADE = {
    "name": lambda: f"{dice.choice(FIRST)} {dice.choice(LAST)}",
    "given": lambda: dice.choice(FIRST),
    "sur": lambda: dice.choice(LAST),
    "first": lambda: dice.choice(FIRST),
    "place": lambda: dice.choice(PLACES),
    "museum": lambda: f"{dice.choice(PLACES)} Museum",
    "org": lambda: f"{dice.choice(LAST)} & {dice.choice(LAST)}",
    "street": lambda: f"{dice.choice(LAST)} Street {dice.randint(1, 90)}",
    "n": lambda: str(dice.randint(12, 98)),
    "d": lambda: str(dice.randint(2, 9)),
    "big": lambda: f"{dice.randint(1, 90)},{dice.randint(100, 999)}",
    "pct": lambda: f"{dice.randint(2, 98)} %",
    "year": lambda: str(dice.randint(1890, 2024)),
    "time": lambda: f"{dice.randint(7, 20)}:{dice.choice(['00', '15', '30', '45'])}",
    "dur": lambda: f"{dice.randint(2, 50)} minutes",
    "temp": lambda: f"{dice.randint(-8, 35)} degrees",
    "len": lambda: f"{dice.randint(2, 80)} metres",
    "weight": lambda: f"{dice.randint(2, 80)} kg",
    "vol": lambda: f"{dice.randint(2, 80)} litres",
    "phone": lambda: f"0{dice.randint(100, 999)} {dice.randint(100, 999)} {dice.randint(100, 999)}",
    "code": lambda: f"{dice.choice('ABCDEFGH')}{dice.choice('KLMNPQ')}-{dice.randint(100, 9999)}",
    "ver": lambda: f"{dice.randint(1, 9)}.{dice.randint(0, 20)}.{dice.randint(0, 9)}",
    "prod": lambda: f"{dice.choice(LAST)} {dice.randint(100, 900)}",
    "word": lambda: dice.choice(PLACES).lower(),
    "money": lambda: f"{dice.randint(3, 900)} euros",
    "date": lambda: f"{dice.randint(1, 28)} {dice.choice(['March', 'June', 'October'])}",
    "day": lambda: dice.choice(["Monday", "Tuesday", "Thursday", "Saturday"]),
    "month": lambda: dice.choice(["May", "August", "November"]),
    "email": lambda: dice.choice(FIRST).lower() + "@example.org",
}


def filled(text):
    known = {}

    def value(match):
        key = match.group(1)
        if key not in known:
            base = re.sub(r"[0-9^]+$", "", key)
            made = MADE[base]() if base in MADE else dice.choice(SLOTS[base].split("|"))
            known[key] = made[:1].upper() + made[1:] if key.endswith("^") else made
        return known[key]

    text = re.sub(r"\{([a-z_0-9^]+)\}", value, text)
    return re.sub(r"\[([^\[\]]*\|[^\[\]]*)\]", lambda m: dice.choice(m.group(1).split("|")), text)


def documents():
    number = 0
    for file in range(9, 24):
        for part in open(f"{DEMO}docs{file}.txt").read().split("=== ")[1:]:
            number += 1
            if number % 2 == 0:
                continue
            lines = [line for line in part.split("\n", 1)[1].rstrip("\n").split("\n") if not line.startswith("??")]
            lines = [re.sub(r"^[~&] ?", "", line.split(" || ")[0].replace("\\n", "\n")) for line in lines]
            yield filled("\n".join(lines)).strip()


kept = []
for document in documents():
    if sum(map(len, kept)) < MOST:
        kept.append(document)
for path, start, length in [
    ("../../docs/design.md", 0, 9_000),
    ("../../src/base/random.rs", 0, 1_600),
    ("../../sala/src/model/score.rs", 0, 4_500),
    ("../training/evaluate.py", 0, 6_000),
]:
    text = open(path).read()[start : start + length]
    kept.append(text[: text.rfind("\n")].strip())
kept.insert(len(kept) // 2, open("own.txt").read().strip())
with open("text.txt", "w") as out:
    out.write("\n\n\n".join(kept) + "\n")
