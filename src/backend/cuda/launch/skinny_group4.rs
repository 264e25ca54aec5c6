//! GEMMs of 1..=16 rows with a weight in the form group4.

use super::ring::Ring;

/// A unit is a warp's stage.
pub(super) const RING: Ring =
    Ring { warps: 16, columns: 128, stage: |detail| 2048 + (512 >> detail), least: 1, most: 2 };

skinny_kernels! {
    "skinny_group4.cu",
    "As `skinny_*`, with a weight in the form group4, `inner` a multiple of 128",
    SkinnyGroup4 [group4_store_8 group4_store_16 group4_swiglu_8 group4_swiglu_16 group4_add_8 group4_add_16 group4_logits_8 group4_logits_16],
    RING, threads 512
}
