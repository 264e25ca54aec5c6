//! Verdicts on tensors compared with golden data, and their measures.

use crate::backend::prelude::*;
use crate::engine::protocol::Dtype;

#[derive(Clone, Debug)]
pub struct Check {
    /// Folder and file, `ops/rope`, `tiny-mixed`.
    pub fixture: String,
    pub tensor: String,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Passed iff `error <= budget`.
    Compared {
        error: f64,
        budget: f64,
    },
    NotRun(String),
}

impl Check {
    pub fn missed(&self) -> bool {
        match self.outcome {
            Outcome::Compared { error, budget } => error.is_nan() || error > budget,
            Outcome::NotRun(_) => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// f32 throughout.
    Single,
    /// bf16 activations and caches.
    Half,
}

impl Precision {
    pub fn of<B: Backend>(b: &B) -> Precision {
        match b.cache_dtype() {
            Dtype::F32 => Precision::Single,
            Dtype::Bf16 | Dtype::U32 | Dtype::U8 => Precision::Half,
        }
    }
}

pub fn max_error(found: &[f32], golden: &[f32]) -> f64 {
    // A NaN must win: `f64::max` would drop it.
    found.iter().zip(golden).fold(0.0, |worst, (a, b)| {
        let error = f64::from((a - b).abs());
        if error > worst || error.is_nan() { error } else { worst }
    })
}

pub fn rms_ratio(found: &[f32], golden: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let error: f64 = found.iter().zip(golden).map(|(a, b)| square(f64::from(a - b))).sum();
    let size: f64 = golden.iter().map(|b| square(f64::from(*b))).sum();
    (error / size.max(f64::MIN_POSITIVE)).sqrt()
}
