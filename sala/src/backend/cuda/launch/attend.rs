//! Sparse attention: the cache, attention over the chosen blocks, and the pool of blocks of keys and values that are in
//! host memory.

use super::*;

/// Chosen blocks of a split of [`AttendVerify`].
pub const ATTEND_BLOCKS: usize = 2;

/// Shared memory of [`AttendPrefill`] outside its ring.
const ATTEND_FIXED: usize = 4_096;
/// Bytes of a place in the ring: 32 keys and their values.
const ATTEND_HALF: usize = 16 << 10;

/// Minimum and maximum number of places in the ring: the kernel has barriers for the maximum.
const SLOTS: [usize; 2] = [2, 16];

/// As many as the device has shared memory for.
pub fn attend_slots(d: &dyn Driver) -> usize {
    let [fewest, most] = SLOTS;
    (d.info().shared_limit.saturating_sub(ATTEND_FIXED) / ATTEND_HALF).clamp(fewest, most)
}

fn attend_bytes(slots: usize) -> usize {
    ATTEND_FIXED + slots * ATTEND_HALF
}

/// Limit per layer and KV head: `pool_choose` holds the age of each slot.
pub const MOST_SLOTS: usize = 16_384;
/// Size of `struct Fetch`, the record of a block in transfer.
pub const FETCH_BYTES: usize = 32;

pub fn fetch_shares(d: &dyn Driver, slots: usize) -> usize {
    (2 * slots).clamp(1, d.info().multiprocessors.max(1))
}

operands! {
    /// Of attention over chosen blocks, of verify and prefill passes, resident and paged.
    Attend:
    Ptr q k v list count at of step o part_o part_ml part_block parts mass gate next_norm next_x next_sums;
    Ptr place fetch fetched seen owner stamp clock pool_k pool_v tables xk xv;
    u32 ldq ldo ldg ldm ldx cap heads kv_heads row_tile rows splits all_until slots shares blocks from until;
    f32 scale;
    TensorMap map;
}

kernels! { device;
    "sparse.cu":
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

    /// Two chosen blocks each, of a row before position `all_until` all there are: `part_o [row][head][splits][128]`, `part_ml [row][head][splits]` and, of each block,
    /// `part_block [row][head][2·splits]` (max, Σexp); `splits = ceil(cap/2)`
    AttendVerify of Attend [attend_verify] (
        part_o: Ptr("float*"), part_ml: Ptr("float2*"), part_block: Ptr("float2*"), q: Ptr("const bf16*"), ldq: u32,
        list: Ptr("const u32*"), count: Ptr("const u32*"), cap: u32, at: Ptr("const Row*"), of: Ptr("const RowCache*"),
        heads: u32, kv_heads: u32, row_tile: u32, scale: f32, rows: u32, splits: u32, all_until: u32,
    )
    grid [splits, kv_heads, rows], threads 128, shared 34_816;

    /// Splits merged in an order of their own; each head's attention, 2^22 in all, is added to the blocks it went to:
    /// `mass [row][ldm]`, whole numbers, so that their order does not matter. With `next_x`, rows for the GEMM that follows
    AttendCombine of Attend [attend_combine] (
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

    "sparse_attend.cu":
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

    "pool.cu":
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
