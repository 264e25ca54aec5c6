//! GEMMs of 1..=16 rows with a weight in the form int4.

use super::ring::Ring;

/// A unit is a warp's stage.
pub(super) const RING: Ring = Ring { warps: 16, columns: 128, stage: |_| 2048 + 256, least: 1, most: 2 };

skinny_kernels! {
    "skinny_int4.cu",
    "As `skinny_*`, with a weight in the form int4, `inner` a multiple of 128",
    SkinnyInt4 [int4_store_8 int4_store_16 int4_swiglu_8 int4_swiglu_16 int4_add_8 int4_add_16 int4_logits_8 int4_logits_16],
    RING, threads 512
}
