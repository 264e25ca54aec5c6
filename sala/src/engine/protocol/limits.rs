//! Limits of the device code that settings, requests and plans respect, each defined once.

pub const MAX_VERIFY_ROWS: usize = 16;
/// Drafts of a round: one row of the pass is the pending token.
pub const MAX_DEPTH: usize = MAX_VERIFY_ROWS - 1;
/// Live sequences: as many as a pass has rows, so that all of them can write.
pub const MAX_SEQUENCES: usize = MAX_VERIFY_ROWS;
/// Top logits per row that reach the host; an upper bound of top-k.
pub const TOP_LOGITS: usize = 256;
/// Beyond this temperature a draw is noise.
pub const MOST_TEMPERATURE: f64 = 2.0;
pub const MOST_TOKENS: u64 = 1 << 24;
