//! 4, 5 or 6 bits with a scale (e4m4, exponent 0 is 2^(-10 - bits)) and a zero point (7 bits) per 32 columns, half a
//! bit more in all: `bf16((N + q)·s − bf16((N + z)·s))` with `N = 2^bits` and `z` in 128ths of `N`.
//!
//! A scale and a zero point of one byte each cost as much as the 6-bit pairs of 256-column super-blocks, and decode in
//! four instructions for eight values. Packing tries scales around range / (N − 1), each with its best offset; least
//! squares decides.
//!
//! The upper four bits of the values have the same places for all bit counts; their words are rotated where lower
//! bits, which have a plane of their own after them, join them.

use super::careful::{Rounding, pack_row};
use super::{FormRow, NIBBLES, Place, half_word, join, nearest, nibble_word, nibbles_and, put, round, split, word};

#[derive(Clone, Copy, Default)]
pub(super) struct Choice<const BITS: usize> {
    code: u32,
    zero: u32,
    scale: f32,
    offset: f32,
    inverse: f32,
}

impl<const BITS: usize> Choice<BITS> {
    const LOW: usize = BITS - 4;
    const LOW_MASK: u32 = (1 << Self::LOW) - 1;
    /// Left rotation of words of the upper four bits where lower bits join them.
    const TURN: u32 = if Self::LOW == 0 { 0 } else { 3 };
    const VALUES: usize = 512 * BITS;
    /// bf16 bits of scale code 0.
    const CODE_ZERO: i32 = 0x3880 - 0x80 * Self::LOW as i32;
    const N: f32 = (1 << BITS) as f32;
    const MOST: f32 = Self::N - 1.0;
    /// The upper bit of a zero point's byte: the byte is the lower half of the bf16 number `−(N + z)`.
    const ZERO_BIT: u8 = if Self::LOW == 1 { 0 } else { 0x80 };

    fn scale_of(code: u32) -> f32 {
        f32::from_bits((code * 8 + Self::CODE_ZERO as u32) << 16)
    }

    fn offset_of(zero: u32, scale: f32) -> f32 {
        round((Self::N + zero as f32 * (Self::N / 128.0)) * scale)
    }

    fn zero_of(z: f32) -> u32 {
        nearest(z * (128.0 / Self::N)).clamp(0.0, 127.0) as u32
    }

    fn quantised(x: f32, offset: f32, inverse: f32) -> f32 {
        nearest((x + offset) * inverse).clamp(Self::N, Self::N + Self::MOST)
    }

    /// Position of the lower bits of a row, for both blocks of a half.
    fn low_at(place: Place, half: usize, t: usize) -> usize {
        NIBBLES + (((place.tile * 2 + half) * 32 + place.g * 4 + t) * 2 + place.upper) * 2 * Self::LOW
    }

    /// Those lower bits: pair p of block b from bit `LOW·(4b + p)` on, odd columns `8·LOW` further.
    fn low(unit: &[u8], at: usize) -> u32 {
        match Self::LOW {
            0 => 0,
            1 => {
                let both = u32::from(half_word(unit, at));
                (both >> 2 & 0x3f3f) | (both & 0x0303) << 6
            }
            _ => word(unit, at).rotate_right(1),
        }
    }

    fn put_low(unit: &mut [u8], at: usize, low: u32) {
        match Self::LOW {
            0 => {}
            1 => put(unit, at, &(((low & 0x3f3f) << 2 | low >> 6 & 0x0303) as u16).to_le_bytes()),
            _ => put(unit, at, &low.rotate_left(1).to_le_bytes()),
        }
    }

    /// First of the lower bits of column j of eight.
    fn low_bit(block: usize, j: usize) -> usize {
        Self::LOW * (block % 2 * 4 + j / 2 + j % 2 * 8)
    }

    fn scales_at(place: Place, block: usize) -> usize {
        Self::VALUES + ((place.tile * 2 + block / 2) * 8 + place.g) * 8 + place.upper * 4 + block % 2 * 2
    }

