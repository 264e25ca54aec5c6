"""Tables and program texts with questions: documents whose units are rows, or a comment with the line that it explains."""
import re

# column: heads, kind of value, questions about one row ({e}: its first cell), questions that name the value ({v})
COLS = {
    "price": (["price", "cost", "fee", "euros", "rate"], "money", ["how much is {e}?", "what does {e} cost?", "what is the price of {e}?", "how much do i pay for {e}?", "what do i pay for {e}?", "how expensive is {e}?"], ["what costs {v}?", "which one is {v}?"]),
    "reduced": (["children", "reduced", "members", "half price", "season"], "money", ["what do children pay for {e}?", "how much is {e} for members?", "what is the reduced price of {e}?"], []),
    "room": (["room", "place", "where", "hall"], "room", ["where is {e}?", "in which room is {e}?", "where do i find {e}?", "what room is {e} in?"], ["what is in the {v}?"]),
    "who": (["contact", "person", "in charge", "owner", "teacher", "guide"], "name", ["who is in charge of {e}?", "who looks after {e}?", "who is responsible for {e}?", "who does {e}?", "whom do i ask about {e}?", "who is the contact for {e}?"], ["what does {v} do?", "what is {v} responsible for?", "where does {v} belong?"]),
    "phone": (["phone", "telephone", "call", "extension"], "phone", ["what is the number of {e}?", "what number has {e}?", "how do i call {e}?", "what is the phone number of {e}?", "which number do i call for {e}?"], []),
    "day": (["day", "weekday", "on"], "day", ["on which day is {e}?", "when is {e}?", "what day is {e}?", "which day is {e} on?"], ["what is on {v}?", "what happens on {v}?"]),
    "time": (["time", "start", "at", "departure", "opens"], "time", ["when is {e}?", "at what time is {e}?", "when does {e} start?", "what time is {e}?", "when does {e} open?"], ["what is at {v}?", "what starts at {v}?"]),
    "until": (["until", "end", "arrival", "closes"], "time", ["when does {e} end?", "until when is {e}?", "when does {e} close?", "when is {e} over?"], []),
    "stock": (["stock", "number", "count", "pieces", "left"], "big", ["how many {e} are there?", "how many {e} do we have?", "what is the number of {e}?", "how many {e} are left?"], []),
    "weight": (["weight", "kg", "heavy"], "weight", ["how heavy is {e}?", "what does {e} weigh?", "what is the weight of {e}?"], ["which weighs {v}?"]),
    "length": (["length", "height", "size", "depth"], "len", ["how long is {e}?", "how high is {e}?", "what is the size of {e}?", "how big is {e}?", "how deep is {e}?"], ["which is {v}?"]),
    "dist": (["distance", "far", "km"], "dist", ["how far is {e}?", "what is the distance to {e}?", "how many kilometres is it to {e}?"], []),
    "dur": (["takes", "duration", "lasts", "time needed"], "dur", ["how long does {e} take?", "how long is {e}?", "how much time does {e} need?", "how long does {e} last?"], []),
    "color": (["colour", "color"], "color", ["what colour is {e}?", "which color has {e}?"], ["which is {v}?", "what is {v}?"]),
    "state": (["state", "status", "result"], "state", ["what is the state of {e}?", "how is {e}?", "is {e} ready?", "what about {e}?", "what happened to {e}?"], ["which is {v}?", "what is {v}?"]),
    "date": (["date", "when", "due", "last check", "built"], "date", ["when was {e}?", "what is the date of {e}?", "when is {e} due?", "what date is given for {e}?"], ["what is due on {v}?", "what happens on {v}?"]),
    "year": (["year", "since", "built", "founded"], "year", ["in which year was {e}?", "how old is {e}?", "since when is there {e}?", "what year is {e} from?"], ["what is from {v}?"]),
    "temp": (["temperature", "degrees", "warm"], "temp", ["how warm is {e}?", "what is the temperature of {e}?", "at what temperature is {e}?"], []),
    "code": (["code", "number", "key", "order number"], "code", ["what is the code of {e}?", "what is the number of {e}?", "which code has {e}?", "what is the order number of {e}?"], ["what has the number {v}?", "what is {v}?"]),
    "port": (["port", "address"], "port", ["which port does {e} use?", "on which port is {e}?", "what is the port of {e}?"], ["what runs on port {v}?"]),
    "material": (["material", "made of"], "material", ["what is {e} made of?", "which material is {e}?"], ["which is of {v}?", "what is made of {v}?"]),
    "from": (["from", "origin", "country"], "place", ["where does {e} come from?", "where is {e} from?", "what is the origin of {e}?"], ["what comes from {v}?"]),
}
STATES = ["open", "closed", "ready", "late", "broken", "done", "missing", "waiting", "failed", "in repair", "empty", "full", "sold", "cancelled", "lent", "new"]
# kind of thing in the first column, its head, columns that suit it
THEMES = [
    ("boats", ["boat", "length of boat", "size"], lambda g: g.p([f"up to {g.n(4, 9)} m", f"{g.n(5, 9)} to {g.n(10, 20)} m", f"over {g.n(12, 40)} m", "rowing boat", "canoe", "sailing boat", "ferry", "barge", "guest boat"]), "price reduced date dur"),
    ("courses", ["course", "class", "lesson"], "course", "day time room who price until"), ("people", ["name", "who", "person"], "name", "room phone day state date"),
    ("places", ["stop", "station", "place", "to"], "place", "time until dist price dur"), ("things", ["item", "article", "thing", "part"], "item", "price stock room who weight color material state"),
    ("events", ["event", "what", "programme"], "event", "day time room who price until date"), ("rooms", ["room", "hall", "space"], "room", "price stock length state who phone"),
    ("services", ["service", "system", "server"], "tech", "port who state date code dur"), ("parts", ["part", "component"], "word", "code price stock weight material length"),
    ("dishes", ["dish", "meal", "food"], "dish", "price dur temp from"), ("animals", ["animal", "species"], "animal", "weight length dur from stock state"),
    ("plants", ["plant", "seed", "crop"], "plant", "length month date temp from color"), ("samples", ["sample", "test", "run"], "sample", "temp weight state date color dur"),
    ("works", ["title", "book", "work"], "title", "who year price room state"), ("peaks", ["mountain", "peak", "lake", "river"], "geo", "length year dist temp"),
    ("days", ["day", "weekday"], "day", "time until who state temp"), ("jobs", ["task", "job", "to do"], "act", "who date state dur"), ("teams", ["club", "group", "team"], "body", "who phone day year stock"),
    ("sizes", ["size", "model", "type"], "size", "length weight price code stock"), ("vehicles", ["line", "bus", "train", "ship"], "line", "from time until dur price state"),
]
NOTES = [("Prices [are|hold] [from|since] {date}.", ["since when do the prices hold?", "from when are the prices?"]), ("[All|Prices] [include|without] tax.", ["is tax included?", "do prices include tax?"]), ("Made by {name}, {date}.", ["who made the table?", "who wrote this?"]),
         ("[Changes|Errors] are possible; {name} [knows more|keeps the list].", ["who keeps the list?", "who knows more?"]), ("The list is [checked|renewed] every {month}.", ["how often is the list renewed?", "when is the list checked?"]), ("On [holidays|{day}s] [everything is closed|other times hold].", ["what about holidays?", "is it open on holidays?"]),
         ("Whoever pays [cash|in advance] gets {pct} off.", ["is there a discount?", "how can i save money?"]), ("Questions: {email}", ["where do i send questions?", "whom can i ask?"])]
