//! Contrast as defined by WCAG 2.

/// Least contrast of text in theme files: WCAG's limit for large text and parts of an interface.
pub(super) const LEAST: f64 = 3.0;

/// 1 (equal) to 21 (black and white).
pub(super) fn ratio(a: (u8, u8, u8), b: (u8, u8, u8)) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

fn luminance((r, g, b): (u8, u8, u8)) -> f64 {
    let linear = |c: u8| match f64::from(c) / 255.0 {
        c if c <= 0.040_45 => c / 12.92,
        c => ((c + 0.055) / 1.055).powf(2.4),
    };
    0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ratios() {
        assert!((ratio((0, 0, 0), (255, 255, 255)) - 21.0).abs() < 1e-9);
        assert!((ratio((0x77, 0x77, 0x77), (255, 255, 255)) - 4.48).abs() < 0.01);
        assert_eq!(ratio((9, 9, 9), (9, 9, 9)), 1.0);
    }
}
