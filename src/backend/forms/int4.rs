//! 4 bits with a scale (e4m4, exponent 0 is 2^-14) and a zero point (7 bits, eighths) per 32 columns, 4.5 bits in all:
//! `bf16((16 + q)·s − bf16((16 + z)·s))`.
//!
//! A scale and a zero point of one byte each cost what the 6-bit pairs of 256-column super-blocks cost, and are decoded in four
//! instructions for eight values. Scales around range / 15 are tried, each with the offset that fits best; least squares decides.

use super::careful::Rounding;
use super::{Place, join, nearest, nibble_word, put, round, split, word};

const VALUES: usize = 2048;
/// bf16 bits of scale code 0.
const CODE_ZERO: i32 = 0x3880;

fn scale_of(code: u32) -> f32 {
    f32::from_bits((code * 8 + CODE_ZERO as u32) << 16)
}

fn offset_of(zero: u32, scale: f32) -> f32 {
    round((16.0 + zero as f32 * 0.125) * scale)
}

fn zero_of(z: f32) -> u32 {
    nearest(z * 8.0).clamp(0.0, 127.0) as u32
}

/// 16 + q
fn quantised(x: f32, offset: f32, inverse: f32) -> f32 {
    nearest((x + offset) * inverse).clamp(16.0, 31.0)
}

/// Scale and zero point of 32 values.
#[derive(Clone, Copy, Default)]
pub(super) struct Choice {
    code: u32,
    zero: u32,
    scale: f32,
    offset: f32,
    inverse: f32,
}

/// The order of every sum is that of the kernel `pack_int4`, which has no weights: equal ones change nothing.
#[inline(always)]
fn choose(x: &[f32], weights: &[f32]) -> Choice {
    let (lo, hi) = x.iter().fold((0f32, 0f32), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
    let base = ((((hi - lo) / 15.0).to_bits() >> 16) as i32 - CODE_ZERO) >> 3;
    let middle = (lo + hi) * 0.5;
    let share = 1.0 / weights.iter().sum::<f32>();
    let mut best = (Choice::default(), f32::MAX);
    for code in base - 5..=base + 1 {
        let code = code.clamp(0, 255) as u32;
        let scale = scale_of(code);
        let inverse = 1.0 / scale;
        let offset = offset_of(zero_of(7.5 - middle * inverse), scale);
        let sum = x
            .iter()
            .zip(weights)
            .fold(0f32, |sum, (x, weight)| sum + (quantised(*x, offset, inverse) - x * inverse) * weight);
        let zero = zero_of(sum * share - 16.0);
        let offset = offset_of(zero, scale);
        let error = x.iter().zip(weights).fold(0f32, |error, (x, weight)| {
            let off = quantised(*x, offset, inverse) * scale - offset - x;
            error + off * off * weight
        });
        if error < best.1 {
            best = (Choice { code, zero, scale, offset, inverse }, error);
        }
    }
    best.0
}

impl Rounding for Choice {
    const COLUMNS: usize = 32;

    #[inline(always)]
    fn choose(x: &[f32], weights: &[f32]) -> Choice {
        choose(x, weights)
    }

    #[inline(always)]
    fn round(&self, x: f32) -> (i32, f32) {
        let q = quantised(x, self.offset, self.inverse);
        (q as i32, round(q * self.scale - self.offset))
    }

    fn put(&self, unit: &mut [u8], place: Place, block: usize, codes: &[i32]) {
        for (t, codes) in codes.chunks_exact(8).enumerate() {
            let word = join(codes.iter().map(|q| *q as u32));
            put(unit, nibble_word(place, block, t), &word.to_le_bytes());
        }
        put(unit, scales_at(place, block), &[self.code as u8, self.zero as u8 | 0x80]);
    }
}

fn scales_at(place: Place, block: usize) -> usize {
    VALUES + ((place.tile * 2 + block / 2) * 8 + place.g) * 8 + place.upper * 4 + block % 2 * 2
}

pub(super) fn pack(unit: &mut [u8], place: Place, values: &[f32]) {
    for (block, x) in values.chunks_exact(32).enumerate() {
        let choice = choose(x, &[1.0; 32]);
        let codes: [i32; 32] = std::array::from_fn(|j| x.get(j).map_or(0, |x| choice.round(*x).0));
        choice.put(unit, place, block, &codes);
    }
}

pub(super) fn values(unit: &[u8], place: Place, dst: &mut [f32]) {
    for (block, dst) in dst.chunks_exact_mut(32).enumerate() {
        let at = scales_at(place, block);
        let byte = |at: usize| unit.get(at).map_or(0, |b| u32::from(*b));
        let scale = scale_of(byte(at));
        let offset = offset_of(byte(at + 1) & 0x7f, scale);
        for (t, dst) in dst.chunks_exact_mut(8).enumerate() {
            for (q, dst) in split(word(unit, nibble_word(place, block, t))).into_iter().zip(dst) {
                *dst = round((16 + q) as f32 * scale - offset);
            }
        }
    }
}

pub(super) fn scale_pieces(place: Place) -> impl Iterator<Item = (usize, usize)> {
    (0..4).map(move |block| (scales_at(place, block), 2))
}
