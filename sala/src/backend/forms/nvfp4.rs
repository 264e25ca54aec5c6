//! Published NVFP4 weights: e2m1 values, an e4m3 scale per 16 columns, one f32 factor for the whole weight.
//!
//! Values equal those of the publishing library, `bf16(e2m1 · fl(scale · factor))`. Decode and verify multiply with
//! `e2m1 · scale`, which is exact in bf16, and multiply the sum by the factor in f32: as precise as the published
//! numbers.

use super::{
    Form, FormRow, PAIR_ROWS, Packed, Place, UNIT_COLUMNS, half_word, nibble_word, nibbles_and, put, round, word,
};

const VALUES: usize = 2048;
/// Size of the tail of a pair: for each row the factor of its sums, then the weight's factor.
const TAIL: usize = 2 * TAIL_EACH;
const TAIL_EACH: usize = PAIR_ROWS * size_of::<f32>();

const BLOCK: usize = 16;

/// Missing factor of the kernels' sums: they multiply values times 2^-126 and scales times 2^119.
const GAIN: f32 = 128.0;

/// The largest `e2m1 · e4m3`.
const MOST: f32 = 6.0 * 448.0;

pub(super) fn row() -> FormRow {
    FormRow {
        name: "nvfp4",
        part: "nvfp4",
        unit_bytes: VALUES + 256,
        tail: TAIL,
        detail: 0,
        values: |unit, place, extras, dst| values(unit, place, extras.factor, dst),
        pieces: |place, _| nibbles_and(place, (0..4).map(|i| (scales_at(place, i / 2, i % 2), 2))),
        good_unit,
        pack: None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// `scale · factor`
    Times(f32),
    /// `scale / factor`
    Over(f32),
}

impl Factor {
    fn gain(self) -> f32 {
        match self {
            Factor::Times(f) => GAIN * f,
            Factor::Over(f) => GAIN / f,
        }
    }

    fn signed(self) -> f32 {
        match self {
            Factor::Times(f) => f,
            Factor::Over(f) => -f,
        }
    }

    fn from_signed(f: f32) -> Factor {
        if f < 0.0 { Factor::Over(-f) } else { Factor::Times(f) }
    }

    pub fn applied(self, scale: f32) -> f32 {
        match self {
            Factor::Times(f) => scale * f,
            Factor::Over(f) => scale / f,
        }
    }

    /// Positive, and no value out of range.
    pub fn is_usable(self) -> bool {
        let (Factor::Times(f) | Factor::Over(f)) = self;
        f > 0.0 && f.is_finite() && self.gain() > 0.0 && (self.gain() * MOST).is_finite()
    }
}

#[derive(Clone, Copy)]
pub struct Nvfp4Rows<'a> {
    /// Two values per byte, the first in the lower half. `[out, inner / 2]`
    pub values: &'a [u8],
    /// e4m3. `[out, inner / 16]`
    pub scales: &'a [u8],
    pub factor: Factor,
}

impl Packed {
    /// Repacks a published weight. `None` if `inner` is not a multiple of 128 or a size is wrong.
    pub fn nvfp4(out: usize, inner: usize, rows: Nvfp4Rows<'_>) -> Option<Packed> {
        if rows.values.len() != out * inner / 2 || rows.scales.len() != out * inner / BLOCK {
            return None;
        }
        let units = inner / UNIT_COLUMNS;
        let mut packed = Packed::repack(Form::Nvfp4, out, inner, |unit, u, row, place| {
            let (values, scales) = (UNIT_COLUMNS / 2, UNIT_COLUMNS / BLOCK);
            let at = row * units + u;
            let values = rows.values.get(at * values..(at + 1) * values).unwrap_or_default();
            put_row(unit, place, values, rows.scales.get(at * scales..(at + 1) * scales).unwrap_or_default());
        })?;
        for (pair, bytes) in packed.bytes.chunks_exact_mut(Form::Nvfp4.pair_bytes(inner).max(1)).enumerate() {
            let tail = bytes.len() - TAIL;
            for r in 0..PAIR_ROWS.min(out.saturating_sub(pair * PAIR_ROWS)) {
                put(bytes, tail + 4 * r, &rows.factor.gain().to_le_bytes());
                put(bytes, tail + TAIL_EACH + 4 * r, &rows.factor.signed().to_le_bytes());
            }
        }
        Some(packed)
    }
}

