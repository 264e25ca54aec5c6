//! What the interface asks of the runtime, and what the runtime tells the interface. Both directions are plain data, so the
//! interface can be driven by a script in tests and the runtime by `-p` without a terminal.
//!
//! What the interface relies on: every request is answered by at least one notice ([`Notice::Activity`],
//! [`Notice::Note`], a page, a question ...); [`Activity::Idle`] is told whenever work ends; [`Notice::Added`] comes
//! before the first [`Notice::Delta`] of a message and [`Notice::Finished`] after the last; the last notice of all is
//! [`Notice::Bye`] or [`Notice::Fatal`]. The channel to the interface is unbounded: the runtime never waits for a screen.

mod progress;
mod views;

pub use crate::config::commands::{
    BranchTarget, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction, Request, Sibling, WhileBusy,
};
pub use crate::config::settings::{ThinkMode, preset::Display};
use crate::core::Exit;
use crate::core::transcript::{Finish, Message, MessageId};
use crate::engine::protocol::ModelInfo;
pub use progress::{
    Activity, FileProgress, FileState, LoadPlan, Meters, PlanFile, ReadingProgress, SaveState, Unsaved,
};
pub use views::{
    ContextMap, DocumentRow, FanOut, FanOutRow, LibraryName, OpenSession, Place, SearchRow, SessionRow, SessionView,
    Stretch, TimelineRow, TreeView, Why,
};

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

/// A choice of a [`Notice::Question`]. The last one is what Esc, a stop and the end of the input take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Key to press; `'\n'` is Enter, `'\x1b'` is Esc.
    pub key: char,
    /// What it does.
    pub label: String,
}

impl Choice {
    /// `y` and `n`, and what they do.
    pub fn yes_or_no(yes: &str, no: &str) -> Vec<Choice> {
        [('y', yes), ('n', no)].map(|(key, label)| Choice { key, label: label.to_owned() }).into()
    }
}

/// Runtime to interface.
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
    /// Answers to the question at the end of the open session are written side by side: their messages, and seeds where something
    /// is drawn. What is told of them follows as [`Notice::Delta`] and [`Notice::Finished`]; a [`Notice::Session`] says which one goes on.
    Several(Vec<(MessageId, Option<u64>)>),
    /// The answer is complete; replaces what the deltas built.
    Finished(Message),
    /// Something about a conversation that is at work and not on screen. When it comes back to the screen, all of it is told again.
    Background {
        /// Its serial ([`OpenSession::serial`]).
        serial: u64,
        /// What would be told if it were on screen.
        notice: Box<Notice>,
    },
    /// The first so many requests are served: nothing of them goes on in the conversation in hand, and all that they had to say has
    /// been told.
    Acknowledged(u64),
    /// What goes on.
    Activity(Activity),
    /// Numbers for the status line and panel.
    Meters(Meters),
    /// Whether it is on disk.
    Save(SaveState),
    /// One line for the transcript, not part of the conversation.
    Note(Level, String),
    /// The database is damaged, or could not be looked at: a sentence. Comes at any moment, and is no word to anything that was asked.
    Damage(String),
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
        /// How many passages can be opened.
        passages: usize,
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
    FanOut(FanOut),
    /// Part of an aside's answer, shown in an overlay and not kept.
    Aside {
        /// The question.
        question: String,
        /// What was answered so far.
        text: String,
        /// It is complete.
        done: Option<Finish>,
    },
    /// The runtime needs a decision. Drawn over the input; keys answer.
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
    /// What is kept of the input of the open session: it was left, or the program ended, with that in it. Told when the session is opened, also
    /// of one that was open before, which another terminal may have had meanwhile; empty where nothing is kept any more.
    Draft(String),
    /// Questions asked earlier, in all sessions, oldest first: for Up and Ctrl-R. Sent once at the start; at most the
    /// newest 2,000 are used.
    Prompts(Vec<String>),
    /// The open session has been given this title.
    Titled(String),
    /// Another terminal was first to take a name: what the open session is called, and the list of those opened.
    Named {
        /// Empty where the open one has no name yet.
        name: String,
        /// As in [`SessionView::opened`].
        opened: Vec<OpenSession>,
    },
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
    /// The runtime cannot go on: one line, and the exit code.
    Fatal {
        /// The line.
        error: String,
        /// How the program ends.
        exit: Exit,
    },
}
