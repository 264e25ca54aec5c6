//! One typed wrapper per kernel: arguments in kernel order, grid, block and shared memory. Nothing else.
//!
//! The contract of each kernel (layouts, limits) is its row in `kernels/README.md`.
//!
//! # Safety
//!
//! Every function here hands raw device addresses to a kernel. Its caller guarantees that each points to memory of the
//! extent the contract names, that it stays allocated until the queue has passed the launch (or as long as a recording
//! holds it), and that outputs do not overlap inputs unless the contract allows it.
#![allow(clippy::too_many_arguments)]

use super::driver::{Arg, DevicePtr, Driver, Follow, Launch};
use crate::backend::Result;

/// Compressed keys of a split of [`select_lse`].
pub const LSE_KEYS: u32 = 256;
/// Chosen blocks of a split of [`attend_verify`].
pub const ATTEND_BLOCKS: u32 = 2;
/// Logits of a launch block of [`candidates_tops`].
pub const CANDIDATE_LOGITS: u32 = 2048;
/// Words of a row that [`candidates_pick`] finds: 256 logits, 256 ids, log Σ exp, padding.
pub const FOUND_WORDS: usize = 516;
/// Ring slots of a split of [`draft_attend`].
pub const DRAFT_SLOTS: u32 = 128;
// Dynamic shared memory of the kernels that need some (their sources say what for).
const LIGHTNING_SHARED: u32 = 95_504;
const SELECT_LSE_SHARED: u32 = 65_536;
const SELECT_SCORES_SHARED: u32 = 67_584;
const ATTEND_VERIFY_SHARED: u32 = 34_816;
const PREFILL_LSE_SHARED: u32 = 32_768;
const PREFILL_SCORES_SHARED: u32 = 37_376;
const ATTEND_PREFILL_SHARED: u32 = 35_968;
const GEMM_SHARED: u32 = 81_920;
/// Most rows that a skinny product norms or gates itself: more take longer than a kernel before it.
const STAGED_ROWS: u32 = 2;
/// Weight rows a block of a skinny product works on at a time, and bytes of a stage of its ring.
const SKINNY_TILE: u32 = 32;
const SKINNY_STAGE: u32 = SKINNY_TILE * 1024;

/// Logits of a group of [`candidates_tops`]: small vocabularies have to have more than 256 groups too.
fn candidate_group(vocab: u32) -> u32 {
    if vocab < 16384 { 8 } else { 32 }
}

/// Groups of a row of logits.
pub fn candidate_groups(vocab: u32) -> u32 {
    vocab.div_ceil(candidate_group(vocab))
}

macro_rules! args {
    ($($e:expr),* $(,)?) => { &[$(Arg::from($e)),*] };
}

fn up(n: u32, by: u32) -> u32 {
    n.div_ceil(by).max(1)
}

fn up64(n: u64, by: u64) -> u32 {
    u32::try_from(n.div_ceil(by).max(1)).unwrap_or(u32::MAX)
}

/// # Safety
/// See the module.
unsafe fn run(
    d: &dyn Driver,
    kernel: &'static str,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    args: &[Arg],
) -> Result<()> {
    let follow = if d.info().overlap {
        Follow::Overlap
    } else {
        Follow::After
    };
    // SAFETY: the caller's.
    unsafe {
        d.launch(&Launch {
            kernel,
            grid,
            block: [threads, 1, 1],
            shared_bytes,
            follow,
            args,
        })
    }
}

/// What becomes of a skinny product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkinnyTo {
    /// bf16 `scale · y`.
    Store,
    /// bf16 `silu(gate) · up` of an interleaved weight.
    Swiglu,
    /// f32 `dst += scale · y`.
    Add,
    /// f32 `scale · y`.
    Logits,
}

/// Where a skinny product's activations come from; `ld` is a row's stride in elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SkinnyFrom {
    /// bf16 rows.
    Ready {
        /// Rows.
        x: DevicePtr,
        /// Stride.
        ld: u32,
    },
    /// f32 rows, RMS-normed on the way: `bf16(h · rstd · norm · mul)`.
    Norm {
        /// Rows.
        h: DevicePtr,
        /// Stride.
        ld: u32,
        /// Norm weight.
        norm: DevicePtr,
        /// Epsilon.
        eps: f32,
        /// Factor.
        mul: f32,
    },
    /// f32 rows, normed (unless 0) and gated (unless 0) on the way.
    Gate {
        /// Rows.
        o: DevicePtr,
        /// Stride.
        ld: u32,
        /// Norm weight or 0.
        norm: DevicePtr,
        /// Epsilon.
        eps: f32,
        /// First gate column or 0.
        gate: DevicePtr,
        /// Stride of gate rows.
        ldg: u32,
    },
}

