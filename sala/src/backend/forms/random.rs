//! Synthetic weights in the forms that only published weights have, for measurements and checks.

use super::{Factor, Form, IntegerRows, Nvfp4Rows, PAIR_ROWS, Packed};
use crate::backend::synthetic_value;

struct RandomGroups {
    seed: u64,
    inner: usize,
    std: f32,
}

impl IntegerRows for RandomGroups {
    fn quantised(&self, row: usize, column: usize) -> u32 {
        synthetic_value(self.seed, (row * self.inner + column) as u64, 1.0).to_bits() >> 8 & 15
    }
    fn scale(&self, row: usize, column: usize) -> (f32, u32) {
        let random = synthetic_value(self.seed ^ 0x5CA1E, (row * self.inner + column) as u64, 1.0);
        (self.std * (0.3 + 0.1 * random.abs()), 6 + (random.to_bits() >> 8 & 3))
    }
}

/// Scales include both signs, subnormal ones and zeros; the factor may be of either kind.
fn nvfp4(seed: u64, out: usize, inner: usize, std: f32) -> Option<Packed> {
    let byte = |seed: u64, i: usize| (synthetic_value(seed, i as u64, 1.0).to_bits() >> 8) as u8;
    let values: Vec<u8> = (0..out * inner / 2).map(|i| byte(seed, i)).collect();
    let scale = |i: usize| match i % 29 {
        3 => (i / 29 % 8) as u8,
        _ => 0x30 + (byte(seed ^ 0x5CA1E, i) & 0x8f),
    };
    let scales: Vec<u8> = (0..out * inner / 16).map(scale).collect();
    let step = 0.4 * std;
    let factor = if seed.is_multiple_of(2) { Factor::Times(step) } else { Factor::Over(1.0 / step) };
    Packed::nvfp4(out, inner, Nvfp4Rows { values: &values, scales: &scales, factor })
}

impl Packed {
    /// A random weight of about this standard deviation; `None` for forms that the program packs itself, and wrong
    /// sizes.
    pub fn random(form: Form, seed: u64, out: usize, inner: usize, std: f32) -> Option<Packed> {
        match form {
            Form::Group4(group) => Packed::group4(group, out, inner, &RandomGroups { seed, inner, std }),
            Form::Nvfp4 if form.fits(inner) => nvfp4(seed, out, inner, std),
            Form::Nvfp4 | Form::Bf16 | Form::Int8 | Form::Int4 | Form::Int5 | Form::Int6 => None,
        }
    }

    /// All pairs of tiles are equal: fast at any size.
    pub fn repeated(form: Form, seed: u64, out: usize, inner: usize, std: f32) -> Option<Packed> {
        let pair = Packed::random(form, seed, PAIR_ROWS, inner, std)?.into_bytes();
        Packed::from_bytes(form, out, inner, pair.repeat(out.div_ceil(PAIR_ROWS)))
    }
}