/// Packs a unit's row from 64 bytes of values and 8 scales.
fn put_row(unit: &mut [u8], place: Place, values: &[u8], scales: &[u8]) {
    for h in 0..2 {
        let scale = |block: usize, sub: usize| scales.get((h * 2 + block) * 2 + sub).copied().unwrap_or_default();
        for t in 0..4 {
            // The values absorb the sign of a scale, and a scale of zero.
            let [a, c] = [0, 1].map(|block| {
                let eight = word(values, (h * 2 + block) * 16 + t * 4);
                match scale(block, t / 2) {
                    0 | 0x80 => eight & 0x8888_8888,
                    s if s & 0x80 != 0 => eight ^ 0x8888_8888,
                    _ => eight,
                }
            });
            let [a, c] = join(a, c);
            put(unit, nibble_word(place, 2 * h, t), &a.to_le_bytes());
            put(unit, nibble_word(place, 2 * h + 1, t), &c.to_le_bytes());
        }
        for sub in 0..2 {
            let [a, c] = [0, 1].map(|block| u16::from(wide_scale(scale(block, sub))));
            put(unit, scales_at(place, h, sub), &(a | c << 8).rotate_left(4).to_le_bytes());
        }
    }
}

/// Position of the two scales of columns `16·sub..` of both blocks, in a row's half.
fn scales_at(place: Place, h: usize, sub: usize) -> usize {
    VALUES + ((place.tile * 2 + h) * 8 + place.g) * 8 + sub * 4 + place.upper * 2
}

/// The magnitude of an e4m3 number with five exponent bits and a bias larger by 22: none is subnormal. Zero stays
/// zero.
fn wide_scale(e4m3: u8) -> u8 {
    let magnitude = e4m3 & 0x7f;
    match magnitude {
        0 => 0,
        1..8 => {
            // m · 2^-9
            let exponent = 7 - magnitude.leading_zeros() as u8;
            (13 + exponent) << 3 | (magnitude << (3 - exponent)) & 7
        }
        _ => magnitude + (15 << 3),
    }
}

fn scale_of(wide: u8) -> f32 {
    if wide == 0 { 0.0 } else { f32::from_bits((u32::from(wide) + (105 << 3)) << 20) }
}

// Mask of the pairs of words `a` (columns 8t.. of a block of 32) and `c` (of the next one), as `Nvfp4` in
// `kernels/packed.cuh` extracts them. Each has two values in place, sign at bit 15 and the others at 8..6 of either
// half.
const VALUE: u32 = 0x81c0_81c0;
/// The bits of `a` that three pairs leave.
const REST: u32 = 0x6030_6030;

/// Sixteen values, four bits each in the order of columns, as two words.
fn join(a: u32, c: u32) -> [u32; 2] {
    let pair = |eight: u32, j: u32| {
        let one = |n: u32| (n & 8) << 12 | (n & 7) << 6;
        one(eight >> (8 * j) & 15) | one(eight >> (8 * j + 4) & 15) << 16
    };
    let three = |eight: u32| pair(eight, 0) | pair(eight, 1).rotate_left(4) | pair(eight, 2) >> 6;
    let rest = pair(a, 3).rotate_left(8) | pair(c, 3) >> 2;
    [three(a) | rest & REST, three(c) | (rest & !REST).rotate_left(30)]
}

fn split(a: u32, c: u32) -> [u32; 2] {
    let eight = |pairs: [u32; 4]| {
        let one = |half: u32| half >> 12 & 8 | half >> 6 & 7;
        pairs.into_iter().rev().fold(0, |all, x| all << 8 | one(x >> 16) << 4 | one(x & 0xffff))
    };
    let rest = a & REST | c.rotate_right(30) & !REST;
    let three = |w: u32| [w & VALUE, w.rotate_right(4) & VALUE, w << 6 & VALUE];
    let ([a0, a1, a2], [c0, c1, c2]) = (three(a), three(c));
    [eight([a0, a1, a2, rest.rotate_right(8) & VALUE]), eight([c0, c1, c2, rest << 2 & VALUE])]
}

