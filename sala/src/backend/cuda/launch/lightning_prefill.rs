//! Lightning attention of prefill passes.

use super::{Lightning, up};

kernels! { "lightning_prefill.cu", device:
    /// Prefill: normed and rotated `[q (heads·128) | k (kv_heads·128)]`; `dst` may be `x + q_col` with `ldd = ldx` where the
    /// columns q and k are adjacent
    LightningQk of Lightning [lightning_qk] (
        dst: Ptr("bf16*"), ldd: u32, x: Ptr("const bf16*"), ldx: u32, q_col: u32, k_col: u32, q_norm: Ptr("const float*"),
        k_norm: Ptr("const float*"), rope: Ptr("const float2*"), heads: u32, kv_heads: u32, eps: f32, rows: u32,
    )
    grid [up(heads + kv_heads, 8), rows, 1], threads 256, shared 0;

    /// Absorbs pending rows, then chunks of 64 on tensor cores, state on chip; `qk` from `lightning_qk`, `v` points at its
    /// first column
    LightningPrefill of Lightning [lightning_prefill] (
        o: Ptr("float*"), ldo: u32, qk: Ptr("const bf16*"), ldqk: u32, v: Ptr("const bf16*"), ldv: u32,
        state: Ptr("float*"), pend_k: Ptr("const bf16*"), pend_v: Ptr("const bf16*"), slopes: Ptr("const float*"),
        step: Ptr("const Step*"), heads: u32, kv_heads: u32, scale: f32, rows: u32,
    )
    grid [4, heads, 1], threads 256, shared 95_504;
}
