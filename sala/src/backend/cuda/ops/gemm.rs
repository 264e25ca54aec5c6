//! GEMMs of a prefill pass, by a library or by the program's own kernels.

use std::ops::Range;
use std::sync::Arc;

use super::super::Cuda;
use super::super::device::DeviceBuffer;
use super::super::driver::{DevicePtr, GEMM_ROWS, Gemm, GemmOut, Scales};
use super::super::launch::{self, HopperOut};
use super::super::packed::Piece;
use super::super::slices::{Slice, slices};
use super::super::tensors::{Buf, Matrix};
use super::check_width;
use super::ready::Way;
use super::scratch::Scratch;
use crate::backend::{BackendError, Form, Result, fp8, internal, sections};
use crate::engine::protocol::Precision;

/// Rows of a segment that the program's own kernel reads on Hopper: up to there it is faster than the library, which
/// needs widened weights. A multiple of [`GEMM_ROWS`].
const HOPPER_ROWS: usize = 1_024;

const ALIGNED: usize = 256;

#[derive(Clone, Copy)]
pub(in crate::backend::cuda) struct Narrow {
    pub(in crate::backend::cuda) values: DevicePtr,
    pub(in crate::backend::cuda) scales: DevicePtr,
}

impl Narrow {
    fn bytes(rows: usize, n: usize) -> usize {
        (rows * n).next_multiple_of(ALIGNED) + rows * 4
    }

    fn at(values: DevicePtr, rows: usize, n: usize) -> Narrow {
        Narrow { values, scales: values + (rows * n).next_multiple_of(ALIGNED) as u64 }
    }

    pub(super) fn at_row(self, first: usize, n: usize) -> Narrow {
        Narrow { values: self.values + (first * n) as u64, scales: self.scales + first as u64 * 4 }
    }
}

#[derive(Clone, Copy)]
pub(in crate::backend::cuda) struct Input {
    /// bf16 `[rows, inner]`, dense; undefined for rows that are read in fp8.
    x: DevicePtr,
    rows: usize,
    own: usize,
    /// The rows after `own` in e4m3, if they are read in fp8.
    narrow: Option<Narrow>,
    /// Rows with finished products: none, or `own`.
    pub(super) made: usize,
}

#[derive(Clone, Copy)]
pub(in crate::backend::cuda) struct Output {
    pub(in crate::backend::cuda) d: DevicePtr,
    pub(in crate::backend::cuda) ldd: usize,
    pub(in crate::backend::cuda) to: GemmOut,
    pub(in crate::backend::cuda) scale: f32,
}

impl Input {
    pub(super) fn narrow(rows: Narrow, count: usize) -> Input {
        Input { x: 0, rows: count, own: 0, narrow: Some(rows), made: 0 }
    }
}

impl Output {
    pub(super) fn at_column(self, first: usize) -> Output {
        Output { d: self.d + first as u64 * self.to.value_bytes(), ..self }
    }

    pub(super) fn at_row(self, first: usize) -> Output {
        self.at_column(first * self.ldd)
    }
}

impl Cuda {
    /// One GEMM of a prefill pass. The program's own kernel computes the first rows of a segment, the library the
    /// rest: the split is a function of the row's place in its segment, never of time.
    /// For the sections of `w` in columns `only`, or for all.
    pub(in crate::backend::cuda) fn gemm(
        &mut self,
        input: Input,
        w: &Matrix,
        only: Option<&Range<usize>>,
        output: Output,
    ) -> Result<()> {
        let columns = only.cloned().unwrap_or(0..w.out);
        let input = self.own_rows_first(input, w, columns, HopperOut::Gemm(output.to), output)?;
        for slice in self.slices(w, only)? {
            let at = output.at_column(slice.rows.start);
            self.gemm_slice(input, w, slice, at)?;
        }
        Ok(())
    }

