//! The results of a job: how it ended, its measurements, reports of attention, and scores.

use serde::{Deserialize, Serialize};

use super::{Likely, MemoryInfo, StateImage, Token, exact};
use crate::core::transcript::Finish;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    #[default]
    Read,
    Stop,
    Length,
    Context,
    Repeats,
    /// State and events agree: everything reported is in the state, nothing else.
    Cancelled,
}

impl Ended {
    pub fn finish(self) -> Finish {
        match self {
            Ended::Stop | Ended::Read => Finish::Stop,
            Ended::Length => Finish::Length,
            Ended::Context => Finish::Context,
            Ended::Repeats => Finish::Repeats,
            Ended::Cancelled => Finish::Stopped,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct JobDone {
    pub ended: Ended,
    /// Prompt tokens in the state now; fewer than requested if cancelled during prefill.
    pub prompt_in_state: u64,
    /// Generated tokens in the state now. The next job must repeat the other reported ones (at most one: the last
    /// drawn).
    pub generated_in_state: u64,
    /// On request. Covers exactly the state.
    pub image: Option<StateImage>,
    pub stats: JobStats,
    pub looked_at: LookedAt,
    /// For each list of [`Scoring::hidden`](super::Scoring::hidden) the natural logarithm of the probability of each
    /// token but the first; fewer lists if cancelled.
    #[serde(with = "exact")]
    pub scored: Vec<Vec<f32>>,
    /// For each token but the first, with nothing hidden, if [`Scoring::likely`](super::Scoring::likely) is set.
    pub likely: Vec<Likely>,
    pub memory: MemoryInfo,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpecStats {
    pub rounds: u64,
    pub drafted: u64,
    pub accepted: u64,
    pub mean_accept_length: f64,
    pub eagle_rounds: u64,
    pub ngram_rounds: u64,
    pub plain_rounds: u64,
    /// `[depth]`: (tried, accepted) at draft position depth + 1.
    pub per_position: Vec<(u64, u64)>,
    /// Time of the decode rounds divided by that of plain steps; 0 if unknown.
    pub time_vs_plain: f64,
}

impl SpecStats {
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

/// A server's counts for one answer, in its own tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub prompt_tokens: u64,
    /// The part of the prompt tokens that the server did not have to read.
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub thought_tokens: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobStats {
    pub prefilled_tokens: u64,
    pub prefill_ms: f64,
    pub generated_tokens: u64,
    pub decode_ms: f64,
    pub spec: SpecStats,
    pub usage: Option<Usage>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Tokens up to and including this one are thoughts; `None`: there are none.
    pub thoughts_until: Option<Token>,
    pub each_token: bool,
}

/// Attention of the sparse layers while tokens were written, summed over tokens, heads and layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Looked {
    /// Number of summed tokens. An answer's first token does not count: it is drawn from the last row that was read.
    pub tokens: u64,
    pub block_tokens: u32,
    pub blocks: Vec<BlockLook>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockLook {
    /// Block b holds the tokens from `b · block_tokens` on.
    pub block: u32,
    /// Share of all attention, 0 to 1; over all blocks they add up to 1.
    pub share: f32,
    /// The part of `share` from rows that had to choose the block: one of the first blocks, or in the local window
    /// before the token.
    pub forced: f32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LookedAt {
    pub thoughts: Looked,
    pub answer: Looked,
}

/// A text to score after the prompt, once for each list of hidden blocks. Afterwards the state is that after the
/// prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scoring {
    pub tokens: Vec<Token>,
    /// Number of likeliest tokens to report with each token: [`JobDone::likely`](super::JobDone::likely).
    pub likely: Option<u8>,
    /// Blocks that its rows do not attend to in the sparse layers; the recurrent states keep what they have read of
    /// them.
    pub hidden: Vec<Vec<std::ops::Range<u32>>>,
}
