//! GEMMs of 1..=16 rows with a weight in the form int6.

use super::ring::Ring;

/// A unit is a warp's stage.
pub(super) const RING: Ring = Ring { warps: 16, columns: 128, stage: |_| 3072 + 256, least: 1, most: 2 };

skinny_kernels! {
    "skinny_int6.cu",
    "As `skinny_*`, with a weight in the form int6, `inner` a multiple of 128",
    SkinnyInt6 [int6_store_8 int6_store_16 int6_swiglu_8 int6_swiglu_16 int6_add_8 int6_add_16 int6_logits_8 int6_logits_16],
    RING, threads 512
}
