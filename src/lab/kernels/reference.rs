//! Sparse attention written out for one row, in f64: judges a device's choice of blocks by the scores of chosen and
//! refused blocks, and its attention by the blocks it chose. A near-tie may fall either way; a wrong block may not.

use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;

use crate::backend::MASS;
use crate::core::spec::SparseSpec;
use crate::engine::protocol::ImageTensor;
use crate::lab::layers::{SparseRun, numbers};

/// Scores closer than this share of the larger one may swap: a device rounds them to bf16.
const TIE: f64 = 0.02;
/// Greatest error of a block's share of a row's attention, and of the sum of all shares.
const MASS_ERROR: f64 = 1e-3;

/// A run of a sparse layer that started at `position`.
pub struct Judged<'a> {
    spec: &'a SparseSpec,
    /// `[rows, heads·head_dim]`, as the operation received it.
    q: &'a [f32],
    /// k, v, k1, k2 of all positions.
    cache: [Vec<f32>; 4],
    run: &'a SparseRun,
    position: usize,
}

/// One row for one KV head: its position, the queries of the KV head's group, and the chosen blocks.
struct Row<'a> {
    judged: &'a Judged<'a>,
    position: usize,
    kv_head: usize,
    queries: Vec<&'a [f32]>,
    chosen: &'a [u32],
}

