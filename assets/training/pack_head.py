"""Packs the trained EAGLE-3 head in 8 bits with a scale a row (compressed-tensors int-quantized): pack_head.py FROM TO

Drafts are checked by the model, so a packed head changes no answer; it halves what the program has to carry."""
import array, json, pathlib, struct, sys

source, target = map(pathlib.Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)


def bf16(x):  # the nearest, ties to even
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def wide(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


blob = (source / "model.safetensors").read_bytes()
size = struct.unpack("<Q", blob[:8])[0]
header, data = json.loads(blob[8 : 8 + size]), blob[8 + size :]
out, body = {"__metadata__": header.pop("__metadata__", {})}, bytearray()


def put(name, dtype, shape, values):
    out[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(values)]}
    body.extend(values)


for name, it in sorted(header.items()):
    part = data[slice(*it["data_offsets"])]
    if it["dtype"] != "BF16" or len(it["shape"]) != 2:
        put(name, it["dtype"], it["shape"], part)
        continue
    rows, columns = it["shape"]
    values = [wide(bits) for bits in array.array("H", part)]
    packed, scales = array.array("b"), array.array("H")
    for row in range(rows):
        line = values[row * columns : (row + 1) * columns]
        scales.append(bf16(max(map(abs, line)) / 127 or 1.0))
        packed.extend(max(-127, min(127, round(v / wide(scales[-1])))) for v in line)
    put(name, "I8", it["shape"], packed.tobytes())
    put(name + "_scale", "BF16", [rows, 1], scales.tobytes())

text = json.dumps(out, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
(target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
config = json.loads((source / "config.json").read_text())
weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
config["quantization_config"] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    "ignore": [],
}
(target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
