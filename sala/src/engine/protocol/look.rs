//! Reports of attention, and texts that are scored instead of written.

use serde::{Deserialize, Serialize};

use super::Token;

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
