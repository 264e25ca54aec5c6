//! A runtime between a scripted interface and an engine, for tests. Waits for notices with a deadline, never for time.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod closing;
pub mod fake_engine;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use fake_engine::{Fake, Script};
use sala_chat::config::settings::{Config, LoadConfig, NewFiles, SaveStates};
use sala_chat::core::transcript::{Message, Role};
use sala_chat::engine::protocol::Token;
use sala_chat::model::{DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};
use sala_chat::runtime::protocol::{Activity, Level, LoadOptions, Notice, Request, SaveState, SessionView};
use sala_chat::runtime::{self, Attendance, EngineChannels, Input, Opening, Options, Runtime, Settings};
use sala_chat::store::{Disk, Limits, RealDisk, Store};
use sala_chat::text::sources::SourceOptions;
use sala_chat::text::{Before, TextModel};

/// Nothing a test waits for takes longer.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// A tokenizer with the released model's steps; see `tests/tokenizers/make.py`.
pub const SENTENCEPIECE: &str = include_str!("../tokenizers/pieces.json");

thread_local! {
    /// The tokenizer of this test's text models.
    static TOKENIZER: std::cell::Cell<&'static str> = const { std::cell::Cell::new(DEMO_TOKENIZER) };
}

/// Runs a test with the tokenizer that has the released model's steps.
pub fn with_sentencepiece(test: impl FnOnce()) {
    TOKENIZER.set(SENTENCEPIECE);
    test();
    TOKENIZER.set(DEMO_TOKENIZER);
}

