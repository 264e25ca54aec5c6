//! Independent checks: a failure or panic in one hides no other; and the measures they use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

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

/// Checks from one note about the progress to the next.
const BETWEEN_NOTES: usize = 100;

#[derive(Default)]
pub struct Checks<'a> {
    pub list: Vec<Check>,
    pub progress: Option<&'a dyn Fn(&str)>,
}

impl Checks<'_> {
    /// A check that holds or gives a reason why not.
    pub fn add(&mut self, name: impl Into<String>, check: impl FnOnce() -> anyhow::Result<()>) {
        self.record(name.into(), || check().map(|()| None));
    }

    /// A check of a relative error; NaN is never within a budget.
    pub fn compare(&mut self, name: impl Into<String>, budget: f64, error: impl FnOnce() -> anyhow::Result<f64>) {
        self.record(name.into(), || Ok(Some((error()?, budget))));
    }

    /// `check` gives an error and its budget, if it is about one.
    fn record(&mut self, name: String, check: impl FnOnce() -> anyhow::Result<Option<(f64, f64)>>) {
        let begun = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|cause| {
            let text = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
            bail!("panicked: {}", text.unwrap_or_default())
        });
        let (error, budget, message) = match result {
            Ok(Some((error, most))) => {
                let missed = error.is_nan() || error > most;
                let message = || format!("relative error {error:.3e}, at most {most:.1e} allowed");
                (Some(error), Some(most), missed.then(message))
            }
            Ok(None) => (None, None, None),
            Err(e) => (None, None, Some(format!("{e:#}"))),
        };
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        self.list.push(Check { name, error, budget, ok: message.is_none(), message, ms });
        if let (true, Some(note)) = (self.list.len().is_multiple_of(BETWEEN_NOTES), self.progress) {
            note(&format!("{} checks so far, {} missed", self.list.len(), self.failed().count()));
        }
    }

    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.list.iter().filter(|check| !check.ok)
    }
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
