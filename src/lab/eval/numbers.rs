//! Figures of two distributions over the vocabulary, from their logits. Sums in f64: a vocabulary has 73,448 terms.

use crate::engine::protocol::Token;
pub use crate::model::score::log_prob;
use crate::model::score::log_sum_exp;

/// Of equal logits the lower id wins.
pub fn likeliest(logits: &[f32]) -> Token {
    let best = |best: (usize, f32), (i, v): (usize, &f32)| if *v > best.1 { (i, *v) } else { best };
    let (token, _) = logits.iter().enumerate().fold((0, f32::NEG_INFINITY), best);
    token as Token
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// Kullback-Leibler divergence of `found` from `reference`, in nats.
    pub divergence: f64,
    pub same_top: bool,
    /// Greatest difference of a log-probability among the tokens with at least 0.001 in the reference.
    pub greatest: f64,
}

/// Compares two rows of logits `[vocab]`. A NaN in either makes the divergence NaN, which no budget admits.
pub fn distance(reference: &[f32], found: &[f32]) -> Distance {
    let (a, b) = (log_sum_exp(reference), log_sum_exp(found));
    let (mut divergence, mut greatest) = (0.0, 0.0f64);
    for (r, f) in reference.iter().zip(found) {
        let (r, f) = (f64::from(*r) - a, f64::from(*f) - b);
        let p = r.exp();
        divergence += p * (r - f);
        if p >= 1e-3 {
            greatest = greatest.max((r - f).abs());
        }
    }
    Distance { divergence, same_top: likeliest(reference) == likeliest(found), greatest }
}

/// Distances of many rows, in llama.cpp's columns.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Distances {
    pub length: usize,
    pub rows: usize,
    pub mean_kl: f64,
    pub p99_kl: f64,
    pub same_top: f64,
    /// Greatest difference of a log-probability that counts ([`Distance::greatest`]).
    pub max_diff: f64,
}

impl Distances {
    /// Without rows every figure is NaN: no rows are no evidence.
    pub fn of(length: usize, rows: &[Distance]) -> Distances {
        let n = rows.len() as f64;
        let mut sorted: Vec<f64> = rows.iter().map(|d| d.divergence).collect();
        sorted.sort_by(f64::total_cmp);
        let p99 = sorted.get((sorted.len().saturating_sub(1) * 99).div_ceil(100)).copied().unwrap_or(f64::NAN);
        let mean_kl = rows.iter().map(|d| d.divergence).sum::<f64>() / n;
        // A NaN must win: `f64::max` would drop it.
        let least = if mean_kl.is_nan() { f64::NAN } else { 0.0 };
        Distances {
            length,
            rows: rows.len(),
            mean_kl,
            p99_kl: p99,
            same_top: rows.iter().filter(|d| d.same_top).count() as f64 / n,
            max_diff: rows.iter().map(|d| d.greatest).fold(least, |most, d| if d > most { d } else { most }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_at_no_distance_from_itself_shifted() {
        let a = [1.0, 2.0, -3.0, 0.5];
        let shifted: Vec<f32> = a.iter().map(|v| v + 7.0).collect();
        let d = distance(&a, &shifted);
        assert!(d.divergence.abs() < 1e-6 && d.same_top && d.greatest < 1e-6, "{d:?}");
        let total: f64 = (0..4).map(|t| log_prob(&a, t).exp()).sum();
        assert!((total - 1.0).abs() < 1e-9);
        assert_eq!(log_prob(&a, 9), f64::NEG_INFINITY);
    }

    #[test]
    fn divergence_is_what_two_coins_give() {
        // 0.5/0.5 against 0.75/0.25: 0.5 ln(0.5/0.75) + 0.5 ln(0.5/0.25).
        let d = distance(&[0.0, 0.0], &[3f32.ln(), 0.0]);
        assert!((d.divergence - (0.5 * (2f64 / 3.0).ln() + 0.5 * 2f64.ln())).abs() < 1e-6, "{d:?}");
        assert!(d.same_top, "equal logits: the lower id");
        let nan = distance(&[0.0, 0.0], &[f32::NAN, 0.0]);
        assert!(nan.divergence.is_nan());
    }

    #[test]
    fn rows_are_summed_up() {
        let row = |divergence| Distance { divergence, same_top: divergence < 0.5, greatest: divergence };
        let rows: Vec<Distance> = (0..100).map(|i| row(f64::from(i) / 100.0)).collect();
        let all = Distances::of(512, &rows);
        assert!((all.mean_kl - 0.495).abs() < 1e-9 && (all.same_top - 0.5).abs() < 1e-9, "{all:?}");
        assert!((all.p99_kl - 0.99).abs() < 1e-9 && (all.max_diff - 0.99).abs() < 1e-9, "{all:?}");
        assert!(Distances::of(1, &[]).mean_kl.is_nan());
    }
}
