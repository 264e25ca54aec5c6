//! Best logits: `candidates.cu`.

use super::run;
use crate::backend::Result;
use crate::backend::cuda::driver::{DevicePtr, Driver};

/// Logits of a launch block of [`candidates_tops`].
pub const CANDIDATE_LOGITS: u32 = 2048;

/// Words of a row that [`candidates_pick`] finds: 256 logits, 256 ids, log Σ exp, padding.
pub const FOUND_WORDS: usize = 516;

/// Logits of a group of [`candidates_tops`]: small vocabularies have to have more than 256 groups too.
fn candidate_group(vocab: u32) -> u32 {
    if vocab < 16384 { 8 } else { 32 }
}

/// Groups of a row of logits.
pub fn candidate_groups(vocab: u32) -> u32 {
    vocab.div_ceil(candidate_group(vocab))
}

/// Largest logit of each group, and each [`CANDIDATE_LOGITS`] logits' part of log Σ exp. `tops [rows, candidate_groups(vocab)]`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn candidates_tops(
    d: &dyn Driver,
    tops: DevicePtr,
    lse: DevicePtr,
    logits: DevicePtr,
    ld: u32,
    vocab: u32,
    rows: u32,
) -> Result<()> {
    let splits = vocab.div_ceil(CANDIDATE_LOGITS);
    let group = candidate_group(vocab);
    // SAFETY: the caller's.
    unsafe {
        run(d, "candidates_tops", [splits, rows, 1], 256, 0, args![tops, lse, logits, ld, vocab, group, rows, splits])
    }
}

/// Best 256 of a row in order, `found [rows, FOUND_WORDS]`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn candidates_pick(
    d: &dyn Driver,
    found: DevicePtr,
    tops: DevicePtr,
    lse: DevicePtr,
    logits: DevicePtr,
    ld: u32,
    vocab: u32,
    rows: u32,
) -> Result<()> {
    let splits = vocab.div_ceil(CANDIDATE_LOGITS);
    let group = candidate_group(vocab);
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "candidates_pick",
            [rows, 1, 1],
            1024,
            candidate_groups(vocab) * 8,
            args![found, tops, lse, logits, ld, vocab, group, rows, splits],
        )
    }
}
