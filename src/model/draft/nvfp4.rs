//! NVFP4 weights as the published SALA head stores them (docs/speculative.md §1.3): two 4-bit values per byte, an e4m3
//! scale per 16 values of a row, and one f32 scale per projection, `value = e2m1 · e4m3 · scale`.

/// Values that share an e4m3 scale.
pub(super) const GROUP: usize = 16;

/// e2m1: sign, two bits of exponent, one of mantissa.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn e2m1(nibble: u8) -> f32 {
    let magnitude = E2M1.get(usize::from(nibble & 7)).copied().unwrap_or_default();
    if nibble & 8 == 0 { magnitude } else { -magnitude }
}

/// e4m3 without infinities: exponent bias 7, all ones is not a number.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = ((byte >> 3) & 15, f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        (e, _) => (1.0 + mantissa / 8.0) * 2f32.powi(i32::from(e) - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Rows of `inner` values as f32. `packed [rows, inner/2]`, the even value in the low half of a byte; `scales [rows, inner/16]`.
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
    fn formats_have_their_published_values() {
        assert_eq!((e4m3(0x38), e4m3(0x7e), e4m3(0x01), e4m3(0xb8)), (1.0, 448.0, 2f32.powi(-9), -1.0));
        assert!(e4m3(0x7f).is_nan());
        assert_eq!((e2m1(0x1), e2m1(0x7), e2m1(0xf)), (0.5, 6.0, -6.0));
    }

    #[test]
    fn low_half_of_a_byte_comes_first() {
        let mut packed = [0u8; 8];
        packed[0] = 0x21; // 0.5, then 1.0
        packed[7] = 0xf0; // 0.0, then -6.0
        let got = dequantise(&packed, &[0x40], 0.5, 16); // e4m3 2.0
        assert_eq!((got.len(), got[0], got[1], got[14], got[15]), (16, 0.5, 1.0, 0.0, -6.0));
    }
}
