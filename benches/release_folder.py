"""A model folder of the released kind at full size, and everything that can be done with one.

    python3 benches/release_folder.py make FOLDER [--tiny] [--layers N] [--gptq]
    python3 benches/release_folder.py run PROGRAM FOLDER OUT_DIR [--device cuda] [--tokens 500000] [--only PART,PART]

`make` writes four shards of bf16 weights with random values (PyTorch, on a GPU where there is one), a tokenizer of the
released kind with 73,448 ids (tests/tokenizers, its vocabulary filled with joined pieces) and a template of the released
kind (tests/templates). `run` starts the program on it: loading, warm and cold, against plain reads of the same files; typing
while it loads; a document of so many tokens; a load that is stopped and goes on; a resume in another process; a fork;
`eval`. It prints a line for each figure and writes OUT_DIR/release.json. `--tiny` makes a small one, to try all this on a CPU;
`--layers N` one with fewer layers of full size; `--gptq` writes the layers' weights as GPTQ does, 4 bits in groups of 128.
The part `packing` (run when asked for with --only) packs the weights while loading and by `model quantize`, and starts from
those; `repacking`, for a folder made with `--gptq`, starts while they are repacked, waits until that is kept, and starts from it.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import pty
import random
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import time

try:
    import torch
except ModuleNotFoundError:
    torch = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
IDS = 73448
CONTROL = ["<|im_end|>", "<|im_start|>", "<|tool_call|>", "<|execute_start|>", "<|execute_end|>", "<|fim_prefix|>",
           "<|fim_middle|>", "<|fim_suffix|>"]
SHARDS = 4
TINY = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 2,
        "num_key_value_heads": 1, "lightning_nh": 2, "lightning_nkv": 2, "dim_model_base": 64,
        "mixer_types": ["minicpm4", "lightning-attn", "lightning-attn", "minicpm4"]}


# ---- the folder ----------------------------------------------------------------------------------------------------

def tokenizer():
    """The small tokenizer of the tests, made as large as the released one: pieces joined at random, control tokens last."""
    made = json.loads((ROOT / "tests/tokenizers/pieces.json").read_text())
    model = made["model"]
    old = {t["content"]: t["id"] for t in made["added_tokens"]}
    vocab = {piece: i for piece, i in model["vocab"].items() if piece not in CONTROL}
    pieces = [p for p in vocab if not p.startswith("<")]
    draw = random.Random(1)
    while len(vocab) < IDS - len(CONTROL):
        a, b = draw.choice(pieces), draw.choice(pieces)
        if a + b not in vocab and len(a + b) <= 24 and "▁" not in b:
            vocab[a + b] = len(vocab)
            model["merges"].append([a, b])
    model["vocab"] = vocab
    ids = {name: IDS - len(CONTROL) + i for i, name in enumerate(CONTROL)}
    for token in made["added_tokens"]:
        token["id"] = ids.get(token["content"], old[token["content"]])
    return made


def tensors(c):
    """Name, shape and standard deviation of each (docs/model.md §2); a norm has none."""
    h, i, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], h), 1 / c["scale_emb"]
    for layer, mixer in enumerate(c["mixer_types"]):
        p = f"model.layers.{layer}."
        sparse = mixer == "minicpm4"
        heads = c["num_attention_heads"] if sparse else c["lightning_nh"]
        kv = c["num_key_value_heads"] if sparse else c["lightning_nkv"]
        q = heads * (d if sparse else c["lightning_head_dim"])
        kv = kv * (d if sparse else c["lightning_head_dim"])
        yield p + "input_layernorm.weight", (h,), None
        if not sparse:
            yield p + "self_attn.o_norm.weight", (q,), None
            yield p + "self_attn.q_norm.weight", (c["lightning_head_dim"],), None
            yield p + "self_attn.k_norm.weight", (c["lightning_head_dim"],), None
        for name, out in [("q_proj", q), ("k_proj", kv), ("v_proj", kv), ("o_gate" if sparse else "z_proj", q)]:
            yield p + f"self_attn.{name}.weight", (out, h), h**-0.5
        yield p + "self_attn.o_proj.weight", (h, q), q**-0.5
        yield p + "post_attention_layernorm.weight", (h,), None
        yield p + "mlp.gate_proj.weight", (i, h), h**-0.5
        yield p + "mlp.up_proj.weight", (i, h), h**-0.5
        yield p + "mlp.down_proj.weight", (h, i), i**-0.5
    yield "model.norm.weight", (h,), None
    yield "lm_head.weight", (c["vocab_size"], h), 2 * (h / c["dim_model_base"]) / h**0.5


GROUP = 128


def gptq(parts):
    """The same weights as GPTQ (version 1) holds them."""
    for name, shape, deviation in parts:
        if ".self_attn." not in name and ".mlp." not in name or deviation is None:
            yield name, shape, deviation
            continue
        (out, inner), base = shape, name.removesuffix(".weight")
        yield base + ".qweight", (inner // 8, out), "any"
        # One less than the zero point, 8.
        yield base + ".qzeros", (inner // GROUP, out // 8), "zeros"
        yield base + ".scales", (inner // GROUP, out), deviation / 4.6


def packed(name, shape, what):
    """Whole numbers and scales of a packed weight."""
    if what == "zeros":
        return b"\x77" * (4 * size(shape))
    if torch is None:
        return random.Random(name).randbytes(4 * size(shape)) if what == "any" else struct.pack("<e", what) * size(shape)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    draw = torch.Generator(device=where).manual_seed(sum(name.encode()) * 7919 + len(name))
    if what == "any":
        values = torch.randint(-2**31, 2**31, shape, generator=draw, device=where, dtype=torch.int32)
    else:
        values = ((torch.rand(shape, generator=draw, device=where) * 0.4 + 0.8) * what).half().view(torch.int16)
    return values.cpu().numpy().data


def kind(name):
    """A tensor's type in the file, and the bytes of a value."""
    return {"qweight": ("I32", 4), "qzeros": ("I32", 4), "scales": ("F16", 2)}.get(name.rsplit(".", 1)[1], ("BF16", 2))


