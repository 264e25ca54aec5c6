//! The command line: its options, and what they exclude. Nothing here acts. Subcommands are in `commands`,
//! those of the laboratory in `lab`, options made from the table of settings in `options`.

mod commands;
mod lab;
mod options;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, ValueHint};

use super::failure::Failure;
use crate::text::near::nearest;
pub use commands::{
    AskAllArgs, Command, ConfigCommand, ExportArgs, LibraryCommand, LsArgs, ModelCommand, PruneArgs, ServeArgs,
};
pub use lab::{BenchArgs, BenchWhat, DoctorArgs, DraftCommand, EVAL_ROOM, EvalArgs, FillArg, TuningArgs};

const AFTER: &str = "\
Exit codes: 0 ok, 1 failure, 2 usage, 3 model not installed,
4 no usable GPU or memory, 5 context too long, 6 session in use elsewhere,
7 state or session unreadable, 66 no such file, 74 disk, 130 stopped,
128+n signal.";

/// Chat with MiniCPM-SALA on your own machine: long documents, kept state, nothing read twice
#[derive(Clone, Debug, Parser)]
#[command(name = "sala-chat", bin_name = "sala-chat", version, after_help = AFTER, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    pub chat: ChatArgs,
    /// Something else than a chat.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Settings given as options, for [`crate::config::settings::load`].
    #[arg(skip)]
    pub settings: Vec<options::Given>,
}

#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// Print one JSON object, also for errors
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
    /// Print only the answer of -p, only the result of a command: no progress, no notes
    #[arg(short, long, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// Write more to the log file; twice: everything except message text
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,
    /// Settings file instead of the usual one; themes/ and presets/ belong in the same folder
    #[arg(long, global = true, value_name = "FILE", env = "SALA_CHAT_CONFIG", hide_env_values = true, value_hint = ValueHint::FilePath, help_heading = "Places")]
    pub config: Option<PathBuf>,
    /// Keep sessions, state, logs and locks below this folder
    #[arg(long, global = true, value_name = "DIR", env = "SALA_CHAT_DATA_DIR", hide_env_values = true, value_hint = ValueHint::DirPath, help_heading = "Places")]
    pub data_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct ChatArgs {
    /// Files, folders or globs to load first
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<String>,
    /// Print the answer to this question and exit; piped standard input is added to it
    #[arg(short, long, value_name = "TEXT", help_heading = "Question")]
    pub prompt: Option<String>,
    /// Load this file first (repeatable)
    #[arg(short, long = "file", value_name = "FILE", value_hint = ValueHint::AnyPath, help_heading = "Question")]
    pub files: Vec<String>,
    /// Load this file or folder first and notice its changes (repeatable); - is standard input
    #[arg(long, value_name = "PATH", conflicts_with = "prompt", value_hint = ValueHint::AnyPath, help_heading = "Session")]
    pub follow: Vec<String>,
    /// Number of answers to generate
    #[arg(short = 'n', long = "answers", value_name = "N", requires = "prompt", conflicts_with = "raw", value_parser = lab::whole(1..=crate::config::commands::MOST_ANSWERS), allow_negative_numbers = true, help_heading = "Question")]
    pub answers: Option<u64>,
    /// Print events as JSON lines
    #[arg(long, conflicts_with = "json", requires = "prompt", help_heading = "Question")]
    pub jsonl: bool,
    /// Print the exact text, including control characters
    #[arg(long, requires = "prompt", conflicts_with_all = ["json", "jsonl"], help_heading = "Question")]
    pub raw: bool,
    /// Continue a session; without a name: choose one
    #[arg(short, long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", help_heading = "Session")]
    pub resume: Option<String>,
    /// Continue the last session
    #[arg(short = 'c', long = "continue", conflicts_with = "resume", help_heading = "Session")]
    pub continue_last: bool,
    /// Start a new session without offering the last one
    #[arg(long = "new", conflicts_with_all = ["resume", "continue_last"], help_heading = "Session")]
    pub start_new: bool,
    /// Save nothing
    #[arg(long, help_heading = "Session")]
    pub no_save: bool,
    /// Line by line, for screen readers and plain terminals
    #[arg(long, conflicts_with = "prompt", help_heading = "Screen")]
    pub plain: bool,
}

/// The definition of the command line, with the options of the settings.
pub fn definition() -> clap::Command {
    let command = options::add(clap::Command::new("sala-chat"), false);
    options::add(Cli::augment_args(command), true)
}

/// The definition for reading. Help of a command lists its own options and names those that every command has.
pub fn command() -> clap::Command {
    // An empty variable counts as unset.
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let unset = |arg: Arg| if arg.get_env().is_some_and(is_empty) { arg.env(Resettable::Reset) } else { arg };
    let command = definition().mut_args(unset);
    let global: Vec<Arg> =
        command.get_arguments().filter(|a| a.is_global_set()).map(|a| a.clone().hide(true)).collect();
    below(command, &global)
}

/// Commands that print text for people or a shell, or keep running.
const TEXT_ONLY: [&str; 4] = ["completions", "demo", "manual", "serve"];