const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// e2m1: sign, two bits of exponent, one of mantissa.
pub fn e2m1(nibble: u8) -> f32 {
    E2M1.get(usize::from(nibble)).copied().unwrap_or_default()
}

pub(super) fn factor(tail: &[u8], row: usize) -> Factor {
    Factor::from_signed(f32::from_bits(word(tail, TAIL_EACH + row % PAIR_ROWS * 4)))
}

fn values(unit: &[u8], place: Place, factor: Factor, dst: &mut [f32]) {
    for (h, dst) in dst.chunks_exact_mut(64).enumerate() {
        let steps = [0, 1].map(|sub| {
            let both = half_word(unit, scales_at(place, h, sub)).rotate_right(4);
            [both as u8, (both >> 8) as u8].map(|wide| factor.applied(scale_of(wide)))
        });
        let (first, second) = dst.split_at_mut(32);
        for (t, dst) in first.chunks_exact_mut(8).zip(second.chunks_exact_mut(8)).enumerate() {
            let [a, c] = [0, 1].map(|block| word(unit, nibble_word(place, 2 * h + block, t)));
            let [a, c] = split(a, c);
            let step = steps.get(t / 2).copied().unwrap_or_default();
            for ((eight, dst), step) in [(a, dst.0), (c, dst.1)].into_iter().zip(step) {
                for (j, v) in dst.iter_mut().enumerate() {
                    *v = round(e2m1((eight >> (4 * j) & 15) as u8) * step);
                }
            }
        }
    }
}

fn good_unit(unit: &[u8]) -> bool {
    let scales = unit.get(VALUES..).unwrap_or_default().chunks_exact(2);
    let known = |wide: u8| wide == 0 || (13 << 3..=(30 << 3) + 6).contains(&wide);
    scales
        .map(|b| u16::from_le_bytes([b[0], b[1]]).rotate_right(4))
        .all(|both| known(both as u8) && known((both >> 8) as u8))
}

/// The same for a pair's tail; padding rows have zeros.
pub(super) fn good_tail(tail: &[u8]) -> bool {
    (0..PAIR_ROWS).all(|row| {
        let factor = factor(tail, row);
        let gain = f32::from_bits(word(tail, row * 4));
        (factor.is_usable() && gain == factor.gain()) || (factor == Factor::Times(0.0) && gain == 0.0)
    })
}

/// Positions of the bytes of one row in the tail of a pair: (first, count).
pub(super) fn tail_pieces(row: usize) -> impl Iterator<Item = (usize, usize)> {
    [(row * 4, 4), (TAIL_EACH + row * 4, 4)].into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_two_words_is_used_once() {
        let mut seen = [0u32; 2];
        for (word, nibble, bit) in (0..64).map(|i| (i / 32, i % 32 / 4, i % 4)) {
            let mut eights = [0u32; 2];
            eights[word] = 1 << (nibble * 4 + bit);
            let made = join(eights[0], eights[1]);
            assert_eq!(made[0].count_ones() + made[1].count_ones(), 1);
            assert_eq!((seen[0] & made[0], seen[1] & made[1]), (0, 0));
            seen = [seen[0] | made[0], seen[1] | made[1]];
            assert_eq!(split(made[0], made[1]), eights);
        }
        assert_eq!(seen, [u32::MAX; 2]);
    }

    #[test]
    fn scales_keep_their_values() {
        for byte in 0..0x7f {
            let (exponent, mantissa) = (i32::from(byte >> 3), f32::from(byte & 7));
            let expected = match exponent {
                0 => mantissa * 2f32.powi(-9),
                e => (1.0 + mantissa / 8.0) * 2f32.powi(e - 7),
            };
            assert_eq!(scale_of(wide_scale(byte)), expected, "{byte:#x}");
        }
        assert_eq!((wide_scale(1), wide_scale(0x7e)), (13 << 3, (30 << 3) + 6));
    }
}