/// Can a skinny product norm or gate its rows on the way? If not, run [`norm_rows`] or [`gate_rows`] before and pass
/// [`SkinnyFrom::Ready`]: the bits are the same. It can if that leaves room for a ring of two stages.
pub fn stages_rows(d: &dyn Driver, rows: u32, inner: u32) -> bool {
    rows <= STAGED_ROWS
        && staged_bytes(rows, inner) + parts_bytes(rows) + 2 * SKINNY_STAGE <= d.info().shared_limit
}

/// Rows in shared memory, padded.
fn staged_bytes(rows: u32, inner: u32) -> u32 {
    rows * (inner + 32) * 2
}

/// Ready rows of a stage.
fn ready_bytes(rows: u32) -> u32 {
    if rows > 8 { 16384 } else { 8192 }
}

/// The warps' parts of a tile.
fn parts_bytes(rows: u32) -> u32 {
    if rows > 8 { 16384 } else { 8192 }
}

/// Product of 1..=16 rows with a weight `[out, inner]`, `inner` a multiple of 64.
///
/// # Safety
/// See the module.
pub unsafe fn skinny(
    d: &dyn Driver,
    to: SkinnyTo,
    dst: DevicePtr,
    ldd: u32,
    w: DevicePtr,
    out: u32,
    inner: u32,
    from: SkinnyFrom,
    scale: f32,
    rows: u32,
) -> Result<()> {
    let kernel = match (to, rows > 8) {
        (SkinnyTo::Store, false) => "skinny_store_8",
        (SkinnyTo::Store, true) => "skinny_store_16",
        (SkinnyTo::Swiglu, false) => "skinny_swiglu_8",
        (SkinnyTo::Swiglu, true) => "skinny_swiglu_16",
        (SkinnyTo::Add, false) => "skinny_add_8",
        (SkinnyTo::Add, true) => "skinny_add_16",
        (SkinnyTo::Logits, false) => "skinny_logits_8",
        (SkinnyTo::Logits, true) => "skinny_logits_16",
    };
    let limit = d.info().shared_limit;
    let processors = d.info().multiprocessors.max(1);
    if let SkinnyFrom::Ready { x, ld } = from
        && rows > 8
        && parts_bytes(rows) + 2 * (SKINNY_STAGE + ready_bytes(rows)) > limit
    {
        // Where shared memory is small the rows go in two halves: the weights are read twice, the bits are the same.
        let value = match to {
            SkinnyTo::Store | SkinnyTo::Swiglu => 2,
            SkinnyTo::Add | SkinnyTo::Logits => 4,
        };
        let second = SkinnyFrom::Ready {
            x: x + 8 * 2 * u64::from(ld),
            ld,
        };
        let behind = dst + 8 * value * u64::from(ldd);
        // SAFETY: the caller's; both halves lie inside.
        return unsafe {
            skinny(d, to, dst, ldd, w, out, inner, from, scale, 8)?;
            skinny(d, to, behind, ldd, w, out, inner, second, scale, rows - 8)
        };
    }
    let (src, lds, mode, norm, eps, mul, gate, ldg) = match from {
        SkinnyFrom::Ready { x, ld } => (x, ld, 0u32, 0, 0.0, 1.0, 0, 0),
        SkinnyFrom::Norm {
            h,
            ld,
            norm,
            eps,
            mul,
        } => (h, ld, 1, norm, eps, mul, 0, 0),
        SkinnyFrom::Gate {
            o,
            ld,
            norm,
            eps,
            gate,
            ldg,
        } => (o, ld, 2, norm, eps, 1.0, gate, ldg),
    };
    // The ring gets all the shared memory that the warps' parts and the staged rows leave; ready rows travel in it.
    let (fixed, stage) = match mode {
        0 => (parts_bytes(rows), SKINNY_STAGE + ready_bytes(rows)),
        _ => (parts_bytes(rows) + staged_bytes(rows, inner), SKINNY_STAGE),
    };
    let stages = (limit.saturating_sub(fixed) / stage).clamp(2, 6);
    // As many blocks as give every one the same number of tiles, unless that leaves many multiprocessors without any.
    let tiles = out.div_ceil(SKINNY_TILE);
    let even = tiles.div_ceil(tiles.div_ceil(processors));
    let blocks = if even * 10 >= processors * 9 {
        even
    } else {
        tiles.min(processors)
    };
    let args = args![
        dst, ldd, w, out, inner, src, lds, mode, norm, eps, mul, gate, ldg, scale, rows, stages
    ];
    // SAFETY: the caller's.
    unsafe { run(d, kernel, [blocks, 1, 1], 256, stages * stage + fixed, args) }
}

