//! Operations on rows: `rows.cu`.

use super::{run, up, up64};
use crate::backend::Result;
use crate::backend::cuda::driver::{DevicePtr, Driver};

/// `dst[i] = value`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn fill_f32(d: &dyn Driver, dst: DevicePtr, n: u64, value: f32) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "fill_f32", [up64(n, 1024), 1, 1], 256, 0, args![dst, n, value]) }
}

/// Values of [`crate::backend::synthetic_value`].
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn random_bf16(d: &dyn Driver, dst: DevicePtr, n: u64, std: f32, seed: u64) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "random_bf16", [up64(n, 1024), 1, 1], 256, 0, args![dst, n, std, seed]) }
}

/// `h[r] = scale · table[tokens[r]]`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn embed_rows(
    d: &dyn Driver,
    h: DevicePtr,
    table: DevicePtr,
    tokens: DevicePtr,
    hidden: u32,
    vocab: u32,
    scale: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "embed_rows", [rows, 1, 1], 256, 0, args![h, table, tokens, hidden, vocab, scale, rows]) }
}

/// cos and sin of the pass's angles, `[rows][64]` pairs.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn rope_table(
    d: &dyn Driver,
    table: DevicePtr,
    inv_freq: DevicePtr,
    step: DevicePtr,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "rope_table", [up(rows * 64, 256), 1, 1], 256, 0, args![table, inv_freq, step, rows]) }
}

/// RMS norm of f32 rows to bf16; `norm` 0: rounds only.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn norm_rows(
    d: &dyn Driver,
    dst: DevicePtr,
    ldd: u32,
    src: DevicePtr,
    lds: u32,
    norm: DevicePtr,
    n: u32,
    eps: f32,
    mul: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "norm_rows", [rows, 1, 1], 256, 0, args![dst, ldd, src, lds, norm, n, eps, mul, rows]) }
}

/// Output norm and gate to bf16; `norm` and `gate` may be 0.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn gate_rows(
    d: &dyn Driver,
    dst: DevicePtr,
    ldd: u32,
    o: DevicePtr,
    ldo: u32,
    norm: DevicePtr,
    eps: f32,
    gate: DevicePtr,
    ldg: u32,
    n: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "gate_rows", [rows, 1, 1], 256, 0, args![dst, ldd, o, ldo, norm, eps, gate, ldg, n, rows]) }
}

/// SwiGLU of interleaved gate and up columns.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn swiglu_rows(d: &dyn Driver, dst: DevicePtr, gu: DevicePtr, inter: u32, rows: u32) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "swiglu_rows", [up(inter, 2048), rows, 1], 256, 0, args![dst, gu, inter, rows]) }
}

/// Copies f32 rows into columns of a wider buffer.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn tap_rows(d: &dyn Driver, taps: DevicePtr, ldt: u32, h: DevicePtr, hidden: u32, rows: u32) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "tap_rows", [rows, 1, 1], 256, 0, args![taps, ldt, h, hidden, rows]) }
}

/// The same, rounded to bf16.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn tap_rows_bf16(
    d: &dyn Driver,
    taps: DevicePtr,
    ldt: u32,
    h: DevicePtr,
    hidden: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "tap_rows_bf16", [rows, 1, 1], 256, 0, args![taps, ldt, h, hidden, rows]) }
}

/// RMS norm of bf16 rows.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn norm_rows_bf16(
    d: &dyn Driver,
    dst: DevicePtr,
    ldd: u32,
    src: DevicePtr,
    lds: u32,
    norm: DevicePtr,
    n: u32,
    eps: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "norm_rows_bf16", [rows, 1, 1], 256, 0, args![dst, ldd, src, lds, norm, n, eps, rows]) }
}

/// Sums of everything, one a launch block: reading to be timed. `out` has room for 8 per multiprocessor.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn measure_read(d: &dyn Driver, out: DevicePtr, src: DevicePtr, n16: u64) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(d, "measure_read", [8 * d.info().multiprocessors.max(1), 1, 1], 512, 0, args![out, src, n16]) }
}
