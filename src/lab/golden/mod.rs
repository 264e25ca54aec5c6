//! Replays golden data on any backend: `doctor --fixtures` and the tests judge a device by it.
//!
//! Owns the reading of fixture folders and the budgets; a verdict is a [`Check`]. A fixture that a device cannot run
//! is reported as not run, with the reason; it never counts as passed. `tests/fixtures/README.md` describes the
//! tensors.
//!
//! Budgets depend on the device's arithmetic. In f32, logits and rows must agree within 1e-4 and selections exactly,
//! except where a score gap below 1e-4 that is no exact tie leaves the choice open. In bf16 block sets are not
//! compared (rounding decides near-ties); outputs are judged by the ratio of RMS error to RMS value.

mod draft;
mod model;
mod ops;

use std::path::Path;

use safetensors::Dtype as FileDtype;

use crate::backend::draft::DraftOps;
use crate::backend::{Backend, BackendError};
use crate::engine::protocol::Dtype;
use crate::model::{ModelError, Result, Tensors};

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

/// Arithmetic of a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precision {
    /// f32 throughout.
    Single,
    /// bf16 activations and caches.
    Half,
}

impl Precision {
    fn of<B: Backend>(b: &B) -> Precision {
        if b.cache_dtype() == Dtype::F32 { Precision::Single } else { Precision::Half }
    }
}

fn max_error(found: &[f32], golden: &[f32]) -> f64 {
    // A NaN must win: `f64::max` would drop it.
    found.iter().zip(golden).fold(0.0, |worst, (a, b)| {
        let error = f64::from((a - b).abs());
        if error > worst || error.is_nan() { error } else { worst }
    })
}

pub(super) fn rms_ratio(found: &[f32], golden: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let error: f64 = found.iter().zip(golden).map(|(a, b)| square(f64::from(a - b))).sum();
    let size: f64 = golden.iter().map(|b| square(f64::from(*b))).sum();
    (error / size.max(f64::MIN_POSITIVE)).sqrt()
}

/// Replays every fixture of a folder that exists: `ops`, `tiny-mixed`, `tiny-real-sparse`, `eagle3`.
pub fn replay<B: DraftOps>(dir: &Path, b: &mut B) -> Result<Vec<Check>> {
    let mut report = Report { precision: Precision::of(b), checks: Vec::new() };
    if dir.join("ops").is_dir() {
        ops::replay(&dir.join("ops"), b, &mut report)?;
    }
    for name in ["tiny-mixed", "tiny-real-sparse"] {
        if dir.join(name).is_dir() {
            report.guard(name, |report| model::replay(&dir.join(name), name, b, report))?;
        }
    }
    if dir.join("eagle3").is_dir() {
        draft::replay(&dir.join("eagle3"), b, &mut report)?;
    }
    if report.checks.is_empty() {
        return Err(ModelError::NoCheckpoint {
            path: dir.into(),
            reason: "no fixtures (ops, tiny-mixed, tiny-real-sparse, eagle3) are in it".into(),
        });
    }
    Ok(report.checks)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Logits, hidden rows, norms: 1e-4 absolute; 2 % RMS.
    Rows,
    /// Outputs of a mixer: 1e-4 absolute; 3 % RMS.
    Attention,
    /// Streams, logits and cache rows of a draft head: 2e-4 absolute; 3 % RMS.
    Draft,
    /// Recurrent states and other values that grow: 1e-4 of the greatest magnitude; 2 % RMS.
    State,
    /// Cached keys and their means: 1e-5 absolute; 1 % RMS.
    Keys,
}

struct Report {
    precision: Precision,
    checks: Vec<Check>,
}

impl Report {
    fn compare(&mut self, fixture: &str, tensor: &str, kind: Kind, found: &[f32], golden: &[f32]) {
        let (error, budget) = if found.len() != golden.len() {
            (f64::INFINITY, 0.0)
        } else {
            let greatest = golden.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
            match (self.precision, kind) {
                (Precision::Single, Kind::Rows | Kind::Attention) => (max_error(found, golden), 1e-4),
                (Precision::Single, Kind::Draft) => (max_error(found, golden), 2e-4),
                (Precision::Single, Kind::State) => (max_error(found, golden), 1e-4 * greatest.max(1.0)),
                (Precision::Single, Kind::Keys) => (max_error(found, golden), 1e-5),
                (Precision::Half, Kind::Attention | Kind::Draft) => (rms_ratio(found, golden), 0.03),
                (Precision::Half, Kind::Rows | Kind::State) => (rms_ratio(found, golden), 0.02),
                (Precision::Half, Kind::Keys) => (rms_ratio(found, golden), 0.01),
            }
        };
        self.file(fixture, tensor, Outcome::Compared { error, budget });
    }

    fn file(&mut self, fixture: &str, tensor: &str, outcome: Outcome) {
        self.checks.push(Check { fixture: fixture.into(), tensor: tensor.into(), outcome });
    }

