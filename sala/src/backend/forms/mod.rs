//! Forms of a weight: bf16 as in a checkpoint, or packed into fewer bits.
//!
//! A form is a property of a weight, never a type of the model: operations take a matrix of any form. Activations stay
//! bf16 (f32 on the CPU) whatever the form; a packed weight is widened on the way into a GEMM.
//!
//! This module owns the layout of packed weights (the table in `kernels/packed.cuh` is the same), the choice of values
//! when a bf16 weight is packed, and the values that a packed weight represents. The CPU backend computes with them,
//! the kernels make the same numbers in the same arithmetic, so both hold the same bits and the CPU stays the oracle.
//!
//! | file | owns |
//! |---|---|
//! | here | the table of forms, units and the place of a row's values in them |
//! | `int8`, `planes` | forms that the program makes from bf16: 8 bits, and 4, 5 or 6 |
//! | `careful` | the values that these take when the weight's inputs are known |
//! | `group4` | published 4-bit weights with a scale and a whole zero point per group |
//! | `nvfp4` | published NVFP4 weights |
//! | `interleave` | gate and up as one weight |
//! | `random` | random weights in published forms |

mod careful;
mod group4;
mod int8;
mod interleave;
mod nvfp4;
mod planes;
mod random;
#[cfg(test)]
mod tests;

use half::bf16;
use rayon::prelude::*;

pub use careful::OutputErrors;
pub use group4::Group4;
pub use interleave::Interleaving;
pub use nvfp4::{Factor, Nvfp4Rows, e2m1};
use planes::Choice;

/// The inner size of a packed weight is a multiple of this.
pub const UNIT_COLUMNS: usize = 128;
/// Rows of a pair of tiles; zero rows pad packed weights to a multiple of it.
pub const PAIR_ROWS: usize = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// 16 bits per value (f32 files stay f32 on the CPU).
    #[default]
    Bf16,
    /// 8 bits, symmetric, a bf16 scale per 128 columns.
    Int8,
    /// 4 bits, a scale and a zero point of one byte each per 32 columns.
    Int4,
    /// 5 bits; scales as in int4.
    Int5,
    /// 6 bits; scales as in int4.
    Int6,
    /// 4 bits as published (GPTQ, compressed-tensors), a bf16 scale and an integer zero point per group of columns.
    Group4(Group4),
    /// 4 bits of floating point as published (NVFP4), a scale of one byte per 16 columns, a factor per row.
    Nvfp4,
}

#[derive(Clone, Copy, Debug)]
pub struct FormRow {
    /// Prefix of this form's kernels; also shown to users.
    pub name: &'static str,
    /// Suffix in files: a weight of this layout is `NAME.part`.
    pub part: &'static str,
    /// A unit has 32 rows and 128 columns.
    pub unit_bytes: usize,
    /// Bytes after the units of 32 rows.
    pub tail: usize,
    /// A kernel parameter, see `packed.cuh`.
    pub detail: usize,
    values: fn(&[u8], Place, Extras, &mut [f32]),
    /// Positions of a row's bytes in a unit: (first, count).
    pieces: fn(Place, usize) -> Vec<(usize, usize)>,
    /// Whether all scales of a unit are finite, and not larger than kernels can use.
    good_unit: fn(&[u8]) -> bool,
    /// Packs a unit's row from bf16 values, where the program makes this form: plainly, or by the moments of its inputs.
    pack: Option<PackRow>,
}

#[derive(Clone, Copy)]
struct Extras {
    detail: usize,
    factor: Factor,
}

type PackRow = fn(&mut [u8], Place, &[f32], Option<&careful::Unit>) -> OutputErrors;

impl Form {
    pub fn row(self) -> Option<FormRow> {
        match self {
            Form::Bf16 => None,
            Form::Int8 => Some(int8::row()),
            Form::Int4 => Some(Choice::<4>::row("int4", "int4_2")),
            Form::Int5 => Some(Choice::<5>::row("int5", "int5")),
            Form::Int6 => Some(Choice::<6>::row("int6", "int6")),
            Form::Group4(group) => Some(group4::row(group)),
            Form::Nvfp4 => Some(nvfp4::row()),
        }
    }

