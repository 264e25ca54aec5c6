//! Interleaves gate and up rows of weights that are already packed.

use super::{Form, PAIR_ROWS, Place, UNIT_COLUMNS, nvfp4};

/// Packed gate and up weights with equal numbers of rows, as one weight with their rows in eights: tile b holds gate
/// rows `8b..8b + 8`, then up rows `8b..8b + 8`. A pair of tiles of gate and the same one of up, a couple, hold the
/// same rows as two pairs of the joined weight: bytes only change places within a couple.
pub struct Interleaving {
    pub pair_bytes: usize,
    pub couples: usize,
    pub turns: Vec<Turns>,
}

pub struct Turns {
    pub first: usize,
    pub bytes: usize,
    pub units: usize,
    /// Half-word i of both, the first pair's before the second's, is the former half-word `from[i]`.
    pub from: Vec<u16>,
}

impl Interleaving {
    /// For two weights of `half` rows; `None` if the rows do not fill whole tiles.
    pub fn new(form: Form, half: usize, inner: usize) -> Option<Interleaving> {
        let row = form.row()?;
        if !half.is_multiple_of(16) || !form.fits(inner) {
            return None;
        }
        let units = inner / UNIT_COLUMNS;
        let pieces = |r: usize| (row.pieces)(Place::of(r), row.detail).into_iter();
        let mut turns = vec![Turns { first: 0, bytes: row.unit_bytes, units, from: places(row.unit_bytes, pieces) }];
        // The tail of nvfp4, the only form that has one.
        if row.tail > 0 {
            let from = places(row.tail, nvfp4::tail_pieces);
            turns.push(Turns { first: units * row.unit_bytes, bytes: row.tail, units: 1, from });
        }
        Some(Interleaving { pair_bytes: form.pair_bytes(inner), couples: half.div_ceil(PAIR_ROWS), turns })
    }

    /// Turns a couple, gate's pair and then up's, into two pairs of the joined weight.
    pub fn join(&self, couple: &mut [u8]) {
        let before = couple.to_vec();
        for Turns { first, bytes, units, from } in &self.turns {
            let place = |unit: usize, i: usize| {
                let at = 2 * i;
                first + unit * bytes + at % bytes + if at < *bytes { 0 } else { self.pair_bytes }
            };
            for unit in 0..*units {
                for (i, from) in from.iter().enumerate() {
                    let (to, from) = (place(unit, i), place(unit, usize::from(*from)));
                    if let (Some(to), Some(from)) = (couple.get_mut(to..to + 2), before.get(from..from + 2)) {
                        to.copy_from_slice(from);
                    }
                }
            }
        }
    }
}

/// The source of each half-word of two times `bytes` bytes; `of(row)` are the pieces (first byte, bytes) of a row of a
/// pair. Bytes of no row stay in place.
fn places<I: Iterator<Item = (usize, usize)>>(bytes: usize, of: impl Fn(usize) -> I) -> Vec<u16> {
    let mut from: Vec<u16> = (0..bytes as u16).collect();
    for row in 0..2 * PAIR_ROWS {
        // Rows of the joined weight: eight of gate, eight of up.
        let (source, up) = (row / 16 * 8 + row % 8, row / 8 % 2);
        let (pair, row) = (row / PAIR_ROWS, row % PAIR_ROWS);
        for ((to, n), (at, _)) in of(row).zip(of(source)) {
            for i in (0..n).step_by(2) {
                if let Some(from) = from.get_mut((pair * bytes + to + i) / 2) {
                    *from = ((up * bytes + at + i) / 2) as u16;
                }
            }
        }
    }
    from
}
