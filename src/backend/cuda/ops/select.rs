//! The choice of blocks of sparse attention: scores of a pass's rows and the best of them.

use super::super::cache::Cache;
use super::super::selection::{Selection, all_within, dense_until};
use super::super::tensors::{Buf, HEAD};
use super::super::{Cuda, launch, u32_of};
use super::sparse::{only, softmax_scale, tiles_of};
use crate::backend::sparse::is_hidden;
use crate::backend::{Pass, Result, internal};
use crate::core::spec::{ScoreNorm, SparseSpec};

impl Cuda {
    /// `Sparse::select_rows`
    pub(super) fn choose(
        &mut self,
        sel: &mut Selection,
        x: &Buf,
        caches: &[&Cache],
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        self.step.flush()?;
        let q = x.narrow("select_blocks", spec.heads * HEAD)?;
        // Comparisons run under other rules than the model's own. The first run of a step is eager, so none is recorded yet.
        let within = all_within(spec)?;
        if sel.adapt(&self.device, spec)? || within != self.all_within {
            self.touch();
        }
        self.all_within = within;
        let (plan, scores) = (sel.plan, self.scores());
        let groups = self.step.groups(pass, caches.len())?;
        if groups.iter().any(|g| (g.place.position + g.rows).div_ceil(spec.block) > plan.score_blocks) {
            return Err(internal("select_blocks", "a pass beyond the context that its selection was made for"));
        }
        let level = match spec.score_norm {
            ScoreNorm::Level2 => 2,
            ScoreNorm::Level1 => 1,
        };
        let (at, of) = match pass {
            Pass::Verify { .. } => (self.step.rows_ptr(), self.table_of(caches)?),
            Pass::Prefill { .. } => (0, 0),
        };
        let (ldq, heads, kv) = (u32_of(x.width)?, u32_of(spec.heads)?, u32_of(spec.kv_heads)?);
        let [_, key_tile] = tiles_of(caches)?;
        let (lse_window, lse_stride) = (plan.keys.window, plan.keys.stride);
        let dense = dense_until(spec)?;
        let scale = softmax_scale();
        let (d, step) = (self.device.driver(), self.step.ptr());
        let top = |score_blocks: u32, row0: u32, rows: u32| {
            // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
            unsafe {
                launch::SelectTop {
                    list: sel.lists.list.ptr(),
                    count: sel.count.ptr(),
                    scores: sel.scores.ptr(),
                    step,
                    at,
                    kv_heads: kv,
                    score_blocks,
                    cap: u32_of(plan.cap)?,
                    init: u32_of(spec.init_blocks)?,
                    local: u32_of(spec.local_blocks)?,
                    topk: u32_of(spec.topk)?,
                    dense_until: dense,
                    row0,
                    rows,
                }
                .launch_suited(d)
            }
        };
        match pass {
            Pass::Verify { rows } => {
                // Rows with at most this many blocks take them all, whatever their scores.
                let all_below = u32_of(spec.topk)?;
                let (rows, splits, blocks) = (u32_of(rows)?, u32_of(plan.lse_splits)?, u32_of(plan.score_blocks)?);
                if scores {
                    // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                    unsafe {
                        launch::SelectLse {
                            part: sel.lse.ptr(),
                            q,
                            ldq,
                            level,
                            window: lse_window,
                            stride: lse_stride,
                            at,
                            of,
                            heads,
                            kv_heads: kv,
                            key_tile,
                            scale,
                            rows,
                            splits,
                            all_below,
                        }
                        .launch(d)?
                    };
                    // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                    unsafe {
                        launch::SelectScores {
                            scores: sel.scores.ptr(),
                            part: sel.lse.ptr(),
                            q,
                            ldq,
                            window: lse_window,
                            stride: lse_stride,
                            at,
                            of,
                            heads,
                            kv_heads: kv,
                            key_tile,
                            scale,
                            rows,
                            splits,
                            score_blocks: blocks,
                            all_below,
                        }
                        .launch(d)?
                    };
                }
                top(blocks, 0, rows)
            }
            Pass::Prefill { rows } => {
                let [_, _, k1, k2] = only(caches)?.entry();
                let keys = if level == 2 { k2 } else { k1 };
                let blocks =
                    (self.step.position() + rows).div_ceil(spec.block).next_multiple_of(64).min(plan.score_blocks);
                let part = sel.score_rows(spec.kv_heads, blocks);
                let score_blocks = u32_of(blocks)?;
                for row0 in (0..rows).step_by(part) {
                    let (row0, n) = (u32_of(row0)?, u32_of(part.min(rows - row0))?);
                    // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                    unsafe {
                        launch::PrefillLse {
                            z: sel.lse.ptr(),
                            q,
                            ldq,
                            keys,
                            window: lse_window,
                            stride: lse_stride,
                            step,
                            heads,
                            kv_heads: kv,
                            key_tile,
                            scale,
                            row0,
                            rows: n,
                        }
                        .launch(d)?
                    };
                    // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                    unsafe {
                        launch::PrefillScores {
                            scores: sel.scores.ptr(),
                            z: sel.lse.ptr(),
                            q,
                            ldq,
                            k1,
                            window: lse_window,
                            stride: lse_stride,
                            step,
                            heads,
                            kv_heads: kv,
                            key_tile,
                            scale,
                            row0,
                            rows: n,
                            score_blocks,
                        }
                        .launch(d)?
                    };
                    top(score_blocks, row0, n)?;
                }
                self.leave_out_hidden(sel, spec, rows)
            }
        }
    }

    /// Takes hidden blocks out of the lists of a prefill pass, on the host: such passes are measurements and no part of answering.
    fn leave_out_hidden(&mut self, sel: &Selection, spec: &SparseSpec, rows: usize) -> Result<()> {
        if sel.hidden.is_empty() {
            return Ok(());
        }
        let (kv, cap, position) = (spec.kv_heads, sel.plan.cap, self.step.position());
        let mut counts = self.words(sel.count.ptr(), rows * kv)?;
        let mut lists = self.words(sel.lists.list.ptr(), rows * kv * cap)?;
        for (n, (list, count)) in lists.chunks_exact_mut(cap).zip(&mut counts).enumerate() {
            let own = u32_of((position + n / kv) / spec.block)?;
            let mut kept = 0;
            for i in 0..(*count as usize).min(cap) {
                if !is_hidden(&sel.hidden, list[i], own) {
                    list[kept] = list[i];
                    kept += 1;
                }
            }
            *count = u32_of(kept)?;
        }
        self.staging.send_bytes(sel.lists.list.ptr(), bytemuck::cast_slice(&lists))?;
        self.staging.send_bytes(sel.count.ptr(), bytemuck::cast_slice(&counts))
    }
}
