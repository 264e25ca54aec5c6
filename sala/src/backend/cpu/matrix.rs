//! Weights on the CPU and the two ways to multiply with them.
//!
//! Prefill multiplies tiles of exactly [`GRID`] rows (the last one padded with zeros) through candle, so the shape,
//! and with it the order of every sum, is the same for every chunk size. Verify uses [`Dots`], in an order that does
//! not depend on the number of rows. bf16 and packed weights keep their form and are widened, exactly, block by block.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::{Device, Storage, Tensor};
use rayon::prelude::*;

use super::simd::{self, Dots};
use crate::backend::forms::Packed;
use crate::backend::sections::Section;
use crate::backend::{BackendError, Form, GRID, Result, WeightView, fp8, internal, shape};
use crate::engine::protocol::{Dtype, Precision};

const BLOCK_VALUES: usize = 4 << 20;
/// Multiply-adds below which another thread costs more than it saves.
const SPLIT_WORK: usize = 1 << 15;

enum Values {
    Bf16(Vec<u16>),
    F32(Vec<f32>),
    Packed(Packed),
}

struct Part {
    rows: usize,
    values: Values,
}

/// `[out, inner]`, row-major.
pub struct Matrix {
    pub(super) out: usize,
    pub(super) inner: usize,
    parts: Vec<Part>,
    pub(super) sections: Vec<Section>,
}

