//! The desk: the thread that owns one open conversation and joins text, engine and session store.
//!
//! It receives [`Request`]s, drives the engine through [`crate::protocol::engine`], saves through the store's writer,
//! and tells the interface what happened as [`Notice`]s. It never draws and never makes the interface wait: whatever
//! takes long runs with an eye on the request channel, so that stopping, looking at pages and quitting work meanwhile.
//!
//! # Invariants
//!
//! 1. **Transcript first.** A question is given to the store before the engine sees it; an answer is saved every few
//!    seconds while it grows and when it ends.
//! 2. **The live token list is the authority.** [`path::Path`] says which segments the engine's state has absorbed. For
//!    the next turn the whole conversation is rendered and the deepest segment whose text is unchanged is found; only
//!    what follows is tokenised and given (docs/design.md §6).
//! 3. The token that ended a turn is never in the state; it comes with the next given text.
//! 4. Nothing is destroyed: going back moves the head of the message tree ([`conversation`]).

mod ask;
mod choose;
pub mod conversation;
mod dispatch;
pub mod export;
mod feed;
mod jobs;
mod keep;
mod library;
mod link;
mod load;
mod opened;
pub mod pages;
pub mod path;
pub mod presets;
pub mod render;
mod run;
mod sessions;
mod time;
mod told;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender};

use crate::base::grouped;
use crate::protocol::desk::{Activity, Level, Meters, Notice, Request, SaveState};
use crate::protocol::engine::{Cancel, EngineFault, ModelInfo, RowsFault};
use crate::session::{SaveEvent, SegmentId, SessionLock, Store, StoreError, StoredRows, Writer};
use crate::settings::SaveStates;
pub use crate::settings::Settings;
use crate::text::{TextError, TextModel};
use crate::transcript::{MessageId, SessionId};
use conversation::Conversation;
use keep::Pending;
pub use link::EngineChannels;
use link::{EngineState, Link};
use opened::Opened;
use path::Path;
use render::Renderer;
pub use sessions::session_rows;
pub use told::DeviceNotes;

/// Which conversation to open first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// A new one, unnamed until its first question or named now.
    #[default]
    New,
    /// A new one of this name.
    Named(String),
    /// An existing one by name; `last` is the most recent.
    Resume(String),
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

/// When `/load` shows a plan first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadLimits {
    /// Above so many tokens.
    pub confirm_tokens: u64,
    /// Above so many files.
    pub confirm_files: usize,
}

impl Default for LoadLimits {
    fn default() -> Self {
        LoadLimits { confirm_tokens: 50_000, confirm_files: 20 }
    }
}

/// All a desk needs to begin.
#[derive(Debug)]
pub struct Options {
    /// The data directory.
    pub store: Arc<Store>,
    /// `--no-save`: the store is a private one that goes away; the interface says so.
    pub discard: bool,
    /// Tokenizer and template of the model the engine loads.
    pub text: TextModel,
    /// Ids that end a turn.
    pub stop: Vec<crate::protocol::engine::Token>,
    /// The engine thread.
    pub engine: EngineChannels,
    /// Settings of new sessions.
    pub settings: Settings,
    /// System text of new sessions.
    pub system: Option<String>,
    /// What to open.
    pub opening: Opening,
    /// Whether questions can be asked.
    pub attendance: Attendance,
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
    /// Settings of this run that go before those a resumed session was left with: key and value as `/set` takes them.
    pub overrides: Vec<(String, String)>,
    /// How often the engine's notes about the device are told.
    pub device_notes: DeviceNotes,
}

