//! The table of settings. A row is a field: its doc comment is the help, its type that of the program, and what follows the
//! `=` says what values are allowed, what is built in, and which ways set it besides the file and its variable.
//!
//! A new setting is a new row here and its use; its documentation is written by the test
//! `the_example_file_is_the_table_and_parses_to_the_built_in_values`.

use std::collections::BTreeMap;

use toml::Value;

use super::row::Kind::{Bool, Float, Int, List, Named, Text, Word, WordOrInt};
use super::row::{Flag, Kind, MANY, Owner, Way, int, settings};
use super::value::{Field, Size, Time};
use super::words::{
    CODE_THEMES, ClipboardMethod, Glyphs, NewFiles, SaveStates, Switch, Theme, ThinkMode, ThoughtView, UnknownFields,
};
use crate::engine::protocol::{self, DeviceChoice, Precision, SpecMode, WeightsChoice};

#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// `section.name`.
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    /// How the command line sets it.
    pub flags: &'static [Flag],
    /// How `/set` knows it; `None` for a setting that holds for the whole program.
    pub session: Option<Way>,
    pub preset: bool,
    pub get: fn(&Config) -> Value,
    /// Puts a value that `accept` gave into the settings; false if the field cannot hold it.
    pub set: fn(&mut Config, &Value) -> bool,
}

impl Row {
    pub const fn flags(mut self, flags: &'static [Flag]) -> Row {
        self.flags = flags;
        self
    }

    /// A setting of a session, which presets hold too.
    pub const fn session(mut self, name: &'static str, aliases: &'static [&'static str], owner: Owner) -> Row {
        self.session = Some(Way { name, aliases, owner });
        self.preset = true;
        self
    }

    pub const fn not_in_presets(mut self) -> Row {
        self.preset = false;
        self
    }

    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    pub fn key(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, key)| key)
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        self.name == other.name
    }
}

const fn row(
    name: &'static str,
    help: &'static str,
    kind: Kind,
    get: fn(&Config) -> Value,
    set: fn(&mut Config, &Value) -> bool,
) -> Row {
    // A doc comment begins with a blank.
    let help = help.split_at(1).1;
    Row { name, kind, help, flags: &[], session: None, preset: false, get, set }
}

fn built_in<F: Field>(kind: Kind) -> F {
    // A test takes every row's built-in value through its field.
    F::from_value(&kind.default()).unwrap_or_else(|| unreachable!("{kind:?} and its field agree"))
}

fn put<F: Field>(field: &mut F, value: &Value) -> bool {
    F::from_value(value).map(|v| *field = v).is_some()
}

macro_rules! kept {
    ($($path:ident).+) => {
        Owner::Session(|s| s.$($path).+.to_value(), |s, value| put(&mut s.$($path).+, value))
    };
}

pub const WEIGHTS: &[&str] = &["auto", "bf16", "8bit", "6bit", "5bit", "4bit"];
const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];
// As the table has numbers.
const MOST_TOP_K: i64 = protocol::TOP_LOGITS as i64;
const TOKENS: i64 = protocol::MOST_TOKENS as i64;
const MOST_DEPTH: i64 = protocol::MAX_DEPTH as i64;
const SEQUENCES: i64 = protocol::MAX_SEQUENCES as i64;

