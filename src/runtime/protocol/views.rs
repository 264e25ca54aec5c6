//! Data of pages, lists and maps; activity, progress, and the state of saving.

use serde::Serialize;

use crate::core::transcript::{Finish, Message, MessageId, Passage, SessionSizes};
use crate::core::{Exit, grouped};
use crate::engine::protocol::{ModelInfo, SpecStats};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionView {
    pub name: String,
    /// Empty if no title was given; the interface then shows the first question.
    pub title: String,
    /// The messages from root to head. Message number `#n` is index + 1.
    pub messages: Vec<Message>,
    pub view_only: bool,
    pub tree: TreeView,
    /// Identifies the session in [`SessionView::opened`].
    pub serial: u64,
    pub opened: Vec<OpenSession>,
}

/// The parts of a [`SessionView`] that change with each message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeView {
    /// Position among siblings of the nearest branching point: `(2, 3)` is "branch 2/3"; `(1, 1)` without branches.
    pub branch: (u64, u64),
    pub timeline: Vec<TimelineRow>,
    pub documents: Vec<DocumentRow>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSession {
    /// Unique within a run; names can change.
    pub serial: u64,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TimelineRow {
    pub message: MessageId,
    /// Message number on its own branch.
    pub number: u64,
    /// Distinguishes rows with the same number; 0 on the open branch, and for a number that occurs once.
    pub line: u64,
    /// Branch depth for drawing: 0 is the oldest line.
    pub lane: u16,
    pub title: String,
    pub kept: bool,
    pub current: bool,
    pub head: bool,
    pub label: Option<String>,
    pub created_ms: i64,
}

impl TimelineRow {
    /// `#3`, or `#3.2` on another branch.
    pub fn place(&self) -> String {
        match self.line {
            0 => format!("#{}", self.number),
            line => format!("#{}.{line}", self.number),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryName {
    /// As the model sees it.
    pub name: String,
    /// Tokens of the most recent document of this name.
    pub tokens: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DocumentRow {
    pub name: String,
    /// Number of its message; `None` in the library.
    pub number: Option<u64>,
    pub tokens: u64,
    /// First token position in this conversation; `None` in the library.
    pub position: Option<u64>,
    pub lines: u64,
    pub complete: bool,
    pub kept: bool,
    pub bytes: u64,
}

impl DocumentRow {
    /// What [`Request::Open`](crate::config::commands::Request::Open) takes.
    pub fn place(&self) -> String {
        self.number.map_or_else(|| self.name.clone(), |number| format!("#{number}"))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SessionRow {
    pub name: String,
    /// The given title, or the first words of the first question.
    pub title: String,
    pub messages: u64,
    /// Number of messages if all of them are undone (system text excluded); else 0.
    pub undone: u64,
    pub tokens: u64,
    /// `yes`, `stale` (another model), `none`.
    pub state: String,
    /// Bytes of state that only this session needs, if requested.
    pub bytes: Option<u64>,
    pub updated_ms: i64,
    /// A single question of `-p`: `ls` leaves it out, other lists have it last.
    pub once: bool,
    pub pinned: bool,
    pub folder: Option<String>,
    /// That folder is the one this program was started in.
    #[serde(skip)]
    pub here: bool,
    pub disk: Option<SessionSizes>,
}

impl SessionRow {
    pub fn heading(&self) -> &str {
        if self.title.is_empty() { &self.name } else { &self.title }
    }

    /// Its messages, for a column: `41`; `0 of 4` if all are undone.
    pub fn counted(&self) -> String {
        match self.undone {
            0 => self.messages.to_string(),
            undone => format!("0 of {undone}"),
        }
    }

    /// Its tokens, for a column; `-` for none, as of a session that no model has read.
    pub fn read(&self) -> String {
        if self.tokens == 0 { "-".to_owned() } else { grouped(self.tokens) }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchRow {
    pub session: String,
    pub message: MessageId,
    pub number: u64,
    /// Text around the hit; the hit is between `[` and `]`.
    pub snippet: String,
    pub created_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    System,
    Document,
    Turn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub from: u64,
    /// First token after the stretch.
    pub to: u64,
    pub place: Place,
    pub number: u64,
    pub name: String,
}

/// The contents of the context, with the attention of the last answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextMap {
    pub stretches: Vec<Stretch>,
    /// Tokens of a block; 0 if no attention is recorded.
    pub block_tokens: u32,
    /// Blocks with ten-thousandths, as [`crate::core::transcript::Sources::blocks`].
    pub looked: Vec<(u32, u16)>,
    pub passages: Vec<Passage>,
    pub answer: Option<u64>,
}

/// One question, answered from each of many documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FanOut {
    pub question: String,
    pub rows: Vec<FanOutRow>,
    pub over: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FanOutRow {
    pub document: String,
    pub tokens: u64,
    pub text: String,
    /// `None` before the end, and without an answer.
    pub finish: Option<Finish>,
    pub failed: Option<String>,
    pub passages: Vec<Passage>,
    /// Mean log-probability (natural logarithm) of the answer's tokens; `None` if unknown.
    pub log_probability: Option<f64>,
    pub answer_tokens: u64,
}

impl FanOutRow {
    /// False for an answer that was stopped, perhaps before its first word.
    pub fn is_answered(&self) -> bool {
        self.finish.is_some_and(|finish| finish != Finish::Stopped)
    }

    /// Geometric mean of the token probabilities, 0 to 1.
    pub fn likelihood(&self) -> Option<f64> {
        self.log_probability.map(f64::exp)
    }
}

/// Effect of a hidden passage on an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Why {
    /// The part of the answer that lost most likelihood; `None` if no part lost noticeably.
    pub part: Option<String>,
    /// Factor by which that part is less likely.
    pub times: f64,
    /// Factor by which the whole answer is less likely.
    pub whole: f64,
}

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
    /// Other work that takes over 200 ms.
    Busy {
        /// For example `exporting notes.sala: 1 GiB of 3 GiB`.
        what: String,
    },
}

impl Activity {
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
    FromLibrary,
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
