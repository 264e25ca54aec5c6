//! Commands to the engine thread, and its events.

mod done;
mod exact;
mod generate;
mod image;
mod limits;
mod look;
mod options;
mod segment;
mod stats;

pub use done::{Ended, JobDone};
pub use generate::{
    Constrain, Constraint, Generate, Likely, Quoting, Sampling, SpecMode, Steer, Steered, Steering, Watched, Watching,
};
pub use image::{
    Arriving, CheckpointImage, Dtype, ImageTensor, PIECE_BYTES, ROW_ARRAYS, RowSource, RowsFault, RowsImage, RowsPlace,
    SOURCE_BYTES, StateImage, StatePart, TensorData,
};
pub use limits::{MAX_DEPTH, MAX_SEQUENCES, MAX_VERIFY_ROWS, MOST_TEMPERATURE, MOST_TOKENS, TOP_LOGITS};
pub use look::{BlockLook, Look, Looked, LookedAt, Scoring};
pub use options::{
    BUILT_IN, DeviceChoice, DraftChoice, EngineOptions, MemoryInfo, ModelInfo, Precision, WeightsChoice, is_folder,
};
pub use segment::segment_name;
pub use stats::{JobStats, SpecStats, Usage};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::core::Exit;

pub type Token = u32;

/// Stops a job between two prefill chunks or two decode rounds. Cheap to clone.
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

/// One of the conversations an engine holds side by side. One that was never restored is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SequenceId(pub u32);

pub const MAIN: SequenceId = SequenceId(0);

/// One segment: a prompt, read by prefill, then a completion, by decode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub id: u64,
    pub sequence: SequenceId,
    /// Tokens to read. May be empty only when `generate` continues a state that has a pending token, or one that a job which
    /// only read has just left, or a fork of that.
    pub prompt: Vec<Token>,
    /// `None`: read only.
    pub generate: Option<Generate>,
    pub score: Option<Scoring>,
    /// Export a [`StateImage`] at the end. False for asides and `--no-save`.
    pub export: bool,
    #[serde(skip)]
    pub cancel: Cancel,
}

/// Why a command was not done, or why there is no engine. The live state is empty afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum EngineFault {
    /// A job that waited for saved rows was stopped.
    #[error("stopped while saved rows were on their way")]
    Stopped,
    /// Saved rows the state needs cannot be had back. A path without their segment can be restored.
    #[error("saved state cannot be used: {0}")]
    RowsLost(RowsFault),
    /// The sequence was evicted before ([`Command::MayEvict`]): it is to be restored first.
    #[error("its state was given up for others' memory; restore it first")]
    Evicted,
    /// No token is allowed next by the grammar. Every retry fails the same way.
    #[error("{0}")]
    Stuck(String),
    /// The live state is not enough to go on from, and neither memory nor the device is to blame: what is read again is.
    #[error("{0}")]
    ReadAgain(String),
    /// The model or its device failed, and is ready for the next command.
    #[error("{0}")]
    Device(String),
    /// The prompt is longer than the context of the server that was to answer it.
    #[error("{0}")]
    TooLong(String),
    /// The process that ran the model has ended, and all states with it; the next command starts another one.
    #[error("{0}")]
    Gone(String),
    #[error("{why}")]
    Fatal {
        why: String,
        /// How the program ends if it ends because of it.
        #[serde(rename = "code")]
        exit: Exit,
    },
}

/// Runtime to engine. The channel is bounded. Commands to one sequence are done in order; those to different sequences side by
/// side. After a failure the commands to that sequence that wait already fail too, up to the next [`Command::Restore`].
#[derive(Debug)]
pub enum Command {
    /// Makes the live state equal a segment path: cut the caches back to `keep` tokens (which must be common to both
    /// paths), append `rows` in order, put `end` in place. `keep = 0`, nothing else: an empty state. `history` is the
    /// whole path's tokens, for n-gram drafts and penalties. Rows that another sequence has under the same name
    /// ([`RowSource::segment`]) are had from it where that is a gain, and not read: no bit depends on it.
    Restore {
        id: u64,
        sequence: SequenceId,
        keep: u64,
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
    /// Drops a sequence and frees its memory, after all earlier commands for it; without an answer. It may be used
    /// again, and is empty then.
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
    Shutdown,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum EngineEvent {
    Loading {
        what: String,
        /// Share done, 0 to 1.
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
        /// With [`Generate::likely`].
        likely: Vec<Likely>,
    },
    /// A job or a restore waits for something that is not the engine's own, or for memory that others give back.
    Waiting {
        id: u64,
        what: String,
    },
    /// A sequence that might be evicted was: it is empty, and its memory is another's.
    Evicted {
        sequence: SequenceId,
    },
    /// A message for the user, shown once.
    Note(String),
    Done {
        id: u64,
        done: Box<JobDone>,
    },
    /// A job, a restore or a fork failed. The sequence it changes is empty afterwards; restore to go on. Others go on.
    Failed {
        /// Of the job, restore or fork; 0 for the model itself.
        id: u64,
        fault: EngineFault,
    },
}

impl EngineEvent {
    /// The number of the command it is about; who hands events on writes another one there.
    pub fn id_mut(&mut self) -> Option<&mut u64> {
        match self {
            EngineEvent::Restored { id, .. }
            | EngineEvent::Reading { id, .. }
            | EngineEvent::Tokens { id, .. }
            | EngineEvent::Waiting { id, .. }
            | EngineEvent::Done { id, .. }
            | EngineEvent::Failed { id, .. } => Some(id),
            EngineEvent::Loading { .. }
            | EngineEvent::Ready(_)
            | EngineEvent::Evicted { .. }
            | EngineEvent::Note(_) => None,
        }
    }

    pub fn is_last(&self) -> bool {
        matches!(self, EngineEvent::Restored { .. } | EngineEvent::Done { .. } | EngineEvent::Failed { .. })
    }
}