/// A running desk.
#[derive(Debug)]
pub struct Desk {
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
pub fn spawn(options: Options) -> std::io::Result<Desk> {
    let (requests, inbox) = crossbeam_channel::unbounded();
    let (out, notices) = crossbeam_channel::unbounded();
    let (save_events, saves) = crossbeam_channel::unbounded();
    let writer = Writer::start(Arc::clone(&options.store), save_events)?;
    let state = State::new(options, writer, Channels { requests: inbox, notices: out, saves });
    let thread = std::thread::Builder::new().name("desk".into()).spawn(move || state.run())?;
    Ok(Desk { requests, notices, thread })
}

struct Channels {
    requests: Receiver<Request>,
    notices: Sender<Notice>,
    saves: Receiver<SaveEvent>,
}

/// Why a request was not done. Shown as one line.
#[derive(Debug, thiserror::Error)]
enum DeskError {
    /// The engine failed or is not there.
    #[error(transparent)]
    Engine(#[from] EngineFault),
    /// Part of the saved state that was in use turned out damaged and was set aside: a new plan leaves it out.
    #[error("Saved state cannot be used: {0}. It was set aside.")]
    RowsLost(RowsFault),
    /// It was tried and did not work out.
    #[error("{0}")]
    Failed(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Text could not be rendered or tokenised.
    #[error(transparent)]
    Text(#[from] TextError),
    /// It cannot be done as asked: what to do instead.
    #[error("{0}")]
    Refused(String),
    /// The context is too small for it.
    #[error("{0}")]
    TooLong(String),
    /// The user stopped it. Nothing to say.
    #[error("stopped")]
    Stopped,
}

impl DeskError {
    /// Exit code of a one-shot run that ends with it (docs/interface.md §2).
    fn exit_code(&self) -> i32 {
        match self {
            DeskError::Engine(EngineFault::Fatal { code, .. }) => *code,
            DeskError::RowsLost(_) => 7,
            DeskError::Engine(EngineFault::RowsLost(_) | EngineFault::Device(_))
            | DeskError::Text(_)
            | DeskError::Refused(_)
            | DeskError::Failed(_) => 1,
            DeskError::TooLong(_) => 5,
            DeskError::Engine(EngineFault::Stopped) | DeskError::Stopped => 130,
            DeskError::Store(StoreError::InUse { .. }) => 6,
            DeskError::Store(StoreError::NoSession { .. } | StoreError::NameTaken { .. }) => 1,
            DeskError::Store(e) if e.is_disk() => 74,
            DeskError::Store(_) => 7,
        }
    }
}

/// A result of the desk's own.
type Done<T = ()> = Result<T, DeskError>;

/// Who may write to the open session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rights {
    /// We.
    Write,
    /// Somebody else, or its state is unusable and the user chose to look only: why.
    View(String),
}

/// The open session.
#[derive(Debug)]
struct Open {
    /// Its place among those opened in this run.
    serial: u64,
    /// Its row; `None` until the first message.
    id: Option<SessionId>,
    /// Its name; empty until the first message.
    name: String,
    conversation: Conversation,
    settings: Settings,
    rights: Rights,
    /// Segment that ends a message, for the present model.
    ends: HashMap<MessageId, SegmentId>,
    /// Names given to messages by `/mark` and `/fork`.
    labels: HashMap<MessageId, String>,
    /// Messages whose texts are not here in full: they are off the open branch.
    cut: HashSet<MessageId>,
    /// Keeps other processes from writing.
    lock: Option<SessionLock>,
}

impl Open {
    /// A session nothing was said in yet.
    fn empty(settings: Settings) -> Open {
        Open {
            serial: 0,
            id: None,
            name: String::new(),
            conversation: Conversation::default(),
            settings,
            rights: Rights::Write,
            ends: HashMap::new(),
            labels: HashMap::new(),
            cut: HashSet::new(),
            lock: None,
        }
    }
}

/// A question that waits for its answer.
#[derive(Debug)]
struct Asked {
    id: u64,
    answer: Option<Answer>,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// Key of a choice.
    Key(char),
    /// Files of a load, by their place in the plan.
    Files(Vec<usize>),
}

/// The desk thread's own state.
#[derive(Debug)]
struct State {
    requests: Receiver<Request>,
    notices: Sender<Notice>,
    store: Arc<Store>,
    writer: Writer,
    saves: Receiver<SaveEvent>,
    pending: Pending,
    discard: bool,
    renderer: Renderer,
    stop: Vec<crate::protocol::engine::Token>,
    link: Link,
    /// What the engine's state has absorbed.
    live: Path,
    open: Open,
    /// Sessions opened in this run.
    opened: Opened,
    defaults: Settings,
    /// System text of the next root.
    system: Option<String>,
    default_system: Option<String>,
    opening: Opening,
    /// A session was opened and its state is not back yet.
    resume_pending: bool,
    /// Rows of the live state that may still be on their way to the device.
    coming: Vec<Arc<StoredRows>>,
    said_thoughts_leave: bool,
    attendance: Attendance,
    reserve_answer: u64,
    load_limits: LoadLimits,
    sources: crate::text::sources::SourceOptions,
    piece: usize,
    save_state: SaveStates,
    presets: Option<std::path::PathBuf>,
    overrides: Vec<(String, String)>,
    device_notes: DeviceNotes,
    /// Requests that wait for the present work to end.
    queue: VecDeque<Request>,
    /// Of the present work.
    cancel: Cancel,
    quitting: bool,
    asked: Option<Asked>,
    next_question: u64,
    meters: Meters,
    save: SaveState,
    /// Share of the context (80, 95) that was warned about.
    warned: u8,
    activity: Activity,
}

impl State {
    fn new(o: Options, writer: Writer, channels: Channels) -> State {
        State {
            requests: channels.requests,
            notices: channels.notices,
            saves: channels.saves,
            store: o.store,
            writer,
            pending: Pending::default(),
            discard: o.discard,
            renderer: Renderer::new(o.text),
            stop: o.stop,
            link: Link::new(o.engine),
            live: Path::default(),
            open: Open::empty(o.settings.clone()),
            opened: Opened::default(),
            defaults: o.settings,
            system: o.system.clone(),
            default_system: o.system,
            opening: o.opening,
            resume_pending: false,
            coming: Vec::new(),
            said_thoughts_leave: false,
            attendance: o.attendance,
            reserve_answer: o.reserve_answer,
            load_limits: o.load,
            sources: o.sources,
            piece: o.piece,
            save_state: o.save_state,
            presets: o.presets,
            overrides: o.overrides,
            device_notes: o.device_notes,
            queue: VecDeque::new(),
            cancel: Cancel::default(),
            quitting: false,
            asked: None,
            next_question: 0,
            meters: Meters::default(),
            save: SaveState::Empty,
            warned: 0,
            activity: Activity::Idle,
        }
    }

    /// Tells the interface. A closed channel means that it is gone; the request channel will say so too.
    fn tell(&self, notice: Notice) {
        let _ = self.notices.send(notice);
    }

    fn note(&self, level: Level, text: impl Into<String>) {
        self.tell(Notice::Note(level, text.into()));
    }

    fn activity(&mut self, activity: Activity) {
        if self.activity != activity {
            self.activity = activity.clone();
            self.tell(Notice::Activity(activity));
        }
    }

    /// The model, if it is loaded.
    fn model(&self) -> Option<&ModelInfo> {
        match &self.link.state {
            EngineState::Ready(info) => Some(info),
            EngineState::Starting | EngineState::Down { .. } => None,
        }
    }
}

/// Milliseconds since the epoch, for display.
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
