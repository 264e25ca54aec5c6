//! InfLLM-V2 on the CPU: the KV cache with its compressed keys, block selection, and attention over chosen blocks
//! (spec/model.md §5).
//!
//! Keys lie transposed in panels, so that scores of a row are sums over lanes in one fixed order. A row's selection and
//! output depend on its own position and the keys up to it, never on the other rows of the pass: rows share the loading of a
//! panel, not a sum.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::simd::{self, Into, Product, add_exp, exp_sum, product, scale};
use crate::spec::{ScoreNorm, SparseSpec};

/// Compressed keys per panel.
const PANEL: usize = 64;
/// Query vectors that share a panel of keys.
const TILE_QUERIES: usize = 96;

/// One KV head of one layer.
struct HeadCache {
    /// Keys, `[block][lane][token of block]`.
    k: Vec<f32>,
    /// Values, `[token][lane]`.
    v: Vec<f32>,
    /// Fine compressed keys, `[panel][lane][key of panel]`.
    k1: Vec<f32>,
    /// Coarse compressed keys, laid out alike.
    k2: Vec<f32>,
}

/// KV and compressed keys of one sparse layer, f32.
pub struct Cache {
    heads: Vec<HeadCache>,
    spec: SparseSpec,
    dim: usize,
    block: usize,
    /// Positions that can be written.
    capacity: usize,
}

/// Where lane `lane` of key `at` lies in panels of `panel` keys.
fn place(at: usize, lane: usize, panel: usize, dim: usize) -> usize {
    (at / panel * dim + lane) * panel + at % panel
}

impl Cache {
    pub(super) fn new(spec: &SparseSpec) -> Cache {
        let head = || HeadCache {
            k: Vec::new(),
            v: Vec::new(),
            k1: Vec::new(),
            k2: Vec::new(),
        };
        Cache {
            heads: (0..spec.kv_heads).map(|_| head()).collect(),
            spec: spec.clone(),
            dim: spec.head_dim,
            block: spec.block,
            capacity: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.heads
            .iter()
            .map(|h| 4 * (h.k.capacity() + h.v.capacity() + h.k1.capacity() + h.k2.capacity()))
            .sum()
    }

    /// Makes positions below `limit` writable, in steps that grow with the cache.
    pub(super) fn reserve(&mut self, limit: usize) {
        if limit <= self.capacity {
            return;
        }
        // An eighth more than asked: few copies, little waste.
        let capacity = (limit + limit / 8).next_multiple_of(self.block * 16);
        let (dim, block) = (self.dim, self.block);
        let grow = |v: &mut Vec<f32>, len: usize| {
            if v.is_empty() {
                // Zero pages of the system, touched when they are used.
                *v = vec![0.0; len];
                return;
            }
            v.reserve_exact(len - v.len());
            v.resize(len, 0.0);
        };
        for h in &mut self.heads {
            grow(&mut h.k, capacity.next_multiple_of(block) * dim);
            grow(&mut h.v, capacity.next_multiple_of(block) * dim);
            grow(
                &mut h.k1,
                self.spec.fine_rows(capacity).next_multiple_of(PANEL) * dim,
            );
            grow(
                &mut h.k2,
                self.spec.coarse_rows(capacity).next_multiple_of(PANEL) * dim,
            );
        }
        self.capacity = capacity;
    }

    /// Writes keys and values `[rows, kv_heads·d]` (rows of `x` at `columns`) from position `first` on, and every
    /// compressed key whose window they complete.
    pub(super) fn append(
        &mut self,
        spec: &SparseSpec,
        x: &[f32],
        width: usize,
        k_column: usize,
        v_column: usize,
        first: usize,
    ) {
        let (dim, block) = (self.dim, self.block);
        for (g, head) in self.heads.iter_mut().enumerate() {
            for (r, row) in x.chunks_exact(width).enumerate() {
                let p = first + r;
                for (lane, key) in row[k_column + g * dim..][..dim].iter().enumerate() {
                    head.k[place(p, lane, block, dim)] = *key;
                }
                head.v[p * dim..][..dim].copy_from_slice(&row[v_column + g * dim..][..dim]);
            }
        }
        self.compress(spec, first..first + x.len() / width);
    }

    /// Writes the compressed keys whose window ends inside `positions`.
    fn compress(&mut self, spec: &SparseSpec, positions: std::ops::Range<usize>) {
        let (dim, block) = (self.dim, self.block);
        for head in &mut self.heads {
            for (factor, is_fine) in [(1, true), (4, false)] {
                let (kernel, stride) = (factor * spec.kernel, factor * spec.stride);
                let count = |length: usize| {
                    if is_fine {
                        spec.fine_rows(length)
                    } else {
                        spec.coarse_rows(length)
                    }
                };
                let dst = if is_fine { &mut head.k1 } else { &mut head.k2 };
                for j in count(positions.start)..count(positions.end) {
                    for lane in 0..dim {
                        let mut sum = 0.0;
                        for t in j * stride..j * stride + kernel {
                            sum += head.k[place(t, lane, block, dim)];
                        }
                        dst[place(j, lane, PANEL, dim)] = sum / kernel as f32;
                    }
                }
            }
        }
    }

    /// Rows `range` of `k`, `v`, `k1` or `k2` as `[rows, kv_heads, d]`.
    pub(super) fn read(&self, part: Part, range: std::ops::Range<usize>) -> Vec<f32> {
        let mut out = Vec::with_capacity(range.len() * self.heads.len() * self.dim);
        for at in range {
            for head in &self.heads {
                match part.panel(self.block) {
                    None => out.extend_from_slice(&head.v[at * self.dim..][..self.dim]),
                    Some(panel) => out.extend(
                        (0..self.dim).map(|lane| head.part(part)[place(at, lane, panel, self.dim)]),
                    ),
                }
            }
        }
        out
    }

    /// The inverse of [`Cache::read`], from row `first` on.
    pub(super) fn write(&mut self, part: Part, first: usize, values: &[f32]) {
        self.slots(part).write(first, values);
    }

    /// One of the four arrays, to be written beside the others.
    fn slots(&mut self, part: Part) -> Slots<'_> {
        Slots {
            dim: self.dim,
            panel: part.panel(self.block),
            heads: self.heads.iter_mut().map(|h| h.part_mut(part)).collect(),
        }
    }

