//! Weights on the CPU and the two ways to multiply with them.
//!
//! Prefill multiplies tiles of exactly [`GRID`] rows (the last one padded with zeros) through candle, so the shape, and
//! with it the order of every sum, is the same whatever the chunk. Verify uses [`Dots`], whose order does not know the
//! number of rows. bf16 weights stay bf16 and are widened, exactly, block by block.

use candle_core::{Device, Storage, Tensor};
use rayon::prelude::*;

use super::simd::{self, Dots};
use crate::backend::{BackendError, GRID, Result, WeightView};
use crate::protocol::engine::Dtype;

/// Values of one widened block of weights; bounds the memory that widening takes.
const BLOCK_VALUES: usize = 4 << 20;
/// Multiply-adds below which another thread costs more than it brings.
const SPLIT_WORK: usize = 1 << 15;

enum Values {
    /// Bit patterns.
    Bf16(Vec<u16>),
    F32(Vec<f32>),
}

/// A weight `[out, inner]`, row-major.
pub struct Matrix {
    pub(super) out: usize,
    pub(super) inner: usize,
    values: Values,
}

impl Matrix {
    /// Stacks the parts along the out axis. bf16 only if all parts are.
    pub(super) fn stack(parts: &[WeightView<'_>]) -> Result<Matrix> {
        let shape =
            |found: String| BackendError::Shape { op: "matrix", expected: "[out, in] of one width".into(), found };
        let mut out = 0;
        let mut inner = None;
        for part in parts {
            let [rows, width] = part.shape else {
                return Err(shape(format!("{} {:?}", part.name, part.shape)));
            };
            if *inner.get_or_insert(*width) != *width || part.data.len() != rows * width * part.dtype.size() {
                return Err(shape(format!("{} {:?} ({} bytes)", part.name, part.shape, part.data.len())));
            }
            out += rows;
        }
        let values = if parts.iter().all(|p| p.dtype == Dtype::Bf16) {
            Values::Bf16(
                parts.iter().flat_map(|p| p.data.chunks_exact(2)).map(|b| u16::from_le_bytes([b[0], b[1]])).collect(),
            )
        } else {
            let mut all = Vec::with_capacity(out * inner.unwrap_or(0));
            for part in parts {
                all.extend(floats(part)?);
            }
            Values::F32(all)
        };
        Ok(Matrix { out, inner: inner.unwrap_or(0), values })
    }

    pub(super) fn synthetic(out: usize, inner: usize, std: f32, seed: u64) -> Matrix {
        let value = |i: usize| half::bf16::from_f32(crate::backend::synthetic_value(seed, i as u64, std)).to_bits();
        Matrix { out, inner, values: Values::Bf16((0..out * inner).into_par_iter().map(value).collect()) }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.values {
            Values::Bf16(v) => v.len() * 2,
            Values::F32(v) => v.len() * 4,
        }
    }

    /// Rows from `first` on, as many as fit into `dst`, widened.
    pub(super) fn widen(&self, first: usize, dst: &mut [f32]) {
        let start = first * self.inner;
        let range = start..start + dst.len();
        match &self.values {
            Values::Bf16(v) => {
                for (d, s) in dst.iter_mut().zip(v.get(range).unwrap_or_default()) {
                    *d = f32::from_bits(u32::from(*s) << 16);
                }
            }
            Values::F32(v) => {
                for (d, s) in dst.iter_mut().zip(v.get(range).unwrap_or_default()) {
                    *d = *s;
                }
            }
        }
    }

    /// `y[r] = x[r] Wᵀ`, `x [rows, inner]`, `y [rows, out]`, in a fixed order whatever the number of rows.
    pub(super) fn verify(&self, y: &mut [f32], x: &[f32], rows: usize) {
        // Weight rows per task: enough work for a thread, few enough to stay in the first-level cache.
        let per_task = (SPLIT_WORK / (self.inner * rows).max(1)).next_multiple_of(16).clamp(16, 256);
        let mut by_weight = vec![0.0f32; self.out * rows];
        by_weight.par_chunks_mut(per_task * rows).enumerate().for_each_init(
            Vec::new,
            |wide: &mut Vec<f32>, (task, out)| {
                let weights = out.len() / rows;
                wide.resize(weights * self.inner, 0.0);
                simd::run(WidenDots { matrix: self, first: task * per_task, wide, x, rows, out });
            },
        );
        if rows == 1 {
            y.copy_from_slice(&by_weight);
            return;
        }
        for (r, y) in y.chunks_exact_mut(self.out).enumerate() {
            for (y, w) in y.iter_mut().zip(by_weight.chunks_exact(rows)) {
                *y = w[r];
            }
        }
    }

    /// `y = x Wᵀ` for `x [rows, inner]` in tiles of [`GRID`] rows; `write(dst row, row, first column, values)` stores
    /// each piece of a row of `y` into that row of `dst [rows, width]`, columns in ascending order.
    pub(super) fn prefill(
        &self,
        dst: &mut [f32],
        width: usize,
        x: &[f32],
        write: impl Fn(&mut [f32], usize, usize, &[f32]) + Sync,
    ) -> Result<()> {
        let block = (BLOCK_VALUES / self.inner).clamp(GRID, self.out.max(GRID));
        for first in (0..self.out).step_by(block) {
            let outs = block.min(self.out - first);
            let mut wide = vec![0.0f32; outs * self.inner];
            wide.par_chunks_mut(64 * self.inner).enumerate().for_each(|(i, part)| self.widen(first + i * 64, part));
            let wide = Tensor::from_vec(wide, (outs, self.inner), &Device::Cpu).and_then(|w| w.t()).map_err(device)?;
            let tiles = x.par_chunks(GRID * self.inner).zip(dst.par_chunks_mut(GRID * width)).enumerate();
            tiles.try_for_each(|(tile, (x, dst))| {
                let mut padded = x.to_vec();
                padded.resize(GRID * self.inner, 0.0);
                let y = Tensor::from_vec(padded, (GRID, self.inner), &Device::Cpu)
                    .and_then(|x| x.matmul(&wide))
                    .map_err(device)?;
                let (storage, _) = y.storage_and_layout();
                let Storage::Cpu(storage) = &*storage else {
                    return Ok(());
                };
                let y = storage.as_slice::<f32>().map_err(device)?;
                for (r, (dst, y)) in dst.chunks_exact_mut(width).zip(y.chunks_exact(outs)).enumerate() {
                    write(dst, tile * GRID + r, first, y);
                }
                Ok::<(), BackendError>(())
            })?;
        }
        Ok(())
    }
}

fn device(e: candle_core::Error) -> BackendError {
    BackendError::Device { op: "matmul".into(), cause: e.to_string() }
}

struct WidenDots<'a> {
    matrix: &'a Matrix,
    first: usize,
    wide: &'a mut [f32],
    x: &'a [f32],
    rows: usize,
    out: &'a mut [f32],
}

impl pulp::WithSimd for WidenDots<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        self.matrix.widen(self.first, self.wide);
        Dots { weights: self.wide, x: self.x, inner: self.matrix.inner, n: self.rows, out: self.out }.with_simd(simd);
    }
}

/// The values of a view as f32.
pub(super) fn floats(view: &WeightView<'_>) -> Result<Vec<f32>> {
    decode(view.dtype, view.data).ok_or_else(|| BackendError::Shape {
        op: "weight",
        expected: "f32 or bf16 values".into(),
        found: format!("{} {:?}", view.name, view.dtype),
    })
}

/// Little-endian f32 or bf16 as f32; `None` for other types.
pub(super) fn decode(dtype: Dtype, data: &[u8]) -> Option<Vec<f32>> {
    match dtype {
        Dtype::F32 => Some(data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
        Dtype::Bf16 => Some(
            data.chunks_exact(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)).collect(),
        ),
        Dtype::U32 | Dtype::U8 => None,
    }
}
