//! GEMMs of 1..=16 rows with a weight in the form group4.

/// Bytes of a unit, which is a warp's stage.
pub(super) fn stage(detail: u32) -> u32 {
    2048 + (512 >> detail)
}

skinny_kernels! {
    "skinny_group4.cu",
    "As `skinny_*`, with a weight in the form group4, `inner` a multiple of 128",
    SkinnyGroup4 [group4_store_8 group4_store_16 group4_swiglu_8 group4_swiglu_16 group4_add_8 group4_add_16 group4_logits_8 group4_logits_16],
    weights stage, columns 128
}
