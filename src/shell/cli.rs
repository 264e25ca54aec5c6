//! The command line: what can be written, and plain structs of what was meant. Nothing here does anything.

mod task;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use toml::Value;

use super::failure::Failure;
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
    #[arg(
        long,
        conflicts_with = "json",
        requires = "prompt",
        help_heading = "Question"
    )]
    pub jsonl: bool,
    /// The answer as the model wrote it, no markdown
    #[arg(long, requires = "prompt", help_heading = "Question")]
    pub raw: bool,
    /// Go on in a session; without a name: choose one
    #[arg(short, long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", help_heading = "Session")]
    pub resume: Option<String>,
    /// Go on in the last session
    #[arg(
        short = 'c',
        long = "continue",
        conflicts_with = "resume",
        help_heading = "Session"
    )]
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

/// Something else than a chat.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// List sessions
    Ls(LsArgs),
    /// Print a session
    Show(NameArgs),
    /// Move sessions to the trash
    Rm(RmArgs),
    /// Search all sessions
    Search(SearchArgs),
    /// Write a session to a file
    Export(ExportArgs),
    /// Read sessions from an exported file
    Import(ImportArgs),
    /// Free disk space; never touches text
    Prune(PruneArgs),
    /// Documents whose state is kept
    Library(LibraryArgs),
    /// Measure speed
    Bench(BenchArgs),
    /// Check this computer and this program
    Doctor(DoctorArgs),
    /// Tools for training a draft head
    Draft(DraftArgs),
    /// Download and check the model
    Model(ModelArgs),
    /// See and change settings
    Config(ConfigArgs),
    /// Completions for a shell
    Completions(CompletionsArgs),
}

/// `ls`.
#[derive(Clone, Debug, Args)]
pub struct LsArgs {
    /// With the disk space that each session alone needs
    #[arg(long)]
    pub sizes: bool,
}

/// `show`.
#[derive(Clone, Debug, Args)]
pub struct NameArgs {
    /// Session name, id, or last
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// `rm`.
#[derive(Clone, Debug, Args)]
pub struct RmArgs {
    /// Session names
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// `search`.
#[derive(Clone, Debug, Args)]
pub struct SearchArgs {
    /// Words to find
    #[arg(value_name = "TEXT", required = true)]
    pub text: Vec<String>,
}

/// `--format` of `export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// Markdown
    Md,
    /// JSON that can be imported
    Json,
    /// Plain text
    Txt,
}

/// `export`.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// Session name, id, or last
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Where to; - is standard output
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// By the file's extension if not given
    #[arg(long)]
    pub format: Option<FormatArg>,
    /// All branches
    #[arg(long)]
    pub tree: bool,
    /// With model state: resumes on another computer with the same model
    #[arg(long)]
    pub with_state: bool,
    /// Overwrite
    #[arg(long)]
    pub force: bool,
}

/// `import`.
#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// The exported file
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

/// `prune`.
#[derive(Clone, Debug, Args)]
pub struct PruneArgs {
    /// Drop all kept model state, also of the last turns
    #[arg(long)]
    pub state: bool,
    /// With --state: of every session and the library. Without: empty the trash too
    #[arg(long)]
    pub all: bool,
    /// Only say what would go
    #[arg(long)]
    pub dry_run: bool,
}

/// `library`.
#[derive(Clone, Debug, Args)]
pub struct LibraryArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: LibraryCommand,
}

/// Actions of `library`.
#[derive(Clone, Debug, Subcommand)]
pub enum LibraryCommand {
    /// List documents
    Ls,
    /// Read documents into the library
    Add {
        /// Files, folders or globs
        #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
        paths: Vec<String>,
    },
    /// Take documents out
    Rm {
        /// Document names
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
}

/// What `bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchWhat {
    /// Prefill and decode at several context lengths
    Model,
    /// Resume, fork, undo, listing
    Sessions,
}

/// `bench`.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum, default_value_t = BenchWhat::Model)]
    pub what: BenchWhat,
    /// Context lengths in tokens; 512,32768 if not given. For sessions: the session's, 100000 or 262144 on a GPU
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub context: Vec<u64>,
    /// Sessions in the list that is opened
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub sessions: usize,
    /// Tokens to decode at each length, or in each answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub decode: u64,
    /// How a context comes to be: read it, or fill the caches with random rows
    #[arg(long, value_enum, default_value_t = FillArg::Read)]
    pub fill: FillArg,
    /// Tokens to read at each depth with --fill random; 0 reads none
    #[arg(long, value_name = "N", default_value_t = 8192)]
    pub sample: u64,
    /// Leave out verify passes of several rows
    #[arg(long)]
    pub no_verify: bool,
    /// Leave out saving and restoring
    #[arg(long)]
    pub no_save: bool,
    /// Measure rounds with a draft head too
    #[arg(long)]
    pub draft_round: bool,
    /// Measure speculation with drafts that are all wrong, and all right
    #[arg(long)]
    pub speculation: bool,
    /// Recorded with the result
    #[arg(long, value_name = "TEXT")]
    pub commit: Option<String>,
    /// How a GPU is used
    #[command(flatten)]
    pub tuning: TuningArgs,
}

