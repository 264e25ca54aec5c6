//! Faults on purpose: a device that fails where a test wants it to.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{BackendError, Result};
use crate::engine::protocol::Token;

/// What happens in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device reports an error, once.
    Error,
    /// The program panics, once.
    Panic,
    /// The device reports an error and is lost.
    Lost,
}

#[derive(Debug, Default)]
struct Plan {
    faults: Vec<(Token, Fault)>,
    lost: bool,
}

/// Planned faults, each in the first pass that has a given token. A clone is the same plan.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

impl Faults {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub fn arm(&self, token: Token, fault: Fault) {
        self.plan().faults.push((token, fault));
    }

    /// Faults that did not happen yet.
    pub fn left(&self) -> usize {
        self.plan().faults.len()
    }

    /// Before a pass over `tokens`. Here the panic is the purpose.
    #[allow(clippy::panic)]
    pub(super) fn strike(&self, tokens: &[Token]) -> Result<()> {
        let mut plan = self.plan();
        let due = plan.faults.iter().position(|(token, _)| tokens.contains(token));
        let fault = due.map(|at| plan.faults.remove(at).1);
        plan.lost |= fault == Some(Fault::Lost);
        drop(plan);
        match fault {
            Some(Fault::Panic) => std::panic::panic_any("a fault on purpose".to_owned()),
            Some(Fault::Error) => Err(failed()),
            Some(Fault::Lost) | None => self.alive(),
        }
    }

    /// Whether the device still answers.
    pub(super) fn alive(&self) -> Result<()> {
        if self.plan().lost { Err(failed()) } else { Ok(()) }
    }
}

fn failed() -> BackendError {
    BackendError::Device { op: "verify".into(), cause: "a fault on purpose".into() }
}
