//! GEMMs of verify passes: 1 to 16 rows, by the program's own kernels, for every form of a weight.

use super::super::driver::DevicePtr;
use super::super::launch::{self, NextRows, SkinnyRows, SkinnyTo, SkinnyWeight};
use super::super::tensors::Matrix;
use super::super::{Cuda, check_shape};
use super::check_width;
use crate::backend::Result;

impl Cuda {
    pub(in crate::backend::cuda) fn skinny(
        &mut self,
        form: SkinnyTo,
        dst: DevicePtr,
        ldd: usize,
        w: &Matrix,
        from: SkinnyRows,
        next: NextRows,
        scale: f32,
        rows: usize,
    ) -> Result<()> {
        check_width(w.inner)?;
        let fits = form != SkinnyTo::Swiglu || w.parts.len() == 1;
        check_shape(fits, "norm_gate_up", "a weight in one form", format_args!("{} parts", w.parts.len()))?;
        let (mut dst, mut column) = (dst, 0);
        for weight in self.skinny_weights(form, w)? {
            let next = next.rest(0, column);
            // SAFETY: the callers have checked sizes.
            unsafe { launch::skinny(self.device.driver(), form, dst, ldd, weight, from, next, scale, rows)? };
            dst += weight.out as u64 * form.value_bytes();
            column += weight.out;
        }
        Ok(())
    }

    /// The launches of a skinny GEMM: one per part, or one for two parts that a kernel combines.
    fn skinny_weights(&self, to: SkinnyTo, w: &Matrix) -> Result<Vec<SkinnyWeight>> {
        let mut weights: Vec<SkinnyWeight> = Vec::new();
        for part in &w.parts {
            let (w, inner) = (part.memory.ptr(), w.inner);
            let next = SkinnyWeight { w, form: part.form, out: part.rows, inner, second: None };
            match weights.last_mut() {
                Some(last) if last.second.is_none() => match launch::joined(self.device.driver(), to, *last, next) {
                    Some(both) => *last = both,
                    None => weights.push(next),
                },
                _ => weights.push(next),
            }
        }
        Ok(weights)
    }
}
