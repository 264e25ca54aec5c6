//! The draft head.

use super::*;

/// Ring slots of a split of [`DraftAttend`].
pub const DRAFT_SLOTS: usize = 128;

operands! {
    /// Of the window's keys and values and of attention to them.
    Draft:
    Ptr wk wv kv inv_freq step part_o part_ml q o;
    u32 ldkv capacity window heads kv_heads row rows splits;
    f32 scale;
}

kernels! { device;
    "draft.cu":
    /// `x[r] = [rmsnorm(scale·table[token]) | rmsnorm(g[r])]`; `normed`: `g[r]` becomes its normed form
    DraftInput [draft_input] (
        x: Ptr("bf16*"), g: Ptr("float*"), table: Ptr("const bf16*"), tokens: Ptr("const u32*"),
        input_norm: Ptr("const float*"), hidden_norm: Ptr("const float*"), scale: f32, eps: f32, normed: u32, hidden: u32,
        vocab: u32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// Rotates keys (angles in f64), stores at slot `position % capacity`
    DraftAppend of Draft [draft_append] (
        wk: Ptr("bf16*"), wv: Ptr("bf16*"), kv: Ptr("const bf16*"), ldkv: u32, inv_freq: Ptr("const double*"),
        step: Ptr("const DraftStep*"), capacity: u32, kv_heads: u32, rows: u32,
    )
    grid [rows, kv_heads, 1], threads 64, shared 0;

    /// One query at `position + row`; 128 ring slots a split, `splits = ceil(capacity/128)`; then `draft_combine`
    DraftAttend of Draft [draft_attend] (
        part_o: Ptr("float*"), part_ml: Ptr("float2*"), q: Ptr("const bf16*"), wk: Ptr("const bf16*"),
        wv: Ptr("const bf16*"), inv_freq: Ptr("const double*"), step: Ptr("const DraftStep*"), capacity: u32, window: u32,
        heads: u32, kv_heads: u32, scale: f32, row: u32, splits: u32,
    )
    grid [splits, kv_heads, 1], threads 128, shared 34_816;

    /// Splits merged, rounded
    DraftCombine of Draft [draft_combine] (
        o: Ptr("bf16*"), part_o: Ptr("const float*"), part_ml: Ptr("const float2*"), heads: u32, splits: u32,
    )
    grid [heads, 1, 1], threads 128, shared 0;
}
