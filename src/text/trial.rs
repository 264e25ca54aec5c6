//! Trying something hostile in a child process first: this program again, with a word of its own as first argument and what is to
//! be tried on standard input, with limits on memory and time. What aborts the child is refused.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::child::{self, Failed, Limits};
use crate::engine::protocol::Cancel;

/// Bytes of a verdict.
const VERDICT_BYTES: u64 = 64 << 10;

/// What is tried, and how.
#[derive(Debug)]
pub(super) struct Trial {
    /// First argument of the child.
    pub(super) child: &'static str,
    /// What the child does, for "... takes more than".
    pub(super) doing: &'static str,
    /// What to do where it takes too much.
    pub(super) advice: &'static str,
    /// Address space of the child.
    pub(super) memory_bytes: u64,
    /// It has ended by then.
    pub(super) time: Duration,
}

/// What the child writes to standard output.
#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    /// A phrase; `None`: it can be used.
    refused: Option<String>,
}

impl Trial {
    /// What a child of `program` (with its first arguments) says of `text`: why it cannot be used, if so.
    ///
    /// # Errors
    /// Why it cannot be tried: a phrase.
    pub(super) fn tried(&self, program: &[OsString], text: String) -> Result<Option<String>, String> {
        let (program, arguments) = program.split_first().ok_or("there is no program")?;
        let mut command = Command::new(program);
        command.args(arguments).arg(self.child).env("RUST_BACKTRACE", "0");
        let limits = Limits { time: self.time, output_bytes: VERDICT_BYTES };
        let too_much = |what: String| Ok(Some(format!("{} takes more than {what}; {}", self.doing, self.advice)));
        let output = match child::run_with(command, text.into(), limits, &Cancel::default()) {
            Ok(output) => output,
            Err(Failed::TimedOut) => return too_much(format!("{} s", self.time.as_secs())),
            Err(Failed::Start(e)) => return Err(format!("the child did not start ({e})")),
            Err(Failed::TooLong | Failed::Cancelled) => return Err("the child said too much".into()),
        };
        match (output.status.success(), output.status.signal()) {
            (true, _) => serde_json::from_slice(&output.stdout).map(|v: Verdict| v.refused).map_err(|e| e.to_string()),
            // Memory or a stack beyond the limits aborts it.
            (false, Some(_)) => too_much(format!("{} GiB of memory or too deep a stack", self.memory_bytes >> 30)),
            (false, None) if output.complaint.is_empty() => Err(format!("the child ended with {}", output.status)),
            (false, None) => Err(output.complaint),
        }
    }

    /// In the child: limits itself, has standard input tried, and returns the verdict for standard output.
    ///
    /// # Errors
    /// Why it cannot be tried, in one line for standard error.
    pub(super) fn child(
        &self,
        refused: impl FnOnce(&[u8]) -> Result<Option<String>, String>,
    ) -> Result<Vec<u8>, String> {
        child::confine(self.memory_bytes)?;
        let mut text = Vec::new();
        std::io::stdin().lock().read_to_end(&mut text).map_err(|e| e.to_string())?;
        serde_json::to_vec(&Verdict { refused: refused(&text)? }).map_err(|e| e.to_string())
    }
}
