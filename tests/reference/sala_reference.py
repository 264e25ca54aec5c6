"""Small, slow, exact reference for MiniCPM-SALA (see docs/model.md for the spec it follows).

Everything is plain PyTorch on CPU.  One sequence at a time (no batch axis).  The same code
runs in float32 (used for the golden data) and float64 (used to judge float32 error).

Shapes: T = tokens in this call, L = total length so far (cache + this call),
H = query heads, KV = key/value heads, D = head width, K1/K2 = compressed key rows.

    cfg   = SalaConfig.from_dict(json.load(open("config.json")))
    model = SalaModel(cfg, weights_dict, dtype=torch.float32)
    state = model.new_state()
    logits = model.forward(ids, state)          # prefill; state is updated in place
    logits = model.forward([next_id], state)    # decode
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import torch

LIGHTNING_NAMES = ("lightning", "lightning_attn", "lightning-attn")


# --------------------------------------------------------------------------------------
# configuration
# --------------------------------------------------------------------------------------
@dataclass
class SparseConfig:
    kernel_size: int = 32      # k1 window, tokens
    kernel_stride: int = 16    # k1 stride, tokens
    init_blocks: int = 1
    block_size: int = 64
    window_size: int = 2048
    topk: int = 64             # NOT counting the local blocks, see topk_total
    use_nope: bool = False
    dense_len: int = 8192

    @property
    def local_blocks(self) -> int:
        return self.window_size // self.block_size

    @property
    def topk_total(self) -> int:
        """Budget handed to top-k: forced blocks (init, local) are paid from it."""
        return self.topk + self.local_blocks


@dataclass
class SalaConfig:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    mixer_types: List[str]
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    scale_emb: float = 12.0
    scale_depth: float = 1.4
    dim_model_base: int = 256
    attn_use_rope: bool = False
    attn_use_output_gate: bool = True
    lightning_use_rope: bool = True
    lightning_nh: int = 32
    lightning_nkv: int = 32
    lightning_head_dim: int = 128
    lightning_scale: str = "1/sqrt(d)"
    qk_norm: bool = True
    use_output_norm: bool = True
    use_output_gate: bool = True
    tie_word_embeddings: bool = False
    sparse: SparseConfig = field(default_factory=SparseConfig)

    @staticmethod
    def from_dict(d: Dict[str, Any]) -> "SalaConfig":
        known = {k: d[k] for k in SalaConfig.__dataclass_fields__ if k in d and k != "sparse"}
        known.setdefault("head_dim", d["hidden_size"] // d["num_attention_heads"])
        known.setdefault("lightning_nh", d["num_attention_heads"])
        known.setdefault("lightning_nkv", d["num_key_value_heads"])
        known.setdefault("lightning_head_dim", known["head_dim"])
        cfg = SalaConfig(**known)
        if d.get("rope_scaling") is not None:
            raise NotImplementedError("the released model has rope_scaling = null")
        if d.get("attention_bias"):
            raise NotImplementedError("the released model has no biases")
        cfg.sparse = SparseConfig(**(d.get("sparse_config") or {}))
        assert len(cfg.mixer_types) == cfg.num_hidden_layers
        return cfg

    def is_sparse(self, layer: int) -> bool:
        m = self.mixer_types[layer]
        if m == "minicpm4":
            return True
        assert m in LIGHTNING_NAMES, m
        return False

    @property
    def residual_scale(self) -> float:
        return self.scale_depth / math.sqrt(self.num_hidden_layers)


@dataclass
class Options:
    """Places where public implementations differ.  Defaults = released HF behaviour, minus
    its two prefill-length artefacts (tail_quirk).

    dense_rule   "call"  : a call is dense for all its rows iff L_after_call < dense_len   (HF)
                 "token" : row at position p is dense iff p + 1 < dense_len
                 "never" : always sparse (SGLang --dense-as-sparse)
                 "always": always dense
    lse          "k2"    : normalise stage-1 scores with the log-sum-exp over coarse keys (HF kernel)
                 "k1"    : true softmax over the fine compressed keys (textbook InfLLM-V2)
    tail_quirk   True    : reproduce the CUDA kernel hiding one more compressed key from every row
                           of a from-scratch prefill when T % stride == stride - 1
    score_dtype  e.g. torch.bfloat16 : round group-summed stage-1 scores, as the kernel does
    """
    dense_rule: str = "call"
    lse: str = "k2"
    tail_quirk: bool = False
    score_dtype: Optional[torch.dtype] = None
    query_chunk: int = 128       # memory knob only


# --------------------------------------------------------------------------------------
# small ops
# --------------------------------------------------------------------------------------
def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """Variance in >= float32, result rounded to x.dtype, then multiplied by the weight."""
    acc = x if x.dtype == torch.float64 else x.float()
    inv = torch.rsqrt(acc.pow(2).mean(-1, keepdim=True) + eps)
    return (acc * inv).to(x.dtype) * w


def rope_inv_freq(dim: int, theta: float) -> torch.Tensor:
    """float32 on purpose: these exact values define the rotation."""
    return 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))


def rope_tables(positions: torch.Tensor, dim: int, theta: float,
                dtype: torch.dtype) -> Tuple[torch.Tensor, torch.Tensor]:
    """cos, sin of shape [T, dim]; the angle is the float32 product fl(pos * inv_freq)."""
    ang = positions.to(torch.float32)[:, None] * rope_inv_freq(dim, theta)[None, :]
    ang = torch.cat([ang, ang], dim=-1)
    if dtype == torch.float64:
        ang = ang.double()
    return ang.cos(), ang.sin()


def rope_apply(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D]; half-split ("NeoX") rotation: lane i pairs with lane i + D/2."""
    h = x.shape[-1] // 2
    xa = x.to(cos.dtype)
    rot = torch.cat([-xa[..., h:], xa[..., :h]], dim=-1)
    return (xa * cos[:, None, :] + rot * sin[:, None, :]).to(x.dtype)


