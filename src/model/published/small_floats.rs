//! Floating-point numbers of 4 and 8 bits in published weights.

pub(in crate::model) use crate::backend::fp8::value as e4m3;

/// e2m1: sign, two bits of exponent, one of mantissa.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

pub(in crate::model) fn e2m1(nibble: u8) -> f32 {
    let magnitude = E2M1.get(usize::from(nibble & 7)).copied().unwrap_or_default();
    if nibble & 8 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_their_published_values() {
        assert_eq!((e2m1(0x1), e2m1(0x7), e2m1(0xf)), (0.5, 6.0, -6.0));
    }
}