settings! {
    /// Which model, where
    model: ModelConfig {
        /// model: auto, demo, a folder, or synthetic:SHAPE for measurements
        source: String = Text("auto"),
            flags(&[Flag::Takes("model", "MODEL"), Flag::Means("demo", "demo", "the built-in model")]);
        /// what `sala-chat model download` fetches
        repo: String = Text("openbmb/MiniCPM-SALA");
        /// pin a commit for repeatability
        revision: String = Text("main");
        /// device: auto, cpu, cuda
        device: DeviceChoice = Word("auto", &["auto", "cpu", "cuda"]), flags(&[Flag::Takes("device", "DEVICE")]);
        /// index of the GPU
        gpu: u32 = int(0, 0, 255), flags(&[Flag::Takes("gpu", "N")]);
        /// context in tokens; 0: as much as fits
        max_context: u64 = int(0, 0, TOKENS), flags(&[Flag::Takes("ctx", "N")]);
        /// limit of GPU memory, for example 8GiB; all: all free memory
        max_gpu_memory: Size = Kind::Size, flags(&[Flag::Takes("gpu-memory", "SIZE")]);
        /// weights: auto (the best that leaves room for the context), bf16, 8bit, 6bit, 5bit, 4bit
        weights: WeightsChoice = Word("auto", WEIGHTS), flags(&[Flag::Takes("weights", "FORM")]);
        /// number type for reading long texts: bf16, or fp8 (faster, less exact; H100, H200)
        prefill: Precision = Word("bf16", &["bf16", "fp8"]), flags(&[Flag::Takes("prefill", "TYPE")]);
        /// tokens reserved for the answer
        reserve_answer: u64 = int(4096, 0, TOKENS);
    }

    /// What answers: a server in place of this machine, or a model that is parked when idle
    engine: EngineConfig {
        /// chat server, for example http://HOST:PORT/v1; here: load the model in this process
        url: String = Text(""), flags(&[Flag::Takes("engine", "URL")]);
        /// model name on the server; empty: its only model
        model: String = Text("");
        /// environment variable with the server's key
        key_env: String = Text("OPENAI_API_KEY");
        /// file with the server's key, instead of the variable
        key_file: String = Text("");
        /// context of the server's model in tokens, if it does not report one; 0: unknown
        context: u64 = int(0, 0, TOKENS);
        /// seconds to wait for the first word of an answer
        wait_s: u64 = int(900, 1, 86_400);
        /// seconds without new text in the middle of an answer
        stall_s: u64 = int(60, 1, 86_400);
        /// seconds that an answer may take from its first word to its last
        answer_s: u64 = int(7200, 1, 604_800);
        /// park the model (/park) after this time without work: off, or for example 20m
        park_after: Time = Kind::Time;
    }

    /// Speculative decoding
    speculation: SpeculationConfig {
        /// speculative decoding: auto drafts where it pays; on, off, or a depth
        mode: SpecMode = WordOrInt(&["auto", "on", "off"], 1, MOST_DEPTH), flags(&[Flag::Takes("spec", "MODE")]),
            session("spec", &[], kept!(spec)), not_in_presets();
        /// drafted tokens with mode = "on"; 0 lets the program choose
        depth: u8 = int(0, 0, MOST_DEPTH);
        /// draft head: auto, off, a folder, or a hub id
        draft: String = Text("auto"), flags(&[Flag::Takes("draft", "HEAD")]);
    }

    /// How tokens are chosen
    sampling: SamplingConfig {
        /// preset at the start (see /preset list); other settings override it
        preset: String = Text("default"), flags(&[Flag::Takes("preset", "NAME")]);
        /// temperature; 0 always picks the likeliest token
        temperature: f64 = Float(0.7, 0.0, protocol::MOST_TEMPERATURE), flags(&[Flag::Takes("temp", "X")]),
            session("temperature", &["temp"], kept!(sampling.temperature));
        /// nucleus sampling: total probability to keep
        top_p: f64 = Float(0.95, 0.0, 1.0), session("top_p", &[], kept!(sampling.top_p));
        /// number of likeliest tokens to keep; 0 keeps all
        top_k: u32 = int(0, 0, MOST_TOP_K), session("top_k", &[], kept!(sampling.top_k));
        /// drop tokens below this share of the likeliest one
        min_p: f64 = Float(0.0, 0.0, 1.0), session("min_p", &[], kept!(sampling.min_p));
        /// penalty for tokens in the prompt and the answer; 1: off
        repeat_penalty: f64 = Float(1.0, 0.1, 10.0), session("repeat_penalty", &[], kept!(sampling.repeat_penalty));
        /// penalty for tokens already in the answer; 0: off
        presence_penalty: f64 = Float(0.0, -10.0, 10.0),
            session("presence_penalty", &[], kept!(sampling.presence_penalty));
        /// penalty for each repetition of a token in the answer; 0: off
        frequency_penalty: f64 = Float(0.0, -10.0, 10.0),
            session("frequency_penalty", &[], kept!(sampling.frequency_penalty));
        /// seed of the sampling; -1: a new one for each answer, shown under it
        seed: i64 = Int(-1, -1, MANY, &[("auto", -1), ("random", -1)]), flags(&[Flag::Takes("seed", "N")]),
            session("seed", &[], kept!(seed));
        /// longest answer in tokens
        max_tokens: u64 = int(8192, 1, TOKENS), flags(&[Flag::Takes("max-tokens", "N")]),
            session("max_tokens", &[], kept!(max_tokens));
        /// stop answers stuck repeating
        stop_loops: bool = Bool(true), session("stop_loops", &[], kept!(stop_loops));
    }

    /// Thoughts
    thinking: ThinkingConfig {
        /// let the model think first; auto: the model's default, on: always, off: never
        mode: ThinkMode = Word("auto", ThinkMode::WORDS), flags(&[Flag::Takes("think", "HOW")]),
            session("think", &[], kept!(think));
        /// thinking limit in tokens; 0: no limit
        budget: u64 = int(0, 0, TOKENS), session("thinking_budget", &[], kept!(thinking_budget));
        /// how thoughts are shown: open, fold, hide
        show: ThoughtView = Word("fold", ThoughtView::WORDS), session("thoughts", &[], Owner::Screen);
    }

    /// What is kept
    sessions: SessionsConfig {
        /// when to save model state: turn, exit, never; text is saved at once
        save_state: SaveStates = Word("turn", SaveStates::WORDS);
        /// start in the last session
        resume_last: bool = Bool(false);
        /// at the start, offer the last session of this folder
        offer_last: bool = Bool(true);
        /// tokens between checkpoints inside long documents
        checkpoint_every: u64 = int(32768, 1024, TOKENS);
        /// number of recent turns whose state is kept
        keep_turns: u64 = int(16, 1, 1 << 20);
        /// disk space for state, GiB; the oldest state is dropped first, but never text or marks
        max_state_gib: f64 = Float(40.0, 0.0, 1e6);
        /// space left free on the disk, GiB
        min_free_gib: f64 = Float(5.0, 0.0, 1e6);
        /// let the model write titles in the background (not the built-in model or a server)
        titles: bool = Bool(true);
        /// list pinned sessions first (/pin)
        pinned_first: bool = Bool(true);
        /// days before the trash is emptied
        trash_days: u64 = int(7, 0, 36500);
    }

    /// Reading documents
    load: LoadConfig {
        /// ask before loading this many tokens
        confirm_tokens: u64 = int(50_000, 0, MANY);
        /// ask before loading this many files
        confirm_files: u64 = int(20, 0, MANY);
        /// largest file to load, MiB
        max_file_mib: u64 = int(512, 1, 1 << 20);
        /// follow links inside folders
        follow_symlinks: bool = Bool(false);
        extra {
            /// Extension to command; `{in}` is the path, standard output the text.
            converters: BTreeMap<String, String>;
        }
    }

    /// Files and folders that are followed (/follow)
    follow: FollowConfig {
        /// new files in a folder: ask before the next question, take them, or ignore them
        new: NewFiles = Word("ask", NewFiles::WORDS);
        /// share of updates above which followed files are read anew in idle time (/refresh)
        rebase_share: f64 = Float(0.25, 0.0, 1e6);
    }

    /// The server for other programs: sala-chat serve
    serve: ServeConfig {
        /// address and port; any address but loopback needs a key
        listen: String = Text("127.0.0.1:8181");
        /// file with the key that clients must send; empty: created when needed
        key_file: String = Text("");
        /// queue length; extra requests get a retry error
        queue: usize = int(64, 1, 4096);
        /// requests processed at the same time; others wait
        side_by_side: usize = int(8, 1, SEQUENCES);
        /// unknown fields and tools of a request: ignore (and name them), or refuse
        unknown_fields: UnknownFields = Word("ignore", UnknownFields::WORDS);
        /// other names of the model, separated by commas; * matches any text
        model_aliases: String = List("");
        /// web pages that may use the server, separated by commas, for example http://localhost:3000
        allowed_origins: String = List("");
        /// disk space for the state of requests, GiB
        max_state_gib: f64 = Float(20.0, 0.0, 1e6);
    }

    /// Agents: sala-chat mcp, and /mcp of sala-chat serve
    mcp: McpConfig {
        /// folders that add_document may read, separated by commas; empty: the working folder
        roots: String = List("");
    }

    /// The screen
    ui: UiConfig {
        /// colours: auto, dark, light, plain, a name from the themes folder, or a path
        theme: String = Named("auto", Theme::WORDS), session("theme", &[], Owner::Screen);
        /// colours of code: auto, a name of /set code_theme, or a .tmTheme file
        code_theme: String = Named("auto", CODE_THEMES), session("code_theme", &[], Owner::Screen);
        /// use the terminal's alternate screen; auto: off inside Zellij
        alternate_screen: Switch = Word("auto", Switch::WORDS),
            flags(&[Flag::Means("no-alt-screen", "off", "stay on the terminal's first screen")]);
        /// scroll with the wheel; Shift-drag selects text
        mouse: bool = Bool(false);
        /// characters of frames: auto, unicode, ascii
        glyphs: Glyphs = Word("auto", Glyphs::WORDS),
            flags(&[Flag::Means("ascii", "ascii", "no box-drawing characters")]);
        /// side panel; auto: from 120 columns
        panel: Switch = Word("auto", Switch::WORDS);
        /// j, k, g and G move in lists and among selected messages
        vim_keys: bool = Bool(false);
        /// text width in columns
        max_width: u16 = int(110, 40, 1000);
        /// show the documents and lines behind each answer
        look: bool = Bool(true), session("look", &[], Owner::Screen);
        /// fold pastes longer than this
        paste_fold_chars: usize = int(800, 80, 1 << 20);
        /// fold pastes with more lines than this
        paste_fold_lines: usize = int(10, 2, 1 << 20);
    }

    /// Copying
    clipboard: ClipboardConfig {
        /// how text is copied: auto, osc52, file
        method: ClipboardMethod = Word("auto", ClipboardMethod::WORDS);
    }

    /// The log file
    log: LogConfig {
        /// off, error, warn, info, debug, trace; message text only at trace
        level: String = Word("info", LEVELS);
        /// one file a day
        keep_files: usize = int(5, 1, 1000);
    }
}

