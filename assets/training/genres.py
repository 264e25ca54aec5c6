"""Whole documents of one kind (minutes, leases, manuals, letters, ...), made from genres.txt.

A genre is a list of sections, a section a list of fields, a field some sentence patterns and the questions that they
answer.  Each document leaves fields out: their questions are asked too, and the answer is that nothing was found.
As the rest of the document is of one piece, questions may be as short as people ask them ("who was missing?").

genres.txt:  `@name style file|file` begins a genre (styles: p paragraphs, l lines, b bullets, n numbers),
`V word=a|b` a word of its own, `H a|b` a section with its heading (`-`: none), `S pattern` and `Q questions` a field.
Slots are those of natural.py; with a digit from 5 to 9 they are drawn anew for every field.
"""
import os, re

HERE = os.path.dirname(os.path.abspath(__file__))
LOCAL = re.compile(r"[a-z]+[5-9]$")
SETTING = re.compile(r"[a-z_]+( = |: |=)")
MALE = [("taught her", "taught him"), ("made her", "made him"), ("after her", "after him"), ("after his?", "after him?"), ("taught his", "taught him"), ("made his known", "made him known")]


def load(path):
    out = []
    for l in open(path, encoding="utf-8").read().split("\n"):
        k, r = l[:1], l[2:].replace("\\n", "\n")
        if k == "@":
            name, style, files = l[1:].split(" ", 2)
            out.append({"name": name, "style": style, "files": files.split("|"), "vars": {}, "sections": []}); S = []
        elif k == "V": a, b = r.split("=", 1); out[-1]["vars"][a] = b.split("|")
        elif k == "H": out[-1]["sections"].append((r.split("|") if not r.strip() == "-" else [], [])); S = []
        elif k == "S": S.append(r)
        elif k == "Q": out[-1]["sections"][-1][1].append((S, [q for q in r.split("|") if q])); S = []
    for g in out: g["fields"] = sum(len(f) for _, f in g["sections"])
    return out


GENRES = load(os.path.join(HERE, "genres.txt"))
DECOY_HEAD = ["About the {x}", "The {x}", "{x^}", "Subject: {x}", "Re: {x}", "Notes on the {x}", "{x^} and more", "Questions about the {x}", "On the {x}", "Our {x}", "## {x^}", "## The {x}"]
DECOY_LINE = ["More about the {x} can be found in the {noun}.", "The {x} came up several times.", "There was a long talk about the {x}.", "Nobody likes to speak of the {x}.", "Everybody asks about the {x}.", "The {x} is an old subject here.", "A picture of the {x} hangs in the {room}.",
              "{name} wrote a song about the {x}.", "You can read about the {x} elsewhere.", "Without the {x} all this would be easier.", "The {x} deserves a page of its own.", "The {x} is {adj}, as everybody knows.", "Some find the {x} too {adj}.", "People often forget the {x}."]


NUMBER = r"\d|\b(one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|sixteen|twenty|thirty|forty|fifty|sixty|eighty|hundred|thousand|half|twice|once|third|quarter|first|no|none|nobody|nothing|all|most|each|every|both|dozen|pair|pinch|little|some)\b"
WHEN = NUMBER + r"|\b(January|February|March|April|May|June|July|August|September|October|November|December|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sundays?|Mondays|Tuesdays|Wednesdays|Thursdays|Fridays|Saturdays|before|after|during|until|when|while|as soon|last|end|daily|day|days|morning|evening|night|noon|winter|summer|spring|autumn|Easter|Christmas|request|at once|now|always|never|late|dawn|year|week|month|restart|next|works|arrival|saved|begin)\b"
WHO = r"[a-z,:;'\"(] (?!I\b)[A-Z][a-z]|^[A-Z][a-z]+ [A-Z][a-z]|\b([a-z]+(er|or|ist|man|men|ent|ant|ess|ian)s?|who|nobody|no one|everybody|everyone|children|people|members|mayor|council|king|widow|brothers|monks|staff|chair|guard|cook|nurse|neighbours?|police|team|group|school|state|bishop|canton|city|town|army|committee|board|all|visitors|guests|adults|owner)\b|@|^(From|Sender|To|Dear|Hello)"
FITS = [(re.compile(r"(how much|how expensive|what does .* cost|what is the (price|fee|rent|salary|wage|deposit))"), re.compile(NUMBER + r"|free|include|pays|gratis")), (re.compile(r"how many"), re.compile(NUMBER)), (re.compile(r"how (long|old|often)"), re.compile(WHEN + r"|hour|minute|second|dur|quick|too long|\bage\b|keep")),
        (re.compile(r"(when|at what time|at which time|on which (day|date)|until when|by when|since when|from when|in which year|what is the (date|deadline)|how (soon|early|late)\b)"), re.compile(WHEN)), (re.compile(r"(who|whom|whose|to whom|from whom)\b"), re.compile(WHO)), (re.compile(r"why\b"), re.compile(r"because|since|\bso\b|reason|\bas\b|cause|: |; |too |\bfor\b|\bto\b|after|means|when|if |was |were |had |found|blame")),
        (re.compile(r"(how (big|large|high|heavy|far|hot|warm|cold|deep|fast|bright|loud)|what is the (number|temperature|size|distance|weight))"), re.compile(NUMBER))]


