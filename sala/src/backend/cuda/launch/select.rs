//! The blocks that rows of sparse attention choose.

use super::*;

/// Compressed keys of a split of [`SelectLse`].
pub const LSE_KEYS: usize = 256;

/// KV blocks that a launch block of [`SelectScores`] scores at a time.
const SCORED: usize = 32;

/// Its shared memory: for two turns, four compressed keys per block and the 8 before, 256 bytes each.
const SCORED_BYTES: usize = 2 * (4 * SCORED + 8) * 256;

/// Rows of a sequence for which keys are read once, `SHARE` of `kernels/sparse_select.cu`; 4096 bytes of queries each.
pub const SHARE: usize = 4;

/// Launch blocks that score a share of one KV head: two per multiprocessor in all if shares are full, with equal work for each.
fn abreast(score_blocks: usize, lists: usize, device: &DeviceInfo) -> usize {
    let steps = up(score_blocks, SCORED);
    let most = (2 * device.multiprocessors / lists.max(1)).max(1);
    up(steps, up(steps, most))
}

operands! {
    /// Of the choice of blocks.
    Select:
    Ptr q keys k1 at of step part z scores list count;
    u32 ldq level window stride heads kv_heads key_tile rows row0 splits score_blocks all_below apart;
    u32 cap init local topk dense_until span;
    f32 scale;
    TensorMap map;
}

