//! Tries hostile input in a child process, with limits on memory and time: this program again, with a hidden first
//! argument and the input on standard input. Input that aborts the child is refused.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::child::{self, Failed, Limits};
use super::plain_words;
use crate::engine::protocol::Cancel;

const VERDICT_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Trial {
    pub(super) child: &'static str,
    /// Subject of the message "... takes more than".
    pub(super) doing: &'static str,
    /// Advice for input that exceeds the limits.
    pub(super) advice: &'static str,
    /// Address space of the child.
    pub(super) memory_bytes: u64,
    pub(super) time: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    /// Why it cannot be used; `None` if it can.
    refused: Option<String>,
}

impl Trial {
    /// Has a child try `text`; the result is the reason for a refusal, if any.
    pub(super) fn tried(&self, program: &[OsString], text: String) -> Result<Option<String>, String> {
        let (program, arguments) = program.split_first().ok_or("there is no program")?;
        let mut command = Command::new(program);
        command.args(arguments).arg(self.child).env("RUST_BACKTRACE", "0");
        let limits = Limits { time: self.time, output_bytes: VERDICT_BYTES };
        let too_much = |what: String| Ok(Some(format!("{} takes more than {what}; {}", self.doing, self.advice)));
        let output = match child::run_with(command, text.into(), limits, &Cancel::default()) {
            Ok(output) => output,
            Err(Failed::TimedOut) => return too_much(format!("{} s", self.time.as_secs())),
            Err(Failed::Start(e)) => return Err(format!("the child did not start ({})", plain_words(&e))),
            Err(Failed::TooLong | Failed::Cancelled) => return Err("the child wrote too much".into()),
        };
        match (output.status.success(), output.status.signal()) {
            (true, _) => serde_json::from_slice(&output.stdout).map(|v: Verdict| v.refused).map_err(|e| e.to_string()),
            // Exceeding the memory or stack limit aborts the child.
            (false, Some(_)) => too_much(format!("{} GiB of memory or too deep a stack", self.memory_bytes >> 30)),
            (false, None) if output.complaint.is_empty() => Err(format!("the child ended with {}", output.status)),
            (false, None) => Err(output.complaint),
        }
    }

    /// In the child: sets the limits, tries standard input, and returns the verdict for standard output.
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
