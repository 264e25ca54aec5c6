//! GEMMs of 1..=16 rows with a weight in the form int8.

use super::ring::Ring;

/// A unit is a warp's stage.
pub(super) const RING: Ring = Ring { warps: 8, columns: 128, stage: |_| 4096 + 64, least: 2, most: 3 };

skinny_kernels! {
    "skinny_int8.cu",
    "As `skinny_*`, with a weight in the form int8, `inner` a multiple of 128",
    SkinnyInt8 [int8_store_8 int8_store_16 int8_swiglu_8 int8_swiglu_16 int8_add_8 int8_add_16 int8_logits_8 int8_logits_16],
    RING, threads 256
}
