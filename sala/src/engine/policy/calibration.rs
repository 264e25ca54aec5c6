//! How often drafts of a confidence were right, given that those before them were.
//!
//! Counters decay slowly, so they follow the text. Only positions with a known outcome count: the first rejected draft
//! and all before it. Saved with the session as JSON (tensor `draft.calibration`).

use serde::{Deserialize, Serialize};

const DEPTHS: usize = 8;
/// Bins of the head's confidence, by log-odds: half a unit each, from below -3.5 to above 3.5.
const CONFIDENCES: usize = 16;
/// Bins of match lengths: 3, 4-5, 6-7, 8-11, 12 and more.
const MATCHES: usize = 5;
const PRIOR_WEIGHT: f64 = 2.5;
/// Weight of an observation after the next one of the same cell.
const KEEP: f64 = 0.99;
/// The same for the means per depth, which have to follow quickly.
const KEEP_DEPTH: f64 = 0.97;
/// Chance of a looked-up first token, by bin of match length (docs/speculative.md §8.2).
const MATCH_PRIOR: [f64; MATCHES] = [0.45, 0.55, 0.70, 0.80, 0.90];
/// Chance of the head's draft at any depth before the first observation.
const HEAD_PRIOR: f64 = 0.65;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Counter(f64, f64);

impl Counter {
    fn learn(&mut self, right: bool, keep: f64) {
        self.0 = self.0 * keep + f64::from(u8::from(right));
        self.1 = self.1 * keep + 1.0;
    }

    fn mean(self, prior: f64) -> f64 {
        (self.0 + prior * PRIOR_WEIGHT) / (self.1 + PRIOR_WEIGHT)
    }
}

/// The mean at `depth`. The mean of the previous depth moves the prior: a source that is never right at first was
/// never observed deeper, and should not count as good there.
fn chain(counters: &[Counter; DEPTHS], depth: usize, prior: impl Fn(usize) -> f64) -> f64 {
    let mut before = None;
    for (j, counter) in counters.iter().enumerate().take(depth.min(DEPTHS - 1) + 1) {
        let prior = before.map_or(prior(j), |b: f64| 0.5 * (b + prior(j)));
        before = Some(counter.mean(prior));
    }
    before.unwrap_or_default()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Calibration {
    head: [[Counter; CONFIDENCES]; DEPTHS],
    head_depth: [Counter; DEPTHS],
    ngram: [[[Counter; DEPTHS]; 2]; MATCHES],
}

fn confidence_bin(confidence: f64) -> usize {
    let p = confidence.clamp(1e-6, 1.0 - 1e-6);
    // In range by the clamp, hence an exact cast.
    (((p / (1.0 - p)).ln() * 2.0).floor() + 8.0).clamp(0.0, (CONFIDENCES - 1) as f64) as usize
}

fn match_bin(matched: usize) -> usize {
    match matched {
        0..=3 => 0,
        4..=5 => 1,
        6..=7 => 2,
        8..=11 => 3,
        12.. => 4,
    }
}

impl Calibration {
    pub fn head(&self, depth: usize, confidence: f64) -> f64 {
        let bin = confidence_bin(confidence);
        self.head
            .get(depth.min(DEPTHS - 1))
            .and_then(|d| d.get(bin))
            .copied()
            .unwrap_or_default()
            .mean(confidence.clamp(0.02, 0.98))
    }

    pub fn head_depth(&self, depth: usize) -> f64 {
        chain(&self.head_depth, depth, |_| HEAD_PRIOR)
    }

    pub fn ngram(&self, matched: usize, agreement: f32, depth: usize) -> f64 {
        let split = usize::from(agreement < 1.0);
        // Every correct token lengthens the match.
        let prior = |j| MATCH_PRIOR.get(match_bin(matched + j)).copied().unwrap_or(0.5);
        let cell = self.ngram.get(match_bin(matched)).and_then(|m| m.get(split)).copied();
        chain(&cell.unwrap_or_default(), depth, |j| prior(j) * if split == 1 { 0.8 } else { 1.0 })
    }

    pub fn learn_head(&mut self, depth: usize, confidence: f64, right: bool) {
        let depth = depth.min(DEPTHS - 1);
        if let Some(c) = self.head.get_mut(depth).and_then(|d| d.get_mut(confidence_bin(confidence))) {
            c.learn(right, KEEP);
        }
        if let Some(c) = self.head_depth.get_mut(depth) {
            c.learn(right, KEEP_DEPTH);
        }
    }

    pub fn learn_ngram(&mut self, matched: usize, agreement: f32, depth: usize, right: bool) {
        let cell = self.ngram.get_mut(match_bin(matched)).and_then(|m| m.get_mut(usize::from(agreement < 1.0)));
        if let Some(c) = cell.and_then(|s| s.get_mut(depth.min(DEPTHS - 1))) {
            c.learn(right, KEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_start_at_the_prior_and_follow_what_happens() {
        let mut c = Calibration::default();
        assert!((c.head(0, 0.9) - 0.9).abs() < 1e-9);
        assert!((c.ngram(12, 1.0, 0) - 0.9).abs() < 1e-9);
        for i in 0..400 {
            c.learn_head(0, 0.9, i % 2 == 0);
            c.learn_ngram(12, 1.0, 0, false);
        }
        assert!((c.head(0, 0.9) - 0.5).abs() < 0.05, "{}", c.head(0, 0.9));
        assert!(c.ngram(12, 1.0, 0) < 0.05);
        // Neighbouring cells are independent.
        assert!((c.head(1, 0.9) - 0.9).abs() < 1e-9);
        assert!(c.head(0, 0.2) < 0.3);
        assert!((c.ngram(4, 1.0, 0) - 0.55).abs() < 1e-9);
    }

    #[test]
    fn every_confidence_has_a_bin() {
        assert_eq!((confidence_bin(0.0), confidence_bin(0.5), confidence_bin(1.0)), (0, 8, 15));
        assert_eq!(confidence_bin(f64::NAN.clamp(1e-6, 0.5)), 0);
    }

    #[test]
    fn counters_survive_a_session() {
        let mut c = Calibration::default();
        c.learn_head(3, 0.7, true);
        c.learn_ngram(7, 0.5, 2, true);
        let json = serde_json::to_string(&c).unwrap();
        assert_eq!(serde_json::from_str::<Calibration>(&json).unwrap(), c);
        assert_eq!(serde_json::from_str::<Calibration>("{}").unwrap(), Calibration::default());
    }
}
