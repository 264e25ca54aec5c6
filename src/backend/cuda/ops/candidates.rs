//! The best logits of a row, and their way to the host.

use super::super::device::{Account, DeviceBuffer, Pinned};
use super::super::driver::{DevicePtr, Queue};
use super::super::launch;
use super::super::tensors::Buf;
use super::super::{Cuda, shape, u32_of};
use super::check_rows;
use crate::backend::{CANDIDATES, Candidates, MAX_VERIFY_ROWS, Result};

/// Where the best candidates are found and put.
pub(in crate::backend::cuda) struct CandidateBuffers {
    vocab: usize,
    tops: DeviceBuffer,
    sums: DeviceBuffer,
    /// `[16][FOUND_WORDS]`, written by the kernel itself: a copy behind it would take as long as all that is in it.
    found: Pinned,
}

/// Of a row.
const FOUND_BYTES: usize = launch::FOUND_WORDS * 4;

impl Cuda {
    pub(in crate::backend::cuda) fn op_top_candidates(
        &mut self,
        logits: &Buf,
        vocab: usize,
        rows: usize,
    ) -> Result<()> {
        let from = logits.wide("top_candidates", vocab)?;
        check_rows("top_candidates", logits, rows)?;
        if self.candidates.as_ref().is_none_or(|c| c.vocab < vocab) {
            if self.candidates.take().is_some() {
                self.touch();
            }
            let work = |bytes| self.device.zeroed("candidates", bytes, Account::Work);
            let splits = vocab.div_ceil(launch::CANDIDATE_LOGITS as usize);
            self.candidates = Some(CandidateBuffers {
                vocab,
                // Never fewer than for any smaller vocabulary, whose groups may be smaller.
                tops: work(MAX_VERIFY_ROWS * vocab.div_ceil(8) * 4)?,
                sums: work(MAX_VERIFY_ROWS * splits * 8)?,
                found: self.device.pinned(MAX_VERIFY_ROWS * FOUND_BYTES)?,
            });
        }
        let Some(c) = &self.candidates else {
            return Ok(());
        };
        let d = self.device.driver();
        // Page-locked memory has one address for both sides.
        let found = c.found.as_ptr() as DevicePtr;
        let (tops, lse) = (c.tops.ptr(), c.sums.ptr());
        let (ld, vocab, rows) = (u32_of(logits.width)?, u32_of(vocab)?, u32_of(rows)?);
        let (group, splits) = (launch::candidate_group(vocab), vocab.div_ceil(launch::CANDIDATE_LOGITS));
        // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
        unsafe {
            launch::CandidatesTops { tops, lse, logits: from, ld, vocab, group, rows, splits }.launch(d)?;
            launch::CandidatesPick { found, tops, lse, logits: from, ld, vocab, group, rows, splits }.launch(d)
        }
    }

    pub(in crate::backend::cuda) fn fetch_candidates(&mut self, rows: usize) -> Result<Vec<Candidates>> {
        if rows > MAX_VERIFY_ROWS {
            return Err(shape("candidates", format!("at most {MAX_VERIFY_ROWS} rows"), rows));
        }
        let Some(c) = &self.candidates else {
            return Err(shape("candidates", "top_candidates before", "none"));
        };
        self.device.driver().synchronize(Queue::Compute)?;
        let words: &[u32] = bytemuck::try_cast_slice(c.found.as_slice()).unwrap_or_default();
        Ok(words
            .chunks_exact(launch::FOUND_WORDS)
            .take(rows)
            .map(|row| {
                let (values, rest) = row.split_at(CANDIDATES);
                let (ids, sum) = rest.split_at(CANDIDATES);
                // Places beyond the vocabulary hold this id.
                let n = ids.iter().position(|id| *id == u32::MAX);
                let n = n.unwrap_or(CANDIDATES);
                Candidates {
                    ids: ids.iter().take(n).copied().collect(),
                    logits: values.iter().take(n).map(|v| f32::from_bits(*v)).collect(),
                    log_sum_exp: sum.first().map_or(f32::NAN, |s| f32::from_bits(*s)),
                }
            })
            .collect())
    }
}
