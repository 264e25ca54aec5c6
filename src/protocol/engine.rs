//! What the desk tells the engine thread, and what it hears back.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::base::grouped;

/// A token id of the model's vocabulary.
pub type Token = u32;

/// Stops a job between two prefill chunks or two decode rounds. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the job to end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    /// Whether somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why saved rows cannot be had back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct RowsFault {
    /// The segment they belong to, by the name of its file; `None` for rows of no file.
    pub segment: Option<[u8; 32]>,
    /// A phrase.
    pub why: String,
    /// They will never be had; false for what may pass, as a disk that does not answer.
    pub lasting: bool,
}

impl RowsFault {
    /// Rows of no file: an array that is not there, a reader that ended early.
    pub fn new(why: impl Into<String>) -> RowsFault {
        RowsFault { segment: None, why: why.into(), lasting: false }
    }
}

/// Why a command was not done, or why there is no engine. The live state is empty afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineFault {
    /// A job that waited for saved rows was stopped.
    #[error("stopped while saved rows were on their way")]
    Stopped,
    /// Saved rows the state needs cannot be had back. A path without their segment can be restored.
    #[error("saved state cannot be used: {0}")]
    RowsLost(RowsFault),
    /// The model or its device failed, and is ready for the next command.
    #[error("{0}")]
    Device(String),
    /// Nothing more can be done with this engine.
    #[error("{why}")]
    Fatal {
        /// One line: what, where, what to do next.
        why: String,
        /// Exit code if the program ends because of it (docs/interface.md §2).
        code: i32,
    },
}

/// Number type of stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit IEEE.
    F32,
    /// bfloat16.
    Bf16,
    /// 32-bit unsigned (token ids).
    U32,
    /// Bytes.
    U8,
}

impl Dtype {
    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::Bf16 => 2,
            Dtype::U8 => 1,
        }
    }
}

/// A named array, little-endian, rows in position order.
#[derive(Clone)]
pub struct ImageTensor {
    /// `k.{layer}`, `v.{layer}`, `k1.{layer}`, `k2.{layer}` in rows; `state.{layer}`, `draft.*` in end states.
    pub name: String,
    /// Type of the values.
    pub dtype: Dtype,
    /// Slowest axis first.
    pub shape: Vec<usize>,
    /// The bytes. Shared, so that saving copies nothing.
    pub data: Arc<Vec<u8>>,
}

impl std::fmt::Debug for ImageTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {:?} ({} bytes)", self.name, self.dtype, self.shape, self.data.len())
    }
}

/// KV rows of consecutive positions: what a segment adds to the caches. Append-only, independent of how it was computed.
#[derive(Clone, Debug, Default)]
pub struct RowsImage {
    /// Position of the first row.
    pub start: u64,
    /// How many positions.
    pub rows: u64,
    /// `k.{layer}` and `v.{layer}` `[rows, kv_heads, head_dim]`; `k1.{layer}`, `k2.{layer}`: the compressed keys whose
    /// window ends inside these rows.
    pub tensors: Vec<ImageTensor>,
}

/// Where KV rows come from when they are put back: memory, or files that are read and checked on the way to the device.
pub trait RowSource: Send + Sync + std::fmt::Debug {
    /// Position of the first row.
    fn start(&self) -> u64;
    /// How many positions.
    fn rows(&self) -> u64;
    /// Type and shape of an array of this name (as in [`RowsImage::tensors`]), if there is one.
    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)>;
    /// Fills `into` with bytes of an array, from byte `at` on. Several threads call it at a time; multiples of
    /// [`SOURCE_BYTES`] cost least.
    ///
    /// # Errors
    /// No such bytes, or they cannot be read, or are not what was saved.
    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault>;
    /// An array as a whole.
    ///
    /// # Errors
    /// As [`RowSource::fill`].
    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault>;
}

/// [`RowSource::fill`] is best asked for multiples of this: bytes under one checksum, as many as one block of 64 positions has
/// in the 9B model, so that a block can be read on its own.
pub const SOURCE_BYTES: usize = 32 << 10;
/// What one thread best reads at a time of an array that is wanted whole: little enough to stay in a processor's cache.
pub const PIECE_BYTES: usize = 32 * SOURCE_BYTES;

impl RowSource for RowsImage {
    fn start(&self) -> u64 {
        self.start
    }