    pub(super) fn row(name: &'static str, part: &'static str) -> FormRow {
        FormRow {
            name,
            part,
            unit_bytes: Self::VALUES + 256,
            tail: 0,
            detail: 0,
            values: |unit, place, _, dst| Self::values(unit, place, dst),
            pieces: |place, _| Self::pieces(place),
            // All byte values decode to a usable scale.
            good_unit: |_| true,
            pack: Some(pack_row::<Self>),
        }
    }

    fn values(unit: &[u8], place: Place, dst: &mut [f32]) {
        for (block, dst) in dst.chunks_exact_mut(32).enumerate() {
            let at = Self::scales_at(place, block);
            let byte = |at: usize| unit.get(at).map_or(0, |b| u32::from(*b));
            let scale = Self::scale_of(byte(at));
            let offset = Self::offset_of(byte(at + 1) & 0x7f, scale);
            for (t, dst) in dst.chunks_exact_mut(8).enumerate() {
                let low = Self::low(unit, Self::low_at(place, block / 2, t));
                let upper = split(word(unit, nibble_word(place, block, t)).rotate_right(Self::TURN));
                for (j, (upper, dst)) in upper.into_iter().zip(dst).enumerate() {
                    let q = upper << Self::LOW | low >> Self::low_bit(block, j) & Self::LOW_MASK;
                    *dst = round((Self::N + q as f32) * scale - offset);
                }
            }
        }
    }

    fn pieces(place: Place) -> Vec<(usize, usize)> {
        let low = (0..8).map(|i| (Self::low_at(place, i / 4, i % 4), 2 * Self::LOW));
        nibbles_and(place, low.chain((0..4).map(|block| (Self::scales_at(place, block), 2))))
    }
}

impl<const BITS: usize> Rounding for Choice<BITS> {
    const COLUMNS: usize = 32;

    /// Sums have the order of the kernels `pack_int4` and so on, which have no weights: equal weights change nothing.
    #[inline(always)]
    fn choose(x: &[f32], weights: &[f32]) -> Self {
        let (lo, hi) = x.iter().fold((0f32, 0f32), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
        let base = ((((hi - lo) / Self::MOST).to_bits() >> 16) as i32 - Self::CODE_ZERO) >> 3;
        let middle = (lo + hi) * 0.5;
        let share = 1.0 / weights.iter().sum::<f32>();
        let mut best = (Self::default(), f32::MAX);
        for code in base - 5..=base + 1 {
            let code = code.clamp(0, 255) as u32;
            let scale = Self::scale_of(code);
            let inverse = 1.0 / scale;
            let offset = Self::offset_of(Self::zero_of(Self::MOST * 0.5 - middle * inverse), scale);
            let sum = x
                .iter()
                .zip(weights)
                .fold(0f32, |sum, (x, weight)| sum + (Self::quantised(*x, offset, inverse) - x * inverse) * weight);
            let zero = Self::zero_of(sum * share - Self::N);
            let offset = Self::offset_of(zero, scale);
            let error = x.iter().zip(weights).fold(0f32, |error, (x, weight)| {
                let off = Self::quantised(*x, offset, inverse) * scale - offset - x;
                error + off * off * weight
            });
            if error < best.1 {
                best = (Choice { code, zero, scale, offset, inverse }, error);
            }
        }
        best.0
    }

    #[inline(always)]
    fn round(&self, x: f32) -> (i32, f32) {
        let q = Self::quantised(x, self.offset, self.inverse);
        (q as i32, round(q * self.scale - self.offset))
    }

    fn put(&self, unit: &mut [u8], place: Place, block: usize, codes: &[i32]) {
        for (t, codes) in codes.chunks_exact(8).enumerate() {
            let upper = join(codes.iter().map(|q| *q as u32 >> Self::LOW));
            put(unit, nibble_word(place, block, t), &upper.rotate_left(Self::TURN).to_le_bytes());
            // The other block of the half has its bits there, too.
            let at = Self::low_at(place, block / 2, t);
            let low = codes.iter().enumerate().fold(Self::low(unit, at), |low, (j, q)| {
                let bit = Self::low_bit(block, j);
                low & !(Self::LOW_MASK << bit) | (*q as u32 & Self::LOW_MASK) << bit
            });
            Self::put_low(unit, at, low);
        }
        put(unit, Self::scales_at(place, block), &[self.code as u8, self.zero as u8 | Self::ZERO_BIT]);
    }
}
