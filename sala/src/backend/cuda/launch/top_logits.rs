//! Best logits.

use crate::backend::TOP_LOGITS;

/// Logits of a launch block of [`TopLogitsGroups`].
pub const SPLIT_LOGITS: u32 = 2048;

/// Words of a row that [`TopLogitsPick`] finds: 256 logits, 256 ids, log Σ exp, padding.
pub const FOUND_WORDS: usize = 2 * TOP_LOGITS + 4;

/// Logits of a group of [`TopLogitsGroups`]: small vocabularies have to have more than 256 groups too.
pub fn top_logits_group(vocab: u32) -> u32 {
    if vocab < 16384 { 8 } else { 32 }
}

/// The largest vocabulary that [`TopLogitsPick`] has shared memory for.
pub fn most_logits(shared_limit: u32) -> usize {
    // Of large ones: see `top_logits_group`; its static arrays take less than a KiB.
    (shared_limit.saturating_sub(1024) / 8) as usize * 32
}

kernels! { "top_logits.cu", device:
    /// `tops [row][ceil(vocab/group)]`: the largest key of each `group` (8, 16 or 32) logits; `lse [row][split]`: (max, Σexp)
    /// of each 2048; `splits = ceil(vocab/2048)`
    TopLogitsGroups [top_logits_groups] (
        tops: Ptr("u32*"), lse: Ptr("float2*"), logits: Ptr("const float*"), ld: u32, vocab: u32, group: u32, rows: u32,
        splits: u32,
    )
    grid [splits, rows, 1], threads 256, shared 0;

    /// `found [row][516]`: best 256 logits by (logit descending, id ascending), their ids, log Σ exp; −inf and id 0xffffffff
    /// beyond the vocabulary
    TopLogitsPick [top_logits_pick] (
        found: Ptr("float*"), tops: Ptr("const u32*"), lse: Ptr("const float2*"), logits: Ptr("const float*"), ld: u32,
        vocab: u32, group: u32, rows: u32, splits: u32,
    )
    grid [rows, 1, 1], threads 1024, shared 8 * vocab.div_ceil(group);
}
