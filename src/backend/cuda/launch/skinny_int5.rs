//! GEMMs of 1..=16 rows with a weight in the form int5.

use super::ring::Ring;

/// A unit is a warp's stage.
pub(super) const RING: Ring = Ring { warps: 16, columns: 128, stage: |_| 2560 + 256, least: 1, most: 2 };

skinny_kernels! {
    "skinny_int5.cu",
    "As `skinny_*`, with a weight in the form int5, `inner` a multiple of 128",
    SkinnyInt5 [int5_store_8 int5_store_16 int5_swiglu_8 int5_swiglu_16 int5_add_8 int5_add_16 int5_logits_8 int5_logits_16],
    RING, threads 512
}
