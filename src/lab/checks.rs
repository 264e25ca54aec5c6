//! Checks with their verdicts: of kernels (`doctor --kernels`), of golden data (`doctor --fixtures`), of a model against
//! itself (`eval`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::bail;
use serde::Serialize;
use serde_json::{Value, json};

use super::report::joined;
use crate::cli::{Context, Exit, Failure};
use crate::core::counted;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Check {
    /// `norm_linear verify 5 @ 6144`, `ops/rope d32.y`
    pub name: String,
    pub error: Option<f64>,
    pub budget: Option<f64>,
    /// `None`: not run, which never counts as passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ok: Option<bool>,
    pub message: Option<String>,
}

impl Check {
    /// A NaN is never within a budget.
    pub fn compared(name: impl Into<String>, error: f64, budget: f64) -> Check {
        // JSON has no NaN and no infinity.
        let message = (!error.is_finite()).then(|| format!("error {error}"));
        Check { name: name.into(), error: Some(error), budget: Some(budget), ok: Some(error <= budget), message }
    }

    pub fn missed(&self) -> bool {
        self.ok == Some(false)
    }

    pub fn line(&self) -> String {
        let compared = self.error.zip(self.budget).map(|(error, budget)| format!("{error:.2e} of {budget:.1e}"));
        let result = compared.into_iter().chain(self.message.clone()).collect::<Vec<_>>().join(" ");
        format!("{:>4} {:<60} {result}", word(self.ok), self.name).trim_end().to_owned()
    }
}

fn word(ok: Option<bool>) -> &'static str {
    ok.map_or("-", |ok| if ok { "ok" } else { "MISS" })
}

/// Checks from one note about the progress to the next.
const BETWEEN_NOTES: usize = 100;

#[derive(Default)]
pub struct Checks<'a> {
    pub list: Vec<Check>,
    pub progress: Option<&'a dyn Fn(&str)>,
}

impl Checks<'_> {
    /// A check that holds or gives a reason why not. A failure or panic in it hides no other.
    pub fn add(&mut self, name: impl Into<String>, check: impl FnOnce() -> anyhow::Result<()>) {
        self.record(name.into(), || check().map(|()| None));
    }

    /// A check of an error against its budget.
    pub fn compare(&mut self, name: impl Into<String>, budget: f64, error: impl FnOnce() -> anyhow::Result<f64>) {
        self.record(name.into(), || Ok(Some((error()?, budget))));
    }

    fn record(&mut self, name: String, check: impl FnOnce() -> anyhow::Result<Option<(f64, f64)>>) {
        let result = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|cause| {
            let text = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
            bail!("panicked: {}", text.unwrap_or_default())
        });
        self.list.push(match result {
            Ok(Some((error, budget))) => Check::compared(name, error, budget),
            Ok(None) => Check { name, ok: Some(true), ..Check::default() },
            Err(e) => Check { name, ok: Some(false), message: Some(format!("{e:#}")), ..Check::default() },
        });
        if let (true, Some(note)) = (self.list.len().is_multiple_of(BETWEEN_NOTES), self.progress) {
            note(&format!("{} checks so far, {} missed", self.list.len(), self.failed().count()));
        }
    }

    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.list.iter().filter(|check| check.missed())
    }
}

/// Prints `head`, the checks and `lines`; the object has the fields of `more` too. Exit code 1 for a miss.
pub(super) fn report(
    context: &Context,
    head: String,
    checks: &[Check],
    more: Value,
    lines: Vec<String>,
) -> Result<Exit, Failure> {
    let missed = checks.iter().filter(|check| check.missed()).count();
    let object = || joined(more, json!({"ok": missed == 0, "missed": missed, "checks": checks}));
    let text = || {
        let last = format!("{}, {missed} missed", counted(checks.len() as u64, "check"));
        let all = std::iter::once(head).chain(checks.iter().map(Check::line)).chain(lines).chain([last]);
        all.collect::<Vec<_>>().join("\n")
    };
    context.result(object, text)?;
    Ok(if missed == 0 { Exit::Ok } else { Exit::Failure })
}