impl Matrix {
    /// Stacks the parts along the out axis, each in its form. Adjacent plain parts are bf16 only if all of them are.
    pub(super) fn stack(parts: &[WeightView<'_>]) -> Result<Matrix> {
        let wrong = |found: String| shape("matrix", "[out, in] of one width", found);
        let inner = parts.first().and_then(|p| p.shape.get(1)).copied().unwrap_or(0);
        for part in parts {
            let [rows, width] = part.shape else {
                return Err(wrong(format!("{} {:?}", part.name, part.shape)));
            };
            let bytes = match part.dtype {
                Dtype::U8 => part.form.bytes(*rows, *width),
                dtype => rows * width * dtype.size(),
            };
            if *width != inner || part.data.len() != bytes {
                return Err(wrong(format!("{} {:?} ({} bytes)", part.name, part.shape, part.data.len())));
            }
        }
        let plain = |p: &WeightView<'_>| p.dtype != Dtype::U8 && p.form.or_bf16(inner) == Form::Bf16;
        let mut made = Vec::new();
        for run in parts.chunk_by(|a, b| plain(a) && plain(b)) {
            let rows = run.iter().filter_map(|p| p.shape.first()).sum();
            let values = match run {
                [part] if !plain(part) => Values::Packed(packed(part, rows, inner)?),
                _ if run.iter().all(|p| p.dtype == Dtype::Bf16) => Values::Bf16(
                    run.iter().flat_map(|p| p.data.chunks_exact(2)).map(|b| u16::from_le_bytes([b[0], b[1]])).collect(),
                ),
                _ => {
                    let mut all = Vec::with_capacity(rows * inner);
                    for part in run {
                        all.extend(floats(part)?);
                    }
                    Values::F32(all)
                }
            };
            made.push(Part { rows, values });
        }
        Ok(Matrix::of(made, inner))
    }

    pub(super) fn synthetic(parts: &[(usize, Form)], inner: usize, std: f32, seed: u64) -> Result<Matrix> {
        let value = |i: usize| half::bf16::from_f32(crate::backend::synthetic_value(seed, i as u64, std));
        let mut made = Vec::new();
        let mut first = 0;
        for (rows, form) in parts {
            let form = form.or_bf16(inner);
            let values = if form == Form::Bf16 {
                let range = first * inner..(first + rows) * inner;
                Values::Bf16(range.into_par_iter().map(|i| value(i).to_bits()).collect())
            } else if let Some(packed) = Packed::repeated(form, seed, *rows, inner, std) {
                Values::Packed(packed)
            } else {
                let fill = |row: usize, dst: &mut [f32]| {
                    dst.iter_mut().enumerate().for_each(|(k, v)| *v = value((first + row) * inner + k).to_f32());
                };
                let packed = Packed::pack(form, *rows, inner, fill);
                Values::Packed(packed.map_err(|_| BackendError::NotFinite("synthetic weight".into()))?)
            };
            made.push(Part { rows: *rows, values });
            first += rows;
        }
        Ok(Matrix::of(made, inner))
    }

    fn of(parts: Vec<Part>, inner: usize) -> Matrix {
        let out = parts.iter().map(|p| p.rows).sum();
        Matrix { out, inner, parts, sections: vec![Section { rows: out, precision: Precision::Bf16 }] }
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts().iter().map(|p| p.2).sum()
    }

    pub(super) fn parts(&self) -> Vec<(usize, Form, usize)> {
        let sizes = |part: &Part| match &part.values {
            Values::Bf16(v) => (part.rows, Form::Bf16, v.len() * 2),
            Values::F32(v) => (part.rows, Form::Bf16, v.len() * 4),
            Values::Packed(p) => (part.rows, p.form(), p.bytes().len()),
        };
        self.parts.iter().map(sizes).collect()
    }

    pub(super) fn widen(&self, first: usize, dst: &mut [f32]) {
        let (mut above, mut dst) = (0, dst);
        for part in &self.parts {
            let skip = first.saturating_sub(above);
            let rows = part.rows.saturating_sub(skip).min(dst.len() / self.inner.max(1));
            let (now, rest) = dst.split_at_mut(if first < above + part.rows { rows * self.inner } else { 0 });
            part.widen(skip, self.inner, now);
            dst = rest;
            above += part.rows;
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

    /// Columns `made` of `y = x Wᵀ` for `x [rows, inner]` in tiles of [`GRID`] rows; `write(dst row, first column,
    /// values)` stores each piece of a row of `y` into that row of `dst [rows, width]`, columns in ascending order. In
    /// fp8 both operands are rounded as in [`fp8`].
    pub(super) fn prefill(
        &self,
        made: Range<usize>,
        precision: Precision,
        dst: &mut [f32],
        width: usize,
        x: &[f32],
        write: &(impl Fn(&mut [f32], usize, &[f32]) + Sync),
    ) -> Result<()> {
        if x.is_empty() {
            return Ok(());
        }
        let as_multiplied = |rows: &mut [f32]| match precision {
            Precision::Bf16 => {}
            Precision::Fp8 => rows.par_chunks_exact_mut(self.inner).for_each(fp8::rounded),
        };
        let mut x = Cow::Borrowed(x);
        if precision == Precision::Fp8 {
            as_multiplied(x.to_mut());
        }
        let block = (BLOCK_VALUES / self.inner).clamp(GRID, made.len().max(GRID));
        for first in made.clone().step_by(block) {
            let outs = block.min(made.end - first);
            let mut wide = vec![0.0f32; outs * self.inner];
            wide.par_chunks_mut(64 * self.inner).enumerate().for_each(|(i, part)| {
                self.widen(first + i * 64, part);
                as_multiplied(part);
            });
            let wide = Tensor::from_vec(wide, (outs, self.inner), &Device::Cpu).and_then(|w| w.t()).map_err(device)?;
            let tiles = x.par_chunks(GRID * self.inner).zip(dst.par_chunks_mut(GRID * width));
            tiles.try_for_each(|(x, dst)| {
                let mut padded = x.to_vec();
                padded.resize(GRID * self.inner, 0.0);
                let y = Tensor::from_vec(padded, (GRID, self.inner), &Device::Cpu)
                    .and_then(|x| x.matmul(&wide))
                    .map_err(device)?;
                let (storage, _) = y.storage_and_layout();
                let Storage::Cpu(storage) = &*storage else {
                    return Err(internal("matmul", "a product of two matrices in memory is elsewhere"));
                };
                let y = storage.as_slice::<f32>().map_err(device)?;
                for (dst, y) in dst.chunks_exact_mut(width).zip(y.chunks_exact(outs)) {
                    write(dst, first, y);
                }
                Ok::<(), BackendError>(())
            })?;
        }
        Ok(())
    }
}

impl Part {
    fn widen(&self, first: usize, inner: usize, dst: &mut [f32]) {
        let start = first * inner;
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
            Values::Packed(packed) => {
                for (i, dst) in dst.chunks_exact_mut(inner).enumerate() {
                    packed.values(first + i, dst);
                }
            }
        }
    }
}

fn packed(part: &WeightView<'_>, rows: usize, inner: usize) -> Result<Packed> {
    if part.dtype == Dtype::U8 {
        return Packed::from_bytes(part.form, rows, inner, part.data.to_vec()).ok_or_else(|| {
            let expected = format!("{} as {} of [{rows}, {inner}]", part.name, part.form.name());
            shape("matrix", expected, format!("{} bytes", part.data.len()))
        });
    }
    let values = floats(part)?;
    let fill = |row: usize, dst: &mut [f32]| {
        dst.copy_from_slice(values.get(row * inner..(row + 1) * inner).unwrap_or_default());
    };
    Packed::pack(part.form, rows, inner, fill).map_err(|_| BackendError::NotFinite(part.name.to_owned()))
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

pub(super) fn floats(view: &WeightView<'_>) -> Result<Vec<f32>> {
    view.dtype
        .floats(view.data)
        .ok_or_else(|| shape("weight", "f32 or bf16 values", format!("{} {:?}", view.name, view.dtype)))
}
