"""Packed weights as the publishing libraries write them, with the values that those libraries compute from them.

Writes tests/fixtures/published/CASE.safetensors (the tensors of one weight `w`, and `expected`) and cases.json (per case: shape, what
config.json says, which library wrote it). compressed-tensors, ModelOpt and MLX do their own packing and unpacking here. GPTQ, AWQ and
block-wise FP8 follow their definitions (so does MXFP4, OCP's): the packing loops and the dequantising expressions of AutoGPTQ's, AutoAWQ's and DeepSeek's
reference code, in the tensor types that they use.

    python -m venv v && v/bin/pip install torch compressed-tensors safetensors nvidia-modelopt "mlx[cpu]"
    v/bin/python tests/reference/make_published.py tests/fixtures/published
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from modelopt.torch.quantization.qtensor.fp8_tensor import FP8QTensor
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from safetensors.torch import save_file

OUT = Path(sys.argv[1])
ROWS, COLUMNS = 8, 256
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CASES = {}


def weight(seed, rows=ROWS, columns=COLUMNS, dtype=BF16):
    """Values with a few that stand out, off centre, so that zero points differ."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, columns, generator=g) * 0.03 + 0.01 * torch.randn(rows, 1, generator=g)
    w[torch.randint(rows, (8,), generator=g), torch.randint(columns, (8,), generator=g)] *= 6
    return w.to(dtype)


def case(name, made_by, config, tensors, expected):
    assert torch.isfinite(expected.float()).all(), name
    tensors = {f"w.{k}": v.contiguous() for k, v in tensors.items()}
    save_file({**tensors, "expected": expected.contiguous()}, OUT / f"{name}.safetensors")
    CASES[name] = {"made_by": made_by, "shape": list(expected.shape), "config": config}


def grouped(w, size):
    return w.reshape(w.shape[0], -1, size)


# compressed-tensors ------------------------------------------------------------------------------------------------------------


def compressed(name, fmt, args, dtype=BF16, scale_dtype=None, rows=ROWS, columns=COLUMNS, activations=None, seed=0):
    args = QuantizationArgs(**args)
    w = weight(seed + len(name), rows, columns, dtype)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=activations)
    state = {"weight": w}
    kind = str(getattr(args.strategy, "value", args.strategy))
    if kind == "tensor_group":
        state["weight_global_scale"] = generate_gparam(w.min().float(), w.max().float())
    if kind == "group" or kind == "tensor_group":
        g = grouped(w, args.group_size)
        lo, hi = g.amin(2), g.amax(2)
    elif kind == "channel":
        lo, hi = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    elif kind == "block":
        a, b = args.block_structure
        blocks = torch.nn.functional.pad(w, (0, -columns % b, 0, -rows % a)).reshape(-(-rows // a), a, -(-columns // b), b)
        lo, hi = blocks.amin((1, 3)), blocks.amax((1, 3))
    else:
        lo, hi = w.min().reshape(1), w.max().reshape(1)
    scale, zero = calculate_qparams(lo, hi, args, state.get("weight_global_scale"))
    if scale_dtype is not None:
        scale = scale.to(scale_dtype)
    state["weight_scale"] = scale
    if not args.symmetric:
        state["weight_zero_point"] = zero.round().to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(fmt)
    packed = compressor.compress(state, scheme)
    back = compressor.decompress(packed, scheme)["weight"]
    weights = {k: v for k, v in json.loads(args.model_dump_json()).items() if v is not None}
    config = {"quant_method": "compressed-tensors", "format": fmt, "config_groups": {"group_0": {"weights": weights}}}
    packed = {k: v for k, v in packed.items() if v is not None}
    if fmt == "nvfp4-pack-quantized":
        assert packed["weight_scale"].dtype == torch.float8_e4m3fn
    case(name, "compressed-tensors", {"quantization_config": config}, packed, back)


def compressed_tensors():
    four = {"num_bits": 4, "type": "int", "strategy": "group"}
    eight = {"num_bits": 8, "type": "int"}
    fp8 = {"num_bits": 8, "type": "float"}
    compressed("ct-int4-g128", "pack-quantized", {**four, "group_size": 128, "symmetric": True})
    compressed("ct-int4-g32-asymmetric", "pack-quantized", {**four, "group_size": 32, "symmetric": False}, rows=12)
    compressed("ct-int4-channel-f16", "pack-quantized", {**four, "strategy": "channel", "symmetric": True}, dtype=F16)
    compressed("ct-int8-g128", "pack-quantized", {**eight, "strategy": "group", "group_size": 128, "symmetric": True})
    compressed("ct-int8-channel-asymmetric", "pack-quantized", {**eight, "strategy": "channel", "symmetric": False})
    compressed("ct-w8a8", "int-quantized", {**eight, "strategy": "channel", "symmetric": True}, scale_dtype=F32)
    compressed("ct-fp8-channel", "float-quantized", {**fp8, "strategy": "channel", "symmetric": True})
    compressed("ct-fp8-tensor-f32", "float-quantized", {**fp8, "strategy": "tensor", "symmetric": True}, scale_dtype=F32)
    block = {**fp8, "strategy": "block", "block_structure": [16, 128], "symmetric": True}
    compressed("ct-fp8-block", "float-quantized", block, rows=24, columns=160)
    nvfp4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    compressed("ct-nvfp4", "nvfp4-pack-quantized", {**nvfp4, "scale_dtype": torch.float8_e4m3fn})


# ModelOpt ----------------------------------------------------------------------------------------------------------------------


def modelopt():
    w = weight(31)
    q, scale, scale_2 = NVFP4QTensor.quantize(w, 16)
    back = q.dequantize(BF16, scale=scale, double_scale=scale_2, block_sizes={-1: 16})
    parts = {"weight": q._quantized_data, "weight_scale": scale, "weight_scale_2": scale_2, "input_scale": torch.tensor(0.01)}
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}}
    case("modelopt-nvfp4", "modelopt", config, parts, back)
    w = weight(32)
    q, scale = FP8QTensor.quantize(w.float(), scales=(w.float().abs().max() / 448.0))
    back = q.dequantize(BF16, scale=scale)
    parts = {"weight": q._quantized_data, "weight_scale": scale, "input_scale": torch.tensor(0.01)}
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    case("modelopt-fp8", "modelopt", config, parts, back)