/// Each of these functions is a test with the built-in model's tokenizer, and one with the released model's steps.
#[allow(unused_macros)]
macro_rules! with_both_tokenizers {
    ($($test:ident),* $(,)?) => {
        mod byte_level {
            $(#[test] fn $test() { super::$test(); })*
        }
        mod sentencepiece {
            $(#[test] fn $test() { super::support::with_sentencepiece(super::$test); })*
        }
    };
}
#[allow(unused_imports)]
pub(crate) use with_both_tokenizers;

/// The built-in model's text side, or its template with the other tokenizer; with another template if given.
pub fn text_model(template: Option<&str>) -> TextModel {
    let (tokenizer, config) = (TOKENIZER.get().as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes());
    TextModel::from_bytes(tokenizer, config, None, template.map(str::as_bytes)).unwrap()
}

/// Tokens of a piece of a document.
pub const PIECE: usize = 1_024;

/// Opens a data directory with room for everything.
pub fn store(dir: &Path) -> Arc<Store> {
    store_on(dir, Arc::new(RealDisk))
}

fn store_on(dir: &Path, disk: Arc<dyn Disk>) -> Arc<Store> {
    let limits = Limits { min_free_bytes: 0, ..Limits::default() };
    Arc::new(Store::open(dir, disk, limits).unwrap())
}

/// How to build a runtime.
pub struct Setup {
    pub text: TextModel,
    pub opening: Opening,
    pub attendance: Attendance,
    pub input: Input,
    pub settings: Settings,
    pub system: Option<String>,
    pub context_limit: u64,
    pub fingerprint: String,
    pub gate: Option<Receiver<()>>,
    pub late: bool,
    pub never: bool,
    pub script: Script,
    pub load: LoadConfig,
    pub new_files: NewFiles,
    pub sequences: u32,
    pub room: u32,
    pub model: &'static str,
    pub titles: bool,
    pub save_state: SaveStates,
    pub disk: Arc<dyn Disk>,
    pub seeds: bool,
    /// `--no-save`: with the state of the saved sessions of this data directory.
    pub discard: bool,
    pub kept: Option<Arc<Store>>,
    /// Tokens between two checkpoints inside a document.
    pub piece: usize,
    /// Sequences work side by side; these wait at the gate.
    pub side_by_side: Option<&'static [u32]>,
}

impl Default for Setup {
    fn default() -> Self {
        let text = text_model(None);
        Setup {
            script: digest_answers(text.clone()),
            text,
            opening: Opening::New,
            attendance: Attendance::Present,
            input: Input::Screen,
            settings: Settings::default(),
            system: None,
            context_limit: 100_000,
            fingerprint: "fake-1".into(),
            gate: None,
            late: false,
            never: false,
            load: LoadConfig::default(),
            sequences: 16,
            room: 16,
            model: "fake",
            titles: false,
            save_state: SaveStates::Turn,
            disk: Arc::new(RealDisk),
            seeds: false,
            discard: false,
            kept: None,
            piece: PIECE,
            side_by_side: None,
            new_files: NewFiles::Ask,
        }
    }
}

/// How a runtime is opened, on whichever engine.
pub struct How {
    pub text: TextModel,
    pub opening: Opening,
    pub attendance: Attendance,
    pub input: Input,
    pub settings: Settings,
    pub system: Option<String>,
    pub load: LoadConfig,
    pub new_files: NewFiles,
    pub titles: bool,
    pub save_state: SaveStates,
    pub disk: Arc<dyn Disk>,
    pub discard: bool,
    pub kept: Option<Arc<Store>>,
    pub piece: usize,
}

impl Default for How {
    fn default() -> Self {
        How {
            text: text_model(None),
            opening: Opening::New,
            attendance: Attendance::Present,
            input: Input::Screen,
            settings: Settings::default(),
            system: None,
            load: LoadConfig::default(),
            new_files: NewFiles::Ask,
            titles: false,
            save_state: SaveStates::Turn,
            disk: Arc::new(RealDisk),
            discard: false,
            kept: None,
            piece: PIECE,
        }
    }
}

/// Answers that name their state: a wrong state gives another answer.
pub fn digest_answers(text: TextModel) -> Script {
    Box::new(move |hash, tokens| {
        let answer = format!("state {} after {} tokens", &hash[..8], tokens.len());
        text.tokenizer.encode_after(&answer, Before::Text).unwrap()
    })
}

/// The same answer each time, special tokens as literals.
pub fn always(text: TextModel, answer: &str) -> Script {
    let tokens = text.tokenizer.encode_after(answer, Before::Text).unwrap();
    Box::new(move |_, _| tokens.clone())
}

/// The usual answers, and a title on request.
pub fn titling(text: &TextModel) -> Script {
    let (text, mut answers) = (text.clone(), digest_answers(text.clone()));
    Box::new(move |hash, tokens| match text.tokenizer.spell(tokens, Before::Edge).contains("Write a title") {
        true => text.tokenizer.encode_after("\n**Title: The bridge at Arvel.**\nmore", Before::Text).unwrap(),
        false => answers(hash, tokens),
    })
}

/// The titles of all sessions, as the list shows them, the last changed first.
pub fn titles(t: &mut Chat) -> Vec<String> {
    t.send(Request::Sessions);
    t.wait("the list", |n| match n {
        Notice::Sessions(rows) => Some(rows.iter().map(|r| r.title.clone()).collect()),
        _ => None,
    })
}

/// A runtime that is talked to.
pub struct Chat {
    pub runtime: Runtime,
    pub text: TextModel,
    pub log: Option<Receiver<(Vec<Token>, Vec<Token>)>>,
    /// All notices so far.
    pub seen: Vec<Notice>,
    engine: Option<std::thread::JoinHandle<()>>,
}

impl Chat {
    /// With the scripted engine.
    pub fn new(dir: &Path, setup: Setup) -> Chat {
        let fake = fake_engine::spawn(fake_engine::Options {
            script: setup.script,
            context_limit: setup.context_limit,
            fingerprint: setup.fingerprint,
            gate: setup.gate,
            late: setup.late,
            never: setup.never,
            sequences: setup.sequences,
            room: setup.room,
            name: setup.model,
            seeds: setup.seeds.then(|| setup.text.clone()),
            side_by_side: setup.side_by_side,
        });
        let Fake { commands, events, log, thread } = fake;
        let how = How {
            text: setup.text,
            opening: setup.opening,
            attendance: setup.attendance,
            input: setup.input,
            settings: setup.settings,
            system: setup.system,
            load: setup.load,
            new_files: setup.new_files,
            titles: setup.titles,
            save_state: setup.save_state,
            disk: setup.disk,
            discard: setup.discard,
            kept: setup.kept,
            piece: setup.piece,
        };
        let mut chat = Chat::with_engine(dir, EngineChannels { commands, events }, how);
        chat.log = Some(log);
        chat.engine = Some(thread);
        chat
    }

    /// With any engine.
    pub fn with_engine(dir: &Path, engine: EngineChannels, how: How) -> Chat {
        let How { text, opening, attendance, input, settings, system, load, titles, save_state, disk, .. } = how;
        let (discard, kept, piece, new_files) = (how.discard, how.kept, how.piece, how.new_files);
        let mut config = Config { load, ..Config::default() };
        (config.model.reserve_answer, config.sessions.titles) = (64, titles);
        config.follow.new = new_files;
        let mut sources = SourceOptions::new(&config.load);
        sources.base = dir.to_owned();
        let stop = text.tokenizer.stop_ids(&[]);
        let options = Options {
            store: store_on(&dir.join("data"), disk),
            discard,
            kept,
            settings,
            system,
            opening,
            attendance,
            input,
            config,
            sources,
            save_state,
            presets: Some(dir.join("presets")),
            overrides: Vec::new(),
            device_notes: runtime::DeviceNotes::All,
        };
        let engine = runtime::EngineSetup { channels: engine, text: text.clone(), stop, piece };
        let runtime = runtime::spawn(engine, options).unwrap();
        Chat { runtime, text, log: None, seen: Vec::new(), engine: None }
    }

    pub fn send(&self, request: Request) {
        self.runtime.requests.send(request).unwrap();
    }

    /// The next notice that `pick` wants; all before it are remembered.
    pub fn wait<T>(&mut self, what: &str, mut pick: impl FnMut(&Notice) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let notice = match self.runtime.notices.recv_deadline(deadline) {
                Ok(n) => n,
                Err(e) => panic!(
                    "{e} while waiting for {what}; last: {:#?}",
                    self.seen.iter().rev().take(8).collect::<Vec<_>>()
                ),
            };
            let picked = pick(&notice);
            self.seen.push(notice);
            if let Some(t) = picked {
                return t;
            }
        }
    }

    /// Waits until the runtime has nothing to do.
    pub fn idle(&mut self) {
        self.wait("idle", |n| matches!(n, Notice::Activity(Activity::Idle)).then_some(()));
    }

    /// Does something and waits for the note it ends with.
    pub fn note(&mut self, request: Request) -> String {
        self.send(request);
        self.wait("a note", |n| match n {
            Notice::Note(_, text) => Some(text.clone()),
            _ => None,
        })
    }

    /// A note that contains `part`.
    pub fn note_with(&mut self, part: &str) -> String {
        self.wait(part, |n| match n {
            Notice::Note(_, text) if text.contains(part) => Some(text.clone()),
            _ => None,
        })
    }

    /// Asks and returns the finished answer, when the runtime is idle again.
    pub fn ask(&mut self, question: &str) -> Message {
        self.send(Request::Ask(question.into()));
        let answer = self.finished();
        self.sync();
        answer
    }

    /// The next title.
    pub fn titled(&mut self) -> String {
        self.wait("a title", |n| if let Notice::Titled(title) = n { Some(title.clone()) } else { None })
    }

    /// The next finished answer.
    pub fn finished(&mut self) -> Message {
        self.wait("an answer", |n| match n {
            Notice::Finished(m) if m.role == Role::Assistant => Some(m.clone()),
            Notice::Note(Level::Error, e) => panic!("{e}"),
            _ => None,
        })
    }

    /// Waits until all work is done and saved: requests a page, which is sent in order.
    pub fn sync(&mut self) {
        self.send(Request::EditOpen(Some(0)));
        self.note_with("No message #0");
    }

    pub fn load(&mut self, path: &str) -> String {
        self.send(Request::Load { paths: vec![path.into()], options: LoadOptions::default() });
        self.wait("the end of a load", |n| match n {
            Notice::Note(_, text) if text.contains("tokens in") || text.contains("from library") => Some(text.clone()),
            Notice::Note(Level::Warn | Level::Error, text) => Some(text.clone()),
            _ => None,
        })
    }

    /// The last session view, after asking for nothing.
    pub fn view(&self) -> SessionView {
        let mut view = None;
        for notice in &self.seen {
            match (notice, &mut view) {
                (Notice::Session(whole), _) => view = Some(whole.clone()),
                (Notice::Named { name, opened }, Some(view)) => {
                    (view.name, view.opened) = (name.clone(), opened.clone());
                }
                (Notice::Tree(tree), Some(view)) => view.tree = tree.clone(),
                _ => {}
            }
        }
        view.unwrap()
    }

    pub fn name(&self) -> String {
        self.view().name
    }

    /// Waits until state and text are on disk.
    pub fn on_disk(&mut self) {
        if !matches!(self.saved(), SaveState::Saved(_)) {
            self.wait("saved", |n| matches!(n, Notice::Save(SaveState::Saved(_))).then_some(()));
        }
    }

    pub fn saved(&self) -> SaveState {
        let save = |n: &Notice| {
            if let Notice::Save(s) = n { Some(s.clone()) } else { None }
        };
        self.seen.iter().rev().find_map(save).unwrap_or_default()
    }

    /// Tokens the scripted engine read, and generated, since the last call.
    pub fn work(&self) -> (usize, usize) {
        let jobs: Vec<_> = self.log.as_ref().unwrap().try_iter().collect();
        (jobs.iter().map(|j| j.0.len()).sum(), jobs.iter().map(|j| j.1.len()).sum())
    }

    /// Text of the tokens the scripted engine was given in each job since the last call.
    pub fn given(&self) -> Vec<String> {
        let jobs = self.log.as_ref().unwrap().try_iter();
        jobs.map(|j| self.text.tokenizer.spell(&j.0, Before::Edge)).collect()
    }

    pub fn quit(mut self) -> Option<String> {
        self.send(Request::Quit);
        let farewell = self.wait("goodbye", |n| match n {
            Notice::Bye { farewell, .. } => Some(farewell.clone()),
            _ => None,
        });
        self.runtime.thread.join().unwrap();
        if let Some(engine) = self.engine {
            engine.join().unwrap();
        }
        farewell
    }
}
