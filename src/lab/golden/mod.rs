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
use serde_json::json;

use super::checks::{Check, report};
use crate::backend::draft::DraftOps;
use crate::backend::{BackendError, Memory};
use crate::cli::args::DoctorArgs;
use crate::cli::devices::{self, Opened};
use crate::cli::{Context, Exit, Failure};
use crate::engine::protocol::Dtype;
use crate::model::{ModelError, Result, Tensors};

/// `sala-chat doctor --fixtures DIR`: a miss is named and gives exit code 1.
pub(super) fn run(context: &Context, args: &DoctorArgs, dir: &Path) -> Result<Exit, Failure> {
    std::fs::metadata(dir).map_err(|e| Failure::input(dir, &e))?;
    let (device, checks) = match devices::open(&context.config().model, &args.tuning, false)? {
        Opened::Cpu(mut cpu, note) => {
            note.iter().for_each(|note| context.note(note));
            (cpu.describe(), replay(dir, &mut *cpu)?)
        }
        #[cfg(feature = "cuda")]
        Opened::Cuda(mut cuda) => (cuda.describe(), replay(dir, &mut *cuda)?),
    };
    report(context, device.clone(), &checks, json!({"device": device}), Vec::new())
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
    let mut report = Report { single: b.cache_dtype() == Dtype::F32, checks: Vec::new() };
    ops::replay(&dir.join("ops"), b, &mut report)?;
    for name in ["tiny-mixed", "tiny-real-sparse"].into_iter().filter(|name| dir.join(name).is_dir()) {
        let file = dir.join(name).join("golden.safetensors");
        report.fixture(name, &file, |fixture| model::replay(&dir.join(name), b, fixture))?;
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
    /// Logits, hidden rows, norms.
    Rows,
    /// Outputs of a mixer.
    Attention,
    /// Streams, logits and cache rows of a draft head.
    Draft,
    /// Recurrent states and other values that grow.
    State,
    /// Cached keys and their means.
    Keys,
}

/// Error and budget by the kind of values: the greatest error in f32, the ratio of RMS error to RMS value in bf16.
fn judged(single: bool, kind: Kind, found: &[f32], golden: &[f32]) -> (f64, f64) {
    if found.len() != golden.len() {
        return (f64::INFINITY, 0.0);
    }
    let greatest = golden.iter().fold(1.0f64, |m, v| m.max(f64::from(v.abs())));
    let (in_f32, in_bf16) = match kind {
        Kind::Rows => (1e-4, 0.02),
        Kind::Attention => (1e-4, 0.03),
        Kind::Draft => (2e-4, 0.03),
        Kind::State => (1e-4 * greatest, 0.02),
        Kind::Keys => (1e-5, 0.01),
    };
    if single { (max_error(found, golden), in_f32) } else { (rms_ratio(found, golden), in_bf16) }
}

/// Rows of selected blocks, `golden [kv][row]` against `found [row][kv]`, that differ without excuse. `gap` is the
/// relative distance of the last chosen to the first refused score: 0 for a tie, `None` if unknown.
fn wrong_choices(
    found: &[Vec<Vec<u32>>],
    golden: &[Vec<Vec<u32>>],
    gap: impl Fn(usize, usize) -> Option<f32>,
) -> usize {
    let wrong = |g: usize, r: usize, golden: &Vec<u32>| {
        let same = found.get(r).and_then(|f| f.get(g)).is_some_and(|f| f == golden);
        !same && !gap(g, r).is_some_and(|gap| gap > 0.0 && gap < 1e-4)
    };
    let of = |(g, rows): (usize, &Vec<Vec<u32>>)| rows.iter().enumerate().filter(|(r, row)| wrong(g, *r, row)).count();
    golden.iter().enumerate().map(of).sum()
}

struct Report {
    /// The device computes in f32 throughout; else in bf16.
    single: bool,
    checks: Vec<Check>,
}

impl Report {
    /// Runs `body` with a fixture's file; a shape that the device does not support gives no verdict.
    fn fixture(&mut self, name: &str, file: &Path, body: impl FnOnce(&mut Fixture) -> Result<()>) -> Result<()> {
        let tensors = Tensors::open_files(&[file.to_path_buf()])?;
        let file = file.display().to_string();
        let mut fixture = Fixture { name, file, tensors, single: self.single, checks: &mut self.checks };
        match body(&mut fixture) {
            Err(ModelError::Backend(BackendError::Unsupported(reason))) => {
                let message = Some(format!("not run: {reason}"));
                self.checks.push(Check { name: name.into(), message, ..Check::default() });
                Ok(())
            }
            other => other,
        }
    }
}

pub(super) fn floats(tensors: &Tensors, name: &str) -> Result<Vec<f32>, String> {
    let loaded = tensors.raw(name).and_then(|(_, shape, _)| tensors.get(name, shape)).map_err(|e| e.to_string())?;
    let view = loaded.view();
    view.dtype.floats(view.data).ok_or_else(|| format!("tensor `{name}` holds {:?}, not numbers", view.dtype))
}

pub(super) fn integers(tensors: &Tensors, name: &str) -> Result<Vec<i64>, String> {
    let (dtype, _, bytes) = tensors.raw(name).map_err(|e| e.to_string())?;
    match dtype {
        FileDtype::I64 | FileDtype::U64 => Ok(bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
        FileDtype::U32 => Ok(bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b).into()).collect()),
        FileDtype::I32 => Ok(bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect()),
        FileDtype::I16 => Ok(bytes.as_chunks().0.iter().map(|b| i16::from_le_bytes(*b).into()).collect()),
        other => Err(format!("tensor `{name}` holds {other:?}, not integers")),
    }
}

