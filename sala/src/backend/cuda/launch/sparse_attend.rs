//! Attention of prefill passes over the blocks they chose.

use super::{Attend, up};
use crate::backend::cuda::driver::Driver;

/// Shared memory of [`AttendPrefill`] outside its ring.
const ATTEND_FIXED: u32 = 4_096;
/// Bytes of a place in the ring: 32 keys and their values.
const ATTEND_HALF: u32 = 16 << 10;

/// Minimum and maximum number of places in the ring: the kernel has barriers for the maximum.
const SLOTS: [u32; 2] = [2, 16];

/// As many as the device has shared memory for.
pub fn attend_slots(d: &dyn Driver) -> u32 {
    let [fewest, most] = SLOTS;
    (d.info().shared_limit.saturating_sub(ATTEND_FIXED) / ATTEND_HALF).clamp(fewest, most)
}

fn attend_bytes(slots: u32) -> u32 {
    ATTEND_FIXED + slots * ATTEND_HALF
}

kernels! { "sparse_attend.cu", device:
    /// 11 neighbouring rows a block share the loads of the union of their blocks, each warp at its own pace through a
    /// ring of `slots` halves. `map`: the same keys and values for the copy engine, from the first of its blocks on
    AttendPrefill of Attend [attend_prefill] (
        o: Ptr("float*"), ldo: u32, q: Ptr("const bf16*"), ldq: u32, k: Ptr("const bf16*"), v: Ptr("const bf16*"),
        list: Ptr("const u32*"), count: Ptr("const u32*"), cap: u32, step: Ptr("const Step*"), heads: u32, kv_heads: u32,
        row_tile: u32, scale: f32, rows: u32, slots: u32, map: TensorMap,
    )
    grid [up(rows, 11), kv_heads, 1], threads 384, shared attend_bytes(slots);

    /// The same over the chosen blocks `from..until` alone, at their places after `k` and `v`; all blocks in ascending
    /// parts give the same bits. `parts [row][head][4]` (max, Σ) and `o`, not divided yet, are a row's between its
    /// first part and its last
    AttendPrefillPart of Attend [attend_prefill_part] (
        o: Ptr("float*"), ldo: u32, q: Ptr("const bf16*"), ldq: u32, k: Ptr("const bf16*"), v: Ptr("const bf16*"),
        list: Ptr("const u32*"), count: Ptr("const u32*"), cap: u32, step: Ptr("const Step*"), heads: u32, kv_heads: u32,
        row_tile: u32, scale: f32, rows: u32, slots: u32, map: TensorMap, parts: Ptr("float2*"), from: u32, until: u32,
    )
    grid [up(rows, 11), kv_heads, 1], threads 384, shared attend_bytes(slots);
}