/// What becomes of a prefill product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmTo {
    /// bf16 `y`.
    Store,
    /// f32 `y`.
    F32,
    /// f32 `dst += scale · y`.
    Add,
}

/// Product of any number of rows, `inner` a multiple of 32, where no library is loaded.
///
/// # Safety
/// See the module.
pub unsafe fn gemm(
    d: &dyn Driver,
    to: GemmTo,
    dst: DevicePtr,
    ldd: u32,
    x: DevicePtr,
    ldx: u32,
    w: DevicePtr,
    rows: u32,
    out: u32,
    inner: u32,
    scale: f32,
) -> Result<()> {
    let kernel = match to {
        GemmTo::Store => "gemm_store",
        GemmTo::F32 => "gemm_f32",
        GemmTo::Add => "gemm_add",
    };
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            kernel,
            [up(rows, 128), up(out, 128), 1],
            256,
            GEMM_SHARED,
            args![dst, ldd, x, ldx, w, rows, out, inner, scale],
        )
    }
}

/// `dst[i] = value`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn fill_f32(d: &dyn Driver, dst: DevicePtr, n: u64, value: f32) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "fill_f32",
            [up64(n, 1024), 1, 1],
            256,
            0,
            args![dst, n, value],
        )
    }
}

/// Values of [`crate::backend::synthetic_value`].
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn random_bf16(
    d: &dyn Driver,
    dst: DevicePtr,
    n: u64,
    std: f32,
    seed: u64,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "random_bf16",
            [up64(n, 1024), 1, 1],
            256,
            0,
            args![dst, n, std, seed],
        )
    }
}

/// `h[r] = scale · table[tokens[r]]`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn embed_rows(
    d: &dyn Driver,
    h: DevicePtr,
    table: DevicePtr,
    tokens: DevicePtr,
    hidden: u32,
    vocab: u32,
    scale: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "embed_rows",
            [rows, 1, 1],
            256,
            0,
            args![h, table, tokens, hidden, vocab, scale, rows],
        )
    }
}

/// cos and sin of the pass's angles, `[rows][64]` pairs.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn rope_table(
    d: &dyn Driver,
    table: DevicePtr,
    inv_freq: DevicePtr,
    step: DevicePtr,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "rope_table",
            [up(rows * 64, 256), 1, 1],
            256,
            0,
            args![table, inv_freq, step, rows],
        )
    }
}

/// RMS norm of f32 rows to bf16; `norm` 0: rounds only.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn norm_rows(
    d: &dyn Driver,
    dst: DevicePtr,
    ldd: u32,
    src: DevicePtr,
    lds: u32,
    norm: DevicePtr,
    n: u32,
    eps: f32,
    mul: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "norm_rows",
            [rows, 1, 1],
            256,
            0,
            args![dst, ldd, src, lds, norm, n, eps, mul, rows],
        )
    }
}

/// Output norm and gate to bf16; `norm` and `gate` may be 0.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn gate_rows(
    d: &dyn Driver,
    dst: DevicePtr,
    ldd: u32,
    o: DevicePtr,
    ldo: u32,
    norm: DevicePtr,
    eps: f32,
    gate: DevicePtr,
    ldg: u32,
    n: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "gate_rows",
            [rows, 1, 1],
            256,
            0,
            args![dst, ldd, o, ldo, norm, eps, gate, ldg, n, rows],
        )
    }
}

/// SwiGLU of interleaved gate and up columns.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn swiglu_rows(
    d: &dyn Driver,
    dst: DevicePtr,
    gu: DevicePtr,
    inter: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "swiglu_rows",
            [up(inter, 2048), rows, 1],
            256,
            0,
            args![dst, gu, inter, rows],
        )
    }
}

/// Copies f32 rows into columns of a wider buffer.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn tap_rows(
    d: &dyn Driver,
    taps: DevicePtr,
    ldt: u32,
    h: DevicePtr,
    hidden: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "tap_rows",
            [rows, 1, 1],
            256,
            0,
            args![taps, ldt, h, hidden, rows],
        )
    }
}

