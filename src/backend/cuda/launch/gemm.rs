//! GEMMs of prefill passes where no library is loaded, and of the first rows of a segment.

use super::up;
use crate::backend::Result;
use crate::backend::cuda::driver::Driver;

/// What becomes of a GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmTo {
    /// bf16 `y`.
    Store,
    /// f32 `y`.
    F32,
    /// f32 `dst += scale · y`.
    Add,
}

kernels! { "gemm.cu", device:
    /// GEMM of any number of rows: bf16, f32, or `h += scale·y`; `inner` a multiple of 32
    Gemm [gemm_store gemm_f32 gemm_add] (
        dst: Ptr("void*"), ldd: u32, x: Ptr("const bf16*"), ldx: u32, w: Ptr("const bf16*"), rows: u32, out: u32,
        inner: u32, scale: f32,
    )
    grid [up(rows, 128), up(out, 128), 1], threads 256, shared 81_920;

    /// The same with the same bits in smaller tiles; `inner` a multiple of 64
    GemmTall [gemm_tall_store gemm_tall_f32 gemm_tall_add] (
        dst: Ptr("void*"), ldd: u32, x: Ptr("const bf16*"), ldx: u32, w: Ptr("const bf16*"), rows: u32, out: u32,
        inner: u32, scale: f32,
    )
    grid [up(rows, 128), up(out, 64), 1], threads 256, shared 82_944;

    /// In smaller ones still
    GemmSquare [gemm_square_store gemm_square_f32 gemm_square_add] (
        dst: Ptr("void*"), ldd: u32, x: Ptr("const bf16*"), ldx: u32, w: Ptr("const bf16*"), rows: u32, out: u32,
        inner: u32, scale: f32,
    )
    grid [up(rows, 64), up(out, 64), 1], threads 128, shared 92_160;

    /// And in the smallest
    GemmFew [gemm_few_store gemm_few_f32 gemm_few_add] (
        dst: Ptr("void*"), ldd: u32, x: Ptr("const bf16*"), ldx: u32, w: Ptr("const bf16*"), rows: u32, out: u32,
        inner: u32, scale: f32,
    )
    grid [up(rows, 64), up(out, 32), 1], threads 256, shared 96_768;
}

/// A kind of tiles: its rows and outputs, and its launch.
struct Tiles {
    rows: u32,
    outs: u32,
    launch: unsafe fn(Gemm, &dyn Driver, GemmTo) -> Result<()>,
}

/// The launch of a row of the table: its symbols by what becomes of the result.
macro_rules! tiles {
    ($params:ident $rows:literal x $outs:literal, $store:literal $f32:literal $add:literal) => {{
        /// # Safety
        /// See the module.
        unsafe fn launch(gemm: Gemm, d: &dyn Driver, to: GemmTo) -> Result<()> {
            let Gemm { dst, ldd, x, ldx, w, rows, out, inner, scale } = gemm;
            let symbol = match to {
                GemmTo::Store => $store,
                GemmTo::F32 => $f32,
                GemmTo::Add => $add,
            };
            // SAFETY: the caller's.
            unsafe { $params { dst, ldd, x, ldx, w, rows, out, inner, scale }.launch_as(d, symbol) }
        }
        Tiles { rows: $rows, outs: $outs, launch }
    }};
}

/// From the largest, which makes most of every byte, to the smallest, which gives most multiprocessors something to do.
const TILES: [Tiles; 4] = [
    tiles!(Gemm 128 x 128, "gemm_store" "gemm_f32" "gemm_add"),
    tiles!(GemmTall 128 x 64, "gemm_tall_store" "gemm_tall_f32" "gemm_tall_add"),
    tiles!(GemmSquare 64 x 64, "gemm_square_store" "gemm_square_f32" "gemm_square_add"),
    tiles!(GemmFew 64 x 32, "gemm_few_store" "gemm_few_f32" "gemm_few_add"),
];

impl Tiles {
    /// Whether half of a tile is not left empty, and three of four multiprocessors have one to make.
    fn suit(&self, rows: u32, out: u32, multiprocessors: u32) -> bool {
        let tiles = u64::from(up(rows, self.rows)) * u64::from(up(out, self.outs));
        self.rows < 2 * rows.max(FEWEST) && tiles * 4 >= u64::from(multiprocessors) * 3
    }
}

/// Rows of the smallest tiles: fewer are not asked for.
const FEWEST: u32 = 64;

/// The largest tiles that suit, or the smallest.
fn tiles_for(rows: u32, out: u32, inner: u32, multiprocessors: u32) -> &'static Tiles {
    let [largest, .., smallest] = &TILES;
    if !inner.is_multiple_of(64) {
        return largest;
    }
    TILES.iter().find(|tiles| tiles.suit(rows, out, multiprocessors)).unwrap_or(smallest)
}

impl Gemm {
    /// Launches the kernel with this result, in the tiles that suit its shape.
    ///
    /// # Safety
    /// See the module: every pointer must span what kernels/README.md says.
    pub unsafe fn launch(&self, d: &dyn Driver, to: GemmTo) -> Result<()> {
        let tiles = tiles_for(self.rows, self.out, self.inner, d.info().multiprocessors);
        // SAFETY: the caller's.
        unsafe { (tiles.launch)(*self, d, to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_as_large_as_leaves_no_multiprocessor_without_one() {
        let of = |rows, out, inner| {
            let tiles = tiles_for(rows, out, inner, 132);
            (tiles.rows, tiles.outs)
        };
        assert_eq!(of(256, 8_192, 4_096), (128, 128));
        assert_eq!(of(256, 4_096, 4_096), (128, 64));
        assert_eq!(of(256, 2_048, 16_384), (64, 64));
        assert_eq!(of(64, 8_192, 4_096), (64, 64));
        assert_eq!(of(64, 4_096, 4_096), (64, 32));
        assert_eq!(of(65, 8_192, 4_096), (128, 64));
        assert_eq!(of(20, 73_448, 4_096), (64, 64));
        assert_eq!(of(1, 64, 64), (64, 32));
        // A width that only the largest reads.
        assert_eq!(of(1, 64, 96), (128, 128));
        assert_eq!(of(4_096, 2_048, 16_384), (128, 128));
    }
}