def bf16(name, shape, deviation):
    """Normally distributed values of a tensor; a norm's are 1. Without PyTorch 256 different ones, good enough for a try."""
    if deviation is None:
        return b"\x80\x3f" * size(shape)
    if torch is None:
        values = [struct.pack("<f", deviation * statistics.NormalDist().inv_cdf((i + 0.5) / 256)) for i in range(256)]
        draw, both = random.Random(name).randbytes(size(shape)), bytearray(2 * size(shape))
        both[0::2] = draw.translate(bytes(v[2] for v in values))
        both[1::2] = draw.translate(bytes(v[3] for v in values))
        return both
    where = "cuda" if torch.cuda.is_available() else "cpu"
    draw = torch.Generator(device=where).manual_seed(sum(name.encode()) * 7919 + len(name))
    values = torch.randn(shape, generator=draw, device=where, dtype=torch.bfloat16) * deviation
    return values.cpu().view(torch.int16).numpy().data


def shard(path, parts):
    """One safetensors file: the length of the header, the header, the values."""
    header, at = {}, 0
    for name, shape, _ in parts:
        dtype, value = kind(name)
        bytes_ = value * size(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + bytes_]}
        at += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape, deviation in parts:
            file.write(bf16(name, shape, deviation) if kind(name)[0] == "BF16" else packed(name, shape, deviation))
    return [name for name, _, _ in parts], at


def make(folder, tiny, layers, as_gptq):
    began = time.time()
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((ROOT / "sala/src/model/config_9b.json").read_text())
    config["vocab_size"] = IDS
    if tiny:
        config.update(TINY)
    if layers:
        config.update(num_hidden_layers=layers, mixer_types=config["mixer_types"][:layers])
    every = list(tensors(config))
    if as_gptq:
        every = list(gptq(every))
        config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False}
    length = lambda part: kind(part[0])[1] * size(part[1])
    total = sum(map(length, every))
    cut, groups = total / SHARDS, [[]]
    filled = 0
    for part in every:
        if filled >= cut * len(groups) and len(groups) < SHARDS:
            groups.append([])
        groups[-1].append(part)
        filled += length(part)
    names = [f"model-{i + 1:05}-of-{len(groups):05}.safetensors" for i in range(len(groups))]
    weights, written = {}, 0
    with concurrent.futures.ThreadPoolExecutor(len(groups)) as pool:
        for name, (held, bytes_) in zip(names, pool.map(shard, [folder / n for n in names], groups)):
            weights.update({tensor: name for tensor in held})
            written += bytes_
    write = lambda name, value: (folder / name).write_text(json.dumps(value, ensure_ascii=False, indent=1))
    write("model.safetensors.index.json", {"metadata": {"total_size": written}, "weight_map": weights})
    write("config.json", config)
    write("generation_config.json", {"bos_token_id": 1, "eos_token_id": [2, 73440], "pad_token_id": 2})
    write("tokenizer.json", tokenizer())
    write("tokenizer_config.json", {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>",
        "pad_token": "</s>", "tokenizer_class": "LlamaTokenizerFast", "clean_up_tokenization_spaces": False,
        "chat_template": (ROOT / "tests/templates/released.jinja").read_text()})
    print(f"folder: {len(names)} shards, {written / 1e9:.2f} GB, {time.time() - began:.1f} s", flush=True)


