//! GEMMs of a pass: staged, normed or gated on the way, by a library or by our own kernels.

use std::ops::Range;

use super::super::device::{Account, DeviceBuffer};
use super::super::driver::{DevicePtr, GEMM_ROWS, Gemm, GemmOut, Scales};
use super::super::launch::{self, GemmTo, SkinnyFrom, SkinnyTo, SkinnyWeight};
use super::super::tensors::{Buf, Matrix, Vector};
use super::super::{Cuda, limits, shape, u32_of};
use crate::backend::{BackendError, MAX_VERIFY_ROWS, Result, fp8};

/// Scratch of prefill passes, made when first needed and kept.
#[derive(Default)]
pub(in crate::backend::cuda) struct Scratch {
    /// Inputs of GEMMs, bf16.
    input: Option<DeviceBuffer>,
    /// Gate and up columns before SwiGLU, bf16.
    pub(in crate::backend::cuda) wide: Option<DeviceBuffer>,
    /// The packed weight of the GEMM under way, bf16.
    pub(in crate::backend::cuda) widened: Option<DeviceBuffer>,
    /// The weight and the input of the GEMM under way in e4m3, with their scales.
    pub(in crate::backend::cuda) narrow_weight: Option<DeviceBuffer>,
    pub(in crate::backend::cuda) narrow_input: Option<DeviceBuffer>,
    /// Rows of a packed table, bf16, and 0, 1, 2, … to look them up by.
    pub(in crate::backend::cuda) gathered: Option<DeviceBuffer>,
    pub(in crate::backend::cuda) ascending: Option<DeviceBuffer>,
    /// Set by packing where a value is not finite.
    pub(in crate::backend::cuda) not_finite: Option<DeviceBuffer>,
}

/// How many of a pass's `rows` the program's own kernel reads, where `read` rows of the segment came before: a short prompt never waits
/// for the library, whose start takes longer than all of its GEMMs. The kernel knows bf16 alone.
pub(super) fn own_rows(read: usize, rows: usize) -> usize {
    fp8::plain_rows(read, rows)
}

/// Where scales may begin.
const ALIGNED: usize = 256;

/// A weight as the GEMMs of a pass read it.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    /// bf16 `[out, inner]`.
    plain: DevicePtr,
    /// The same for rows that are read in fp8.
    narrow: Option<Narrow>,
}

/// Rows in e4m3, and a scale for each.
#[derive(Clone, Copy)]
pub(in crate::backend::cuda) struct Narrow {
    pub(in crate::backend::cuda) values: DevicePtr,
    pub(in crate::backend::cuda) scales: DevicePtr,
}

/// What a GEMM of any number of rows is made of.
#[derive(Clone, Copy)]
pub(super) struct GemmShape {
    pub(super) w: Operand,
    pub(super) out: usize,
    pub(super) inner: usize,
    pub(super) ldd: usize,
    pub(super) to: GemmOut,
    pub(super) scale: f32,
}

impl Cuda {
    /// One GEMM of a prefill pass; `x` is bf16 `[rows, inner]`, dense. The first rows of a segment go through the program's
    /// own kernel, the rest through the library: which one is a function of the row's place in its segment, never of time.
    pub(in crate::backend::cuda) fn gemm(
        &mut self,
        x: DevicePtr,
        w: &Matrix,
        d: DevicePtr,
        ldd: usize,
        rows: usize,
        to: GemmOut,
        scale: f32,
    ) -> Result<()> {
        check_width(w)?;
        // Where anything is read in fp8, every packed weight but one of gate and up that is not has the memory of their columns.
        let beside = w.in_fp8 || self.scratch.narrow_weight.is_some();
        let operand = self.operand(w, rows, beside.then_some(0))?;
        if operand.narrow.is_some() && (self.options.own_gemm || ldd != w.out) {
            return Err(shape("gemm", format!("a library's product in fp8 of {} columns", w.out), ldd));
        }
        self.gemm_of(x, d, 0..rows, GemmShape { w: operand, out: w.out, inner: w.inner, ldd, to, scale })
    }

    /// A weight as a prefill pass of `rows` rows reads it. Good until the next call. `beside`: it may be unpacked in the memory of gate
    /// and up columns, from that byte on.
    pub(super) fn operand(&mut self, w: &Matrix, rows: usize, beside: Option<usize>) -> Result<Operand> {
        let plain = match beside {
            Some(above) => self.widened_beside(w, above)?,
            None => self.widened(w)?,
        };
        let narrow = match w.in_fp8 && own_rows(self.segment_read, rows) < rows {
            true => {
                let at = self.narrow_room(|scratch| &mut scratch.narrow_weight, w.out, w.inner)?;
                self.narrow(at, plain, w.out, w.inner)?;
                Some(at)
            }
            false => None,
        };
        Ok(Operand { plain, narrow })
    }

