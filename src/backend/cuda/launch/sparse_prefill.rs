//! Sparse attention of prefill passes: `sparse_prefill.cu`.

use super::{run, up};
use crate::backend::Result;
use crate::backend::cuda::driver::{DevicePtr, Driver};

const PREFILL_LSE_SHARED: u32 = 32_768;

const PREFILL_SCORES_SHARED: u32 = 37_376;

const ATTEND_PREFILL_SHARED: u32 = 35_968;

/// Log-sum-exp over compressed keys of rows `row0..row0 + rows`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn prefill_lse(
    d: &dyn Driver,
    z: DevicePtr,
    q: DevicePtr,
    ldq: u32,
    keys: DevicePtr,
    window: u32,
    stride: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    row0: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "prefill_lse",
            [up(rows, 8), kv_heads, 1],
            256,
            PREFILL_LSE_SHARED,
            args![z, q, ldq, keys, window, stride, step, heads, kv_heads, scale, row0, rows],
        )
    }
}

/// Pooled block scores of rows `row0..row0 + rows`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn prefill_scores(
    d: &dyn Driver,
    scores: DevicePtr,
    z: DevicePtr,
    q: DevicePtr,
    ldq: u32,
    k1: DevicePtr,
    window: u32,
    stride: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    row0: u32,
    rows: u32,
    score_blocks: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "prefill_scores",
            [up(score_blocks, 256), up(rows, 16), kv_heads],
            256,
            PREFILL_SCORES_SHARED,
            args![scores, z, q, ldq, k1, window, stride, step, heads, kv_heads, scale, row0, rows, score_blocks],
        )
    }
}

/// Attention over the chosen blocks, 8 rows a launch block.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn attend_prefill(
    d: &dyn Driver,
    o: DevicePtr,
    ldo: u32,
    q: DevicePtr,
    ldq: u32,
    k: DevicePtr,
    v: DevicePtr,
    list: DevicePtr,
    count: DevicePtr,
    cap: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    rows: u32,
) -> Result<()> {
    /// Bytes of a place in the ring: 32 keys and their values.
    const HALF: u32 = 16 << 10;
    let room = d.info().shared_limit.saturating_sub(ATTEND_PREFILL_SHARED);
    let slots = (room / HALF).max(2);
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "attend_prefill",
            [up(rows, 8), kv_heads, 1],
            9 * 32,
            ATTEND_PREFILL_SHARED + slots * HALF,
            args![o, ldo, q, ldq, k, v, list, count, cap, step, heads, kv_heads, scale, rows, slots],
        )
    }
}
