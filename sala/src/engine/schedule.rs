//! Chooses the sequences that run next: a pure function of their requests.
//!
//! A turn is one chunk of one prompt, then decode rounds of every sequence that writes. So no sequence starves: those
//! that write are in every turn, and prompts alternate. While a sequence writes, [`CHUNK_SECONDS`] limit a chunk, and
//! the number of rounds after it keeps `ROUNDS_PER_S`: a pass of a few hundred rows leaves most of a GPU idle, so long
//! chunks with several rounds between them read more than short chunks with one. Otherwise prompts are read in whole
//! passes, as far as [`ALONE_SECONDS`] allow: a new request waits for the current chunk. Chunks are multiples of
//! [`GRID`] counted from the start of the segment, so results do not depend on any of this.

use crate::backend::{GRID, MAX_VERIFY_ROWS};

/// Limit of a chunk while a sequence writes: some 2,000 rows of an H200, at 95 % of its speed in whole passes.
pub const CHUNK_SECONDS: f64 = 0.11;
/// Rounds per second of writing sequences during a prefill: with rounds of [`ROUND_SECONDS`], five sixths of the
/// device are left for prefill.
const ROUNDS_PER_S: f64 = 36.0;
/// Approximate time of a round; slower devices write slower, and prefill takes the same share.
const ROUND_SECONDS: f64 = 0.0047;
/// A chunk may exceed its limit by this factor before it is shortened.
const TOLERANCE: f64 = 1.05;
/// Limit of a chunk while no sequence writes: a question's first token still arrives within 250 ms, its own passes
/// included, and a device that reads 4,096 tokens in this time runs whole passes.
pub const ALONE_SECONDS: f64 = 0.2;
/// Limit of rounds between two chunks: prefill continues on the slowest device.
const MOST_ROUNDS: usize = 8;
/// Largest share of a chunk's fixed time, alone and with other sequences writing: with keys and values in host memory
/// all of them cross the bus for each chunk, and a limit by time alone would leave a few rows per chunk.
const FIXED_SHARE: [f64; 2] = [0.3, 0.5];
/// Maximum number of turns that a prompt waits for shorter ones.
const PATIENCE: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want {
    Read {
        left: usize,
        waited: u64,
        /// Seconds of a chunk of any length, on top of a chunk that waits for no rows.
        fixed: f64,
    },
    Write,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Tokens of the last whole chunk while a sequence wrote, and its seconds above the fixed time.
    pub shared: Option<(usize, f64)>,
    /// Seconds of the last chunk while a sequence wrote, whole or not.
    pub held_up: f64,
    pub alone: Option<(usize, f64)>,
}

