//! Sparse attention written out for one row, in f64: judges a device's choice of blocks by the scores of chosen and
//! refused blocks, and its attention by the blocks it chose. A near-tie may fall either way; a wrong block may not.

use anyhow::{Result, bail};
use rayon::prelude::*;

use crate::backend::MASS;
use crate::core::spec::SparseSpec;

use super::cases::{SparseRun, numbers};

/// Scores closer than this share of the larger one may swap: a device rounds them to bf16.
const TIE: f64 = 0.02;

/// Judges every `stride`-th row of a run that started at `position`: ‖output − reference‖ / ‖reference‖ over these rows,
/// given the chosen blocks.
///
/// # Errors
/// The first wrong choice.
pub fn judge(spec: &SparseSpec, run: &SparseRun, position: usize, stride: usize) -> Result<f64> {
    let arrays: Vec<Vec<f32>> = run.cache.iter().map(numbers).collect();
    let [k, v, k1, k2] = arrays.as_slice() else { bail!("a cache of {} arrays", arrays.len()) };
    let d = spec.head_dim;
    let width = spec.heads * d;
    let rows = run.q.len() / width.max(1);
    let judged: Vec<Result<(f64, f64)>> = (0..rows)
        .into_par_iter()
        .filter(|row| row % stride.max(1) == 0)
        .map(|row| {
            let p = position + row;
            let part = |values: &[f32]| values.get(row * width..(row + 1) * width).unwrap_or_default().to_vec();
            let (q, found) = (part(&run.q), part(&run.output));
            let chosen = |g: usize| run.chosen.get(row).and_then(|c| c.get(g)).map(Vec::as_slice).unwrap_or_default();
            let expected: Vec<f64> = (0..spec.heads)
                .into_par_iter()
                .flat_map_iter(|h| {
                    let g = h / (spec.heads / spec.kv_heads);
                    attend(spec, q.get(h * d..(h + 1) * d).unwrap_or_default(), k, v, g, p, chosen(g))
                })
                .collect();
            let difference = expected.iter().zip(&found).map(|(e, f)| (e - f64::from(*f)).powi(2)).sum();
            let total = if found.len() == expected.len() { expected.iter().map(|e| e * e).sum() } else { f64::NAN };
            for g in 0..spec.kv_heads {
                if let Some(what) = choice(spec, &q, k1, k2, g, p, chosen(g)) {
                    bail!("row {row} at position {p}, KV head {g}: {what}");
                }
            }
            Ok((difference, total))
        })
        .collect();
    let judged = judged.into_iter().collect::<Result<Vec<_>>>()?;
    let difference: f64 = judged.iter().map(|j| j.0).sum();
    let total: f64 = judged.iter().map(|j| j.1).sum();
    // Not `f64::max`: a NaN must stay one.
    Ok(if total == 0.0 { difference } else { (difference / total).sqrt() })
}

/// Greatest error of a block's share of a row's attention, and of the sum of all shares.
const MASS_ERROR: f64 = 1e-3;

/// The first error in the attention mass of a verify pass: each block's share of a row against the formulas, given the
/// chosen blocks, and the sum of all shares against 1.
pub fn wrong_mass(spec: &SparseSpec, run: &SparseRun, position: usize) -> Option<String> {
    let k = run.cache.first().map(numbers).unwrap_or_default();
    let d = spec.head_dim;
    run.mass.par_iter().enumerate().find_map_first(|(row, mass)| {
        let p = position + row;
        let q = run.q.get(row * spec.heads * d..(row + 1) * spec.heads * d).unwrap_or_default();
        let mut expected = vec![0.0; p / spec.block + 1];
        for (h, q) in q.chunks_exact(d).enumerate() {
            let g = h / (spec.heads / spec.kv_heads);
            let chosen = run.chosen.get(row).and_then(|c| c.get(g)).map(Vec::as_slice).unwrap_or_default();
            for (t, weight) in weights(spec, q, &k, g, p, chosen) {
                expected[t / spec.block] += weight / spec.heads as f64;
            }
        }
        let whole = spec.heads as f64 * f64::from(MASS);
        let found: Vec<f64> = mass.iter().map(|m| f64::from(*m) / whole).collect();
        let all: f64 = found.iter().sum();
        // The pass's last rows may reach one block further.
        expected.resize(expected.len().max(found.len()), 0.0);
        if found.len() != expected.len() || (all - 1.0).abs() > MASS_ERROR {
            return Some(format!("attention mass of row {row} adds up to {all} over {} blocks", found.len()));
        }
        let off = |(b, (f, e)): (usize, (&f64, &f64))| {
            ((f - e).abs() > MASS_ERROR).then(|| format!("attention mass of row {row}, block {b}: {f}, expected {e}"))
        };
        found.iter().zip(&expected).enumerate().find_map(off)
    })
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

fn key<'a>(spec: &SparseSpec, keys: &'a [f32], row: usize, g: usize) -> &'a [f32] {
    let at = (row * spec.kv_heads + g) * spec.head_dim;
    keys.get(at..at + spec.head_dim).unwrap_or_default()
}

