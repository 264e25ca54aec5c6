//! The choice of blocks on the CPU (docs/model.md §5.4-5.6), row by row in tiles that share a panel of keys.
//!
//! A row's choice depends on its own position and the keys up to it, never on the other rows of the pass: rows share the loading of a
//! panel, not a sum.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::cache::{Cache, PANEL};
use super::pages::Pages;
use super::selection::{ALL, Selection};
use super::simd::{self, Gemm, add_exp, exp_sum, gemm};
use crate::core::spec::{ScoreNorm, SparseSpec};

const TILE_QUERIES: usize = 96;

#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    /// `[rows, width]`
    pub(super) x: &'a [f32],
    pub(super) width: usize,
    pub(super) first: usize,
}

pub(super) fn tile_rows(spec: &SparseSpec) -> usize {
    (TILE_QUERIES / (spec.heads / spec.kv_heads)).max(1)
}

/// Every row chooses by its own position (docs/model.md §5.4-5.6); the first row of `q` is row `row` of the pass.
pub(super) fn select(sel: &mut Selection, row: usize, q: Queries<'_>, cache: &Cache, spec: &SparseSpec) {
    let rows = row * spec.kv_heads..(row + q.x.len() / q.width) * spec.kv_heads;
    let tile = tile_rows(spec);
    let lists = tile * spec.kv_heads;
    sel.counts[rows.clone()]
        .par_chunks_mut(lists)
        .zip(sel.blocks[rows.start * spec.topk..rows.end * spec.topk].par_chunks_mut(lists * spec.topk))
        .zip(q.x.par_chunks(tile * q.width))
        .enumerate()
        .for_each_init(Scratch::default, |scratch, (i, ((counts, blocks), x))| {
            let q = Queries { x, width: q.width, first: q.first + i * tile };
            simd::run(SelectTile { counts, blocks, q, cache, spec, scratch });
        });
}

#[derive(Default)]
pub(super) struct Scratch {
    pub(super) queries: Vec<usize>,
    pub(super) at: Vec<usize>,
    pub(super) outs: Vec<usize>,
    /// Scores, `[query, keys of a panel]`.
    pub(super) s: Vec<f32>,
    /// Greatest score and sum of exponentials per query; selection ends with the log-sum-exp in `sum`.
    pub(super) greatest: Vec<f32>,
    pub(super) sum: Vec<f32>,
    /// Group-summed stage-1 scores, `[row, level-1 compressed keys]`.
    pub(super) scores: Vec<f32>,
    pub(super) ranked: Vec<u64>,
    pub(super) cursor: Vec<usize>,
    pub(super) parts: Vec<Part>,
}

/// A query's sum of exponentials over one block, against the greatest score until then.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) query: usize,
    pub(super) block: usize,
    pub(super) greatest: f32,
    pub(super) sum: f32,
}

struct SelectTile<'a> {
    counts: &'a mut [u32],
    blocks: &'a mut [u32],
    q: Queries<'a>,
    cache: &'a Cache,
    spec: &'a SparseSpec,
    scratch: &'a mut Scratch,
}

impl WithSimd for SelectTile<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let SelectTile { counts, blocks, q, cache, spec, scratch } = self;
        let rows = q.x.len() / q.width;
        let group = spec.heads / spec.kv_heads;
        let has_choice = |r: usize| {
            let p = q.first + r;
            !spec.is_dense(p) && p / spec.block + 1 > spec.topk
        };
        counts.fill(ALL);
        let Some(begin) = (0..rows).find(|r| has_choice(*r)) else { return };
        for (g, [.., k1, k2]) in cache.heads.iter().enumerate() {
            let queries = &mut scratch.queries;
            queries.clear();
            queries.extend(
                (begin..rows).flat_map(|r| (0..group).map(move |h| r * q.width + (g * group + h) * spec.head_dim)),
            );
            let last = q.first + rows - 1;
            let level1 = spec.level1_rows(last + 1);
            let keys = if spec.score_norm == ScoreNorm::Level2 { k2 } else { k1 };
            log_sum_exp(simd, scratch, &q, begin, group, keys, spec, |p| match spec.score_norm {
                ScoreNorm::Level2 => spec.level2_rows(p + 1),
                ScoreNorm::Level1 => spec.level1_rows(p + 1),
            });
            group_scores(simd, scratch, &q, begin, group, k1, spec, level1);
            for r in begin..rows {
                if has_choice(r) {
                    let list = r * spec.kv_heads + g;
                    let p = q.first + r;
                    let scores = &scratch.scores[(r - begin) * level1..][..spec.level1_rows(p + 1)];
                    counts[list] =
                        choose(&mut blocks[list * spec.topk..][..spec.topk], &mut scratch.ranked, scores, p, spec);
                }
            }
        }
    }
}

