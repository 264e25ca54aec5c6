//! `sala-chat doctor --fixtures DIR`: replays golden data on the chosen device; every tensor has a budget. A miss is
//! named and gives exit code 1; a case that the device cannot run is reported as not run, with the reason.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use super::golden::{self, Outcome};
use crate::backend::draft::DraftOps;
use crate::cli::args::DoctorArgs;
use crate::cli::devices::{self, Opened};
use crate::cli::{Context, Exit, Failure};

/// # Errors
/// A chosen device that is missing; fixtures that cannot be read.
pub(super) fn run(context: &Context, args: &DoctorArgs, dir: &Path) -> Result<Exit, Failure> {
    fn replay<B: DraftOps>(dir: &Path, mut b: B) -> Result<(String, Vec<golden::Check>), Failure> {
        let device = b.describe();
        let checks = golden::replay(dir, &mut b).map_err(|e| Failure::new(Exit::Failure, e.to_string()))?;
        Ok((device, checks))
    }
    std::fs::metadata(dir).map_err(|e| Failure::input(dir, &e))?;
    let (device, checks) = match devices::open(&context.config().model, &args.tuning, false)? {
        Opened::Cpu(cpu, note) => {
            note.iter().for_each(|note| context.note(note));
            replay(dir, *cpu)?
        }
        #[cfg(feature = "cuda")]
        Opened::Cuda(cuda) => replay(dir, *cuda)?,
    };
    let missed = checks.iter().filter(|c| c.missed()).count();
    let as_json = || {
        let list: Vec<_> = checks
            .iter()
            .map(|c| match &c.outcome {
                Outcome::Compared { error, budget } => {
                    json!({"fixture": c.fixture, "tensor": c.tensor, "error": error, "budget": budget, "ok": !c.missed()})
                }
                Outcome::NotRun(reason) => json!({"fixture": c.fixture, "tensor": c.tensor, "not_run": reason}),
            })
            .collect();
        json!({"device": device, "ok": missed == 0, "missed": missed, "checks": list})
    };
    let as_text = || {
        let mut out = format!("{device}\n");
        for c in &checks {
            // Writing to a string cannot fail.
            let _ = match &c.outcome {
                Outcome::Compared { error, budget } => {
                    let word = if c.missed() { "MISS" } else { "ok" };
                    writeln!(out, "{word:>4} {:<22} {:<40} {error:.2e} of {budget:.0e}", c.fixture, c.tensor)
                }
                Outcome::NotRun(reason) => writeln!(out, "   - {:<22} {:<40} not run: {reason}", c.fixture, c.tensor),
            };
        }
        let _ = write!(out, "{} compared, {missed} missed", checks.len());
        out
    };
    context.result(as_json, as_text)?;
    Ok(if missed == 0 { Exit::Ok } else { Exit::Failure })
}
