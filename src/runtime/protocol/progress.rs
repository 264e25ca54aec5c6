//! Activity, progress, and the state of saving.

use crate::core::Exit;
use crate::engine::protocol::{ModelInfo, SpecStats};

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Activity {
    #[default]
    Idle,
    Starting {
        /// For example `reading weights 41%`.
        what: String,
    },
    Reading(ReadingProgress),
    Thinking {
        /// Over the last two seconds.
        tokens_per_s: f64,
        /// Since the start of the thoughts, in milliseconds.
        ms: f64,
        tokens: u64,
    },
    Answering {
        /// Over the last two seconds.
        tokens_per_s: f64,
    },
    Restoring {
        /// Share read, 0 to 1, if known.
        share: Option<f64>,
        tokens: u64,
    },
    Stopping,
    /// No verb runs. A background task still works for a request; a stop ends it too.
    Background {
        /// For example `exporting notes.sala: 1 GiB of 3 GiB`.
        what: String,
    },
    /// Other work that takes over 200 ms.
    Busy {
        /// For example `exporting`.
        what: String,
    },
}

impl Activity {
    /// Whether no verb runs, so that the next request starts at once.
    pub fn rests(&self) -> bool {
        *self == Activity::Idle || self.is_background()
    }

    pub fn is_background(&self) -> bool {
        matches!(self, Activity::Background { .. })
    }

    /// Whether documents are being read: Esc pauses instead of stopping, and the reading page is shown.
    pub fn is_loading(&self) -> bool {
        matches!(self, Activity::Reading(r) if !r.files.is_empty())
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadingProgress {
    pub files: Vec<FileProgress>,
    pub done: u64,
    pub total: u64,
    pub tokens_per_s: f64,
    pub elapsed_ms: f64,
    /// Free tokens after the read.
    pub left_after: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FileProgress {
    pub name: String,
    pub tokens: u64,
    pub state: FileState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FileState {
    Waiting,
    /// Tokens read so far.
    Reading(u64),
    /// Seconds of reading.
    Done(f64),
    /// Seconds of restoring kept state.
    FromLibrary(f64),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meters {
    pub context_used: u64,
    /// `context_used` is an estimate: a server has its own tokenizer and has not reported a count.
    pub estimated: bool,
    pub context_limit: u64,
    pub spec: SpecStats,
    pub tokens_per_s: f64,
    /// `tokens_per_s` is an estimate, see [`MessageMeta::estimated`](crate::core::transcript::MessageMeta::estimated).
    pub speed_estimated: bool,
    pub prefill_tokens_per_s: f64,
    /// Time to the first token of the last answer.
    pub ttft_ms: f64,
    pub checkpoints: u64,
    /// Files that are followed and differ from what was read.
    pub changed: u64,
    pub state_bytes: u64,
    /// Settings of the next answer: name in `/set` and value.
    pub settings: Vec<(&'static str, String)>,
    pub model: ModelInfo,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum SaveState {
    #[default]
    Empty,
    /// All saved at this time (ms since the epoch).
    Saved(i64),
    Saving,
    /// Text is saved, state is not: the reason.
    TextOnly(String),
    /// Text is not saved: the reason and a remedy.
    NotSaved(String),
    Off,
}

/// Text that is not on disk and will not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaved {
    pub reason: String,
    /// Distinguishes a disk failure from damaged data.
    pub exit: Exit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    pub name: String,
    pub tokens: u64,
    /// Its state is kept; usable only if all files before it are loaded too.
    pub kept: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadPlan {
    pub files: Vec<PlanFile>,
    pub free: u64,
    /// Part of `free` that is reserved for an answer.
    pub reserve: u64,
    /// Prefill speed; 0 if unknown.
    pub tokens_per_s: f64,
}