/// A file of golden tensors, and the verdicts on what is compared with it.
struct Fixture<'a> {
    name: &'a str,
    file: String,
    tensors: Tensors,
    single: bool,
    checks: &'a mut Vec<Check>,
}

impl Fixture<'_> {
    fn add(&mut self, tensor: &str, error: f64, budget: f64) {
        self.checks.push(Check::compared(format!("{} {tensor}", self.name), error, budget));
    }

    fn judge(&mut self, tensor: &str, kind: Kind, found: &[f32], golden: &[f32]) {
        let (error, budget) = judged(self.single, kind, found, golden);
        self.add(tensor, error, budget);
    }

    fn compare(&mut self, tensor: &str, kind: Kind, found: &[f32]) -> Result<()> {
        let golden = self.floats(tensor)?;
        self.judge(tensor, kind, found, &golden);
        Ok(())
    }

    /// The same if the file has the tensor.
    fn check(&mut self, tensor: &str, kind: Kind, found: &[f32]) -> Result<()> {
        if self.has(tensor) { self.compare(tensor, kind, found) } else { Ok(()) }
    }

    /// Compares selected blocks `[row][kv]`, except in bf16: see [`wrong_choices`].
    fn selection(
        &mut self,
        name: &str,
        golden: &str,
        found: &[Vec<Vec<u32>>],
        gap: impl Fn(usize, usize) -> Option<f32>,
    ) -> Result<()> {
        if self.single {
            let error = wrong_choices(found, &self.selected(golden)?, gap) as f64;
            self.add(name, error, 0.0);
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.contains(name)
    }

    fn dims<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let shape = self.tensors.raw(name)?.1;
        shape.try_into().map_err(|_| self.broken(format!("tensor `{name}` has shape {shape:?}")))
    }

    fn broken(&self, cause: String) -> ModelError {
        ModelError::Damaged { origin: self.file.clone(), cause }
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        floats(&self.tensors, name).map_err(|cause| self.broken(cause))
    }

    fn integers(&self, name: &str) -> Result<Vec<i64>> {
        integers(&self.tensors, name).map_err(|cause| self.broken(cause))
    }

    fn indices<T: TryFrom<i64>>(&self, name: &str) -> Result<Vec<T>> {
        let convert = |v: i64| T::try_from(v).map_err(|_| self.broken(format!("tensor `{name}` holds {v}")));
        self.integers(name)?.into_iter().map(convert).collect()
    }

    /// Selected blocks `[kv][row]` without the unused entries.
    fn selected(&self, name: &str) -> Result<Vec<Vec<Vec<u32>>>> {
        let [_, rows, k] = self.dims(name)?;
        let values = self.integers(name)?;
        let list = |l: &[i64]| l.iter().filter_map(|v| u32::try_from(*v).ok()).collect::<Vec<u32>>();
        let lists: Vec<Vec<u32>> = values.chunks_exact(k.max(1)).map(list).collect();
        Ok(lists.chunks(rows.max(1)).map(<[_]>::to_vec).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_misses_every_budget() {
        for single in [true, false] {
            let missed = |found: &[f32], golden: &[f32]| {
                let (error, budget) = judged(single, Kind::Rows, found, golden);
                Check::compared("x", error, budget).missed()
            };
            assert!(missed(&[1.0, f32::NAN, 1.0], &[1.0, 1.0, 1.0]));
            assert!(missed(&[1.0], &[1.0, 1.0]));
        }
    }

    #[test]
    fn only_an_open_choice_excuses_another_selection() {
        let (found, golden) = (vec![vec![vec![0, 1]]], vec![vec![vec![0, 2]]]);
        let wrong = [Some(5e-5), Some(0.0), Some(1e-2), None].map(|gap| wrong_choices(&found, &golden, |_, _| gap));
        assert_eq!(wrong, [0, 1, 1, 1]);
    }
}
