//! Products of prefill in fp8: both operands as e4m3 with one scale per row, sums in f32. GPUs with such tensor cores
//! and the CPU compute the same formula.
//!
//! A row narrows on its own: its largest value maps to 448, so its bits depend on no other row. Weights narrow from
//! their values in bf16, whatever form they are kept in.

use half::bf16;

/// Rows of a segment that are always read in bf16: short texts gain nothing, and a GPU reads them with the program's
/// own kernel. A multiple of [`GRID`](super::GRID).
pub const PLAIN_ROWS: usize = 256;
pub const LARGEST: f32 = 448.0;
/// Rows without larger values count as zeros: the inverse of their scale would overflow f32.
const NOTHING: f32 = 1e-30;

/// How many of a pass's `rows` are among the `first` of a segment, after `read` earlier rows of it.
pub fn among_first(first: usize, read: usize, rows: usize) -> usize {
    first.saturating_sub(read).min(rows)
}

/// e4m3: exponent bias 7, no infinities, all ones is NaN.
pub fn value(byte: u8) -> f32 {
    let (exponent, mantissa) = ((byte >> 3) & 15, f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        (e, _) => (1.0 + mantissa / 8.0) * 2f32.powi(i32::from(e) - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Ties to even; saturates; NaN stays NaN.
pub fn nearest(x: f32) -> u8 {
    const NAN: u8 = 0x7f;
    if x.is_nan() {
        return NAN;
    }
    let (sign, size) = (if x.is_sign_negative() { 0x80 } else { 0 }, x.abs());
    let magnitude = if size >= LARGEST {
        0x7e
    } else if size < 2f32.powi(-6) {
        // Steps of 2^-9; eight of them are the smallest normal number.
        (size * 512.0).round_ties_even() as u8
    } else {
        // Three of the 23 mantissa bits remain, and the bias of the exponent is 120 less.
        let bits = size.to_bits();
        let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
        (rounded - (120 << 3)) as u8
    };
    sign | magnitude
}

pub fn narrow(row: &[f32]) -> (Vec<u8>, f32) {
    let (inverse, scale) = factors(row);
    (row.iter().map(|x| nearest(x * inverse)).collect(), scale)
}

/// Rounds a row through bf16 and e4m3.
pub fn rounded(row: &mut [f32]) {
    row.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
    let (inverse, scale) = factors(row);
    row.iter_mut().for_each(|x| *x = value(nearest(*x * inverse)) * scale);
}

fn factors(row: &[f32]) -> (f32, f32) {
    // `max` of a number and NaN is the number.
    let most = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    if most > NOTHING { (LARGEST / most, most / LARGEST) } else { (0.0, 0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_format_is_its_own_nearest() {
        for byte in (0..=0xffu8).filter(|b| b & 0x7f != 0x7f) {
            assert_eq!(nearest(value(byte)), byte, "{byte:#x}");
        }
        assert_eq!((value(0x38), value(0x7e), value(0x01), value(0xb8)), (1.0, LARGEST, 2f32.powi(-9), -1.0));
        assert!(value(0x7f).is_nan() && value(nearest(f32::NAN)).is_nan());
    }

    #[test]
    fn values_between_are_rounded_to_the_nearest_and_ties_to_even() {
        for byte in 0..0x7eu8 {
            let (low, high) = (value(byte), value(byte + 1));
            let middle = (low + high) / 2.0;
            let even = if byte & 1 == 0 { byte } else { byte + 1 };
            assert_eq!(nearest(middle), even, "between {low} and {high}");
            assert_eq!(nearest(f32::from_bits(middle.to_bits() - 1)), byte, "below the middle of {low} and {high}");
            assert_eq!(nearest(f32::from_bits(middle.to_bits() + 1)), byte + 1, "above the middle of {low} and {high}");
            assert_eq!(nearest(-middle), even | 0x80);
        }
        assert_eq!((nearest(460.0), nearest(1e9), nearest(f32::INFINITY), nearest(-1e9)), (0x7e, 0x7e, 0x7e, 0xfe));
    }

    #[test]
    fn a_row_is_scaled_to_its_largest_value_and_zeros_stay_zeros() {
        assert_eq!(narrow(&[2.0, -4.0, 0.0]), (vec![nearest(224.0), 0xfe, 0], 4.0 / LARGEST));
        assert_eq!(narrow(&[0.0; 4]), (vec![0; 4], 0.0));
        assert_eq!(narrow(&[1e-31, -1e-38]), (vec![0, 0x80], 0.0), "no inverse beyond f32");
        let (bytes, scale) = narrow(&[f32::NAN, 1.0]);
        assert!(value(bytes[0]).is_nan() && value(bytes[1]) * scale == 1.0, "one value that is none spoils no other");
        let mut row = [3.0, 0.1, -0.02, 0.0];
        let exact = row;
        rounded(&mut row);
        for (found, exact) in row.iter().zip(exact) {
            assert!((found - exact).abs() <= exact.abs() / 16.0 + 3.0 / LARGEST / 512.0, "{found} for {exact}");
        }
    }
}