/// `scratch.sum[query] = log Σ exp(scale · q·key)` over the keys visible from the query's row.
#[inline(always)]
fn log_sum_exp<S: Simd>(
    simd: S,
    scratch: &mut Scratch,
    q: &Queries<'_>,
    begin: usize,
    group: usize,
    keys: &Pages,
    spec: &SparseSpec,
    visible: impl Fn(usize) -> usize,
) {
    let Scratch { queries, at, s, greatest, sum, .. } = scratch;
    let (n, dim, factor) = (queries.len(), spec.head_dim, softmax_scale(spec));
    let last = q.first + q.x.len() / q.width - 1;
    greatest.clear();
    greatest.resize(n, f32::NEG_INFINITY);
    sum.clear();
    sum.resize(n, 0.0);
    at.clear();
    at.extend((0..n).map(|i| i * PANEL));
    s.resize(s.len().max(n * PANEL), 0.0);
    for (panel, b) in keys.panels(PANEL * dim).take(visible(last).div_ceil(PANEL)).enumerate() {
        gemm(simd, &Gemm { a: (q.x, queries), b: (b, PANEL), k: dim, n: PANEL, c_rows: at, add: false }, s);
        for i in 0..n {
            let seen = visible(q.first + begin + i / group).saturating_sub(panel * PANEL).min(PANEL);
            let row = &mut s[i * PANEL..][..seen];
            let most = simd::max(simd, row) * factor;
            if most > greatest[i] {
                sum[i] *= (greatest[i] - most).exp();
                greatest[i] = most;
            }
            sum[i] += exp_sum(simd, row, factor, greatest[i]);
        }
    }
    for (sum, greatest) in sum.iter_mut().zip(greatest) {
        // Nothing visible: every score is 0.
        *sum = if *sum > 0.0 { *greatest + sum.ln() } else { f32::INFINITY };
    }
}

/// `scratch.scores[row, key] = Σ_h exp(scale · q_h·key - lse_h)` for every visible level-1 compressed key, heads in ascending order.
#[inline(always)]
fn group_scores<S: Simd>(
    simd: S,
    scratch: &mut Scratch,
    q: &Queries<'_>,
    begin: usize,
    group: usize,
    keys: &Pages,
    spec: &SparseSpec,
    level1: usize,
) {
    let Scratch { queries, at, s, sum, scores, .. } = scratch;
    let (n, dim, factor) = (queries.len(), spec.head_dim, softmax_scale(spec));
    scores.clear();
    scores.resize(n / group * level1, 0.0);
    for (panel, b) in keys.panels(PANEL * dim).take(level1.div_ceil(PANEL)).enumerate() {
        gemm(simd, &Gemm { a: (q.x, queries), b: (b, PANEL), k: dim, n: PANEL, c_rows: at, add: false }, s);
        for i in 0..n {
            let r = i / group;
            let seen = spec.level1_rows(q.first + begin + r + 1).saturating_sub(panel * PANEL).min(PANEL);
            let out = &mut scores[r * level1..][..level1][panel * PANEL..][..seen];
            add_exp(simd, out, &s[i * PANEL..][..seen], factor, sum[i]);
        }
    }
}

/// Blocks of one row: forced ones, then the best by pooled score, ties to the lower index (docs/model.md §5.5-5.6).
/// Writes them ascending and returns how many.
fn choose(out: &mut [u32], ranked: &mut Vec<u64>, scores: &[f32], p: usize, spec: &SparseSpec) -> u32 {
    let per_block = spec.block / spec.stride;
    let own = p / spec.block;
    let local = own.saturating_sub(spec.local_blocks).max(spec.init_blocks);
    let free = spec.topk - spec.init_blocks - (own + 1 - local);
    ranked.clear();
    ranked.extend((spec.init_blocks..local).map(|b| {
        let first = (b * per_block).saturating_sub(1);
        let end = ((b + 1) * per_block).min(scores.len());
        let best = scores.get(first..end).unwrap_or_default().iter().fold(0.0f32, |m, v| m.max(*v));
        // Scores are not negative, so their bits sort like their values.
        u64::from(best.to_bits()) << 32 | u64::from(!(b as u32))
    }));
    if ranked.len() > free {
        ranked.select_nth_unstable_by(free, |a, b| b.cmp(a));
        ranked.truncate(free);
    }
    let chosen =
        (0..spec.init_blocks as u32).chain(ranked.iter().map(|key| !(*key as u32))).chain(local as u32..=own as u32);
    let mut n = 0;
    for (slot, block) in out.iter_mut().zip(chosen) {
        *slot = block;
        n += 1;
    }
    out[..n].sort_unstable();
    n as u32
}

pub(super) fn softmax_scale(spec: &SparseSpec) -> f32 {
    (spec.head_dim as f32).sqrt().recip()
}