    /// All four, each to be written by its own thread.
    pub(super) fn all_slots(&mut self) -> [(Part, &'static str, Slots<'_>); 4] {
        let (dim, block) = (self.dim, self.block);
        let [mut k, mut v, mut k1, mut k2]: [Vec<&mut [f32]>; 4] = Default::default();
        for h in &mut self.heads {
            k.push(&mut h.k);
            v.push(&mut h.v);
            k1.push(&mut h.k1);
            k2.push(&mut h.k2);
        }
        let mut heads = [k, v, k1, k2].into_iter();
        Part::ALL.map(|(part, name)| {
            let heads = heads.next().unwrap_or_default();
            let panel = part.panel(block);
            (part, name, Slots { dim, panel, heads })
        })
    }
}

/// Where the rows of one array go.
pub(super) struct Slots<'a> {
    dim: usize,
    /// Rows of a panel, for arrays that have some.
    panel: Option<usize>,
    /// One for each KV head.
    heads: Vec<&'a mut [f32]>,
}

impl Slots<'_> {
    /// Values of one row.
    pub(super) fn row_width(&self) -> usize {
        self.dim * self.heads.len()
    }

    /// Puts rows `[rows, kv_heads, d]` in place, from row `first` on.
    pub(super) fn write(&mut self, first: usize, values: &[f32]) {
        let (dim, heads) = (self.dim, self.heads.len());
        for (i, row) in values.chunks_exact(dim).enumerate() {
            let at = first + i / heads;
            let head = &mut self.heads[i % heads];
            match self.panel {
                None => head[at * dim..][..dim].copy_from_slice(row),
                Some(panel) => {
                    // Lanes of a panel lie `panel` apart.
                    let lanes = head[place(at, 0, panel, dim)..].iter_mut().step_by(panel);
                    lanes.zip(row).for_each(|(to, value)| *to = *value);
                }
            }
        }
    }
}

