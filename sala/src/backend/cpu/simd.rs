//! Vector kernels of the CPU backend: small GEMMs, dots, exponentials.
//!
//! Instruction sets are chosen at run time ([`run`]). Every sum has one fixed order that depends on nothing but the
//! length of the vectors: `gemm` adds along k one after the other for each output element, `dots` keeps 32 partial sums
//! and adds them as a tree. So the result of a row never depends on how many rows are computed with it.

use pulp::{Simd, WithSimd};

/// Uses this machine's widest instruction set among those that the kernels support.
pub(super) fn run<Op: WithSimd>(op: Op) -> Op::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return Simd::vectorize(simd, op);
    }
    pulp::Arch::new().dispatch(op)
}

/// Operands of [`gemm`]: `a` and `b` each with their rows: the offsets at which those of `a` start, as of `c`; the
/// distance between those of `b`.
pub(super) struct Gemm<'a> {
    pub(super) a: (&'a [f32], &'a [usize]),
    pub(super) b: (&'a [f32], usize),
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) c_rows: &'a [usize],
    /// To what `c` holds.
    pub(super) add: bool,
}

/// `c[c_rows[r] + j] = Σ_k a[a_rows[r] + k] · b[k·ldb + j]` for `j < n`, by fused multiply-adds in the order of k.
#[inline(always)]
pub(super) fn gemm<S: Simd>(simd: S, p: &Gemm<'_>, c: &mut [f32]) {
    // A separate call: the body is large and has many callers.
    simd.vectorize(RunGemm { p, c });
}

struct RunGemm<'a> {
    p: &'a Gemm<'a>,
    c: &'a mut [f32],
}

impl WithSimd for RunGemm<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let RunGemm { p, c } = self;
        let mut first = 0;
        while first < p.a.1.len() {
            let rows = (p.a.1.len() - first).min(6);
            match rows {
                1 => stripe::<S, 1, 8>(simd, p, first, c),
                2 => stripe::<S, 2, 4>(simd, p, first, c),
                3 => stripe::<S, 3, 4>(simd, p, first, c),
                4 => stripe::<S, 4, 2>(simd, p, first, c),
                5 => stripe::<S, 5, 2>(simd, p, first, c),
                _ => stripe::<S, 6, 2>(simd, p, first, c),
            }
            first += rows;
        }
    }
}

/// `MR` rows of a GEMM, `NV` vectors of columns at a time.
#[inline(always)]
fn stripe<S: Simd, const MR: usize, const NV: usize>(simd: S, p: &Gemm<'_>, first: usize, c: &mut [f32]) {
    let mut a: [&[f32]; MR] = [&[]; MR];
    let mut at = [0usize; MR];
    for r in 0..MR {
        a[r] = &p.a.0[p.a.1[first + r]..][..p.k];
        at[r] = p.c_rows[first + r];
    }
    let lanes = S::F32_LANES;
    let mut j = 0;
    while j + NV * lanes <= p.n {
        tile::<S, MR, NV>(simd, &a, p, j, &at, c);
        j += NV * lanes;
    }
    while j + lanes <= p.n {
        tile::<S, MR, 1>(simd, &a, p, j, &at, c);
        j += lanes;
    }
    while j < p.n {
        for r in 0..MR {
            let mut sum = if p.add { c[at[r] + j] } else { 0.0 };
            for (x, b) in a[r].iter().zip(p.b.0[j..].iter().step_by(p.b.1)) {
                sum = x.mul_add(*b, sum);
            }
            c[at[r] + j] = sum;
        }
        j += 1;
    }
}

/// The loops over k have no bounds checks: with them, a build with little optimisation keeps the sums in memory.
#[inline(always)]
fn tile<S: Simd, const MR: usize, const NV: usize>(
    simd: S,
    a: &[&[f32]; MR],
    p: &Gemm<'_>,
    j: usize,
    at: &[usize; MR],
    c: &mut [f32],
) {
    let (width, terms) = (NV * S::F32_LANES, p.k);
    let mut rows: [&[f32]; MR] = [&[]; MR];
    for r in 0..MR {
        rows[r] = &a[r][..terms];
    }
    // Every row of `b` below has `width` values, by this length.
    let b = match terms {
        0 => &[],
        k => &p.b.0[j..][..(k - 1) * p.b.1 + width],
    };
    let mut sums = [[simd.splat_f32s(0.0); NV]; MR];
    if p.add {
        for r in 0..MR {
            if let Some(old) = vectors::<S, NV>(&c[at[r] + j..][..width]) {
                sums[r] = *old;
            }
        }
    }
    // Inlined by hand: a closure does not get its caller's instruction set, and its operations turn into calls.
    for (k, row) in (0..terms).zip(b.chunks(p.b.1)) {
        let Some(b) = vectors::<S, NV>(row) else { break };
        for r in 0..MR {
            let x = simd.splat_f32s(rows[r][k]);
            for v in 0..NV {
                sums[r][v] = simd.mul_add_f32s(x, b[v], sums[r][v]);
            }
        }
    }
    for r in 0..MR {
        let new = S::as_mut_simd_f32s(&mut c[at[r] + j..][..width]).0;
        if let Some(new) = new.first_chunk_mut::<NV>() {
            *new = sums[r];
        }
    }
}

