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

/// Up to so many rows, small tiles give more multiprocessors work than large ones, and a weight is read as often.
const FEW_ROWS: u32 = 64;

kernels! { "gemm.cu", device:
    /// GEMM of any number of rows: bf16, f32, or `h += scale·y`; `inner` a multiple of 32
    Gemm [gemm_store gemm_f32 gemm_add] (
        dst: Ptr("void*"), ldd: u32, x: Ptr("const bf16*"), ldx: u32, w: Ptr("const bf16*"), rows: u32, out: u32,
        inner: u32, scale: f32,
    )
    grid [up(rows, 128), up(out, 128), 1], threads 256, shared 81_920;

    /// The same with the same bits, in tiles for few rows; `inner` a multiple of 64
    GemmFew [gemm_few_store gemm_few_f32 gemm_few_add] (
        dst: Ptr("void*"), ldd: u32, x: Ptr("const bf16*"), ldx: u32, w: Ptr("const bf16*"), rows: u32, out: u32,
        inner: u32, scale: f32,
    )
    grid [up(rows, 64), up(out, 32), 1], threads 256, shared 96_768;
}

impl Gemm {
    /// Launches the kernel with this result, in the tiles that suit the number of rows.
    ///
    /// # Safety
    /// See the module: every pointer must span what kernels/README.md says.
    pub unsafe fn launch(&self, d: &dyn Driver, to: GemmTo) -> Result<()> {
        let Gemm { dst, ldd, x, ldx, w, rows, out, inner, scale } = *self;
        if rows <= FEW_ROWS && inner.is_multiple_of(64) {
            let symbol = match to {
                GemmTo::Store => "gemm_few_store",
                GemmTo::F32 => "gemm_few_f32",
                GemmTo::Add => "gemm_few_add",
            };
            // SAFETY: the caller's.
            return unsafe { GemmFew { dst, ldd, x, ldx, w, rows, out, inner, scale }.launch_as(d, symbol) };
        }
        let symbol = match to {
            GemmTo::Store => "gemm_store",
            GemmTo::F32 => "gemm_f32",
            GemmTo::Add => "gemm_add",
        };
        // SAFETY: the caller's.
        unsafe { self.launch_as(d, symbol) }
    }
}