kernels! { device;
    "sparse_select.cu":
    /// `part[row][head][split] = (max, Σexp)` over 256 compressed keys of level 1 or 2 each; nothing for shares of rows that have at
    /// most `all_below` blocks. A launch block has the share that begins at row `apart` times its index, if one does
    SelectLse of Select [select_lse] (
        part: Ptr("float2*"), q: Ptr("const bf16*"), ldq: u32, level: u32, window: u32, stride: u32, at: Ptr("const Row*"),
        of: Ptr("const RowCache*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, rows: u32, splits: u32,
        all_below: u32, apart: u32,
    )
    grid [splits, kv_heads, up(rows, apart)], threads 128, shared 65_536 + rows.min(SHARE) * 4096;

    /// Pooled block scores `[row][kv][score_blocks]`, a launch block takes neighbouring turns of 32 blocks each for a share of rows; `window`, `stride` are those of the keys
    /// that `select_lse` read; `score_blocks` a multiple of 64, at most 16384
    SelectScores of Select [select_scores] (
        scores: Ptr("bf16*"), part: Ptr("const float2*"), q: Ptr("const bf16*"), ldq: u32, window: u32, stride: u32,
        at: Ptr("const Row*"), of: Ptr("const RowCache*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, rows: u32,
        splits: u32, score_blocks: u32, all_below: u32, apart: u32,
    )
    grid [abreast(score_blocks, kv_heads * up(rows, SHARE), device), kv_heads, up(rows, apart)], threads 128,
    shared SCORED_BYTES + rows.min(SHARE) * 4096;

    /// Forced blocks, then best by score, ties to the lower index; `list [row][kv][cap]` ascending, `count [row][kv]`;
    /// rows `row0..row0+rows` of the pass, `scores` starts at row0. A row at p with `p + 1 < dense_until` takes every block.
    /// `at` is null in prefill
    SelectTop of Select [select_top] (
        list: Ptr("u32*"), count: Ptr("u32*"), scores: Ptr("const bf16*"), step: Ptr("const Step*"), at: Ptr("const Row*"),
        kv_heads: u32, score_blocks: u32, cap: u32, init: u32, local: u32, topk: u32, dense_until: u32, row0: u32,
        rows: u32,
    )
    grid [kv_heads, rows, 1], threads 512, shared 4 * score_blocks;

    /// The same for `score_blocks` up to 4096, faster where there are many rows
    SelectTopMany of Select [select_top_many] (
        list: Ptr("u32*"), count: Ptr("u32*"), scores: Ptr("const bf16*"), step: Ptr("const Step*"), at: Ptr("const Row*"),
        kv_heads: u32, score_blocks: u32, cap: u32, init: u32, local: u32, topk: u32, dense_until: u32, row0: u32,
        rows: u32,
    )
    grid [kv_heads, rows, 1], threads 128, shared 4 * score_blocks;

    "sparse_scores.cu":
    /// `z[row][head]`, the log-sum-exp over compressed keys; 16 rows a block, two a warp
    PrefillLse of Select [prefill_lse] (
        z: Ptr("float*"), q: Ptr("const bf16*"), ldq: u32, keys: Ptr("const bf16*"), window: u32, stride: u32,
        step: Ptr("const Step*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, rows: u32,
    )
    grid [up(rows, 16), kv_heads, 1], threads 256, shared 32_768;

    /// As select_scores, 16 rows × 256 blocks a launch block, two rows a warp
    PrefillScores of Select [prefill_scores] (
        scores: Ptr("bf16*"), z: Ptr("const float*"), q: Ptr("const bf16*"), ldq: u32, k1: Ptr("const bf16*"),
        window: u32, stride: u32, step: Ptr("const Step*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, row0: u32,
        rows: u32, score_blocks: u32,
    )
    grid [up(score_blocks, 256), up(rows, 16), kv_heads], threads 256, shared 37_376;

    "sparse_scores_hopper.cu":
    /// As prefill_lse on Hopper, 24 rows a block. `map`: the compressed keys for the copy engine
    HopperLse of Select [hopper_lse] (
        z: Ptr("float*"), q: Ptr("const bf16*"), ldq: u32, map: TensorMap, window: u32, stride: u32,
        step: Ptr("const Step*"), heads: u32, kv_heads: u32, scale: f32, rows: u32,
    )
    grid [up(rows, SCORED_ROWS), kv_heads, 1], threads 512, shared 196_656;

    /// As prefill_scores on Hopper, 24 rows × `span` blocks (a multiple of 16) a launch block. `map`: `k1` for the copy engine
    HopperScores of Select [hopper_scores] (
        scores: Ptr("bf16*"), z: Ptr("const float*"), q: Ptr("const bf16*"), ldq: u32, map: TensorMap,
        step: Ptr("const Step*"), heads: u32, kv_heads: u32, scale: f32, row0: u32, rows: u32, score_blocks: u32, span: u32,
    )
    grid [up(score_blocks, span), up(rows, SCORED_ROWS), kv_heads], threads 512, shared 193_088;
}

/// Rows of a launch block on Hopper.
pub(super) const SCORED_ROWS: usize = 24;

/// `span` of [`HopperScores`] that takes the shortest time: a launch block begins in that of four times 16 blocks.
fn span(blocks: usize, rows: usize, kv_heads: usize, device: &DeviceInfo) -> usize {
    let lists = up(rows, SCORED_ROWS) * kv_heads;
    let time = |span: &usize| up(up(blocks, *span) * lists, device.multiprocessors.max(1)) * (span / 16 + 4);
    (1..=16).map(|parts| up(blocks, parts).next_multiple_of(16)).min_by_key(time).unwrap_or(blocks)
}

/// Limit of `score_blocks` of [`SelectTopMany`].
const MANY_BLOCKS: usize = 4096;

impl Select {
    /// # Safety
    /// See the module: every pointer must have the extent in the rows.
    pub unsafe fn lse(&self, d: &dyn Driver) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { if is_hopper(d.info()) { HopperLse(*self).launch(d) } else { PrefillLse(*self).launch(d) } }
    }

    /// # Safety
    /// See the module: every pointer must have the extent in the rows.
    pub unsafe fn score(&self, d: &dyn Driver) -> Result<()> {
        // SAFETY: the caller's.
        unsafe {
            if is_hopper(d.info()) {
                let span = span(self.score_blocks, self.rows, self.kv_heads, d.info());
                HopperScores(Select { span, ..*self }).launch(d)
            } else {
                PrefillScores(*self).launch(d)
            }
        }
    }

    /// Launches the faster of the two kernels; the result is the same.
    ///
    /// # Safety
    /// See the module: every pointer must have the extent in the rows.
    pub unsafe fn top(&self, d: &dyn Driver) -> Result<()> {
        // SAFETY: the caller's.
        unsafe {
            if self.at != 0 || self.score_blocks > MANY_BLOCKS {
                SelectTop(*self).launch(d)
            } else {
                SelectTopMany(*self).launch(d)
            }
        }
    }
}
