//! Requests and notices: plain data, so that tests drive the interface and `-p` drives the runtime by a script.
//!
//! Guarantees for the interface: the runtime answers every request with at least one notice ([`Notice::Activity`],
//! [`Notice::Note`], a page, a question ...); it sends [`Activity::Idle`] at the end of all work; [`Notice::Added`]
//! precedes the first [`Notice::Delta`] of a message, and [`Notice::Finished`] follows the last; the last notice of
//! all is [`Notice::Bye`] or [`Notice::Fatal`]. The channel to the interface is unbounded, so the runtime never waits
//! for a screen.

mod views;

pub use crate::config::commands::{
    BranchTarget, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction, Request, Sibling, WhileBusy,
};
pub use crate::config::settings::{ThinkMode, preset::Display};
use crate::core::transcript::{Finish, Message, MessageId};
use crate::core::{Exit, plain_words};
use crate::engine::protocol::ModelInfo;
pub use views::{
    Activity, ContextMap, DocumentRow, FanOut, FanOutRow, FileProgress, FileState, LibraryName, LoadPlan, Meters,
    OpenSession, Place, PlanFile, ReadingProgress, SaveState, SearchRow, SessionRow, SessionView, Stretch, TimelineRow,
    TreeView, Unsaved, Why,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    Info,
    Warn,
    Error,
}

/// A choice of a [`Notice::Question`]. Esc, a stop and the end of the input take the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Key to press; newline is Enter, `'\x1b'` is Esc.
    pub key: char,
    pub label: String,
}

impl Choice {
    pub fn all(choices: &[(char, &str)]) -> Vec<Choice> {
        choices.iter().map(|(key, label)| Choice { key: *key, label: (*label).to_owned() }).collect()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The model is loaded or has changed. Its remarks follow as [`Notice::Note`]s.
    Ready(ModelInfo),
    Session(SessionView),
    /// Branches and documents of the open session after an addition; messages have notices of their own.
    Tree(TreeView),
    /// A new message at the end: a question, a document, or an answer that is still empty.
    Added(Message),
    Delta {
        message: MessageId,
        /// The text belongs to the thoughts, not to the answer.
        thinking: bool,
        text: String,
    },
    /// Several answers to the last question are generated in parallel: their messages, and their seeds if sampling is
    /// random. Each is reported by [`Notice::Delta`] and [`Notice::Finished`]; a [`Notice::Session`] names the one
    /// that continues the conversation.
    Several(Vec<(MessageId, Option<u64>)>),
    Finished(Message),
    /// A notice of a conversation off screen. When it returns to the screen, all its state is sent again.
    Background {
        /// [`OpenSession::serial`] of the conversation.
        serial: u64,
        notice: Box<Notice>,
    },
    /// The first so many requests are complete: their notices were sent, and none occupies the conversation.
    Acknowledged(u64),
    Activity(Activity),
    Meters(Meters),
    Save(SaveState),
    /// One line on screen that is not part of the conversation.
    Note(Level, String),
    /// The database is damaged or could not be checked: a sentence. Sent at any time, independent of requests.
    Damage(String),
    Page {
        /// Heading; the text is markdown.
        title: String,
        text: String,
    },
    Looked {
        number: u64,
        passages: usize,
        /// Which sentence of the answer is shown (0: all of it), and the number of sentences.
        sentence: (u64, u64),
        title: String,
        text: String,
    },
    Map(ContextMap),
    /// The loss of likelihood of an answer with passages hidden: a page like [`Notice::Looked`], and the numbers.
    Why {
        number: u64,
        title: String,
        text: String,
        /// One for each of its first passages.
        rows: Vec<Why>,
    },
    /// The answers to `/ask-all` so far; the last notice has `over` set.
    FanOut(FanOut),
    /// Part of an aside's answer, shown in an overlay and not saved.
    Aside {
        question: String,
        text: String,
        done: Option<Finish>,
    },
    Question {
        /// Repeated in [`Request::Choose`].
        id: u64,
        text: String,
        choices: Vec<Choice>,
        /// The files of a load: [`Request::ChooseFiles`] answers too.
        plan: Option<LoadPlan>,
    },
    /// Text for the input: an undone question, or a message to edit.
    Input {
        text: String,
        /// Set if sending the text edits this message.
        editing: Option<MessageId>,
    },
    /// The saved draft of the open session, sent whenever a session opens: another terminal may have changed the draft
    /// of one that was open before. Empty if there is no draft.
    Draft(String),
    /// Earlier questions of all sessions, oldest first, for Up and Ctrl-R: the newest 2,000, once at the start.
    Prompts(Vec<String>),
    Titled(String),
    /// Another terminal took a name first: the new name of the open session, and the list of opened sessions.
    Named {
        /// Empty if the open session has no name yet.
        name: String,
        /// As in [`SessionView::opened`].
        opened: Vec<OpenSession>,
    },
    /// The documents of the library for completion, most recently used first.
    Library(Vec<LibraryName>),
    Sessions(Vec<SessionRow>),
    Found {
        query: String,
        rows: Vec<SearchRow>,
    },
    Timeline(Vec<TimelineRow>),
    Documents {
        /// `This conversation` or `Library`.
        title: String,
        rows: Vec<DocumentRow>,
    },
    /// Display settings of a preset, valid from now on.
    Display(Display),
    Bye {
        /// Printed after the terminal is restored: the command that resumes, or what is not saved.
        farewell: Option<String>,
        /// Set if text is not on disk.
        unsaved: Option<Unsaved>,
    },
    Fatal {
        /// One line.
        error: String,
        exit: Exit,
    },
}

impl Notice {
    pub(super) fn note(level: Level, text: impl Into<String>) -> Notice {
        Notice::Note(level, plain_words(&text.into()))
    }
}