/// The four arrays of a cache, in the order of images.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    K,
    V,
    Fine,
    Coarse,
}

impl Part {
    pub(super) const ALL: [(Part, &'static str); 4] = [
        (Part::K, "k"),
        (Part::V, "v"),
        (Part::Fine, "k1"),
        (Part::Coarse, "k2"),
    ];

    /// Keys per panel; values are not in panels.
    fn panel(self, block: usize) -> Option<usize> {
        match self {
            Part::K => Some(block),
            Part::V => None,
            Part::Fine | Part::Coarse => Some(PANEL),
        }
    }

    /// Rows that belong to the token positions `positions`.
    pub(super) fn rows(
        self,
        spec: &SparseSpec,
        positions: std::ops::Range<usize>,
    ) -> std::ops::Range<usize> {
        match self {
            Part::K | Part::V => positions,
            Part::Fine => spec.fine_rows(positions.start)..spec.fine_rows(positions.end),
            Part::Coarse => spec.coarse_rows(positions.start)..spec.coarse_rows(positions.end),
        }
    }
}

impl HeadCache {
    fn part(&self, part: Part) -> &[f32] {
        match part {
            Part::K => &self.k,
            Part::V => &self.v,
            Part::Fine => &self.k1,
            Part::Coarse => &self.k2,
        }
    }
    fn part_mut(&mut self, part: Part) -> &mut [f32] {
        match part {
            Part::K => &mut self.k,
            Part::V => &mut self.v,
            Part::Fine => &mut self.k1,
            Part::Coarse => &mut self.k2,
        }
    }
}

/// Marks a row that attends to every block up to its own.
const ALL: u32 = u32::MAX;

/// Chosen blocks of one sparse layer for the rows of the last pass.
pub struct Selection {
    /// Blocks in each list, or [`ALL`]. `[rows, kv_heads]`
    counts: Vec<u32>,
    /// Ascending. `[rows, kv_heads, topk]`
    blocks: Vec<u32>,
    /// Position of row 0.
    first: usize,
}

impl Selection {
    pub(super) fn new(spec: &SparseSpec, rows: usize) -> Selection {
        let lists = rows * spec.kv_heads;
        Selection {
            counts: vec![ALL; lists],
            blocks: vec![0; lists * spec.topk],
            first: 0,
        }
    }

    /// `[kv_heads]` lists of row `row`.
    pub(super) fn read(&self, spec: &SparseSpec, row: usize) -> Vec<Vec<u32>> {
        let own = (self.first + row) / spec.block;
        (0..spec.kv_heads)
            .map(|g| {
                let list = row * spec.kv_heads + g;
                match self.counts[list] {
                    ALL => (0..=own as u32).collect(),
                    n => self.blocks[list * spec.topk..][..n as usize].to_vec(),
                }
            })
            .collect()
    }

    /// The list of one row and KV head; empty where the row attends to everything.
    pub(super) fn list_mut(&mut self, spec: &SparseSpec, row: usize, g: usize) -> &mut [u32] {
        let list = row * spec.kv_heads + g;
        let n = match self.counts[list] {
            ALL => 0,
            n => n as usize,
        };
        &mut self.blocks[list * spec.topk..][..n]
    }
}

/// Queries of a pass: rows of the fused projection, q first.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    /// `[rows, width]`
    pub(super) x: &'a [f32],
    pub(super) width: usize,
    /// Position of row 0.
    pub(super) first: usize,
}

/// Rows whose queries are worked on together.
fn tile_rows(spec: &SparseSpec) -> usize {
    (TILE_QUERIES / (spec.heads / spec.kv_heads)).max(1)
}

/// Chooses blocks for every row by its own position (spec/model.md §5.4-5.6).
pub(super) fn select(sel: &mut Selection, q: Queries<'_>, cache: &Cache, spec: &SparseSpec) {
    let rows = q.x.len() / q.width;
    let tile = tile_rows(spec);
    sel.first = q.first;
    let lists = tile * spec.kv_heads;
    sel.counts[..rows * spec.kv_heads]
        .par_chunks_mut(lists)
        .zip(sel.blocks[..rows * spec.kv_heads * spec.topk].par_chunks_mut(lists * spec.topk))
        .zip(q.x.par_chunks(tile * q.width))
        .enumerate()
        .for_each_init(Scratch::default, |scratch, (i, ((counts, blocks), x))| {
            let q = Queries {
                x,
                width: q.width,
                first: q.first + i * tile,
            };
            simd::run(SelectTile {
                counts,
                blocks,
                q,
                cache,
                spec,
                scratch,
            });
        });
}

