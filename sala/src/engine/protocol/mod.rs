//! Commands to the engine thread, and its events.

mod exact;
mod generate;
mod image;
mod options;
mod results;
mod segment;

pub use generate::{
    Constrain, Constraint, Generate, Likely, Quoting, Sampling, SpecMode, Steer, Steered, Steering, Watched, Watching,
};
pub use image::{
    Arriving, CheckpointImage, Dtype, ImageTensor, PIECE_BYTES, ROW_ARRAYS, RowSource, RowsFault, RowsImage, RowsPlace,
    SOURCE_BYTES, StateImage, StatePart, TensorData,
};
pub use options::{
    BUILT_IN, DeviceChoice, DraftChoice, EngineOptions, MemoryInfo, ModelInfo, Precision, WeightsChoice, is_folder,
};
pub use results::{BlockLook, Ended, JobDone, JobStats, Look, Looked, LookedAt, Scoring, SpecStats, Usage};
pub use segment::segment_name;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use serde::{Deserialize, Serialize};

use crate::core::Exit;

pub type Token = u32;

// Limits of the device code that settings, requests and plans respect.

pub const MAX_VERIFY_ROWS: usize = 16;
/// Drafts of a round: one row of the pass is the pending token.
pub const MAX_DEPTH: usize = MAX_VERIFY_ROWS - 1;
/// Live sequences: as many as a pass has rows, so that all of them can write.
pub const MAX_SEQUENCES: usize = MAX_VERIFY_ROWS;
/// Top logits per row that reach the host; an upper bound of top-k.
pub const TOP_LOGITS: usize = 256;
/// Beyond this temperature a draw is noise.
pub const MOST_TEMPERATURE: f64 = 2.0;
pub const MOST_TOKENS: u64 = 1 << 24;

/// An engine's thread and its channels: of this process, of a server on this machine, or of a remote server. Dropping it without
/// [`Command::Shutdown`] also ends the thread: its channel closes.
pub struct Engine {
    pub commands: Sender<Command>,
    /// Unbounded: at most one event per round or chunk, and the engine must never wait for the runtime.
    pub events: Receiver<EngineEvent>,
    pub thread: JoinHandle<()>,
}

/// Takes effect between two prefill chunks or two decode rounds. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of an engine's concurrent conversations, empty before its first restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SequenceId(pub u32);

pub const MAIN: SequenceId = SequenceId(0);

/// One segment: a prompt, read by prefill, then a completion, by decode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub id: u64,
    pub sequence: SequenceId,
    /// May be empty only when `generate` continues a state that has a pending token, or the state of a read-only job
    /// that has just ended, or a fork of that.
    pub prompt: Vec<Token>,
    pub generate: Option<Generate>,
    pub score: Option<Scoring>,
    /// Exports a [`StateImage`] at the end. False for asides and `--no-save`.
    pub export: bool,
    #[serde(skip)]
    pub cancel: Cancel,
}

/// The reason why a command failed, or why there is no engine. The live state is empty afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum EngineFault {
    #[error("stopped while saved rows were on their way")]
    Stopped,
    /// Saved rows of the state are unreadable. A path without their segment can be restored.
    #[error("saved state cannot be used: {0}")]
    RowsLost(RowsFault),
    /// The sequence was evicted before ([`Command::MayEvict`]) and needs a restore.
    #[error("its state was given up for others' memory; restore it first")]
    Evicted,
    /// The model is parked, and its memory is not free.
    #[error("{0}")]
    Parked(String),
    /// The grammar allows no next token. Every retry fails the same way.
    #[error("{0}")]
    Stuck(String),
    /// The live state cannot be continued, through no fault of memory or device: reading its last part again helps.
    #[error("{0}")]
    ReadAgain(String),
    /// The model or its device failed, and is ready for the next command.
    #[error("{0}")]
    Device(String),
    #[error("{0}")]
    TooLong(String),
    /// The process of the model has ended, and all states with it; the next command starts another one.
    #[error("{0}")]
    Gone(String),
    #[error("{why}")]
    Fatal {
        why: String,
        /// The exit code if the program ends because of it.
        #[serde(rename = "code")]
        exit: Exit,
    },
}