/// How a context comes to be in `bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FillArg {
    /// By reading it
    Read,
    /// By random cache rows
    Random,
}

/// Choices about a GPU, for measurements.
#[derive(Clone, Debug, Default, Args)]
pub struct TuningArgs {
    /// Rows of a prefill pass; 0 chooses by memory
    #[arg(long, value_name = "N", default_value_t = 0, hide = true)]
    pub prefill_rows: usize,
    /// Never use a products library
    #[arg(long, hide = true)]
    pub own_products: bool,
    /// Launch every kernel singly instead of replaying recordings
    #[arg(long, hide = true)]
    pub no_recording: bool,
    /// Run the GPU backend on the CPU with this library (kernels/emulator/build.sh)
    #[arg(long, value_name = "LIBRARY", hide = true)]
    pub emulator: Option<PathBuf>,
}

/// `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Replay golden data from this folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub fixtures: Option<PathBuf>,
    /// Check every GPU kernel against the CPU
    #[arg(long)]
    pub kernels: bool,
    /// Measure each kernel's speed at the full model's sizes
    #[arg(long)]
    pub rates: bool,
    /// Names, sizes and hashes of the model's files
    #[arg(long)]
    pub files: bool,
    /// How a GPU is used
    #[command(flatten)]
    pub tuning: TuningArgs,
}

/// `draft`.
#[derive(Clone, Debug, Args)]
pub struct DraftArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: DraftCommand,
}

/// Actions of `draft`.
#[derive(Clone, Debug, Subcommand)]
pub enum DraftCommand {
    /// Write hidden states and tokens for training a head
    ///
    /// The model reads every document, answers a question about it, and what its layers held is written as
    /// sample-000001.safetensors and so on: input_ids, loss_mask, hidden_state, aux_hidden_state, as SpecForge's offline
    /// EAGLE-3 training names them. assets/demo/captured.py makes that trainer's files of them, or trains the built-in
    /// model's head again. --max-tokens limits the answers.
    Capture {
        /// Texts: a folder, a file or a glob
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        docs: PathBuf,
        /// Where to
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: PathBuf,
        /// Longest sample in tokens
        #[arg(long, value_name = "N", default_value_t = 2048)]
        length: usize,
    },
}

/// `model`.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ModelCommand,
}

/// Actions of `model`.
#[derive(Clone, Debug, Subcommand)]
pub enum ModelCommand {
    /// Print the folder of the model that would be used
    Path,
    /// Check the downloaded files
    Verify,
    /// Download the model, or another repository such as a draft head (asks first)
    Download {
        /// Hub id, if not that of the settings
        #[arg(value_name = "OWNER/NAME")]
        repo: Option<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

/// `config`.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ConfigCommand,
}

/// Actions of `config`.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print all settings
    Show {
        /// And where each was set
        #[arg(long)]
        origin: bool,
    },
    /// Print the path of the settings file
    Path,
    /// Find mistakes
    Check,
    /// Change one setting in the file; comments stay
    Set {
        /// For example sampling.temperature
        key: String,
        /// Its new value
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
}

/// `completions`.
#[derive(Clone, Debug, Args)]
pub struct CompletionsArgs {
    /// For which shell
    pub shell: clap_complete::Shell,
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
                    return Err(Failure::usage(format!(
                        "--spec must be on, off, auto or 1 to 15 (got {number})"
                    )));
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
                Err(Failure::usage(
                    "a command takes no chat options or paths. A file of that name: ./NAME",
                ))
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
            Some(_) if session == SessionChoice::Pick => Err(Failure::usage(
                "-r needs a session name with -p. sala-chat ls lists them",
            )),
            Some(prompt) => {
                let format = match (self.global.json, chat.jsonl, chat.raw) {
                    (true, _, _) => Format::Json,
                    (_, true, _) => Format::JsonLines,
                    (_, _, true) => Format::Raw,
                    _ => Format::Text,
                };
                Ok(Task::Ask(Ask {
                    prompt,
                    files: paths,
                    session,
                    save,
                    format,
                }))
            }
            None if self.global.json => {
                Err(Failure::usage("--json needs a question (-p) or a command"))
            }
            None => {
                let session = if resume_last && session == SessionChoice::New {
                    SessionChoice::Last
                } else {
                    session
                };
                Ok(Task::Chat(Chat {
                    paths,
                    session,
                    save,
                    plain: chat.plain,
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests;
