//! Packed weights on the device: packing of bf16 rows, and unpacking of rows or whole weights to bf16.

use std::ops::Range;

use super::device::Account;
use super::driver::{DevicePtr, Queue};
use super::tensors::Matrix;
use super::{Cuda, check_shape, launch, shape, u32_of};
use crate::backend::forms::PAIR_ROWS;
use crate::backend::{BackendError, Form, MAX_VERIFY_ROWS, Result, invariant};

/// Neighbouring rows of a weight in one form.
pub(super) struct Piece {
    pub(super) at: DevicePtr,
    pub(super) form: Form,
    pub(super) rows: Range<usize>,
}

impl Matrix {
    /// The pieces that hold rows `slice`.
    pub(super) fn pieces(&self, slice: &Range<usize>) -> Result<Vec<Piece>> {
        let (mut first, mut found) = (0, Vec::new());
        for part in &self.parts {
            let rows = slice.start.max(first)..slice.end.min(first + part.rows);
            let before = rows.start.saturating_sub(first);
            first += part.rows;
            if rows.is_empty() {
                continue;
            }
            invariant(before.is_multiple_of(PAIR_ROWS), "unpack", "a slice that begins within a pair of tiles")?;
            let bytes = match part.form {
                Form::Bf16 => before * self.inner * 2,
                form => before / PAIR_ROWS * form.pair_bytes(self.inner),
            };
            found.push(Piece { at: part.memory.ptr() + bytes as u64, form: part.form, rows });
        }
        Ok(found)
    }
}

impl Cuda {
    pub(super) fn pack_rows(
        &mut self,
        form: Form,
        dst: DevicePtr,
        src: DevicePtr,
        rows: usize,
        inner: usize,
    ) -> Result<()> {
        let bad = self.flag()?;
        // SAFETY: the callers have checked sizes; `bad` is one word.
        unsafe { launch::pack(self.device.driver(), form, launch::PackInt8 { dst, src, rows, inner, bad }) }
    }

    fn flag(&mut self) -> Result<DevicePtr> {
        if let Some(flag) = &self.scratch.not_finite {
            return Ok(flag.ptr());
        }
        let made = self.device.zeroed("working buffers", 16, Account::Work)?;
        Ok(self.scratch.not_finite.insert(made).ptr())
    }

    /// Fails if any value packed since the last call was not finite. Waits.
    pub(super) fn all_finite(&mut self, name: impl FnOnce() -> String) -> Result<()> {
        let flag = self.flag()?;
        let mut word = [0u8; 4];
        // SAFETY: the flag is one word; the host reads after the wait.
        unsafe { self.device.driver().copy_out(word.as_mut_ptr(), flag, word.len(), Queue::Compute)? };
        self.device.driver().synchronize(Queue::Compute)?;
        if word == [0; 4] {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.device.driver().fill(flag, 0, word.len(), Queue::Compute)? };
        Err(BackendError::NotFinite(name()))
    }

    /// Address of rows `slice` of a weight as bf16: the weight's own, or unpacked into scratch. Valid until the next
    /// call.
    pub(super) fn widened(&mut self, w: &Matrix, slice: Range<usize>) -> Result<DevicePtr> {
        let row = w.inner * 2;
        if let Some(plain) = w.plain() {
            return Ok(plain + (slice.start * row) as u64);
        }
        let to = self.room(|scratch| &mut scratch.widened, slice.len() * row)?;
        for Piece { at: from, form, rows: here } in w.pieces(&slice)? {
            let dst = to + ((here.start - slice.start) * row) as u64;
            // SAFETY: the scratch has room for all rows of the slice, the piece has them.
            unsafe {
                match form {
                    Form::Bf16 => self.device.driver().copy(dst, from, here.len() * row, Queue::Compute)?,
                    form => {
                        let unpack = launch::Unpack { dst, w: from, out: here.len(), inner: w.inner, detail: 0 };
                        launch::unpack(self.device.driver(), form, unpack)?;
                    }
                }
            }
        }
        Ok(to)
    }

    /// Table, tokens and height for bf16 kernels that look rows up: the weight's own, or rows unpacked for this pass
    /// and the numbers 0, 1, 2, … Ids outside of the table give zeros either way.
    pub(super) fn looked_up(
        &mut self,
        table: &Matrix,
        tokens: DevicePtr,
        rows: usize,
    ) -> Result<(DevicePtr, DevicePtr, usize)> {
        if let Some(plain) = table.plain() {
            return Ok((plain, tokens, table.out));
        }
        let [part] = table.parts.as_slice() else {
            return Err(shape("embed", "a table in one form", format!("{} parts", table.parts.len())));
        };
        let most = self.prefill_rows.max(MAX_VERIFY_ROWS);
        check_shape(rows <= most, "embed", format_args!("at most {most} rows"), rows)?;
        // Lookups precede all products of the pass, so their scratch is free.
        let gathered = self.input_room(table.inner)?;
        if self.scratch.ascending.is_none() {
            let numbers: Vec<u8> = (0..u32_of(most)?).flat_map(u32::to_le_bytes).collect();
            let made = self.device.alloc("working buffers", numbers.len(), Account::Work)?;
            self.staging.send_bytes(made.ptr(), &numbers)?;
            self.touch();
            self.scratch.ascending = Some(made);
        }
        let ascending = self.scratch.ascending.as_ref().map_or(0, |a| a.ptr());
        let Matrix { out, inner, .. } = *table;
        let params = launch::Gather { dst: gathered, w: part.memory.ptr(), tokens, out, inner, detail: 0, rows };
        // SAFETY: the scratch has room for every pass; tokens are those of the pass.
        unsafe { launch::gather(self.device.driver(), part.form, params)? };
        Ok((gathered, ascending, most))
    }
}
