//! GEMMs of 1..=16 rows with a weight that begins in 4, 5 or 6 bits and ends in 8.

use super::ring::Ring;

/// A unit of either form is a warp's stage; that of int8 is the larger one.
pub(super) const RING: Ring = Ring { warps: 16, columns: 128, stage: |_| 4096 + 64, least: 1, most: 2 };

skinny_kernels! {
    "skinny_mixed.cu",
    "As `skinny_store_*`, with `detail` rows, a multiple of 32, in the form int4 (5, 6) and the others, from `w2` on, in int8",
    SkinnyMixed [mixed4_store_8 mixed4_store_16 mixed5_store_8 mixed5_store_16 mixed6_store_8 mixed6_store_16],
    RING, threads 512
}
