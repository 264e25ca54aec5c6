//! Arguments of what measures, judges and checks: `bench`, `eval`, `doctor`, `draft`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use serde::Serialize;

use crate::backend::{MAX_POSITIONS, MAX_VERIFY_ROWS};

/// Context reserved after the longest text of `eval`, for questions and answers.
pub const EVAL_ROOM: usize = 1_024;

pub(super) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
    }
}

/// What `bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchWhat {
    /// Prefill and decode at several context lengths
    Model,
    /// Resume, fork, undo
    Sessions,
    /// The local server with several clients, compared with the engine alone
    Serve,
}

#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum, default_value_t = BenchWhat::Model)]
    pub what: BenchWhat,
    /// Context lengths in tokens; 512,32768 if not given. For sessions: the session's, 100000 or 262144 on a GPU. For serve: of a
    /// client's first prompt, 64
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = whole(1..=MAX_POSITIONS as u64), allow_negative_numbers = true)]
    pub context: Vec<u64>,
    /// Tokens to decode at each length, or in each answer
    // One has no time from the one before it.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = whole(2..=32_768u64), allow_negative_numbers = true)]
    pub decode: u64,
    /// How bench model fills the context: read text, or fill the caches with random rows
    #[arg(long, value_enum, default_value_t = FillArg::Read)]
    pub fill: FillArg,
    /// Tokens to read at each depth with --fill random; 0 reads none
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = whole(0..=524_288u64), allow_negative_numbers = true)]
    pub sample: u64,
    /// Leave out verify passes of several rows
    #[arg(long)]
    pub no_verify: bool,
    /// Leave out saving and restoring
    #[arg(long)]
    pub no_save: bool,
    /// Measure these numbers of parallel sequences, 1 to 16; for serve, of clients: 1,8 if not given
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = whole(1..=MAX_VERIFY_ROWS), allow_negative_numbers = true)]
    pub sequences: Vec<usize>,
    /// Label recorded with the result
    #[arg(long, value_name = "TEXT")]
    pub commit: Option<String>,
    /// How a GPU is used
    #[command(flatten)]
    pub tuning: TuningArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FillArg {
    /// By reading it
    Read,
    /// By random cache rows
    Random,
}

/// Choices about a GPU, for measurements.
#[derive(Clone, Debug, Default, Args)]
pub struct TuningArgs {
    /// Keep within the limits of another card: sm_80, sm_86, sm_89 or sm_120
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "CARD", value_parser = crate::backend::cuda::Card::named, hide = true)]
    pub limits: Option<crate::backend::cuda::Card>,
}

#[derive(Clone, Debug, Args)]
pub struct EvalArgs {
    /// Reference logits to compare with; --script prints what makes such a file
    #[arg(value_name = "REFERENCE", value_hint = ValueHint::FilePath)]
    pub reference: Option<PathBuf>,
    /// Compare with this model instead: another form of the same weights
    #[arg(long, value_name = "MODEL", conflicts_with = "reference")]
    pub against: Option<String>,
    /// Lengths of the documents with needles, and of the texts of --against
    // Every needle has room.
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = whole(512..=MAX_POSITIONS - EVAL_ROOM), allow_negative_numbers = true)]
    pub lengths: Vec<usize>,
    /// Skip one part
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = ["consistency", "needles"])]
    pub skip: Vec<String>,
    /// Ask instead for facts planted in documents of --lengths tokens (16000), and see whether answers look at their lines
    #[arg(long, conflicts_with_all = ["reference", "against", "skip"])]
    pub looked: bool,
    /// Print the Python script that makes reference logits with Hugging Face transformers
    #[arg(long)]
    pub script: bool,
    /// How a GPU is used
    #[command(flatten)]
    pub tuning: TuningArgs,
}

#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Replay golden data from this folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub fixtures: Option<PathBuf>,
    /// Check every GPU kernel against the CPU
    #[arg(long)]
    pub kernels: bool,
    /// Verify every saved text and state, and repair what is damaged
    #[arg(long)]
    pub check: bool,
    /// How a GPU is used
    #[command(flatten)]
    pub tuning: TuningArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub enum DraftCommand {
    /// Write hidden states and tokens for training a head
    ///
    /// The model reads every document, answers a question about it, and what its layers held is written as
    /// sample-000001.safetensors and so on: input_ids, loss_mask, hidden_state, aux_hidden_state, as SpecForge's offline
    /// EAGLE-3 training names them. assets/training/captured.py makes that trainer's files of them, or trains the built-in
    /// model's head again. --max-tokens limits the answers.
    Capture {
        /// Texts: a folder, a file or a glob
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        docs: PathBuf,
        /// Where to
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: PathBuf,
        /// Longest sample in tokens
        // A shorter one has no room for a piece and an answer.
        #[arg(long, value_name = "N", default_value_t = 2048, value_parser = whole(64..=MAX_POSITIONS), allow_negative_numbers = true)]
        length: usize,
    },
}