/// Softmax attention over the chosen blocks (spec/model.md §5.7). `o [rows, heads·d]`
pub(super) fn attend(
    o: &mut [f32],
    q: Queries<'_>,
    sel: &Selection,
    cache: &Cache,
    spec: &SparseSpec,
) {
    let rows = q.x.len() / q.width;
    let tile = tile_rows(spec);
    let lists = tile * spec.kv_heads;
    o.par_chunks_mut(tile * spec.heads * spec.head_dim)
        .zip(q.x.par_chunks(tile * q.width))
        .zip(sel.counts[..rows * spec.kv_heads].par_chunks(lists))
        .zip(sel.blocks[..rows * spec.kv_heads * spec.topk].par_chunks(lists * spec.topk))
        .enumerate()
        .for_each_init(
            Scratch::default,
            |scratch, (i, (((o, x), counts), blocks))| {
                let q = Queries {
                    x,
                    width: q.width,
                    first: q.first + i * tile,
                };
                simd::run(AttendTile {
                    o,
                    q,
                    counts,
                    blocks,
                    cache,
                    spec,
                    scratch,
                });
            },
        );
}

/// Working memory of one task, kept between tasks of a thread.
#[derive(Default)]
struct Scratch {
    /// Offsets of query vectors into the tile's rows.
    queries: Vec<usize>,
    /// Offsets of score rows.
    at: Vec<usize>,
    /// Offsets of output vectors.
    outs: Vec<usize>,
    /// Scores, `[query, keys of a panel]`.
    s: Vec<f32>,
    /// Greatest score and sum of exponentials per query; in selection, the sum becomes the log-sum-exp.
    greatest: Vec<f32>,
    sum: Vec<f32>,
    /// Group-summed stage-1 scores, `[row, fine keys]`.
    scores: Vec<f32>,
    /// Candidates as sortable keys.
    ranked: Vec<u64>,
    /// Next unread entry of each row's list.
    cursor: Vec<usize>,
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
        let SelectTile {
            counts,
            blocks,
            q,
            cache,
            spec,
            scratch,
        } = self;
        let rows = q.x.len() / q.width;
        let group = spec.heads / spec.kv_heads;
        let has_choice = |r: usize| {
            let p = q.first + r;
            !spec.is_dense(p) && p / spec.block + 1 > spec.topk
        };
        counts.fill(ALL);
        let Some(begin) = (0..rows).find(|r| has_choice(*r)) else {
            return;
        };
        for (g, head) in cache.heads.iter().enumerate() {
            let queries = &mut scratch.queries;
            queries.clear();
            queries.extend((begin..rows).flat_map(|r| {
                (0..group).map(move |h| r * q.width + (g * group + h) * spec.head_dim)
            }));
            let last = q.first + rows - 1;
            let fine = spec.fine_rows(last + 1);
            match spec.score_norm {
                ScoreNorm::Coarse => {
                    log_sum_exp(simd, scratch, &q, begin, group, &head.k2, spec, |p| {
                        spec.coarse_rows(p + 1)
                    })
                }
                ScoreNorm::Fine => {
                    log_sum_exp(simd, scratch, &q, begin, group, &head.k1, spec, |p| {
                        spec.fine_rows(p + 1)
                    })
                }
            }
            group_scores(simd, scratch, &q, begin, group, &head.k1, spec, fine);
            for r in begin..rows {
                if has_choice(r) {
                    let list = r * spec.kv_heads + g;
                    let p = q.first + r;
                    let scores = &scratch.scores[(r - begin) * fine..][..spec.fine_rows(p + 1)];
                    counts[list] = choose(
                        &mut blocks[list * spec.topk..][..spec.topk],
                        &mut scratch.ranked,
                        scores,
                        p,
                        spec,
                    );
                }
            }
        }
    }
}

