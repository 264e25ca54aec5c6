//! Reasons why a request fails, and the exit code of a one-shot run.

use crate::core::Exit;
use crate::engine::protocol::{EngineFault, RowsFault};
use crate::store::StoreError;
use crate::text::TextError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RuntimeError {
    #[error(transparent)]
    Engine(EngineFault),
    /// A damaged part of the saved state was set aside; a new plan avoids it.
    #[error("Saved state cannot be used: {0}. It was set aside.")]
    RowsLost(RowsFault),
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Store(StoreError),
    #[error(transparent)]
    Text(TextError),
    #[error("{0}")]
    Refused(String),
    /// A damaged message prevents a prompt; the text names an alternative.
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    NotThere(String),
    #[error("{0}")]
    TooLong(String),
    /// The user stopped the request; no message is shown.
    #[error("stopped")]
    Stopped,
}

/// An expected failure, which the user reads as one line.
pub(super) fn refused<T>(why: impl Into<String>) -> Done<T> {
    Err(RuntimeError::Refused(why.into()))
}

impl From<StoreError> for RuntimeError {
    fn from(error: StoreError) -> RuntimeError {
        if matches!(error, StoreError::Stopped) { RuntimeError::Stopped } else { RuntimeError::Store(error) }
    }
}

impl From<TextError> for RuntimeError {
    fn from(error: TextError) -> RuntimeError {
        if matches!(error, TextError::Stopped) { RuntimeError::Stopped } else { RuntimeError::Text(error) }
    }
}

impl From<EngineFault> for RuntimeError {
    fn from(fault: EngineFault) -> RuntimeError {
        match fault {
            EngineFault::Stopped => RuntimeError::Stopped,
            EngineFault::TooLong(why) => RuntimeError::TooLong(why),
            fault => RuntimeError::Engine(fault),
        }
    }
}

impl RuntimeError {
    /// The slot was lost, or the device lacks memory: another attempt may succeed.
    pub(crate) fn is_of_the_slot(&self) -> bool {
        use EngineFault::{Device, Evicted, Gone, ReadAgain};
        matches!(self, RuntimeError::Engine(Device(_) | Evicted | ReadAgain(_) | Gone(_)))
    }

    pub(super) fn exit(&self) -> Exit {
        match self {
            RuntimeError::Engine(EngineFault::Fatal { exit, .. }) => *exit,
            RuntimeError::Engine(_) | RuntimeError::Refused(_) | RuntimeError::Failed(_) => Exit::Failure,
            RuntimeError::RowsLost(_) | RuntimeError::Damaged(_) => Exit::Unreadable,
            RuntimeError::Text(e) => e.exit(),
            RuntimeError::TooLong(_) => Exit::TooLong,
            RuntimeError::NotThere(_) => Exit::NoInput,
            RuntimeError::Stopped => Exit::Stopped,
            RuntimeError::Store(e) => e.exit(),
        }
    }
}

pub(crate) type Done<T = ()> = Result<T, RuntimeError>;
