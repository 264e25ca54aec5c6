use std::ops::Range;

use rayon::prelude::*;

use super::simd::{self, ApplyGate, Gate, rms_norm};
use super::{Buf, Cpu, Matrix};
use crate::backend::{HeadRows, Pass, Result, Rows, TOP_LOGITS, TopLogits, check_shape, fp8, sections};
use crate::engine::protocol::{Precision, Token};

impl Cpu {
    /// `dst = f(x Wᵀ)`: `write(row of dst, first column, values of y)` stores pieces of rows, columns ascending. A
    /// prefill pass may compute only the sections in columns `only`.
    pub(super) fn gemm(
        &self,
        dst: &mut Buf,
        x: &[f32],
        w: &Matrix,
        only: Option<Range<usize>>,
        pass: Pass,
        write: impl Fn(&mut [f32], usize, &[f32]) + Sync,
    ) -> Result<()> {
        let width = dst.width;
        let expected = pass.rows() * w.inner;
        let fits = x.len() == expected && dst.data.len() >= pass.rows() * width;
        check_shape(fits, "gemm", format_args!("{expected} values"), x.len())?;
        match pass {
            Pass::Prefill { rows } => {
                for (made, precision) in sections::within(&w.sections, only.as_ref())? {
                    let plain = match precision {
                        Precision::Bf16 => rows,
                        Precision::Fp8 => fp8::among_first(fp8::PLAIN_ROWS, self.segment_read, rows),
                    };
                    let (dst, narrow_dst) = dst.rows_mut(pass).split_at_mut(plain * width);
                    let (x, narrow_x) = x.split_at(plain * w.inner);
                    w.prefill(made.clone(), Precision::Bf16, dst, width, x, &write)?;
                    w.prefill(made, Precision::Fp8, narrow_dst, width, narrow_x, &write)?;
                }
                Ok(())
            }
            Pass::Verify { rows } => {
                let mut y = vec![0.0; rows * w.out];
                w.verify(&mut y, x, rows);
                for (dst, y) in dst.rows_mut(pass).chunks_exact_mut(width).zip(y.chunks_exact(w.out)) {
                    write(dst, 0, y);
                }
                Ok(())
            }
        }
    }
}

fn normed(h: &Buf, norm: &[f32], eps: f32, pass: Pass) -> Result<Vec<f32>> {
    check_shape(norm.len() == h.width, "rms_norm", format_args!("{} lanes", h.width), norm.len())?;
    let mut x = vec![0.0; pass.rows() * h.width];
    x.par_chunks_mut(h.width)
        .with_min_len(16)
        .zip(h.rows(pass).par_chunks(h.width))
        .for_each(|(x, h)| rms_norm(x, h, norm, eps));
    Ok(x)
}

impl Rows for Cpu {
    fn embed(&mut self, h: &mut Buf, table: &Matrix, scale: f32, pass: Pass) -> Result<()> {
        let width = h.width;
        let fits = self.tokens.len() >= pass.rows() && self.tokens.iter().all(|t| (*t as usize) < table.out);
        let found = format_args!("{} tokens, the largest {:?}", self.tokens.len(), self.tokens.iter().max());
        check_shape(fits, "embed", format_args!("{} tokens below {}", pass.rows(), table.out), found)?;
        for (row, token) in h.rows_mut(pass).chunks_exact_mut(width).zip(&self.tokens) {
            table.widen(*token as usize, row);
            row.iter_mut().for_each(|v| *v *= scale);
        }
        Ok(())
    }

    fn norm_linear(
        &mut self,
        dst: &mut Buf,
        h: &Buf,
        norm: &Vec<f32>,
        eps: f32,
        w: &Matrix,
        only: Option<Range<usize>>,
        pass: Pass,
    ) -> Result<()> {
        let x = normed(h, norm, eps, pass)?;
        self.gemm(dst, &x, w, only, pass, |dst, first, y| dst[first..][..y.len()].copy_from_slice(y))
    }

    fn norm_gate_up(
        &mut self,
        dst: &mut Buf,
        h: &Buf,
        norm: &Vec<f32>,
        eps: f32,
        w: &Matrix,
        pass: Pass,
    ) -> Result<()> {
        let x = normed(h, norm, eps, pass)?;
        let width = dst.width;
        // Gate columns are written first: dst holds silu(gate) until its up columns arrive.
        self.gemm(dst, &x, w, None, pass, |dst, first, y| {
            let (gate, up) = y.split_at(width.saturating_sub(first).min(y.len()));
            let dst_gate = &mut dst[first.min(width)..][..gate.len()];
            dst_gate.fill(1.0);
            simd::run(ApplyGate { x: dst_gate, g: gate, gate: Gate::Silu });
            let skipped = (first + gate.len()) - width.min(first + gate.len());
            for (d, up) in dst[skipped..].iter_mut().zip(up) {
                *d *= up;
            }
        })
    }