def size(shape):
    n = 1
    for side in shape:
        n *= side
    return n


# ---- what is done with it ------------------------------------------------------------------------------------------

class Session:
    def __init__(self, args):
        self.program, self.folder, self.device = args.program, args.folder, args.device
        self.out, self.cold, self.warm = args.out, args.cold, args.warm
        self.out.mkdir(parents=True, exist_ok=True)
        self.home = self.out / "home"
        self.figures = {}
        self.environment = {**os.environ, "SALA_CHAT_DATA_DIR": str(self.home), "HOME": str(self.out), "NO_COLOR": "1"}

    def say(self, name, value):
        self.figures[name] = value
        print(f"{name}: {value}", flush=True)
        (self.out / "release.json").write_text(json.dumps(self.figures, indent=1))

    def command(self, *more):
        return [str(self.program), "--model", str(self.folder), "--device", self.device, *map(str, more)]

    def events(self, *more, limit=300):
        """Runs `-p … --jsonl`; each event with the seconds since the process was started."""
        began = time.time()
        found = []
        with open(self.out / "log.txt", "a") as log:
            child = subprocess.Popen(self.command(*more, "--jsonl"), stdout=subprocess.PIPE, stderr=log,
                                     stdin=subprocess.DEVNULL, env=self.environment)
            killer = signal.signal(signal.SIGALRM, lambda *_: child.kill())
            signal.alarm(limit)
            for line in child.stdout:
                found.append((time.time() - began, json.loads(line)))
            child.wait()
            signal.alarm(0)
            signal.signal(signal.SIGALRM, killer)
        if child.returncode:
            raise RuntimeError(f"{more}: exit code {child.returncode}")
        return found

    @staticmethod
    def first(events, *kinds):
        return next(at for at, e in events if e["event"] in kinds)

    @staticmethod
    def last(events, kind):
        return next(e for _, e in reversed(events) if e["event"] == kind)


def files(folder):
    return sorted(folder.glob("*.safetensors"))


def forget(folder):
    for path in files(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_reads(folder, threads=16, piece=16 << 20):
    """GB/s of reading all files with plain reads side by side, as fast as they come."""
    pieces = [(path, at) for path in files(folder) for at in range(0, path.stat().st_size, piece)]
    buffers = [bytearray(piece) for _ in range(threads)]
    opened = {path: os.open(path, os.O_RDONLY) for path in files(folder)}

    def read(worker):
        return sum(os.preadv(opened[path], [buffers[worker]], at) for path, at in pieces[worker::threads])

    began = time.time()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, range(threads)))
    seconds = time.time() - began
    for handle in opened.values():
        os.close(handle)
    return total / seconds / 1e9, total