    /// How many of a pass's `rows` with `w` the program's own kernel reads: a short prompt never waits for the library,
    /// because its start takes longer than all of the prompt's GEMMs. That kernel only supports bf16.
    pub(super) fn own_rows(&self, w: &Matrix, rows: usize) -> usize {
        let in_fp8 = w.sections.iter().any(|section| section.precision == Precision::Fp8);
        let own = if !in_fp8 && launch::is_hopper(self.info()) { HOPPER_ROWS } else { fp8::PLAIN_ROWS };
        fp8::among_first(own, self.segment_read, rows)
    }

    /// Products of the first rows of a segment with `columns` of `w` on Hopper, where packed weights need not be
    /// widened.
    pub(super) fn own_rows_first(
        &mut self,
        input: Input,
        w: &Matrix,
        columns: Range<usize>,
        to: HopperOut,
        output: Output,
    ) -> Result<Input> {
        if input.own == 0 || !launch::is_hopper(self.info()) {
            return Ok(input);
        }
        let (row, wide) = (w.inner * 2, if to == HopperOut::Swiglu { 2 } else { 1 });
        for first in (0..input.own).step_by(HOPPER_ROWS) {
            let (count, x) = (HOPPER_ROWS.min(input.own - first), input.x + (first * row) as u64);
            let mut turned = None;
            for Piece { at, form, rows: here } in w.pieces(&columns)? {
                let x = match (form, turned) {
                    (Form::Bf16, _) => x,
                    (_, Some(turned)) => turned,
                    (_, None) => {
                        let dst = self.room(|scratch| &mut scratch.widened, count * row)?;
                        let turn = launch::TurnRows { dst, src: x, blocks: count * w.inner / 32 };
                        // SAFETY: the scratch was just made for these rows.
                        unsafe { turn.launch(self.device.driver())? };
                        *turned.insert(dst)
                    }
                };
                let Output { d: dst, ldd, scale, .. } = output.at_row(first).at_column(here.start / wide);
                let (w, out, inner) = (at, here.len(), w.inner);
                let gemm = launch::HopperGemm { x, w, form, dst, ldd, rows: count, out, inner, to, scale };
                // SAFETY: the callers have checked sizes; the buffers live as long as the backend's work.
                unsafe { gemm.launch(self.device.driver())? };
            }
        }
        Ok(Input { made: input.own, ..input })
    }

    pub(super) fn slices(&self, w: &Matrix, only: Option<&Range<usize>>) -> Result<Vec<Slice>> {
        let sections = sections::within(&w.sections, only)?;
        let of = |(section, precision)| {
            slices(self.device.driver().info(), section, w.inner).map(move |rows| Slice { rows, precision })
        };
        Ok(sections.into_iter().flat_map(of).collect())
    }

    /// Dense bf16 rows `[rows, inner]` as input of GEMMs with the slices of `w`. Valid until the next call.
    pub(in crate::backend::cuda) fn plain_input(&mut self, x: DevicePtr, w: &Matrix, rows: usize) -> Result<Input> {
        let (input, _) = self.input_of(w, None, rows)?;
        if let Some(to) = input.narrow {
            self.narrow(to, x + (input.own * w.inner * 2) as u64, rows - input.own, w.inner)?;
        }
        Ok(Input { x, ..input })
    }

    /// The same for f32 rows of `h`, normed and gated, for the sections in columns `only`, or for all; rows that only
    /// fp8 products read are never written in bf16.
    pub(super) fn gated_input(
        &mut self,
        h: &Buf,
        way: Way,
        eps: f32,
        w: &Matrix,
        only: Option<&Range<usize>>,
        rows: usize,
    ) -> Result<Input> {
        let (input, plain) = self.input_of(w, only, rows)?;
        let x = self.input_room(w.inner)?;
        if plain > 0 {
            let (n, ldo, Way { norm, gate, ldg }) = (w.inner, h.width, way);
            let gated =
                launch::GateRows { dst: x, ldd: n, sums: 0, o: h.ptr(), ldo, norm, eps, gate, ldg, n, rows: plain };
            // SAFETY: the callers have checked sizes; buffers outlive the queue's work.
            unsafe { gated.launch(self.device.driver())? };
        }
        if let Some(to) = input.narrow {
            self.narrow_gated(to, h, input.own..rows, way, eps, w.inner)?;
        }
        Ok(Input { x, ..input })
    }

