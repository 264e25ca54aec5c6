//! Published 4-bit weights (GPTQ, compressed-tensors): `bf16((q − z) · s)` with a bf16 scale and an integer zero point
//! per group.

use half::bf16;

use super::{
    Form, FormRow, IntegerRows, NIBBLES, Packed, Place, UNIT_COLUMNS, join_word, nibble_word, nibbles_and, put, round,
    scales_below, split, word,
};

/// Columns that share a scale, as kernels see it: longer groups repeat their scale in every unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group4 {
    G32,
    G64,
    /// 128 columns or a multiple.
    G128,
}

impl Group4 {
    pub fn of(columns: usize) -> Option<Group4> {
        match columns {
            32 => Some(Group4::G32),
            64 => Some(Group4::G64),
            n if n > 0 && n.is_multiple_of(UNIT_COLUMNS) => Some(Group4::G128),
            _ => None,
        }
    }

    /// log2 of the blocks of 32 columns that share a scale.
    pub fn detail(self) -> usize {
        match self {
            Group4::G32 => 0,
            Group4::G64 => 1,
            Group4::G128 => 2,
        }
    }

    pub fn columns(self) -> usize {
        32 << self.detail()
    }
}

pub(super) fn row(group: Group4) -> FormRow {
    FormRow {
        name: "group4",
        part: "group4_2",
        unit_bytes: NIBBLES + (512 >> group.detail()),
        tail: 0,
        detail: group.detail(),
        values: |unit, place, extras, dst| values(unit, extras.detail, place, dst),
        pieces: |place, detail| nibbles_and(place, (0..4).map(|block| (scale_at(detail, place, block), 4))),
        good_unit: |unit| scales_below(f32::INFINITY, unit, NIBBLES),
        pack: None,
    }
}

fn scale_at(detail: usize, place: Place, block: usize) -> usize {
    NIBBLES + ((place.tile * (4 >> detail) + (block >> detail)) * 8 + place.g) * 8 + place.upper * 4
}

impl Packed {
    /// Repacks a published weight; scales are rounded to bf16. `None` if `inner` is not a multiple of 128.
    pub fn group4(group: Group4, out: usize, inner: usize, rows: &dyn IntegerRows) -> Option<Packed> {
        Packed::repack(Form::Group4(group), out, inner, |unit, u, row, place| {
            for n in 0..UNIT_COLUMNS / 8 {
                let word = join_word(rows.eight(row, u * UNIT_COLUMNS / 8 + n));
                put(unit, nibble_word(place, n / 4, n % 4), &word.to_le_bytes());
            }
            for block in (0..4).step_by(group.columns() / 32) {
                let (scale, zero) = rows.scale(row, u * UNIT_COLUMNS + block * 32);
                let offset = bf16::from_f32(-(16.0 + zero as f32));
                put(unit, scale_at(group.detail(), place, block), &bf16::from_f32(scale).to_le_bytes());
                put(unit, scale_at(group.detail(), place, block) + 2, &offset.to_le_bytes());
            }
        })
    }
}

fn values(unit: &[u8], detail: usize, place: Place, dst: &mut [f32]) {
    for (block, dst) in dst.chunks_exact_mut(32).enumerate() {
        let both = word(unit, scale_at(detail, place, block));
        let (scale, offset) = (f32::from_bits(both << 16), f32::from_bits(both & 0xffff_0000));
        for (t, dst) in dst.chunks_exact_mut(8).enumerate() {
            for (q, dst) in split(word(unit, nibble_word(place, block, t))).into_iter().zip(dst) {
                *dst = round(((16 + q) as f32 + offset) * scale);
            }
        }
    }
}
