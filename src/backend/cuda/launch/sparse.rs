//! Sparse attention of verify passes.

use super::{DeviceInfo, up};

/// Compressed keys of a split of [`SelectLse`].
pub const LSE_KEYS: u32 = 256;

/// Chosen blocks of a split of [`AttendVerify`].
pub const ATTEND_BLOCKS: u32 = 2;

/// Blocks of KV that a launch block of [`SelectScores`] scores at a time.
const SCORED: u32 = 32;

/// What it has in hand: of two turns, four compressed keys a block and the 8 before, 256 bytes each.
const SCORED_BYTES: u32 = 2 * (4 * SCORED + 8) * 256;

/// Launch blocks that score a row of one KV head: two a multiprocessor for all heads and rows, and as many for each of them to have the same to do.
fn abreast(score_blocks: u32, lists: u32, device: &DeviceInfo) -> u32 {
    let steps = up(score_blocks, SCORED);
    let most = (2 * device.multiprocessors / lists.max(1)).max(1);
    up(steps, up(steps, most))
}

kernels! { "sparse.cu", device:
    /// Rows `[kv, 128]` of keys and values, and the compressed rows whose window they complete; `row_tile`, `key_tile`: elements between tiles of
    /// keys and values and of compressed keys (`attention.cuh`)
    AppendKv [append_kv] (
        k: Ptr("bf16*"), v: Ptr("bf16*"), k1: Ptr("bf16*"), k2: Ptr("bf16*"), xk: Ptr("const bf16*"),
        xv: Ptr("const bf16*"), ldx: u32, step: Ptr("const Step*"), kv_heads: u32, row_tile: u32, key_tile: u32, rows: u32,
    )
    grid [rows, kv_heads, 1], threads 128, shared 0;

    /// The same for 1..16 rows of a verify pass, each in the cache of its own sequence
    AppendKvVerify [append_kv_verify] (
        xk: Ptr("const bf16*"), xv: Ptr("const bf16*"), ldx: u32, at: Ptr("const Row*"), of: Ptr("const RowCache*"),
        kv_heads: u32, row_tile: u32, key_tile: u32, rows: u32,
    )
    grid [rows, kv_heads, 1], threads 128, shared 0;

    /// `part[row][head][split] = (max, Σexp)` over 256 compressed keys of level 1 or 2 each; nothing for rows that have at most
    /// `all_below` blocks
    SelectLse [select_lse] (
        part: Ptr("float2*"), q: Ptr("const bf16*"), ldq: u32, level: u32, window: u32, stride: u32, at: Ptr("const Row*"),
        of: Ptr("const RowCache*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, rows: u32, splits: u32,
        all_below: u32,
    )
    grid [splits, kv_heads, rows], threads 128, shared 65_536;

    /// Pooled block scores `[row][kv][score_blocks]`, a launch block takes 32 blocks in turns with the others; `window`, `stride` are those of the keys
    /// that `select_lse` read; `score_blocks` a multiple of 64, at most 16384
    SelectScores [select_scores] (
        scores: Ptr("bf16*"), part: Ptr("const float2*"), q: Ptr("const bf16*"), ldq: u32, window: u32, stride: u32,
        at: Ptr("const Row*"), of: Ptr("const RowCache*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, rows: u32,
        splits: u32, score_blocks: u32, all_below: u32,
    )
    grid [abreast(score_blocks, kv_heads * rows, device), kv_heads, rows], threads 128, shared SCORED_BYTES;

    /// Forced blocks, then best by score, ties to the lower index; `list [row][kv][cap]` ascending, `count [row][kv]`;
    /// rows `row0..row0+rows` of the pass, `scores` starts at row0. A row at p with `p + 1 < dense_until` takes every block.
    /// `at` is null in prefill
    SelectTop [select_top] (
        list: Ptr("u32*"), count: Ptr("u32*"), scores: Ptr("const bf16*"), step: Ptr("const Step*"), at: Ptr("const Row*"),
        kv_heads: u32, score_blocks: u32, cap: u32, init: u32, local: u32, topk: u32, dense_until: u32, row0: u32,
        rows: u32,
    )
    grid [kv_heads, rows, 1], threads 512, shared 4 * score_blocks;

    /// Two chosen blocks each, of a row before position `all_until` all there are: `part_o [row][head][splits][128]`, `part_ml [row][head][splits]` and, of each block,
    /// `part_block [row][head][2·splits]` (max, Σexp); `splits = ceil(cap/2)`
    AttendVerify [attend_verify] (
        part_o: Ptr("float*"), part_ml: Ptr("float2*"), part_block: Ptr("float2*"), q: Ptr("const bf16*"), ldq: u32,
        list: Ptr("const u32*"), count: Ptr("const u32*"), cap: u32, at: Ptr("const Row*"), of: Ptr("const RowCache*"),
        heads: u32, kv_heads: u32, row_tile: u32, scale: f32, rows: u32, splits: u32, all_until: u32,
    )
    grid [splits, kv_heads, rows], threads 128, shared 34_816;

    /// Splits merged in an order of their own; each head's attention, 2^22 in all, is added to the blocks it went to:
    /// `mass [row][ldm]`, whole numbers, so that their order does not matter. With `next_x`, rows for the GEMM that follows
    AttendCombine [attend_combine] (
        o: Ptr("float*"), ldo: u32, next_norm: Ptr("const float*"), next_x: Ptr("bf16*"), next_sums: Ptr("float*"),
        gate: Ptr("const bf16*"), ldg: u32, mass: Ptr("u32*"), ldm: u32, part_o: Ptr("const float*"),
        part_ml: Ptr("const float2*"), part_block: Ptr("const float2*"), list: Ptr("const u32*"), count: Ptr("const u32*"),
        cap: u32, heads: u32, kv_heads: u32, rows: u32, splits: u32,
    )
    grid [heads, rows, 1], threads 256, shared 0;

    /// `sums [block]` (freely chosen, forced) `+=` mass of rows `row0..row0+rows`; between passes, so the position is a
    /// parameter
    MassAdd [mass_add] (
        sums: Ptr("u64*"), mass: Ptr("const u32*"), ldm: u32, position: u32, blocks: u32, init: u32, local: u32, row0: u32,
        rows: u32,
    )
    grid [up(blocks, 256), 1, 1], threads 256, shared 0;
}
