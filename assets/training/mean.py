"""The mean of two checkpoints of equal shape:  python mean.py FOLDER1 FOLDER2 SHARE2 OUT   (bfloat16 shards, NumPy alone)"""
import json, os, struct, sys
import numpy as np

first, second, share, out = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]


def load(path):
    b = open(path, "rb").read(); n = 8 + struct.unpack("<Q", b[:8])[0]
    return b[:n], (np.frombuffer(b[n:], np.uint16).astype(np.uint32) << 16).view(np.float32)


def bfloat16(x):
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7fff + ((u >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


os.makedirs(out, exist_ok=True)
for i in (1, 2):
    name = f"model-{i:05d}-of-00002.safetensors"
    (h1, a), (h2, b) = load(f"{first}/{name}"), load(f"{second}/{name}")
    assert h1 == h2 and all(t["dtype"] == "BF16" for k, t in json.loads(h1[8:]).items() if k != "__metadata__")
    open(f"{out}/{name}", "wb").write(h1 + bfloat16(a * (1 - share) + b * share))
