//! Failures of the engine's start, and of a part of one conversation's work.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::speculate::DecodeError;
use crate::backend::BackendError;
use crate::core::Exit;
use crate::engine::protocol::EngineFault;
use crate::model::ModelError;

pub(super) struct Failure {
    pub(super) error: String,
    pub(super) exit: Exit,
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Failure { error: error.to_string(), exit: error.exit() }
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        ModelError::from(error).into()
    }
}

pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Runs a part of one conversation's work: a panic in it fails that conversation alone.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    // The sequence is emptied before any further use, so half-done work does not matter.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(DecodeError::Panic(panic_text(panic.as_ref()))))
}

pub(super) fn fault_of(error: &DecodeError) -> EngineFault {
    match error {
        DecodeError::Model(ModelError::Backend(BackendError::Stopped)) => EngineFault::Stopped,
        DecodeError::Model(ModelError::Backend(BackendError::Rows(fault))) => EngineFault::RowsLost(fault.clone()),
        DecodeError::Stuck(_) => EngineFault::Stuck(error.to_string()),
        DecodeError::OnlyLikeliest => EngineFault::ReadAgain(error.to_string()),
        DecodeError::Model(_)
        | DecodeError::Draft(_)
        | DecodeError::NotFinite { .. }
        | DecodeError::Panic(_)
        | DecodeError::Order(_) => EngineFault::Device(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_that_is_stuck_is_no_failure_of_the_device() {
        let stuck = fault_of(&DecodeError::Stuck("too many rules".into()));
        assert!(matches!(&stuck, EngineFault::Stuck(why) if why.contains("too many rules")), "{stuck:?}");
        assert!(matches!(fault_of(&DecodeError::OnlyLikeliest), EngineFault::ReadAgain(_)));
    }
}
