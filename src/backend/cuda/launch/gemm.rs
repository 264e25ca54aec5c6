//! GEMMs of prefill passes where no library is loaded.

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
}

impl Gemm {
    /// Launches the kernel with this result.
    ///
    /// # Safety
    /// See the module: every pointer must span what kernels/README.md says.
    pub unsafe fn launch(&self, d: &dyn Driver, to: GemmTo) -> Result<()> {
        let symbol = match to {
            GemmTo::Store => "gemm_store",
            GemmTo::F32 => "gemm_f32",
            GemmTo::Add => "gemm_add",
        };
        // SAFETY: the caller's.
        unsafe { self.launch_as(d, symbol) }
    }
}
