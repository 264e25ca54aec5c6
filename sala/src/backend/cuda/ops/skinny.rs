//! GEMMs of verify passes: 1 to 16 rows, by the program's own kernels, for every form of a weight.

use super::super::driver::DevicePtr;
use super::super::launch::{self, NextRows, SkinnyRows, SkinnyTo, SkinnyWeight};
use super::super::tensors::Matrix;
use super::super::{Cuda, shape, u32_of};
use super::gemm::check_width;
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
        check_width(w)?;
        let (ldd, rows) = (u32_of(ldd)?, u32_of(rows)?);
        if form == SkinnyTo::Swiglu && w.parts.len() != 1 {
            return Err(shape("norm_gate_up", "a weight in one form", format!("{} parts", w.parts.len())));
        }
        let (mut dst, mut column) = (dst, 0);
        for weight in self.skinny_weights(form, w)? {
            let next = next.rest(0, column);
            // SAFETY: the callers have checked sizes.
            unsafe { launch::skinny(self.device.driver(), form, dst, ldd, weight, from, next, scale, rows)? };
            dst += u64::from(weight.out) * form.value_bytes();
            column += weight.out;
        }
        Ok(())
    }

    /// The launches of a skinny GEMM: one per part, or one for two parts that a kernel combines.
    fn skinny_weights(&self, to: SkinnyTo, w: &Matrix) -> Result<Vec<SkinnyWeight>> {
        let inner = u32_of(w.inner)?;
        let mut weights: Vec<SkinnyWeight> = Vec::new();
        for part in &w.parts {
            let out = u32_of(part.rows)?;
            let next = SkinnyWeight { w: part.memory.ptr(), form: part.form, out, inner, second: None };
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
