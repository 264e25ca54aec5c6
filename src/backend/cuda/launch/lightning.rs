//! Lightning attention: `lightning.cu`.

use super::{run, up};
use crate::backend::Result;
use crate::backend::cuda::driver::{DevicePtr, Driver};

/// Dynamic shared memory; the source says what for.
const LIGHTNING_SHARED: u32 = 95_504;

/// Pending rows, then 1..=16 rows of the recurrence.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn lightning_verify(
    d: &dyn Driver,
    o: DevicePtr,
    ldo: u32,
    x: DevicePtr,
    ldx: u32,
    q_col: u32,
    k_col: u32,
    v_col: u32,
    q_norm: DevicePtr,
    k_norm: DevicePtr,
    rope: DevicePtr,
    state: DevicePtr,
    pend_k: DevicePtr,
    pend_v: DevicePtr,
    slopes: DevicePtr,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    eps: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "lightning_verify",
            [4, heads, 1],
            128,
            0,
            args![
                o, ldo, x, ldx, q_col, k_col, v_col, q_norm, k_norm, rope, state, pend_k, pend_v, slopes, step, heads,
                kv_heads, scale, eps, rows
            ],
        )
    }
}

/// Absorbs pending rows.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn lightning_fold(
    d: &dyn Driver,
    state: DevicePtr,
    pend_k: DevicePtr,
    pend_v: DevicePtr,
    slopes: DevicePtr,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(d, "lightning_fold", [4, heads, 1], 128, 0, args![state, pend_k, pend_v, slopes, step, heads, kv_heads])
    }
}

/// Normed and rotated q and k of a prefill pass.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn lightning_qk(
    d: &dyn Driver,
    dst: DevicePtr,
    ldd: u32,
    x: DevicePtr,
    ldx: u32,
    q_col: u32,
    k_col: u32,
    q_norm: DevicePtr,
    k_norm: DevicePtr,
    rope: DevicePtr,
    heads: u32,
    kv_heads: u32,
    eps: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "lightning_qk",
            [up(heads + kv_heads, 8), rows, 1],
            256,
            0,
            args![dst, ldd, x, ldx, q_col, k_col, q_norm, k_norm, rope, heads, kv_heads, eps, rows],
        )
    }
}

/// Pending rows, then chunks of 64 rows.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn lightning_prefill(
    d: &dyn Driver,
    o: DevicePtr,
    ldo: u32,
    qk: DevicePtr,
    ldqk: u32,
    v: DevicePtr,
    ldv: u32,
    state: DevicePtr,
    pend_k: DevicePtr,
    pend_v: DevicePtr,
    slopes: DevicePtr,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "lightning_prefill",
            [4, heads, 1],
            128,
            LIGHTNING_SHARED,
            args![o, ldo, qk, ldqk, v, ldv, state, pend_k, pend_v, slopes, step, heads, kv_heads, scale, rows],
        )
    }
}