    fn linear_add(&mut self, h: &mut Buf, x: &Buf, w: &Matrix, scale: f32, pass: Pass) -> Result<()> {
        self.gemm(h, x.rows(pass), w, None, pass, |h, first, y| {
            for (h, y) in h[first..].iter_mut().zip(y) {
                *h += scale * y;
            }
        })
    }

    fn gate_output(
        &mut self,
        h: &mut Buf,
        o: &Buf,
        norm: Option<&Vec<f32>>,
        eps: f32,
        x: &Buf,
        gate: Range<usize>,
        w: &Matrix,
        scale: f32,
        pass: Pass,
    ) -> Result<()> {
        let mut a = match norm {
            Some(norm) => normed(o, norm, eps, pass)?,
            None => o.rows(pass).to_vec(),
        };
        if !gate.is_empty() {
            a.par_chunks_mut(o.width).with_min_len(16).zip(x.rows(pass).par_chunks(x.width)).for_each(|(a, x)| {
                simd::run(ApplyGate { x: a, g: &x[gate.clone()], gate: Gate::Sigmoid });
            });
        }
        self.linear_add(h, &Buf { width: o.width, data: a }, w, scale, pass)
    }

    fn keep_aux_hidden(&mut self, aux_hidden: &mut Buf, slot: usize, h: &Buf, pass: Pass) -> Result<()> {
        let (width, hidden) = (aux_hidden.width, h.width);
        for (aux, h) in aux_hidden.rows_mut(pass).chunks_exact_mut(width).zip(h.rows(pass).chunks_exact(hidden)) {
            aux[slot * hidden..][..hidden].copy_from_slice(h);
        }
        Ok(())
    }

    fn head(
        &mut self,
        logits: &mut Buf,
        h: &Buf,
        norm: &Vec<f32>,
        eps: f32,
        divisor: f32,
        w: &Matrix,
        rows: HeadRows,
        pass: Pass,
    ) -> Result<()> {
        let range = rows.range(pass);
        let count = range.len();
        let fits = range.end <= pass.rows() && count * logits.width <= logits.data.len() && w.out == logits.width;
        let found = format_args!("{range:?}, width {}", logits.width);
        check_shape(fits, "head", format_args!("rows below {} and room for {count} × {}", pass.rows(), w.out), found)?;
        let mut x = vec![0.0; count * h.width];
        for (x, h) in x.chunks_exact_mut(h.width).zip(h.data.chunks_exact(h.width).skip(range.start)) {
            rms_norm(x, h, norm, eps);
            x.iter_mut().for_each(|v| *v /= divisor);
        }
        w.verify(&mut logits.data[..count * w.out], &x, count);
        Ok(())
    }

    fn top_logits(&mut self, logits: &Buf, vocab: usize, rows: HeadRows, pass: Pass) -> Result<()> {
        let rows = &logits.data[..rows.range(pass).len() * logits.width];
        self.top_logits = rows.par_chunks(logits.width).map(|row| best(&row[..vocab])).collect();
        Ok(())
    }

    fn read_top_logits(&mut self, rows: usize) -> Result<Vec<TopLogits>> {
        Ok(self.top_logits.iter().take(rows).cloned().collect())
    }
}

fn best(row: &[f32]) -> TopLogits {
    // The key orders by value, then by lower id.
    let key = |(id, logit): (usize, &f32)| {
        let bits = logit.to_bits();
        let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        u64::from(ordered) << 32 | u64::from(!(id as u32))
    };
    let mut keys: Vec<u64> = row.iter().enumerate().map(key).collect();
    let keep = TOP_LOGITS.min(keys.len());
    if keep < keys.len() {
        keys.select_nth_unstable_by(keep, |a, b| b.cmp(a));
        keys.truncate(keep);
    }
    keys.sort_unstable_by(|a, b| b.cmp(a));
    let ids: Vec<Token> = keys.iter().map(|k| !(*k as u32)).collect();
    let logits: Vec<f32> = ids.iter().filter_map(|id| row.get(*id as usize).copied()).collect();
    let most = logits.first().copied().unwrap_or(f32::NEG_INFINITY);
    let sum: f64 = row.iter().map(|v| f64::from(v - most).exp()).sum();
    TopLogits { ids, logits, log_sum_exp: most + sum.ln() as f32 }
}
