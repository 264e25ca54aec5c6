//! GEMMs of 1..=16 rows.

use super::skinny_group4::{self, SkinnyGroup4};
use super::skinny_int4::{self, SkinnyInt4};
use super::skinny_int8::{self, SkinnyInt8};
use crate::backend::cuda::driver::{DevicePtr, Driver};
use crate::backend::{Form, Result};

/// Most rows that a skinny GEMM norms or gates itself: more take longer than a kernel before it.
const STAGED_ROWS: u32 = 2;

/// Weight rows a block of a skinny GEMM works on at a time.
const SKINNY_TILE: u32 = 32;
/// Warps of a block.
const WARPS: u32 = 8;

/// What becomes of a skinny GEMM.
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

/// Where a skinny GEMM's activations come from; `ld` is a row's stride in elements.
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

/// The weight of a skinny GEMM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SkinnyWeight {
    /// Its address.
    pub w: DevicePtr,
    /// How it lies there.
    pub form: Form,
    /// Rows.
    pub out: u32,
    /// Columns: a multiple of 64, of 128 for packed forms.
    pub inner: u32,
}

impl SkinnyTo {
    /// Bytes of a value of the result.
    pub fn value_bytes(self) -> u64 {
        match self {
            SkinnyTo::Store | SkinnyTo::Swiglu => 2,
            SkinnyTo::Add | SkinnyTo::Logits => 4,
        }
    }
}

/// What the ring needs to know of a form: bytes of a warp's stage, and columns of it.
fn stage_of(form: Form) -> (u32, u32) {
    let detail = form.row().map_or(0, |row| row.detail);
    match form {
        Form::Bf16 => (bf16_stage(detail), 64),
        Form::Int8 => (skinny_int8::stage(detail), 128),
        Form::Int4 => (skinny_int4::stage(detail), 128),
        Form::Group4(_) => (skinny_group4::stage(detail), 128),
    }
}

/// Bytes of a warp's stage of bf16 weights.
fn bf16_stage(_detail: u32) -> u32 {
    SKINNY_TILE * 128
}

/// Can a skinny GEMM norm or gate its rows on the way? If not, run [`super::NormRows`] or [`super::GateRows`] before and pass
/// [`SkinnyFrom::Ready`]: the bits are the same. It can if that leaves room for a ring of two stages.
pub fn stages_rows(d: &dyn Driver, form: Form, rows: u32, inner: u32) -> bool {
    let (weights, columns) = stage_of(form);
    rows <= STAGED_ROWS && shared_bytes(weights, columns, [2, rows, inner, 1]) <= d.info().shared_limit
}

/// The warps' parts of a tile.
fn parts_bytes(rows: u32) -> u32 {
    if rows > 8 { 16384 } else { 8192 }
}

/// Shared memory that is no ring; mode 0 is ready rows, the others are staged, padded.
fn fixed_bytes(rows: u32, inner: u32, mode: u32) -> u32 {
    parts_bytes(rows) + if mode == 0 { 0 } else { rows * (inner + 32) * 2 }
}

/// A stage of the ring: the weights of all warps, and ready rows.
fn stage_bytes(weights: u32, columns: u32, rows: u32, mode: u32) -> u32 {
    let ready = if mode == 0 { columns / 64 * if rows > 8 { 2048 } else { 1024 } } else { 0 };
    WARPS * (weights + ready)
}

/// Of a block, for `[stages, rows, inner, mode]`.
pub(super) fn shared_bytes(weights: u32, columns: u32, [stages, rows, inner, mode]: [u32; 4]) -> u32 {
    stages * stage_bytes(weights, columns, rows, mode) + fixed_bytes(rows, inner, mode)
}

/// As many blocks as give every one the same number of tiles, unless that leaves many multiprocessors without any.
pub(super) fn shares(out: u32, multiprocessors: u32) -> u32 {
    let processors = multiprocessors.max(1);
    let tiles = out.div_ceil(SKINNY_TILE);
    let even = tiles.div_ceil(tiles.div_ceil(processors));
    if even * 10 >= processors * 9 { even } else { tiles.min(processors) }
}

