//! Sparse attention of prefill passes.

use super::up;
use crate::backend::cuda::driver::Driver;

/// Shared memory of [`AttendPrefill`] beside its ring.
const ATTEND_FIXED: u32 = 35_968;
/// Bytes of a place in the ring: 32 keys and their values.
const ATTEND_HALF: u32 = 16 << 10;

/// Places in the ring of [`AttendPrefill`]: as many as the device has shared memory for.
pub fn attend_slots(d: &dyn Driver) -> u32 {
    (d.info().shared_limit.saturating_sub(ATTEND_FIXED) / ATTEND_HALF).max(2)
}

/// Its shared memory.
fn attend_bytes(slots: u32) -> u32 {
    ATTEND_FIXED + slots * ATTEND_HALF
}

kernels! { "sparse_prefill.cu", device:
    /// `z[row − row0][head]`, the log-sum-exp over compressed keys; 8 rows a block
    PrefillLse [prefill_lse] (
        z: Ptr("float*"), q: Ptr("const bf16*"), ldq: u32, keys: Ptr("const bf16*"), window: u32, stride: u32,
        step: Ptr("const Step*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, row0: u32, rows: u32,
    )
    grid [up(rows, 8), kv_heads, 1], threads 256, shared 32_768;

    /// As select_scores, 16 rows × 256 blocks a launch block, two rows a warp
    PrefillScores [prefill_scores] (
        scores: Ptr("bf16*"), z: Ptr("const float*"), q: Ptr("const bf16*"), ldq: u32, k1: Ptr("const bf16*"),
        window: u32, stride: u32, step: Ptr("const Step*"), heads: u32, kv_heads: u32, key_tile: u32, scale: f32, row0: u32,
        rows: u32, score_blocks: u32,
    )
    grid [up(score_blocks, 256), up(rows, 16), kv_heads], threads 256, shared 37_376;

    /// 8 neighbouring rows a block share the loads of the union of their blocks, each warp at its own pace through a ring of
    /// `slots` halves
    AttendPrefill [attend_prefill] (
        o: Ptr("float*"), ldo: u32, q: Ptr("const bf16*"), ldq: u32, k: Ptr("const bf16*"), v: Ptr("const bf16*"),
        list: Ptr("const u32*"), count: Ptr("const u32*"), cap: u32, step: Ptr("const Step*"), heads: u32, kv_heads: u32,
        row_tile: u32, scale: f32, rows: u32, slots: u32,
    )
    grid [up(rows, 8), kv_heads, 1], threads 288, shared attend_bytes(slots);

    /// The same over the chosen blocks `from..until` alone, which lie behind `k` and `v` at their places; all blocks in ascending
    /// parts give the same bits. `parts [row][head][4]` (max, Σ) and `o`, not divided yet, are a row's between its first part and its last
    AttendPrefillPart [attend_prefill_part] (
        o: Ptr("float*"), ldo: u32, q: Ptr("const bf16*"), ldq: u32, k: Ptr("const bf16*"), v: Ptr("const bf16*"),
        list: Ptr("const u32*"), count: Ptr("const u32*"), cap: u32, step: Ptr("const Step*"), heads: u32, kv_heads: u32,
        row_tile: u32, scale: f32, rows: u32, slots: u32, parts: Ptr("float2*"), from: u32, until: u32,
    )
    grid [up(rows, 8), kv_heads, 1], threads 288, shared attend_bytes(slots);
}
