//! Whether a schema can be compiled at all. Schemas are untrusted, and a short one can take the compiler all memory, all time
//! or all of a stack: the ways in which its parts must hold together multiply. So each is tried in a child process first: this
//! program again, as `sala-chat __schema` with the schema on standard input, with limits on memory and time. Only [`child`] runs
//! in the child.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::grammar::{self, Grammar};
use super::trial::Trial;

/// First argument of the child.
pub const CHILD: &str = "__schema";
/// How they are tried.
const TRIAL: Trial = Trial {
    child: CHILD,
    doing: "compiling it",
    advice: "ask with a simpler schema",
    memory_bytes: 1 << 30,
    time: Duration::from_secs(10),
};
/// Schemas that passed and are known: programs send the same ones again and again.
const KNOWN: usize = 128;

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
        let text = serde_json::to_string(grammar).unwrap_or_default();
        let hash = blake3::hash(text.as_bytes());
        let passed = || self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        if passed().contains(&hash) {
            return Ok(());
        }
        let untried = |why| Unusable::Untried(format!("the schema cannot be tried: {why}"));
        if let Some(why) = TRIAL.tried(&self.program, text).map_err(untried)? {
            return Err(Unusable::Refused(why));
        }
        let mut passed = passed();
        passed.push_back(hash);
        if passed.len() > KNOWN {
            passed.pop_front();
        }
        Ok(())
    }
}

/// In the child: limits itself, compiles the schema of standard input, and returns a verdict for standard output.
///
/// # Errors
/// Why it cannot be tried, in one line for standard error.
pub fn child() -> Result<Vec<u8>, String> {
    TRIAL.child(|text| {
        let grammar: Grammar = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        Ok(grammar::Trial::new()?.of(&grammar).err())
    })
}