def starts(s):
    """Process start to first token, from the page cache and from the disk."""
    question = ("-p", "What is the capital of France, and why?", "--max-tokens", "1", "--no-save", "--temp", "0")
    plain_reads(s.folder)
    rows = []
    for _ in range(s.warm):
        events = s.events(*question)
        stats = s.last(events, "stats")
        rows.append((s.first(events, "stats"), s.first(events, "start"), stats["timing"]))
    best = min(rows, key=lambda row: row[2]["first_token_ms"])
    s.say("warm starts, s to ready", [round(r[1], 3) for r in rows])
    s.say("warm starts, ms to the first token, by the program's clock", [round(r[2]["first_token_ms"]) for r in rows])
    s.say("warm starts, s to the end of a one-token answer, by this script's", [round(r[0], 3) for r in rows])
    s.say("prompt tokens", stats["usage"]["prompt_tokens"])
    s.say("warm start, timing", best[2])
    # More than the library reads nothing of: its algorithms are proved at the first text of more than 256 tokens.
    path = s.out / "short.txt"
    document(path, 1000)
    stats = s.last(s.events("-f", path, *question), "stats")
    s.say("warm start with a document, prompt tokens", stats["usage"]["prompt_tokens"])
    s.say("warm start with a document, ms to the first token", round(stats["timing"]["first_token_ms"]))
    reads = []
    loads = []
    for _ in range(s.cold):
        forget(s.folder)
        rate, total = plain_reads(s.folder)
        reads.append(rate)
        forget(s.folder)
        events = s.events(*question)
        loads.append(total / 1e6 / s.last(events, "stats")["timing"]["load_ms"])
    s.say("cold, plain parallel reads GB/s", [round(r, 2) for r in reads])
    s.say("cold, the program's loading GB/s", [round(r, 2) for r in loads])
    s.say("cold, share", [round(l / r, 3) for l, r in zip(loads, reads)])


def document(path, tokens):
    """About so many tokens of made-up prose: the small tokenizer takes near 2.9 letters for one."""
    draw = random.Random(2)
    words = (ROOT / "README.md").read_text().split() + (ROOT / "kernels/README.md").read_text().split()
    text, length = [], 0
    while length < tokens * 2.9:
        line = " ".join(draw.choice(words) for _ in range(14))
        text.append(line)
        length += len(line) + 1
    path.write_text("\n".join(text))


class Terminal:
    """The program in a pseudo terminal; what it prints is kept with the time it came."""

    def __init__(self, s, *more, size=(24, 80)):
        import fcntl
        import termios
        self.began = time.time()
        self.text, self.told, self.took = "", 0, 0.0
        child, self.master = pty.fork()
        if child == 0:
            os.environ.update(s.environment)
            os.environ["TERM"] = "xterm-256color"
            os.execv(s.program, s.command(*more))
        self.child = child
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def pump(self, seconds):
        end = time.time() + seconds
        while (left := end - time.time()) > 0:
            ready, _, _ = select.select([self.master], [], [], left)
            if not ready:
                return True
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return False
            if not data:
                return False
            # What a terminal would say of itself.
            if b"\x1b[6n" in data:
                os.write(self.master, b"\x1b[1;1R")
            if b"\x1b[c" in data:
                os.write(self.master, b"\x1b[?62;c")
            self.text += data.decode(errors="replace")
        return True

    def until(self, pattern, limit=120):
        """Seconds since the start at which the pattern was there; None if it never came."""
        end = time.time() + limit
        while time.time() < end:
            if re.search(pattern, self.text):
                return time.time() - self.began
            if not self.pump(0.02):
                break
        return time.time() - self.began if re.search(pattern, self.text) else None

    def idle(self, limit=180):
        """Line mode: waits for the next prompt; the lines that came before it."""
        begun, at = time.time(), self.told
        quiet, length = begun, -1
        # A note may come behind the prompt: it is idle once the prompt was there and nothing follows for a moment.
        while time.time() < begun + limit and not ("you: " in self.text[at:] and time.time() > quiet + 0.5):
            if not self.pump(0.02):
                break
            if len(self.text) != length:
                quiet, length = time.time(), len(self.text)
        self.took, self.told = quiet - begun, len(self.text)
        lines = [line.strip() for line in words_on_screen(self.text[at:]).splitlines()]
        return [line for line in lines if line and line != "you:"]

    def ask(self, line):
        self.type(line + "\r")
        return self.idle()

    def type(self, text):
        os.write(self.master, text.encode())

    def close(self):
        end = time.time() + 30
        while time.time() < end and self.pump(0.2):
            pass
        try:
            os.kill(self.child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.child, 0)
        os.close(self.master)


def words_on_screen(text):
    return re.sub(r"\x1b(\[[0-9;?<>=]*[a-zA-Z@]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])", "", text)