VERBS = [("read", "Reads the {a} from {path}", ["where are the {a} read from?", "which file holds the {a}?"]), ("write", "Writes the {a} to {path}", ["where are the {a} written?", "where do the {a} go?"]), ("count", "Returns the number of {a}", ["what does {f} return?", "how do i count the {a}?"]),
         ("remove", "Deletes {a} older than {n} days", ["when are {a} deleted?", "which {a} are deleted?"]), ("send", "Sends the {a} to {name}", ["who gets the {a}?", "to whom are the {a} sent?"]), ("check", "True if the {a} are complete and {b}", ["what does {f} check?", "when is {f} true?"]),
         ("sort", "Puts the {a} in order of their {b}", ["how are the {a} sorted?", "in what order are the {a}?"]), ("open", "Opens the {a} and waits until the {b} is ready", ["what does {f} wait for?", "what does {f} open?"]), ("close", "Closes the {a} when the {b} is {adj}", ["when are the {a} closed?", "what does {f} close?"]),
         ("retry", "Tries again up to {n} times, then gives up", ["how often does it try again?", "when does it give up?"]), ("merge", "Joins two {a}; the newer one wins", ["which one wins?", "what does {f} join?"]), ("report", "Appends a line about each lost {b} to {path}", ["where is a lost {b} recorded?", "what does {f} append?"]),
         ("next", "Takes the oldest of the waiting {a}", ["which one is taken first?", "what does {f} take?"]), ("pick", "Chooses one of the {a} at random", ["how is one chosen?", "what does {f} choose?"]), ("lock", "Keeps others from changing the {a}", ["what does {f} prevent?", "what is the lock for?"]),
         ("draw", "Draws the {a} in {color}", ["in which colour are the {a} drawn?", "what does {f} draw?"]), ("wait", "Sleeps for {n} seconds between two {a}", ["how long does {f} sleep?", "how long is the pause?"]), ("convert", "Turns {a} into {b}s", ["what does {f} convert?", "into what are {a} turned?"])]
