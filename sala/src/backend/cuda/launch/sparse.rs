//! Sparse attention of verify passes: cache and attention.

use super::{TensorMap, up};

/// Chosen blocks of a split of [`AttendVerify`].
pub const ATTEND_BLOCKS: u32 = 2;

operands! {
    /// Of attention over chosen blocks, of verify and prefill passes, resident and paged.
    Attend:
    Ptr q k v list count at of step o part_o part_ml part_block parts mass gate next_norm next_x next_sums;
    Ptr place fetch fetched seen owner stamp clock pool_k pool_v tables xk xv;
    u32 ldq ldo ldg ldm ldx cap heads kv_heads row_tile rows splits all_until slots shares blocks from until;
    f32 scale;
    TensorMap map;
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
}
