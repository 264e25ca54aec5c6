//! The local server: the model for other programs, over HTTP, in the forms of the OpenAI and Anthropic APIs.
//!
//! `read` in an API's file (`chat`, `messages`, `responses`, `completions`) turns the fields of a request into a
//! `Received` and the form of its answer. `ask` renders the prompt, compiles the grammar, and queues an `Ask`. One thread
//! (`worker`) runs it on the executor of the runtime, and its events return to the connection, where `stream` writes
//! them in the API's form (`stream::Form`): `whole` as one object, `event` as a stream.
//!
//! A new field of a request belongs in its API's `read`; in `params::params` if all APIs have it, in `turns` if
//! messages have it. A new field of a response belongs in the API's `Form`; chat completions and completions share
//! `chunks::Head`, every object of a response has the fields of `response::Sent`. docs/serve.md lists the fields.
//!
//! | file | owns |
//! |---|---|
//! | `refusal`, `request`, `fields` | why a request is refused; its context, its body, its model; its fields |
//! | `turns`, `calls`, `prompt` | turns of a conversation; calls of functions in an answer; the text that the model reads |
//! | `tools`, `choice` | functions that a request offers; which of them an answer may or must call |
//! | `stream`, `chunks`, `response` | events of answers, objects and streams; the forms that several paths share |
//! | `params`, `records`, `files`, `ask` | parameters and their fields; answers that later requests can name; documents; queued requests |
//! | `keep`, `planner`, `answer`, `worker` | state on its way to disk; plans; tokens to events; the thread that runs the requests |
//! | `plain`, `chat`, `completions`, `responses`, `messages` | paths without an answer, and counters; the APIs |
//! | `auth`, `http` | access control; connections, their bytes and their paths |
//!
//! Invariants: when a client disconnects, its answer ends within a round; a slow client's answer ends before it holds
//! more than a few megabytes; a web page gets no answer unless `serve.allowed_origins` names it (`auth`).

mod answer;
mod ask;
mod auth;
mod calls;
mod chat;
mod choice;
mod chunks;
mod completions;
mod fields;
mod files;
mod http;
mod keep;
mod messages;
mod params;
mod plain;
mod planner;
mod prompt;
mod records;
mod refusal;
mod request;
mod response;
mod responses;
mod stream;
mod tools;
mod turns;
mod worker;

use std::ffi::OsString;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use tokio::sync::watch;

use crate::config::settings::{ServeConfig, Settings};
use crate::core::{Exit, now_ms};
use crate::engine::protocol::{ModelInfo, Token};
use crate::runtime::EngineChannels;
use crate::runtime::render::Renderer;
use crate::store::{Store, Unsaved};
use crate::text::TextModel;
use crate::text::grammar::Grammars;
use crate::text::schema::Checker;
use ask::{Ask, Prompt, Received, count, render, submit};
pub use auth::Key;
use auth::Owner;
use calls::Calls;
use chunks::{Head, MOST_ALTERNATIVES, reason};
use fields::{Fields, kind};
use keep::Keep;
pub use keep::open_cache;
use params::{Format, Params, format_of, most_tokens, response_format};
use plain::Metrics;
use planner::Plan;
use prompt::{Conversation, Thinking};
use records::{Record, Records};
use refusal::{Family, Refusal, Result};
use request::{blocking, fresh_id, leave_out, model, model_of, object, own_data, token_list};
use response::{Sent, Status};
use stream::{Choice, Collected, Event, Form, Item, LikelyToken, Listener, Notice, Usage, Whole, collect};
use tools::{Tools, custom_input};
use turns::{Call, Turn, content};
use worker::Worker;

const MCP: &str = "/mcp";
/// A header of Anthropic's clients.
const VERSION: &str = "anthropic-version";

pub struct Options {
    /// The store for the state of requests, separate from the terminal's.
    pub store: Arc<Store>,
    /// The terminal's store, for the documents of its library; `None`: the server offers no documents.
    pub library: Option<Arc<Store>>,
    pub system: Option<String>,
    pub text: TextModel,
    pub stop: Vec<Token>,
    pub engine: EngineChannels,
    /// Defaults for fields that a request omits.
    pub settings: Settings,
    /// Tokens between two kept states inside a long prompt.
    pub piece: usize,
    pub serve: ServeConfig,
    /// The key that a client must send; `None`: no key.
    pub key: Option<Key>,
    /// Another service with the same access control.
    pub mcp: Option<Mounted>,
    /// Program and first arguments that read untrusted data in a child process: schemas ([`crate::text::schema`]) and
    /// PDFs ([`crate::text::extract`]); normally this program.
    pub program: Vec<OsString>,
}

/// A service at `MCP` for the user's own data.
pub struct Mounted {
    pub router: axum::Router,
    /// Ends its open streams.
    pub end: Box<dyn FnOnce() + Send + Sync>,
}