    /// Compares selected blocks, `golden [kv][row]` against `found [row][kv]`: the error is the number of rows that
    /// differ without excuse. `gap` is the relative distance of the last chosen to the first refused score: 0 for a
    /// tie, `None` if unknown.
    fn selections(
        &mut self,
        fixture: &str,
        tensor: &str,
        found: &[Vec<Vec<u32>>],
        golden: &[Vec<Vec<u32>>],
        gap: impl Fn(usize, usize) -> Option<f32>,
    ) {
        if self.precision == Precision::Half {
            return;
        }
        let mut wrong = 0;
        for (g, rows) in golden.iter().enumerate() {
            for (r, golden) in rows.iter().enumerate() {
                let same = found.get(r).and_then(|f| f.get(g)).is_some_and(|f| f == golden);
                let open = gap(g, r).is_some_and(|gap| gap > 0.0 && gap < 1e-4);
                wrong += usize::from(!same && !open);
            }
        }
        self.file(fixture, tensor, Outcome::Compared { error: wrong as f64, budget: 0.0 });
    }

    /// Runs `body`; a shape that the device does not support gives a `NotRun` verdict.
    fn guard(&mut self, fixture: &str, body: impl FnOnce(&mut Report) -> Result<()>) -> Result<()> {
        match body(self) {
            Err(ModelError::Backend(BackendError::Unsupported(reason))) => {
                self.file(fixture, "*", Outcome::NotRun(reason));
                Ok(())
            }
            other => other,
        }
    }
}

struct Golden {
    tensors: Tensors,
    path: String,
}

impl Golden {
    fn open(path: &Path) -> Result<Golden> {
        Ok(Golden { tensors: Tensors::open_files(&[path.to_path_buf()])?, path: path.display().to_string() })
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.contains(name)
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>> {
        Ok(self.tensors.raw(name)?.1.to_vec())
    }

    fn dims<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let shape = self.shape(name)?;
        shape.as_slice().try_into().map_err(|_| self.broken(name, format!("has shape {shape:?}")))
    }

    fn broken(&self, name: &str, cause: String) -> ModelError {
        ModelError::Damaged { origin: self.path.clone(), cause: format!("tensor `{name}` {cause}") }
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let loaded = self.tensors.get(name, &self.shape(name)?)?;
        let view = loaded.view();
        view.dtype.floats(view.data).ok_or_else(|| self.broken(name, format!("holds {:?}, not numbers", view.dtype)))
    }

    fn integers(&self, name: &str) -> Result<Vec<i64>> {
        let (dtype, _, bytes) = self.tensors.raw(name)?;
        match dtype {
            FileDtype::I64 => Ok(bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
            FileDtype::I32 => Ok(bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect()),
            FileDtype::I16 => Ok(bytes.as_chunks().0.iter().map(|b| i16::from_le_bytes(*b).into()).collect()),
            other => Err(self.broken(name, format!("holds {other:?}, not integers"))),
        }
    }

    fn indices(&self, name: &str) -> Result<Vec<usize>> {
        let convert = |v: i64| usize::try_from(v).map_err(|_| self.broken(name, format!("holds {v}")));
        self.integers(name)?.into_iter().map(convert).collect()
    }

    /// Selected blocks `[kv][row]` without the unused entries.
    fn selected(&self, name: &str) -> Result<Vec<Vec<Vec<u32>>>> {
        let [kv, rows, k] = self.dims::<3>(name)?;
        let values = self.integers(name)?;
        let list = |l: &[i64]| l.iter().filter_map(|v| u32::try_from(*v).ok()).collect::<Vec<u32>>();
        let lists: Vec<Vec<u32>> = values.chunks_exact(k.max(1)).map(list).collect();
        debug_assert_eq!(lists.len(), kv * rows);
        Ok(lists.chunks(rows.max(1)).map(<[_]>::to_vec).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_misses_every_budget() {
        for precision in [Precision::Single, Precision::Half] {
            let mut report = Report { precision, checks: Vec::new() };
            report.compare("f", "t", Kind::Rows, &[1.0, f32::NAN, 1.0], &[1.0, 1.0, 1.0]);
            report.compare("f", "short", Kind::Rows, &[1.0], &[1.0, 1.0]);
            assert!(report.checks.iter().all(Check::missed));
        }
    }

    #[test]
    fn only_an_open_choice_excuses_another_selection() {
        let mut report = Report { precision: Precision::Single, checks: Vec::new() };
        let (found, golden) = (vec![vec![vec![0, 1]]], vec![vec![vec![0, 2]]]);
        for gap in [Some(5e-5), Some(0.0), Some(1e-2), None] {
            report.selections("f", "t", &found, &golden, |_, _| gap);
        }
        assert_eq!(report.checks.iter().map(Check::missed).collect::<Vec<_>>(), [false, true, true, true]);
    }
}