impl Pace {
    /// Records a chunk of `rows` tokens that took `seconds`, `fixed` of them independent of its length; `whole`: it
    /// had its planned length, and the device had nothing to prepare.
    pub fn note(&mut self, rows: usize, seconds: f64, fixed: f64, whole: bool, shared: bool) {
        if shared {
            self.held_up = seconds;
        }
        if whole {
            // Other work hides at most half of the fixed time.
            let own = (seconds - fixed).max(seconds / 2.0);
            *(if shared { &mut self.shared } else { &mut self.alone }) = Some((rows, own));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Read {
    pub reader: usize,
    pub rows: usize,
    pub fixed: f64,
}

/// What runs next, by index of the sequences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    pub read: Option<Read>,
    pub write: Vec<usize>,
    /// Maximum number of rows to verify per sequence, the pending token included.
    pub rows: usize,
}

/// The next turn. A prefill pass has at most `most` rows, a multiple of [`GRID`]; `rounds`: decode rounds since the
/// last chunk.
pub fn turn(wants: &[Want], most: usize, pace: Pace, rounds: usize) -> Turn {
    let write: Vec<usize> = (0..).zip(wants).filter(|(_, w)| **w == Want::Write).map(|(i, _)| i).collect();
    let readers = (0..).zip(wants).filter_map(|(i, want)| match want {
        Want::Read { left, waited, fixed } => Some((i, *left, *waited, *fixed)),
        Want::Write => None,
    });
    let late = readers.clone().filter(|r| r.2 >= PATIENCE).max_by_key(|r| (r.2, std::cmp::Reverse(r.0)));
    let next = late.or_else(|| readers.min_by_key(|r| (r.1, r.0)));
    // A stopped sequence has nothing left, and ends at once.
    let due = |left: usize| write.is_empty() || left == 0 || rounds >= rounds_after(pace.held_up);
    let read = next.filter(|(_, left, ..)| due(*left));
    let read = read.map(|(reader, .., fixed)| {
        let alone = write.is_empty();
        let rows = if alone { rows_alone(most, pace.alone, fixed) } else { rows_shared(most, pace.shared, fixed) };
        Read { reader, rows, fixed }
    });
    let rows = (MAX_VERIFY_ROWS / write.len().max(1)).max(1);
    Turn { read, write, rows }
}

fn rounds_after(seconds: f64) -> usize {
    // Enough rounds for this time and their own.
    let rounds = seconds.min(1.0) * ROUNDS_PER_S / (1.0 - ROUNDS_PER_S * ROUND_SECONDS);
    (rounds.ceil() as usize).clamp(1, MOST_ROUNDS)
}

fn rows_alone(most: usize, last: Option<(usize, f64)>, fixed: f64) -> usize {
    let [share, _] = FIXED_SHARE;
    let allowed = ALONE_SECONDS.max(fixed / share) - fixed;
    last.map_or(most, |(rows, seconds)| on_grid(rows as f64 * allowed / seconds.max(1e-9), most))
}

/// Rows of a chunk while others write. A GPU takes nearly as long for the shortest chunk as for some hundred rows, so
/// a rate does not extrapolate to another length: the search proceeds step by step.
fn rows_shared(most: usize, last: Option<(usize, f64)>, fixed: f64) -> usize {
    let [_, share] = FIXED_SHARE;
    let allowed = CHUNK_SECONDS.max(fixed / share) - fixed;
    match last {
        // The smallest chunk measures the device's speed at little cost.
        None => GRID,
        Some((rows, seconds)) => {
            let scaled = rows as f64 * allowed / seconds.max(1e-9);
            match seconds / allowed {
                share if share <= 1.0 => on_grid(scaled.max((rows + GRID) as f64), most),
                share if share <= TOLERANCE => on_grid(rows as f64, most),
                _ => on_grid(scaled, most),
            }
        }
    }
}

fn on_grid(rows: f64, most: usize) -> usize {
    (rows as usize / GRID * GRID).clamp(GRID, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4096;

    fn read(left: usize, waited: u64) -> Want {
        Want::Read { left, waited, fixed: 0.0 }
    }

    fn took(rows: usize, seconds: f64) -> Pace {
        Pace { shared: Some((rows, seconds)), held_up: seconds, alone: None }
    }

    #[test]
    fn alone_everything_runs_in_whole_passes() {
        assert_eq!(turn(&[], MOST, Pace::default(), 9), Turn { read: None, write: vec![], rows: 16 });
        for alone in [None, Some((MOST, MOST as f64 / 21_000.0))] {
            let pace = Pace { alone, ..Pace::default() };
            let read = turn(&[read(100_000, 0)], MOST, pace, 9);
            let whole = Read { reader: 0, rows: MOST, fixed: 0.0 };
            assert_eq!(read, Turn { read: Some(whole), write: vec![], rows: 16 });
        }
        assert_eq!(turn(&[Want::Write], MOST, Pace::default(), 9), Turn { read: None, write: vec![0], rows: 16 });
    }

    #[test]
    fn a_question_that_arrives_while_a_slow_device_reads_does_not_wait_for_long() {
        for rate in [500.0, 3_000.0, 10_000.0, 26_000.0, 100_000.0] {
            let pace = Pace { alone: Some((MOST, MOST as f64 / rate)), ..Pace::default() };
            let rows = turn(&[read(100_000, 0)], MOST, pace, 9).read.unwrap().rows;
            assert!(rows.is_multiple_of(GRID) && (GRID..=MOST).contains(&rows));
            assert!(rows as f64 / rate <= ALONE_SECONDS || rows == GRID, "{rows} rows at {rate}");
            assert!(rows as f64 / rate >= 0.09 || rows == MOST, "{rows} rows at {rate}");
        }
    }

    /// Reads a document of a million tokens; a chunk takes `bus` seconds for each token before it and `row` for each
    /// of its own. Returns its rate at the end relative to reading without the bus, and the longest chunk.
    fn over_a_bus(shared: bool, bus: f64, row: f64) -> (f64, f64) {
        let (mut pace, mut at, mut longest, mut late) = (Pace::default(), 0, 0f64, (0, 0.0));
        while at < 1 << 20 {
            let fixed = bus * at as f64;
            let mut wants = vec![Want::Read { left: 1 << 20, waited: 0, fixed }];
            wants.extend(shared.then_some(Want::Write));
            let rows = turn(&wants, 5120, pace, 9).read.unwrap().rows;
            let seconds = fixed + row * rows as f64;
            pace.note(rows, seconds, fixed, true, shared);
            (at, longest) = (at + rows, longest.max(seconds));
            if at > 1_000_000 {
                late = (late.0 + rows, late.1 + seconds);
            }
        }
        (late.0 as f64 * row / late.1, longest)
    }

    #[test]
    fn chunks_are_long_where_each_of_them_waits_for_all_rows_before() {
        // An H200 limited to 8 GiB, and small cards on faster and slower buses.
        for (bus, row) in [(0.155e-6, 70e-6), (0.35e-6, 650e-6), (0.7e-6, 650e-6), (0.7e-6, 300e-6)] {
            let fixed = bus * f64::from(1 << 20);
            let (share, longest) = over_a_bus(false, bus, row);
            assert!(share > 0.65 && longest <= (fixed / 0.28).max(5120.0 * row), "{share}, {longest} s of {fixed}");
            let (share, longest) = over_a_bus(true, bus, row);
            assert!(share > 0.45 && longest < fixed / 0.45, "with an answer {share}, {longest} s of {fixed}");
        }
        // Without bus transfers, time alone limits the chunk.
        assert!(over_a_bus(true, 0.0, 650e-6).1 < 1.2 * CHUNK_SECONDS);
    }

    #[test]
    fn a_writer_is_in_every_turn_and_rows_are_shared() {
        for n in 1..=16 {
            let mut wants = vec![Want::Write; n];
            wants.insert(n / 2, read(1 << 20, 0));
            let turn = turn(&wants, MOST, took(448, CHUNK_SECONDS * 1.02), 9);
            assert_eq!(turn.write.len(), n);
            assert!(turn.rows >= 1 && turn.rows * n <= MAX_VERIFY_ROWS);
            assert_eq!(turn.read, Some(Read { reader: n / 2, rows: 448, fixed: 0.0 }));
        }
    }

    #[test]
    fn a_slow_device_has_several_rounds_between_two_chunks() {
        let wants = [read(9_000, 0), Want::Write];
        let reads = |rate: f64| {
            let (mut rounds, mut reads) = (9, 0);
            for _ in 0..240 {
                let turn = turn(&wants, MOST, took(GRID, GRID as f64 / rate), rounds);
                assert_eq!(turn.write, [1]);
                if turn.read.is_some() {
                    (rounds, reads) = (0, reads + 1);
                }
                rounds += 1;
            }
            reads
        };
        // 64 tokens in 16, 64 and 640 ms.
        assert_eq!([reads(4_000.0), reads(1_000.0), reads(100.0)], [240, 80, 30]);
        // Alone it continues, and a stopped one ends.
        assert!(turn(&wants[..1], MOST, took(GRID, 0.64), 0).read.is_some());
        assert!(turn(&[read(0, 0), Want::Write], MOST, took(GRID, 0.64), 0).read.is_some());
    }

    #[test]
    fn during_a_read_an_answer_keeps_its_rate_and_the_read_four_fifths_of_its_own() {
        // An H200 at 512K tokens: 32.5 ms for 512 rows, 217 for 4,096, 20 at least; rounds of 4.65 ms.
        let takes = |rows: usize| (0.0065 + 51.5e-6 * rows as f64).max(0.02);
        let wants = [Want::Write, read(1 << 20, 0)];
        let (mut pace, mut rounds, mut clock, mut read, mut written) = (Pace::default(), 0, 0.0, 0, 0);
        for turns in 0..600 {
            if turns == 100 {
                (clock, read, written) = (0.0, 0, 0);
            }
            if let Some(Read { rows, .. }) = turn(&wants, MOST, pace, rounds).read {
                let seconds = takes(rows);
                (pace, rounds, clock, read) = (took(rows, seconds), 0, clock + seconds, read + rows);
            }
            (rounds, clock, written) = (rounds + 1, clock + 0.00465, written + 1);
        }
        let alone = MOST as f64 / takes(MOST);
        let (chat, share) = (f64::from(written) / clock, read as f64 / clock / alone);
        assert!(chat >= 35.0 && share >= 0.80, "{chat} rounds a second, {share} of the read alone");
    }

    #[test]
    fn a_short_prompt_holds_up_no_other_for_long() {
        // The last whole chunk was long, the one after it a question of 24 tokens.
        let pace = Pace { held_up: 0.02, ..took(2048, 0.11) };
        let wants = [Want::Write, read(24, 0)];
        assert!(turn(&wants, MOST, pace, 1).read.is_some());
        assert!(turn(&wants, MOST, took(2048, 0.11), 4).read.is_none());
        assert!(turn(&wants, MOST, took(2048, 0.11), 5).read.is_some());
    }

    #[test]
    fn chunks_are_on_the_grid_and_bounded() {
        let wants = [Want::Write, read(9000, 0)];
        let rows = |pace| turn(&wants, MOST, pace, 9).read.unwrap().rows;
        let bounds = [Pace::default(), took(GRID, f64::INFINITY), took(GRID, 9.0), took(MOST, 0.0), took(MOST, 1e-3)];
        assert_eq!(bounds.map(rows), [GRID, GRID, GRID, MOST, MOST]);
        for last in (GRID..=MOST).step_by(GRID) {
            for ms in 0..200 {
                let rows = rows(took(last, f64::from(ms) / 1e3));
                assert!(rows.is_multiple_of(GRID) && (GRID..=MOST).contains(&rows));
            }
        }
    }

    #[test]
    fn the_longest_chunk_that_fits_is_found_whatever_the_shortest_takes() {
        let wants = [Want::Write, read(1 << 20, 0)];
        // Seconds for any chunk, and for each row.
        for (any, row) in [(0.020, 1e-5), (0.009, 5.3e-5), (0.0, 5e-5), (0.0, 1e-4), (0.021, 0.0), (0.001, 2e-6)] {
            let seconds = |rows: usize| any + row * rows as f64;
            let mut pace = Pace::default();
            let mut turns = Vec::new();
            for _ in 0..100 {
                let rows = turn(&wants, MOST, pace, 9).read.unwrap().rows;
                turns.push(rows);
                pace = took(rows, seconds(rows));
            }
            let fits = (GRID..=MOST).step_by(GRID).filter(|rows| seconds(*rows) <= CHUNK_SECONDS).max().unwrap();
            let settled = &turns[70..];
            assert!(settled.iter().all(|rows| rows.abs_diff(fits) <= GRID), "{fits} of {any} + {row}: {settled:?}");
            // Before that, no round waits much longer.
            assert!(turns.iter().all(|rows| seconds(*rows) <= seconds(fits + GRID)), "{any} + {row}: {turns:?}");
        }
    }

    #[test]
    fn a_short_question_runs_before_a_long_document_and_none_starves() {
        let wants = [read(1_000_000, 1), read(30, 0)];
        assert_eq!(turn(&wants, MOST, Pace::default(), 9).read.unwrap().reader, 1);
        // Endless short prompts: the long one runs every fourth turn.
        let (mut waited, mut served) = (0, 0);
        for _ in 0..100 {
            let wants = [read(1_000_000, waited), read(30, 0)];
            match turn(&wants, MOST, Pace::default(), 9).read.unwrap().reader {
                0 => (waited, served) = (0, served + 1),
                _ => waited += 1,
            }
        }
        assert_eq!(served, 25);
    }
}