    pub(super) fn narrow_gated(
        &self,
        to: Narrow,
        h: &Buf,
        rows: Range<usize>,
        way: Way,
        eps: f32,
        n: usize,
    ) -> Result<()> {
        let (Narrow { values: dst, scales }, Way { norm, gate, ldg }) = (to, way);
        let gate = if gate == 0 { 0 } else { gate + (rows.start * ldg * 2) as u64 };
        let (o, ldo, rows) = (h.row(rows.start), h.width, rows.len());
        let narrow = launch::NarrowGated { dst, scales, o, ldo, norm, eps, gate, ldg, n, rows };
        // SAFETY: the callers have checked sizes and made room for so many rows; buffers outlive the queue's work.
        unsafe { narrow.launch(self.device.driver()) }
    }

    /// The input without its values, and how many rows are read in bf16.
    fn input_of(&mut self, w: &Matrix, only: Option<&Range<usize>>, rows: usize) -> Result<(Input, usize)> {
        check_width(w.inner)?;
        let own = self.own_rows(w, rows);
        let sections = sections::within(&w.sections, only)?;
        let reads = |precision| sections.iter().any(|section| section.1 == precision);
        if !reads(Precision::Fp8) || own == rows {
            return Ok((Input { x: 0, rows, own, narrow: None, made: 0 }, rows));
        }
        let at = self.narrow_room(|scratch| &mut scratch.narrow_input, self.prefill_rows, w.inner)?;
        let plain = if reads(Precision::Bf16) { rows } else { own };
        Ok((Input { x: 0, rows, own, narrow: Some(at), made: 0 }, plain))
    }

    pub(super) fn keeps_narrow(&self, w: &Matrix) -> Result<bool> {
        let kept = |slice: &Slice| self.device.spare().get((w.number, slice.rows.start)).is_some();
        Ok(w.is_in_fp8() && self.slices(w, None)?.iter().all(kept))
    }

    /// The columns of a product from one slice of the weight; [`Output`] points at the first of them.
    pub(super) fn gemm_slice(&mut self, input: Input, w: &Matrix, slice: Slice, output: Output) -> Result<()> {
        let Input { x, rows, own, made, .. } = input;
        if made == rows {
            return Ok(());
        }
        let narrow = match slice.precision {
            Precision::Bf16 => None,
            Precision::Fp8 if own < rows && input.narrow.is_none() => {
                return Err(internal("gemm", "rows that were not narrowed"));
            }
            Precision::Fp8 => input.narrow,
        };
        let slice = slice.rows;
        let (out, inner) = (slice.len(), w.inner);
        let plain = if own > made || narrow.is_none() { Some(self.widened(w, slice.clone())?) } else { None };
        if let Some(plain) = plain {
            self.launch_gemm(x, plain, [own - made, out, inner], output)?;
        }
        if own == rows {
            return Ok(());
        }
        let (x, output) = (x + (own * inner * 2) as u64, output.at_row(own));
        // Holds spare memory until the product is launched.
        let (operands, scales, _held) = match (narrow, plain) {
            (None, Some(plain)) => ((x, plain), None, None),
            (None, None) => return Err(internal("gemm", "a weight that was not widened")),
            (Some(input), plain) => {
                let (weight, held) = self.narrow_slice(w, slice, plain)?;
                ((input.values, weight.values), Some(Scales { x: input.scales, w: weight.scales }), held)
            }
        };
        // The buffers contain undefined rows beyond the pass; the rounding uses only row counts that were proved.
        let rounded = (rows - own).next_multiple_of(GEMM_ROWS);
        let Output { d, ldd, to, scale } = output;
        let gemm = Gemm { x: operands.0, w: operands.1, scales, d, ldd, rows: rounded, out, inner, to, scale };
        // SAFETY: buffers of a pass have room for `prefill_rows`, a multiple of the rounding, as `own` is; sizes are checked
        // by the callers.
        if unsafe { self.device.driver().gemm(&gemm)? } {
            return Ok(());
        }
        match narrow {
            // A fallback would give another result than the promised one.
            Some(_) => Err(BackendError::Unsupported(format!("no product in fp8 for weights of {out} x {inner}"))),
            None => self.launch_gemm(x, operands.1, [rows - own, out, inner], output),
        }
    }