/// The same, rounded to bf16.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn tap_rows_bf16(
    d: &dyn Driver,
    taps: DevicePtr,
    ldt: u32,
    h: DevicePtr,
    hidden: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "tap_rows_bf16",
            [rows, 1, 1],
            256,
            0,
            args![taps, ldt, h, hidden, rows],
        )
    }
}

/// Pending rows, then 1..=16 rows of the recurrence.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn lightning_verify(
    d: &dyn Driver,
    o: DevicePtr,
    ldo: u32,
    x: DevicePtr,
    ldx: u32,
    q_col: u32,
    k_col: u32,
    v_col: u32,
    q_norm: DevicePtr,
    k_norm: DevicePtr,
    rope: DevicePtr,
    state: DevicePtr,
    pend_k: DevicePtr,
    pend_v: DevicePtr,
    slopes: DevicePtr,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    eps: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "lightning_verify",
            [4, heads, 1],
            128,
            0,
            args![
                o, ldo, x, ldx, q_col, k_col, v_col, q_norm, k_norm, rope, state, pend_k, pend_v,
                slopes, step, heads, kv_heads, scale, eps, rows
            ],
        )
    }
}

/// Absorbs pending rows.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn lightning_fold(
    d: &dyn Driver,
    state: DevicePtr,
    pend_k: DevicePtr,
    pend_v: DevicePtr,
    slopes: DevicePtr,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "lightning_fold",
            [4, heads, 1],
            128,
            0,
            args![state, pend_k, pend_v, slopes, step, heads, kv_heads],
        )
    }
}

/// Normed and rotated q and k of a prefill pass.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn lightning_qk(
    d: &dyn Driver,
    dst: DevicePtr,
    ldd: u32,
    x: DevicePtr,
    ldx: u32,
    q_col: u32,
    k_col: u32,
    q_norm: DevicePtr,
    k_norm: DevicePtr,
    rope: DevicePtr,
    heads: u32,
    kv_heads: u32,
    eps: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "lightning_qk",
            [up(heads + kv_heads, 8), rows, 1],
            256,
            0,
            args![
                dst, ldd, x, ldx, q_col, k_col, q_norm, k_norm, rope, heads, kv_heads, eps, rows
            ],
        )
    }
}

/// Pending rows, then chunks of 64 rows.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn lightning_prefill(
    d: &dyn Driver,
    o: DevicePtr,
    ldo: u32,
    qk: DevicePtr,
    ldqk: u32,
    v: DevicePtr,
    ldv: u32,
    state: DevicePtr,
    pend_k: DevicePtr,
    pend_v: DevicePtr,
    slopes: DevicePtr,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "lightning_prefill",
            [4, heads, 1],
            128,
            LIGHTNING_SHARED,
            args![
                o, ldo, qk, ldqk, v, ldv, state, pend_k, pend_v, slopes, step, heads, kv_heads,
                scale, rows
            ],
        )
    }
}

/// Keys, values and the compressed keys they complete.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn append_kv(
    d: &dyn Driver,
    k: DevicePtr,
    v: DevicePtr,
    k1: DevicePtr,
    k2: DevicePtr,
    xk: DevicePtr,
    xv: DevicePtr,
    ldx: u32,
    step: DevicePtr,
    kv_heads: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "append_kv",
            [rows, kv_heads, 1],
            128,
            0,
            args![k, v, k1, k2, xk, xv, ldx, step, kv_heads, rows],
        )
    }
}

/// Parts of the log-sum-exp over compressed keys, [`LSE_KEYS`] a split.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn select_lse(
    d: &dyn Driver,
    part: DevicePtr,
    q: DevicePtr,
    ldq: u32,
    keys: DevicePtr,
    window: u32,
    stride: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    rows: u32,
    splits: u32,
    all_below: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "select_lse",
            [splits, kv_heads, rows],
            128,
            SELECT_LSE_SHARED,
            args![
                part, q, ldq, keys, window, stride, step, heads, kv_heads, scale, rows, splits,
                all_below
            ],
        )
    }
}

/// Pooled block scores of a verify pass; rows with at most `all_below` blocks need none.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn select_scores(
    d: &dyn Driver,
    scores: DevicePtr,
    part: DevicePtr,
    q: DevicePtr,
    ldq: u32,
    k1: DevicePtr,
    window: u32,
    stride: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    rows: u32,
    splits: u32,
    score_blocks: u32,
    all_below: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "select_scores",
            [up(score_blocks, 64), kv_heads, rows],
            128,
            SELECT_SCORES_SHARED,
            args![
                scores,
                part,
                q,
                ldq,
                k1,
                window,
                stride,
                step,
                heads,
                kv_heads,
                scale,
                rows,
                splits,
                score_blocks,
                all_below
            ],
        )
    }
}