#[inline(always)]
fn vectors<S: Simd, const NV: usize>(row: &[f32]) -> Option<&[S::f32s; NV]> {
    S::as_simd_f32s(row).0.first_chunk::<NV>()
}

const PARTIALS: usize = 32;

/// `out[w·n + r] = weights[w] · x[r]` for every weight row of `inner` values and the `n` rows of `x`.
pub(super) struct Dots<'a> {
    /// `[weights, inner]`
    pub(super) weights: &'a [f32],
    /// `[n, inner]`
    pub(super) x: &'a [f32],
    pub(super) inner: usize,
    pub(super) n: usize,
    /// `[weights, n]`
    pub(super) out: &'a mut [f32],
}

impl WithSimd for Dots<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match PARTIALS / S::F32_LANES {
            1 => self.all::<S, 1>(simd),
            2 => self.all::<S, 2>(simd),
            4 => self.all::<S, 4>(simd),
            8 => self.all::<S, 8>(simd),
            _ => self.all::<S, PARTIALS>(simd),
        }
    }
}

impl Dots<'_> {
    #[inline(always)]
    fn all<S: Simd, const NV: usize>(self, simd: S) {
        let Dots { weights, x, inner, n, out } = self;
        // Two weight rows at a time keep enough independent sums in flight.
        for (pair, out) in weights.chunks(2 * inner).zip(out.chunks_mut(2 * n)) {
            if pair.len() == 2 * inner {
                let (w0, w1) = pair.split_at(inner);
                let (out0, out1) = out.split_at_mut(n);
                for ((x, o0), o1) in x.chunks_exact(inner).zip(out0).zip(out1) {
                    [*o0, *o1] = dot::<S, NV, 2>(simd, [w0, w1], x);
                }
            } else {
                for (x, o) in x.chunks_exact(inner).zip(out) {
                    [*o] = dot::<S, NV, 1>(simd, [pair], x);
                }
            }
        }
    }
}

#[inline(always)]
fn dot<S: Simd, const NV: usize, const W: usize>(simd: S, w: [&[f32]; W], x: &[f32]) -> [f32; W] {
    let mut sums = [[simd.splat_f32s(0.0); NV]; W];
    let whole = x.len() / PARTIALS * PARTIALS;
    let mut at = 0;
    while at < whole {
        let xs = S::as_simd_f32s(&x[at..][..PARTIALS]).0;
        for i in 0..W {
            let ws = S::as_simd_f32s(&w[i][at..][..PARTIALS]).0;
            for v in 0..NV {
                sums[i][v] = simd.mul_add_f32s(ws[v], xs[v], sums[i][v]);
            }
        }
        at += PARTIALS;
    }
    let mut result = [0.0; W];
    for i in 0..W {
        let mut parts = [0.0f32; PARTIALS];
        S::as_mut_simd_f32s(&mut parts).0.copy_from_slice(&sums[i]);
        for (part, (a, b)) in parts.iter_mut().zip(w[i][whole..].iter().zip(&x[whole..])) {
            *part = a.mul_add(*b, *part);
        }
        let mut half = PARTIALS / 2;
        while half > 0 {
            for l in 0..half {
                parts[l] += parts[l + half];
            }
            half /= 2;
        }
        result[i] = parts[0];
    }
    result
}

/// e^x. Zero below -86.9, clamped above 88; above -70 within 2 units in the last place.
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let x = simd.min_f32s(simd.max_f32s(x, simd.splat_f32s(-87.0)), simd.splat_f32s(88.0));
    // Adding 1.5·2^23 rounds to a whole number and leaves it in the low bits.
    let magic = simd.splat_f32s(12_582_912.0);
    let shifted = simd.mul_add_f32s(x, simd.splat_f32s(std::f32::consts::LOG2_E), magic);
    let n = simd.sub_f32s(shifted, magic);
    // ln 2 in two parts, so that the remainder is exact.
    let r = simd.mul_add_f32s(n, simd.splat_f32s(-0.693_359_4), x);
    let r = simd.mul_add_f32s(n, simd.splat_f32s(2.121_944_4e-4), r);
    let mut y = simd.splat_f32s(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        y = simd.mul_add_f32s(y, r, simd.splat_f32s(c));
    }
    let y = simd.mul_add_f32s(simd.mul_f32s(r, r), y, simd.add_f32s(r, simd.splat_f32s(1.0)));
    let exponent = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let y = simd.transmute_f32s_u32s(simd.add_u32s(simd.transmute_u32s_f32s(y), exponent));
    // Subtracting a little more than e^-87 makes clamped values zero and is rounded off everywhere else. A masked
    // choice would be a call in builds with little optimisation.
    simd.max_f32s(simd.sub_f32s(y, simd.splat_f32s(1.7e-38)), simd.splat_f32s(0.0))
}

