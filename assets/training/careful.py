"""Hand-written documents whose questions use other words than the sentence that answers (docs9.txt and later).

The skill: choose among sentences of one whole document by meaning.  So these documents are used whole, or as a piece without gaps, never
mixed with others, and their nouns are not swapped: a question that says "vessel" must go on meaning the boat.

A file holds `=== name` and lines `text || question | question`.  Before the text: `& ` it needs the line before it (a pronoun; both stay or
go), `~ ` it stands on a line of its own.  An empty line ends a paragraph; `\\n` in a text breaks the line inside one quote.
`One sentence. || question @@ The next. || question` are two on one line, each quoted alone.
`?? question | question` are questions that look near and have no answer in the document.
Slots are those of natural.py, with {given2} and {sur2}, the first and the last word of {name2}; `[a|b]` is one of the two.

So that the sentences are not learnt by heart, a document now and then gets a line that names a question's thing and answers nothing, and words
of the text and of the question are swapped for others of the same meaning.  Every 13th document is kept out of training, to see whether choosing is learnt.

    python careful.py          # counts, and checks of what is written
    python careful.py held     # the documents kept out, in the format of validation/validate.py
"""
import glob, os, re
from genres import DECOY_LINE

HERE = os.path.dirname(os.path.abspath(__file__))
HOLD = 13                                    # one document in so many is not trained on; 0: none


class Line:
    def __init__(self, l, joined=False):
        self.joined = joined                 # follows the one before on the same line
        text, _, qs = l.partition(" || ")
        self.tied, self.own = joined or text.startswith("& "), text.startswith("~ ")
        self.text = (text[2:] if text.startswith(("& ", "~ ")) else text).rstrip().replace("\\n", "\n")
        self.qs = [q.strip() for q in qs.split(" | ")] if qs else []


def load(folder):
    """[(name, lines, near questions)] of docs9.txt and later"""
    out = []
    for path in sorted(glob.glob(folder + "/docs*.txt"), key=lambda f: int(re.search(r"\d+", os.path.basename(f)).group())):
        if int(re.search(r"\d+", os.path.basename(path)).group()) < 9: continue
        for part in open(path, encoding="utf-8").read().split("=== ")[1:]:
            name, *ls = part.rstrip("\n").split("\n")
            near = [q.strip() for l in ls if l.startswith("?? ") for q in l[3:].split(" | ")]
            out.append((name.strip(), [Line(x, i > 0) for l in ls if not l.startswith("?? ") for i, x in enumerate(l.split(" @@ "))], near))
    return out


WRITTEN = load(HERE)
HELD = [d for i, d in enumerate(WRITTEN) if HOLD and i % HOLD == HOLD - 1]
CAREFUL = [d for d in WRITTEN if d not in HELD]
CODE = (".py", ".rs", ".c", ".go", ".js", ".sh", ".sql", ".conf", ".toml", ".yaml", ".ini", ".json", ".log", ".csv")
HEADING, SENTENCE = re.compile(r"#+ "), re.compile(r'[A-Z"].*[.!?"]$', re.S)
MARK = re.compile(r"([-*•] |\d+(\.\d+)*[.)] |\([a-z]\) |\| )")
COMMENT = re.compile(r"(# |/// |// |; |-- )")


