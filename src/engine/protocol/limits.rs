//! Limits that the device's code is built for and that settings, requests and plans keep to, each once.

pub const MAX_VERIFY_ROWS: usize = 16;
/// Most drafts of a round: a row of the pass is the token that is known.
pub const MAX_DEPTH: usize = MAX_VERIFY_ROWS - 1;
/// Sequences that may be live at a time: as many as a pass has rows, so that all of them can write.
pub const MAX_SEQUENCES: usize = MAX_VERIFY_ROWS;
/// Top logits per row that reach the host for sampling: more cannot be kept.
pub const TOP_LOGITS: usize = 256;
/// Highest temperature accepted anywhere: beyond it a draw is noise.
pub const MOST_TEMPERATURE: f64 = 2.0;
pub const MOST_TOKENS: u64 = 1 << 24;
