//! The choice of blocks of sparse attention: scores of a pass's rows, and the top blocks.

use super::super::cache::Cache;
use super::super::driver::TileMap;
use super::super::joined::KEY_TILE;
use super::super::selection::{Selection, all_within, dense_until};
use super::super::tensors::{Buf, HEAD};
use super::super::{Cuda, launch, u32_of};
use super::sparse::{only, softmax_scale, tiles_of};
use crate::backend::sparse::is_hidden;
use crate::backend::{Pass, Result, internal};
use crate::core::spec::{ScoreNorm, SparseSpec};

impl Cuda {
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
        // Comparisons use other rules than the model's own. The first run of a step is eager, so none is recorded yet.
        let within = all_within(spec);
        if sel.adapt(&self.device, spec)? || within != self.all_within {
            self.touch();
        }
        self.all_within = within;
        let (plan, scores) = (sel.plan, self.scores());
        let groups = self.step.groups(pass, caches.len())?;
        if groups.iter().any(|g| (g.place.position + g.rows).div_ceil(spec.block) > plan.score_blocks) {
            return Err(internal("select_blocks", "a pass beyond the context that its selection was made for"));
        }
        let [_, key_tile] = tiles_of(caches)?;
        let operands = launch::Select {
            q,
            ldq: x.width,
            step: self.step.ptr(),
            scores: sel.scores.ptr(),
            part: sel.lse.ptr(),
            z: sel.lse.ptr(),
            list: sel.lists.list.ptr(),
            count: sel.count.ptr(),
            level: match spec.score_norm {
                ScoreNorm::Level2 => 2,
                ScoreNorm::Level1 => 1,
            },
            window: plan.keys[0],
            stride: plan.keys[1],
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            key_tile,
            scale: softmax_scale(),
            cap: plan.cap,
            init: spec.init_blocks,
            local: spec.local_blocks,
            topk: spec.topk,
            dense_until: dense_until(spec),
            ..launch::Select::default()
        };
        match pass {
            Pass::Verify { rows } => {
                let operands = launch::Select {
                    at: self.step.rows_ptr(),
                    of: self.table_of(caches)?,
                    rows,
                    splits: plan.lse_splits,
                    score_blocks: plan.score_blocks,
                    // Rows with at most this many blocks take them all, whatever their scores.
                    all_below: operands.topk,
                    // With several sequences any row may be the first of its sequence: the recording fits all of them.
                    apart: if caches.len() > 1 { 1 } else { launch::SHARE },
                    ..operands
                };
                let d = self.device.driver();
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe {
                    if scores {
                        launch::SelectLse(operands).launch(d)?;
                        launch::SelectScores(operands).launch(d)?;
                    }
                    operands.top(d)
                }
            }
            Pass::Prefill { rows } => {
                let [_, _, k1, k2] = only(caches)?.entry();
                let end = self.step.place.position + rows;
                let blocks = end.div_ceil(spec.block).next_multiple_of(64).min(plan.score_blocks);
                let part = sel.score_rows(spec.kv_heads, blocks);
                let d = self.device.driver();
                let keys = if operands.level == 2 { k2 } else { k1 };
                let map = |at, stride| {
                    let (width, rows) = (spec.kv_heads * HEAD, KEY_TILE / stride);
                    let tiles = end.div_ceil(KEY_TILE);
                    d.tensor_map(&TileMap { at, second: width as u64 * 2, width, rows, tile: key_tile, tiles })
                };
                let operands = launch::Select { keys, k1, rows, score_blocks: blocks, ..operands };
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe { launch::Select { map: map(keys, plan.keys[1])?, ..operands }.lse(d)? };
                let map = map(k1, spec.stride)?;
                for row0 in (0..rows).step_by(part) {
                    let operands = launch::Select { map, row0, rows: part.min(rows - row0), ..operands };
                    // SAFETY: as above.
                    unsafe {
                        operands.score(d)?;
                        operands.top(d)?;
                    }
                }
                self.leave_out_hidden(sel, spec, rows)
            }
        }
    }

    /// Removes hidden blocks from the lists of a prefill pass, on the host: only measurements use this.
    fn leave_out_hidden(&mut self, sel: &Selection, spec: &SparseSpec, rows: usize) -> Result<()> {
        if sel.hidden.is_empty() {
            return Ok(());
        }
        let (kv, cap, position) = (spec.kv_heads, sel.plan.cap, self.step.place.position);
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