def typing(s):
    """The full screen while weights are loaded: when it can be typed into, what it says, and that nothing typed is lost."""
    t = Terminal(s, "--no-save", "--max-tokens", "8", "--temp", "0")
    drawn = t.until(r"\x1b\[[0-9;]*H", 20)
    t.type("Was this typed while it loaded?")
    shown = t.until(r"loaded\?", 20)
    progress = t.until(r"reading|weights", 20)
    t.type("\r")
    answered = t.until(r"sala", 60)
    t.pump(2.0)
    said = words_on_screen(t.text)
    s.say("screen, s to the first frame", drawn and round(drawn, 3))
    s.say("screen, s until what was typed is shown", shown and round(shown, 3))
    # What is drawn are differences: `reading weights 3%`, then its digits.
    s.say("screen, a progress line while loading", bool(re.search(r"weights.{0,4}\d+%", said)))
    s.say("screen, the typed question was asked", bool(answered) and "Was this typed" in said)
    t.type("/quit\r")
    t.close()
    (s.out / "screen.txt").write_text(said[-4000:])


def reading(s, tokens):
    """A long document, a resume of it in another process, and a fork."""
    path = s.out / "long.txt"
    document(path, tokens)
    before = time.time()
    events = s.events("-f", path, "-p", "What is it about?", "--max-tokens", "16", "--temp", "0", limit=400)
    stats, load = s.last(events, "stats"), s.last(events, "load")
    s.say("read, tokens of the document", load["tokens"])
    s.say("read, tokens/s", round(stats["timing"]["prefill_tokens_per_s"]))
    s.say("read, s from start to end, saved", round(time.time() - before, 1))
    resumed(s)


def resumed(s):
    """The newest session in another process, and a fork of it."""
    events = s.events("-c", "-p", "And what else?", "--max-tokens", "16", "--temp", "0")
    stats = s.last(events, "stats")
    s.say("resume in a new process, tokens reused", stats["usage"]["reused_tokens"])
    s.say("resume in a new process, tokens read", stats["usage"]["prefilled_tokens"])
    s.say("resume in a new process, ms to the first token since the start", round(stats["timing"]["first_token_ms"]))
    t = Terminal(s, "--plain", "-c", "--max-tokens", "8", "--temp", "0")
    t.idle()
    s.say("fork, said", t.ask("/fork what-if"))
    s.say("fork, s", round(t.took, 2))
    t.ask("And here?")
    s.say("fork, s of a question in it", round(t.took, 2))
    t.ask("/quit")
    t.close()


def stopping(s, tokens):
    """A load that is stopped in the middle and goes on, resumed in another process, forked there."""
    path = s.out / "stopped.txt"
    document(path, tokens)
    t = Terminal(s, "--plain", "--max-tokens", "8", "--temp", "0")
    t.idle()
    began = time.time()
    t.type(f"/load {path}\r")
    # So much is asked about first.
    if tokens > 50_000 and t.until(r"leaves [\d,]+\.", 60):
        t.type("\r")
    t.until(r"Read [2-7]0 percent", 60)
    t.type("\x03")
    t.until(r"keep what is read", 20)
    s.say("stopped load, s until it asked", round(time.time() - began, 2))
    s.say("stopped load, said", [line for line in words_on_screen(t.text).splitlines() if line.strip()][-4:])
    s.say("continued load, said", t.ask("1")[-4:])
    s.say("continued load, s", round(t.took, 2))
    s.say("stopped and continued, used", t.ask("/context")[:12])
    s.say("stopped and continued, an answer", t.ask("What is it about?")[-3:])
    t.ask("/quit")
    t.close()
    resumed(s)


def packing(s):
    """4 bits: packed while loading, packed by `model quantize` to where starts look for them, and started from there."""
    question = ("-p", "What is the capital of France, and why?", "--max-tokens", "1", "--no-save", "--temp", "0",
                "--weights", "4bit")
    plain_reads(s.folder)
    timing = s.last(s.events(*question), "stats")["timing"]
    s.say("packed while loading, warm, s to ready", round(timing["load_ms"] / 1e3, 2))
    kept = next((s.home / "weights").iterdir())
    began = time.time()
    done = subprocess.run(s.command("model", "quantize", s.folder, "--to", "4bit", "-o", kept, "--json"), capture_output=True,
                          env=s.environment, timeout=200)
    s.say("model quantize, s", round(time.time() - began, 1))
    try:
        made = json.loads(done.stdout)
        s.say("model quantize, bytes", made["bytes"])
        s.say("model quantize, greatest squared error of a part", max(p["squared_error"] for p in made["parts"]))
    except ValueError:
        s.say("model quantize, said", done.stderr.decode()[-400:])
    rows = [s.last(s.events(*question), "stats")["timing"] for _ in range(s.warm)]
    s.say("start with kept weights, warm, ms to ready", [round(r["load_ms"]) for r in rows])
    s.say("start with kept weights, warm, ms to the first token", [round(r["first_token_ms"]) for r in rows])
    forget(kept)
    rate, _ = plain_reads(kept)
    forget(kept)
    timing = s.last(s.events(*question), "stats")["timing"]
    s.say("start with kept weights, cold, s to ready", round(timing["load_ms"] / 1e3, 2))
    s.say("start with kept weights, cold, plain parallel reads GB/s", round(rate, 2))


