//! `sala-chat doctor --fixtures DIR`: replays golden data on the chosen device; every tensor has a budget. A miss is
//! named and gives exit code 1; a case that the device cannot run is reported as not run, with the reason.

use std::path::Path;

use serde_json::{Value, json};

use super::golden::{self, Outcome};
use crate::backend::draft::DraftOps;
use crate::cli::args::DoctorArgs;
use crate::cli::devices::{self, Opened};
use crate::cli::{Context, Exit, Failure};

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
        let check = |c: &golden::Check| match &c.outcome {
            Outcome::Compared { error, budget } => {
                json!({"fixture": c.fixture, "tensor": c.tensor, "error": error, "budget": budget, "ok": !c.missed()})
            }
            Outcome::NotRun(reason) => json!({"fixture": c.fixture, "tensor": c.tensor, "not_run": reason}),
        };
        json!({"device": device, "ok": missed == 0, "missed": missed, "checks": checks.iter().map(check).collect::<Value>()})
    };
    let as_text = || {
        let line = |c: &golden::Check| {
            let (word, result) = match &c.outcome {
                Outcome::Compared { error, budget } => {
                    (if c.missed() { "MISS" } else { "ok" }, format!("{error:.2e} of {budget:.0e}"))
                }
                Outcome::NotRun(reason) => ("-", format!("not run: {reason}")),
            };
            format!("{word:>4} {:<22} {:<40} {result}\n", c.fixture, c.tensor)
        };
        let lines: String = checks.iter().map(line).collect();
        format!("{device}\n{lines}{} compared, {missed} missed", checks.len())
    };
    context.result(as_json, as_text)?;
    Ok(if missed == 0 { Exit::Ok } else { Exit::Failure })
}
