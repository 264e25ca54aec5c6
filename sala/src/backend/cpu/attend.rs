//! Attention of the CPU's sparse layers over the blocks of [`super::select`] (docs/model.md §5.7).

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::cache::Cache;
use super::select::{Part, Queries, Scratch, softmax_scale, tile_rows};
use super::selection::{ALL, Selection};
use super::simd::{self, Gemm, exp_sum, gemm, scale};
use crate::backend::{MASS, Pass};
use crate::core::spec::SparseSpec;

/// `o [rows, heads·d]`. Rows of a verify pass add their attention to the selection's mass. The first row of `q` and
/// `o` is row `row` of the pass.
pub(super) fn attend(
    o: &mut [f32],
    row: usize,
    q: Queries<'_>,
    sel: &mut Selection,
    cache: &Cache,
    spec: &SparseSpec,
    pass: Pass,
) {
    let rows = q.x.len() / q.width;
    let tile = tile_rows(spec);
    let lists = tile * spec.kv_heads;
    let (ld, listed) = (sel.ld, spec.kv_heads * spec.topk);
    let masses: Vec<Option<&mut [u32]>> = match pass {
        Pass::Verify { .. } => sel.mass[row * ld..(row + rows) * ld].chunks_mut(tile * ld).map(Some).collect(),
        Pass::Prefill { .. } => (0..rows.div_ceil(tile)).map(|_| None).collect(),
    };
    o.par_chunks_mut(tile * spec.heads * spec.head_dim)
        .zip(q.x.par_chunks(tile * q.width))
        .zip(sel.counts[row * spec.kv_heads..(row + rows) * spec.kv_heads].par_chunks(lists))
        .zip(sel.blocks[row * listed..(row + rows) * listed].par_chunks(lists * spec.topk))
        .zip(masses)
        .enumerate()
        .for_each_init(Scratch::default, |scratch, (i, ((((o, x), counts), blocks), mass))| {
            let q = Queries { x, width: q.width, first: q.first + i * tile };
            simd::run(AttendTile { o, q, counts, blocks, cache, spec, scratch, mass: mass.map(|m| (m, ld)) });
        });
}

struct AttendTile<'a> {
    o: &'a mut [f32],
    q: Queries<'a>,
    counts: &'a [u32],
    blocks: &'a [u32],
    cache: &'a Cache,
    spec: &'a SparseSpec,
    scratch: &'a mut Scratch,
    mass: Option<(&'a mut [u32], usize)>,
}

impl WithSimd for AttendTile<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let AttendTile { o, q, counts, blocks, cache, spec, scratch, mass } = self;
        let (group, dim, block) = (spec.heads / spec.kv_heads, spec.head_dim, spec.block);
        let rows = q.x.len() / q.width;
        let out_width = spec.heads * dim;
        let factor = softmax_scale(spec);
        o.fill(0.0);
        let Scratch { queries, at, outs, s, greatest, sum, cursor, parts, .. } = scratch;
        parts.clear();
        let counted = mass.is_some();
        greatest.clear();
        greatest.resize(rows * spec.heads, f32::NEG_INFINITY);
        sum.clear();
        sum.resize(rows * spec.heads, 0.0);
        s.resize(s.len().max(rows * group * block), 0.0);
        at.clear();
        at.extend((0..rows * group).map(|i| i * block));
        let last_block = (q.first + rows - 1) / block;
        for (g, [k, v, ..]) in cache.heads.iter().enumerate() {
            cursor.clear();
            cursor.resize(rows, 0);
            for b in 0..=last_block {
                let (at_block, len) = (b * block * dim, block * dim);
                let (keys, values) = (k.at(at_block, len), v.at(at_block, len));
                let push = |queries: &mut Vec<usize>, outs: &mut Vec<usize>, r: usize| {
                    queries.extend((g * group..(g + 1) * group).map(|h| r * q.width + h * dim));
                    outs.extend((g * group..(g + 1) * group).map(|h| r * out_width + h * dim));
                };
                // Rows that chose this block and see all of it.
                queries.clear();
                outs.clear();
                for r in (0..rows).filter(|r| b < (q.first + r) / block) {
                    let list = r * spec.kv_heads + g;
                    let next = cursor[r];
                    let listed = next < counts[list] as usize
                        && blocks[list * spec.topk..][..spec.topk].get(next) == Some(&(b as u32));
                    cursor[r] += usize::from(listed);
                    if listed || counts[list] == ALL {
                        push(queries, outs, r);
                    }
                }
                let step = Step { q: &q, queries, outs, at, keys, values, block, dim, visible: block, factor, counted };
                step.run(simd, s, greatest, sum, o, parts, b);
                // A row's own block ends at the row: later keys must not enter, not even as zeros.
                for r in (0..rows).filter(|r| b == (q.first + r) / block) {
                    queries.clear();
                    outs.clear();
                    push(queries, outs, r);
                    let visible = (q.first + r) % block + 1;
                    let step = Step { q: &q, queries, outs, at, keys, values, block, dim, visible, factor, counted };
                    step.run(simd, s, greatest, sum, o, parts, b);
                }
            }
        }
        if let Some((mass, ld)) = mass {
            for part in parts.iter() {
                let share = part.sum * (part.greatest - greatest[part.query]).exp() / sum[part.query];
                // Rounded, and at most a head's whole attention.
                mass[part.query / spec.heads * ld + part.block] += (share * MASS as f32 + 0.5) as u32;
            }
        }
        for (o, sum) in o.chunks_exact_mut(dim).zip(sum.iter()) {
            scale(simd, o, 1.0 / sum);
        }
    }
}

/// Some queries against one block of keys and values: softmax with a running maximum.
struct Step<'a> {
    q: &'a Queries<'a>,
    queries: &'a [usize],
    outs: &'a [usize],
    at: &'a [usize],
    keys: &'a [f32],
    values: &'a [f32],
    block: usize,
    dim: usize,
    visible: usize,
    factor: f32,
    counted: bool,
}

impl Step<'_> {
    #[inline(always)]
    fn run<S: Simd>(
        &self,
        simd: S,
        s: &mut [f32],
        greatest: &mut [f32],
        sum: &mut [f32],
        o: &mut [f32],
        parts: &mut Vec<Part>,
        number: usize,
    ) {
        let n = self.queries.len();
        let (block, dim) = (self.block, self.dim);
        let (queries, at) = (self.queries, &self.at[..n]);
        let scores = Gemm { a: (self.q.x, queries), b: (self.keys, block), k: dim, n: block, c_rows: at, add: false };
        gemm(simd, &scores, s);
        for (i, out) in self.outs.iter().enumerate() {
            let query = out / dim;
            let row = &mut s[i * block..][..self.visible];
            let most = simd::max(simd, row) * self.factor;
            if most > greatest[query] {
                let shrink = (greatest[query] - most).exp();
                sum[query] *= shrink;
                scale(simd, &mut o[*out..][..dim], shrink);
                greatest[query] = most;
            }
            let own = exp_sum(simd, row, self.factor, greatest[query]);
            sum[query] += own;
            if self.counted {
                parts.push(Part { query, block: number, greatest: greatest[query], sum: own });
            }
        }
        let weighted =
            Gemm { a: (s, at), b: (self.values, dim), k: self.visible, n: dim, c_rows: self.outs, add: true };
        gemm(simd, &weighted, o);
    }
}
