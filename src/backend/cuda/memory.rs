//! What the device holds. Weights on their way to it: rows of several tensors in one matrix, gate and up in turns, bf16 from
//! what the checkpoint has; or made up on the device.

use half::bf16;
use rayon::prelude::*;

use super::device::{Account, DeviceBuffer};
use super::driver::{DevicePtr, Queue};
use super::tensors::{Buf, Cache, HEAD, Matrix, Recurrent, Selection, Vector, check_lightning, floats};
use super::{Cuda, launch, shape};
use crate::backend::{BufKind, MAX_VERIFY_ROWS, Memory, Result, WeightView};
use crate::protocol::engine::{Dtype, MemoryInfo};
use crate::spec::{LightningSpec, SparseSpec};

impl Memory for Cuda {
    type Buf = Buf;
    type Matrix = Matrix;
    type Vector = Vector;
    type Cache = Cache;
    type Recurrent = Recurrent;
    type Selection = Selection;

    fn kind(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        self.info().name.clone()
    }

    fn cache_dtype(&self) -> Dtype {
        Dtype::Bf16
    }

    fn prefill_rows(&self) -> usize {
        self.prefill_rows
    }

    fn matrix(&mut self, parts: &[WeightView<'_>]) -> Result<Matrix> {
        let inner = parts.first().and_then(|p| p.shape.get(1)).copied().unwrap_or(0);
        let mut out = 0;
        for part in parts {
            out += rows_of(part, inner)?;
        }
        let memory = self.device.alloc("weights", out * inner * 2, Account::Weights)?;
        let mut at = memory.ptr();
        for part in parts {
            let rows = rows_of(part, inner)?;
            self.send_rows(at, rows, inner, &|row| (part, row))?;
            at += (rows * inner * 2) as u64;
        }
        Ok(Matrix { memory, out, inner })
    }

    fn gate_up_matrix(&mut self, gate: WeightView<'_>, up: WeightView<'_>) -> Result<Matrix> {
        let inner = gate.shape.get(1).copied().unwrap_or(0);
        let half = rows_of(&gate, inner)?;
        if rows_of(&up, inner)? != half || half % 8 != 0 {
            return Err(shape(
                "gate_up_matrix",
                "two equal matrices of a multiple of 8 rows",
                format!("{:?} and {:?}", gate.shape, up.shape),
            ));
        }
        let memory = self.device.alloc("weights", 2 * half * inner * 2, Account::Weights)?;
        self.send_rows(memory.ptr(), 2 * half, inner, &|packed| {
            let (block, r) = (packed / 16, packed % 16);
            if r < 8 { (&gate, 8 * block + r) } else { (&up, 8 * block + r - 8) }
        })?;
        Ok(Matrix { memory, out: 2 * half, inner })
    }

    fn vector(&mut self, view: WeightView<'_>) -> Result<Vector> {
        let n = view.shape.iter().product();
        let values = floats(view.dtype, view.data)?;
        if values.len() != n {
            return Err(shape("vector", format!("{n} values for {}", view.name), values.len()));
        }
        Ok(Vector { memory: self.upload_floats(&values, Account::Weights)?, n })
    }

    fn random_matrix(&mut self, out: usize, inner: usize, std: f32, seed: u64) -> Result<Matrix> {
        let memory = self.device.alloc("weights", out * inner * 2, Account::Weights)?;
        // SAFETY: the memory was just made with this size.
        unsafe {
            launch::RandomBf16 { dst: memory.ptr(), n: (out * inner) as u64, std, seed }.launch(self.device.driver())?
        };
        Ok(Matrix { memory, out, inner })
    }

    fn random_gate_up(&mut self, half: usize, inner: usize, std: f32, seed: u64) -> Result<Matrix> {
        let plain = self.random_matrix(2 * half, inner, std, seed)?;
        let memory = self.device.alloc("weights", 2 * half * inner * 2, Account::Weights)?;
        let eight = 8 * inner * 2;
        for block in 0..half / 8 {
            for (part, from) in [block, half / 8 + block].into_iter().enumerate() {
                let (dst, src) = ((2 * block + part) * eight, from * eight);
                // SAFETY: both matrices have `2 · half` rows.
                unsafe {
                    self.device.driver().copy(
                        memory.ptr() + dst as u64,
                        plain.memory.ptr() + src as u64,
                        eight,
                        Queue::Compute,
                    )?
                };
            }
        }
        Ok(Matrix { memory, out: 2 * half, inner })
    }

    fn ones(&mut self, n: usize) -> Result<Vector> {
        let memory = self.device.alloc("norm weights", n * 4, Account::Weights)?;
        // SAFETY: the memory was just made with this size.
        unsafe { launch::FillF32 { dst: memory.ptr(), n: n as u64, value: 1.0 }.launch(self.device.driver())? };
        Ok(Vector { memory, n })
    }

    fn buf(&mut self, width: usize, kind: BufKind) -> Result<Buf> {
        self.touch();
        Buf::new(&self.device, width, kind, self.prefill_rows)
    }

    fn cache(&mut self, spec: &SparseSpec, limit: usize) -> Result<Cache> {
        self.touch();
        Cache::new(&self.device, &self.ledger, spec, limit)
    }

    fn recurrent(&mut self, spec: &LightningSpec) -> Result<Recurrent> {
        check_lightning(spec)?;
        self.touch();
        self.prepare_rope(spec)?;
        let pending = 2 * MAX_VERIFY_ROWS * spec.kv_heads * HEAD * 2;
        Ok(Recurrent {
            state: self.device.zeroed("recurrent state", spec.heads * HEAD * HEAD * 4, Account::State)?,
            pend_k: self.device.zeroed("pending rows", pending, Account::State)?,
            pend_v: self.device.zeroed("pending rows", pending, Account::State)?,
            slopes: self.upload_floats(&spec.slopes(), Account::State)?,
        })
    }

    fn selection(&mut self, spec: &SparseSpec, limit: usize) -> Result<Selection> {
        self.touch();
        Selection::new(&self.device, spec, limit, self.prefill_rows)
    }

    fn reserve(&mut self, cache: &mut Cache, limit: usize) -> Result<()> {
        cache.reserve(&self.device, &self.ledger, limit)
    }

    fn memory(&self) -> MemoryInfo {
        self.device.memory()
    }
}

impl Cuda {
    /// Rows `from(0..rows)` as bf16 to `dst`.
    fn send_rows<'v, 'd: 'v>(
        &mut self,
        dst: DevicePtr,
        rows: usize,
        inner: usize,
        from: &(dyn Fn(usize) -> (&'v WeightView<'d>, usize) + Sync),
    ) -> Result<()> {
        let row_bytes = inner * 2;
        if row_bytes == 0 {
            return Ok(());
        }
        self.staging.send(dst, rows * row_bytes, row_bytes, &|at, chunk| {
            chunk.par_chunks_mut(row_bytes).enumerate().for_each(|(i, to)| {
                let (view, row) = from(at / row_bytes + i);
                let value = view.dtype.size();
                let Some(data) = view.data.get(row * inner * value..).and_then(|d| d.get(..inner * value)) else {
                    return;
                };
                match view.dtype {
                    Dtype::Bf16 => to.copy_from_slice(data),
                    Dtype::F32 => {
                        for (to, x) in to.chunks_exact_mut(2).zip(data.chunks_exact(4)) {
                            let x = f32::from_le_bytes([x[0], x[1], x[2], x[3]]);
                            to.copy_from_slice(&bf16::from_f32(x).to_le_bytes());
                        }
                    }
                    // `rows_of` has refused these.
                    Dtype::U32 | Dtype::U8 => {}
                }
            });
        })
    }

    pub(super) fn upload_floats(&mut self, values: &[f32], account: Account) -> Result<DeviceBuffer> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let memory = self.device.alloc("norm weights", bytes.len(), account)?;
        self.staging.send_bytes(memory.ptr(), bytes)?;
        Ok(memory)
    }
}

/// Rows of a weight, checked against its bytes.
fn rows_of(view: &WeightView<'_>, inner: usize) -> Result<usize> {
    match (view.shape, view.dtype) {
        ([rows, columns], Dtype::F32 | Dtype::Bf16)
            if *columns == inner && view.data.len() == rows * columns * view.dtype.size() =>
        {
            Ok(*rows)
        }
        _ => Err(shape(
            "matrix",
            format!("{} as f32 or bf16 [rows, {inner}]", view.name),
            format!("{:?} {:?} of {} bytes", view.dtype, view.shape, view.data.len()),
        )),
    }
}
