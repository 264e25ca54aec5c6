//! Operations on rows, from the embedding to the best logits.

use super::*;
use crate::backend::TOP_LOGITS;

/// Logits of a launch block of [`TopLogitsGroups`].
pub const SPLIT_LOGITS: usize = 2048;

/// Words of a row that [`TopLogitsPick`] finds: 256 logits, 256 ids, log Σ exp, padding.
pub const FOUND_WORDS: usize = 2 * TOP_LOGITS + 4;

/// Logits of a group of [`TopLogitsGroups`]: small vocabularies have to have more than 256 groups too.
pub fn top_logits_group(vocab: usize) -> usize {
    if vocab < 16384 { 8 } else { 32 }
}

/// The largest vocabulary that [`TopLogitsPick`] has shared memory for.
pub fn most_logits(shared_limit: usize) -> usize {
    // Of large ones: see `top_logits_group`; its static arrays take less than a KiB.
    shared_limit.saturating_sub(1024) / 8 * 32
}

kernels! { device;
    "rows.cu":
    /// `dst[i] = value`
    FillF32 [fill_f32] (dst: Ptr("float*"), n: u64, value: f32)
    grid [up(n as usize, 1024), 1, 1], threads 256, shared 0;

    /// `dst[i] = backend::synthetic_value(seed, i, std)`
    RandomBf16 [random_bf16] (dst: Ptr("bf16*"), n: u64, std: f32, seed: u64)
    grid [up(n as usize, 1024), 1, 1], threads 256, shared 0;

    /// Sums of n16 16-byte words, one a launch block, to time reading; `out` has room for 8 per multiprocessor
    MeasureRead [measure_read] (out: Ptr("float*"), src: Ptr("const uint4*"), n16: u64)
    grid [8 * device.multiprocessors.max(1), 1, 1], threads 512, shared 0;

    /// `dst[i] = from[i]`, `from` in the host's memory
    TakeWords [take_words] (dst: Ptr("u32*"), from: Ptr("const u32*"), n: u32)
    grid [up(n, 256), 1, 1], threads 256, shared 0;

    /// `h[r] = scale · table[tokens[r]]`; zeros for an id outside. With `next_x`, rows for the GEMM that follows
    EmbedRows [embed_rows] (
        h: Ptr("float*"), table: Ptr("const bf16*"), tokens: Ptr("const u32*"), hidden: u32, vocab: u32, scale: f32,
        next_norm: Ptr("const float*"), next_x: Ptr("bf16*"), next_sums: Ptr("float*"), rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// `table[r][i] = (cos, sin)(fl(position_r · inv_freq[i]))`, i < 64; once per pass, read by every lightning layer; `at` is
    /// null in prefill
    RopeTable [rope_table] (
        table: Ptr("float2*"), inv_freq: Ptr("const float*"), step: Ptr("const Step*"), at: Ptr("const Row*"), rows: u32,
    )
    grid [up(rows * 64, 256), 1, 1], threads 256, shared 0;

    /// `dst = bf16(src · norm · rstd · mul)`; `norm` null: `bf16(src · mul)`. `sums` not null: `dst = bf16(src · norm)` and
    /// `sums[row][n/32]` of the squares of `src`
    NormRows [norm_rows] (
        dst: Ptr("bf16*"), ldd: u32, sums: Ptr("float*"), src: Ptr("const float*"), lds: u32,
        norm: Ptr("const float*"), n: u32, eps: f32, mul: f32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// The same for a bf16 source
    NormRowsBf16 [norm_rows_bf16] (
        dst: Ptr("bf16*"), ldd: u32, src: Ptr("const bf16*"), lds: u32, norm: Ptr("const float*"), n: u32, eps: f32,
        rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// `dst = bf16(norm(o) ∘ sigmoid(gate))`; `norm` and `gate` may be null; `gate` points at its first column. `sums` as above
    GateRows [gate_rows] (
        dst: Ptr("bf16*"), ldd: u32, sums: Ptr("float*"), o: Ptr("const float*"), ldo: u32,
        norm: Ptr("const float*"), eps: f32, gate: Ptr("const bf16*"), ldg: u32, n: u32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// `dst[j] = silu(gate_j) · up_j` of interleaved `gu [rows, 2·inter]`
    SwigluRows [swiglu_rows] (dst: Ptr("bf16*"), ldd: u32, gu: Ptr("const bf16*"), inter: u32, rows: u32)
    grid [up(inter, 2048), rows, 1], threads 256, shared 0;

    /// Copies f32 rows into columns of a wider buffer; `aux` points at its first column
    AuxRows [aux_rows] (aux: Ptr("float*"), lda: u32, h: Ptr("const float*"), hidden: u32, rows: u32)
    grid [rows, 1, 1], threads 256, shared 0;

    /// The same, rounded
    AuxRowsBf16 [aux_rows_bf16] (aux: Ptr("bf16*"), lda: u32, h: Ptr("const float*"), hidden: u32, rows: u32)
    grid [rows, 1, 1], threads 256, shared 0;

    "fp8.cu":
    /// bf16 rows `[rows, n]` as e4m3 and a scale per row: `src = dst · scale`, the largest value of a row 448; rows of zeros, and of values up to 1e-30, are zeros with the scale 0
    NarrowRows [narrow_rows] (
        dst: Ptr("unsigned char*"), scales: Ptr("float*"), src: Ptr("const bf16*"), n: u32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// What `gate_rows` makes of rows in bf16, as `narrow_rows` makes it of those
    NarrowGated [narrow_gated] (
        dst: Ptr("unsigned char*"), scales: Ptr("float*"), o: Ptr("const float*"), ldo: u32, norm: Ptr("const float*"),
        eps: f32, gate: Ptr("const bf16*"), ldg: u32, n: u32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// What `swiglu_rows` makes of rows in bf16, as `narrow_rows` makes it of those
    NarrowSwiglu [narrow_swiglu] (
        dst: Ptr("unsigned char*"), scales: Ptr("float*"), gu: Ptr("const bf16*"), inter: u32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    "top_logits.cu":
    /// `tops [row][ceil(vocab/group)]`: the largest key of each `group` (8, 16 or 32) logits; `lse [row][split]`: (max, Σexp)
    /// of each 2048; `splits = ceil(vocab/2048)`
    TopLogitsGroups [top_logits_groups] (
        tops: Ptr("u32*"), lse: Ptr("float2*"), logits: Ptr("const float*"), ld: u32, vocab: u32, group: u32, rows: u32,
        splits: u32,
    )
    grid [splits, rows, 1], threads 256, shared 0;

    /// `found [row][516]`: best 256 logits by (logit descending, id ascending), their ids, log Σ exp; −inf and id 0xffffffff
    /// beyond the vocabulary
    TopLogitsPick [top_logits_pick] (
        found: Ptr("float*"), tops: Ptr("const u32*"), lse: Ptr("const float2*"), logits: Ptr("const float*"), ld: u32,
        vocab: u32, group: u32, rows: u32, splits: u32,
    )
    grid [rows, 1, 1], threads 1024, shared 8 * vocab.div_ceil(group);

    "compare.cu":
    /// Sets `*found`, which is 0, where a and b differ in any of n16 16-byte words
    Differ [differ] (found: Ptr("u32*"), a: Ptr("const uint4*"), b: Ptr("const uint4*"), n16: u64)
    grid [up(n16 as usize, 1024), 1, 1], threads 256, shared 0;
}
