//! Lightning attention on the CPU (docs/model.md §4, steps 2-5): qk-norm, RoPE, and one recurrent state per head read
//! and written in two forms.
//!
//! Given tokens use the chunk form, [`GRID`] rows at a time; generated ones use the recurrence, which reads the state
//! and only remembers its rows (k, v) until they are folded. Every state element is updated by the same two operations
//! in `verify` and in `fold`, so n rows at once equal n single steps bit for bit.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

#[cfg(any(test, feature = "emulated"))]
use super::Planted;
use super::pages::{Account, Charge};
use super::simd::{self, Gemm, gemm, rms_norm};
use super::{Buf, Cpu};
use crate::backend::{GRID, Lightning, MAX_VERIFY_ROWS, Pass, Result};
use crate::core::spec::LightningSpec;

impl Lightning for Cpu {
    fn lightning(
        &mut self,
        o: &mut Buf,
        x: &Buf,
        q_norm: Option<&Vec<f32>>,
        k_norm: Option<&Vec<f32>>,
        states: &mut [&mut Recurrent],
        spec: &LightningSpec,
        eps: f32,
        pass: Pass,
    ) -> Result<()> {
        #[cfg_attr(not(any(test, feature = "emulated")), expect(unused_mut, reason = "only tests plant errors"))]
        let mut slopes = spec.slopes();
        #[cfg(any(test, feature = "emulated"))]
        if self.planted == Some(Planted::Decay) {
            slopes.rotate_left(1);
        }
        let (mut row, out) = (0, spec.heads * spec.head_dim);
        let groups = self.groups(pass, states.len())?;
        self.ropes.resize_with(self.ropes.len().max(groups.len()), RopeTable::default);
        for ((group, state), table) in groups.iter().zip(states).zip(&mut self.ropes) {
            #[cfg_attr(not(any(test, feature = "emulated")), expect(unused_mut, reason = "only tests plant errors"))]
            let mut first = group.place.position;
            #[cfg(any(test, feature = "emulated"))]
            if self.planted == Some(Planted::Rotation) && matches!(pass, Pass::Verify { .. }) {
                first += 1;
            }
            if let Some(theta) = spec.rope_theta {
                table.prepare(first, group.rows, spec.head_dim, theta);
            }
            let rows = row..row + group.rows;
            let input = Input {
                x: &x.rows(pass)[rows.start * x.width..rows.end * x.width],
                width: x.width,
                q_norm: q_norm.map(Vec::as_slice),
                k_norm: k_norm.map(Vec::as_slice),
                rope: spec.rope_theta.map(|_| &*table),
                slopes: &slopes,
                spec,
                eps,
            };
            let o = &mut o.rows_mut(pass)[rows.start * out..rows.end * out];
            attend(o, &input, state, pass, group.place.pending);
            row = rows.end;
        }
        Ok(())
    }

    fn fold(&mut self, state: &mut Recurrent, spec: &LightningSpec) -> Result<()> {
        state.fold(spec, self.place.pending);
        Ok(())
    }
}

pub(super) struct HeadState {
    /// `[k lane, v lane]`
    s: Vec<f32>,
    /// k and v of the last verify pass, `[2, 16, d]`.
    pending: Vec<f32>,
}

pub struct Recurrent {
    heads: Vec<HeadState>,
    dim: usize,
    _charge: Charge,
}

impl Recurrent {
    pub(super) fn new(spec: &LightningSpec, account: &Account) -> Recurrent {
        let d = spec.head_dim;
        let head = || HeadState { s: vec![0.0; d * d], pending: vec![0.0; 2 * MAX_VERIFY_ROWS * d] };
        let heads: Vec<HeadState> = (0..spec.heads).map(|_| head()).collect();
        let bytes = heads.iter().map(|h| 4 * (h.s.len() + h.pending.len())).sum();
        Recurrent { heads, dim: d, _charge: account.charge(bytes) }
    }

    pub(super) fn shape(&self) -> [usize; 3] {
        [self.heads.len(), self.dim, self.dim]
    }

    /// `[heads, d, d]`
    pub(super) fn read(&self) -> Vec<f32> {
        self.heads.iter().flat_map(|h| h.s.iter().copied()).collect()
    }

    pub(super) fn write(&mut self, values: &[f32]) {
        let mut rest = values;
        for head in &mut self.heads {
            let (own, others) = rest.split_at(head.s.len());
            head.s.copy_from_slice(own);
            rest = others;
        }
    }

    pub(super) fn clear(&mut self) {
        self.heads.iter_mut().for_each(|h| h.s.fill(0.0));
    }

    pub(super) fn fold(&mut self, spec: &LightningSpec, pending: usize) {
        let slopes = spec.slopes();
        self.heads.par_iter_mut().zip(slopes).for_each(|(head, slope)| {
            simd::run(Recur { head, pending, decay: (-slope).exp(), dim: spec.head_dim, q: &[], rows: 0, o: &mut [] });
        });
    }
}