CONSTS = [("max_{a}", "No more than this many {a} [at once|in one run]", "int", ["how many {a} are allowed?", "what is the limit of {a}?", "how many {a} at most?"]), ("{b}_interval", "Seconds between two looks at the {b}", "int", ["how often is the {b} looked at?", "how many seconds between two looks?", "how often is the {b} checked?"]),
          ("{b}_limit", "Above this [speed|value|temperature] the {b} is [closed|stopped|switched off]", "float", ["when is the {b} stopped?", "at what value is the {b} closed?", "what is the limit of the {b}?"]), ("{b}_path", "Where the {b} is kept", "path", ["where is the {b} kept?", "what is the path of the {b}?"]),
          ("default_{b}", "Used when no {b} is given", "word", ["what is the default {b}?", "what is used when no {b} is given?"]), ("{b}_timeout", "[How long we wait for|Patience with] the {b}, in [seconds|minutes]", "int", ["how long do we wait for the {b}?", "what is the timeout of the {b}?"]),
          ("{a}_per_{b}", "{a^} that fit into one {b}", "int", ["how many {a} fit into a {b}?", "how many {a} per {b}?"]), ("{b}_user", "Whom to tell when the {b} fails", "email", ["who is told when the {b} fails?", "who gets the mail about the {b}?"])]
ERRS = [("no {b} is left", ["what happens when no {b} is left?", "what does {f} raise when no {b} is left?"]), ("the {b} is empty", ["what if the {b} is empty?", "what does {f} raise when the {b} is empty?"]), ("too many {a}", ["what if there are too many {a}?", "when does {f} fail?"]), ("unknown {b}", ["what about an unknown {b}?", "what does {f} raise?"])]