/// `x[i] = e^(scale·x[i] - shift)`; returns their sum.
#[inline(always)]
pub(super) fn exp_sum<S: Simd>(simd: S, x: &mut [f32], scale: f32, shift: f32) -> f32 {
    let (scales, shifts) = (simd.splat_f32s(scale), simd.splat_f32s(-shift));
    let mut sums = simd.splat_f32s(0.0);
    let (body, tail) = S::as_mut_simd_f32s(x);
    for v in body {
        *v = exp(simd, simd.mul_add_f32s(*v, scales, shifts));
        sums = simd.add_f32s(sums, *v);
    }
    let mut sum = simd.reduce_sum_f32s(sums);
    for v in tail {
        *v = lane(simd, exp(simd, simd.splat_f32s(v.mul_add(scale, -shift))));
        sum += *v;
    }
    sum
}

/// Adds `e^(scale·x[i] - shift)` to `out[i]`.
#[inline(always)]
pub(super) fn add_exp<S: Simd>(simd: S, out: &mut [f32], x: &[f32], scale: f32, shift: f32) {
    let (scales, shifts) = (simd.splat_f32s(scale), simd.splat_f32s(-shift));
    let (out, out_tail) = S::as_mut_simd_f32s(out);
    let (x, x_tail) = S::as_simd_f32s(x);
    for (o, v) in out.iter_mut().zip(x) {
        *o = simd.add_f32s(*o, exp(simd, simd.mul_add_f32s(*v, scales, shifts)));
    }
    for (o, v) in out_tail.iter_mut().zip(x_tail) {
        *o += lane(simd, exp(simd, simd.splat_f32s(v.mul_add(scale, -shift))));
    }
}

#[inline(always)]
pub(super) fn max<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let (body, tail) = S::as_simd_f32s(x);
    let mut most = simd.splat_f32s(f32::NEG_INFINITY);
    for v in body {
        most = simd.max_f32s(most, *v);
    }
    tail.iter().fold(simd.reduce_max_f32s(most), |m, v| m.max(*v))
}

#[inline(always)]
pub(super) fn scale<S: Simd>(simd: S, x: &mut [f32], factor: f32) {
    let factors = simd.splat_f32s(factor);
    let (body, tail) = S::as_mut_simd_f32s(x);
    for v in body {
        *v = simd.mul_f32s(*v, factors);
    }
    for v in tail {
        *v *= factor;
    }
}

#[inline(always)]
fn lane<S: Simd>(_simd: S, x: S::f32s) -> f32 {
    let lanes: &[f32] = pulp::bytemuck::cast_slice(std::slice::from_ref(&x));
    lanes.first().copied().unwrap_or(0.0)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// `x · sigmoid(g)`
    Sigmoid,
    /// `x · g · sigmoid(g)`
    Silu,
}

pub(super) struct ApplyGate<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) g: &'a [f32],
    pub(super) gate: Gate,
}

impl WithSimd for ApplyGate<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let one = simd.splat_f32s(1.0);
        let factor = |g: S::f32s| {
            let sigmoid = simd.div_f32s(one, simd.add_f32s(one, exp(simd, simd.neg_f32s(g))));
            match self.gate {
                Gate::Sigmoid => sigmoid,
                Gate::Silu => simd.mul_f32s(g, sigmoid),
            }
        };
        let (x, x_tail) = S::as_mut_simd_f32s(self.x);
        let (g, g_tail) = S::as_simd_f32s(self.g);
        for (x, g) in x.iter_mut().zip(g) {
            *x = simd.mul_f32s(*x, factor(*g));
        }
        for (x, g) in x_tail.iter_mut().zip(g_tail) {
            *x *= lane(simd, factor(simd.splat_f32s(*g)));
        }
    }
}

/// `dst = x / rms(x) · weight`, the mean of squares in 16 partial sums (docs/model.md §3).
pub(super) fn rms_norm(dst: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
    let mut parts = [0.0f32; 16];
    for chunk in x.chunks(16) {
        for (part, v) in parts.iter_mut().zip(chunk) {
            *part += v * v;
        }
    }
    let mut half = 8;
    while half > 0 {
        for l in 0..half {
            parts[l] += parts[l + half];
        }
        half /= 2;
    }
    let inv = 1.0 / (parts[0] / x.len() as f32 + eps).sqrt();
    for ((d, v), w) in dst.iter_mut().zip(x).zip(weight) {
        *d = v * inv * w;
    }
}