    /// Rows `slice` of a weight in e4m3: in spare memory, where a text has more than one pass and there is room, or
    /// narrowed into scratch, valid until the next call. `plain`: the same in bf16, if it is already widened.
    fn narrow_slice(
        &mut self,
        w: &Matrix,
        slice: Range<usize>,
        plain: Option<DevicePtr>,
    ) -> Result<(Narrow, Option<Arc<DeviceBuffer>>)> {
        let (out, inner) = (slice.len(), w.inner);
        let key = (w.number, slice.start);
        if let Some(kept) = self.device.spare().get(key) {
            return Ok((Narrow::at(kept.ptr(), out, inner), Some(kept)));
        }
        let plain = plain.map_or_else(|| self.widened(w, slice), Ok)?;
        let kept = if self.segment_read < self.prefill_rows {
            None
        } else {
            self.device.spare_room(key, Narrow::bytes(out, inner))?
        };
        let to = match &kept {
            Some(kept) => Narrow::at(kept.ptr(), out, inner),
            None => self.narrow_room(|scratch| &mut scratch.narrow_weight, out, inner)?,
        };
        self.narrow(to, plain, out, inner)?;
        Ok((to, kept))
    }

    /// bf16 rows `[rows, n]` in e4m3 ([`fp8::narrow`]).
    pub(in crate::backend::cuda) fn narrow(&self, to: Narrow, src: DevicePtr, rows: usize, n: usize) -> Result<()> {
        let Narrow { values: dst, scales } = to;
        // SAFETY: the callers have made room for so many rows and have them.
        unsafe { launch::NarrowRows { dst, scales, src, n, rows }.launch(self.device.driver()) }
    }

    pub(in crate::backend::cuda) fn narrow_room(
        &mut self,
        slot: impl Fn(&mut Scratch) -> &mut Option<DeviceBuffer>,
        rows: usize,
        n: usize,
    ) -> Result<Narrow> {
        Ok(Narrow::at(self.room(slot, Narrow::bytes(rows, n))?, rows, n))
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
        check_width(w.inner)?;
        for Slice { rows: slice, .. } in self.slices(w, None)? {
            let output = Output { d, ldd, to, scale }.at_column(slice.start);
            let size = [rows, slice.len(), w.inner];
            let plain = self.widened(w, slice)?;
            self.launch_gemm(x, plain, size, output)?;
        }
        Ok(())
    }

    fn launch_gemm(&self, x: DevicePtr, w: DevicePtr, size: [usize; 3], output: Output) -> Result<()> {
        let ([rows, out, inner], Output { d: dst, ldd, to, scale }) = (size, output);
        if rows == 0 {
            return Ok(());
        }
        let gemm = launch::Gemm { dst, ldd, x, ldx: inner, w, rows, out, inner, scale };
        // SAFETY: the callers have checked sizes; the buffers live as long as the backend's work.
        unsafe { gemm.launch(self.device.driver(), to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_kernel_reads_a_row_follows_from_its_place_in_the_segment() {
        // However a segment is cut on the grid, each row uses the same kernel.
        let by_row = |cuts: &[usize]| {
            let (mut read, mut own) = (0, Vec::new());
            for rows in cuts {
                let first = fp8::among_first(fp8::PLAIN_ROWS, read, *rows);
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
        assert!(HOPPER_ROWS.is_multiple_of(GEMM_ROWS) && fp8::PLAIN_ROWS.is_multiple_of(GEMM_ROWS));
    }
}
