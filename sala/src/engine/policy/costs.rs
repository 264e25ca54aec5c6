//! Measured times, by length of context: a verify pass per number of rows, extending the draft window, one draft step.
//!
//! Means follow slowly and clip outliers (a first run that records a graph, a busy machine). Unmeasured numbers of
//! rows are interpolated, and extrapolated with a low slope, so that deeper rounds get tried.

use super::Outcome;
use crate::backend::MAX_VERIFY_ROWS;

const BUCKETS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, usize::MAX];
/// Assumed cost of a further row before the first measurement, in plain steps.
const ROW: f64 = 0.03;
/// Assumed cost of a draft step before the first measurement, in plain steps.
const STEP: f64 = 0.08;

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    seconds: f64,
    samples: u32,
}

impl Mean {
    fn add(&mut self, seconds: f64) {
        self.seconds = match self.samples {
            0 => seconds,
            // The first runs of a shape are the slowest; later ones show its cost.
            1 | 2 => self.seconds.min(seconds),
            _ => self.seconds + 0.1 * (seconds.min(3.0 * self.seconds) - self.seconds),
        };
        self.samples = self.samples.saturating_add(1);
    }

    fn get(self) -> Option<f64> {
        (self.samples > 0).then_some(self.seconds)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    verify: [Mean; MAX_VERIFY_ROWS],
    extend: Mean,
    step: Mean,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Costs([Bucket; BUCKETS.len()]);

impl Costs {
    fn index(context: usize) -> usize {
        BUCKETS.iter().position(|&end| context < end).unwrap_or(BUCKETS.len() - 1)
    }

    /// The bucket of `context`, or the nearest one with a measured plain step.
    fn bucket(&self, context: usize) -> Option<&Bucket> {
        let own = Self::index(context);
        let measured = |b: &&Bucket| b.verify.first().is_some_and(|m| m.samples > 0);
        let below = self.0.iter().take(own + 1).rev();
        below.chain(self.0.iter().skip(own + 1)).find(measured)
    }

    pub fn knows_plain(&self, context: usize) -> bool {
        self.0.get(Self::index(context)).and_then(|b| b.verify.first()).is_some_and(|m| m.samples > 0)
    }

    /// 1 row is a plain step. Without measurements: 1 second per step.
    pub fn verify(&self, context: usize, rows: usize) -> f64 {
        let Some(bucket) = self.bucket(context) else { return 1.0 + ROW * (rows - 1) as f64 };
        let known = |n: usize| bucket.verify.get(n - 1).copied().and_then(Mean::get);
        let plain = known(1).unwrap_or(1.0);
        let below = (1..=rows).rev().find_map(|n| known(n).map(|s| (n, s))).unwrap_or((1, plain));
        let above = (rows..=MAX_VERIFY_ROWS).find_map(|n| known(n).map(|s| (n, s)));
        match above {
            Some((n, s)) if n > below.0 => below.1 + (s - below.1) * (rows - below.0) as f64 / (n - below.0) as f64,
            Some((_, s)) => s,
            None => {
                let slope = if below.0 > 1 { ((below.1 - plain) / (below.0 - 1) as f64).max(0.0) } else { ROW * plain };
                below.1 + slope * (rows - below.0) as f64
            }
        }
    }

    /// Seconds of a round of `rows` rows in a pass of `sequences`, of which the others have one row each. Each row
    /// after the first delays all of them. With `sequences` 1, a round alone.
    pub fn verify_shared(&self, context: usize, rows: usize, sequences: usize) -> f64 {
        if sequences <= 1 || rows <= 1 {
            return self.verify(context, rows);
        }
        let (plain, all) = (self.verify(context, 1), self.verify(context, sequences));
        let more = (self.verify(context, sequences + rows - 1) - all).max(0.0);
        plain + sequences as f64 * more * plain / all.max(1e-12)
    }

    /// The time includes the first draft.
    pub fn extend(&self, context: usize) -> f64 {
        self.bucket(context).and_then(|b| b.extend.get()).unwrap_or_else(|| 2.0 * self.step(context))
    }

    pub fn step(&self, context: usize) -> f64 {
        self.bucket(context).and_then(|b| b.step.get()).unwrap_or_else(|| STEP * self.verify(context, 1))
    }

    pub fn observe(&mut self, o: &Outcome<'_>) {
        let Some(bucket) = self.0.get_mut(Self::index(o.context)) else { return };
        if let Some(m) = bucket.verify.get_mut(o.drafted) {
            m.add(o.verify_s);
        }
        if o.extend_s > 0.0 {
            bucket.extend.add(o.extend_s);
        }
        if o.steps > 0 {
            bucket.step.add(o.steps_s / o.steps as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(drafted: usize, verify_s: f64) -> Outcome<'static> {
        Outcome { context: 100, drafted, verify_s, ..Outcome::default() }
    }

    #[test]
    fn rows_not_measured_are_interpolated() {
        let mut c = Costs::default();
        assert!(!c.knows_plain(100));
        c.observe(&round(0, 1.0));
        assert!(c.knows_plain(100) && !c.knows_plain(100_000));
        assert!((c.verify(100, 3) - (1.0 + 2.0 * ROW)).abs() < 1e-9);
        c.observe(&round(4, 1.4));
        assert!((c.verify(100, 3) - 1.2).abs() < 1e-9);
        assert!((c.verify(100, 9) - 1.8).abs() < 1e-9);
        // An unmeasured longer context uses the nearest bucket.
        assert!((c.verify(100_000, 5) - 1.4).abs() < 1e-9);
    }

    #[test]
    fn a_row_of_a_shared_pass_costs_the_delay_of_all() {
        // An H200 with bf16 weights, in ms.
        let mut c = Costs::default();
        for (drafted, ms) in [(0, 4.63), (7, 5.19), (15, 5.97)] {
            c.observe(&round(drafted, ms));
        }
        assert!((c.verify_shared(100, 2, 1) - c.verify(100, 2)).abs() < 1e-12);
        let row = c.verify_shared(100, 2, 8) / c.verify(100, 1) - 1.0;
        // 8 sequences wait 0.0975 ms of 5.19 each.
        assert!((row - 8.0 * 0.0975 / 5.19).abs() < 1e-6, "{row}");
        assert!((c.verify_shared(100, 1, 8) - c.verify(100, 1)).abs() < 1e-12);
    }

    #[test]
    fn a_slow_first_run_does_not_stick() {
        let mut c = Costs::default();
        c.observe(&round(0, 9.0));
        c.observe(&round(0, 1.0));
        assert!((c.verify(0, 1) - 1.0).abs() < 1e-9);
        for _ in 0..5 {
            c.observe(&round(0, 1.0));
        }
        c.observe(&round(0, 100.0));
        assert!(c.verify(0, 1) < 1.3);
    }
}
