//! The runtime: the thread that owns the open conversations and joins text, engine and session store.
//!
//! It receives [`Request`]s, drives the engine through [`crate::engine::protocol`], saves through the store's writer, and reports to the
//! interface with [`Notice`]s. It never draws and never makes the interface wait.
//!
//! A `conversation::Conversation` owns everything of one conversation; `State` owns what all of them share and the list of those at
//! work. Each request is a verb: an `async fn` of `verb::Verb` that reads from top to bottom and waits in place. The loop in
//! `run` is the only place that waits for events, so that stopping, looking at pages and quitting work while verbs wait.
//!
//! Why `async` and not a thread for each running conversation: tokens arrive hundreds of times a second, and a verb that looks at each
//! of them is resumed in nanoseconds on its own thread; the order of events stays that of one thread; and branches of a fan-out
//! run in the same function as an answer does (`fan_out`). An executor of a page (`verb`) is all that it takes, because only the
//! loop ever wakes a verb.
//!
//! | file | owns |
//! |---|---|
//! | `protocol` | requests and notices, as plain data |
//! | `run`, `inbox`, `dispatch`, `engine_events`, `error` | the loop; requests; the verb of each request; events of the engine; why a request failed |
//! | `verb`, `task`, `background`, `question` | verbs and their executor; tasks of other threads, and verbs that wait for them; questions to the user |
//! | `conversation`, `session`, `tree` | a conversation and those at work; its session with settings and rights; its tree of messages with a head |
//! | `link`, `slot`, `path`, `plan`, `segments`, `render` | the engine; a slot of it with its live path; a rendered conversation as segments, and how it becomes live |
//! | `execute`, `fan_out`, `sync` | the one executor; the same in several slots; the engine's state follows the conversation |
//! | `persistence`, `record` | store and writer; each change goes to the session and to the disk at once |
//! | `ask` | answers: the first one, again, several, asides |
//! | `load`, `library` | documents: gathered, chosen, read, found again |
//! | `sessions`, `resume`, `opened`, `drafts`, `title`, `damaged` | sessions: opened, left, listed, named; unsent input; damaged messages |
//! | `time`, `siblings`, `presets` | back, forward and sideways; from branch to branch; presets |
//! | `shelf`, `when`, `why`, `look`, `map`, `sources` | one question to many documents or places; what an answer looked at |
//! | `meters`, `pages`, `export`, `told` | numbers, pages, `/export` and `/import`, notes that are shown once |
//!
//! # Invariants
//!
//! 1. **Transcript first.** A question is given to the store before the engine sees it; an answer is saved every few
//!    seconds while it grows and when it ends.
//! 2. **The live token list is the authority.** [`path::Path`] says which segments the engine's state has absorbed. For
//!    the next turn the whole conversation is rendered and the deepest segment whose text is unchanged is found; only
//!    what follows is tokenised and given (docs/architecture.md §4).
//! 3. The token that ended a turn is never in the state; it comes with the next given text.
//! 4. Nothing is destroyed: going back moves the head of the message tree ([`tree`]).

mod ask;
mod background;
mod conversation;
mod damaged;
mod dispatch;
mod drafts;
mod engine_events;
mod error;
mod execute;
pub mod export;
mod fan_out;
mod inbox;
mod library;
mod link;
mod load;
mod look;
mod map;
mod meters;
mod opened;
pub mod pages;
pub mod path;
mod persistence;
mod plan;
pub mod presets;
pub mod protocol;
mod question;
mod record;
pub mod render;
mod resume;
mod run;
pub mod segments;
mod session;
mod sessions;
mod shelf;
mod siblings;
mod slot;
mod sources;
mod sync;
mod task;
mod time;
mod title;
mod told;
pub mod tree;
mod verb;
mod when;
mod why;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};

