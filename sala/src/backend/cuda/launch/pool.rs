//! Keys and values in host memory, and a pool of their blocks on the device.

use super::{Attend, up};
use crate::backend::cuda::driver::Driver;

/// Limit per layer and KV head: `pool_choose` holds the age of each slot.
pub const MOST_SLOTS: usize = 16_384;
/// Size of `struct Fetch`, the record of a block in transfer.
pub const FETCH_BYTES: usize = 32;

pub fn fetch_shares(d: &dyn Driver, slots: u32) -> u32 {
    (2 * slots).clamp(1, d.info().multiprocessors.max(1))
}

kernels! { "pool.cu", device:
    /// Looks up the chosen blocks of rows 1..16: `place [row][kv][cap]` is the slot of each, -1 for what is to be read from host
    /// memory. The longest unchosen slots go to blocks that have none, listed in `fetch [kv][slots]`, `fetched [kv]`. New rows go to slots too.
    /// `owner`, `stamp [kv][slots]`, `clock [kv]`; `seen [kv][4]`: looked up, fetched, without a slot. At most 16384 slots
    PoolChoose of Attend [pool_choose] (
        place: Ptr("int*"), fetch: Ptr("Fetch*"), fetched: Ptr("u32*"), seen: Ptr("u64*"), owner: Ptr("u64*"),
        stamp: Ptr("u32*"), clock: Ptr("u32*"), pool_k: Ptr("bf16*"), pool_v: Ptr("bf16*"), slots: u32,
        xk: Ptr("const bf16*"), xv: Ptr("const bf16*"), ldx: u32, list: Ptr("const u32*"), count: Ptr("const u32*"),
        cap: u32, at: Ptr("const Row*"), of: Ptr("const RowCache*"), tables: Ptr("const RowBlocks*"), blocks: u32,
        kv_heads: u32, row_tile: u32, rows: u32,
    )
    grid [kv_heads, 1, 1], threads 512, shared 0;

    /// Copies the listed blocks from host memory into their slots `[kv][slots][64][128]`
    PoolFetch of Attend [pool_fetch] (
        pool_k: Ptr("bf16*"), pool_v: Ptr("bf16*"), fetch: Ptr("const Fetch*"), fetched: Ptr("const u32*"), slots: u32,
        kv_heads: u32, shares: u32,
    )
    grid [shares, kv_heads, 1], threads 256, shared 0;

    /// As attend_verify, each block where `place` says
    PoolAttend of Attend [pool_attend] (
        part_o: Ptr("float*"), part_ml: Ptr("float2*"), part_block: Ptr("float2*"), q: Ptr("const bf16*"), ldq: u32,
        list: Ptr("const u32*"), count: Ptr("const u32*"), place: Ptr("const int*"), cap: u32, at: Ptr("const Row*"),
        of: Ptr("const RowCache*"), pool_k: Ptr("const bf16*"), pool_v: Ptr("const bf16*"), slots: u32, heads: u32,
        kv_heads: u32, row_tile: u32, scale: f32, rows: u32, splits: u32,
    )
    grid [splits, kv_heads, rows], threads 128, shared 34_816;

    /// Blocks `from..blocks` of a sequence leave the pool: `table [kv][blocks]`
    PoolForget [pool_forget] (
        table: Ptr("int*"), owner: Ptr("u64*"), stamp: Ptr("u32*"), slots: u32, blocks: u32, from: u32, kv_heads: u32,
    )
    grid [up(blocks.saturating_sub(from), 256), kv_heads, 1], threads 256, shared 0;
}
