//! Products: `skinny.cu` and `gemm.cu`.

use super::{run, up};
use crate::backend::Result;
use crate::backend::cuda::driver::{DevicePtr, Driver};

/// Most rows that a skinny product norms or gates itself: more take longer than a kernel before it.
const STAGED_ROWS: u32 = 2;

/// Weight rows a block of a skinny product works on at a time, and bytes of a stage of its ring.
const SKINNY_TILE: u32 = 32;

const SKINNY_STAGE: u32 = SKINNY_TILE * 1024;

const GEMM_SHARED: u32 = 81_920;

/// What becomes of a skinny product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkinnyTo {
    /// bf16 `scale · y`.
    Store,
    /// bf16 `silu(gate) · up` of an interleaved weight.
    Swiglu,
    /// f32 `dst += scale · y`.
    Add,
    /// f32 `scale · y`.
    Logits,
}

/// Where a skinny product's activations come from; `ld` is a row's stride in elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SkinnyFrom {
    /// bf16 rows.
    Ready {
        /// Rows.
        x: DevicePtr,
        /// Stride.
        ld: u32,
    },
    /// f32 rows, RMS-normed on the way: `bf16(h · rstd · norm · mul)`.
    Norm {
        /// Rows.
        h: DevicePtr,
        /// Stride.
        ld: u32,
        /// Norm weight.
        norm: DevicePtr,
        /// Epsilon.
        eps: f32,
        /// Factor.
        mul: f32,
    },
    /// f32 rows, normed (unless 0) and gated (unless 0) on the way.
    Gate {
        /// Rows.
        o: DevicePtr,
        /// Stride.
        ld: u32,
        /// Norm weight or 0.
        norm: DevicePtr,
        /// Epsilon.
        eps: f32,
        /// First gate column or 0.
        gate: DevicePtr,
        /// Stride of gate rows.
        ldg: u32,
    },
}

/// Can a skinny product norm or gate its rows on the way? If not, run [`norm_rows`] or [`gate_rows`] before and pass
/// [`SkinnyFrom::Ready`]: the bits are the same. It can if that leaves room for a ring of two stages.
pub fn stages_rows(d: &dyn Driver, rows: u32, inner: u32) -> bool {
    rows <= STAGED_ROWS && staged_bytes(rows, inner) + parts_bytes(rows) + 2 * SKINNY_STAGE <= d.info().shared_limit
}

/// Rows in shared memory, padded.
fn staged_bytes(rows: u32, inner: u32) -> u32 {
    rows * (inner + 32) * 2
}

/// Ready rows of a stage.
fn ready_bytes(rows: u32) -> u32 {
    if rows > 8 { 16384 } else { 8192 }
}

/// The warps' parts of a tile.
fn parts_bytes(rows: u32) -> u32 {
    if rows > 8 { 16384 } else { 8192 }
}

/// Product of 1..=16 rows with a weight `[out, inner]`, `inner` a multiple of 64.
///
/// # Safety
/// See the module.
pub unsafe fn skinny(
    d: &dyn Driver,
    to: SkinnyTo,
    dst: DevicePtr,
    ldd: u32,
    w: DevicePtr,
    out: u32,
    inner: u32,
    from: SkinnyFrom,
    scale: f32,
    rows: u32,
) -> Result<()> {
    let kernel = match (to, rows > 8) {
        (SkinnyTo::Store, false) => "skinny_store_8",
        (SkinnyTo::Store, true) => "skinny_store_16",
        (SkinnyTo::Swiglu, false) => "skinny_swiglu_8",
        (SkinnyTo::Swiglu, true) => "skinny_swiglu_16",
        (SkinnyTo::Add, false) => "skinny_add_8",
        (SkinnyTo::Add, true) => "skinny_add_16",
        (SkinnyTo::Logits, false) => "skinny_logits_8",
        (SkinnyTo::Logits, true) => "skinny_logits_16",
    };
    let limit = d.info().shared_limit;
    let processors = d.info().multiprocessors.max(1);
    if let SkinnyFrom::Ready { x, ld } = from
        && rows > 8
        && parts_bytes(rows) + 2 * (SKINNY_STAGE + ready_bytes(rows)) > limit
    {
        // Where shared memory is small the rows go in two halves: the weights are read twice, the bits are the same.
        let value = match to {
            SkinnyTo::Store | SkinnyTo::Swiglu => 2,
            SkinnyTo::Add | SkinnyTo::Logits => 4,
        };
        let second = SkinnyFrom::Ready { x: x + 8 * 2 * u64::from(ld), ld };
        let behind = dst + 8 * value * u64::from(ldd);
        // SAFETY: the caller's; both halves lie inside.
        return unsafe {
            skinny(d, to, dst, ldd, w, out, inner, from, scale, 8)?;
            skinny(d, to, behind, ldd, w, out, inner, second, scale, rows - 8)
        };
    }
    let (src, lds, mode, norm, eps, mul, gate, ldg) = match from {
        SkinnyFrom::Ready { x, ld } => (x, ld, 0u32, 0, 0.0, 1.0, 0, 0),
        SkinnyFrom::Norm { h, ld, norm, eps, mul } => (h, ld, 1, norm, eps, mul, 0, 0),
        SkinnyFrom::Gate { o, ld, norm, eps, gate, ldg } => (o, ld, 2, norm, eps, 1.0, gate, ldg),
    };
    // The ring gets all the shared memory that the warps' parts and the staged rows leave; ready rows travel in it.
    let (fixed, stage) = match mode {
        0 => (parts_bytes(rows), SKINNY_STAGE + ready_bytes(rows)),
        _ => (parts_bytes(rows) + staged_bytes(rows, inner), SKINNY_STAGE),
    };
    let stages = (limit.saturating_sub(fixed) / stage).clamp(2, 6);
    // As many blocks as give every one the same number of tiles, unless that leaves many multiprocessors without any.
    let tiles = out.div_ceil(SKINNY_TILE);
    let even = tiles.div_ceil(tiles.div_ceil(processors));
    let blocks = if even * 10 >= processors * 9 { even } else { tiles.min(processors) };
    let args = args![dst, ldd, w, out, inner, src, lds, mode, norm, eps, mul, gate, ldg, scale, rows, stages];
    // SAFETY: the caller's.
    unsafe { run(d, kernel, [blocks, 1, 1], 256, stages * stage + fixed, args) }
}

/// What becomes of a prefill product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmTo {
    /// bf16 `y`.
    Store,
    /// f32 `y`.
    F32,
    /// f32 `dst += scale · y`.
    Add,
}

/// Product of any number of rows, `inner` a multiple of 32, where no library is loaded.
///
/// # Safety
/// See the module.
pub unsafe fn gemm(
    d: &dyn Driver,
    to: GemmTo,
    dst: DevicePtr,
    ldd: u32,
    x: DevicePtr,
    ldx: u32,
    w: DevicePtr,
    rows: u32,
    out: u32,
    inner: u32,
    scale: f32,
) -> Result<()> {
    let kernel = match to {
        GemmTo::Store => "gemm_store",
        GemmTo::F32 => "gemm_f32",
        GemmTo::Add => "gemm_add",
    };
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            kernel,
            [up(rows, 128), up(out, 128), 1],
            256,
            GEMM_SHARED,
            args![dst, ldd, x, ldx, w, rows, out, inner, scale],
        )
    }
}
