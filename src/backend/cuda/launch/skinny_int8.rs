//! GEMMs of 1..=16 rows with a weight in the form int8.

/// Bytes of a unit, which is a warp's stage.
pub(super) fn stage(_detail: u32) -> u32 {
    4096 + 64
}

skinny_kernels! {
    "skinny_int8.cu",
    "As `skinny_*`, with a weight in the form int8, `inner` a multiple of 128",
    SkinnyInt8 [int8_store_8 int8_store_16 int8_swiglu_8 int8_swiglu_16 int8_add_8 int8_add_16 int8_logits_8 int8_logits_16],
    weights stage, columns 128
}