    /// bf16 rows `[rows, n]` in e4m3 ([`fp8::narrow`]).
    pub(in crate::backend::cuda) fn narrow(&self, to: Narrow, src: DevicePtr, rows: usize, n: usize) -> Result<()> {
        let Narrow { values, scales } = to;
        // SAFETY: the callers have made room for so many rows and have them.
        unsafe {
            launch::NarrowRows { dst: values, scales, src, n: u32_of(n)?, rows: u32_of(rows)? }
                .launch(self.device.driver())
        }
    }

    /// Scratch for rows `[rows, n]` in e4m3.
    pub(in crate::backend::cuda) fn narrow_room(
        &mut self,
        slot: impl Fn(&mut Scratch) -> &mut Option<DeviceBuffer>,
        rows: usize,
        n: usize,
    ) -> Result<Narrow> {
        let behind = (rows * n).next_multiple_of(ALIGNED);
        let values = self.room(slot, behind + rows * 4)?;
        Ok(Narrow { values, scales: values + behind as u64 })
    }

    /// The same for rows `of` of the pass, the first of which are at `x` and `d`; a multiple of [`GEMM_ROWS`] lies before them.
    pub(super) fn gemm_of(&mut self, x: DevicePtr, d: DevicePtr, of: Range<usize>, shape: GemmShape) -> Result<()> {
        let GemmShape { w, out, inner, ldd, to, scale } = shape;
        let rows = of.len();
        let own = match self.options.own_gemm || ldd != out {
            true => rows,
            false => own_rows(self.segment_read + of.start, rows),
        };
        self.launch_gemm(x, d, own, shape)?;
        if own == rows {
            return Ok(());
        }
        let (x, d) = (x + (own * inner * 2) as u64, d + (own * ldd) as u64 * to.value_bytes());
        let (mut operands, mut scales) = ((x, w.plain), None);
        if let Some(weight) = w.narrow {
            let input = self.narrow_room(|scratch| &mut scratch.narrow_input, self.prefill_rows, inner)?;
            self.narrow(input, x, rows - own, inner)?;
            (operands, scales) = ((input.values, weight.values), Some(Scales { x: input.scales, w: weight.scales }));
        }
        // Rows beyond the pass are in the buffers and mean nothing; rounding keeps to row counts that were proved.
        let rounded = (rows - own).next_multiple_of(GEMM_ROWS);
        let gemm = Gemm { x: operands.0, w: operands.1, scales, d, rows: rounded, out, inner, to, scale };
        // SAFETY: buffers of a pass have room for `prefill_rows`, a multiple of the rounding, as `own` is; sizes are checked
        // by the callers.
        if unsafe { self.device.driver().gemm(&gemm)? } {
            return Ok(());
        }
        match w.narrow {
            // Another result than the one that was promised is none.
            Some(_) => Err(BackendError::Unsupported(format!("no product in fp8 for weights of {out} x {inner}"))),
            None => self.launch_gemm(x, d, rows - own, shape),
        }
    }

    /// The same by the program's own kernel alone, which may be captured.
    pub(in crate::backend::cuda) fn own_gemm(
        &mut self,
        x: DevicePtr,
        w: &Matrix,
        d: DevicePtr,
        ldd: usize,
        rows: usize,
        to: GemmOut,
        scale: f32,
    ) -> Result<()> {
        check_width(w)?;
        let operand = Operand { plain: self.widened(w)?, narrow: None };
        self.launch_gemm(x, d, rows, GemmShape { w: operand, out: w.out, inner: w.inner, ldd, to, scale })
    }

