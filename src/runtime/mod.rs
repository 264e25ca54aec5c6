//! The runtime: the thread that owns the open conversations and connects text, engine and session store.
//!
//! It receives [`Request`]s, drives the engine through [`crate::engine::protocol`], saves through the store's writer,
//! and reports to the interface with [`Notice`]s. It never draws, and the interface never waits for it.
//!
//! A `conversation::Conversation` owns the state of one conversation; `State` owns what all of them share and the list
//! of active ones; showing another one changes an index. A request that waits is a verb: an `async fn` of `verb::Verb`
//! that reads from top to bottom and waits in place. One that only looks is served at once (`requests`). Only the loop in
//! `run` waits for events, so stop, pages and quit work while verbs wait.
//!
//! Reasons for `async` instead of a thread for each running conversation: tokens arrive hundreds of times a second, and
//! resuming a verb on the same thread takes nanoseconds; one thread keeps the order of events; and branches of a
//! fan-out run in the same function as an answer (`fan_out`). Polling by hand (`baton`) is enough, because only the
//! loop resumes a verb.
//!
//! | file | owns |
//! |---|---|
//! | `protocol` | requests and notices, as plain data |
//! | `run`, `requests`, `engine_events`, `error` | the loop; requests and the verb of each; events of the engine; reasons of failed requests |
//! | `baton`, `verb`, `task` | linear functions that share a state; verbs and their questions to the user; work on other threads |
//! | `conversation`, `session`, `tree` | a conversation and the active ones; its session with settings and rights; its tree of messages with a head |
//! | `link`, `path`, `plan`, `segments`, `render` | the engine and its slots with their live paths; a rendered conversation as segments, and the plan that makes it live |
//! | `executor`, `execute`, `fan_out` | the one executor, which the server uses too; plans of a conversation, and the engine's state kept at its head; the same in several slots |
//! | `persistence`, `record` | store and writer; each change of the session is saved at once |
//! | `ask` | answers: the first one, again, several, asides |
//! | `load`, `library`, `follow` | documents: gathered, chosen, read, found again, brought up to date |
//! | `sessions`, `resume`, `opened`, `drafts`, `title` | sessions: opened, left, listed, named; unsent input |
//! | `time`, `siblings`, `presets` | undo, redo, edit and fork; branches; presets |
//! | `ask_all`, `when`, `why`, `look`, `sources` | one question to many documents or places; the attention of an answer, and its quotes |
//! | `meters`, `pages`, `export` | numbers, pages, `/export` and `/import` |
//!
//! # Invariants
//!
//! 1. **Transcript first.** The store receives a question before the engine; an answer is saved every few
//!    seconds while it grows and when it ends.
//! 2. **The live token list is the authority.** [`path::Path`] names the segments that the engine's state has absorbed.
//!    For the next turn the whole conversation is rendered and the deepest segment with unchanged text is found; only
//!    the rest is tokenised and prefilled (docs/architecture.md §4).
//! 3. The token that ended a turn is never in the state; the next prefill includes it.
//! 4. Nothing is destroyed: undo moves the head of the message tree ([`tree`]).

mod ask;
mod ask_all;
pub mod baton;
mod conversation;
mod drafts;
mod engine_events;
mod error;
mod execute;
pub mod executor;
pub mod export;
mod fan_out;
mod follow;
mod library;
pub mod link;
mod load;
mod look;
mod meters;
mod opened;
pub mod pages;
pub mod path;
mod persistence;
mod plan;
pub mod presets;
pub mod protocol;
mod record;
pub mod render;
mod requests;
mod resume;
mod run;
pub mod segments;
mod session;
mod sessions;
mod siblings;
mod sources;
mod task;
mod time;
mod title;
pub mod tree;
mod verb;
mod when;
mod why;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};

