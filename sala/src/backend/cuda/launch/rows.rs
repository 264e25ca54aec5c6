//! Operations on rows.

use super::{up, up64};

kernels! { "rows.cu", device:
    /// `dst[i] = value`
    FillF32 [fill_f32] (dst: Ptr("float*"), n: u64, value: f32)
    grid [up64(n, 1024), 1, 1], threads 256, shared 0;

    /// `dst[i] = backend::synthetic_value(seed, i, std)`
    RandomBf16 [random_bf16] (dst: Ptr("bf16*"), n: u64, std: f32, seed: u64)
    grid [up64(n, 1024), 1, 1], threads 256, shared 0;

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
}