    fn rows(&self) -> u64 {
        self.rows
    }

    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)> {
        let found = self.tensors.iter().find(|t| t.name == name);
        found.map(|t| (t.dtype, t.shape.clone()))
    }

    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault> {
        let found = self.tensors.iter().find(|t| t.name == name);
        let from = found.and_then(|t| t.data.get(at..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or_else(|| RowsFault::new(format!("{name} has no such bytes")))?);
        Ok(())
    }

    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        let found = self.tensors.iter().find(|t| t.name == name);
        found.cloned().ok_or_else(|| RowsFault::new(format!("there is no {name}")))
    }
}

/// Recurrent state at one position, with nothing pending.
#[derive(Clone, Debug, Default)]
pub struct CheckpointImage {
    /// Tokens the state has absorbed.
    pub position: u64,
    /// `state.{layer}` `[heads, head_dim, head_dim]` f32, and the draft window (`draft.*`) if there is a head.
    pub tensors: Vec<ImageTensor>,
}

/// Everything one segment keeps. Crosses from engine to session and back.
#[derive(Clone, Debug, Default)]
pub struct StateImage {
    /// KV rows the segment added.
    pub rows: RowsImage,
    /// State at its end; `None` where thinned.
    pub end: Option<CheckpointImage>,
}

/// How the next token is chosen. Order of the filters: docs/speculative.md §6.1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k best; 0 keeps all.
    pub top_k: u32,
    /// Smallest set with at least this mass; 1 keeps all.
    pub top_p: f32,
    /// Drop what is below this share of the best.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of seen tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once from seen tokens; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence; 0 is off.
    pub frequency_penalty: f32,
    /// Noise is keyed by (seed, position), so a seed reproduces a text whatever else changes.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.7,
            top_k: 0,
            top_p: 0.95,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

/// Whether and how far to draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum SpecMode {
    /// Plain decoding.
    Off,
    /// Draft whenever it is expected to pay.
    #[default]
    Auto,
    /// Always draft, depth by the policy.
    On,
    /// Always draft this many tokens (1..=15).
    Depth(u8),
}

/// What to generate after the given tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Generate {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// At most this many.
    pub max_tokens: u64,
    /// Ids that end the turn. The one that ended it is not part of the state.
    pub stop: Vec<Token>,
    /// Speculation.
    pub spec: SpecMode,
    /// Looks at each token as it is drawn; nothing does where there is none.
    pub steering: Option<Steering>,
    /// What is told about where it looked.
    pub look: Look,
    /// Says which tokens may be drawn; all may where there is none.
    pub constraint: Option<Constraint>,
    /// The likeliest tokens that are told with each token, and how likely it was: [`EngineEvent::Tokens`].
    pub likely: Option<u8>,
}

/// What becomes of a token that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
    /// It is the next token of the text.
    Take,
    /// This one is, in its place.
    Instead(Token),
    /// It is, and the last one: the text repeats itself ([`Ended::Repeats`]).
    Last,
}

/// Looks at each token of an answer, in order, before it becomes text. What it says must depend on those tokens alone, so
/// that an answer is the same with speculation on and off.
pub trait Steer: Send {
    /// `token` was drawn; it does not end the turn unless `ends` is set.
    fn drawn(&mut self, token: Token, ends: bool) -> Steered;
}

/// Makes a [`Steer`] for each run of an answer.
#[derive(Clone)]
pub struct Steering(pub Arc<dyn Fn() -> Box<dyn Steer> + Send + Sync>);

impl std::fmt::Debug for Steering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Steering")
    }
}

impl PartialEq for Steering {
    fn eq(&self, other: &Steering) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Says which tokens of an answer may be drawn, in order. What it says must depend on those tokens alone, so that an answer is
/// the same with speculation on and off.
pub trait Constrain: Send {
    /// Whether a token may come next.
    fn allows(&mut self, token: Token) -> bool;
    /// A token that may come next, for where none of the likeliest may; `None`: nothing may.
    fn any(&mut self) -> Option<Token>;
    /// This is the next token of the text.
    fn accept(&mut self, token: Token);
}

/// Makes a [`Constrain`] for each run of an answer.
#[derive(Clone)]
pub struct Constraint(pub Arc<dyn Fn() -> Box<dyn Constrain> + Send + Sync>);

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Constraint")
    }
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Constraint) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// How likely a token was, and which were likeliest in its place: natural logarithms, before temperature and everything else
/// that the sampling does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Likely {
    /// The token's; of one that is not among the known ones, the least of them, which is more than its own.
    pub log_prob: f32,
    /// The likeliest, most first.
    pub best: Vec<(Token, f32)>,
}