pub struct Open {
    pub name: &'static str,
    pub help: &'static str,
    /// Lines for the example file.
    pub example: &'static str,
    pub get: fn(&Config) -> &BTreeMap<String, String>,
    pub entries: fn(&mut Config) -> &mut BTreeMap<String, String>,
}

pub const OPEN_TABLES: &[Open] = &[
    Open {
        name: "load.converters",
        help: "commands that print a document's text; {in} is its path; run without a shell. PDF needs none",
        example: "docx = \"pandoc --to plain {in}\"\n# pdf  = \"pdftotext -layout {in} -\"",
        get: |config| &config.load.converters,
        entries: |config| &mut config.load.converters,
    },
    Open {
        name: "keys",
        help: "key to action, see /keys",
        example: "\"ctrl-o\" = \"panel\"",
        get: |config| &config.keys,
        entries: |config| &mut config.keys,
    },
];

/// The table with free keys that a name belongs to, and its key there.
pub fn find_open(name: &str) -> Option<(&'static Open, &str)> {
    OPEN_TABLES.iter().find_map(|open| Some((open, name.strip_prefix(open.name)?.strip_prefix('.')?)))
}

pub fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|r| r.name == name)
}

/// The setting meant by a full name, by its name in `/set`, or by its last part if only one setting ends so (`temperature`).
pub fn find_short(name: &str) -> Option<&'static Row> {
    find(name).or_else(|| {
        let mut matches = ROWS.iter().filter(|r| r.key() == name);
        match (matches.next(), matches.next()) {
            (Some(row), None) => Some(row),
            _ => session_row(name),
        }
    })
}

/// The setting of a session that a name means: its name in `/set`, another name of it, or its full name. `-` counts as `_`.
pub fn session_row(name: &str) -> Option<&'static Row> {
    let name = name.trim().replace('-', "_");
    session_rows()
        .find(|(row, way)| way.name == name || way.aliases.contains(&name.as_str()) || row.name == name)
        .map(|(row, _)| row)
}

/// The settings that `/set` changes.
pub fn session_rows() -> impl Iterator<Item = (&'static Row, &'static Way)> {
    ROWS.iter().filter_map(|row| Some((row, row.session.as_ref()?)))
}

/// The settings that presets hold.
pub fn preset_rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(|row| row.preset)
}