/// `scratch.sum[query] = log Σ exp(scale · q·key)` over the keys visible from the query's row.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn log_sum_exp<S: Simd>(
    simd: S,
    scratch: &mut Scratch,
    q: &Queries<'_>,
    begin: usize,
    group: usize,
    keys: &[f32],
    spec: &SparseSpec,
    visible: impl Fn(usize) -> usize,
) {
    let Scratch {
        queries,
        at,
        s,
        greatest,
        sum,
        ..
    } = scratch;
    let (n, dim, factor) = (queries.len(), spec.head_dim, softmax_scale(spec));
    let last = q.first + q.x.len() / q.width - 1;
    greatest.clear();
    greatest.resize(n, f32::NEG_INFINITY);
    sum.clear();
    sum.resize(n, 0.0);
    at.clear();
    at.extend((0..n).map(|i| i * PANEL));
    s.resize(s.len().max(n * PANEL), 0.0);
    for (panel, b) in keys
        .chunks_exact(PANEL * dim)
        .take(visible(last).div_ceil(PANEL))
        .enumerate()
    {
        product(
            simd,
            &Product {
                a: q.x,
                a_rows: queries,
                b,
                ldb: PANEL,
                k: dim,
                n: PANEL,
                c_rows: at,
                into: Into::Set,
            },
            s,
        );
        for i in 0..n {
            let seen = visible(q.first + begin + i / group)
                .saturating_sub(panel * PANEL)
                .min(PANEL);
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
        // Nothing visible: every score becomes 0.
        *sum = if *sum > 0.0 {
            *greatest + sum.ln()
        } else {
            f32::INFINITY
        };
    }
}

/// `scratch.scores[row, key] = Σ_h exp(scale · q_h·key - lse_h)` for every visible fine key, heads in ascending order.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn group_scores<S: Simd>(
    simd: S,
    scratch: &mut Scratch,
    q: &Queries<'_>,
    begin: usize,
    group: usize,
    keys: &[f32],
    spec: &SparseSpec,
    fine: usize,
) {
    let Scratch {
        queries,
        at,
        s,
        sum,
        scores,
        ..
    } = scratch;
    let (n, dim, factor) = (queries.len(), spec.head_dim, softmax_scale(spec));
    scores.clear();
    scores.resize(n / group * fine, 0.0);
    for (panel, b) in keys
        .chunks_exact(PANEL * dim)
        .take(fine.div_ceil(PANEL))
        .enumerate()
    {
        product(
            simd,
            &Product {
                a: q.x,
                a_rows: queries,
                b,
                ldb: PANEL,
                k: dim,
                n: PANEL,
                c_rows: at,
                into: Into::Set,
            },
            s,
        );
        for i in 0..n {
            let r = i / group;
            let seen = spec
                .fine_rows(q.first + begin + r + 1)
                .saturating_sub(panel * PANEL)
                .min(PANEL);
            let out = &mut scores[r * fine..][..fine][panel * PANEL..][..seen];
            add_exp(simd, out, &s[i * PANEL..][..seen], factor, sum[i]);
        }
    }
}

/// Blocks of one row: forced ones, then the best by pooled score, ties to the lower index (spec/model.md §5.5-5.6).
/// Writes them ascending and returns how many.
fn choose(
    out: &mut [u32],
    ranked: &mut Vec<u64>,
    scores: &[f32],
    p: usize,
    spec: &SparseSpec,
) -> u32 {
    let per_block = spec.block / spec.stride;
    let own = p / spec.block;
    let local = own.saturating_sub(spec.local_blocks).max(spec.init_blocks);
    let free = spec.topk - spec.init_blocks - (own + 1 - local);
    ranked.clear();
    ranked.extend((spec.init_blocks..local).map(|b| {
        let first = (b * per_block).saturating_sub(1);
        let end = ((b + 1) * per_block).min(scores.len());
        let best = scores
            .get(first..end)
            .unwrap_or_default()
            .iter()
            .fold(0.0f32, |m, v| m.max(*v));
        // Scores are not negative, so their bits sort like their values.
        u64::from(best.to_bits()) << 32 | u64::from(!(b as u32))
    }));
    if ranked.len() > free {
        ranked.select_nth_unstable_by(free, |a, b| b.cmp(a));
        ranked.truncate(free);
    }
    let chosen = (0..spec.init_blocks as u32)
        .chain(ranked.iter().map(|key| !(*key as u32)))
        .chain(local as u32..=own as u32);
    let mut n = 0;
    for (slot, block) in out.iter_mut().zip(chosen) {
        *slot = block;
        n += 1;
    }
    out[..n].sort_unstable();
    n as u32
}