pub use crate::config::settings::Settings;
use crate::config::settings::{Config, SaveStates};
use crate::core::grouped;
use crate::engine::protocol::MAIN;
use crate::store::{Store, Writer};
use crate::text::TextModel;
pub use ask::fresh_seed;
pub use ask_all::no_document;
use baton::Baton;
use conversation::{Active, Conversation};
pub use drafts::Input;
use error::refused;
pub(crate) use error::{Done, RuntimeError};
use execute::per_second;
use executor::{PrefillStats, Sink, ToAnswer, Written};
use fan_out::{Branch, Fan, Grown};
pub use library::{removed, text_as_read, text_decoded, text_of_a_session};
pub use link::EngineChannels;
use link::{Engine, Last, Slot};
use opened::Opened;
use path::Path;
use persistence::Persistence;
use plan::Plan;
use protocol::{Activity, Choice, Level, Notice, Request, SaveState};
use render::{Form, Rendered, Renderer};
use requests::Inbox;
use segments::Step;
use session::{Rights, Session};
pub use sessions::{last_of_folder, session_rows};
use tree::{Tree, first_words};
use verb::{Verb, Wait, Wake, Wanted};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    #[default]
    New,
    Named(String),
    /// An existing one by name; [`LAST`](crate::store::LAST) is the most recent.
    Resume(String),
    /// For piped input: a session in use ends the run, and lost state is read again without a question.
    ResumeOrEnd(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attendance {
    #[default]
    Present,
    /// One-shot use: the runtime takes the first choice.
    Absent,
}

/// Which notes about the device are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceNotes {
    None,
    All,
    /// Those that are new in this data directory.
    New,
}

#[derive(Debug)]
pub struct EngineSetup {
    pub channels: EngineChannels,
    /// Tokenizer and template of the model the engine loads.
    pub text: TextModel,
    pub stop: Vec<crate::engine::protocol::Token>,
    /// Tokens between two checkpoints inside a long document.
    pub piece: usize,
}

#[derive(Debug)]
pub struct Options {
    pub store: Arc<Store>,
    /// `--no-save`: the store is temporary; the interface shows that.
    pub discard: bool,
    /// With `--no-save`: the store of the saved sessions: its state is used and not changed.
    pub kept: Option<Arc<Store>>,
    /// The settings and the system text of new sessions.
    pub settings: Settings,
    pub system: Option<String>,
    pub opening: Opening,
    pub attendance: Attendance,
    pub input: Input,
    pub config: Config,
    pub sources: crate::text::sources::SourceOptions,
    pub save_state: SaveStates,
    /// Folder of the user's presets; `None`: only the built-in ones exist.
    pub presets: Option<std::path::PathBuf>,
    /// Settings of this run that override those of a resumed session and are not saved: key and value as `/set` takes
    /// them. `settings` includes them.
    pub overrides: Vec<(String, String)>,
    pub device_notes: DeviceNotes,
}

#[derive(Debug)]
pub struct Runtime {
    /// Dropping the last sender ends the runtime like [`Request::Quit`].
    pub requests: Sender<Request>,
    /// The last one is [`Notice::Bye`] or [`Notice::Fatal`].
    pub notices: Receiver<Notice>,
    pub thread: JoinHandle<()>,
}

/// # Errors
/// The system cannot start a thread.
pub fn spawn(engine: EngineSetup, options: Options) -> std::io::Result<Runtime> {
    let (requests, inbox) = crossbeam_channel::unbounded();
    let (out, notices) = crossbeam_channel::unbounded();
    let (save_events, saves) = crossbeam_channel::unbounded();
    let writer = Writer::start(Arc::clone(&options.store), save_events)?;
    let out = Out(out);
    let disk = Persistence::new(&options, writer, saves, out.clone());
    // Verbs are not `Send`, so the state is created on the runtime's thread.
    let run = move || Box::new(State::new(options, engine, disk, inbox, out)).run();
    let thread = std::thread::Builder::new().name("runtime".into()).spawn(run)?;
    Ok(Runtime { requests, notices, thread })
}