#[derive(Clone, Debug)]
enum EngineIs {
    Loading { what: String, done: f64 },
    Ready(Box<ModelInfo>),
    Down { why: String, exit: Exit },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// Running answers finish; new requests are refused.
    Ending,
    /// Running answers stop at once.
    Stopping,
}

/// Ends a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<Phase>);

impl Stop {
    /// The first call lets running answers finish; the second stops them at once.
    pub fn stop(&self) {
        self.0.send_modify(|phase| *phase = if *phase == Phase::Serving { Phase::Ending } else { Phase::Stopping });
    }
}

struct Shared {
    options: Options,
    renderer: Renderer,
    waiting: AtomicUsize,
    /// `None`: the server has ended.
    asks: Sender<Option<Ask>>,
    engine: watch::Sender<EngineIs>,
    phase: watch::Sender<Phase>,
    metrics: Metrics,
    records: Records,
    /// The store of requests is damaged, and was moved aside.
    damaged: AtomicBool,
    grammars: OnceLock<Result<Grammars, String>>,
    /// Tries a schema before it is compiled.
    schemas: Checker,
    /// Seconds since the epoch.
    started: u64,
}

impl Shared {
    fn set_engine(&self, is: EngineIs) {
        let down = matches!(is, EngineIs::Down { .. });
        self.engine.send_replace(is);
        if down {
            Stop(self.phase.clone()).stop();
        }
    }

    fn grammars(&self) -> Result<&Grammars, String> {
        let made = self.grammars.get_or_init(|| Grammars::new(&self.renderer.model().tokenizer, &self.options.stop));
        made.as_ref().map_err(Clone::clone)
    }

    fn engine(&self) -> EngineIs {
        self.engine.borrow().clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entries of a setting that is a list.
fn listed(setting: &str) -> impl Iterator<Item = &str> {
    setting.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

fn date(seconds: i64) -> Option<String> {
    jiff::Timestamp::from_second(seconds).map(|at| at.to_string()).ok()
}

fn now_s() -> u64 {
    now_ms().unsigned_abs() / 1000
}

/// A server that has begun to load its model.
pub struct Server {
    shared: Arc<Shared>,
    mcp: Option<Mounted>,
    worker: JoinHandle<Result<(), Unsaved>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{why}")]
    Engine { why: String, exit: Exit },
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("state of the last requests is not kept: {0}")]
    Unsaved(Unsaved),
    #[error("internal error: the thread that feeds the engine has failed; start again")]
    Panicked,
}

impl Server {
    /// Starts the worker thread; fails if the system cannot.
    pub fn start(mut options: Options) -> std::io::Result<Server> {
        let (asks, inbox) = crossbeam_channel::unbounded();
        let keep = Keep::new(Arc::clone(&options.store))?;
        let mcp = options.mcp.take();
        // The worker alone receives events.
        let events = std::mem::replace(&mut options.engine.events, crossbeam_channel::never());
        let engine = EngineChannels { commands: options.engine.commands.clone(), events };
        options.system = options.system.filter(|s| !s.trim().is_empty());
        let shared = Arc::new(Shared {
            renderer: Renderer::new(options.text.clone()),
            waiting: AtomicUsize::new(0),
            asks,
            engine: watch::Sender::new(EngineIs::Loading { what: "starting".into(), done: 0.0 }),
            phase: watch::Sender::new(Phase::Serving),
            metrics: Metrics::default(),
            records: Records::new(Arc::clone(&options.store), Arc::downgrade(&keep.writer)),
            damaged: AtomicBool::new(false),
            grammars: OnceLock::new(),
            schemas: Checker::new(options.program.clone()),
            started: now_s(),
            options,
        });
        let of_worker = Arc::clone(&shared);
        // Requests in progress are not `Send`, so the worker is created on its thread.
        let run = move || Worker::run(of_worker, inbox, engine, keep);
        let worker = std::thread::Builder::new().name("server".into()).spawn(run)?;
        Ok(Server { shared, mcp, worker })
    }

    pub fn stop(&self) -> Stop {
        Stop(self.shared.phase.clone())
    }

    /// Answers requests until [`Stop`] ends the server, then saves the kept state.
    pub fn serve(self, listener: TcpListener) -> Result<(), ServeError> {
        let served = http::serve(&self.shared, listener, self.mcp);
        // A worker that is gone has failed.
        let _ = self.shared.asks.send(None);
        let saved = self.worker.join().map_err(|_| ServeError::Panicked)?;
        served?;
        if let EngineIs::Down { why, exit } = self.shared.engine() {
            return Err(ServeError::Engine { why, exit });
        }
        saved.map_err(ServeError::Unsaved)
    }
}
