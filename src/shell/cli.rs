//! The command line: what can be written, and plain structs of what was meant. Nothing here does anything.
//!
//! Here: options of a chat and of all commands. Subcommands are in `commands`, what was meant in `task`.

mod commands;
mod task;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, ValueEnum, ValueHint};
use toml::Value;

use super::failure::Failure;
pub use commands::{
    BenchArgs, BenchWhat, Command, CompletionsArgs, ConfigArgs, ConfigCommand, DoctorArgs, DraftArgs, DraftCommand,
    ExportArgs, FillArg, FormatArg, ImportArgs, LibraryArgs, LibraryCommand, LsArgs, ModelArgs, ModelCommand, NameArgs,
    PruneArgs, RmArgs, SearchArgs, TuningArgs,
};
pub use task::{Ask, Chat, Format, SessionChoice, Task};

const AFTER: &str = "\
Exit codes: 0 ok, 1 failure, 2 usage, 3 model not installed, 4 no usable GPU or memory, 5 context too long,
6 session in use elsewhere, 7 state or session unreadable, 74 disk, 130 stopped, 128+n signal.";

/// Chat with MiniCPM-SALA on your own machine: long documents, kept state, nothing read twice
#[derive(Clone, Debug, Parser)]
#[command(name = "sala-chat", version, after_help = AFTER, max_term_width = 100)]
pub struct Cli {
    /// Options that many commands understand.
    #[command(flatten)]
    pub global: Global,
    /// Options of a chat or a single question.
    #[command(flatten)]
    pub chat: ChatArgs,
    /// Something else than a chat.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Options that come before or after a command.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// Model: demo, auto, a folder, or synthetic:SHAPE for measurements
    #[arg(long, global = true, value_name = "MODEL", help_heading = "Model")]
    pub model: Option<String>,
    /// The built-in model
    #[arg(long, global = true, conflicts_with = "model", help_heading = "Model")]
    pub demo: bool,
    /// Where to compute
    #[arg(long, global = true, value_name = "DEVICE", help_heading = "Model")]
    pub device: Option<DeviceArg>,
    /// Index of the GPU
    #[arg(long, global = true, value_name = "N", help_heading = "Model")]
    pub gpu: Option<u32>,
    /// Context in tokens; 0 is as much as fits
    #[arg(long, global = true, value_name = "N", help_heading = "Model")]
    pub ctx: Option<u64>,
    /// Speculative decoding: on, off, auto, or a depth from 1 to 15
    #[arg(long, global = true, value_name = "MODE", help_heading = "Model")]
    pub spec: Option<String>,
    /// Draft head: auto, off, a folder, or a hub id
    #[arg(long, global = true, value_name = "HEAD", help_heading = "Model")]
    pub draft: Option<String>,
    /// Seed of the sampling; the same seed gives the same text
    #[arg(long, global = true, value_name = "N", help_heading = "Answer")]
    pub seed: Option<i64>,
    /// Preset to begin with: one of `/preset list`
    #[arg(long, global = true, value_name = "NAME", help_heading = "Answer")]
    pub preset: Option<String>,
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, global = true, value_name = "X", help_heading = "Answer")]
    pub temp: Option<f64>,
    /// Longest answer in tokens
    #[arg(long, global = true, value_name = "N", help_heading = "Answer")]
    pub max_tokens: Option<u64>,
    /// Thinking: on, off, auto; how thoughts are shown: show, hide
    #[arg(long, global = true, value_name = "HOW", help_heading = "Answer")]
    pub think: Option<ThinkArg>,
    /// One JSON object on standard output; errors too
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
    /// Nothing but the answer: no progress, no notes
    #[arg(short, long, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// More in the log file; twice for everything but message text
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,
    /// Settings file instead of the usual one
    #[arg(long, global = true, value_name = "FILE", env = "SALA_CHAT_CONFIG", hide_env_values = true, value_hint = ValueHint::FilePath, help_heading = "Places")]
    pub config: Option<PathBuf>,
    /// Keep sessions, state, logs and locks below this folder
    #[arg(long, global = true, value_name = "DIR", env = "SALA_CHAT_DATA_DIR", hide_env_values = true, value_hint = ValueHint::DirPath, help_heading = "Places")]
    pub data_dir: Option<PathBuf>,
}

/// `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceArg {
    /// GPU if there is one and the model needs it
    Auto,
    /// The CPU
    Cpu,
    /// An NVIDIA GPU
    Cuda,
}

/// `--think`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ThinkArg {
    /// Think before answering
    On,
    /// Answer at once
    Off,
    /// The model's habit
    Auto,
    /// Show thoughts
    Show,
    /// Do not show thoughts
    Hide,
}