/// What a generation tells about where it looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What is written up to and including this token are thoughts; `None`: there are none.
    pub thoughts_until: Option<Token>,
    /// Tell it for each token of [`EngineEvent::Tokens`] too.
    pub each_token: bool,
}

/// Where attention of the sparse layers went while tokens were written, summed over tokens, heads and layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Looked {
    /// Tokens it is summed over. An answer's first token is not among them: it is drawn from the last row that was read.
    pub tokens: u64,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks that got any, ascending.
    pub blocks: Vec<BlockLook>,
}

/// What one block got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockLook {
    /// Block b holds the tokens from `b · block_tokens` on.
    pub block: u32,
    /// Share of all attention, 0 to 1; over all blocks they add up to 1.
    pub share: f32,
    /// The part of `share` that it got while it was forced: one of the first blocks, or in the local window before the token.
    pub forced: f32,
}

/// Where an answer and the thoughts before it looked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LookedAt {
    /// While thoughts were written.
    pub thoughts: Looked,
    /// While the answer was written.
    pub answer: Looked,
}

/// A text to be scored behind the prompt, once for each list of hidden blocks. The state afterwards is that behind the prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scoring {
    /// The text.
    pub tokens: Vec<Token>,
    /// The likeliest tokens that are told with each token, and how likely it was: `likely` of [`EngineEvent::Done`].
    pub likely: Option<u8>,
    /// Blocks that its rows do not attend to in the sparse layers; the recurrent states keep what they have read of them.
    pub hidden: Vec<Vec<std::ops::Range<u32>>>,
}

/// One of the conversations an engine holds side by side. One that was never restored is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SequenceId(pub u32);

/// The conversation on screen.
pub const MAIN: SequenceId = SequenceId(0);

/// One segment: a prompt, read by prefill, then a completion, by decode.
#[derive(Clone, Debug)]
pub struct Job {
    /// Chosen by the desk, repeated in every event.
    pub id: u64,
    /// On top of whose state.
    pub sequence: SequenceId,
    /// Tokens to read. May be empty only when `generate` continues a state that has a pending token, or one that a job which
    /// only read has just left, or a fork of that.
    pub prompt: Vec<Token>,
    /// `None`: read only.
    pub generate: Option<Generate>,
    /// Score a text instead of generating one.
    pub score: Option<Scoring>,
    /// Export a [`StateImage`] at the end. False for asides and `--no-save`.
    pub export: bool,
    /// Ends it early.
    pub cancel: Cancel,
}

/// Which device to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// A GPU if there is a usable one, else the CPU; what was taken and why is in [`ModelInfo::notes`].
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, or an error.
    Cuda,
}

/// In which form weights are kept on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsChoice {
    /// The best form that leaves room for the context; what was taken and why is in [`ModelInfo::notes`].
    #[default]
    Auto,
    /// 16 bits.
    Bf16,
    /// 8 bits.
    Bits8,
    /// 4.5 bits, and 8 where the model is sensitive.
    Bits4,
}

/// Which draft head to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DraftChoice {
    /// The one that belongs to the model: beside the weights (`eagle3/`), or the built-in model's own.
    #[default]
    Auto,
    /// None; n-gram drafts remain.
    Off,
    /// A folder with config.json and weights.
    Folder(PathBuf),
}

/// What the engine thread loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// `demo`, `synthetic:9b[:seed]`, `synthetic:tiny[:seed]`, or a folder.
    pub model: String,
    /// Device.
    pub device: DeviceChoice,
    /// Number of the GPU.
    pub gpu: usize,
    /// Tokens the caches may hold; `None`: twice the trained length, at most 1,048,576, and what fits.
    pub context: Option<u64>,
    /// Form of the weights.
    pub weights: WeightsChoice,
    /// Draft head.
    pub draft: DraftChoice,
    /// Where packed weights are kept for the next start; `None`: nowhere.
    pub keep_weights: Option<PathBuf>,
    /// What was decided on the way here and has to be said; comes first in [`ModelInfo::notes`].
    pub notes: Vec<String>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            model: "demo".into(),
            device: DeviceChoice::Auto,
            gpu: 0,
            context: None,
            weights: WeightsChoice::Auto,
            draft: DraftChoice::Auto,
            keep_weights: None,
            notes: Vec::new(),
        }
    }
}