#[derive(Clone, Debug)]
struct Out(Sender<Notice>);

impl Out {
    /// A closed channel means that the interface is gone; the request channel reports that too.
    fn report(&self, notice: Notice) {
        let _ = self.0.send(notice);
    }

    fn note(&self, level: Level, text: impl Into<String>) {
        self.report(Notice::note(level, text));
    }
}

struct State {
    options: Options,
    inbox: Inbox,
    out: Out,
    tasks: task::Tasks,
    engine: Engine,
    disk: Persistence,
    here: Active,
    /// The serial of the conversation on screen.
    screen: u64,
    looking: Option<JoinHandle<()>>,
    baton: Baton<State>,
    /// Requests that wait for nothing, to be served before any verb goes on.
    at_once: VecDeque<Request>,
    received: u64,
    acknowledged: u64,
    quitting: bool,
    opened: Opened,
    drafts: drafts::Drafts,
    /// The run ends if the first session does not open.
    must_open: bool,
    noted_dropped_thoughts: bool,
    /// Rows of the last `/ask-all` table, by the serial of its session.
    tables: HashMap<u64, std::rc::Rc<ask_all::AskAll>>,
    attendance: Attendance,
    /// A stop or a failed request ends the run.
    one_shot: bool,
    next_question: u64,
    /// Prefill speed for estimates, tokens per second, over all sessions; 0 if unknown.
    reading_speed: f64,
    /// Kept state on disk.
    state_bytes: u64,
    indexes: look::Indexes,
    follows: follow::Follows,
}

impl State {
    fn new(o: Options, engine: EngineSetup, disk: Persistence, requests: Receiver<Request>, out: Out) -> State {
        let session = Session::empty(o.settings.clone(), o.system.clone());
        State {
            inbox: Inbox::new(requests, o.attendance),
            out,
            tasks: task::Tasks::default(),
            engine: Engine::new(engine.channels, Renderer::new(engine.text), engine.stop, engine.piece),
            disk,
            here: Active::new(Conversation::new(session, MAIN)),
            screen: 0,
            looking: None,
            baton: Baton::default(),
            at_once: VecDeque::new(),
            received: 0,
            acknowledged: 0,
            quitting: false,
            opened: Opened::default(),
            drafts: drafts::Drafts::default(),
            must_open: false,
            noted_dropped_thoughts: false,
            tables: HashMap::new(),
            attendance: o.attendance,
            one_shot: o.attendance == Attendance::Absent && o.input != Input::Calls,
            options: o,
            next_question: 0,
            reading_speed: 0.0,
            state_bytes: 0,
            indexes: look::Indexes::default(),
            follows: follow::Follows::default(),
        }
    }

    /// Sends a notice. A conversation off screen wraps it with its serial; one that is being opened reports to the
    /// screen; an aside reports only its own answer, warnings and errors.
    fn report(&self, notice: Notice) {
        let serial = self.here.serial;
        let own = matches!(&notice, Notice::Aside { .. } | Notice::Note(Level::Warn | Level::Error, _));
        if self.here.apart.is_some() && !own {
            return;
        }
        match serial == 0 || serial == self.screen {
            true => self.out.report(notice),
            false => self.out.report(Notice::Background { serial, notice: Box::new(notice) }),
        }
    }

    fn note(&self, level: Level, text: impl Into<String>) {
        self.report(Notice::note(level, text));
    }

    fn info(&self, text: impl Into<String>) {
        self.note(Level::Info, text);
    }

    /// The end of a verb that says one line.
    fn say(&self, text: impl Into<String>) -> Done {
        self.info(text);
        Ok(())
    }

    /// The end of a verb that shows something.
    fn show(&self, notice: Notice) -> Done {
        self.report(notice);
        Ok(())
    }

    fn warn(&self, text: impl Into<String>) {
        self.note(Level::Warn, text);
    }
}