/// Options of a chat or a single question.
#[derive(Clone, Debug, Default, Args)]
pub struct ChatArgs {
    /// Files, folders or globs to load first
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<String>,
    /// Answer this on standard output and end; standard input is added if it is not a terminal
    #[arg(short, long, value_name = "TEXT", help_heading = "Question")]
    pub prompt: Option<String>,
    /// Load this first (several times for several)
    #[arg(short, long = "file", value_name = "FILE", value_hint = ValueHint::AnyPath, help_heading = "Question")]
    pub files: Vec<String>,
    /// Events as JSON lines instead of text
    #[arg(long, conflicts_with = "json", requires = "prompt", help_heading = "Question")]
    pub jsonl: bool,
    /// The answer as the model wrote it, no markdown
    #[arg(long, requires = "prompt", help_heading = "Question")]
    pub raw: bool,
    /// Go on in a session; without a name: choose one
    #[arg(short, long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", help_heading = "Session")]
    pub resume: Option<String>,
    /// Go on in the last session
    #[arg(short = 'c', long = "continue", conflicts_with = "resume", help_heading = "Session")]
    pub continue_last: bool,
    /// Keep nothing
    #[arg(long, help_heading = "Session")]
    pub no_save: bool,
    /// Line by line, for screen readers and plain terminals
    #[arg(long, conflicts_with = "prompt", help_heading = "Screen")]
    pub plain: bool,
    /// No box-drawing characters
    #[arg(long, conflicts_with = "prompt", help_heading = "Screen")]
    pub ascii: bool,
    /// Stay on the terminal's first screen
    #[arg(long, conflicts_with = "prompt", help_heading = "Screen")]
    pub no_alt_screen: bool,
}

impl Cli {
    /// Settings given as options, for [`crate::config::load`].
    ///
    /// # Errors
    /// `--spec` with something it does not know.
    pub fn overrides(&self) -> Result<Vec<(&'static str, Value)>, Failure> {
        let g = &self.global;
        let text = |t: &str| Value::String(t.to_owned());
        let whole = |n: u64| Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
        let mut out = Vec::new();
        out.extend(g.model.as_deref().map(|m| ("model.source", text(m))));
        if g.demo {
            out.push(("model.source", text("demo")));
        }
        out.extend(g.device.map(|d| {
            let word = match d {
                DeviceArg::Auto => "auto",
                DeviceArg::Cpu => "cpu",
                DeviceArg::Cuda => "cuda",
            };
            ("model.device", text(word))
        }));
        out.extend(g.gpu.map(|n| ("model.gpu", whole(u64::from(n)))));
        out.extend(g.ctx.map(|n| ("model.max_context", whole(n))));
        match g.spec.as_deref() {
            None => {}
            Some(word @ ("on" | "off" | "auto")) => out.push(("speculation.mode", text(word))),
            Some(number) => match number.parse::<u64>() {
                Ok(depth @ 1..=15) => {
                    out.push(("speculation.mode", text("on")));
                    out.push(("speculation.depth", whole(depth)));
                }
                _ => {
                    return Err(Failure::usage(format!("--spec must be on, off, auto or 1 to 15 (got {number})")));
                }
            },
        }
        out.extend(g.draft.as_deref().map(|d| ("speculation.draft", text(d))));
        out.extend(g.preset.as_deref().map(|p| ("sampling.preset", text(p))));
        out.extend(g.seed.map(|n| ("sampling.seed", Value::Integer(n))));
        out.extend(g.temp.map(|t| ("sampling.temperature", Value::Float(t))));
        out.extend(g.max_tokens.map(|n| ("sampling.max_tokens", whole(n))));
        out.extend(g.think.map(|t| match t {
            ThinkArg::On => ("thinking.mode", text("on")),
            ThinkArg::Off => ("thinking.mode", text("off")),
            ThinkArg::Auto => ("thinking.mode", text("auto")),
            ThinkArg::Show => ("thinking.show", text("open")),
            ThinkArg::Hide => ("thinking.show", text("hide")),
        }));
        if self.chat.ascii {
            out.push(("ui.glyphs", text("ascii")));
        }
        if self.chat.no_alt_screen {
            out.push(("ui.alternate_screen", text("off")));
        }
        Ok(out)
    }

    /// What was meant. `resume_last` is the setting for a chat that names no session.
    ///
    /// # Errors
    /// Options that do not go together.
    pub fn task(self, resume_last: bool) -> Result<Task, Failure> {
        let chat = self.chat;
        if let Some(command) = self.command {
            let mixed = !chat.paths.is_empty()
                || !chat.files.is_empty()
                || chat.prompt.is_some()
                || chat.resume.is_some()
                || chat.continue_last
                || chat.no_save
                || chat.plain
                || chat.ascii
                || chat.no_alt_screen;
            return if mixed {
                Err(Failure::usage("a command takes no chat options or paths. A file of that name: ./NAME"))
            } else {
                Ok(Task::Command(command))
            };
        }
        let session = match chat.resume {
            Some(name) if name.is_empty() => SessionChoice::Pick,
            Some(name) => SessionChoice::Named(name),
            None if chat.continue_last => SessionChoice::Last,
            None => SessionChoice::New,
        };
        let save = !chat.no_save;
        let paths: Vec<String> = chat.paths.into_iter().chain(chat.files).collect();
        match chat.prompt {
            Some(_) if session == SessionChoice::Pick => {
                Err(Failure::usage("-r needs a session name with -p. sala-chat ls lists them"))
            }
            Some(prompt) => {
                let format = match (self.global.json, chat.jsonl, chat.raw) {
                    (true, _, _) => Format::Json,
                    (_, true, _) => Format::JsonLines,
                    (_, _, true) => Format::Raw,
                    _ => Format::Text,
                };
                Ok(Task::Ask(Ask { prompt, files: paths, session, save, format }))
            }
            None if self.global.json => Err(Failure::usage("--json needs a question (-p) or a command")),
            None => {
                let session = if resume_last && session == SessionChoice::New { SessionChoice::Last } else { session };
                Ok(Task::Chat(Chat { paths, session, save, plain: chat.plain }))
            }
        }
    }
}

#[cfg(test)]
mod tests;
