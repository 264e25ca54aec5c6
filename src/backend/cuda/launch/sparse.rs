//! Sparse attention of verify passes: `sparse.cu`.

use super::{ATTEND_SHARED, run, up};
use crate::backend::Result;
use crate::backend::cuda::driver::{DevicePtr, Driver};

/// Compressed keys of a split of [`select_lse`].
pub const LSE_KEYS: u32 = 256;

/// Chosen blocks of a split of [`attend_verify`].
pub const ATTEND_BLOCKS: u32 = 2;

const SELECT_LSE_SHARED: u32 = 65_536;

const SELECT_SCORES_SHARED: u32 = 67_584;

/// Keys, values and the compressed keys they complete.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn append_kv(
    d: &dyn Driver,
    k: DevicePtr,
    v: DevicePtr,
    k1: DevicePtr,
    k2: DevicePtr,
    xk: DevicePtr,
    xv: DevicePtr,
    ldx: u32,
    step: DevicePtr,
    kv_heads: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "append_kv", [rows, kv_heads, 1], 128, 0, args![k, v, k1, k2, xk, xv, ldx, step, kv_heads, rows]) }
}

/// Parts of the log-sum-exp over compressed keys, [`LSE_KEYS`] a split.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn select_lse(
    d: &dyn Driver,
    part: DevicePtr,
    q: DevicePtr,
    ldq: u32,
    keys: DevicePtr,
    window: u32,
    stride: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    rows: u32,
    splits: u32,
    all_below: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "select_lse",
            [splits, kv_heads, rows],
            128,
            SELECT_LSE_SHARED,
            args![part, q, ldq, keys, window, stride, step, heads, kv_heads, scale, rows, splits, all_below],
        )
    }
}

/// Pooled block scores of a verify pass; rows with at most `all_below` blocks need none.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn select_scores(
    d: &dyn Driver,
    scores: DevicePtr,
    part: DevicePtr,
    q: DevicePtr,
    ldq: u32,
    k1: DevicePtr,
    window: u32,
    stride: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    rows: u32,
    splits: u32,
    score_blocks: u32,
    all_below: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "select_scores",
            [up(score_blocks, 64), kv_heads, rows],
            128,
            SELECT_SCORES_SHARED,
            args![
                scores,
                part,
                q,
                ldq,
                k1,
                window,
                stride,
                step,
                heads,
                kv_heads,
                scale,
                rows,
                splits,
                score_blocks,
                all_below
            ],
        )
    }
}

/// Chosen blocks, ascending.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn select_top(
    d: &dyn Driver,
    list: DevicePtr,
    count: DevicePtr,
    scores: DevicePtr,
    step: DevicePtr,
    kv_heads: u32,
    score_blocks: u32,
    cap: u32,
    init: u32,
    local: u32,
    topk: u32,
    dense_until: u32,
    row0: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "select_top",
            [kv_heads, rows, 1],
            512,
            0,
            args![list, count, scores, step, kv_heads, score_blocks, cap, init, local, topk, dense_until, row0, rows],
        )
    }
}

/// Attention parts of [`ATTEND_BLOCKS`] chosen blocks each.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn attend_verify(
    d: &dyn Driver,
    part_o: DevicePtr,
    part_ml: DevicePtr,
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
    splits: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "attend_verify",
            [splits, kv_heads, rows],
            128,
            ATTEND_SHARED,
            args![part_o, part_ml, q, ldq, k, v, list, count, cap, step, heads, kv_heads, scale, rows, splits],
        )
    }
}

/// Merges the parts in ascending order.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn attend_combine(
    d: &dyn Driver,
    o: DevicePtr,
    ldo: u32,
    part_o: DevicePtr,
    part_ml: DevicePtr,
    count: DevicePtr,
    heads: u32,
    kv_heads: u32,
    rows: u32,
    splits: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "attend_combine",
            [heads, rows, 1],
            128,
            0,
            args![o, ldo, part_o, part_ml, count, heads, kv_heads, rows, splits],
        )
    }
}
