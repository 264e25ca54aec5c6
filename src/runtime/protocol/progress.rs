//! What the runtime is doing, how far it is, and what is saved.

use crate::core::Exit;
use crate::engine::protocol::{ModelInfo, SpecStats};

/// What the runtime is doing. Drives the status line.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Activity {
    /// Nothing.
    #[default]
    Idle,
    /// The model is being loaded.
    Starting {
        /// For example `reading weights 41%`.
        what: String,
    },
    /// Documents or a prompt are being read.
    Reading(ReadingProgress),
    /// Before the answer.
    Thinking {
        /// Over the last two seconds.
        tokens_per_s: f64,
        /// How long, in milliseconds.
        ms: f64,
        /// Tokens of the thoughts so far.
        tokens: u64,
    },
    /// Answering.
    Answering {
        /// Over the last two seconds.
        tokens_per_s: f64,
    },
    /// Kept state is being put back.
    Restoring {
        /// Read so far, 0 to 1, where that is known.
        share: Option<f64>,
        /// Tokens of the path.
        tokens: u64,
    },
    /// A stop was asked for.
    Stopping,
    /// Nothing is in hand. Another thread still does something that was asked for, which a stop ends too.
    Beside {
        /// For example `exporting talk.sala: 1 GiB of 3 GiB`.
        what: String,
    },
    /// Something else that takes over 200 ms.
    Busy {
        /// For example `exporting`.
        what: String,
    },
}

impl Activity {
    /// Whether nothing is in hand: what is asked next is taken at once.
    pub fn rests(&self) -> bool {
        *self == Activity::Idle || self.is_beside()
    }

    /// Whether another thread does something, and nothing else goes on.
    pub fn is_beside(&self) -> bool {
        matches!(self, Activity::Beside { .. })
    }

    /// Whether documents are being read: Esc pauses instead of stopping, and the reading page is shown.
    pub fn is_loading(&self) -> bool {
        matches!(self, Activity::Reading(r) if !r.files.is_empty())
    }
}

/// Progress of reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadingProgress {
    /// One per file of a `/load`; empty for a plain prompt.
    pub files: Vec<FileProgress>,
    /// Tokens read, over all files.
    pub done: u64,
    /// Tokens in all.
    pub total: u64,
    /// Over all that was read so far.
    pub tokens_per_s: f64,
    /// Since the start, in milliseconds.
    pub elapsed_ms: f64,
    /// Tokens that will be free afterwards.
    pub left_after: u64,
}

/// One file of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct FileProgress {
    /// As the model sees it.
    pub name: String,
    /// Its tokens.
    pub tokens: u64,
    /// How far it is.
    pub state: FileState,
}

/// How far one file is.
#[derive(Clone, Debug, PartialEq)]
pub enum FileState {
    /// Not begun.
    Waiting,
    /// Being read: tokens done.
    Reading(u64),
    /// Read, seconds it took.
    Done(f64),
    /// Its state was kept, seconds to put it back.
    FromLibrary(f64),
}

/// Context and saving, for meters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meters {
    /// Tokens in the context.
    pub context_used: u64,
    /// They are estimated: a server counts in tokens of its own, and has not told how many these are.
    pub estimated: bool,
    /// Tokens it may hold.
    pub context_limit: u64,
    /// Speculation in this session.
    pub spec: SpecStats,
    /// Decode speed of the last answer.
    pub tokens_per_s: f64,
    /// That is estimated, see [`MessageMeta::estimated`](crate::core::transcript::MessageMeta::estimated).
    pub speed_estimated: bool,
    /// Prefill speed of the last reading.
    pub prefill_tokens_per_s: f64,
    /// First token time of the last answer, in milliseconds.
    pub ttft_ms: f64,
    /// Positions of this branch whose state is kept.
    pub checkpoints: u64,
    /// Bytes of kept state on disk, all sessions.
    pub state_bytes: u64,
    /// How the next answer is made: name in `/set` and value of each of the session's settings.
    pub settings: Vec<(&'static str, String)>,
    /// The model.
    pub model: ModelInfo,
}

/// Whether text and state are on disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SaveState {
    /// Nothing to save yet.
    #[default]
    Empty,
    /// All of it, at this time (ms since the epoch).
    Saved(i64),
    /// Being written.
    Saving,
    /// Text is safe, state is not kept: why.
    TextOnly(String),
    /// Not even the text: why. The sentence says what to do.
    NotSaved(String),
    /// `--no-save`.
    Off,
}

/// Something that was said is not on disk, and will not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaved {
    /// Why, a sentence.
    pub reason: String,
    /// How the program ends: it is the disk, or the data on it.
    pub exit: Exit,
}

/// A file of a load that waits for a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    /// As the model will see it.
    pub name: String,
    /// Its tokens.
    pub tokens: u64,
    /// Its state is kept, as long as all files before it are loaded too.
    pub kept: bool,
}

/// What a load would read, for a list to choose from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadPlan {
    /// In reading order.
    pub files: Vec<PlanFile>,
    /// Tokens free before any of them is read.
    pub free: u64,
    /// Of these, tokens kept for an answer.
    pub reserve: u64,
    /// Reading speed; 0 while it is unknown.
    pub tokens_per_s: f64,
}
