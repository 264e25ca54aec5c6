//! What the interface asks of the desk, and what the desk tells the interface. Both directions are plain data, so the
//! interface can be driven by a script in tests and the desk by `-p` without a terminal.
//!
//! What the interface relies on: every request is answered by at least one notice ([`Notice::Activity`],
//! [`Notice::Note`], a page, a question ...); [`Activity::Idle`] is told whenever work ends; [`Notice::Added`] comes
//! before the first [`Notice::Delta`] of a message and [`Notice::Finished`] after the last; the last notice of all is
//! [`Notice::Bye`] or [`Notice::Fatal`]. The channel to the interface is unbounded: the desk never waits for a screen.

use serde::Serialize;

use super::engine::{ModelInfo, SpecStats};
pub use crate::commands::{
    BranchTarget, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction, Request, WhileBusy,
};
pub use crate::settings::{ThinkMode, preset::Display};
use crate::transcript::{Finish, Message, MessageId, Passage};

/// How loud a note is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// A result.
    Info,
    /// Something to know.
    Warn,
    /// Something failed.
    Error,
}

/// What the desk is doing. Drives the status line.
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
    /// Something else that takes over 200 ms.
    Busy {
        /// For example `exporting`.
        what: String,
    },
}

impl Activity {
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
    /// Prefill speed of the last reading.
    pub prefill_tokens_per_s: f64,
    /// First token time of the last answer, in milliseconds.
    pub ttft_ms: f64,
    /// Positions of this branch whose state is kept.
    pub checkpoints: u64,
    /// Bytes of kept state on disk, all sessions.
    pub state_bytes: u64,
    /// How the next answer is drawn: name and value of the session's settings that matter most.
    pub sampling: Vec<(&'static str, String)>,
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
    /// Exit code of the program: 74 for the disk, 7 for the data on it.
    pub code: i32,
}

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
    /// Tokens of its branch.
    pub tokens: u64,
    /// `yes`, `stale` (another model), `none`.
    pub state: String,
    /// Bytes of state only this session needs, if asked for.
    pub bytes: Option<u64>,
    /// Last change, ms since the epoch.
    pub updated_ms: i64,
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

/// A choice of a [`Notice::Question`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Key to press; `'\n'` is Enter, `'\x1b'` is Esc.
    pub key: char,
    /// What it does.
    pub label: String,
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
    /// Blocks with ten-thousandths, as [`crate::transcript::Sources::blocks`].
    pub looked: Vec<(u32, u16)>,
    /// Passages of that answer, most first.
    pub passages: Vec<Passage>,
    /// Its number.
    pub answer: Option<u64>,
}

/// One question, and what many documents say to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shelf {
    /// The question.
    pub question: String,
    /// A row for each document.
    pub rows: Vec<ShelfRow>,
    /// Nothing more comes.
    pub over: bool,
}

/// What one document says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShelfRow {
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

impl ShelfRow {
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

/// Desk to interface.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The model is ready (or has changed). What it wants to be said follows as [`Notice::Note`]s.
    Ready(ModelInfo),
    /// The open session, whole: after opening, going back, forking.
    Session(SessionView),
    /// Branches and documents of the open session after something was added; its messages are told one by one.
    Tree(TreeView),
    /// A message was added at the end (a question, a document, an answer that begins, empty).
    Added(Message),
    /// More text for the answer that is being written.
    Delta {
        /// Of the answer.
        message: MessageId,
        /// Part of the thoughts rather than of the answer.
        thinking: bool,
        /// The text. Whole characters only.
        text: String,
    },
    /// Answers to the question at the end of the open session are written side by side: their messages and seeds. What is told of
    /// them follows as [`Notice::Delta`] and [`Notice::Finished`]; a [`Notice::Session`] says which one goes on.
    Several(Vec<(MessageId, u64)>),
    /// The answer is complete; replaces what the deltas built.
    Finished(Message),
    /// Something about a conversation that is at work and not on screen. When it comes back to the screen, all of it is told again.
    Beside {
        /// Its serial ([`OpenSession::serial`]).
        serial: u64,
        /// What would be told if it were on screen.
        notice: Box<Notice>,
    },
    /// What goes on.
    Activity(Activity),
    /// Numbers for the status line and panel.
    Meters(Meters),
    /// Whether it is on disk.
    Save(SaveState),
    /// One line for the transcript, not part of the conversation.
    Note(Level, String),
    /// Something longer to read: title and text (markdown).
    Page {
        /// Heading.
        title: String,
        /// Markdown.
        text: String,
    },
    /// What an answer looked at: a page whose passages can be opened by number.
    Looked {
        /// Number of the answer.
        number: u64,
        /// Which of its sentences is shown, 0 for all of it, and how many there are.
        sentence: (u64, u64),
        /// Heading.
        title: String,
        /// Markdown.
        text: String,
    },
    /// For the map of the context.
    Map(ContextMap),
    /// What an answer becomes less likely without: a page like [`Notice::Looked`], and the figures.
    Why {
        /// Number of the answer.
        number: u64,
        /// Heading.
        title: String,
        /// Markdown.
        text: String,
        /// One for each of its first passages.
        rows: Vec<Why>,
    },
    /// The answers to `/ask-all`, as far as they are; the last one is over.
    Shelf(Shelf),
    /// Part of an aside's answer, shown in an overlay and not kept.
    Aside {
        /// The question.
        question: String,
        /// What was answered so far.
        text: String,
        /// It is complete.
        done: Option<Finish>,
    },
    /// The desk needs a decision. Drawn over the input; keys answer.
    Question {
        /// Repeated in [`Request::Choose`].
        id: u64,
        /// One or two lines.
        text: String,
        /// What can be chosen. Esc is always "cancel" and chooses the last one.
        choices: Vec<Choice>,
    },
    /// A question about a load of several files: [`Request::Choose`] answers it, or [`Request::ChooseFiles`].
    Plan {
        /// Repeated in the answer.
        id: u64,
        /// One or two lines.
        text: String,
        /// What can be chosen; `e` is for the interface, which shows the files. Esc chooses the last one.
        choices: Vec<Choice>,
        /// The files.
        plan: LoadPlan,
    },
    /// Text to put into the input: an undone question, a message to edit.
    Input {
        /// The text.
        text: String,
        /// Set when sending it edits this message.
        editing: Option<MessageId>,
    },
    /// Questions asked earlier, in all sessions, oldest first: for Up and Ctrl-R. Sent once at the start; at most the
    /// newest 2,000 are used.
    Prompts(Vec<String>),
    /// The open session has been given this title.
    Titled(String),
    /// The documents of the library, the last used first, for completion.
    Library(Vec<LibraryName>),
    /// For the picker.
    Sessions(Vec<SessionRow>),
    /// For the search page.
    Found {
        /// What was searched.
        query: String,
        /// Hits, best first.
        rows: Vec<SearchRow>,
    },
    /// For the timeline page.
    Timeline(Vec<TimelineRow>),
    /// For the documents page.
    Documents {
        /// `This conversation` or `Library`.
        title: String,
        /// Rows.
        rows: Vec<DocumentRow>,
    },
    /// A preset was taken: how things are to be shown from now on.
    Display(Display),
    /// The interface may end.
    Bye {
        /// Printed after the terminal is restored: how to come back, or what is not saved.
        farewell: Option<String>,
        /// What was said and is not on disk.
        unsaved: Option<Unsaved>,
    },
    /// The desk cannot go on: one line, and the exit code.
    Fatal {
        /// The line.
        error: String,
        /// Exit code (docs/interface.md §2).
        code: i32,
    },
}