    pub fn name(self) -> &'static str {
        self.row().map_or("bf16", |row| row.name)
    }

    pub fn fits(self, inner: usize) -> bool {
        self == Form::Bf16 || inner.is_multiple_of(UNIT_COLUMNS)
    }

    pub fn or_bf16(self, inner: usize) -> Form {
        if self.fits(inner) { self } else { Form::Bf16 }
    }

    pub fn bytes(self, out: usize, inner: usize) -> usize {
        match self.row() {
            None => out * inner * 2,
            Some(_) => out.div_ceil(PAIR_ROWS) * self.pair_bytes(inner),
        }
    }

    /// Pairs of tiles, and units where the pair has no tail.
    pub fn stored_shape(self, out: usize, inner: usize) -> Vec<usize> {
        let pairs = out.div_ceil(PAIR_ROWS);
        match self.row() {
            Some(row) if row.tail == 0 => vec![pairs, inner / UNIT_COLUMNS, row.unit_bytes],
            _ => vec![pairs, self.pair_bytes(inner)],
        }
    }

    pub fn pair_bytes(self, inner: usize) -> usize {
        self.row().map_or(0, |row| inner / UNIT_COLUMNS * row.unit_bytes + row.tail)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

/// A published weight of integers: `(q − z) · s`.
pub trait IntegerRows: Sync {
    /// `q` of a column, from 0.
    fn quantised(&self, row: usize, column: usize) -> u32;
    /// `q` of columns `8n..8n + 8` at four bits each, the first lowest.
    fn eight(&self, row: usize, n: usize) -> u32 {
        self.eight_singly(row, n)
    }
    /// Value by value, for layouts that do not hold them as a word.
    fn eight_singly(&self, row: usize, n: usize) -> u32 {
        (0..8).fold(0, |all, j| all | (self.quantised(row, 8 * n + j) & 15) << (4 * j))
    }
    fn scale(&self, row: usize, column: usize) -> (f32, u32);
}

/// A weight `[out, inner]` in host memory.
pub struct Packed {
    form: Form,
    inner: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    tile: usize,
    /// Row g or g + 8 of the tile.
    upper: usize,
    g: usize,
}

impl Place {
    fn of(row: usize) -> Place {
        Place { tile: row / 16 % 2, upper: row / 8 % 2, g: row % 8 }
    }
}

impl Packed {
    /// Packs `[out, inner]` values, which `fill(row, values)` supplies row by row. They are rounded to bf16 first.
    ///
    /// # Errors
    /// A value that is not finite; also forms that only published weights have, and wrong sizes, which callers refuse
    /// first.
    pub fn pack(
        form: Form,
        out: usize,
        inner: usize,
        fill: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<Packed, NotFinite> {
        let row = form.row().ok_or(NotFinite)?;
        let pack = row.pack.ok_or(NotFinite)?;
        Packed::pack_with(form, out, inner, fill, |_, r, bytes, values| {
            for (unit, values) in bytes.chunks_exact_mut(row.unit_bytes).zip(values.chunks_exact(UNIT_COLUMNS)) {
                pack(unit, Place::of(r), values, None);
            }
        })
    }

    fn pack_with(
        form: Form,
        out: usize,
        inner: usize,
        fill: impl Fn(usize, &mut [f32]) + Sync,
        pack: impl Fn(usize, usize, &mut [u8], &[f32]) + Sync,
    ) -> Result<Packed, NotFinite> {
        form.row().filter(|_| form.fits(inner)).ok_or(NotFinite)?;
        let mut bytes = vec![0u8; form.bytes(out, inner)];
        bytes.par_chunks_mut(form.pair_bytes(inner).max(1)).enumerate().try_for_each_init(
            || vec![0f32; inner],
            |values, (pair, bytes)| {
                for r in 0..PAIR_ROWS {
                    let at = pair * PAIR_ROWS + r;
                    values.fill(0.0);
                    if at < out {
                        fill(at, values);
                    }
                    for v in values.iter_mut() {
                        *v = bf16::from_f32(*v).to_f32();
                    }
                    if !values.iter().all(|v| v.abs() < 127.0 * int8::TOO_LARGE_A_SCALE) {
                        return Err(NotFinite);
                    }
                    pack(pair, r, bytes, values);
                }
                Ok(())
            },
        )?;
        Ok(Packed { form, inner, bytes })
    }

    /// Repacks a published weight unit by unit: where a word holds columns, those of neighbouring rows are adjacent.
    /// `put(unit, number of the unit, row, place)` writes a unit's row. `None` if `inner` is not a multiple of 128.
    fn repack(
        form: Form,
        out: usize,
        inner: usize,
        put: impl Fn(&mut [u8], usize, usize, Place) + Sync,
    ) -> Option<Packed> {
        let unit_bytes = form.row().filter(|_| form.fits(inner))?.unit_bytes;
        let mut bytes = vec![0u8; form.bytes(out, inner)];
        bytes.par_chunks_mut(form.pair_bytes(inner).max(1)).enumerate().for_each(|(pair, bytes)| {
            for (u, unit) in bytes.chunks_exact_mut(unit_bytes).take(inner / UNIT_COLUMNS).enumerate() {
                for r in 0..PAIR_ROWS.min(out.saturating_sub(pair * PAIR_ROWS)) {
                    put(unit, u, pair * PAIR_ROWS + r, Place::of(r));
                }
            }
        });
        Packed::from_bytes(form, out, inner, bytes)
    }

    /// `None` if the bytes do not have this shape.
    pub fn from_bytes(form: Form, out: usize, inner: usize, bytes: Vec<u8>) -> Option<Packed> {
        let fits = form.row().is_some() && form.fits(inner) && bytes.len() == form.bytes(out, inner);
        fits.then_some(Packed { form, inner, bytes })
    }

    pub fn form(&self) -> Form {
        self.form
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn values(&self, row: usize, dst: &mut [f32]) {
        values(self.form, self.inner, &self.bytes, row, dst);
    }
}

/// Decodes `inner` values of one row of a packed weight; zeros outside of the weight.
pub fn values(form: Form, inner: usize, bytes: &[u8], row: usize, dst: &mut [f32]) {
    let Some(table) = form.row() else { return };
    let place = Place::of(row);
    let pair = form.pair_bytes(inner);
    let bytes = bytes.get(row / PAIR_ROWS * pair..).and_then(|b| b.get(..pair)).unwrap_or_default();
    let (units, tail) = bytes.split_at(bytes.len().min(inner / UNIT_COLUMNS * table.unit_bytes));
    let extras = Extras { detail: table.detail, factor: nvfp4::factor(tail, row) };
    for (unit, dst) in units.chunks_exact(table.unit_bytes).zip(dst.chunks_exact_mut(UNIT_COLUMNS)) {
        (table.values)(unit, place, extras, dst);
    }
}

/// The first unit of a packed weight with a scale, in the unit or its pair's tail, that is not finite or too large for
/// kernels. Scales of int4, int5 and int6 are always good.
pub fn first_bad_unit(form: Form, inner: usize, bytes: &[u8]) -> Option<usize> {
    let row = form.row()?;
    let units = inner / UNIT_COLUMNS;
    let pairs = bytes.par_chunks_exact(form.pair_bytes(inner).max(1)).enumerate();
    let first = |(pair, bytes): (usize, &[u8])| {
        let (all, tail) = bytes.split_at(bytes.len().min(units * row.unit_bytes));
        let found = all.chunks_exact(row.unit_bytes).position(|unit| !(row.good_unit)(unit));
        let found = found.or_else(|| (form == Form::Nvfp4 && !nvfp4::good_tail(tail)).then_some(units));
        found.map(|unit| pair * units + unit)
    };
    pairs.find_map_first(first)
}

/// Whether the bf16 scales from byte `first` on are finite, and below `most`.
fn scales_below(most: f32, unit: &[u8], first: usize) -> bool {
    let scale_of = |b: &[u8]| bf16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32();
    unit.get(first..).unwrap_or_default().chunks_exact(2).map(scale_of).all(|s| s.abs() < most)
}

fn round(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// Ties to even; |x| < 2^22.
fn nearest(x: f32) -> f32 {
    (x + 12_582_912.0) - 12_582_912.0
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn half_word(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(to) = bytes.get_mut(at..at + value.len()) {
        to.copy_from_slice(value);
    }
}

const NIBBLES: usize = 2048;

/// Position of a four-bit word of row `place` of `tile`, by (block of 32 columns in the unit, t); a half holds words
/// `[lane][block 2][row 2]`.
fn nibble_word(place: Place, block: usize, t: usize) -> usize {
    let (h, b) = (block / 2, block % 2);
    ((place.tile * 2 + h) * 32 + place.g * 4 + t) * 16 + (b * 2 + place.upper) * 4
}

/// Positions of a row's four-bit words in a unit, and then of the form's other bytes.
fn nibbles_and(place: Place, extras: impl Iterator<Item = (usize, usize)>) -> Vec<(usize, usize)> {
    (0..16).map(|i| (nibble_word(place, i / 4, i % 4), 4)).chain(extras).collect()
}

/// Eight four-bit values as kernels unpack them: even columns in the lower half, odd in the upper.
fn join(q: impl IntoIterator<Item = u32>) -> u32 {
    q.into_iter().enumerate().fold(0u32, |word, (j, q)| word | (q & 15) << (j / 2 * 4 + j % 2 * 16))
}

/// [`join`] of eight values in a word, the first lowest.
fn join_word(eight: u32) -> u32 {
    let every_other = |x: u32| {
        let pairs = (x & 0x0f0f_0f0f | (x & 0x0f0f_0f0f) >> 4) & 0x00ff_00ff;
        (pairs | pairs >> 8) & 0xffff
    };
    every_other(eight) | every_other(eight >> 4) << 16
}

fn split(word: u32) -> [u32; 8] {
    std::array::from_fn(|j| word >> (j / 2 * 4 + j % 2 * 16) & 15)
}
