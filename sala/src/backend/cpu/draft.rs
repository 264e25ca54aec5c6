//! The draft head's operations, as plain equations (docs/speculative.md §3.1).
//!
//! The window is a ring over positions, one contiguous block per key/value head, so that scores of a query are one or two
//! runs of dot products.

use std::ops::Range;

use super::images::image_values;
use super::matrix::Matrix;
use super::simd::{self, Dots, rms_norm};
use super::{Buf, Cpu};
use crate::backend::draft::{DraftOps, DraftResidual, DraftShape};
use crate::backend::{BufKind, Pass, Result, check_shape, internal};
use crate::engine::protocol::{ImageTensor, Token};

#[derive(Default)]
pub(super) struct DraftStep {
    tokens: Vec<Token>,
    position: usize,
    first: usize,
}

/// Rotated, each `[kv_heads, capacity, head_dim]`.
pub struct Window {
    shape: DraftShape,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Window {
    fn at(&self, kv_head: usize, position: usize) -> usize {
        let capacity = self.shape.capacity();
        (kv_head * capacity + position % capacity) * self.shape.head_dim
    }
}

/// Rotates the pairs `(i, i + d/2)` of one head. Angles in f64: at position 1M a product in f32 is off by 0.06 rad.
fn rotate(x: &mut [f32], position: usize, inv_freq: &[f64]) {
    let (low, high) = x.split_at_mut(inv_freq.len());
    for ((a, b), f) in low.iter_mut().zip(high).zip(inv_freq) {
        let (sin, cos) = (position as f64 * f).sin_cos();
        let (sin, cos) = (sin as f32, cos as f32);
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

fn rows_of(op: &'static str, buf: &Buf, rows: usize, width: usize) -> Result<()> {
    let found = format_args!("{} values in rows of {}", buf.data.len(), buf.width);
    let holds = buf.width == width && buf.data.len() >= rows * width;
    check_shape(holds, op, format_args!("{rows} rows of {width}"), found)
}

impl DraftOps for Cpu {
    type Window = Window;

    fn draft_buf(&mut self, rows: usize, width: usize, _kind: BufKind) -> Result<Buf> {
        self.memory.work += (rows * width * 4) as u64;
        Ok(Buf { width, data: vec![0.0; rows * width] })
    }

    fn draft_window(&mut self, shape: &DraftShape) -> Result<Window> {
        let values = shape.capacity() * shape.kv_heads * shape.head_dim;
        self.memory.state += (2 * values * 4) as u64;
        Ok(Window { shape: shape.clone(), k: vec![0.0; values], v: vec![0.0; values] })
    }

    fn draft_seek(&mut self, tokens: &[Token], position: usize, first: usize) -> Result<()> {
        self.draft.tokens.clear();
        self.draft.tokens.extend_from_slice(tokens);
        (self.draft.position, self.draft.first) = (position, first);
        Ok(())
    }

    fn draft_copy(&mut self, dst: &mut Buf, dst_row: usize, src: &Buf, rows: Range<usize>) -> Result<()> {
        rows_of("draft_copy", src, rows.end, dst.width)?;
        rows_of("draft_copy", dst, dst_row + rows.len(), src.width)?;
        let width = src.width;
        dst.data[dst_row * width..][..rows.len() * width]
            .copy_from_slice(&src.data[rows.start * width..rows.end * width]);
        Ok(())
    }

    fn draft_fuse(
        &mut self,
        g: &mut Buf,
        aux_hidden: &Buf,
        norms: &[Vec<f32>],
        eps: f32,
        w: &Matrix,
        pass: Pass,
    ) -> Result<()> {
        rows_of("draft_fuse", aux_hidden, pass.rows(), w.inner)?;
        let mut x = aux_hidden.rows(pass).to_vec();
        if !norms.is_empty() {
            let slot = aux_hidden.width / norms.len();
            for (i, (x, aux)) in x.chunks_exact_mut(slot).zip(aux_hidden.rows(pass).chunks_exact(slot)).enumerate() {
                rms_norm(x, aux, &norms[i % norms.len()], eps);
            }
        }
        self.gemm(g, &x, w, None, pass, |g, first, y| g[first..][..y.len()].copy_from_slice(y))
    }

    fn draft_input(
        &mut self,
        x: &mut Buf,
        g: &mut Buf,
        table: &Matrix,
        scale: f32,
        input_norm: &Vec<f32>,
        hidden_norm: &Vec<f32>,
        eps: f32,
        residual: DraftResidual,
        pass: Pass,
    ) -> Result<()> {
        let hidden = g.width;
        rows_of("draft_input", x, pass.rows(), 2 * hidden)?;
        let mut embedding = vec![0.0; hidden];
        let rows = x.rows_mut(pass).chunks_exact_mut(2 * hidden).zip(g.rows_mut(pass).chunks_exact_mut(hidden));
        for ((x, g), token) in rows.zip(&self.draft.tokens) {
            table.widen(*token as usize, &mut embedding);
            embedding.iter_mut().for_each(|v| *v *= scale);
            let (e, h) = x.split_at_mut(hidden);
            rms_norm(e, &embedding, input_norm, eps);
            rms_norm(h, g, hidden_norm, eps);
            match residual {
                DraftResidual::Stream => {}
                DraftResidual::Normed => g.copy_from_slice(h),
            }
        }
        Ok(())
    }

    fn draft_project(&mut self, dst: &mut Buf, x: &Buf, w: &Matrix, scale: f32, pass: Pass) -> Result<()> {
        self.gemm(dst, x.rows(pass), w, None, pass, |dst, first, y| {
            for (d, y) in dst[first..].iter_mut().zip(y) {
                *d = scale * y;
            }
        })
    }

    fn draft_append(&mut self, window: &mut Window, kvq: &Buf, pass: Pass) -> Result<()> {
        let (d, kv_heads) = (window.shape.head_dim, window.shape.kv_heads);
        rows_of("draft_append", kvq, pass.rows(), window.shape.kvq_width())?;
        for (row, values) in kvq.rows(pass).chunks_exact(kvq.width).enumerate() {
            let position = self.draft.position + row;
            let (keys, values) = values.split_at(kv_heads * d);
            for (head, (k, v)) in keys.chunks_exact(d).zip(values.chunks_exact(d)).enumerate() {
                let at = window.at(head, position);
                window.k[at..at + d].copy_from_slice(k);
                rotate(&mut window.k[at..at + d], position, &window.shape.inv_freq);
                window.v[at..at + d].copy_from_slice(v);
            }
        }
        Ok(())
    }

    fn draft_attend(&mut self, o: &mut Buf, kvq: &Buf, window: &Window, pass: Pass) -> Result<()> {
        let shape = &window.shape;
        let (d, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        rows_of("draft_attend", kvq, pass.rows(), shape.kvq_width())?;
        rows_of("draft_attend", o, 1, shape.heads * d)?;
        let position = self.draft.position + pass.rows().saturating_sub(1);
        let start = self.draft.first.max((position + 1).saturating_sub(shape.window));
        let keys = position + 1 - start;
        // The visible positions are one run of slots, or two where the ring wraps.
        let whole = keys.min(shape.capacity() - start % shape.capacity());
        let runs = [(start, whole), (start + whole, keys - whole)];
        let row = kvq.rows(pass).chunks_exact(kvq.width).next_back();
        let row = row.ok_or_else(|| internal("draft_attend", "a pass without rows"))?;
        let mut query = row[2 * shape.kv_heads * d..].to_vec();
        query.chunks_exact_mut(d).for_each(|q| rotate(q, position, &shape.inv_freq));
        let mut scores = vec![0.0f32; keys * group];
        for head in 0..shape.kv_heads {
            let x = &query[head * group * d..][..group * d];
            let mut done = 0;
            for (first, n) in runs {
                let weights = &window.k[window.at(head, first)..][..n * d];
                let out = &mut scores[done * group..][..n * group];
                simd::run(Dots { weights, x, inner: d, n: group, out });
                done += n;
            }
            let scale = (d as f32).sqrt().recip();
            for (g, o) in o.data[head * group * d..][..group * d].chunks_exact_mut(d).enumerate() {
                let score = scores.iter().skip(g).step_by(group);
                let most = score.clone().fold(f32::NEG_INFINITY, |m, s| m.max(*s));
                let mut sum = 0.0;
                o.fill(0.0);
                let mut weights = score.map(|s| ((s - most) * scale).exp());
                for (first, n) in runs {
                    let values = window.v[window.at(head, first)..][..n * d].chunks_exact(d);
                    for v in values {
                        let p = weights.next().unwrap_or_default();
                        sum += p;
                        o.iter_mut().zip(v).for_each(|(o, v)| *o += p * v);
                    }
                }
                o.iter_mut().for_each(|o| *o /= sum);
            }
        }
        Ok(())
    }

    fn read_window(&mut self, window: &Window, positions: Range<usize>) -> Result<[ImageTensor; 2]> {
        let shape = &window.shape;
        let d = shape.head_dim;
        let dims = vec![positions.len(), shape.kv_heads, d];
        let gather = |values: &[f32]| -> Vec<f32> {
            let rows = positions.clone().flat_map(|p| (0..shape.kv_heads).map(move |h| (p, h)));
            rows.flat_map(|(p, h)| values[window.at(h, p)..][..d].to_vec()).collect()
        };
        Ok([("k", &window.k), ("v", &window.v)]
            .map(|(name, rows)| ImageTensor::of_floats(name, dims.clone(), &gather(rows))))
    }

    fn write_window(&mut self, window: &mut Window, start: usize, k: &ImageTensor, v: &ImageTensor) -> Result<()> {
        let (d, kv_heads) = (window.shape.head_dim, window.shape.kv_heads);
        let rows = k.shape.first().copied().unwrap_or(0);
        let dims = [rows, kv_heads, d];
        let (k, v) = (image_values(k, &dims)?, image_values(v, &dims)?);
        for (i, (k, v)) in k.chunks_exact(d).zip(v.chunks_exact(d)).enumerate() {
            let at = window.at(i % kv_heads, start + i / kv_heads);
            window.k[at..at + d].copy_from_slice(k);
            window.v[at..at + d].copy_from_slice(v);
        }
        Ok(())
    }
}