impl<'a> Judged<'a> {
    pub fn new(
        spec: &'a SparseSpec,
        q: &'a [f32],
        cache: &[ImageTensor],
        run: &'a SparseRun,
        position: usize,
    ) -> Result<Judged<'a>> {
        let cache = cache.iter().map(numbers).collect::<Vec<_>>().try_into().ok().context("a cache of four arrays")?;
        Ok(Judged { spec, q, cache, run, position })
    }

    fn rows(&self) -> usize {
        self.q.len() / (self.spec.heads * self.spec.head_dim).max(1)
    }

    fn row(&self, row: usize) -> impl Iterator<Item = Row<'_>> {
        let group = self.spec.heads / self.spec.kv_heads;
        (0..self.spec.kv_heads).map(move |kv_head| {
            let heads = row * self.spec.heads + kv_head * group..row * self.spec.heads + (kv_head + 1) * group;
            let d = self.spec.head_dim;
            let queries = self.q.get(heads.start * d..heads.end * d).unwrap_or_default().chunks_exact(d).collect();
            let chosen = self.run.chosen.get(row).and_then(|c| c.get(kv_head)).map(Vec::as_slice).unwrap_or_default();
            Row { judged: self, position: self.position + row, kv_head, queries, chosen }
        })
    }

    /// Judges every `stride`-th row: ‖output − reference‖ / ‖reference‖ over these rows, given the chosen blocks. The
    /// error is the first wrong choice.
    pub fn error(&self, stride: usize) -> Result<f64> {
        let width = self.spec.heads * self.spec.head_dim;
        ensure!(self.run.output.len() == self.q.len(), "{} values instead of {}", self.run.output.len(), self.q.len());
        let judge = |row: usize| {
            let mut expected = Vec::with_capacity(width);
            for part in self.row(row) {
                part.queries.iter().for_each(|q| expected.extend(part.attend(q)));
                if let Some(what) = part.wrong_choice() {
                    bail!("row {row} at position {}, KV head {}: {what}", part.position, part.kv_head);
                }
            }
            let found = &self.run.output[row * width..(row + 1) * width];
            let difference: f64 = expected.iter().zip(found).map(|(e, f)| (e - f64::from(*f)).powi(2)).sum();
            Ok((difference, expected.iter().map(|e| e * e).sum::<f64>()))
        };
        let rows: Vec<usize> = (0..self.rows()).step_by(stride).collect();
        let judged = rows.into_par_iter().map(judge).collect::<Result<Vec<_>>>()?;
        let (difference, total) = judged.iter().fold((0.0, 0.0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        // Not `f64::max`: a NaN must stay one.
        Ok(if total == 0.0 { difference } else { (difference / total).sqrt() })
    }

    /// Each block's share of the attention of a verify pass's rows against the formulas, given the chosen blocks, and
    /// the sum of all shares against 1.
    pub fn mass(&self, device: &str) -> Result<()> {
        let whole = self.spec.heads as f64 * f64::from(MASS);
        self.run.mass.par_iter().enumerate().try_for_each(|(row, mass)| {
            let found: Vec<f64> = mass.iter().map(|m| f64::from(*m) / whole).collect();
            let mut expected = vec![0.0; (self.position + row) / self.spec.block + 1];
            for part in self.row(row) {
                for (t, weight) in part.queries.iter().flat_map(|q| part.weights(q)) {
                    expected[t / self.spec.block] += weight / self.spec.heads as f64;
                }
            }
            // The pass's last rows may reach one block further.
            expected.resize(expected.len().max(found.len()), 0.0);
            let (all, blocks): (f64, usize) = (found.iter().sum(), found.len());
            let adds_up = blocks == expected.len() && (all - 1.0).abs() <= MASS_ERROR;
            ensure!(adds_up, "{device}: attention mass of row {row} adds up to {all} over {blocks} blocks");
            match found.iter().zip(&expected).enumerate().find(|(_, (f, e))| (*f - *e).abs() > MASS_ERROR) {
                Some((b, (f, e))) => bail!("{device}: attention mass of row {row}, block {b}: {f}, expected {e}"),
                None => Ok(()),
            }
        })
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

impl Row<'_> {
    /// The KV head's part of a row of k, v, k1 or k2.
    fn of<'k>(&self, keys: &'k [f32], row: usize) -> &'k [f32] {
        let spec = self.judged.spec;
        let at = (row * spec.kv_heads + self.kv_head) * spec.head_dim;
        keys.get(at..at + spec.head_dim).unwrap_or_default()
    }

    fn score(&self, q: &[f32], keys: &[f32], row: usize) -> f64 {
        dot(q, self.of(keys, row)) / (self.judged.spec.head_dim as f64).sqrt()
    }

    /// Softmax weights of the positions in the chosen blocks that a query sees.
    fn weights(&self, q: &[f32]) -> Vec<(usize, f64)> {
        let (block, [k, ..]) = (self.judged.spec.block, &self.judged.cache);
        let positions = self.chosen.iter().flat_map(|b| *b as usize * block..(*b as usize + 1) * block);
        let positions: Vec<usize> = positions.filter(|t| *t <= self.position).collect();
        let scores: Vec<f64> = positions.iter().map(|t| self.score(q, k, *t)).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
        positions.into_iter().zip(scores).map(|(t, s)| (t, (s - most).exp() / sum)).collect()
    }

    fn attend(&self, q: &[f32]) -> Vec<f64> {
        let mut out = vec![0.0; self.judged.spec.head_dim];
        for (t, weight) in self.weights(q) {
            for (o, x) in out.iter_mut().zip(self.of(&self.judged.cache[1], t)) {
                *o += weight * f64::from(*x);
            }
        }
        out
    }

    /// The first error in the choice (docs/model.md §5.4-5.6).
    fn wrong_choice(&self) -> Option<String> {
        let (spec, chosen) = (self.judged.spec, self.chosen);
        let own = self.position / spec.block;
        let forced = |b: usize| b < spec.init_blocks || b + spec.local_blocks >= own;
        let expected = (own + 1).min(spec.topk);
        if chosen.len() != expected {
            return Some(format!("{} blocks chosen, {expected} expected", chosen.len()));
        }
        if !chosen.windows(2).all(|w| w[0] < w[1]) || chosen.last().is_some_and(|b| *b as usize > own) {
            return Some("not ascending, or a block of the future".to_owned());
        }
        let taken = |b: &usize| chosen.contains(&(*b as u32));
        if let Some(b) = (0..=own).find(|b| forced(*b) && !taken(b)) {
            return Some(format!("forced block {b} is missing"));
        }
        if own < spec.topk {
            return None;
        }
        let scores = self.block_scores();
        let score = |b: usize| (scores.get(b).copied().unwrap_or(0.0), b);
        let (free, less) =
            ((0..=own).filter(|b| !forced(*b)), |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0));
        let worst = free.clone().filter(taken).map(score).min_by(less).unwrap_or((f64::INFINITY, 0));
        let best = free.filter(|b| !taken(b)).map(score).max_by(less).unwrap_or((f64::NEG_INFINITY, 0));
        (best.0 > worst.0 * (1.0 + TIE) + 1e-30).then(|| {
            format!("block {} with score {:.3e} was left, block {} with {:.3e} taken", best.1, best.0, worst.1, worst.0)
        })
    }

    fn block_scores(&self) -> Vec<f64> {
        let (spec, [_, _, k1, k2]) = (self.judged.spec, &self.judged.cache);
        let (level1, level2) = (spec.level1_rows(self.position + 1), spec.level2_rows(self.position + 1));
        let mut sums = vec![0.0; level1];
        for q in self.queries.iter().filter(|_| level2 > 0) {
            let logits: Vec<f64> = (0..level2).map(|j| self.score(q, k2, j)).collect();
            let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let z = most + logits.iter().map(|l| (l - most).exp()).sum::<f64>().ln();
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum += (self.score(q, k1, j) - z).exp();
            }
        }
        let per_block = spec.block / spec.stride;
        let score = |b: usize| {
            let rows = (b * per_block).saturating_sub(1)..(b * per_block + per_block).min(level1);
            rows.filter_map(|j| sums.get(j)).copied().fold(0.0, f64::max)
        };
        (0..=self.position / spec.block).map(score).collect()
    }
}
