"""The second look: the model judges candidate sentences one after another, each behind the question.

After a question the program shows the model, in the order of the text, blocks `<think>QUESTION\nSENTENCE</think>` and reads after each
how much likelier `<|im_end|>` (this sentence answers) is than `<think>` (the next one, please).  The blocks are read
and forgotten: no answer is ever written behind them.  So rows of this kind hold no answers.
"""
YES, NO = 4, 5                               # the labels: <|im_end|> or <think>
QUESTION_TOKENS, SENTENCE_TOKENS = 48, 96    # longer ones are cut


def beginnings(text):
    """as src/text/sentences.rs"""
    out, last, gap, space, small = [], None, 0, " ", False
    for i, c in enumerate(text):
        if c == "\n": last, gap, space, small = None, 0, " ", False
        elif c in " \t\r\f": gap += 1; space = c
        else:
            if last is None: begins = True
            elif gap == 0: begins = False
            else: begins = gap > 1 or space == "\t" or not (last.isascii() and last.isalnum() or last == "," or not last.isascii()) or not small
            if begins and c != "|": out.append(i)
            last, gap, small = c, 0, small or "a" <= c <= "z"
    return out


def stops(text, i):
    """whether a sentence ends before this place, at its full stop or at the end of the line; cells of a table go on"""
    if i >= len(text): return True
    rest = text[i:i + 200].lstrip(" \t\r")
    if rest[:1] in ("\n", "") : return True
    return text[i - 1] in ".!?" and not (text[i].isascii() and text[i].isalnum() or text[i] == ".")


def candidates(text):
    """[(begin, end)] of what may be judged"""
    out = []
    for a in beginnings(text):
        b = a + 1
        while not stops(text, b) and b - a < 512: b += 1
        t = text[a:b].rstrip()
        if t.endswith(" |"): t = t[:-2].rstrip()
        if any(c.isalnum() for c in t): out.append((a, a + len(t)))
    return out


class Verify:
    """mixed into Gen"""

    def verify_row(self, enc, T):
        """-> ids, weight codes, labels by place"""
        self.reset(); self.natural = True; self.careful_share = .45
        msgs = self.load_natural_turns(max(350, int(T * self.R.uniform(.14, .42) * 2.4)), False)
        if self.ch(.12): msgs += self.load_natural_turns(max(300, int(T * .12 * 2.4)), False)
        ids, w = enc.row(msgs, bos=self.ch(.75)); w = [min(x, 1) for x in w]; labels = {}
        del self.careful_share
        cands = [(d, a, b) for d, t in enumerate(self.docs) for a, b in candidates(t)]
        spelled = {}
        nl = enc.nl; tries = 0
        while len(ids) < T + 1 and cands:
            q, answer = self.natural_qa(); tries += 1
            gold = None
            if answer != self.NOT_FOUND_TEXT:
                key = answer[len('The document says: "'):-1]
                d = next((i for i, t in enumerate(self.docs) if key in t), None)
                if d is None: continue
                at = self.docs[d].find(key)
                gold = next((i for i, c in enumerate(cands) if c[0] == d and c[1] == at), None)
                if gold is None:
                    if tries > 60: break
                    continue
            if self.ch(.5): q = self.related_words(q, set() if gold is None else self.stems_of(cands[gold]))
            k = self.p([4, 6, 8, 8, 12, 16, 24, 40]); n = len(cands)
            if n <= k: chosen = range(n)
            else:
                # the one, those around it, those that share words with the question, and others
                chosen = set() if gold is None else {gold}
                own = self.stem_set(q)
                mid = gold if gold is not None else self.n(0, n - 1)
                chosen |= {i for i in range(mid - 2, mid + 3) if 0 <= i < n and self.ch(.7)}
                if own:
                    near = sorted(range(n), key=lambda i: -sum(1 for s in own if s in self.stems_of(cands[i])) - self.R.random() * .5)
                    chosen |= set(near[:max(2, k // 3)])
                while len(chosen) < k: chosen.add(self.n(0, n - 1))
                chosen = sorted(chosen)
            ids += [3] + enc.roles["user"]; w += [1] * (1 + len(enc.roles["user"]))
            qt = enc.text(q)
            ids += qt + [4] + nl + [3] + enc.roles["assistant"]; w += [1] * len(qt) + [0] * (len(nl) + 2 + len(enc.roles["assistant"]))
            qt = qt[:QUESTION_TOKENS]
            for i in chosen:
                d, a, b = cands[i]
                st = spelled.get(i)
                if st is None: st = spelled[i] = enc.text(self.docs[d][a:b])[:SENTENCE_TOKENS]
                ids += [5] + qt + nl + st + [6]; w += [0] * (2 + len(qt) + len(nl) + len(st))
                labels[len(ids)] = YES if i == gold else NO       # the place after </think>
                if len(ids) > T + 1: break
            if len(ids) <= T + 1: ids += [4] + nl; w += [0] * (1 + len(nl))
        return ids, w, labels

    def stems_of(self, c):
        d, a, b = c
        k = (self.docs[d][a:b])
        s = self.stem_cache.get(k)
        if s is None:
            if len(self.stem_cache) > 20000: self.stem_cache.clear()
            s = self.stem_cache[k] = self.stem_set(k)
        return s
    stem_cache = {}
