//! GEMMs of prefill passes where no library is loaded, and of the first rows of a segment.

use super::gemm_hopper::{HopperGemm, HopperOut, is_hopper};
use super::*;
use crate::backend::Form;
use crate::backend::cuda::driver::GemmOut;

operands! {
    /// Of the GEMMs in every size of tiles.
    Gemm:
    Ptr dst x w;
    u32 ldd ldx rows out inner;
    f32 scale;
}

/// Kernels of every size of tiles, which have the same parameters and bits.
macro_rules! gemm_kernels {
    ($($what:literal $params:ident [$($symbol:ident)+] tiles [$rows:literal, $outs:literal], threads $threads:literal,
        shared $shared:literal;)+) => {
        kernels! { device; "gemm.cu": $(
            #[doc = $what]
            $params of Gemm [$($symbol)+] (
                dst: Ptr("void*"), ldd: u32, x: Ptr("const bf16*"), ldx: u32, w: Ptr("const bf16*"), rows: u32, out: u32,
                inner: u32, scale: f32,
            )
            grid [up(rows, $rows), up(out, $outs), 1], threads $threads, shared $shared;
        )+ }

        /// From the largest, which reuses each byte most, to the smallest, which occupies most multiprocessors.
        const TILES: &[Tiles] = &[$(Tiles {
            rows: $rows,
            outs: $outs,
            symbols: $params::SYMBOLS,
            // SAFETY: the caller's.
            launch: |gemm: Gemm, d: &dyn Driver, symbol| unsafe { $params(gemm).launch_as(d, symbol) },
        }),+];
    };
}

gemm_kernels! {
    "GEMM of any number of rows: bf16, f32, or `h += scale·y`; `inner` a multiple of 32"
    GemmLarge [gemm_store gemm_f32 gemm_add] tiles [128, 128], threads 256, shared 81_920;
    "The same with `inner` a multiple of 64, as the following"
    GemmTall [gemm_tall_store gemm_tall_f32 gemm_tall_add] tiles [128, 64], threads 256, shared 82_944;
    "The same in smaller tiles"
    GemmSquare [gemm_square_store gemm_square_f32 gemm_square_add] tiles [64, 64], threads 128, shared 92_160;
    "The same in the smallest tiles"
    GemmFew [gemm_few_store gemm_few_f32 gemm_few_add] tiles [64, 32], threads 256, shared 96_768;
}

struct Tiles {
    rows: usize,
    outs: usize,
    /// Indexed by [`GemmOut`].
    symbols: &'static [&'static str],
    launch: unsafe fn(Gemm, &dyn Driver, &'static str) -> Result<()>,
}

impl Tiles {
    /// Whether at most half of a tile is empty, and three of four multiprocessors have a tile.
    fn suit(&self, rows: usize, out: usize, multiprocessors: usize) -> bool {
        let tiles = up(rows, self.rows) * up(out, self.outs);
        self.rows < 2 * rows.max(FEWEST) && tiles * 4 >= multiprocessors * 3
    }
}

const FEWEST: usize = 64;

fn tiles_for(rows: usize, out: usize, inner: usize, multiprocessors: usize) -> &'static Tiles {
    let (largest, smallest) = (&TILES[0], &TILES[TILES.len() - 1]);
    if !inner.is_multiple_of(64) {
        return largest;
    }
    TILES.iter().find(|tiles| tiles.suit(rows, out, multiprocessors)).unwrap_or(smallest)
}

impl Gemm {
    /// Launches the kernel with this result, in the tile size for its shape. `ldx` is `inner`.
    ///
    /// # Safety
    /// See the module: every pointer must have the extent in the row.
    pub unsafe fn launch(&self, d: &dyn Driver, to: GemmOut) -> Result<()> {
        if is_hopper(d.info()) && self.inner.is_multiple_of(64) {
            let Gemm { dst, ldd, x, w, rows, out, inner, scale, .. } = *self;
            let (form, to) = (Form::Bf16, HopperOut::Gemm(to));
            // SAFETY: the caller's.
            return unsafe { HopperGemm { x, w, form, dst, ldd, rows, out, inner, to, scale }.launch(d) };
        }
        let tiles = tiles_for(self.rows, self.out, self.inner, d.info().multiprocessors);
        // SAFETY: the caller's.
        unsafe { (tiles.launch)(*self, d, tiles.symbols[to as usize]) }
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
        // A width that only the largest tiles support.
        assert_eq!(of(1, 64, 96), (128, 128));
        assert_eq!(of(4_096, 2_048, 16_384), (128, 128));
    }
}