/// Softmax weights of the positions in the chosen blocks that a query sees.
fn weights(spec: &SparseSpec, q: &[f32], k: &[f32], g: usize, p: usize, chosen: &[u32]) -> Vec<(usize, f64)> {
    let scale = 1.0 / (spec.head_dim as f64).sqrt();
    let positions: Vec<usize> = chosen
        .iter()
        .flat_map(|b| *b as usize * spec.block..(*b as usize + 1) * spec.block)
        .filter(|t| *t <= p)
        .collect();
    let scores: Vec<f64> = positions.iter().map(|t| dot(q, key(spec, k, *t, g)) * scale).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
    positions.into_iter().zip(scores).map(|(t, s)| (t, (s - most).exp() / sum)).collect()
}

fn attend(spec: &SparseSpec, q: &[f32], k: &[f32], v: &[f32], g: usize, p: usize, chosen: &[u32]) -> Vec<f64> {
    let mut out = vec![0.0; spec.head_dim];
    for (t, weight) in weights(spec, q, k, g, p, chosen) {
        for (o, x) in out.iter_mut().zip(key(spec, v, t, g)) {
            *o += weight * f64::from(*x);
        }
    }
    out
}

/// The first error in a choice (docs/model.md §5.4-5.6).
fn choice(spec: &SparseSpec, q: &[f32], k1: &[f32], k2: &[f32], g: usize, p: usize, chosen: &[u32]) -> Option<String> {
    let own = p / spec.block;
    let forced = |b: usize| b < spec.init_blocks || b + spec.local_blocks >= own;
    let expected = (own + 1).min(spec.topk);
    if chosen.len() != expected {
        return Some(format!("{} blocks chosen, {expected} expected", chosen.len()));
    }
    if !chosen.windows(2).all(|w| w[0] < w[1]) || chosen.last().is_some_and(|b| *b as usize > own) {
        return Some("not ascending, or a block of the future".to_owned());
    }
    if let Some(b) = (0..=own).find(|b| forced(*b) && !chosen.contains(&(*b as u32))) {
        return Some(format!("forced block {b} is missing"));
    }
    if own < spec.topk {
        return None;
    }
    let scores = block_scores(spec, q, k1, k2, g, p);
    let score = |b: usize| scores.get(b).copied().unwrap_or(0.0);
    let worst = chosen
        .iter()
        .map(|b| *b as usize)
        .filter(|b| !forced(*b))
        .map(|b| (score(b), b))
        .fold((f64::INFINITY, 0), |a, b| if b.0 < a.0 { b } else { a });
    let best = (0..=own)
        .filter(|b| !forced(*b) && !chosen.contains(&(*b as u32)))
        .map(|b| (score(b), b))
        .fold((f64::NEG_INFINITY, 0), |a, b| if b.0 > a.0 { b } else { a });
    (best.0 > worst.0 * (1.0 + TIE) + 1e-30).then(|| {
        format!("block {} with score {:.3e} was left, block {} with {:.3e} taken", best.1, best.0, worst.1, worst.0)
    })
}

fn block_scores(spec: &SparseSpec, q: &[f32], k1: &[f32], k2: &[f32], g: usize, p: usize) -> Vec<f64> {
    let d = spec.head_dim;
    let scale = 1.0 / (d as f64).sqrt();
    let group = spec.heads / spec.kv_heads;
    let (level1, level2) = (spec.level1_rows(p + 1), spec.level2_rows(p + 1));
    let mut sums = vec![0.0; level1];
    for h in g * group..(g + 1) * group {
        let q = q.get(h * d..(h + 1) * d).unwrap_or_default();
        let logits: Vec<f64> = (0..level2).map(|j| dot(q, key(spec, k2, j, g)) * scale).collect();
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if most == f64::NEG_INFINITY {
            continue;
        }
        let z = most + logits.iter().map(|l| (l - most).exp()).sum::<f64>().ln();
        for (j, sum) in sums.iter_mut().enumerate() {
            *sum += (dot(q, key(spec, k1, j, g)) * scale - z).exp();
        }
    }
    let per_block = spec.block / spec.stride;
    (0..=p / spec.block)
        .map(|b| {
            let rows = (b * per_block).saturating_sub(1)..(b * per_block + per_block).min(level1);
            rows.filter_map(|j| sums.get(j)).copied().fold(0.0, f64::max)
        })
        .collect()
}