class Careful:
    """mixed into Natural"""

    def exact(self, t, env):
        t = self.fill(t, env)
        return self.alt(t) if "[" in t and "|" in t else t

    def decoys(self, lines, lo, hi):
        """-> {number of a line: a sentence to follow it}: it names what some question names and answers none"""
        free = [i for i in range(lo, hi) if SENTENCE.match(lines[i].text) and not lines[i].own and not (i + 1 < len(lines) and lines[i + 1].tied)]
        out = {}
        for i in self.R.sample(free, min(len(free), self.n(1, 3))):
            ws = [w for l in lines[lo:hi] for q in l.qs for w in re.findall(r"\b(?:the|a|an) ([a-z]{4,})\b", q) if w not in self.STOP]
            if ws: out[i] = self.fill(self.p(DECOY_LINE).replace("{x}", self.p(ws)), {})
        return out

    def piece(self, lines, chars):
        """-> the first and last line of a run without gaps of about `chars` characters"""
        size = [len(l.text) + 1 for l in lines]; total = sum(size)
        if total <= 1.15 * chars: return 0, len(lines)
        starts = [0, 0] + [i + 1 for i, l in enumerate(lines) if not l.text and sum(size[i:]) > .6 * chars]
        lo = hi = self.p(starts); room = chars
        while hi < len(lines) and (room > 0 or lines[hi].joined): room -= size[hi]; hi += 1
        return lo, hi

    def careful_document(self, chars, which=None):
        """-> text, units as natural_document gives them, questions left out, file name, near questions; which: this one, as it is written"""
        name, lines, near = which or self.p(CAREFUL); env, buf, units, left_out = {}, [], [], []
        lo, hi = self.piece(lines, max(chars, 500)); code = name.endswith(CODE); flow = self.ch(.8)
        width = self.n(58, 112) if self.ch(.35) and not code else 0
        size = run = 0; first = 0; gone = False
        decoys = self.decoys(lines, lo, hi) if not code and not which and self.ch(.35) else {}
        vary = 0 if code or which else self.p([0, .1, .2, .35])       # share of known words swapped

        def put(s):
            nonlocal size
            buf.append(s); size += len(s)

        def flush(end="\n"):
            nonlocal run
            if not run: return
            if width:
                s = self.wrap_lines("".join(buf[first:]), width); del buf[first:]; buf.append(s)
            put(end); run = 0
        for i, l in enumerate(lines):
            title = i == 0 and lo > 0 and (not l.qs or HEADING.match(l.text)) and self.ch(.7)
            outside = not title and not lo <= i < hi
            gone = bool(l.text) and (outside or (gone if l.tied else bool(l.qs) and not which and self.ch(.12)))
            if gone:
                if l.qs and self.ch(.6): left_out.append(self.exact(self.p(l.qs), env))
                continue
            if not l.text:
                if not outside: flush(); put("" if "".join(buf[-1:]).endswith("\n\n") else "\n")
                continue
            t = self.exact(l.text, env)
            if vary and "\n" not in t and "`" not in t and '"' not in t: t = self.other_words(t, vary)
            qs = [self.exact(q, env) for q in l.qs] or None
            if l.joined and not run:
                buf[-1] = buf[-1][:-1] + " "             # instead of the end of the line
                units.append((size, size + len(t), qs, self.stem_set(t), 3)); put(t + "\n")
                continue
            if flow and not code and not l.own and "\n" not in t and not MARK.match(t) and SENTENCE.match(t):
                if not run: first = len(buf)
                if run: put(" ")
                units.append((size, size + len(t), qs, self.stem_set(t), 3)); put(t); run = 1
                if i in decoys: put(" "); units.append((size, size + len(decoys[i]), None, self.stem_set(decoys[i]), 3)); put(decoys[i])
                continue
            flush(); body = t.lstrip(); skip = len(t) - len(body)
            m = None if code and "\n" not in body else COMMENT.match(body) if code or "\n" in body else HEADING.match(body) or MARK.match(body)
            if m: skip += len(m.group(0))
            tail = 2 if t.startswith("| ") and t.endswith(" |") else 0
            units.append((size + skip, size + len(t) - tail, qs, self.stem_set(t), 3)); put(t + "\n")
        flush()
        return "".join(buf), units, left_out, self.exact(name, env).replace(" ", "-"), [self.exact(q, env) for q in near]


def check():
    """what can be wrong in a file of this kind"""
    bad = 0; names = set()

    def say(*x):
        nonlocal bad
        bad += 1; print(*x)
    for name, lines, near in WRITTEN:
        texts = [l.text for l in lines if l.qs]; asked = [q for l in lines for q in l.qs] + near
        if name in names: say(name, "twice")
        names.add(name)
        if not 8 <= len(texts): say(name, "has only", len(texts), "answers")
        if not 2 <= len(near): say(name, "has only", len(near), "near questions")
        if "" in asked or any("||" in x for x in asked + [l.text for l in lines]): say(name, "a separator is wrong")
        for q in asked:
            if asked.count(q) > 1: say(name, "asks twice:", q)
        for t in texts:
            if sum(t in l.text for l in lines) > 1: say(name, "says twice:", t)
        if lines and (lines[0].tied): say(name, "begins with a tied line")
    words = sum(len(l.text.split()) for _, ls, _ in WRITTEN for l in ls); qs = sum(len(l.qs) for _, ls, _ in WRITTEN for l in ls)
    print(len(WRITTEN), "documents,", len(HELD), "of them kept out of training,", words, "words,", sum(1 for _, ls, _ in WRITTEN for l in ls if l.qs), "answers,", qs, "questions,",
          sum(len(n) for _, _, n in WRITTEN), "near questions")
    return bad


def held():
    """prints the documents kept out: text, `??`, and questions with the sentence that must be in the answer"""
    from generate_data import Gen
    g = Gen(13)
    for d in HELD:
        g.reset(); text, units, _, name, near = g.careful_document(10 ** 6, d)
        print("=== " + name + "\n" + text.strip() + "\n??")
        for a, b, qs, _, _ in units:
            gold = re.sub(r"\s+", " ", text[a:b])
            if qs and "|" not in gold and ">>" not in gold: print(g.cap(g.p(qs)) + " >> " + gold)
        for q in near: print(g.cap(q) + " >> NONE")


if __name__ == "__main__":
    import sys
    if sys.argv[1:] == ["held"]: held(); sys.exit()
    bad = check()
    from generate_data import Gen                      # every quote must be in the text made, word by word
    made = quotes = 0
    for seed in range(300):
        g = Gen(seed); g.reset(); text, name = g.load_careful(g.n(400, 3000)); made += 1
        for a, b, qs, _, _, _ in g.units:
            t = text[a:b]; quotes += bool(qs)
            if not t.strip() or t != t.strip() or "{" in t and re.search(r"\{[a-z]+\d*\}", t) or text.count(t) != 1 and qs: bad += 1; print(name, "quote:", repr(t), text.count(t))
    print(made, "documents made,", quotes, "quotes in them"); sys.exit(bad > 0)