/// Desk to engine. The channel is bounded. Commands to one sequence are done in order; those to different sequences side by
/// side. After a failure the commands to that sequence that wait already fail too, up to the next [`Command::Restore`].
#[derive(Debug)]
pub enum Command {
    /// Makes the live state equal a segment path: cut the caches back to `keep` tokens (which must be common to both
    /// paths), append `rows` in order, put `end` in place. `keep = 0`, nothing else: an empty state. `history` is the
    /// whole path's tokens, for n-gram drafts and penalties.
    Restore {
        /// Repeated in the answer.
        id: u64,
        /// Whose state.
        sequence: SequenceId,
        /// Tokens of the live caches that stay.
        keep: u64,
        /// Rows to append, consecutive from `keep`.
        rows: Vec<Arc<dyn RowSource>>,
        /// State at the end of the last row; `None` only for an empty path.
        end: Option<CheckpointImage>,
        /// All tokens of the path.
        history: Arc<Vec<Token>>,
    },
    /// Runs one segment on top of the live state.
    Run(Job),
    /// The live state of `from` also becomes that of `to`, once everything asked of both before is done. Answered by
    /// [`EngineEvent::Restored`].
    Fork {
        /// Repeated in the answer.
        id: u64,
        /// Stays as it is.
        from: SequenceId,
        /// Whatever it was is forgotten.
        to: SequenceId,
    },
    /// Forgets a sequence and gives its memory back, once everything asked of it before is done; without an answer. It may be
    /// used again, and is empty then.
    Release {
        /// Which.
        sequence: SequenceId,
    },
    /// Ends the thread.
    Shutdown,
}

/// Why a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Read-only job, all read.
    Read,
    /// A stop id was drawn.
    Stop,
    /// `max_tokens`.
    Length,
    /// The context limit.
    Context,
    /// The text repeated itself.
    Repeats,
    /// Cancelled. State and events agree: everything reported is in the state, nothing else.
    Cancelled,
}

/// Counters of speculation over one job or a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpecStats {
    /// Passes over the weights while decoding.
    pub rounds: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Drafted tokens accepted.
    pub accepted: u64,
    /// Tokens emitted per round.
    pub mean_accept_length: f64,
    /// Rounds drafted by the EAGLE-3 head.
    pub eagle_rounds: u64,
    /// Rounds drafted by n-gram lookup.
    pub ngram_rounds: u64,
    /// Rounds without a draft.
    pub plain_rounds: u64,
    /// `[depth]`: (tried, accepted) at draft position depth + 1.
    pub per_position: Vec<(u64, u64)>,
    /// Measured time of the decode rounds over what plain steps would have taken; 0 when not known.
    pub time_vs_plain: f64,
}

impl SpecStats {
    /// Adds another job's counters.
    pub fn add(&mut self, o: &SpecStats) {
        let emitted = self.mean_accept_length * self.rounds as f64 + o.mean_accept_length * o.rounds as f64;
        let weighted = self.time_vs_plain * self.rounds as f64 + o.time_vs_plain * o.rounds as f64;
        self.rounds += o.rounds;
        self.drafted += o.drafted;
        self.accepted += o.accepted;
        self.eagle_rounds += o.eagle_rounds;
        self.ngram_rounds += o.ngram_rounds;
        self.plain_rounds += o.plain_rounds;
        if self.rounds > 0 {
            self.mean_accept_length = emitted / self.rounds as f64;
            self.time_vs_plain = weighted / self.rounds as f64;
        }
        if self.per_position.len() < o.per_position.len() {
            self.per_position.resize(o.per_position.len(), (0, 0));
        }
        for (a, b) in self.per_position.iter_mut().zip(&o.per_position) {
            a.0 += b.0;
            a.1 += b.1;
        }
    }
}

/// What a server counted of one answer, in its own tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens it was given.
    pub prompt_tokens: u64,
    /// Of these, tokens that it did not have to read.
    pub cached_tokens: u64,
    /// Tokens of thoughts and answer.
    pub completion_tokens: u64,
    /// Of these, tokens of thoughts, where it tells them apart.
    pub thought_tokens: u64,
}

/// Measured times of one job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobStats {
    /// Tokens read by prefill.
    pub prefilled_tokens: u64,
    /// Time for them.
    pub prefill_ms: f64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Time for them.
    pub decode_ms: f64,
    /// Speculation.
    pub spec: SpecStats,
    /// What a server counted; `None` from an engine of this machine, whose tokens are the model's.
    pub usage: Option<Usage>,
}

