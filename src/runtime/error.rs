//! Why a request was not done, and how a one-shot run ends because of it.

use crate::core::Exit;
use crate::engine::protocol::{EngineFault, RowsFault};
use crate::store::StoreError;
use crate::text::TextError;

/// Why a request was not done. Shown as one line.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuntimeError {
    /// The engine failed or is not there.
    #[error(transparent)]
    Engine(EngineFault),
    /// Part of the saved state that was in use turned out damaged and was set aside: a new plan leaves it out.
    #[error("Saved state cannot be used: {0}. It was set aside.")]
    RowsLost(RowsFault),
    /// It was tried and did not work out.
    #[error("{0}")]
    Failed(String),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// Text could not be rendered or tokenised.
    #[error(transparent)]
    Text(TextError),
    /// It is refused: what to do instead.
    #[error("{0}")]
    Refused(String),
    /// A message is damaged, so that the model cannot be given the conversation: what to do instead.
    #[error("{0}")]
    Damaged(String),
    /// A file that was named is not there.
    #[error("{0}")]
    NotThere(String),
    /// The context is too small for it.
    #[error("{0}")]
    TooLong(String),
    /// The user stopped it. Nothing to say.
    #[error("stopped")]
    Stopped,
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
            fault @ (EngineFault::RowsLost(_)
            | EngineFault::Evicted
            | EngineFault::Stuck(_)
            | EngineFault::ReadAgain(_)
            | EngineFault::Device(_)
            | EngineFault::Gone(_)
            | EngineFault::Fatal { .. }) => RuntimeError::Engine(fault),
        }
    }
}

impl RuntimeError {
    /// How a one-shot run ends because of it.
    pub(super) fn exit(&self) -> Exit {
        match self {
            RuntimeError::Engine(EngineFault::Fatal { exit, .. }) => *exit,
            RuntimeError::RowsLost(_) => Exit::Unreadable,
            RuntimeError::Engine(
                EngineFault::RowsLost(_)
                | EngineFault::Evicted
                | EngineFault::Stuck(_)
                | EngineFault::ReadAgain(_)
                | EngineFault::Device(_)
                | EngineFault::Gone(_),
            )
            | RuntimeError::Refused(_)
            | RuntimeError::Failed(_) => Exit::Failure,
            RuntimeError::Text(e) => e.exit(),
            RuntimeError::Damaged(_) => Exit::Unreadable,
            RuntimeError::TooLong(_) | RuntimeError::Engine(EngineFault::TooLong(_)) => Exit::TooLong,
            RuntimeError::NotThere(_) => Exit::NoInput,
            RuntimeError::Engine(EngineFault::Stopped) | RuntimeError::Stopped => Exit::Stopped,
            RuntimeError::Store(e) => e.exit(),
        }
    }
}

/// A result of the runtime's own.
pub(super) type Done<T = ()> = Result<T, RuntimeError>;
