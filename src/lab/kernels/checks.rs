//! Independent checks: a failure or panic in one hides no other; and the measures they use.
//!
//! A check of an operation demands: every output element written (outputs start as NaN), relative error within the
//! budget of its number types, equal bits when run twice, and for verify passes equal bits when captured and replayed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::cases::{self, Case, Mode, Run, Sizes};
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::backend::{Pass, Result};

/// Outputs rounded to bf16, or sums of products of bf16 inputs.
pub(super) const BF16: f64 = 6e-3;
/// Values that are only moved or scaled in f32.
pub(super) const EXACT: f64 = 1e-6;
/// Outputs of a recurrence over bf16 q, k, v.
pub(super) const RECURRENT: f64 = 1.2e-2;
/// Softmax over bf16 keys with bf16 weights.
pub(super) const ATTENTION: f64 = 1.2e-2;

#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Operation, rows and position: `norm_linear verify 5 @ 6144`.
    pub name: String,
    /// Relative error; `None` if the check measures none.
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

const BETWEEN: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Checks<'a> {
    pub list: Vec<Check>,
    pub told: Option<&'a dyn Fn(&str)>,
    said: Option<Instant>,
}

impl Checks<'_> {
    /// Runs one check; errors and panics inside make it fail.
    pub fn add(&mut self, name: String, check: impl FnOnce() -> Result<Outcome, String>) {
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|cause| {
            let words = cause
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| cause.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(format!("panicked: {}", words.unwrap_or_default()))
        });
        let (error, budget, ok, message) = match outcome {
            Ok(Outcome::Holds) => (None, None, true, None),
            Ok(Outcome::Error { error, budget }) => {
                // NaN is never within a budget.
                let ok = error <= budget;
                let message = (!ok).then(|| format!("relative error {error:.3e}, at most {budget:.1e} allowed"));
                (Some(error), Some(budget), ok, message)
            }
            Err(message) => (None, None, false, Some(message)),
        };
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        self.list.push(Check { name, error, budget, ok, message, ms });
        if self.said.get_or_insert(begun).elapsed() >= BETWEEN {
            self.said = Some(Instant::now());
            let (all, missed) = (self.list.len(), self.failed().count());
            self.told.iter().for_each(|told| told(&format!("{all} checks so far, {missed} missed")));
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
    if out.len() != reference.len() {
        return f64::INFINITY;
    }
    let (mut difference, mut total) = (0.0, 0.0);
    for (a, b) in out.iter().zip(reference) {
        difference += (f64::from(*a) - f64::from(*b)).powi(2);
        total += f64::from(*b).powi(2);
    }
    (difference / f64::max(total, 1e-300)).sqrt()
}

/// Index of the first value with different bits.
pub fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    if a.len() != b.len() {
        return Some(a.len().min(b.len()));
    }
    a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())
}

pub(super) fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// The device's output; an error unless every run gives the same bits.
pub(super) fn repeatable(dev: &mut Cuda, run: &mut Run<Cuda>, pass: Pass) -> Result<Vec<f32>, String> {
    let first = run(dev, Mode::Eager).map_err(words)?;
    let again = run(dev, Mode::Eager).map_err(words)?;
    if let Some(at) = first_difference(&first, &again) {
        return Err(format!("two runs differ at value {at}: a race, or something unwritten"));
    }
    if let Pass::Verify { .. } = pass {
        for what in ["eager in a step", "captured", "replayed"] {
            let other = run(dev, Mode::Step).map_err(words)?;
            if let Some(at) = first_difference(&first, &other) {
                return Err(format!("{what} differs from eager at value {at}"));
            }
        }
    }
    dev.synchronize().map_err(words)?;
    dev.check_guards().map_err(words)?;
    Ok(first)
}

pub(super) fn place(op: &str, case: &Case) -> String {
    let (path, rows) = match case.pass {
        Pass::Verify { rows } => ("verify", rows),
        Pass::Prefill { rows } => ("prefill", rows),
    };
    format!("{op} {path} {rows} @ {}", case.position)
}

type Make = fn(&mut Cuda, Sizes, Case) -> Result<Run<Cuda>>;

/// The rows of one pass of 16 against the same rows one by one. Lossless speculation depends on equal bits.
pub(super) fn rows_alone_and_together(checks: &mut Checks, dev: &mut Cuda, sizes: Sizes) {
    let operations: [(&str, Make); 5] = [
        ("norm_linear", cases::norm_linear),
        ("norm_gate_up", cases::norm_gate_up),
        ("linear_add", cases::linear_add),
        ("gate_output (normed)", cases::gate_output_normed),
        ("head", cases::head),
    ];
    for (name, make) in operations {
        checks.add(format!("{name} {}: a row alone has the bits it has among 16", sizes.form.name()), || {
            alone_and_among(dev, make, sizes, 31, 16, &[1, 2, 3, 8, 9])
        });
    }
}

/// Checks that the first rows of a verify pass of `all` rows have the bits they have in passes of each of `few`.
pub(super) fn alone_and_among(
    dev: &mut Cuda,
    make: Make,
    sizes: Sizes,
    seed: u64,
    all: usize,
    few: &[usize],
) -> Result<Outcome, String> {
    let run = |dev: &mut Cuda, rows| -> Result<Vec<f32>, String> {
        let case = Case { pass: Pass::Verify { rows }, position: 0, seed };
        make(dev, sizes, case).map_err(words)?(dev, Mode::Eager).map_err(words)
    };
    let among = run(dev, all)?;
    for rows in few {
        let found = run(dev, *rows)?;
        if let Some(at) = first_difference(&found, among.get(..found.len()).unwrap_or_default()) {
            return Err(format!("{rows} rows differ from {all} at value {at}"));
        }
    }
    Ok(Outcome::Holds)
}