/// A hidden argument of its own keeps a command from showing the global one of that name.
fn below(mut command: clap::Command, global: &[Arg]) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        let text_only = TEXT_ONLY.contains(&name.as_str());
        let taken = global.iter().filter_map(Arg::get_long).filter(|long| !(text_only && *long == "json"));
        let taken: Vec<String> = taken.map(|long| format!("--{long}")).collect();
        let line = format!("Options of every command (sala-chat --help explains them): {}", taken.join(", "));
        command = command.mut_subcommand(name, |sub| below(sub.args(global.iter().cloned()).after_help(line), global));
    }
    command
}

impl Cli {
    /// Reads a command line. Fails for `--help` and `--version` too, and for `--json` where a command writes no JSON.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let mut command = command();
        let matches = command.try_get_matches_from_mut(arguments)?;
        let cli = Cli { settings: options::given(&matches), ..Cli::from_arg_matches(&matches)? };
        match matches.subcommand_name().filter(|name| cli.global.json && TEXT_ONLY.contains(name)) {
            Some(name) => {
                Err(command.error(ErrorKind::ArgumentConflict, format!("--json: {name} writes no JSON; leave it out")))
            }
            None => Ok(cli),
        }
    }

    /// Refuses options that exclude each other. `resume_last` is the setting for a chat that names no session.
    pub fn check(&mut self, resume_last: bool) -> Result<(), Failure> {
        let chat = &mut self.chat;
        if self.command.is_some() {
            let usage = "a command takes no chat options or paths. A file of that name: ./NAME";
            let of_screen = self.settings.iter().any(|(name, _)| name.starts_with("ui."));
            return if *chat == ChatArgs::default() && !of_screen { Ok(()) } else { Err(Failure::usage(usage)) };
        }
        chat.paths.append(&mut chat.files);
        if chat.prompt.is_some() {
            let usage = "-r needs a session name with -p. sala-chat ls lists them";
            return if chat.session() == SessionChoice::Pick { Err(Failure::usage(usage)) } else { Ok(()) };
        }
        if self.global.json {
            let failure = Failure::usage("--json needs a question (-p) or a command");
            return Err(failure.suggest("Did you mean", suggested_command(&chat.paths)));
        }
        chat.continue_last |= resume_last && !chat.start_new && chat.resume.is_none();
        Ok(())
    }

    /// Whether it neither adds to what is kept nor removes any of it.
    pub fn only_looks(&self) -> bool {
        match &self.command {
            Some(Command::Ls(_) | Command::Show { .. } | Command::Search { .. } | Command::Export(_)) => true,
            Some(Command::AskAll(_) | Command::Park | Command::Library(LibraryCommand::Ls)) => true,
            Some(Command::Prune(args)) => args.dry_run,
            _ => false,
        }
    }

    /// Whether it has nothing to do where nothing is kept.
    pub fn needs_kept(&self) -> bool {
        match &self.command {
            None if self.chat.prompt.is_some() => self.chat.session() != SessionChoice::New,
            // The last one may be named by the settings, and then a chat begins without one.
            None => self.chat.resume.is_some(),
            Some(Command::Rm { .. } | Command::Prune(_)) => true,
            Some(Command::Library(LibraryCommand::Rm { .. } | LibraryCommand::Prune)) => true,
            Some(Command::Doctor(args)) => args.check,
            Some(_) => self.only_looks(),
        }
    }
}

impl ChatArgs {
    pub fn session(&self) -> SessionChoice {
        match &self.resume {
            Some(name) if name.is_empty() => SessionChoice::Pick,
            Some(name) => SessionChoice::Named(name.clone()),
            None if self.continue_last => SessionChoice::Last,
            None => SessionChoice::New,
        }
    }

    pub fn format(&self, json: bool) -> Format {
        match (json, self.jsonl, self.raw) {
            (true, _, _) => Format::Json,
            (_, true, _) => Format::JsonLines,
            (_, _, true) => Format::Raw,
            _ => Format::Text,
        }
    }

    /// Whether a new session begins with the offer to continue one of this folder.
    pub fn offers(&self) -> bool {
        self.paths.is_empty() && self.follow.is_empty() && !self.start_new && self.session() == SessionChoice::New
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChoice {
    New,
    Last,
    Named(String),
    Pick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The answer, markdown rendered if standard output is a terminal.
    Text,
    Raw,
    Json,
    JsonLines,
}

/// `model quantize` for `quantize`, and for `modle quantise`.
pub fn suggested_command(words: &[String]) -> Option<String> {
    let root = Cli::command();
    let (first, rest) = words.split_first()?;
    let below = root.get_subcommands().flat_map(|of| of.get_subcommands().map(move |command| (Some(of), command)));
    // Top-level commands are first, so they win over equally near subcommands.
    let all: Vec<_> = root.get_subcommands().map(|command| (None, command)).chain(below).collect();
    let name = nearest(first, all.iter().map(|(_, command)| command.get_name()))?;
    let (of, command) = all.iter().find(|(_, command)| command.get_name() == name)?;
    let mut meant: Vec<&str> = of.iter().map(|of| of.get_name()).chain([name]).collect();
    meant.extend(rest.first().and_then(|word| nearest(word, command.get_subcommands().map(|c| c.get_name()))));
    Some(meant.join(" "))
}

#[cfg(test)]
mod tests;