/// Of the float32 angles of consecutive positions, `[rows, d/2]`; shared by the layers of a pass.
#[derive(Default)]
pub(super) struct RopeTable {
    key: Option<(usize, usize, usize, u64)>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    pub(super) fn prepare(&mut self, first: usize, rows: usize, dim: usize, theta: f64) {
        let key = Some((first, rows, dim, theta.to_bits()));
        if self.key == key {
            return;
        }
        self.key = key;
        // Rounded to float32 at the same points as in the released code.
        let power = |i: usize| theta.powf(f64::from((2 * i) as f32 / dim as f32)) as f32;
        let inv_freq: Vec<f32> = (0..dim / 2).map(|i| 1.0 / power(i)).collect();
        // The angle is the float32 product; only its sine and cosine are exact (docs/model.md §4).
        let angles = (first..first + rows).flat_map(|p| inv_freq.iter().map(move |w| p as f32 * w));
        (self.cos, self.sin) = angles.map(|a| (f64::from(a).cos() as f32, f64::from(a).sin() as f32)).unzip();
    }

    fn rotate(&self, row: usize, x: &mut [f32]) {
        let half = x.len() / 2;
        let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
        let (low, high) = x.split_at_mut(half);
        for ((a, b), (c, s)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}

struct Input<'a> {
    /// The fused projection, `[rows, width]`: q, k, v, z.
    x: &'a [f32],
    width: usize,
    q_norm: Option<&'a [f32]>,
    k_norm: Option<&'a [f32]>,
    rope: Option<&'a RopeTable>,
    slopes: &'a [f32],
    spec: &'a LightningSpec,
    eps: f32,
}

/// Output: `o [rows, heads·d]`.
fn attend(o: &mut [f32], input: &Input<'_>, state: &mut Recurrent, pass: Pass, pending: usize) {
    let (d, rows) = (input.spec.head_dim, input.x.len() / input.width);
    let outs: Vec<Vec<f32>> = state
        .heads
        .par_iter_mut()
        .zip(input.slopes.par_iter().copied())
        .enumerate()
        .map(|(h, (head, slope))| {
            let (q, k, v) = input.head(h);
            let mut out = vec![0.0; rows * d];
            match pass {
                Pass::Prefill { .. } => simd::run(Chunks { head, slope, dim: d, q: &q, k: &k, v: &v, o: &mut out }),
                Pass::Verify { .. } => {
                    let decay = (-slope).exp();
                    // Remembered rows are replaced only after they have been absorbed.
                    simd::run(Recur { head, pending, decay, dim: d, q: &[], rows: 0, o: &mut [] });
                    let (keys, values) = head.pending.split_at_mut(MAX_VERIFY_ROWS * d);
                    keys[..rows * d].copy_from_slice(&k);
                    values[..rows * d].copy_from_slice(&v);
                    simd::run(Recur { head, pending: 0, decay, dim: d, q: &q, rows, o: &mut out });
                }
            }
            out
        })
        .collect();
    let width = outs.len() * d;
    for (h, out) in outs.iter().enumerate() {
        for (row, out) in o.chunks_exact_mut(width).zip(out.chunks_exact(d)) {
            row[h * d..][..d].copy_from_slice(out);
        }
    }
}

impl Input<'_> {
    /// q (scaled), k and v of one head, `[rows, d]` each, normed and rotated.
    fn head(&self, h: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let s = self.spec;
        let (d, rows) = (s.head_dim, self.x.len() / self.width);
        let group = h / (s.heads / s.kv_heads);
        let columns = [h * d, (s.heads + group) * d, (s.heads + s.kv_heads + group) * d];
        let [mut q, mut k, mut v] = [(); 3].map(|()| vec![0.0; rows * d]);
        for (r, row) in self.x.chunks_exact(self.width).enumerate() {
            let cut = |i: usize| &row[columns[i]..][..d];
            for (dst, src, norm) in [(&mut q, cut(0), self.q_norm), (&mut k, cut(1), self.k_norm)] {
                let dst = &mut dst[r * d..][..d];
                match norm {
                    Some(norm) => rms_norm(dst, src, norm, self.eps),
                    None => dst.copy_from_slice(src),
                }
                if let Some(rope) = self.rope {
                    rope.rotate(r, dst);
                }
            }
            q[r * d..][..d].iter_mut().for_each(|q| *q *= s.scale);
            v[r * d..][..d].copy_from_slice(cut(2));
        }
        (q, k, v)
    }
}

/// The recurrence: absorbs `pending` remembered rows for good, or runs `rows` remembered rows on a temporary copy.
struct Recur<'a> {
    head: &'a mut HeadState,
    pending: usize,
    decay: f32,
    dim: usize,
    /// `[rows, d]`
    q: &'a [f32],
    rows: usize,
    /// `[rows, d]`
    o: &'a mut [f32],
}

impl WithSimd for Recur<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Recur { head, pending, decay, dim, q, rows, o } = self;
        let HeadState { s, pending: remembered } = head;
        let (keys, values) = remembered.split_at(MAX_VERIFY_ROWS * dim);
        let mut passing = vec![0.0f32; dim];
        for (i, line) in s.chunks_exact_mut(dim).enumerate() {
            for (k, v) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).take(pending) {
                update(simd, line, decay, k[i], v);
            }
            if rows == 0 {
                continue;
            }
            // One line of the state passes all rows while it is in the cache; each row's sum runs over the lines.
            passing.copy_from_slice(line);
            for r in 0..rows {
                update(simd, &mut passing, decay, keys[r * dim + i], &values[r * dim..][..dim]);
                add_scaled(simd, &mut o[r * dim..][..dim], q[r * dim + i], &passing);
            }
        }
    }
}

