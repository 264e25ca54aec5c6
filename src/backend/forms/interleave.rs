//! Gate and up rows in turns, of weights that are packed already.

use super::{Form, PAIR_ROWS, Place, UNIT_COLUMNS, nvfp4};

/// Gate and up weights of equally many rows, packed, as one weight with their rows in eights: tile b holds gate rows `8b..8b + 8`, then
/// up rows `8b..8b + 8`. A pair of tiles of gate and the same one of up, a couple, hold what two pairs of the joined weight do: bytes
/// only change places within a couple.
pub struct Interleaving {
    pair_bytes: usize,
    couples: usize,
    turns: Vec<Turns>,
}

/// What both pairs of a couple have at one place, and how it changes places.
pub struct Turns {
    /// Where the first of them begins in a pair.
    pub first: usize,
    /// Bytes of each in a pair.
    pub bytes: usize,
    /// How many follow each other.
    pub units: usize,
    /// Half-word i of both, the first pair's before the second's, is what half-word `from[i]` was.
    pub from: Vec<u16>,
}

impl Interleaving {
    /// Of two weights of `half` rows; `None` if that does not come out even.
    pub fn new(form: Form, half: usize, inner: usize) -> Option<Interleaving> {
        let row = form.row()?;
        if !half.is_multiple_of(16) || !form.fits(inner) {
            return None;
        }
        let units = inner / UNIT_COLUMNS;
        let pieces = |r: usize| (row.pieces)(Place::of(r), row.detail).into_iter();
        let mut turns = vec![Turns { first: 0, bytes: row.unit_bytes, units, from: places(row.unit_bytes, pieces) }];
        if row.behind > 0 {
            let from = places(row.behind, |r| behind_pieces(form, r));
            turns.push(Turns { first: units * row.unit_bytes, bytes: row.behind, units: 1, from });
        }
        Some(Interleaving { pair_bytes: form.pair_bytes(inner), couples: half.div_ceil(PAIR_ROWS), turns })
    }

    /// Bytes of a pair of tiles, of each weight and of the joined one.
    pub fn pair_bytes(&self) -> usize {
        self.pair_bytes
    }

    /// How many pairs each weight has.
    pub fn couples(&self) -> usize {
        self.couples
    }

    /// All that changes places in a couple.
    pub fn turns(&self) -> &[Turns] {
        &self.turns
    }

    /// A couple, gate's pair and behind it up's, as two pairs of the joined weight.
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

/// By half-word of two times `bytes` bytes where it comes from; `of(row)` are the pieces (first byte, bytes) of a row of a pair. What
/// belongs to no row stays where it is.
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

/// Where the bytes of one row lie behind the units of a pair: (first, count).
fn behind_pieces(form: Form, row: usize) -> Box<dyn Iterator<Item = (usize, usize)>> {
    if form == Form::Nvfp4 { Box::new(nvfp4::behind_pieces(row)) } else { Box::new(std::iter::empty()) }
}
