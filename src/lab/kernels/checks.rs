//! Independent checks: a failure or panic in one hides no other; and the measures they use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::bail;
use serde::Serialize;

use crate::lab::golden::rms_ratio;

#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Operation, rows and position: `norm_linear verify 5 @ 6144`.
    pub name: String,
    pub error: Option<f64>,
    pub budget: Option<f64>,
    pub ok: bool,
    pub message: Option<String>,
    pub ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// For a CPU that emulates a device, in minutes: few rows, small sizes.
    Emulated,
    /// All row counts and positions, real head counts.
    Device,
    /// The same heads with the rows and positions that differ most: for a device restricted to the limits of another
    /// card. The launches differ, the arithmetic is that of [`Extent::Device`].
    Limits,
}

const BETWEEN_NOTES: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Checks<'a> {
    pub list: Vec<Check>,
    pub progress: Option<&'a dyn Fn(&str)>,
    last_note: Option<Instant>,
}

impl Checks<'_> {
    pub fn add(&mut self, name: impl Into<String>, check: impl FnOnce() -> anyhow::Result<Outcome>) {
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|cause| {
            let text = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
            bail!("panicked: {}", text.unwrap_or_default())
        });
        let (error, budget, ok, message) = match outcome {
            Ok(Outcome::Holds) => (None, None, true, None),
            Ok(Outcome::Error { error, budget }) => {
                // NaN is never within a budget.
                let ok = error <= budget;
                let message = (!ok).then(|| format!("relative error {error:.3e}, at most {budget:.1e} allowed"));
                (Some(error), Some(budget), ok, message)
            }
            Err(e) => (None, None, false, Some(format!("{e:#}"))),
        };
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        self.list.push(Check { name: name.into(), error, budget, ok, message, ms });
        if self.last_note.get_or_insert(begun).elapsed() >= BETWEEN_NOTES {
            self.last_note = Some(Instant::now());
            let (all, missed) = (self.list.len(), self.failed().count());
            self.progress.iter().for_each(|note| note(&format!("{all} checks so far, {missed} missed")));
        }
    }

    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.list.iter().filter(|check| !check.ok)
    }
}

pub enum Outcome {
    Holds,
    Error {
        /// ‖out − ref‖ / ‖ref‖
        error: f64,
        budget: f64,
    },
}

/// ‖out − ref‖ / ‖ref‖; infinite if the lengths differ, NaN for NaN.
pub fn relative(out: &[f32], reference: &[f32]) -> f64 {
    if out.len() == reference.len() { rms_ratio(out, reference) } else { f64::INFINITY }
}

pub(super) fn same_bits(a: &[f32], b: &[f32], what: impl std::fmt::Display) -> anyhow::Result<()> {
    let at = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
    match at.or((a.len() != b.len()).then_some(a.len().min(b.len()))) {
        Some(at) => bail!("{what}: value {at} of {} differs", a.len()),
        None => Ok(()),
    }
}