def repacking(s):
    """Weights that somebody packed: repacked while loading, kept meanwhile, and started from what is kept."""
    question = ("-p", "What is the capital of France, and why?", "--max-tokens", "1", "--no-save", "--temp", "0")
    plain_reads(s.folder)
    t = Terminal(s, "--plain", "--max-tokens", "1", "--temp", "0")
    t.idle()
    s.say("repacked while loading, s to the first prompt", round(t.took, 2))
    kept = lambda: list((s.home / "weights").glob("*/model.safetensors.index.json"))
    while not kept() and time.time() < t.began + 120:
        t.pump(0.1)
    s.say("kept, s since the start", round(time.time() - t.began, 1) if kept() else None)
    t.type("/quit\r")
    t.close()
    rows = [s.last(s.events(*question), "stats")["timing"] for _ in range(s.warm)]
    s.say("start with kept weights, warm, ms to ready", [round(r["load_ms"]) for r in rows])
    s.say("start with kept weights, warm, ms to the first token", [round(r["first_token_ms"]) for r in rows])
    for folder in (s.home / "weights").iterdir():
        folder.rename(s.out / folder.name)
    rows = [s.last(s.events(*question), "stats")["timing"] for _ in range(2)]
    s.say("start that repacks, warm, ms to the first token", [round(r["first_token_ms"]) for r in rows])


def evaluating(s):
    began = time.time()
    done = subprocess.run(s.command("eval", "--skip", "needles", "--json"), capture_output=True, env=s.environment,
                          timeout=300)
    s.say("eval without needles, s", round(time.time() - began, 1))
    try:
        s.say("eval without needles", json.loads(done.stdout))
    except ValueError:
        s.say("eval without needles", done.stderr.decode()[-400:])
    began = time.time()
    checked = subprocess.run(s.command("model", "verify"), capture_output=True, env=s.environment, timeout=300)
    s.say("model verify, s", round(time.time() - began, 1))
    s.say("model verify, said", checked.stdout.decode().splitlines()[-2:])


def main():
    parser = argparse.ArgumentParser()
    what = parser.add_subparsers(dest="what", required=True)
    maker = what.add_parser("make")
    maker.add_argument("folder", type=pathlib.Path)
    maker.add_argument("--tiny", action="store_true")
    maker.add_argument("--layers", type=int, default=0)
    maker.add_argument("--gptq", action="store_true")
    runner = what.add_parser("run")
    runner.add_argument("program", type=lambda p: pathlib.Path(p).resolve())
    runner.add_argument("folder", type=lambda p: pathlib.Path(p).resolve())
    runner.add_argument("out", type=lambda p: pathlib.Path(p).resolve())
    runner.add_argument("--device", default="cuda")
    runner.add_argument("--tokens", type=int, default=500_000)
    runner.add_argument("--cold", type=int, default=1, help="times that everything is read from the disk")
    runner.add_argument("--warm", type=int, default=5, help="starts from the page cache")
    runner.add_argument("--only", default="starts,typing,reading,stopping,evaluating")
    args = parser.parse_args()
    if args.what == "make":
        return make(args.folder, args.tiny, args.layers, args.gptq)
    s = Session(args)
    parts = {"starts": lambda: starts(s), "typing": lambda: typing(s), "reading": lambda: reading(s, args.tokens),
             "stopping": lambda: stopping(s, args.tokens), "packing": lambda: packing(s), "repacking": lambda: repacking(s),
             "evaluating": lambda: evaluating(s)}
    failed = 0
    for name in args.only.split(","):
        began = time.time()
        try:
            parts[name]()
        except Exception as e:
            failed += 1
            s.say(f"{name} FAILED", repr(e))
        s.say(f"{name} took, s", round(time.time() - began, 1))
    return failed


if __name__ == "__main__":
    sys.exit(main())