/// Runtime to engine. The channel is bounded. Commands to one sequence run in order; those to different sequences run
/// concurrently. After a failure the queued commands to that sequence fail too, up to the next [`Command::Restore`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// Makes the live state equal a segment path: truncates the caches to `keep` tokens (a common prefix of both
    /// paths), appends `rows` in order, restores `end`. `keep = 0` and nothing else: an empty state. `history` is the
    /// whole path's tokens, for n-gram drafts and penalties. Rows of a sequence under the same name
    /// ([`RowSource::segment`]) are shared instead of read where that is faster: no bit depends on it.
    Restore {
        id: u64,
        sequence: SequenceId,
        keep: u64,
        #[serde(skip)]
        rows: Vec<Arc<dyn RowSource>>,
        /// State at the end of the last row; `None` only for an empty path.
        end: Option<CheckpointImage>,
        history: Arc<Vec<Token>>,
    },
    Run(Job),
    /// Copies the live state of `from` to `to`, after all earlier commands for both. Answered by
    /// [`EngineEvent::Restored`].
    Fork {
        id: u64,
        from: SequenceId,
        to: SequenceId,
    },
    /// Drops a sequence and frees its memory, after all earlier commands for it; without an answer. The id may be used
    /// again, for an empty sequence.
    Release {
        sequence: SequenceId,
    },
    /// After all earlier commands for it, the sequence may be evicted: its state is on disk, or not needed. Least
    /// recently used sequences are evicted first, with [`EngineEvent::Evicted`]. The next command to it revokes this;
    /// a job or fork that arrives too late fails with [`EngineFault::Evicted`], and so does all that follows, up to a
    /// restore, a fork onto it, or its release.
    MayEvict {
        sequence: SequenceId,
    },
    /// Frees weights, states and the device once all work has ended, and reports [`ModelInfo::parked`]. Every sequence
    /// with a state is evicted. The next command that needs the model loads it again.
    Park,
    /// Ends a [`Command::Park`]: loads the model, and tries again while the memory is missing. Answered by
    /// [`EngineEvent::Ready`].
    Unpark,
    Shutdown,
}

impl Command {
    /// The number that the answer repeats.
    pub fn id_mut(&mut self) -> Option<&mut u64> {
        match self {
            Command::Restore { id, .. } | Command::Fork { id, .. } => Some(id),
            Command::Run(job) => Some(&mut job.id),
            _ => None,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum EngineEvent {
    Loading {
        what: String,
        #[serde(with = "exact")]
        done: f64,
    },
    Ready(ModelInfo),
    Restored {
        id: u64,
        #[serde(with = "exact")]
        ms: f64,
    },
    Reading {
        id: u64,
        done: u64,
        total: u64,
        #[serde(with = "exact")]
        tokens_per_s: f64,
    },
    /// Tokens of one round, in order. All of them are in the text; the last may still be outside the state.
    Tokens {
        id: u64,
        tokens: Vec<Token>,
        #[serde(with = "exact")]
        tokens_per_s: f64,
        /// With [`Look::each_token`]; empty for the first token of an answer.
        looked: Vec<Looked>,
        likely: Vec<Likely>,
    },
    /// A job or a restore waits for an external cause, or for memory of other sequences.
    Waiting {
        id: u64,
        what: String,
    },
    /// An evictable sequence was evicted: it is empty, and another uses its memory.
    Evicted {
        sequence: SequenceId,
    },
    Note(String),
    Done {
        id: u64,
        done: Box<JobDone>,
    },
    /// A job, a restore or a fork failed. The sequence that it changes is empty afterwards and needs a restore. Other
    /// sequences continue.
    Failed {
        /// Of the job, restore or fork; 0 for the model itself.
        id: u64,
        fault: EngineFault,
    },
}

impl EngineEvent {
    /// The number of the command that caused the event; a relay replaces it.
    pub fn id_mut(&mut self) -> Option<&mut u64> {
        match self {
            EngineEvent::Restored { id, .. }
            | EngineEvent::Reading { id, .. }
            | EngineEvent::Tokens { id, .. }
            | EngineEvent::Waiting { id, .. }
            | EngineEvent::Done { id, .. }
            | EngineEvent::Failed { id, .. } => Some(id),
            _ => None,
        }
    }

    pub fn is_last(&self) -> bool {
        matches!(self, EngineEvent::Restored { .. } | EngineEvent::Done { .. } | EngineEvent::Failed { .. })
    }
}