# MLX ---------------------------------------------------------------------------------------------------------------------------


def torch_of(a):
    if a.dtype == mx.bfloat16:
        return torch.tensor(a.astype(mx.float32).tolist()).to(BF16)
    kinds = {mx.float16: F16, mx.uint32: torch.uint32}
    return torch.tensor(a.tolist(), dtype=kinds[a.dtype])


def mlx():
    for name, bits, group, dtype in [
        ("mlx-4bit-g64", 4, 64, mx.bfloat16),
        ("mlx-8bit-g64", 8, 64, mx.bfloat16),
        ("mlx-8bit-g32-f16", 8, 32, mx.float16),
    ]:
        w = mx.array(weight(40 + bits + group).float().tolist()).astype(dtype)
        q, scales, biases = mx.quantize(w, group_size=group, bits=bits)
        back = mx.dequantize(q, scales, biases, group_size=group, bits=bits)
        parts = {"weight": torch_of(q), "scales": torch_of(scales), "biases": torch_of(biases)}
        config = {"quantization": {"group_size": group, "bits": bits}}
        case(name, "mlx", config, parts, torch_of(back))


# By definition -----------------------------------------------------------------------------------------------------------------


def words(values, bits, dim):
    """Values 0..2^bits along `dim` into int32 words, lowest bits first."""
    per = 32 // bits
    values = values.movedim(dim, -1).to(torch.int64)
    values = values.reshape(*values.shape[:-1], -1, per)
    packed = (values << (torch.arange(per) * bits)).sum(-1)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return packed.movedim(-1, dim)


def integers(w, bits, g_idx, symmetric, scale_dtype):
    """q [K, N], zero points and scales [groups, N] by rounding to nearest."""
    k = w.shape[1]
    groups = int(g_idx.max()) + 1
    q = torch.zeros(k, w.shape[0], dtype=torch.int64)
    zeros = torch.zeros(groups, w.shape[0], dtype=torch.int64)
    scales = torch.zeros(groups, w.shape[0], dtype=scale_dtype)
    most = 2**bits - 1
    for g in range(groups):
        part = w[:, g_idx == g].float()
        if symmetric:
            scale = (part.abs().amax(1) / (most / 2)).to(scale_dtype)
            zero = torch.full_like(scale, 2 ** (bits - 1)).float()
        else:
            lo, hi = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scale = ((hi - lo) / most).to(scale_dtype)
            zero = (-lo / scale.float()).round().clamp(0, most)
        scales[g], zeros[g] = scale, zero.to(torch.int64)
        q[g_idx == g] = (part / scale.float()[:, None] + zero[:, None]).round().clamp(0, most).to(torch.int64).T
    return q, zeros, scales


