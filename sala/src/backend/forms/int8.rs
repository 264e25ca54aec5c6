//! 8 bits, symmetric, a bf16 scale per 128 columns: `bf16(q · s)`.

use half::bf16;

use super::careful::{Rounding, pack_row};
use super::{Form, FormRow, IntegerRows, Packed, Place, UNIT_COLUMNS, half_word, nearest, put, round, scales_below};

const VALUES: usize = 4096;

/// Kernels multiply scales by 2^101 on the way: from here on the product overflows.
pub(super) const TOO_LARGE_A_SCALE: f32 = 67_108_864.0;

pub(super) fn row() -> FormRow {
    FormRow {
        name: "int8",
        part: "int8",
        unit_bytes: VALUES + 64,
        tail: 0,
        detail: 0,
        values: |unit, place, _, dst| values(unit, place, dst),
        pieces: |place, _| pieces(place),
        good_unit: |unit| scales_below(TOO_LARGE_A_SCALE, unit, VALUES),
        pack: Some(pack_row::<Scale>),
    }
}

/// Position of the word of columns `4w..4w + 4`.
fn at(place: Place, w: usize) -> usize {
    let (h, b, t) = (w / 16, w / 8 % 2, w / 2 % 4);
    (((place.tile * 2 + h) * 2 + b) * 32 + place.g * 4 + t) * 16 + place.upper * 8 + w % 2 * 4
}

fn scale_at(place: Place) -> usize {
    VALUES + ((place.tile * 8 + place.g) * 2 + place.upper) * 2
}

#[derive(Clone, Copy, Default)]
struct Scale {
    scale: bf16,
    inverse: f32,
}

impl Scale {
    #[inline(always)]
    fn code(&self, x: f32) -> i32 {
        nearest(x * self.inverse).clamp(-127.0, 127.0) as i32
    }
}

impl Rounding for Scale {
    const COLUMNS: usize = UNIT_COLUMNS;

    /// Always the plain choice, whatever the column weights: 8 bits allow no narrower range without loss.
    #[inline(always)]
    fn choose(x: &[f32], _weights: &[f32]) -> Scale {
        let most = x.iter().fold(0f32, |m, v| m.max(v.abs()));
        let scale = bf16::from_f32(most / 127.0);
        Scale { scale, inverse: if most > 1e-30 { 1.0 / scale.to_f32() } else { 0.0 } }
    }

    #[inline(always)]
    fn round(&self, x: f32) -> (i32, f32) {
        let q = self.code(x);
        (q, round(q as f32 * self.scale.to_f32()))
    }

    fn put(&self, unit: &mut [u8], place: Place, _group: usize, codes: &[i32]) {
        for (w, four) in codes.chunks_exact(4).enumerate() {
            let q = |j: usize| four.get(j).map_or(0, |q| *q as i8) as u8;
            put(unit, at(place, w), &[q(0), q(2), q(1), q(3)]);
        }
        put(unit, scale_at(place), &self.scale.to_le_bytes());
    }
}

impl Packed {
    /// Repacks a published weight with signed bytes `q − z` and groups of 128 columns or a multiple; scales are
    /// rounded to bf16. `None` if `inner` is not a multiple of 128.
    pub fn int8(out: usize, inner: usize, rows: &dyn IntegerRows) -> Option<Packed> {
        Packed::repack(Form::Int8, out, inner, |unit, u, row, place| {
            let (scale, zero) = rows.scale(row, u * UNIT_COLUMNS);
            for w in 0..UNIT_COLUMNS / 4 {
                let first = u * UNIT_COLUMNS + 4 * w;
                let q = |j: usize| rows.quantised(row, first + j).wrapping_sub(zero) as u8;
                put(unit, at(place, w), &[q(0), q(2), q(1), q(3)]);
            }
            put(unit, scale_at(place), &bf16::from_f32(scale).to_le_bytes());
        })
    }
}

fn values(unit: &[u8], place: Place, dst: &mut [f32]) {
    let scale = bf16::from_bits(half_word(unit, scale_at(place))).to_f32();
    for (w, dst) in dst.chunks_exact_mut(4).enumerate() {
        let first = at(place, w);
        for (j, dst) in [0, 2, 1, 3].into_iter().zip(dst) {
            let q = unit.get(first + j).map_or(0, |b| *b as i8);
            *dst = round(f32::from(q) * scale);
        }
    }
}

fn pieces(place: Place) -> Vec<(usize, usize)> {
    (0..UNIT_COLUMNS / 4).map(|w| (at(place, w), 4)).chain([(scale_at(place), 2)]).collect()
}