skinny_kernels! {
    "skinny.cu",
    "GEMM of 1..8 or 9..16 rows, `inner` a multiple of 64. store: bf16; swiglu: bf16, `out = 2·inter`; add: `h += scale·y` f32; logits: f32. mode 0: `src` bf16, ready; 1 (not add): `norm_rows` of `src` f32; 2 (add): `gate_rows` of `src` f32; modes 1 and 2 up to 2 rows. `w` is bf16; `detail` and `row_scales` are for other forms",
    Skinny [
        skinny_store_8 skinny_store_16 skinny_swiglu_8 skinny_swiglu_16 skinny_add_8 skinny_add_16 skinny_logits_8
        skinny_logits_16
    ],
    weights super::skinny::bf16_stage, columns 64
}

/// GEMM of 1..=16 rows with a weight `[out, inner]`.
///
/// # Safety
/// See the module.
pub unsafe fn skinny(
    d: &dyn Driver,
    to: SkinnyTo,
    dst: DevicePtr,
    ldd: u32,
    weight: SkinnyWeight,
    from: SkinnyFrom,
    scale: f32,
    rows: u32,
) -> Result<()> {
    let (weights, columns) = stage_of(weight.form);
    let limit = d.info().shared_limit;
    if let SkinnyFrom::Ready { x, ld } = from
        && rows > 8
        && shared_bytes(weights, columns, [2, rows, weight.inner, 0]) > limit
    {
        // Where shared memory is small the rows go in two halves: the weights are read twice, the bits are the same.
        let second = SkinnyFrom::Ready { x: x + 8 * 2 * u64::from(ld), ld };
        let behind = dst + 8 * to.value_bytes() * u64::from(ldd);
        // SAFETY: the caller's; both halves lie inside.
        return unsafe {
            skinny(d, to, dst, ldd, weight, from, scale, 8)?;
            skinny(d, to, behind, ldd, weight, second, scale, rows - 8)
        };
    }
    let (src, lds, mode, norm, eps, mul, gate, ldg) = match from {
        SkinnyFrom::Ready { x, ld } => (x, ld, 0u32, 0, 0.0, 1.0, 0, 0),
        SkinnyFrom::Norm { h, ld, norm, eps, mul } => (h, ld, 1, norm, eps, mul, 0, 0),
        SkinnyFrom::Gate { o, ld, norm, eps, gate, ldg } => (o, ld, 2, norm, eps, 1.0, gate, ldg),
    };
    let SkinnyWeight { w, form, out, inner } = weight;
    // The ring gets all the shared memory that the warps' parts and the staged rows leave; ready rows travel in it.
    let room = limit.saturating_sub(fixed_bytes(rows, inner, mode));
    let stages = (room / stage_bytes(weights, columns, rows, mode)).clamp(1, 6);
    let (detail, row_scales) = (form.row().map_or(0, |row| row.detail), 0);
    macro_rules! launch {
        ($params:ident $prefix:literal) => {{
            let symbol = match (to, rows > 8) {
                (SkinnyTo::Store, false) => concat!($prefix, "_store_8"),
                (SkinnyTo::Store, true) => concat!($prefix, "_store_16"),
                (SkinnyTo::Swiglu, false) => concat!($prefix, "_swiglu_8"),
                (SkinnyTo::Swiglu, true) => concat!($prefix, "_swiglu_16"),
                (SkinnyTo::Add, false) => concat!($prefix, "_add_8"),
                (SkinnyTo::Add, true) => concat!($prefix, "_add_16"),
                (SkinnyTo::Logits, false) => concat!($prefix, "_logits_8"),
                (SkinnyTo::Logits, true) => concat!($prefix, "_logits_16"),
            };
            let params = $params {
                dst,
                ldd,
                w,
                out,
                inner,
                detail,
                row_scales,
                src,
                lds,
                mode,
                norm,
                eps,
                mul,
                gate,
                ldg,
                scale,
                rows,
                stages,
            };
            // SAFETY: the caller's.
            unsafe { params.launch_as(d, symbol) }
        }};
    }
    match form {
        Form::Bf16 => launch!(Skinny "skinny"),
        Form::Int8 => launch!(SkinnyInt8 "int8"),
        Form::Int4 => launch!(SkinnyInt4 "int4"),
        Form::Group4(_) => launch!(SkinnyGroup4 "group4"),
    }
}
