use std::collections::HashMap;

use super::super::Cuda;
use super::super::device::{Account, DeviceBuffer};
use super::super::driver::{DevicePtr, GEMM_ROWS};
use crate::backend::{Form, Result};

#[derive(Default)]
pub(in crate::backend::cuda) struct Scratch {
    /// Inputs of GEMMs, or earlier rows of a packed table, bf16.
    input: Option<DeviceBuffer>,
    /// Rows of verify passes that are ready for a GEMM, normed and gated, with their sums of squares.
    pub(super) normed: Option<DeviceBuffer>,
    pub(super) gated: Option<DeviceBuffer>,
    /// Gate and up columns of a slice before SwiGLU, bf16.
    pub(super) wide: Option<DeviceBuffer>,
    pub(in crate::backend::cuda) widened: Option<DeviceBuffer>,
    /// The current slice and its input rows in e4m3, with their scales.
    pub(in crate::backend::cuda) narrow_weight: Option<DeviceBuffer>,
    pub(in crate::backend::cuda) narrow_input: Option<DeviceBuffer>,
    /// 0, 1, 2, …: ids for rows of a packed table.
    pub(in crate::backend::cuda) ascending: Option<DeviceBuffer>,
    /// Tables for interleaving half-words of gate and up, by form and place in a pair of tiles.
    pub(in crate::backend::cuda) places: HashMap<(Form, usize), DeviceBuffer>,
    pub(in crate::backend::cuda) not_finite: Option<DeviceBuffer>,
}

impl Scratch {
    pub(in crate::backend::cuda) fn reads_fp8(&self) -> bool {
        self.narrow_input.is_some()
    }
}

impl Cuda {
    pub(in crate::backend::cuda) fn input_room(&mut self, n: usize) -> Result<DevicePtr> {
        self.input_rows(self.prefill_rows, n)
    }

    pub(in crate::backend::cuda) fn input_rows(&mut self, rows: usize, n: usize) -> Result<DevicePtr> {
        let bytes = rows.next_multiple_of(GEMM_ROWS) * n * 2;
        self.room(|scratch| &mut scratch.input, bytes)
    }

    /// At least `bytes` of scratch. Replacing a smaller buffer waits for the device and drops CUDA graphs that name
    /// it; after the first, eager run of a step there is nothing to replace.
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
