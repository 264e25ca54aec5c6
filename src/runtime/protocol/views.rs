//! What pages, lists and maps are drawn from.

use serde::Serialize;

use crate::core::transcript::{Finish, Message, MessageId, Passage};

/// The open session, sent whole when it changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionView {
    /// Name; empty for a new one that has none yet.
    pub name: String,
    /// The title it was given; empty while it has none but its first question.
    pub title: String,
    /// Position among siblings of the nearest branching point, `(2, 3)` is "branch 2/3"; `(1, 1)` without branches.
    pub branch: (u64, u64),
    /// The messages from root to head. Message number `#n` is index + 1.
    pub messages: Vec<Message>,
    /// Nothing can be added: opened to view only.
    pub view_only: bool,
    /// Rows for the side panel.
    pub timeline: Vec<TimelineRow>,
    /// Documents of this branch.
    pub documents: Vec<DocumentRow>,
    /// For the panel.
    pub map: ContextMap,
    /// Which of [`SessionView::opened`] it is.
    pub serial: u64,
    /// Sessions opened in this run, in order.
    pub opened: Vec<OpenSession>,
}

/// What surrounds the messages of the open session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeView {
    /// As [`SessionView::branch`].
    pub branch: (u64, u64),
    /// Rows for the side panel.
    pub timeline: Vec<TimelineRow>,
    /// Documents of this branch.
    pub documents: Vec<DocumentRow>,
    /// For the panel.
    pub map: ContextMap,
}

/// A session opened in this run. Those that are neither on screen nor at work are where `/resume` finds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSession {
    /// Never given twice in a run; names can change.
    pub serial: u64,
    /// Name; empty for a new one that has none yet.
    pub name: String,
}

/// A turn of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineRow {
    /// The message.
    pub message: MessageId,
    /// Its number on its own branch.
    pub number: u64,
    /// Branch depth for drawing: 0 is the oldest line.
    pub lane: u16,
    /// First words.
    pub title: String,
    /// State is kept here.
    pub kept: bool,
    /// On the open branch.
    pub current: bool,
    /// Is the head.
    pub head: bool,
    /// Mark or fork name.
    pub label: Option<String>,
    /// Milliseconds since the epoch.
    pub created_ms: i64,
}

/// A document of the library as completion knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryName {
    /// The name the model sees.
    pub name: String,
    /// Tokens of the last one of this name.
    pub tokens: u64,
}

/// A document in the open branch or the library.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentRow {
    /// Name.
    pub name: String,
    /// Tokens.
    pub tokens: u64,
    /// First token position in this conversation; `None` in the library.
    pub position: Option<u64>,
    /// Lines.
    pub lines: u64,
    /// All of it is read.
    pub complete: bool,
    /// Short hash.
    pub hash: String,
    /// Its state is on disk.
    pub kept: bool,
    /// Bytes on disk.
    pub bytes: u64,
    /// Last used, ms since the epoch.
    pub used_ms: i64,
}

/// A session in the picker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionRow {
    /// Name.
    pub name: String,
    /// The title that it was given, or the first words of the first question.
    pub title: String,
    /// Messages on its branch.
    pub messages: u64,
    /// Messages that are kept where all of them are undone, without a system text; else 0.
    pub undone: u64,
    /// Tokens of its branch.
    pub tokens: u64,
    /// `yes`, `stale` (another model), `none`.
    pub state: String,
    /// Bytes of state only this session needs, if asked for.
    pub bytes: Option<u64>,
    /// Last change, ms since the epoch.
    pub updated_ms: i64,
}

impl SessionRow {
    /// Its messages, for a column: `41`; `0 of 4` where all are undone.
    pub fn counted(&self) -> String {
        match self.undone {
            0 => self.messages.to_string(),
            undone => format!("0 of {undone}"),
        }
    }
}

/// A search hit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchRow {
    /// Session it is in.
    pub session: String,
    /// The message.
    pub message: MessageId,
    /// Its number there.
    pub number: u64,
    /// Text around the hit; the hit is between `[` and `]`.
    pub snippet: String,
    /// ms since the epoch.
    pub created_ms: i64,
}

/// What a stretch of the context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The system text.
    System,
    /// A document.
    Document,
    /// A question and its answer.
    Turn,
}

/// Consecutive tokens of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First token.
    pub from: u64,
    /// The one behind the last.
    pub to: u64,
    /// What it is.
    pub place: Place,
    /// Number of its first message.
    pub number: u64,
    /// Name of a document, first words of a question.
    pub name: String,
    /// Lines of a document.
    pub lines: u64,
}

/// What is in the context, and what the last answer looked at of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextMap {
    /// In order, from the first token on.
    pub stretches: Vec<Stretch>,
    /// Tokens in the context.
    pub used: u64,
    /// Tokens it may hold.
    pub limit: u64,
    /// Tokens of a block; 0 where no answer is known to have looked.
    pub block_tokens: u32,
    /// Blocks with ten-thousandths, as [`crate::core::transcript::Sources::blocks`].
    pub looked: Vec<(u32, u16)>,
    /// Passages of that answer, most first.
    pub passages: Vec<Passage>,
    /// Its number.
    pub answer: Option<u64>,
}

/// One question, and what many documents say to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FanOut {
    /// The question.
    pub question: String,
    /// A row for each document.
    pub rows: Vec<FanOutRow>,
    /// Nothing more comes.
    pub over: bool,
}

/// What one document says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FanOutRow {
    /// The document.
    pub document: String,
    /// Its tokens.
    pub tokens: u64,
    /// The answer, as far as it is written.
    pub text: String,
    /// Why it ended; `None` before, and where there is none.
    pub finish: Option<Finish>,
    /// Why there is no answer.
    pub failed: Option<String>,
    /// What it looked at, most first.
    pub passages: Vec<Passage>,
    /// Mean of the natural logarithms of the probabilities that the model gives to the answer's tokens; `None` where it is not known.
    pub log_probability: Option<f64>,
    /// Tokens of the answer.
    pub answer_tokens: u64,
}

impl FanOutRow {
    /// Whether it has its answer: one that was stopped, before its first word perhaps, is none.
    pub fn is_answered(&self) -> bool {
        self.finish.is_some_and(|finish| finish != Finish::Stopped)
    }

    /// How likely each token of the answer is on average, 0 to 1: the geometric mean.
    pub fn likelihood(&self) -> Option<f64> {
        self.log_probability.map(f64::exp)
    }
}

/// What became of an answer with a passage hidden.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Why {
    /// The part of the answer that lost most; `None` where none became noticeably less likely.
    pub part: Option<String>,
    /// How many times less likely that part is.
    pub times: f64,
    /// How many times less likely the whole answer is.
    pub whole: f64,
}
