//! The MLP of a prefill pass in fp8; the input of its second product skips bf16.
//!
//! A row in e4m3 has one scale, so all of its gate and up columns are needed before it is narrowed: every slice of the
//! weight in turn makes them for as many rows as there is room for. That pays where slices need not be narrowed anew
//! each time.

use super::super::driver::{GEMM_ROWS, GemmOut};
use super::super::tensors::{Buf, Matrix, Vector};
use super::super::{Cuda, launch};
use super::gemm::{Input, Narrow, Output};
use super::rows::normed_by;
use crate::backend::{Mlp, Pass, Result, Rows};

impl Cuda {
    /// Rows with gate and up columns made together, if an MLP's pass of `rows` rows should use this path.
    pub(super) fn rows_abreast(&self, mid: &Buf, mlp: &Mlp<'_, Matrix, Vector>, rows: usize) -> Result<Option<usize>> {
        let (own, inter) = (self.own_rows(mlp.down, rows), mlp.down.inner);
        let narrow = own < rows && mlp.gate_up.out == 2 * inter && mid.width == inter;
        if !narrow || !self.keeps_narrow(mlp.gate_up)? || !mlp.down.is_in_fp8() {
            return Ok(None);
        }
        let (_, bytes) = mid.whole();
        let free = bytes.saturating_sub((rows - own) * inter);
        let most = free / (2 * 2 * inter) / GEMM_ROWS * GEMM_ROWS;
        let parts = (rows - own).div_ceil(most.max(1));
        Ok((most > 0).then(|| (rows - own).div_ceil(parts).next_multiple_of(GEMM_ROWS)))
    }

    pub(super) fn mlp_in_fp8(
        &mut self,
        h: &mut Buf,
        mid: &mut Buf,
        mlp: &Mlp<'_, Matrix, Vector>,
        rows: usize,
        abreast: usize,
    ) -> Result<()> {
        let own = self.own_rows(mlp.down, rows);
        let (hidden, inter, rest) = (mlp.gate_up.inner, mlp.down.inner, rows - own);
        if own > 0 {
            let first = Pass::Prefill { rows: own };
            self.norm_gate_up(mid, h, mlp.norm, mlp.eps, mlp.gate_up, first)?;
            self.linear_add(h, mid, mlp.down, mlp.scale, first)?;
        }
        // Scales of the second product's rows follow those of the first one's.
        let all = self.prefill_rows;
        let input = self.narrow_room(|scratch| &mut scratch.narrow_input, 2 * all, hidden)?;
        self.narrow_gated(input, h, own..rows, normed_by(mlp.norm), mlp.eps, hidden)?;
        let (at, _) = mid.whole();
        let made = Narrow { values: at, scales: input.scales + all as u64 * 4 };
        let wide = at + (rest * inter) as u64;
        for first in (0..rest).step_by(abreast) {
            let count = abreast.min(rest - first);
            let read = Input::narrow(input.at_row(first, hidden), count);
            let output = Output { d: wide, ldd: 2 * inter, to: GemmOut::Bf16, scale: 1.0 };
            self.gemm(read, mlp.gate_up, None, output)?;
            let Narrow { values: dst, scales } = made.at_row(first, inter);
            let swiglu = launch::NarrowSwiglu { dst, scales, gu: wide, inter, rows: count };
            // SAFETY: `mid` has room for so many rows of both; checked where `abreast` was found.
            unsafe { swiglu.launch(self.device.driver())? };
        }
        let output = Output { d: h.ptr(), ldd: h.width, to: GemmOut::AddF32, scale: mlp.scale }.at_row(own);
        self.gemm(Input::narrow(made, rest), mlp.down, None, output)
    }
}
