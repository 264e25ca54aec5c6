//! Floating-point numbers of 4 and 8 bits, as published weights use them.

/// e2m1: sign, two bits of exponent, one of mantissa.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The value of the lower four bits.
pub(in crate::model) fn e2m1(nibble: u8) -> f32 {
    let magnitude = E2M1.get(usize::from(nibble & 7)).copied().unwrap_or_default();
    if nibble & 8 == 0 { magnitude } else { -magnitude }
}

/// e4m3 without infinities: exponent bias 7, all ones is not a number.
pub(in crate::model) fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = ((byte >> 3) & 15, f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        (e, _) => (1.0 + mantissa / 8.0) * 2f32.powi(i32::from(e) - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
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
}
