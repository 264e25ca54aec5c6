//! Packed weights on the device: packing bf16 rows, and rows or whole weights back as bf16 for what reads bf16.

use super::device::Account;
use super::driver::{DevicePtr, Queue};
use super::tensors::Matrix;
use super::{Cuda, launch, shape, u32_of};
use crate::backend::{BackendError, Form, MAX_VERIFY_ROWS, Result};

impl Cuda {
    /// bf16 rows `[rows, inner]` on the device into a form; the first row begins a pair of tiles.
    pub(super) fn pack_rows(
        &mut self,
        form: Form,
        dst: DevicePtr,
        src: DevicePtr,
        rows: usize,
        inner: usize,
    ) -> Result<()> {
        let bad = self.flag()?;
        let (rows, inner) = (u32_of(rows)?, u32_of(inner)?);
        // SAFETY: the callers have checked sizes; `bad` is one word.
        unsafe { launch::pack(self.device.driver(), form, launch::PackInt8 { dst, src, rows, inner, bad }) }
    }

    /// A word that packing sets where a value is not finite.
    fn flag(&mut self) -> Result<DevicePtr> {
        if let Some(flag) = &self.scratch.not_finite {
            return Ok(flag.ptr());
        }
        let made = self.device.zeroed("working buffers", 16, Account::Work)?;
        Ok(self.scratch.not_finite.insert(made).ptr())
    }

    /// Whether everything packed since the last call was finite. Waits.
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

    /// Address of a weight as bf16 `[out, inner]`: its own, or that of a scratch it is unpacked into. Good until the next call.
    pub(super) fn widened(&mut self, w: &Matrix) -> Result<DevicePtr> {
        if let Some(plain) = w.plain() {
            return Ok(plain);
        }
        let to = self.room(|scratch| &mut scratch.widened, w.out * w.inner * 2)?;
        self.widen(w, to)
    }

    /// The same in the memory of gate and up columns, from byte `above` on: for a weight that is narrowed before they are written there.
    pub(super) fn widened_beside(&mut self, w: &Matrix, above: usize) -> Result<DevicePtr> {
        if let Some(plain) = w.plain() {
            return Ok(plain);
        }
        let to = self.room(|scratch| &mut scratch.wide, above + w.out * w.inner * 2)? + above as u64;
        self.widen(w, to)
    }

    /// A packed weight as bf16 at `to`.
    fn widen(&mut self, w: &Matrix, to: DevicePtr) -> Result<DevicePtr> {
        let row = w.inner * 2;
        let mut first = 0;
        for part in &w.parts {
            let dst = to + (first * row) as u64;
            let (rows, inner) = (u32_of(part.rows)?, u32_of(w.inner)?);
            // SAFETY: the scratch has room for all parts.
            unsafe {
                match part.form {
                    Form::Bf16 => self.device.driver().copy(dst, part.memory.ptr(), part.rows * row, Queue::Compute)?,
                    form => launch::unpack(
                        self.device.driver(),
                        form,
                        launch::Unpack { dst, w: part.memory.ptr(), out: rows, inner, detail: 0 },
                    )?,
                }
            }
            first += part.rows;
        }
        Ok(to)
    }

    /// Table, tokens and height by which bf16 kernels look rows up: the weight's own, or rows unpacked for this pass and
    /// the numbers 0, 1, 2, … Ids outside of the table give zeros either way.
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
        if rows > most {
            return Err(shape("embed", format!("at most {most} rows"), rows));
        }
        let gathered = self.room(|scratch| &mut scratch.gathered, most * table.inner * 2)?;
        if self.scratch.ascending.is_none() {
            let numbers: Vec<u8> = (0..u32_of(most)?).flat_map(u32::to_le_bytes).collect();
            let made = self.device.alloc("working buffers", numbers.len(), Account::Work)?;
            self.staging.send_bytes(made.ptr(), &numbers)?;
            self.touch();
            self.scratch.ascending = Some(made);
        }
        let ascending = self.scratch.ascending.as_ref().map_or(0, |a| a.ptr());
        let (out, inner, count) = (u32_of(table.out)?, u32_of(table.inner)?, u32_of(rows)?);
        // SAFETY: the scratch has room for every pass; tokens are those of the pass.
        unsafe {
            let params =
                launch::Gather { dst: gathered, w: part.memory.ptr(), tokens, out, inner, detail: 0, rows: count };
            launch::gather(self.device.driver(), part.form, params)?
        };
        Ok((gathered, ascending, most))
    }
}
