//! Why a request was not done, and how a one-shot run ends because of it.

use crate::base::Exit;
use crate::protocol::engine::{EngineFault, RowsFault};
use crate::session::StoreError;
use crate::text::TextError;

/// Why a request was not done. Shown as one line.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeskError {
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
    /// It cannot be done as asked: what to do instead.
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

impl From<StoreError> for DeskError {
    fn from(error: StoreError) -> DeskError {
        if matches!(error, StoreError::Stopped) { DeskError::Stopped } else { DeskError::Store(error) }
    }
}

impl From<TextError> for DeskError {
    fn from(error: TextError) -> DeskError {
        if matches!(error, TextError::Stopped) { DeskError::Stopped } else { DeskError::Text(error) }
    }
}

impl From<EngineFault> for DeskError {
    fn from(fault: EngineFault) -> DeskError {
        match fault {
            EngineFault::Stopped => DeskError::Stopped,
            fault @ (EngineFault::RowsLost(_)
            | EngineFault::Evicted
            | EngineFault::Stuck(_)
            | EngineFault::ReadAgain(_)
            | EngineFault::Device(_)
            | EngineFault::Gone(_)
            | EngineFault::Fatal { .. }) => DeskError::Engine(fault),
        }
    }
}

impl DeskError {
    /// How a one-shot run ends because of it.
    pub(super) fn exit(&self) -> Exit {
        match self {
            DeskError::Engine(EngineFault::Fatal { exit, .. }) => *exit,
            DeskError::RowsLost(_) => Exit::Unreadable,
            DeskError::Engine(
                EngineFault::RowsLost(_)
                | EngineFault::Evicted
                | EngineFault::Stuck(_)
                | EngineFault::ReadAgain(_)
                | EngineFault::Device(_)
                | EngineFault::Gone(_),
            )
            | DeskError::Refused(_)
            | DeskError::Failed(_) => Exit::Failure,
            DeskError::Text(e) => e.exit(),
            DeskError::Damaged(_) => Exit::Unreadable,
            DeskError::TooLong(_) => Exit::TooLong,
            DeskError::NotThere(_) => Exit::NoInput,
            DeskError::Engine(EngineFault::Stopped) | DeskError::Stopped => Exit::Stopped,
            DeskError::Store(e) => e.exit(),
        }
    }
}

/// A result of the desk's own.
pub(super) type Done<T = ()> = Result<T, DeskError>;
