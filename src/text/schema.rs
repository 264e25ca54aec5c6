//! Whether a schema can be compiled at all. Schemas are untrusted, and a short one can take the compiler all memory, all time
//! or all of a stack: the ways in which its parts must hold together multiply. So each is tried in a child process first: this
//! program again, as `sala-chat __schema` with the schema on standard input, with limits on memory and time. Only [`child()`] runs
//! in the child.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::child::{self, Failed, Limits};
use super::grammar::{self, Grammar};
use crate::core::plain_words;
use crate::engine::protocol::Cancel;

pub const CHILD: &str = "__schema";
const MEMORY_BYTES: u64 = 1 << 30;
const LIMITS: Limits = Limits { time: Duration::from_secs(10), output_bytes: 64 << 10 };
/// Schemas that passed and are known: programs send the same ones again and again.
const KNOWN: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is the schema: a phrase.
    Refused(String),
    /// It could not be tried: a phrase.
    Untried(String),
}

#[derive(Debug)]
pub struct Checker {
    /// Program and first arguments that accept `__schema`; normally this program.
    program: Vec<OsString>,
    /// Hashes of those that passed, the last ones last.
    passed: Mutex<VecDeque<blake3::Hash>>,
}

impl Checker {
    pub fn new(program: Vec<OsString>) -> Checker {
        Checker { program, passed: Mutex::default() }
    }

    pub fn check(&self, grammar: &Grammar) -> Result<(), Unusable> {
        let text = serde_json::to_string(grammar).unwrap_or_default();
        let hash = blake3::hash(text.as_bytes());
        let passed = || self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        if passed().contains(&hash) {
            return Ok(());
        }
        let untried = |why| Unusable::Untried(format!("the schema cannot be tried: {why}"));
        if let Some(why) = self.tried(text).map_err(untried)? {
            return Err(Unusable::Refused(why));
        }
        let mut passed = passed();
        passed.push_back(hash);
        if passed.len() > KNOWN {
            passed.pop_front();
        }
        Ok(())
    }

    /// Has a child compile it; the result is the reason for a refusal, if any.
    fn tried(&self, text: String) -> Result<Option<String>, String> {
        let too_much =
            |what: String| Ok(Some(format!("compiling it takes more than {what}; ask with a simpler schema")));
        let run = |command| child::run(command, text.as_bytes(), LIMITS, &Cancel::default());
        match child::confined(&self.program, &[CHILD.as_ref()]).and_then(run) {
            Ok(output) => serde_json::from_slice(&output).map_err(|e| e.to_string()),
            Err(Failed::TimedOut) => too_much(format!("{} s", LIMITS.time.as_secs())),
            Err(Failed::Killed(_)) => too_much(format!("{} GiB of memory or too deep a stack", MEMORY_BYTES >> 30)),
            Err(Failed::Start(e)) => Err(format!("the child did not start ({})", plain_words(&e))),
            Err(Failed::TooLong | Failed::Cancelled) => Err("the child wrote too much".into()),
            Err(Failed::Refused(why)) => Err(why),
        }
    }
}

/// In the child: limits itself, compiles the schema of standard input, and returns why it is refused, or `null`, for standard
/// output. The error is one line for standard error.
pub fn child() -> Result<Vec<u8>, String> {
    child::confine(MEMORY_BYTES)?;
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text).map_err(|e| e.to_string())?;
    let grammar: Grammar = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    serde_json::to_vec(&grammar::trial(&grammar)?).map_err(|e| e.to_string())
}
