//! The subcommands and their arguments; what those of the laboratory take is in `lab`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueHint};

use super::lab::{BenchArgs, DoctorArgs, DraftCommand, EvalArgs};
use crate::config::commands::ExportFormat;
use crate::model::Recipe;

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// List sessions
    #[command(alias = "list")]
    Ls(LsArgs),
    /// Print a session
    Show {
        /// Session name, id, or last
        name: String,
    },
    /// Move sessions to the trash
    Rm {
        /// Session names
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Search all sessions; exit code 1 if nothing is found
    Search {
        /// Words to find
        #[arg(required = true)]
        text: Vec<String>,
    },
    /// Write a session to a file
    Export(ExportArgs),
    /// Read sessions from an exported file
    Import {
        /// The exported file, or a pipe; - is standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Free disk space; text stays, except in the trash
    Prune(PruneArgs),
    /// Documents whose state is kept
    #[command(subcommand, arg_required_else_help = false)]
    Library(LibraryCommand),
    /// Answer other programs on this machine: OpenAI's and Anthropic's APIs
    Serve(ServeArgs),
    /// Free the GPU that a running server holds; its next question loads the model again
    Park,
    /// Let agents ask documents: the Model Context Protocol on standard input and output
    Mcp,
    /// Ask every document of the library the same question
    AskAll(AskAllArgs),
    /// Measure speed
    Bench(BenchArgs),
    /// Test the model: reference logits, consistency, needles
    Eval(EvalArgs),
    /// Check this computer and this program
    Doctor(DoctorArgs),
    /// Tools for training a draft head
    #[command(subcommand, arg_required_else_help = false)]
    Draft(DraftCommand),
    /// Download and check the model
    #[command(subcommand, arg_required_else_help = false)]
    Model(ModelCommand),
    /// Show and change settings
    #[command(subcommand, arg_required_else_help = false)]
    Config(ConfigCommand),
    /// Completions for a shell
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page: sala-chat manual | man -l -
    Manual,
    /// A guided tour of one minute; nothing is saved
    Demo {
        /// Line by line, for screen readers and plain terminals
        #[arg(long)]
        plain: bool,
    },
}

#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Address and port instead of serve.listen; port 0 picks a free one
    #[arg(long, alias = "port", value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// File with the key that clients must send, instead of serve.key_file; created if missing
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,
    /// Keep nothing on disk
    #[arg(long)]
    pub no_save: bool,
}

#[derive(Clone, Debug, Args)]
pub struct AskAllArgs {
    /// The question
    pub question: String,
    /// Only documents whose names match
    #[arg(long, value_name = "GLOB")]
    pub library: Option<String>,
    /// First also read documents whose state is not kept
    #[arg(long)]
    pub read: bool,
}

#[derive(Clone, Debug, Args)]
pub struct LsArgs {
    /// Show the disk space of each session: kept state, text, and all state written so far
    #[arg(long)]
    pub sizes: bool,
    /// Also list sessions of a single -p question
    #[arg(long)]
    pub all: bool,
    /// List the trash, and when each session in it is deleted
    #[arg(long, conflicts_with_all = ["all", "sizes"])]
    pub trash: bool,
}

#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// Session name, id, or last
    pub name: String,
    /// File to write; - is standard output
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Format; default: by the file's ending
    #[arg(long)]
    pub format: Option<ExportFormat>,
    /// All branches
    #[arg(long)]
    pub tree: bool,
    /// Include the model state of the open branch, to continue on another computer with the same model
    #[arg(long, conflicts_with_all = ["format", "tree"])]
    pub with_state: bool,
    /// Overwrite
    #[arg(long)]
    pub force: bool,
}

#[derive(Clone, Debug, Args)]
pub struct PruneArgs {
    /// Delete all model state of sessions, also of recent turns
    #[arg(long)]
    pub state: bool,
    /// With --state: also the state of library documents. Without: delete everything in the trash now
    #[arg(long)]
    pub all: bool,
    /// Only list what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub enum LibraryCommand {
    /// List documents
    #[command(alias = "list")]
    Ls,
    /// Read documents into the library
    Add {
        /// Files, folders or globs
        #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
        paths: Vec<String>,
    },
    /// Remove documents
    Rm {
        /// Document names
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Accepted as in rm and prune; documents are removed without a question
        #[arg(short, long)]
        yes: bool,
    },
    /// Remove documents that no session uses
    Prune,
}

#[derive(Clone, Debug, Subcommand)]
pub enum ModelCommand {
    /// Print the folder of the model that would be used
    Path,
    /// Check that the model's files are complete and as published
    Verify {
        /// Get the published hashes of model.repo from the hub; needed for a copied folder
        #[arg(long)]
        hub: bool,
    },
    /// Download the model, or another repository such as a draft head (asks first)
    Download {
        /// Hub id instead of the one in the settings
        #[arg(value_name = "OWNER/NAME")]
        repo: Option<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Pack the weights of a folder into a new folder that loads faster
    Quantize {
        /// Model folder, in bf16 or a published format
        #[arg(value_hint = ValueHint::DirPath)]
        folder: PathBuf,
        /// Form of the weights
        #[arg(long, value_parser = packing())]
        to: Recipe,
        /// Calibrate on built-in text or these documents, for better answers
        #[arg(long, value_name = "DOCS", num_args = 0..=1, require_equals = true, value_hint = ValueHint::AnyPath)]
        calibrate: Option<Option<PathBuf>>,
        /// Folder to write; a stopped run starts again in it
        #[arg(short, long, value_name = "OUT", value_hint = ValueHint::DirPath)]
        output: PathBuf,
    },
}

/// The values of `--to`: forms that weights can be packed in.
fn packing() -> impl TypedValueParser<Value = Recipe> {
    let forms = Recipe::PACKING.iter().map(|recipe| PossibleValue::new(recipe.word()).help(recipe.bits()));
    let named = |word: String| Recipe::PACKING.iter().copied().find(|recipe| recipe.word() == word);
    PossibleValuesParser::new(forms).try_map(move |word| named(word).ok_or("no form of weights"))
}

#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print all settings
    Show {
        /// Also show where each was set
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