struct AttendTile<'a> {
    o: &'a mut [f32],
    q: Queries<'a>,
    counts: &'a [u32],
    blocks: &'a [u32],
    cache: &'a Cache,
    spec: &'a SparseSpec,
    scratch: &'a mut Scratch,
}

impl WithSimd for AttendTile<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let AttendTile {
            o,
            q,
            counts,
            blocks,
            cache,
            spec,
            scratch,
        } = self;
        let (group, dim, block) = (spec.heads / spec.kv_heads, spec.head_dim, spec.block);
        let rows = q.x.len() / q.width;
        let out_width = spec.heads * dim;
        let factor = softmax_scale(spec);
        o.fill(0.0);
        let Scratch {
            queries,
            at,
            outs,
            s,
            greatest,
            sum,
            cursor,
            ..
        } = scratch;
        greatest.clear();
        greatest.resize(rows * spec.heads, f32::NEG_INFINITY);
        sum.clear();
        sum.resize(rows * spec.heads, 0.0);
        s.resize(s.len().max(rows * group * block), 0.0);
        at.clear();
        at.extend((0..rows * group).map(|i| i * block));
        let last_block = (q.first + rows - 1) / block;
        for (g, head) in cache.heads.iter().enumerate() {
            cursor.clear();
            cursor.resize(rows, 0);
            for b in 0..=last_block {
                let (keys, values) = (
                    &head.k[b * block * dim..][..block * dim],
                    &head.v[b * block * dim..][..block * dim],
                );
                let push = |queries: &mut Vec<usize>, outs: &mut Vec<usize>, r: usize| {
                    queries.extend((g * group..(g + 1) * group).map(|h| r * q.width + h * dim));
                    outs.extend((g * group..(g + 1) * group).map(|h| r * out_width + h * dim));
                };
                // Rows that chose this block and have all of it behind them.
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
                let step = Step {
                    q: &q,
                    queries,
                    outs,
                    at,
                    keys,
                    values,
                    block,
                    dim,
                    visible: block,
                    factor,
                };
                step.run(simd, s, greatest, sum, o);
                // A row's own block ends at the row: later keys must not enter, not even as zeros.
                for r in (0..rows).filter(|r| b == (q.first + r) / block) {
                    queries.clear();
                    outs.clear();
                    push(queries, outs, r);
                    let visible = (q.first + r) % block + 1;
                    let step = Step {
                        q: &q,
                        queries,
                        outs,
                        at,
                        keys,
                        values,
                        block,
                        dim,
                        visible,
                        factor,
                    };
                    step.run(simd, s, greatest, sum, o);
                }
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
    /// Keys of the block that the queries see.
    visible: usize,
    factor: f32,
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
    ) {
        let n = self.queries.len();
        let (block, dim) = (self.block, self.dim);
        let scores = Product {
            a: self.q.x,
            a_rows: self.queries,
            b: self.keys,
            ldb: block,
            k: dim,
            n: block,
            c_rows: &self.at[..n],
            into: Into::Set,
        };
        product(simd, &scores, s);
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
            sum[query] += exp_sum(simd, row, self.factor, greatest[query]);
        }
        let weighted = Product {
            a: s,
            a_rows: &self.at[..n],
            b: self.values,
            ldb: dim,
            k: self.visible,
            n: dim,
            c_rows: self.outs,
            into: Into::Add,
        };
        product(simd, &weighted, o);
    }
}

fn softmax_scale(spec: &SparseSpec) -> f32 {
    (spec.head_dim as f32).sqrt().recip()
}