class Tables:
    """mixed into Natural"""

    def cell(self, k):
        p = self.p
        if callable(k): return k(self)
        if k == "course": return p(["Yoga", "Spanish", "Pottery", "First aid", "Judo", "Drawing", "Chess", "Sewing", "Welding", "Cooking", "Piano", "Photography", "Swimming", "Russian", "Bookkeeping", "Dance", "Astronomy", "Baking", "Welsh", "Fencing", self.cap(self.pseudo(2, 3))])
        if k == "dish": return p(["Onion soup", "Fried trout", "Pea stew", "Goulash", "Lamb pie", "Rice pudding", "Omelette", "Potato salad", "Mussels", "Dumplings", "Apple tart", "Noodles", "Roast duck", "Bean salad", "Pancakes", self.cap(self.pseudo(2, 3))])
        if k == "animal": return p(["badger", "otter", "heron", "pike", "red fox", "adder", "stag beetle", "lynx", "kestrel", "seal", "mole", "crane", "eel", "wild boar", "beaver", "tern", self.pseudo(2, 3)])
        if k == "plant": return p(["carrot", "leek", "tulip", "pumpkin", "lettuce", "dill", "sunflower", "radish", "pea", "beetroot", "aster", "kale", "broad bean", "parsnip", "poppy", self.pseudo(2, 3)])
        if k == "sample": return p([f"sample {self.n(1, 40)}", f"{p('ABCDEFG')}{self.n(1, 9)}", f"run {self.n(1, 30)}", f"series {p('ABCDEF')}", f"bar {self.n(1, 20)}", f"probe {self.n(1, 12)}"])
        if k == "title": return f"The {self.cap(p(['silent', 'last', 'blue', 'long', 'broken', 'third', 'hidden', 'cold', 'golden', 'slow']))} {self.cap(self.slot('noun', {}))}"
        if k == "geo": return p(["Mount ", "Lake ", "River ", "Cape "]) + self.cap(self.pseudo(2, 3))
        if k == "size": return p([p(["S", "M", "L", "XL", "XXL"]), f"{self.n(30, 50)}", f"Model {p('ABCDKTX')}{self.n(1, 9)}", f"type {self.n(1, 30)}", p(["small", "medium", "large", "mini", "giant"])])
        if k == "line": return p([f"line {self.n(1, 90)}", f"bus {self.n(1, 90)}", f"train {self.n(100, 999)}", "MS " + self.cap(self.pseudo(2, 3)), f"tram {self.n(1, 20)}"])
        if k == "state": return p(STATES)
        return self.slot(k, {})

    def table_document(self, chars):
        """a title, one or two tables, now and then a remark"""
        p = self.p; buf, units, size = [], [], 0

        def put(s):
            nonlocal size
            buf.append(s); size += len(s)
        for _ in range(1 if chars < 900 or self.ch(.6) else 2):
            kind, heads, ent, cols = p(THEMES); cols = [c for c in self.R.sample(cols.split(" "), min(self.n(2, 4), len(cols.split(" ")))) if c in COLS]
            h0 = p(heads); hs = [p(COLS[c][0]) for c in cols]
            if len(set(hs)) < len(hs): hs = [COLS[c][0][0] for c in cols]
            rows, seen = [], set()
            for _ in range(self.n(3, min(12, max(4, chars // 60)))):
                e = self.cell(ent)
                if e.lower() in seen: continue
                seen.add(e.lower()); rows.append([self.cap(e) if self.ch(.6) else e] + [self.cell(COLS[c][1]) for c in cols])
            if self.ch(.8): put(p(["# ", "", "## ", ""]) + self.cap(p([kind, f"our {kind}", f"list of {kind}", f"{kind} and {hs[-1]}", f"{self.slot('body', {})}: {kind}", f"{kind}, {self.slot('date', {})}"])) + "\n\n")
            if self.ch(.25):
                t, qs = p(NOTES); env = {}; a = size; t = self.alt(self.fill(t, env)); put(t); units.append((a, size, qs, self.stem_set(t), 3)); put("\n\n")
            form = p(["md", "md", "md", "csv", "tab", "space", "dash", "semi"]); head = [self.cap(x) for x in [h0] + hs] if self.ch(.6) else [h0] + hs
            if form == "csv": rows = [[c.replace(",", "") for c in r] for r in rows]
            wide = [max(len(r[i]) for r in [head] + rows) + 2 for i in range(len(head))]; pad = self.ch(.4)

            def fmt(r):
                if form == "md": return " | ".join(c.ljust(w - 2) for c, w in zip(r, wide)) if pad else " | ".join(r)
                if form == "space": return "".join(c.ljust(w) for c, w in zip(r, wide)).rstrip()
                if form == "dash": return r[0] + ": " + ", ".join(f"{h} {c}" if self_named else c for h, c in zip(hs, r[1:]))
                return {"csv": ",", "tab": "\t", "semi": "; "}[form].join(r)
            self_named = self.ch(.5)
            if form != "dash":
                put(("| " + fmt(head) + " |") if form == "md" else fmt(head)); put("\n")
                if form == "md": put("|" + "---|" * len(head) + "\n")
                elif form == "space" and self.ch(.4): put("-" * sum(wide) + "\n")
            for r in rows:
                lead = "| " if form == "md" else p(["- "]) if form == "dash" and self.ch(.5) else ""
                put(lead); a = size; put(fmt(r)); b = size; put(" |\n" if form == "md" else "\n")
                qs = []; e = r[0] if self.ch(.3) else r[0][:1].lower() + r[0][1:]
                if kind not in ("people", "places", "days", "works", "peaks", "courses", "sizes", "boats") and self.ch(.6): e = "the " + e
                if kind == "boats": e = p(["a boat of ", "boats of ", ""]) + e if e[0].isdigit() or e.startswith(("up", "over")) else "a " + e
                if kind == "sizes": e = p(["size ", "the ", ""]) + e
                for c, v in zip(cols, r[1:]):
                    if self.ch(.75): qs.append(p(COLS[c][2]).replace("{e}", e))
                    if COLS[c][3] and self.ch(.2) and sum(x.count(v) for x in (y for z in rows for y in z)) == 1: qs.append(p(COLS[c][3]).replace("{v}", v))
                    if self.ch(.15): qs.append(p(["what is the {h} of {e}?", "which {h} has {e}?", "what {h} is listed for {e}?", "{h} of {e}?", "tell me the {h} of {e}"]).replace("{h}", hs[cols.index(c)].lower()).replace("{e}", e))
                if self.ch(.3): qs.append(p(["what about {e}?", "what does the table say about {e}?", "show me {e}", "{e}?", "find {e}"]).replace("{e}", e))
                qs = [q.replace("many the ", "many ") for q in qs]
                units.append((a, b, qs or None, self.stem_set(" ".join(r)), 1 if kind != "days" else 3))
            absent = [p(COLS[c][2]).replace("{e}", e) for c in self.R.sample(list(COLS), 6) if c not in cols and not set(COLS[c][0]) & set(hs) for e in [p(rows)[0]]] if rows else []
            if "time" in cols or "until" in cols or "date" in cols or "day" in cols: absent = [q for q in absent if not q.startswith(("when", "at what", "until", "on which", "what day", "which day", "what date"))]
            if any(c in cols for c in ("room", "from", "dist")): absent = [q for q in absent if not q.startswith("where")]
            if any(c in cols for c in ("length", "dur", "year")): absent = [q for q in absent if not q.startswith(("how long", "how old", "how big", "how high"))]
            put("\n")
            if self.ch(.35):
                t, qs = p(NOTES); env = {}; t = self.alt(self.fill(t, env))
                if t not in "".join(buf): a = size; put(t); units.append((a, size, qs, self.stem_set(t), 3)); put("\n\n")
        return "".join(buf).rstrip("\n"), units, absent, p(["table", "prices", "list", "plan", kind, "tariffs"]) + p([".md", ".csv", ".txt", ".tsv"])

    def code_document(self, chars):
        """a program: constants and functions with comments; what explains a line is quoted with it"""
        p = self.p; buf, units, size = [], [], 0; lang = p(["py", "py", "rs", "js", "sh", "go"]); com = {"py": "# ", "sh": "# "}.get(lang, "// ")
        camel = lambda s: "".join(x if i == 0 else self.cap(x) for i, x in enumerate(s.split("_"))) if lang in ("js", "go") else s
        noun = lambda: self.slot("noun", {}).replace(" ", "_")
        plural = lambda: p([x for x in self.slots("thing") if " " not in x])

        def put(s):
            nonlocal size
            buf.append(s); size += len(s)

        def unit(a, b, qs, t): units.append((a, b, qs, self.stem_set(t), 3))
        absent = []; used = set()
        t, qs = self.line(); t = t.split("\n")[0]
        first = self.fill(p(["Part of {word}: looks after the {noun}.", "Small helper for the {body}.", "Keeps the {thing} of the {body} in order.", "Written by {name} in {year}.", "Talks to the {tech} of the {body}."]), {})
        put(('"""' + first + '"""' if lang == "py" else ("#!/bin/sh\n" if lang == "sh" else "") + com + first) + "\n\n")
        unit(size - 2 - len(first) - (3 if lang == "py" else 0), size - 2 - (3 if lang == "py" else 0), ["who wrote it?" if "Written" in first else "what is this file for?", "what is this program?" if "Written" not in first else "who is the author?"], first)
        pad = ""                                 # inside a class
        for _ in range(60):
            if size >= chars: break
            if lang == "py" and self.ch(.2) and not pad or lang == "py" and pad and self.ch(.06):
                c = self.cap(noun().split("_")[0]); d = self.fill(p(["Keeps {thing} until the {noun} is {adj}.", "One {noun} of the {body}.", "Hands out {thing} in the order of their {noun}.", "Talks to the {tech}.", "The {thing} that are {adj}."]), {})
                if c.lower() in used: continue
                used.add(c.lower()); pad = "    "; a = size; put(f'class {c}:\n    """{d}"""'); unit(a, size, [f"what does {c} do?", f"what is {c}?", f"what is the class {c} for?", f"what is a {c.lower()}?"], c + " " + d); put("\n\n")
            a_, b_ = plural(), noun()
            if a_ in used or b_ in used: continue
            used |= {a_, b_}; pad = pad if lang == "py" else ""; env = {"a": a_, "b": b_.replace("_", " ")}
            if self.ch(.45):
                name, doc, kind, qs = p(CONSTS); name = name.replace("{a}", a_).replace("{b}", b_); up = name.upper() if lang != "js" or self.ch(.5) else camel(name)
                v = {"int": str(self.n(2, 900)), "float": f"{self.n(1, 90)}.{self.n(1, 9)}", "path": f'"{self.slot("path", {})}"', "word": f'"{self.pseudo(1, 2)}"', "email": f'"{self.slot("email", {})}"'}[kind]
                line = {"py": f"{up} = {v}", "rs": f"const {up}: {'u32' if kind == 'int' else 'f64' if kind == 'float' else '&str'} = {v};", "js": f"const {up} = {v};", "sh": f"{up}={v}", "go": f"const {camel(name)} = {v}"}[lang]
                doc = self.alt(self.fillq(doc, env)); qs = [self.fillq(q, env) for q in qs] + [f"what is {up}?", f"what is the value of {up}?"]
                if self.ch(.15): absent += qs[:2]; continue
                r = self.R.random(); put(pad); a = size
                if r < .55: put(("/// " if lang == "rs" and self.ch(.6) else com)); a = size; put(doc + "." + "\n" + pad + line)
                elif r < .85: put(line + "  " + com + doc[:1].lower() + doc[1:])
                else: put(line); qs = qs[2:]
                unit(a, size, qs, doc + " " + line.replace("_", " ")); put(p(["\n", "\n\n"]))
            else:
                verb, doc, qs = p(VERBS)
                if verb in used: continue
                used.add(verb); f = camel(verb + p(["_" + a_, "_" + b_, ""]))
                if f in used: continue
                used.add(f); env["f"] = f; doc = self.fillq(doc, env); doc = self.fill(doc, {}); qs = [self.fillq(q, env) for q in qs] + [f"what does {f} do?", f"what is {f} for?", f"what does the function {f} do?"]
                if self.ch(.15): absent += qs[:1] + qs[2:3]; continue
                arg = p(["", b_, f"{b_}, {self.pseudo(1, 1)}", f"{a_}={self.n(1, 99)}" if lang == "py" else b_]); ind = "    " + pad
                if pad: arg = "self" + (", " + arg if arg else ""); put(pad)
                sig = {"py": f"def {f}({arg}):", "rs": f"fn {f}({arg.split(',')[0]}{': &str' if arg else ''}) -> bool {{", "js": f"function {f}({arg}) {{", "sh": f"{f}() {{", "go": f"func {f}({arg.split(',')[0]}{' string' if arg else ''}) error {{"}[lang]
                if lang == "py": a = size; put(sig + "\n" + ind + '"""' + doc + '."""'); unit(a, size, qs, sig + doc)
                else: put("/// " if lang == "rs" else com); a = size; put(doc + ".\n" + sig); unit(a, size, qs, sig + doc)
                put("\n")
                if self.ch(.5):
                    e, eq = p(ERRS); e = self.fillq(e, env); cond = p([f"if not {b_}:", f"if len({a_}) > {self.n(2, 99)}:"]) if lang == "py" else f"if ({b_} == 0) {{"
                    err = {"py": f'raise {p(["ValueError", "LookupError", "KeyError", "RuntimeError"])}("{e}")', "rs": f'return Err("{e}".into());', "js": f'throw new Error("{e}");', "sh": f'echo "{e}" >&2; exit {self.n(1, 9)}', "go": f'return errors.New("{e}")'}[lang]
                    put(ind); a = size; put(cond + "\n" + ind + "    " + err); unit(a, size, [self.fillq(q, env) for q in eq], cond + err); put("\n" if lang == "py" else f"\n{ind}}}\n")
                put(ind + p([f"return {b_}", f"{b_}.{self.pseudo(1, 2)}({self.n(1, 9)})", f"{self.pseudo(1, 2)} = {b_}"]) + ("" if lang in ("py", "sh", "go") else ";") + "\n" + ("" if lang == "py" else "}\n") + "\n")
        return "".join(buf).rstrip("\n"), units, absent, self.pseudo(1, 2) + "." + lang

    def fillq(self, t, env):
        """puts in what a text and its questions share, leaves the other slots"""
        for k, v in env.items(): t = t.replace("{" + k + "^}", v[:1].upper() + v[1:]).replace("{" + k + "}", v)
        return self.fill(t, {})
