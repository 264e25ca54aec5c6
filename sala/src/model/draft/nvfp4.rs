//! NVFP4 weights as the published SALA head stores them (docs/speculative.md §1.3): two 4-bit values per byte, an e4m3
//! scale per 16 values of a row, and one f32 scale per projection, `value = e2m1 · e4m3 · scale`.

use crate::model::published::{e2m1, e4m3};

pub(super) const GROUP: usize = 16;

/// Rows of `inner` values as f32. `packed [rows, inner/2]`, the even value in the low half of a byte; `scales [rows,
/// inner/16]`.
pub(super) fn dequantise(packed: &[u8], scales: &[u8], scale: f32, inner: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(packed.len() * 2);
    for (row, row_scales) in packed.chunks_exact(inner / 2).zip(scales.chunks_exact(inner / GROUP)) {
        for (group, &s) in row.chunks_exact(GROUP / 2).zip(row_scales) {
            let s = e4m3(s) * scale;
            out.extend(group.iter().flat_map(|&b| [e2m1(b & 15) * s, e2m1(b >> 4) * s]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_half_of_a_byte_is_the_first_value() {
        let mut packed = [0u8; 8];
        packed[0] = 0x21; // 0.5, then 1.0
        packed[7] = 0xf0; // 0.0, then -6.0
        let got = dequantise(&packed, &[0x40], 0.5, 16); // e4m3 2.0
        assert_eq!((got.len(), got[0], got[1], got[14], got[15]), (16, 0.5, 1.0, 0.0, -6.0));
    }
}