/// `line = decay · line + k · v`
#[inline(always)]
fn update<S: Simd>(simd: S, line: &mut [f32], decay: f32, k: f32, v: &[f32]) {
    let (ks, decays) = (simd.splat_f32s(k), simd.splat_f32s(decay));
    let (line, line_tail) = S::as_mut_simd_f32s(line);
    let (v, v_tail) = S::as_simd_f32s(v);
    for (s, v) in line.iter_mut().zip(v) {
        *s = simd.mul_add_f32s(ks, *v, simd.mul_f32s(decays, *s));
    }
    for (s, v) in line_tail.iter_mut().zip(v_tail) {
        *s = k.mul_add(*v, decay * *s);
    }
}

/// `o += q · line`
#[inline(always)]
fn add_scaled<S: Simd>(simd: S, o: &mut [f32], q: f32, line: &[f32]) {
    let qs = simd.splat_f32s(q);
    let (o, o_tail) = S::as_mut_simd_f32s(o);
    let (line, line_tail) = S::as_simd_f32s(line);
    for (o, s) in o.iter_mut().zip(line) {
        *o = simd.mul_add_f32s(qs, *s, *o);
    }
    for (o, s) in o_tail.iter_mut().zip(line_tail) {
        *o = q.mul_add(*s, *o);
    }
}

struct Chunks<'a> {
    head: &'a mut HeadState,
    slope: f32,
    dim: usize,
    /// `[rows, d]` each; q is scaled.
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    o: &'a mut [f32],
}

impl WithSimd for Chunks<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Chunks { head, slope, dim, q, k, v, o } = self;
        let state = &mut head.s;
        let power = |n: usize| (-slope * n as f32).exp();
        let powers: Vec<f32> = (0..=GRID).map(power).collect();
        let at: Vec<usize> = (0..GRID.max(dim)).map(|i| i * dim).collect();
        let score_rows: Vec<usize> = (0..GRID.max(dim)).map(|i| i * GRID).collect();
        let mut turned = vec![0.0f32; dim * GRID];
        let mut scores = vec![0.0f32; GRID * GRID];
        let mut carried = vec![0.0f32; GRID * dim];
        let span = GRID * dim;
        for (((q, k), v), o) in q.chunks(span).zip(k.chunks(span)).zip(v.chunks(span)).zip(o.chunks_mut(span)) {
            let rows = q.len() / dim;
            // O = diag(λ^(i+1)) Q S + ((Q Kᵀ) ∘ D) V
            for ((c, q), decay) in carried.chunks_exact_mut(dim).zip(q.chunks_exact(dim)).zip(&powers[1..]) {
                for (c, q) in c.iter_mut().zip(q) {
                    *c = q * decay;
                }
            }
            let (here, scored) = (&at[..rows], &score_rows[..rows]);
            let read = Gemm { a: (&carried, here), b: (state, dim), k: dim, n: dim, c_rows: here, add: false };
            gemm(simd, &read, o);
            turn(&mut turned, k, dim, |_| 1.0);
            let inner = Gemm { a: (q, here), b: (&turned, GRID), k: dim, n: rows, c_rows: scored, add: false };
            gemm(simd, &inner, &mut scores);
            for (i, row) in scores.chunks_exact_mut(GRID).take(rows).enumerate() {
                for (s, decay) in row[..=i].iter_mut().zip(powers[..=i].iter().rev()) {
                    *s *= decay;
                }
            }
            // A row's own sum ends at the row: terms of later rows must not enter, not even as zeros.
            for i in 0..rows {
                let (scored, here) = (&score_rows[i..=i], &at[i..=i]);
                let own = Gemm { a: (&scores, scored), b: (v, dim), k: i + 1, n: dim, c_rows: here, add: true };
                gemm(simd, &own, o);
            }
            // S = λ^C S + (diag(λ^(C-1-i)) K)ᵀ V
            turn(&mut turned, k, dim, |i| powers[rows - 1 - i]);
            simd::scale(simd, state, powers[rows]);
            let (lanes, here) = (&score_rows[..dim], &at[..dim]);
            let write = Gemm { a: (&turned, lanes), b: (v, dim), k: rows, n: dim, c_rows: here, add: true };
            gemm(simd, &write, state);
        }
    }
}

/// `dst[lane, i] = factor(i) · k[i, lane]`, rows of [`GRID`].
#[inline(always)]
fn turn(dst: &mut [f32], k: &[f32], dim: usize, factor: impl Fn(usize) -> f32) {
    for (i, row) in k.chunks_exact(dim).enumerate() {
        let f = factor(i);
        for (lane, k) in row.iter().enumerate() {
            dst[lane * GRID + i] = f * k;
        }
    }
}
