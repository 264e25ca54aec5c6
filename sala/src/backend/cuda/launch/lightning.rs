//! Lightning attention.

use super::skinny::shares;
use super::*;

/// Multiprocessors that the previous product, of this many columns, leaves idle.
fn aside(columns: usize, device: &DeviceInfo) -> usize {
    device.multiprocessors.saturating_sub(shares(columns, device.multiprocessors))
}

operands! {
    /// Of lightning attention.
    Lightning:
    Ptr o x v qk dst q_norm k_norm rope at of state pend_k pend_v slopes step next_norm next_x next_sums gate;
    u32 ldo ldx ldv ldqk ldd q_col k_col v_col heads kv_heads all sequences rows;
    f32 scale eps;
}

kernels! { device;
    "lightning.cu":
    /// Absorbs pending rows, then rows 1..16 of qk-norm, RoPE, recurrence; `q_norm`, `k_norm`, `rope` may be null. `all` rows in
    /// all, of one sequence, or of at most `sequences`. With `next_x`, rows for the GEMM that follows, gated by columns of `x`. Launch blocks before the last
    /// `heads` only wait. Shared memory is for 8 rows (`VERIFY_ROWS`)
    LightningVerify of Lightning [lightning_verify] (
        o: Ptr("float*"), ldo: u32, x: Ptr("const bf16*"), ldx: u32, q_col: u32, k_col: u32, v_col: u32,
        q_norm: Ptr("const float*"), k_norm: Ptr("const float*"), rope: Ptr("const float2*"), at: Ptr("const Row*"),
        of: Ptr("const RowState*"), next_norm: Ptr("const float*"), next_x: Ptr("bf16*"), next_sums: Ptr("float*"),
        gate: Ptr("const bf16*"), heads: u32, kv_heads: u32, scale: f32, eps: f32, all: u32, sequences: u32,
    )
    grid [4, aside(ldx, device) + heads, sequences], threads 256, shared all.min(8) * 1152;

    /// Absorbs pending rows
    LightningFold of Lightning [lightning_fold] (
        state: Ptr("float*"), pend_k: Ptr("const bf16*"), pend_v: Ptr("const bf16*"), slopes: Ptr("const float*"),
        step: Ptr("const Step*"), heads: u32, kv_heads: u32,
    )
    grid [4, heads, 1], threads 128, shared 0;

    "lightning_prefill.cu":
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
