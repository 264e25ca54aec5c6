//! Whether a schema can be compiled at all. Schemas come from outside, and a short one can take the compiler all memory, all time
//! or all of a stack: the ways in which its parts must hold together multiply. So each is tried in a child process first: this
//! program again, as `sala-chat __schema` with the schema on standard input, with limits on memory and time. Only [`child`] runs
//! in the child.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::child::{self, Failed, Limits};
use super::grammar::{Grammar, Trial};
use crate::protocol::engine::Cancel;

/// First argument of the child.
pub const CHILD: &str = "__schema";
/// Address space of the child.
const MEMORY_BYTES: u64 = 1 << 30;
/// It has ended by then.
const TIME: Duration = Duration::from_secs(10);
/// Bytes of its verdict.
const VERDICT_BYTES: u64 = 64 << 10;
/// Schemas that passed and are known: programs send the same ones again and again.
const KNOWN: usize = 128;

/// What the child writes to standard output.
#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    /// A phrase; `None`: it can be used.
    refused: Option<String>,
}

/// Why a schema is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is the schema: a phrase.
    Refused(String),
    /// It could not be tried: a phrase.
    Untried(String),
}

/// Tries schemas.
#[derive(Debug)]
pub struct Checker {
    /// Program and first arguments that accept `__schema`; normally this program.
    program: Vec<OsString>,
    /// Hashes of those that passed, the last ones last.
    passed: Mutex<VecDeque<blake3::Hash>>,
}

impl Checker {
    /// Has them tried by this program.
    pub fn new(program: Vec<OsString>) -> Checker {
        Checker { program, passed: Mutex::default() }
    }

    /// Tries one, for at most some seconds.
    ///
    /// # Errors
    /// It is none, or takes too much; or the child does not start.
    pub fn check(&self, grammar: &Grammar) -> Result<(), Unusable> {
        let Grammar::Json(schema) = grammar;
        let text = schema.to_string();
        let hash = blake3::hash(text.as_bytes());
        let passed = || self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        if passed().contains(&hash) {
            return Ok(());
        }
        if let Some(why) = self.tried(&text)? {
            return Err(Unusable::Refused(why));
        }
        let mut passed = passed();
        passed.push_back(hash);
        if passed.len() > KNOWN {
            passed.pop_front();
        }
        Ok(())
    }

    /// What a child says of it: why it cannot be used, if so.
    fn tried(&self, text: &str) -> Result<Option<String>, Unusable> {
        let untried = |why: String| Unusable::Untried(format!("the schema cannot be tried: {why}"));
        let (program, arguments) = self.program.split_first().ok_or_else(|| untried("there is no program".into()))?;
        let mut command = Command::new(program);
        command.args(arguments).arg(CHILD).env("RUST_BACKTRACE", "0");
        let limits = Limits { time: TIME, output_bytes: VERDICT_BYTES };
        let output = match child::run_with(command, text.into(), limits, &Cancel::default()) {
            Ok(output) => output,
            Err(Failed::TimedOut) => {
                return Ok(Some(format!(
                    "compiling it takes more than {} s; ask with a simpler schema",
                    TIME.as_secs()
                )));
            }
            Err(Failed::Start(e)) => return Err(untried(format!("the compiler did not start ({e})"))),
            Err(Failed::TooLong | Failed::Cancelled) => return Err(untried("the compiler said too much".into())),
        };
        match (output.status.success(), output.status.signal()) {
            (true, _) => {
                let verdict = serde_json::from_slice::<Verdict>(&output.stdout);
                verdict.map(|v| v.refused).map_err(|e| untried(e.to_string()))
            }
            // Memory or a stack beyond the limits aborts it.
            (false, Some(_)) => Ok(Some(format!(
                "compiling it takes more than {} GiB of memory or too deep a stack; ask with a simpler schema",
                MEMORY_BYTES >> 30
            ))),
            (false, None) if output.complaint.is_empty() => {
                Err(untried(format!("the compiler ended with {}", output.status)))
            }
            (false, None) => Err(untried(output.complaint)),
        }
    }
}

/// In the child: limits itself, compiles the schema of standard input, and returns a verdict for standard output.
///
/// # Errors
/// Why it cannot be tried, in one line for standard error.
pub fn child() -> Result<Vec<u8>, String> {
    child::confine(MEMORY_BYTES)?;
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text).map_err(|e| e.to_string())?;
    let schema: Value = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    let verdict = Verdict { refused: Trial::new()?.of(&Grammar::Json(schema)).err() };
    serde_json::to_vec(&verdict).map_err(|e| e.to_string())
}