def decay_slopes(n: int) -> List[float]:
    """ALiBi slopes, used as decay RATES (>0): state is multiplied by exp(-slope) per token."""
    def pow2(m: int) -> List[float]:
        base = 2.0 ** (-(2.0 ** -(math.log2(m) - 3)))
        return [base * base ** i for i in range(m)]
    if math.log2(n).is_integer():
        return pow2(n)
    c = 2 ** math.floor(math.log2(n))
    return pow2(c) + decay_slopes(2 * c)[0::2][: n - c]


# --------------------------------------------------------------------------------------
# lightning (constant-decay linear) attention
# --------------------------------------------------------------------------------------
def lightning_recurrent(q, k, v, slopes, scale, S):
    """q,k [T,H,Dk], v [T,H,Dv], S [H,Dk,Dv].  Per token: decay, then add, then read."""
    lam = torch.exp(-slopes)[:, None, None]
    S = S.clone()
    out = torch.empty(q.shape[0], q.shape[1], v.shape[-1], dtype=S.dtype)
    for t in range(q.shape[0]):
        S = lam * S + k[t][:, :, None] * v[t][:, None, :]
        out[t] = torch.einsum("hk,hkv->hv", q[t] * scale, S)
    return out, S


def lightning_chunk(q, k, v, slopes, scale, S, chunk: int = 64):
    """Same map, blockwise.  Only non-positive exponents are ever taken."""
    outs, S = [], S.clone()
    for a in range(0, q.shape[0], chunk):
        qc, kc, vc = (x[a:a + chunk].transpose(0, 1) for x in (q, k, v))     # [H,C,*]
        C = qc.shape[1]
        i = torch.arange(C, dtype=S.dtype)
        dist = i[:, None] - i[None, :]
        decay = torch.where(dist >= 0, torch.exp(-slopes[:, None, None] * dist.clamp(min=0)), 0.0)
        intra = (scale * qc @ kc.transpose(1, 2)) * decay                     # [H,C,C]
        carry = torch.exp(-slopes[:, None] * (i + 1))                         # [H,C]
        outs.append((intra @ vc + (scale * qc * carry[..., None]) @ S).transpose(0, 1))
        tail = torch.exp(-slopes[:, None] * (C - 1 - i))                      # [H,C]
        S = torch.exp(-slopes * C)[:, None, None] * S + (kc * tail[..., None]).transpose(1, 2) @ vc
    return torch.cat(outs), S