    fn launch_gemm(&self, x: DevicePtr, d: DevicePtr, rows: usize, shape: GemmShape) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let form = match shape.to {
            GemmOut::Bf16 => GemmTo::Store,
            GemmOut::F32 => GemmTo::F32,
            GemmOut::AddF32 => GemmTo::Add,
        };
        let (ldd, rows, out, inner) = (u32_of(shape.ldd)?, u32_of(rows)?, u32_of(shape.out)?, u32_of(shape.inner)?);
        // SAFETY: the callers have checked sizes; the buffers live as long as the backend's work.
        unsafe {
            launch::Gemm { dst: d, ldd, x, ldx: inner, w: shape.w.plain, rows, out, inner, scale: shape.scale }
                .launch(self.device.driver(), form)
        }
    }

    /// `norm_rows` of `h` into the input scratch.
    pub(super) fn normed(&mut self, h: &Buf, norm: &Vector, eps: f32, rows: usize) -> Result<DevicePtr> {
        let n = norm.n;
        let input = self.input_room(n)?;
        let (ld, rows) = (u32_of(n)?, u32_of(rows)?);
        // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
        unsafe {
            launch::NormRows {
                dst: input,
                ldd: ld,
                src: h.ptr(),
                lds: u32_of(h.width)?,
                norm: norm.memory.ptr(),
                n: ld,
                eps,
                mul: 1.0,
                rows,
            }
            .launch(self.device.driver())?
        };
        Ok(input)
    }

    /// A GEMM of 1..=16 rows. Inputs that the kernel has no room to make on the way are made before it; the bits
    /// are the same.
    pub(in crate::backend::cuda) fn skinny(
        &mut self,
        form: SkinnyTo,
        dst: DevicePtr,
        ldd: usize,
        w: &Matrix,
        from: SkinnyFrom,
        scale: f32,
        rows: usize,
    ) -> Result<()> {
        check_width(w)?;
        let (ldd, inner, rows) = (u32_of(ldd)?, u32_of(w.inner)?, u32_of(rows)?);
        if form == SkinnyTo::Swiglu && w.parts.len() != 1 {
            return Err(shape("norm_gate_up", "a weight in one form", format!("{} parts", w.parts.len())));
        }
        let weights = self.skinny_weights(form, w)?;
        let staged = weights.iter().all(|weight| launch::stages_rows(self.device.driver(), weight, rows));
        let from = match from {
            SkinnyFrom::Norm { h, ld, norm, eps, mul } if !staged => {
                let x = self.input_room(w.inner)?;
                // SAFETY: the callers have checked sizes; the scratch has room for every pass.
                unsafe {
                    launch::NormRows { dst: x, ldd: inner, src: h, lds: ld, norm, n: inner, eps, mul, rows }
                        .launch(self.device.driver())?
                };
                SkinnyFrom::Ready { x, ld: inner }
            }
            SkinnyFrom::Gate { o, ld, norm, eps, gate, ldg } if !staged => {
                let x = self.input_room(w.inner)?;
                // SAFETY: as above.
                unsafe {
                    launch::GateRows { dst: x, ldd: inner, o, ldo: ld, norm, eps, gate, ldg, n: inner, rows }
                        .launch(self.device.driver())?
                };
                SkinnyFrom::Ready { x, ld: inner }
            }
            from => from,
        };
        let mut dst = dst;
        for weight in weights {
            // SAFETY: the callers have checked sizes.
            unsafe { launch::skinny(self.device.driver(), form, dst, ldd, weight, from, scale, rows)? };
            dst += u64::from(weight.out) * form.value_bytes();
        }
        Ok(())
    }

    /// The launches that a skinny GEMM takes: one a part, or one for two that a kernel takes together.
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

    /// Scratch for the input of a GEMM, `[rows of any pass, n]` bf16.
    pub(in crate::backend::cuda) fn input_room(&mut self, n: usize) -> Result<DevicePtr> {
        let bytes = self.prefill_rows.max(MAX_VERIFY_ROWS) * n * 2;
        self.room(|scratch| &mut scratch.input, bytes)
    }

    /// At least `bytes` of scratch. A smaller buffer is replaced, which waits for the device and drops CUDA graphs that
    /// name it; the first, eager run of a step leaves nothing to replace.
    pub(in crate::backend::cuda) fn room(
        &mut self,
        slot: impl Fn(&mut Scratch) -> &mut Option<DeviceBuffer>,
        bytes: usize,
    ) -> Result<DevicePtr> {
        match slot(&mut self.scratch) {
            Some(buffer) if buffer.bytes() >= bytes => return Ok(buffer.ptr()),
            old => drop(old.take()),
        }
        self.touch();
        let made = self.device.alloc("working buffers", bytes, Account::Work)?;
        Ok(slot(&mut self.scratch).insert(made).ptr())
    }
}

/// The kernels read whole pieces of a row: of another width they would compute something else.
pub(super) fn check_width(w: &Matrix) -> Result<()> {
    if w.inner.is_multiple_of(limits::INNER) {
        return Ok(());
    }
    Err(shape("gemm", format!("inputs of a multiple of {} values", limits::INNER), w.inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_kernel_reads_a_row_follows_from_its_place_in_the_segment() {
        // However a segment is cut on the grid, each row meets the same kernel.
        let by_row = |cuts: &[usize]| {
            let (mut read, mut own) = (0, Vec::new());
            for rows in cuts {
                let first = own_rows(read, *rows);
                assert!(first == *rows || first.is_multiple_of(GEMM_ROWS));
                own.extend((0..*rows).map(|r| r < first));
                read += rows;
            }
            own
        };
        let whole = by_row(&[1000]);
        assert_eq!(whole.iter().filter(|own| **own).count(), fp8::PLAIN_ROWS);
        for cuts in [&[64, 64, 872][..], &[256, 744], &[192, 128, 680], &[512, 488]] {
            assert_eq!(by_row(cuts), whole, "{cuts:?}");
        }
        assert_eq!(by_row(&[15]), [true; 15]);
    }
}
