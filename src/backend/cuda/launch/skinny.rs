//! Products of 1..=16 rows.

use crate::backend::Result;
use crate::backend::cuda::driver::{DevicePtr, Driver};

/// Most rows that a skinny product norms or gates itself: more take longer than a kernel before it.
const STAGED_ROWS: u32 = 2;

/// Weight rows a block of a skinny product works on at a time, and bytes of a stage of its ring.
const SKINNY_TILE: u32 = 32;

const SKINNY_STAGE: u32 = SKINNY_TILE * 1024;

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

/// Can a skinny product norm or gate its rows on the way? If not, run [`super::NormRows`] or [`super::GateRows`] before and pass
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

/// Shared memory that is no ring; mode 0 is ready rows.
fn fixed_bytes(rows: u32, inner: u32, mode: u32) -> u32 {
    parts_bytes(rows) + if mode == 0 { 0 } else { staged_bytes(rows, inner) }
}

/// A stage of the ring.
fn stage_bytes(rows: u32, mode: u32) -> u32 {
    SKINNY_STAGE + if mode == 0 { ready_bytes(rows) } else { 0 }
}

/// As many blocks as give every one the same number of tiles, unless that leaves many multiprocessors without any.
fn shares(out: u32, multiprocessors: u32) -> u32 {
    let processors = multiprocessors.max(1);
    let tiles = out.div_ceil(SKINNY_TILE);
    let even = tiles.div_ceil(tiles.div_ceil(processors));
    if even * 10 >= processors * 9 { even } else { tiles.min(processors) }
}

kernels! { "skinny.cu", device:
    /// Product of 1..8 or 9..16 rows, `inner` a multiple of 64. store: bf16; swiglu: bf16, `out = 2·inter`; add:
    /// `h += scale·y` f32; logits: f32. mode 0: `src` bf16, ready; 1 (not add): `norm_rows` of `src` f32; 2 (add): `gate_rows`
    /// of `src` f32; modes 1 and 2 up to 2 rows
    Skinny [
        skinny_store_8 skinny_store_16 skinny_swiglu_8 skinny_swiglu_16 skinny_add_8 skinny_add_16 skinny_logits_8
        skinny_logits_16
    ] (
        dst: Ptr("void*"), ldd: u32, w: Ptr("const bf16*"), out: u32, inner: u32, src: Ptr("const void*"), lds: u32,
        mode: u32, norm: Ptr("const float*"), eps: f32, mul: f32, gate: Ptr("const bf16*"), ldg: u32, scale: f32,
        rows: u32, stages: u32,
    )
    grid [shares(out, device.multiprocessors), 1, 1],
    threads 256,
    shared stages * stage_bytes(rows, mode) + fixed_bytes(rows, inner, mode);
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
    let symbol = match (to, rows > 8) {
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
    let stages = (limit.saturating_sub(fixed_bytes(rows, inner, mode)) / stage_bytes(rows, mode)).clamp(2, 6);
    let params = Skinny { dst, ldd, w, out, inner, src, lds, mode, norm, eps, mul, gate, ldg, scale, rows, stages };
    // SAFETY: the caller's.
    unsafe { params.launch_as(d, symbol) }
}