use crate::config::settings::SaveStates;
pub use crate::config::settings::Settings;
use crate::core::grouped;
use crate::engine::protocol::MAIN;
use crate::runtime::protocol::{Level, Notice, Request};
use crate::store::{Store, Writer};
use crate::text::TextModel;
pub use ask::fresh_seed;
use conversation::Conversation;
pub use drafts::Input;
use error::{Done, RuntimeError};
use inbox::Inbox;
use link::Engine;
pub use link::EngineChannels;
pub use load::LoadLimits;
use opened::Opened;
use persistence::Persistence;
use session::Session;
pub use sessions::session_rows;
pub use shelf::no_document;
use task::Task;
pub use told::DeviceNotes;
use verb::{Baton, Running};

/// Which conversation to open first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// A new one, unnamed until its first question or named now.
    #[default]
    New,
    /// A new one of this name.
    Named(String),
    /// An existing one by name; [`LAST`](crate::store::LAST) is the most recent.
    Resume(String),
    /// The same for a pipe: a session that another process holds ends the run; lost state is read again.
    ResumeOrEnd(String),
}

/// Whether somebody is there to answer a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attendance {
    /// Questions are put to the interface.
    #[default]
    Present,
    /// One-shot use: the first choice is taken.
    Absent,
}

/// All a runtime needs to begin.
#[derive(Debug)]
pub struct Options {
    /// The data directory.
    pub store: Arc<Store>,
    /// `--no-save`: the store is temporary; the interface shows that.
    pub discard: bool,
    /// Tokenizer and template of the model the engine loads.
    pub text: TextModel,
    /// Ids that end a turn.
    pub stop: Vec<crate::engine::protocol::Token>,
    /// The engine thread.
    pub engine: EngineChannels,
    /// Settings of new sessions.
    pub settings: Settings,
    /// System text of new sessions.
    pub system: Option<String>,
    /// What to open.
    pub opening: Opening,
    pub attendance: Attendance,
    /// Whether drafts are kept.
    pub input: Input,
    /// Tokens kept free for an answer.
    pub reserve_answer: u64,
    /// When to ask before reading.
    pub load: LoadLimits,
    /// How documents are found and read.
    pub sources: crate::text::sources::SourceOptions,
    /// Tokens between two kept states inside a long document.
    pub piece: usize,
    /// When model state is written.
    pub save_state: SaveStates,
    /// Folder of the user's presets; `None`: there are only the built-in ones.
    pub presets: Option<std::path::PathBuf>,
    /// Settings of this run that go before those a resumed session was left with, and are not kept: key and value as `/set` takes
    /// them. `settings` have them already.
    pub overrides: Vec<(String, String)>,
    pub device_notes: DeviceNotes,
    /// Sessions are given titles by the model.
    pub titles: bool,
}

/// A running runtime.
#[derive(Debug)]
pub struct Runtime {
    /// To it. Dropping the last sender ends it like [`Request::Quit`].
    pub requests: Sender<Request>,
    /// From it; the last one is [`Notice::Bye`] or [`Notice::Fatal`].
    pub notices: Receiver<Notice>,
    /// Its thread.
    pub thread: JoinHandle<()>,
}

/// Starts the thread.
///
/// # Errors
/// The system has no thread to give.
pub fn spawn(options: Options) -> std::io::Result<Runtime> {
    let (requests, inbox) = crossbeam_channel::unbounded();
    let (out, notices) = crossbeam_channel::unbounded();
    let (save_events, saves) = crossbeam_channel::unbounded();
    let writer = Writer::start(Arc::clone(&options.store), save_events)?;
    let out = Out(out);
    let (store, save_state, discard) = (Arc::clone(&options.store), options.save_state, options.discard);
    let disk = Persistence::new(store, writer, saves, save_state, discard, out.clone());
    // Verbs stay on their thread: the state that holds them is made there.
    let run = move || Box::new(State::new(options, disk, inbox, out)).run();
    let thread = std::thread::Builder::new().name("runtime".into()).spawn(run)?;
    Ok(Runtime { requests, notices, thread })
}

/// The way to the interface.
#[derive(Clone, Debug)]
struct Out(Sender<Notice>);

impl Out {
    /// A closed channel means that the interface is gone; the request channel will say so too.
    fn tell(&self, notice: Notice) {
        let _ = self.0.send(notice);
    }

    fn note(&self, level: Level, text: impl Into<String>) {
        self.tell(Notice::Note(level, text.into()));
    }
}

