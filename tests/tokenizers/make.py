"""Writes pieces.json: a small tokenizer built like the released model's, trained on our own text.

    python3 tests/tokenizers/make.py

The same steps as a SentencePiece BPE model that was converted for the `tokenizers` library: the normaliser puts `▁` in
front of every stretch of text between special tokens and writes spaces as `▁`; merges run over the whole text, without a
splitter; characters it does not know fall back to bytes; the control tokens stand at the end of the vocabulary, and
`<think>` and `</think>` are ordinary text. Only the standard library is used; the result depends on the texts alone.
"""

import collections
import json
import pathlib

HERE = pathlib.Path(__file__).parent
ROOT = HERE / "../.."
TEXTS = ["README.md", "assets/demo/MODEL_CARD.md", "assets/training/transcripts.md", "kernels/README.md"]
MERGES = 1200
# Characters that are pieces of their own beside those of the texts; all others are bytes.
MORE = "你好世界，。的是不了人我在有他这上们来到时大地为子中éüñößàç"
CONTROL = ["<|im_end|>", "<|im_start|>", "<|tool_call|>", "<|execute_start|>", "<|execute_end|>", "<|fim_prefix|>",
           "<|fim_middle|>", "<|fim_suffix|>"]


def words(text):
    """Stretches that merges are learnt in: a run of `▁` and what follows up to the next one, lines apart."""
    for line in text.replace(" ", "▁").split("\n"):
        word = ""
        for c in line:
            if c == "▁" and word and not word.endswith("▁"):
                yield word
                word = ""
            word += c
        if word:
            yield word


def train():
    text = "\n".join((ROOT / name).read_text() for name in TEXTS)
    counts = collections.Counter(words(text))
    counts["\n\n"] += 500
    counts["▁▁▁▁"] += 200
    counts["你好"] += 100
    counts["世界"] += 100
    seen = collections.Counter(text)
    chars = sorted(c for c in seen if c not in " \r\t" and seen[c] > 1 and ord(c) < 0x2500)
    chars = ["▁", "\n", *[c for c in chars if c != "\n"], *[c for c in MORE if c not in chars]]
    known = set(chars)
    parts = {w: [c for c in w] for w in counts if all(c in known for c in w)}
    merges = []
    while len(merges) < MERGES:
        pairs = collections.Counter()
        for word, pieces in parts.items():
            for pair in zip(pieces, pieces[1:]):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        joined = "".join(best)
        for word, pieces in parts.items():
            out = []
            for piece in pieces:
                if out and (out[-1], piece) == best:
                    out[-1] = joined
                else:
                    out.append(piece)
            parts[word] = out
    return chars, merges


def main():
    chars, merges = train()
    vocab = {}
    for word in ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *map("".join, merges), *chars]:
        vocab.setdefault(word, len(vocab))
    control = {word: len(vocab) + i for i, word in enumerate(CONTROL)}
    added = [{"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for word, i in [("<unk>", 0), ("<s>", 1), ("</s>", 2), *control.items()]]
    space = {"Prepend": {"type": "Prepend", "prepend": "▁"},
             "Replace": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}}
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [space["Prepend"], space["Replace"]]},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}, start,
                                    {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": merges},
    }
    (HERE / "pieces.json").write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(len(vocab) + len(control), "ids")


main()