def fits(q, t):
    """whether a text can answer such a question: no price without a number, no "who" without a name"""
    for a, b in FITS:
        if a.match(q) and not b.search(t): return False
    return True


class Genres:
    """mixed into Natural"""

    def genre_document(self, chars):
        """-> text, units as natural_document gives them, questions of the fields left out"""
        g = self.p(GENRES); env = {k: self.fill(self.p(v), {}) for k, v in g["vars"].items()}
        male = "she" in env and self.ch(.5)
        if male: env["she"], env["her"] = "he", "his"
        share = min(.93, chars / (62.0 * g["fields"]) * (.75 + .5 * self.R.random()))
        style = g["style"] if self.ch(.7) else self.p("pplb")
        buf, units, absent, size = [], [], [], 0
        width = self.n(58, 112) if self.ch(.3) else 0
        decoy = .14 if self.ch(.6) else 0

        def local(t):
            for k in re.findall(r"\{([a-z]+[5-9])", t):
                base = k[:-1]
                if base in g["vars"] and k not in env: env[k] = self.fill(self.p(g["vars"][base]), {})
            return self.alt(self.fill(t, env))

        def text(t):
            t = local(t)
            if male:
                for a, b in MALE: t = t.replace(a, b)
            return t

        def put(s):
            nonlocal size
            buf.append(s); size += len(s)

        def lines(items):
            """paragraph or lines of one section"""
            nonlocal size
            flow = style == "p"; run = size; at = len(buf); num = 0
            for i, (t, qs) in enumerate(items):
                alone = not flow or "\n" in t or not re.match(r'[A-Z"{]', t) or not t.endswith((".", "!", "?", '"', ",", ":")) or len(t) < 14
                lead = ""
                if style in "bn" and re.match(r'[A-Z"]', t) and "\n" not in t and not t.endswith(","):
                    num += 1; lead = mark if style == "b" else f"{sec}.{num} " if deep else f"{num}. " if points else ""
                skip = len(lead) + len(re.match(r"(# |## |- |\* |; )?", t).group(0) if not t.startswith("# ") or "\n" not in t else "# ")
                a = size; put(lead + t)
                units.append((a + skip, size, qs or None, self.stem_set(t), 3))
                put("\n" if alone else self.p([" ", " ", " ", " ", "\n\n"]) if i + 1 < len(items) else "\n")
            if width and flow:
                s = self.wrap_lines("".join(buf[at:]), width); del buf[at:]; buf.append(s)

        sections = list(g["sections"])
        if len(sections) > 3 and self.ch(.25): tail = sections[2:]; self.R.shuffle(tail); sections = sections[:2] + tail
        mark = self.p(["- ", "- ", "* ", "• "]); deep = self.ch(.6); points = self.ch(.7); heads = self.ch(.8); sec = 0
        for heading, fields in sections:
            items = []
            fields = list(fields)
            if len(fields) > 2 and self.ch(.25): self.R.shuffle(fields)
            for S, Q in fields:
                for k in [k for k in env if LOCAL.match(k)]: del env[k]
                if not self.ch(share):
                    absent += [text(q) for q in self.R.sample(Q, min(2, len(Q)))]; continue
                t = text(self.p(S))
                if not SETTING.match(t) and t[:1].islower(): t = t[:1].upper() + t[1:]
                ask = [q for q in Q if fits(q, t)]
                if len(ask) < len(Q) and self.ch(.4): absent += [text(self.p([q for q in Q if q not in ask]))]
                qs = [text(q) for q in self.R.sample(ask, min(4, len(ask)))]
                if self.ch(.3): t, qs = self.vary(t, qs)
                if decoy and qs and self.ch(decoy):
                    ws = [w for w in re.findall(r"\b(?:the|a|an|new) ([a-z]{4,})", self.p(qs)) if w not in self.STOP]
                    if ws:
                        x = self.p(ws); head = self.ch(.5)
                        d = self.p(DECOY_HEAD if head else DECOY_LINE)
                        d = self.fill(d.replace("{x^}", x[:1].upper() + x[1:]).replace("{x}", x), {})
                        items.insert(self.n(0, len(items)) if not head else len(items), (d, None))
                if self.ch(.06): items.append((self.scramble(self.p(self.p(self.PROSE))), None))
                items.append((t, qs))
            if not items: continue
            sec += 1
            h = self.p(heading) if heading else "-"
            if h.strip() and h != "-" and (heads or sec == 1):
                t = text(h); t = t if self.ch(.75) else t.lstrip("# "); put(("\n" if size else "") + (t[:1].upper() + t[1:]) + ("\n\n" if self.ch(.6) else "\n"))
            elif size: put("\n" if self.ch(.7) else "")
            lines(items)
        name = self.alt(self.fill(self.p(g["files"]), env)).replace(" ", "-").replace("'", "")
        return "".join(buf).rstrip("\n"), units, absent, name
