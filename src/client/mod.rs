//! The engine's commands and events for an engine elsewhere: in another process of this user ([`attach`]) or on an
//! OpenAI-style HTTP server ([`remote`]).

pub mod attach;
pub mod remote;

use crate::engine::protocol::{Command, SequenceId};

/// The sequence that a command changes, the number of the command, and the sequence with the state under it.
fn about(command: &Command) -> (Option<SequenceId>, Option<u64>, Option<SequenceId>) {
    match command {
        Command::Restore { id, sequence, keep, .. } => (Some(*sequence), Some(*id), (*keep > 0).then_some(*sequence)),
        Command::Run(job) => (Some(job.sequence), Some(job.id), Some(job.sequence)),
        Command::Fork { id, from, to } => (Some(*to), Some(*id), Some(*from)),
        Command::Release { sequence } | Command::MayEvict { sequence } => (Some(*sequence), None, None),
        Command::Park | Command::Unpark | Command::Shutdown => (None, None, None),
    }
}
