//! GEMMs of prefill passes on Hopper: rows in bf16 with a weight in any form.

use super::*;
use crate::backend::cuda::driver::{GemmOut, TileMap};
use crate::backend::{BackendError, Form};

operands! {
    /// Of the GEMMs in both sizes of tiles.
    HopperOperands:
    u32 result;
    Ptr dst w;
    TensorMap x plain;
    u32 ldd detail rows out inner stages;
    f32 scale;
}

kernels! { device; "gemm_hopper.cu":
    /// Rows of `x` with their columns in the order in which packed weights are multiplied; `blocks` of 32 columns
    TurnRows [turn_rows] (dst: Ptr("bf16*"), src: Ptr("const bf16*"), blocks: u32)
    grid [up(blocks, 256), 1, 1], threads 256, shared 0;

    /// GEMM of any number of rows, or SwiGLU of one, in tiles of 256 weight rows
    HopperWide of HopperOperands [
        hopper_bf16 hopper_int8 hopper_int4 hopper_int5 hopper_int6 hopper_group4 hopper_nvfp4
    ] (
        result: u32, dst: Ptr("void*"), ldd: u32, x: TensorMap, plain: TensorMap, w: Ptr("const unsigned char*"),
        detail: u32, rows: u32, out: u32, inner: u32, scale: f32, stages: u32,
    )
    grid [up(rows, TILE_ROWS), up(out, WIDE), 1], threads 384, shared device.shared_limit;

    /// The same in tiles of 128 weight rows
    HopperNarrow of HopperOperands [
        hopper_bf16_narrow hopper_int8_narrow hopper_int4_narrow hopper_int5_narrow hopper_int6_narrow
        hopper_group4_narrow hopper_nvfp4_narrow
    ] (
        result: u32, dst: Ptr("void*"), ldd: u32, x: TensorMap, plain: TensorMap, w: Ptr("const unsigned char*"),
        detail: u32, rows: u32, out: u32, inner: u32, scale: f32, stages: u32,
    )
    grid [up(rows, TILE_ROWS), up(out, NARROW), 1], threads 384, shared device.shared_limit;
}

/// Rows of a tile, and weight rows of both tiles.
const TILE_ROWS: usize = 128;
const WIDE: usize = 256;
const NARROW: usize = 128;
/// Shared memory of a block: two stages of the largest form in wide tiles and their barriers.
const LEAST_SHARED: usize = 200 << 10;

/// Whether the device has the tensor cores and the copy engine that these kernels use.
pub fn is_hopper(info: &DeviceInfo) -> bool {
    info.capability == 90 && info.brings_tiles && info.shared_limit >= LEAST_SHARED
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopperOut {
    Gemm(GemmOut),
    /// SwiGLU in bf16, half as many columns.
    Swiglu,
}

/// `[rows, inner] × [out, inner]ᵀ`; for a packed weight `x` has been turned by [`TurnRows`].
#[derive(Clone, Copy, Debug)]
pub struct HopperGemm {
    pub x: DevicePtr,
    pub w: DevicePtr,
    pub form: Form,
    pub dst: DevicePtr,
    pub ldd: usize,
    pub rows: usize,
    pub out: usize,
    pub inner: usize,
    pub to: HopperOut,
    pub scale: f32,
}

impl HopperGemm {
    /// # Safety
    /// See the module: every pointer must have the extent in the row.
    pub unsafe fn launch(&self, d: &dyn Driver) -> Result<()> {
        let HopperGemm { x, w, form, dst, ldd, rows, out, inner, to, scale } = *self;
        let narrow = is_narrow(rows, out, d.info().multiprocessors);
        let outs = if narrow { NARROW } else { WIDE };
        let stage = match form.row() {
            None => (TILE_ROWS + outs) * 128,
            Some(row) => TILE_ROWS * 256 + outs / 32 * row.unit_bytes,
        };
        let map = |at, rows| {
            d.tensor_map(&TileMap { at, second: inner as u64 * 2, width: inner, rows, tile: inner, tiles: 1 })
        };
        let operands = HopperOperands {
            result: match to {
                HopperOut::Gemm(to) => to as usize,
                HopperOut::Swiglu => 3,
            },
            dst,
            w,
            x: map(x, rows)?,
            plain: if form == Form::Bf16 { map(w, out)? } else { TensorMap::default() },
            ldd,
            detail: super::packed::detail(form),
            rows,
            out,
            inner,
            // Two barriers of 8 bytes each.
            stages: d.info().shared_limit / (stage + 16),
            scale,
        };
        let (symbols, end) = if narrow { (HopperNarrow::SYMBOLS, "_narrow") } else { (HopperWide::SYMBOLS, "") };
        let name = form.name();
        let is = |symbol: &str| symbol.strip_prefix("hopper_").and_then(|s| s.strip_suffix(end)) == Some(name);
        let Some(symbol) = symbols.iter().copied().find(|symbol| is(symbol)) else {
            return Err(BackendError::Unsupported(format!("no GEMM for weights in the form {name}")));
        };
        // SAFETY: the caller's.
        unsafe {
            if narrow { HopperNarrow(operands).launch_as(d, symbol) } else { HopperWide(operands).launch_as(d, symbol) }
        }
    }
}

/// Whether narrow tiles take less time in all: a round of them takes 55 % of one of wide tiles (measured on an H200).
fn is_narrow(rows: usize, out: usize, multiprocessors: usize) -> bool {
    let rounds = |outs| (up(rows, TILE_ROWS) * up(out, outs)).div_ceil(multiprocessors.max(1));
    rounds(NARROW) * 55 < rounds(WIDE) * 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_narrow_where_wide_ones_leave_multiprocessors_idle() {
        let of = |rows, out| is_narrow(rows, out, 132);
        assert!(!of(512, 32_768) && !of(64, 32_768) && !of(1_024, 4_096));
        assert!(of(512, 4_096) && of(256, 20_480) && of(1, 4_096));
    }

    #[test]
    fn only_hopper_has_these_kernels() {
        let h200 = DeviceInfo { capability: 90, brings_tiles: true, shared_limit: 227 << 10, ..DeviceInfo::default() };
        assert!(is_hopper(&h200));
        assert!(!is_hopper(&DeviceInfo { shared_limit: 99 << 10, ..h200.clone() }));
        assert!(!is_hopper(&DeviceInfo { capability: 100, ..h200.clone() }));
        assert!(!is_hopper(&DeviceInfo { brings_tiles: false, ..h200 }));
    }
}