def gptq(name, bits, size, symmetric, v2, scale_dtype=F16, desc_act=False, config=None):
    w = weight(60 + len(name))
    g_idx = torch.arange(COLUMNS) // size
    if desc_act:
        g_idx = g_idx[torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(3))]
    q, zeros, scales = integers(w, bits, g_idx, symmetric, scale_dtype)
    if not symmetric:
        zeros[0, 0] = 0  # wraps when one is taken away
    stored = zeros if v2 else (zeros - 1) % 2**bits
    # AutoGPTQ: scales[g_idx] * (weight - zeros[g_idx]), in the type of the scales.
    back = scales[g_idx] * (q - zeros[g_idx]).to(scale_dtype)
    parts = {
        "qweight": words(q, bits, 0),
        "qzeros": words(stored, bits, 1),
        "scales": scales,
        "g_idx": g_idx.to(torch.int32),
    }
    says = {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric, "desc_act": desc_act}
    if config is not None:
        says["checkpoint_format"] = config
    case(name, "definition (AutoGPTQ)", {"quantization_config": says}, parts, back.T)


def by_definition():
    gptq("gptq-v1-4bit-g128", 4, 128, True, False)
    gptq("gptq-v1-4bit-g64-asymmetric", 4, 64, False, False, config="gptq")
    gptq("gptq-v2-4bit-g32-asymmetric", 4, 32, False, True, scale_dtype=BF16, config="gptq_v2")
    gptq("gptq-v2-unsaid-4bit-g128", 4, 128, True, True)
    gptq("gptq-v1-8bit-g128", 8, 128, True, False)
    gptq("gptq-v1-4bit-desc-act", 4, 64, False, False, desc_act=True)

    w = weight(80)
    q, zeros, scales = integers(w, 4, torch.arange(COLUMNS) // 128, False, F16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    mixed = lambda t: t.reshape(t.shape[0], -1, 8)[:, :, order].reshape(t.shape)
    parts = {"qweight": words(mixed(q), 4, 1), "qzeros": words(mixed(zeros), 4, 1), "scales": scales}
    back = (q - zeros.repeat_interleave(128, 0)).to(F16) * scales.repeat_interleave(128, 0)
    config = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}}
    case("awq-4bit-g128", "definition (AutoAWQ)", config, parts, back.T)

    rows, columns = 130, 144
    w = weight(90, rows, columns)
    scale = torch.zeros(2, 2)
    big = torch.zeros(rows, columns)
    for i in range(2):
        for j in range(2):
            part = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scale[i, j] = w[part].float().abs().max() / 448
            big[part] = scale[i, j]
    q = (w.float() / big).to(torch.float8_e4m3fn)
    back = (q.float() * big).to(BF16)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    case("fp8-128-blocks", "definition (DeepSeek)", config, {"weight": q, "weight_scale_inv": scale}, back)

    mx("ct-mxfp4", 1, CT_MXFP4, lambda p, s: {"weight_packed": p, "weight_scale": s})
    config = {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}
    mx("mlx-mxfp4", 2, config, lambda p, s: {"weight": p.view(torch.uint32), "scales": s})


CT_MXFP4 = {"quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {"group_0": {
    "weights": {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 32, "strategy": "group", "dynamic": False}}}}}


def mx(name, seed, config, parts):
    """OCP MX: e2m1 times 2^(code - 127), all codes within the reach of e4m3 but that of a block of zeros."""
    codes = torch.tensor([110 + (seed + 5 * i * i + 3 * i) % 18 for i in range(ROWS * COLUMNS // 32)])
    q = torch.tensor([(seed + i * i * 7 + 3 * i + i // 16) % 16 for i in range(ROWS * COLUMNS)])
    codes[9] = 0
    q[9 * 32 : 10 * 32] = torch.tensor([0, 8] * 16)
    e2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    back = (e2m1[q] * 2.0 ** (codes.repeat_interleave(32) - 127)).to(BF16).reshape(ROWS, COLUMNS)
    packed = (q[::2] | q[1::2] << 4).to(torch.uint8).reshape(ROWS, COLUMNS // 2)
    case(name, "definition (OCP MX)", config, parts(packed, codes.to(torch.uint8).reshape(ROWS, -1)), back)


OUT.mkdir(parents=True, exist_ok=True)
compressed_tensors()
modelopt()
mlx()
by_definition()
(OUT / "cases.json").write_text(json.dumps(CASES, indent=1) + "\n")
