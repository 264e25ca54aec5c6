//! The draft head: `draft.cu`.

use super::{ATTEND_SHARED, run};
use crate::backend::Result;
use crate::backend::cuda::driver::{DevicePtr, Driver};

/// Ring slots of a split of [`draft_attend`].
pub const DRAFT_SLOTS: u32 = 128;

/// Normed embedding beside the normed stream.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn draft_input(
    d: &dyn Driver,
    x: DevicePtr,
    g: DevicePtr,
    table: DevicePtr,
    tokens: DevicePtr,
    input_norm: DevicePtr,
    hidden_norm: DevicePtr,
    scale: f32,
    eps: f32,
    normed: u32,
    hidden: u32,
    vocab: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "draft_input",
            [rows, 1, 1],
            256,
            0,
            args![x, g, table, tokens, input_norm, hidden_norm, scale, eps, normed, hidden, vocab, rows],
        )
    }
}

/// Rotated keys and values into the ring; `inv_freq` f64.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn draft_append(
    d: &dyn Driver,
    wk: DevicePtr,
    wv: DevicePtr,
    kv: DevicePtr,
    ldkv: u32,
    inv_freq: DevicePtr,
    step: DevicePtr,
    capacity: u32,
    kv_heads: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "draft_append",
            [rows, kv_heads, 1],
            64,
            0,
            args![wk, wv, kv, ldkv, inv_freq, step, capacity, kv_heads, rows],
        )
    }
}

/// Attention parts of [`DRAFT_SLOTS`] ring slots each, for the query of row `row`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn draft_attend(
    d: &dyn Driver,
    part_o: DevicePtr,
    part_ml: DevicePtr,
    q: DevicePtr,
    wk: DevicePtr,
    wv: DevicePtr,
    inv_freq: DevicePtr,
    step: DevicePtr,
    capacity: u32,
    window: u32,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    row: u32,
    splits: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "draft_attend",
            [splits, kv_heads, 1],
            128,
            ATTEND_SHARED,
            args![part_o, part_ml, q, wk, wv, inv_freq, step, capacity, window, heads, kv_heads, scale, row, splits],
        )
    }
}

/// Merges them.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn draft_combine(
    d: &dyn Driver,
    o: DevicePtr,
    part_o: DevicePtr,
    part_ml: DevicePtr,
    heads: u32,
    splits: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "draft_combine", [heads, 1, 1], 128, 0, args![o, part_o, part_ml, heads, splits]) }
}