/// Chosen blocks, ascending.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn select_top(
    d: &dyn Driver,
    list: DevicePtr,
    count: DevicePtr,
    scores: DevicePtr,
    step: DevicePtr,
    kv_heads: u32,
    score_blocks: u32,
    cap: u32,
    init: u32,
    local: u32,
    topk: u32,
    dense_until: u32,
    row0: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "select_top",
            [kv_heads, rows, 1],
            512,
            0,
            args![
                list,
                count,
                scores,
                step,
                kv_heads,
                score_blocks,
                cap,
                init,
                local,
                topk,
                dense_until,
                row0,
                rows
            ],
        )
    }
}

/// Attention parts of [`ATTEND_BLOCKS`] chosen blocks each.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn attend_verify(
    d: &dyn Driver,
    part_o: DevicePtr,
    part_ml: DevicePtr,
    q: DevicePtr,
    ldq: u32,
    k: DevicePtr,
    v: DevicePtr,
    list: DevicePtr,
    count: DevicePtr,
    cap: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    rows: u32,
    splits: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "attend_verify",
            [splits, kv_heads, rows],
            128,
            ATTEND_VERIFY_SHARED,
            args![
                part_o, part_ml, q, ldq, k, v, list, count, cap, step, heads, kv_heads, scale,
                rows, splits
            ],
        )
    }
}

/// Merges the parts in ascending order.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn attend_combine(
    d: &dyn Driver,
    o: DevicePtr,
    ldo: u32,
    part_o: DevicePtr,
    part_ml: DevicePtr,
    count: DevicePtr,
    heads: u32,
    kv_heads: u32,
    rows: u32,
    splits: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "attend_combine",
            [heads, rows, 1],
            128,
            0,
            args![
                o, ldo, part_o, part_ml, count, heads, kv_heads, rows, splits
            ],
        )
    }
}

/// Log-sum-exp over compressed keys of rows `row0..row0 + rows`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn prefill_lse(
    d: &dyn Driver,
    z: DevicePtr,
    q: DevicePtr,
    ldq: u32,
    keys: DevicePtr,
    window: u32,
    stride: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    row0: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "prefill_lse",
            [up(rows, 8), kv_heads, 1],
            256,
            PREFILL_LSE_SHARED,
            args![
                z, q, ldq, keys, window, stride, step, heads, kv_heads, scale, row0, rows
            ],
        )
    }
}

/// Pooled block scores of rows `row0..row0 + rows`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn prefill_scores(
    d: &dyn Driver,
    scores: DevicePtr,
    z: DevicePtr,
    q: DevicePtr,
    ldq: u32,
    k1: DevicePtr,
    window: u32,
    stride: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    row0: u32,
    rows: u32,
    score_blocks: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "prefill_scores",
            [up(score_blocks, 256), up(rows, 16), kv_heads],
            256,
            PREFILL_SCORES_SHARED,
            args![
                scores,
                z,
                q,
                ldq,
                k1,
                window,
                stride,
                step,
                heads,
                kv_heads,
                scale,
                row0,
                rows,
                score_blocks
            ],
        )
    }
}

/// Attention over the chosen blocks, 8 rows a launch block.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn attend_prefill(
    d: &dyn Driver,
    o: DevicePtr,
    ldo: u32,
    q: DevicePtr,
    ldq: u32,
    k: DevicePtr,
    v: DevicePtr,
    list: DevicePtr,
    count: DevicePtr,
    cap: u32,
    step: DevicePtr,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    rows: u32,
) -> Result<()> {
    /// Bytes of a place in the ring: 32 keys and their values.
    const HALF: u32 = 16 << 10;
    let room = d.info().shared_limit.saturating_sub(ATTEND_PREFILL_SHARED);
    let slots = (room / HALF).max(2);
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "attend_prefill",
            [up(rows, 8), kv_heads, 1],
            9 * 32,
            ATTEND_PREFILL_SHARED + slots * HALF,
            args![
                o, ldo, q, ldq, k, v, list, count, cap, step, heads, kv_heads, scale, rows, slots
            ],
        )
    }
}