/// What all conversations share, and the conversations.
struct State {
    inbox: Inbox,
    out: Out,
    engine: Engine,
    disk: Persistence,
    /// The conversation whose request or event is being handled: the one on screen, unless `off_screen`.
    here: Conversation,
    /// Other conversations that are at work.
    others: Vec<Conversation>,
    /// Serial of the conversation on screen.
    screen: u64,
    off_screen: bool,
    /// Checks the database, once a run.
    looking: Option<JoinHandle<()>>,
    /// Where verbs take the state from.
    baton: Baton,
    /// Verbs that run at once, and the serials of their conversations.
    at_once: VecDeque<(u64, Running)>,
    /// Background tasks that hold up no conversation, and their verbs.
    background: Vec<(Task, Running)>,
    /// Requests received, and how many of them were acknowledged.
    received: u64,
    acknowledged: u64,
    quitting: bool,
    /// Sessions opened in this run.
    opened: Opened,
    drafts: drafts::Drafts,
    /// Settings and system text of new sessions.
    defaults: Settings,
    default_system: Option<String>,
    opening: Opening,
    /// The first session must open, or the run ends.
    must_open: bool,
    /// Lost state is read again without a question: input is a pipe.
    reads_unasked: bool,
    noted_dropped_thoughts: bool,
    titles: bool,
    /// Sessions that were left before they had a title.
    untitled: VecDeque<title::Untitled>,
    /// Rows of the last table of answers, by the serial of its session.
    asked: HashMap<u64, Vec<shelf::Asked>>,
    attendance: Attendance,
    reserve_answer: u64,
    load_limits: LoadLimits,
    sources: crate::text::sources::SourceOptions,
    presets: Option<std::path::PathBuf>,
    overrides: Vec<(String, String)>,
    device_notes: DeviceNotes,
    next_question: u64,
    /// Prefill speed for estimates, tokens per second, over all sessions; 0 while it is unknown.
    reading_speed: f64,
}

impl State {
    fn new(o: Options, disk: Persistence, requests: Receiver<Request>, out: Out) -> State {
        let session = Session::empty(o.settings.clone(), o.system.clone());
        State {
            inbox: Inbox::new(requests, o.attendance),
            out,
            engine: Engine::new(o.engine, o.text, o.stop, o.piece),
            disk,
            here: Conversation::new(session, MAIN),
            others: Vec::new(),
            screen: 0,
            off_screen: false,
            looking: None,
            baton: Baton::default(),
            at_once: VecDeque::new(),
            background: Vec::new(),
            received: 0,
            acknowledged: 0,
            quitting: false,
            opened: Opened::default(),
            drafts: drafts::Drafts::new(o.input),
            defaults: o.settings,
            default_system: o.system,
            reads_unasked: matches!(o.opening, Opening::ResumeOrEnd(_)),
            opening: o.opening,
            must_open: false,
            noted_dropped_thoughts: false,
            titles: o.titles && o.attendance == Attendance::Present,
            untitled: VecDeque::new(),
            asked: HashMap::new(),
            attendance: o.attendance,
            reserve_answer: o.reserve_answer,
            load_limits: o.load,
            sources: o.sources,
            presets: o.presets,
            overrides: o.overrides,
            device_notes: o.device_notes,
            next_question: 0,
            reading_speed: 0.0,
        }
    }

    /// Sends a notice; off screen it names its conversation. A conversation that is being opened reports to the
    /// screen; an aside only its own answer, warnings and errors.
    fn tell(&self, notice: Notice) {
        let serial = self.here.session.serial;
        let own = matches!(&notice, Notice::Aside { .. } | Notice::Note(Level::Warn | Level::Error, _));
        if self.here.apart.is_some() && !own {
            return;
        }
        match serial == 0 || serial == self.screen {
            true => self.out.tell(notice),
            false => self.out.tell(Notice::Background { serial, notice: Box::new(notice) }),
        }
    }

    fn note(&self, level: Level, text: impl Into<String>) {
        self.tell(Notice::Note(level, text.into()));
    }
}