/// What is running.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelInfo {
    /// `demo`, `MiniCPM-SALA`, `synthetic:9b`.
    pub name: String,
    /// `CPU, 2 threads` or `NVIDIA H200`.
    pub device: String,
    /// `cpu` or `cuda`.
    pub device_kind: String,
    /// `bf16`, `f32`, `8-bit`, `4-bit`.
    pub dtype: String,
    /// Parameters.
    pub parameters: u64,
    /// Tokens the caches of one sequence may hold.
    pub context_limit: u64,
    /// Sequences that may be live at a time.
    pub max_sequences: u32,
    /// Name of the draft head, if one is in use.
    pub draft: Option<String>,
    /// Hash over weights, spec and format: state is only valid with the same.
    pub fingerprint: String,
    /// Bytes of device memory: weights, caches and state now, working buffers, total of the device.
    pub memory: MemoryInfo,
    /// Notes to be shown once: fallbacks taken while loading.
    pub notes: Vec<String>,
    /// Address of the server that answers; `None` for an engine of this machine. A server keeps no state and tells nothing of
    /// where it looked; any path can be restored from its history alone, and tokens are counted only roughly.
    pub server: Option<String>,
}

impl ModelInfo {
    /// What its context holds: `up to 4,096 tokens`.
    pub fn holds(&self) -> String {
        match self.context_limit {
            0 => "a context of unknown length (engine.context)".to_owned(),
            limit => format!("up to {} tokens", grouped(limit)),
        }
    }
}

/// Device memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryInfo {
    /// Weights.
    pub weights: u64,
    /// KV caches and recurrent state.
    pub state: u64,
    /// Working buffers.
    pub work: u64,
    /// In use on the device by everybody; process memory on a CPU.
    pub used: u64,
    /// Of the device.
    pub total: u64,
}

/// Engine to desk.
#[derive(Debug)]
pub enum EngineEvent {
    /// The model is being loaded.
    Loading {
        /// What is being done, for the status line.
        what: String,
        /// Share done, 0 to 1.
        done: f64,
    },
    /// The model is loaded.
    Ready(ModelInfo),
    /// A restore or a fork is done.
    Restored {
        /// Of the command.
        id: u64,
        /// How long it took.
        ms: f64,
    },
    /// Prefill goes on. At most one per chunk.
    Reading {
        /// Of the job.
        id: u64,
        /// Tokens read so far.
        done: u64,
        /// Tokens to read.
        total: u64,
        /// Over the last two seconds.
        tokens_per_s: f64,
    },
    /// Tokens of one round, in order. All of them are in the text; the last may still be outside the state.
    Tokens {
        /// Of the job.
        id: u64,
        /// The ids.
        tokens: Vec<Token>,
        /// Over the last two seconds.
        tokens_per_s: f64,
        /// Where each of them looked, if [`Look::each_token`] asked for it; empty for the first token of an answer.
        looked: Vec<Looked>,
        /// How likely each of them was, if [`Generate::likely`] asked for it.
        likely: Vec<Likely>,
    },
    /// A job waits for something that is not the engine's own.
    Waiting {
        /// Of the job.
        id: u64,
        /// For the status line.
        what: String,
    },
    /// Something to be said once, whatever goes on.
    Note(String),
    /// A job ended.
    Done {
        /// Of the job.
        id: u64,
        /// Why.
        ended: Ended,
        /// Given tokens that are in the state now (fewer than asked when cancelled while reading).
        prompt_in_state: u64,
        /// Generated tokens that are in the state now. The rest of the reported ones (at most one: the last drawn)
        /// must be given again by the next job.
        generated_in_state: u64,
        /// For saving, if asked. Covers exactly what is in the state.
        image: Option<StateImage>,
        /// Times.
        stats: JobStats,
        /// Where the generated tokens looked.
        looked_at: LookedAt,
        /// For each list of [`Scoring::hidden`] the natural logarithm of the probability of each token but the first; fewer lists
        /// when it was cancelled.
        scored: Vec<Vec<f32>>,
        /// How likely they were with nothing hidden, if [`Scoring::likely`] asked for it: of each token but the first.
        likely: Vec<Likely>,
        /// Memory now.
        memory: MemoryInfo,
    },
    /// A job, a restore or a fork failed. The sequence it changes is empty afterwards; restore to go on. Others go on.
    Failed {
        /// Of the job, restore or fork; 0 for the model itself.
        id: u64,
        /// Why.
        fault: EngineFault,
    },
}