/// Largest logit of each group, and each [`CANDIDATE_LOGITS`] logits' part of log Σ exp. `tops [rows, candidate_groups(vocab)]`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn candidates_tops(
    d: &dyn Driver,
    tops: DevicePtr,
    lse: DevicePtr,
    logits: DevicePtr,
    ld: u32,
    vocab: u32,
    rows: u32,
) -> Result<()> {
    let splits = vocab.div_ceil(CANDIDATE_LOGITS);
    let group = candidate_group(vocab);
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "candidates_tops",
            [splits, rows, 1],
            256,
            0,
            args![tops, lse, logits, ld, vocab, group, rows, splits],
        )
    }
}

/// Best 256 of a row in order, `found [rows, FOUND_WORDS]`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn candidates_pick(
    d: &dyn Driver,
    found: DevicePtr,
    tops: DevicePtr,
    lse: DevicePtr,
    logits: DevicePtr,
    ld: u32,
    vocab: u32,
    rows: u32,
) -> Result<()> {
    let splits = vocab.div_ceil(CANDIDATE_LOGITS);
    let group = candidate_group(vocab);
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "candidates_pick",
            [rows, 1, 1],
            1024,
            candidate_groups(vocab) * 8,
            args![found, tops, lse, logits, ld, vocab, group, rows, splits],
        )
    }
}

/// Normed embedding beside the normed stream.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn draft_input(
    d: &dyn Driver,
    x: DevicePtr,
    g: DevicePtr,
    table: DevicePtr,
    tokens: DevicePtr,
    input_norm: DevicePtr,
    hidden_norm: DevicePtr,
    scale: f32,
    eps: f32,
    normed: u32,
    hidden: u32,
    vocab: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "draft_input",
            [rows, 1, 1],
            256,
            0,
            args![
                x,
                g,
                table,
                tokens,
                input_norm,
                hidden_norm,
                scale,
                eps,
                normed,
                hidden,
                vocab,
                rows
            ],
        )
    }
}

/// Rotated keys and values into the ring; `inv_freq` f64.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn draft_append(
    d: &dyn Driver,
    wk: DevicePtr,
    wv: DevicePtr,
    kv: DevicePtr,
    ldkv: u32,
    inv_freq: DevicePtr,
    step: DevicePtr,
    capacity: u32,
    kv_heads: u32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "draft_append",
            [rows, kv_heads, 1],
            64,
            0,
            args![wk, wv, kv, ldkv, inv_freq, step, capacity, kv_heads, rows],
        )
    }
}

/// Attention parts of [`DRAFT_SLOTS`] ring slots each, for the query of row `row`.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn draft_attend(
    d: &dyn Driver,
    part_o: DevicePtr,
    part_ml: DevicePtr,
    q: DevicePtr,
    wk: DevicePtr,
    wv: DevicePtr,
    inv_freq: DevicePtr,
    step: DevicePtr,
    capacity: u32,
    window: u32,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    row: u32,
    splits: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "draft_attend",
            [splits, kv_heads, 1],
            128,
            ATTEND_VERIFY_SHARED,
            args![
                part_o, part_ml, q, wk, wv, inv_freq, step, capacity, window, heads, kv_heads,
                scale, row, splits
            ],
        )
    }
}

/// Merges them.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn draft_combine(
    d: &dyn Driver,
    o: DevicePtr,
    part_o: DevicePtr,
    part_ml: DevicePtr,
    heads: u32,
    splits: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "draft_combine",
            [heads, 1, 1],
            128,
            0,
            args![o, part_o, part_ml, heads, splits],
        )
    }
}

/// RMS norm of bf16 rows.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn norm_rows_bf16(
    d: &dyn Driver,
    dst: DevicePtr,
    ldd: u32,
    src: DevicePtr,
    lds: u32,
    norm: DevicePtr,
    n: u32,
    eps: f32,
    rows: u32,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "norm_rows_bf16",
            [rows, 1, 1],
            256,
            0,
            args![dst, ldd, src, lds, norm, n, eps, rows],
        )
    }
}

/// Sums of everything, one a launch block: reading to be timed. `out` has room for 8 per multiprocessor.
///
/// # Safety
/// See the module: every pointer must span what kernels/README.md says.
pub unsafe fn measure_read(d: &dyn Driver, out: DevicePtr, src: DevicePtr, n16: u64) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        run(
            d,
            "measure_read",
            [8 * d.info().multiprocessors.max(1), 1, 1],
            512,
            0,
            args![out, src, n16],
        )
    }
}