# --------------------------------------------------------------------------------------
# InfLLM-V2 sparse attention
# --------------------------------------------------------------------------------------
def compressed_len(L: int, kernel: int, stride: int) -> int:
    return max(0, (L - kernel) // stride + 1)


def compress_keys(k: torch.Tensor, kernel: int, stride: int, first: int = 0) -> torch.Tensor:
    """Mean of k[j*stride : j*stride+kernel] for every complete window j >= first.  k [L,KV,D]."""
    n = compressed_len(k.shape[0], kernel, stride)
    if n <= first:
        return k.new_zeros(0, *k.shape[1:])
    return torch.stack([k[j * stride: j * stride + kernel].mean(0) for j in range(first, n)])


def visible_rows(p: torch.Tensor, kernel: int, stride: int) -> torch.Tensor:
    """How many compressed rows end at or before position p (0-based, inclusive)."""
    return torch.clamp(torch.div(p + 1 - kernel, stride, rounding_mode="floor") + 1, min=0)


def stage1_scores(q, k1, k2, n1, n2, scale, lse: str = "k2", score_dtype=None):
    """q [T,H,D]; k1 [K1,KV,D]; k2 [K2,KV,D]; n1,n2 [T] = visible rows of k1,k2.
    Returns [KV,T,K1]: sum over the query heads of a group of exp(s1 - LSE); 0 where hidden."""
    T, H, D = q.shape
    KV = k1.shape[1]
    qg = q.view(T, KV, H // KV, D)
    s1 = torch.einsum("tngd,jnd->ngtj", qg, k1) * scale
    hide1 = torch.arange(k1.shape[0])[None, :] >= n1[:, None]                 # [T,K1]
    s1 = s1.masked_fill(hide1, float("-inf"))
    if lse == "k1":
        ref = s1
    else:
        ref = torch.einsum("tngd,jnd->ngtj", qg, k2) * scale
        hide2 = torch.arange(k2.shape[0])[None, :] >= n2[:, None]
        ref = ref.masked_fill(hide2, float("-inf"))
    if ref.shape[-1] == 0:
        return s1.new_zeros(KV, T, k1.shape[0])
    z = torch.logsumexp(ref, dim=-1, keepdim=True)
    pr = torch.exp(s1 - z)
    pr = torch.where(torch.isinf(z), torch.zeros_like(pr), pr)                # no visible reference row
    out = pr.sum(dim=1)
    return out if score_dtype is None else out.to(score_dtype).to(out.dtype)


def block_scores(score, p, L: int, sc: SparseConfig) -> torch.Tensor:
    """score [KV,T,K1] -> [KV,T,NB], NB = ceil(L / block).  Max over the r+1 compressed rows
    r*b-1 .. r*b+r-1 (r = block/stride), then +inf for init and local blocks, -inf for future."""
    KV, T, K1 = score.shape
    r = sc.block_size // sc.kernel_stride
    nb = -(-L // sc.block_size)
    idx = torch.arange(nb)[:, None] * r - 1 + torch.arange(r + 1)[None, :]    # [NB,r+1]
    ok = (idx >= 0) & (idx < K1)
    g = score[:, :, idx.clamp(0, max(K1 - 1, 0))] if K1 else score.new_zeros(KV, T, nb, r + 1)
    bs = g.masked_fill(~ok, float("-inf")).amax(-1)
    b = torch.arange(nb)[None, :]
    bq = torch.div(p, sc.block_size, rounding_mode="floor")[:, None]
    forced = (b < sc.init_blocks) | ((b <= bq) & (b >= bq - sc.local_blocks))
    bs = bs.masked_fill(forced, float("inf"))
    return bs.masked_fill(b > bq, float("-inf"))


def select_blocks(bs, p, sc: SparseConfig) -> torch.Tensor:
    """[KV,T,NB] -> ascending block ids [KV,T,k], k = min(topk_total, NB), padded with -1.
    Ties go to the lower block id."""
    k = min(sc.topk_total, bs.shape[-1])
    top = torch.sort(bs, dim=-1, descending=True, stable=True).indices[..., :k]
    bq = torch.div(p, sc.block_size, rounding_mode="floor")[None, :, None]
    big = torch.iinfo(torch.int64).max
    top = torch.where(top > bq, big, top).sort(-1).values
    return torch.where(top == big, -1, top)


def block_mask(sel: torch.Tensor, nb: int) -> torch.Tensor:
    m = torch.zeros(*sel.shape[:2], nb + 1, dtype=torch.bool)
    m.scatter_(2, torch.where(sel < 0, nb, sel), True)
    return m[..., :nb]


def masked_attention(q, k, v, p, scale, sel=None, block: int = 64):
    """Softmax attention of q [T,H,D] at positions p over k,v [L,KV,D]; key j visible iff j <= p
    and, when sel [KV,T,k] is given, block j//block is selected for that row and KV head."""
    T, H, D = q.shape
    L = int(p.max()) + 1                        # later keys are hidden from every row
    k, v, KV = k[:L], v[:L], k.shape[1]
    qg = q.view(T, KV, H // KV, D)
    s = torch.einsum("tngd,jnd->ngtj", qg, k) * scale
    j = torch.arange(L)
    keep = (j[None, :] <= p[:, None])[None]                                   # [1,T,L]
    if sel is not None:
        keep = keep & block_mask(sel, max(-(-L // block), int(sel.max()) + 1))[:, :, j // block]   # [KV,T,L]
    s = s.masked_fill(~keep[:, None], float("-inf"))
    a = torch.softmax(s, dim=-1)
    return torch.einsum("ngtj,jnd->tngd", a, v).reshape(T, H, D)


# --------------------------------------------------------------------------------------
# model
# --------------------------------------------------------------------------------------
class SparseState:
    def __init__(self, kv: int, d: int, dtype):
        z = torch.zeros(0, kv, d, dtype=dtype)
        self.k, self.v, self.k1, self.k2 = z, z.clone(), z.clone(), z.clone()

    def append(self, k, v, sc: SparseConfig):
        self.k, self.v = torch.cat([self.k, k]), torch.cat([self.v, v])
        self.k1 = torch.cat([self.k1, compress_keys(self.k, sc.kernel_size, sc.kernel_stride,
                                                    self.k1.shape[0])])
        self.k2 = torch.cat([self.k2, compress_keys(self.k, 4 * sc.kernel_size, 4 * sc.kernel_stride,
                                                    self.k2.shape[0])])


class LightningState:
    def __init__(self, h: int, dk: int, dv: int, dtype):
        self.S = torch.zeros(h, dk, dv, dtype=dtype)


class State:
    def __init__(self, layers):
        self.pos = 0
        self.layers = layers


class SalaModel:
    def __init__(self, cfg: SalaConfig, weights: Dict[str, torch.Tensor],
                 dtype: torch.dtype = torch.float32, options: Optional[Options] = None):
        self.cfg, self.dtype, self.opt = cfg, dtype, options or Options()
        self.w = {n: t.to(dtype) for n, t in weights.items()}
        self.acc = torch.float64 if dtype == torch.float64 else torch.float32  # lightning maths
        self.slopes = torch.tensor(decay_slopes(cfg.lightning_nh), dtype=torch.float32).to(self.acc)

    def new_state(self) -> State:
        c = self.cfg
        return State([SparseState(c.num_key_value_heads, c.head_dim, self.dtype) if c.is_sparse(i)
                      else LightningState(c.lightning_nh, c.lightning_head_dim, c.lightning_head_dim, self.acc)
                      for i in range(c.num_hidden_layers)])

    # -- mixers ------------------------------------------------------------------------
    def _lin(self, x, name):
        return x @ self.w[name + ".weight"].T

    def _sparse_mixer(self, i, x, st: SparseState, pos, cap):
        c, sc, o = self.cfg, self.cfg.sparse, self.opt
        pre = f"model.layers.{i}.self_attn."
        T = x.shape[0]
        q = self._lin(x, pre + "q_proj").view(T, c.num_attention_heads, c.head_dim)
        k = self._lin(x, pre + "k_proj").view(T, c.num_key_value_heads, c.head_dim)
        v = self._lin(x, pre + "v_proj").view(T, c.num_key_value_heads, c.head_dim)
        if c.attn_use_rope:                       # false in the release; keys are then cached rotated
            cos, sin = rope_tables(pos, c.head_dim, c.rope_theta, self.acc)
            q, k = rope_apply(q, cos, sin), rope_apply(k, cos, sin)
        scratch = st.k.shape[0] == 0
        st.append(k, v, sc)
        L, scale = st.k.shape[0], c.head_dim ** -0.5
        if o.dense_rule == "call":
            dense = torch.full((T,), L < sc.dense_len)
        elif o.dense_rule == "token":
            dense = pos + 1 < sc.dense_len
        else:
            dense = torch.full((T,), o.dense_rule == "always")
        y = torch.empty(T, c.num_attention_heads, c.head_dim, dtype=self.dtype)
        k_sel = min(sc.topk_total, -(-L // sc.block_size))
        sel_all = torch.full((c.num_key_value_heads, T, k_sel), -2)           # -2 marks dense rows
        for a in range(0, T, o.query_chunk):
            rows = slice(a, min(T, a + o.query_chunk))
            for want in (True, False):
                r = torch.arange(T)[rows][dense[rows] == want]
                if r.numel() == 0:
                    continue
                sel = None
                if not want:
                    n1 = visible_rows(pos[r], sc.kernel_size, sc.kernel_stride)
                    n2 = visible_rows(pos[r], 4 * sc.kernel_size, 4 * sc.kernel_stride)
                    if o.tail_quirk and scratch and T > 1:
                        n1 = (n1 - int(T % sc.kernel_stride == sc.kernel_stride - 1)).clamp(min=0)
                        n2 = (n2 - int(T % (4 * sc.kernel_stride) == 4 * sc.kernel_stride - 1)).clamp(min=0)
                    sco = stage1_scores(q[r], st.k1, st.k2, n1, n2, scale, o.lse, o.score_dtype)
                    bs = block_scores(sco, pos[r], L, sc)
                    sel = select_blocks(bs, pos[r], sc)
                    sel_all[:, r] = sel
                    if cap is not None and cap.get("want_scores") is not None:
                        for t in r.tolist():
                            if int(pos[t]) in cap["want_scores"]:
                                cap.setdefault("block_scores", {})[(i, int(pos[t]))] = bs[:, t - int(r[0])].clone()
                y[r] = masked_attention(q[r], st.k, st.v, pos[r], scale, sel, sc.block_size)
        if cap is not None:
            cap.setdefault("selected", {})[i] = sel_all
            cap.setdefault("attn_core", {})[i] = y
        y = y.reshape(T, -1)
        if c.attn_use_output_gate:
            y = y * torch.sigmoid(self._lin(x, pre + "o_gate"))
        return self._lin(y, pre + "o_proj")

    def _lightning_mixer(self, i, x, st: LightningState, pos, cap, path):
        c = self.cfg
        pre = f"model.layers.{i}.self_attn."
        T, H, KV, D = x.shape[0], c.lightning_nh, c.lightning_nkv, c.lightning_head_dim
        q = self._lin(x, pre + "q_proj").view(T, H, D)
        k = self._lin(x, pre + "k_proj").view(T, KV, D)
        v = self._lin(x, pre + "v_proj").view(T, KV, D)
        if c.qk_norm:
            q = rms_norm(q, self.w[pre + "q_norm.weight"], c.rms_norm_eps)
            k = rms_norm(k, self.w[pre + "k_norm.weight"], c.rms_norm_eps)
        if c.lightning_use_rope:
            cos, sin = rope_tables(pos, D, c.rope_theta, self.acc)
            q, k = rope_apply(q, cos, sin), rope_apply(k, cos, sin)
        k, v = k.repeat_interleave(H // KV, dim=1), v.repeat_interleave(H // KV, dim=1)
        scale = {"1/sqrt(d)": D ** -0.5, "1/d": 1.0 / D}.get(c.lightning_scale, 1.0)
        fn = lightning_chunk if path == "chunk" or (path == "auto" and T >= 64) else lightning_recurrent
        y, st.S = fn(q.to(self.acc), k.to(self.acc), v.to(self.acc), self.slopes, scale, st.S)
        if cap is not None:
            cap.setdefault("attn_core", {})[i] = y
        y = y.to(self.dtype).reshape(T, H * D)
        if c.use_output_norm:                     # one RMS over all H*D lanes, before the gate
            y = rms_norm(y, self.w[pre + "o_norm.weight"], c.rms_norm_eps)
        if c.use_output_gate:
            y = y * torch.sigmoid(self._lin(x, pre + "z_proj"))
        return self._lin(y, pre + "o_proj")

    # -- whole model -------------------------------------------------------------------
    def hidden(self, ids, state: State, cap: Optional[dict] = None, path: str = "auto") -> torch.Tensor:
        c = self.cfg
        ids = torch.as_tensor(ids, dtype=torch.int64)
        pos = torch.arange(state.pos, state.pos + ids.shape[0])
        h = self.w["model.embed_tokens.weight"][ids] * c.scale_emb
        if cap is not None:
            cap["hidden"] = [h]
        for i in range(c.num_hidden_layers):
            p = f"model.layers.{i}."
            x = rms_norm(h, self.w[p + "input_layernorm.weight"], c.rms_norm_eps)
            if c.is_sparse(i):
                y = self._sparse_mixer(i, x, state.layers[i], pos, cap)
            else:
                y = self._lightning_mixer(i, x, state.layers[i], pos, cap, path)
            h = h + y * c.residual_scale
            x = rms_norm(h, self.w[p + "post_attention_layernorm.weight"], c.rms_norm_eps)
            y = torch.nn.functional.silu(self._lin(x, p + "mlp.gate_proj")) * self._lin(x, p + "mlp.up_proj")
            h = h + self._lin(y, p + "mlp.down_proj") * c.residual_scale
            if cap is not None:
                cap["hidden"].append(h)
        state.pos += ids.shape[0]
        return rms_norm(h, self.w["model.norm.weight"], c.rms_norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        c = self.cfg
        head = "model.embed_tokens.weight" if c.tie_word_embeddings else "lm_head.weight"
        return (hidden / (c.hidden_size / c.dim_model_base)) @ self.w[head].T

    def forward(self, ids, state: State, cap: Optional[dict] = None, path: str = "auto") -> torch.Tensor:
        hid = self.hidden(ids, state, cap, path)
        if cap is not None:
            cap["final_hidden"] = hid
        return self.logits(hid)


# --------------------------------------------------------------------------------------
# checkpoint layout
# --------------------------------------------------------------------------------------
def weight_shapes(cfg: SalaConfig) -> Dict[str, Tuple[int, ...]]:
    """Every tensor of a checkpoint, by its Hub name."""
    c, out = cfg, {}
    hs, inter = c.hidden_size, c.intermediate_size
    out["model.embed_tokens.weight"] = (c.vocab_size, hs)
    for i in range(c.num_hidden_layers):
        p = f"model.layers.{i}."
        a = p + "self_attn."
        out[p + "input_layernorm.weight"] = (hs,)
        if c.is_sparse(i):
            qd, kd = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        else:
            qd, kd = c.lightning_nh * c.lightning_head_dim, c.lightning_nkv * c.lightning_head_dim
        out[a + "q_proj.weight"], out[a + "k_proj.weight"] = (qd, hs), (kd, hs)
        out[a + "v_proj.weight"], out[a + "o_proj.weight"] = (kd, hs), (hs, qd)
        if c.is_sparse(i):
            if c.attn_use_output_gate:
                out[a + "o_gate.weight"] = (qd, hs)
        else:
            if c.use_output_gate:
                out[a + "z_proj.weight"] = (qd, hs)
            if c.use_output_norm:
                out[a + "o_norm.weight"] = (qd,)
            if c.qk_norm:
                out[a + "q_norm.weight"] = (c.lightning_head_dim,)
                out[a + "k_norm.weight"] = (c.lightning_head_dim,)
        out[p + "post_attention_layernorm.weight"] = (hs,)
        out[p + "mlp.gate_proj.weight"] = out[p + "mlp.up_proj.weight"] = (inter, hs)
        out[p + "mlp.down_proj.weight"] = (hs, inter)
    out["model.norm.weight"] = (hs,)
    if not c.tie_word_embeddings:
        out["lm_head.weight"] = (c.vocab_size, hs)
    return out
