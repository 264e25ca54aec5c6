//! Gate and up rows in turns, of weights that are packed already.

use super::{Form, PAIR_ROWS, Place, UNIT_COLUMNS, nvfp4};

/// Gate and up weights of equally many rows, packed, as one weight with their rows in eights: tile b holds gate rows `8b..8b + 8`, then
/// up rows `8b..8b + 8`. Made pair by pair of the joined weight, so that nobody needs room for all of it.
pub struct Interleaving {
    unit_bytes: usize,
    units: usize,
    pair_bytes: usize,
    /// Of even pairs of tiles and of odd ones: they take the lower and the upper half of a pair of each weight.
    moves: [Moves; 2],
}

/// Of every unit, and of what is behind the units.
struct Moves {
    unit: Vec<Move>,
    behind: Vec<Move>,
}

/// Bytes of a unit, by where they go and where they come from.
#[derive(Clone, Copy)]
struct Move {
    to: usize,
    from: usize,
    up: bool,
    /// Four of them, else two.
    word: bool,
}

impl Interleaving {
    /// Of two weights of `half` rows; `None` if that does not come out even.
    pub fn new(form: Form, half: usize, inner: usize) -> Option<Interleaving> {
        let row = form.row()?;
        if !half.is_multiple_of(16) || !form.fits(inner) {
            return None;
        }
        let moves = [0, 1].map(|odd| {
            let there = |r: usize| 16 * odd + r / 16 * 8 + r % 8;
            let pieces = |r: usize| (row.pieces)(Place::of(r), row.detail).into_iter();
            Moves {
                unit: moves(|r| pieces(r).zip(pieces(there(r)))),
                behind: moves(|r| behind_pieces(form, r).zip(behind_pieces(form, there(r)))),
            }
        });
        let pair_bytes = form.pair_bytes(inner);
        Some(Interleaving { unit_bytes: row.unit_bytes, units: inner / UNIT_COLUMNS, pair_bytes, moves })
    }

    /// Bytes of a pair of tiles, of each weight and of the joined one.
    pub fn pair_bytes(&self) -> usize {
        self.pair_bytes
    }

    /// Pair `pair` of the joined weight, from pair `pair / 2` of each.
    pub fn pair(&self, pair: usize, gate: &[u8], up: &[u8], to: &mut [u8]) {
        let [even, odd] = &self.moves;
        let moves = if pair.is_multiple_of(2) { even } else { odd };
        let [units, to_units] = [gate.len(), to.len()].map(|all| all.min(self.units * self.unit_bytes));
        let ((gate, gate_behind), (up, up_behind)) = (gate.split_at(units), up.split_at(units.min(up.len())));
        let (to, to_behind) = to.split_at_mut(to_units);
        let units = gate.chunks_exact(self.unit_bytes).zip(up.chunks_exact(self.unit_bytes));
        for (to, (gate, up)) in to.chunks_exact_mut(self.unit_bytes).zip(units) {
            run(&moves.unit, gate, up, to);
        }
        run(&moves.behind, gate_behind, up_behind, to_behind);
    }
}

/// Moves of the rows of a pair, `of(row)` from where to where; neighbours are joined.
fn moves<I: Iterator<Item = ((usize, usize), (usize, usize))>>(of: impl Fn(usize) -> I) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    for r in 0..PAIR_ROWS {
        let up = r / 8 % 2 == 1;
        for (to, from) in of(r).flat_map(|((to, n), (from, _))| (0..n).step_by(2).map(move |at| (to + at, from + at))) {
            match moves.last_mut() {
                Some(m) if !m.word && m.up == up && (m.to + 2, m.from + 2) == (to, from) => m.word = true,
                _ => moves.push(Move { to, from, up, word: false }),
            }
        }
    }
    moves
}

fn run(moves: &[Move], gate: &[u8], up: &[u8], to: &mut [u8]) {
    for m in moves {
        let from = if m.up { up } else { gate };
        // Of fixed sizes: these are single instructions.
        if m.word {
            copy::<4>(to, m.to, from, m.from);
        } else {
            copy::<2>(to, m.to, from, m.from);
        }
    }
}

fn copy<const N: usize>(to: &mut [u8], at: usize, from: &[u8], first: usize) {
    let to = to.get_mut(at..).and_then(|to| to.first_chunk_mut::<N>());
    if let (Some(to), Some(from)) = (to, from.get(first..).and_then(|from| from.first_chunk::<N>())) {
        *to = *from;
    }
}

/// Where the bytes of one row lie behind the units of a pair: (first, count).
fn behind_pieces(form: Form, row: usize) -> Box<dyn Iterator<Item = (usize, usize)>> {
    if form == Form::Nvfp4 { Box::new(nvfp4::behind_pieces(row)) } else { Box::new(std::iter::empty()) }
}
