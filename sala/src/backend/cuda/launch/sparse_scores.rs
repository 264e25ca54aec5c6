//! Scores of sparse attention in prefill passes.

use super::{Select, up};

kernels! { "sparse_scores.cu", device:
    /// `z[row − row0][head]`, the log-sum-exp over compressed keys; 16 rows a block, two a warp
    PrefillLse of Select [prefill_lse] (
        z: Ptr("float*"), q: Ptr("const bf16*"), ldq: u32, keys: Ptr("const bf16*"), window: u32, stride: u32,
        step: Ptr("const Step*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, row0: u32, rows: u32,
    )
    grid [up(rows, 16), kv_heads, 1], threads 256, shared 32_768;

    /// As select_scores, 16 rows × 256 blocks a launch block, two rows a warp
    PrefillScores of Select [prefill_scores] (
        scores: Ptr("bf16*"), z: Ptr("const float*"), q: Ptr("const bf16*"), ldq: u32, k1: Ptr("const bf16*"),
        window: u32, stride: u32, step: Ptr("const Step*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, row0: u32,
        rows: u32, score_blocks: u32,
    )
    grid [up(score_blocks, 256), up(rows, 16), kv_heads], threads 256, shared 37_376;
}
