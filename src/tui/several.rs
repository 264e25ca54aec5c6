//! Answers to one question that are written side by side: a grid in the transcript's place. The input stays in use below it.

use super::markdown::{Colours, Style, render};
use super::options::Glyphs;
use super::rows::Row;
use crate::core::transcript::{Finish, Message, MessageId};
use crate::text::sanitize::sanitize;

/// Narrower columns are no good to read.
const COLUMN: usize = 36;
/// Fewer rows say too little of an answer: its heading, and some of its text.
const LEAST_ROWS: usize = 3;
/// Cells between two columns.
pub const GAP: usize = 3;

/// One of the answers.
#[derive(Clone, Debug)]
pub struct Alternative {
    id: MessageId,
    /// What it was drawn with, if it was.
    pub seed: Option<u64>,
    text: String,
    thinks: bool,
    /// Set when it is complete.
    pub finish: Option<Finish>,
    /// Its rows at the present width.
    rows: Vec<Row>,
    stale: bool,
}

/// The grid.
#[derive(Clone, Debug, Default)]
pub struct Several {
    answers: Vec<Alternative>,
    /// First row shown of answers that are complete.
    top: usize,
    /// First row of the grid that is shown, where not all are.
    first: usize,
    size: (usize, usize),
}

impl Several {
    /// Answers of which nothing is written yet.
    pub fn new(answers: &[(MessageId, Option<u64>)]) -> Several {
        let empty = |(id, seed): &(MessageId, Option<u64>)| Alternative {
            id: *id,
            seed: *seed,
            text: String::new(),
            thinks: false,
            finish: None,
            rows: Vec::new(),
            stale: true,
        };
        Several { answers: answers.iter().map(empty).collect(), ..Several::default() }
    }

    /// Whether it is one of them.
    pub(super) fn has(&self, id: MessageId) -> bool {
        self.answers.iter().any(|a| a.id == id)
    }

    fn find(&mut self, id: MessageId) -> Option<&mut Alternative> {
        self.answers.iter_mut().find(|a| a.id == id)
    }

    /// More text.
    pub fn delta(&mut self, id: MessageId, thinking: bool, text: &str) {
        if let Some(a) = self.find(id) {
            a.thinks = thinking;
            if !thinking {
                a.text.push_str(text);
                a.stale = true;
            }
        }
    }

    /// One is complete.
    pub fn finish(&mut self, message: &Message) {
        if let Some(a) = self.find(message.id) {
            a.text.clone_from(&message.text);
            a.finish = message.meta.finish.or(Some(Finish::Failed));
            (a.thinks, a.stale) = (false, true);
        }
    }

    /// Whether all are complete.
    pub fn done(&self) -> bool {
        self.answers.iter().all(|a| a.finish.is_some())
    }

    /// Whether all are in sight at a time, and something of each, in so many cells and rows of the screen.
    pub(super) fn is_in_sight(&self, width: usize, height: usize) -> bool {
        let (width, height) = inside(width, height);
        let (_, rows) = self.columns_and_rows(width);
        rows * LEAST_ROWS <= height
    }

    /// Columns and rows of the grid in so many cells.
    fn columns_and_rows(&self, cells: usize) -> (usize, usize) {
        let most = ((cells + GAP) / (COLUMN + GAP)).max(1);
        let columns = self.answers.len().clamp(1, most);
        (columns, self.answers.len().div_ceil(columns).max(1))
    }

    /// Columns and rows of the grid, and how many of its rows are shown at a time.
    fn grid(&self) -> (usize, usize, usize) {
        let (columns, rows) = self.columns_and_rows(self.size.0);
        (columns, rows, rows.min(self.size.1 / LEAST_ROWS).max(1))
    }

    /// Cells and rows of one place of the grid.
    pub fn place(&self) -> (usize, usize) {
        let (columns, _, shown) = self.grid();
        (((self.size.0 + GAP) / columns).saturating_sub(GAP).max(1), (self.size.1 / shown).max(2))
    }

    /// Lays it out for its place on the screen.
    pub(super) fn set_size(&mut self, width: usize, height: usize) {
        let size = inside(width, height);
        if self.size != size {
            self.size = size;
            self.answers.iter_mut().for_each(|a| a.stale = true);
        }
    }

    /// Makes the rows that have changed. Called before a frame, not for each word that arrives between two of them.
    pub(super) fn prepare(&mut self, glyphs: Glyphs) {
        let (cells, _) = self.place();
        let colours = Colours::default();
        for a in self.answers.iter_mut().filter(|a| a.stale) {
            a.stale = false;
            a.rows = render(&sanitize(&a.text), Style { cells, glyphs, colours: &colours }).rows().to_vec();
        }
        self.scroll(0);
    }

    /// Keys shown at its foot.
    pub fn footer(&self) -> &'static str {
        let (_, rows, shown) = self.grid();
        match (self.done(), rows > shown) {
            (true, false) => "Up/Down PgUp/PgDn scroll",
            (true, true) => "Up/Down scroll   PgUp/PgDn other answers",
            (false, false) => "answering   Esc stops",
            (false, true) => "answering   Esc stops   PgUp/PgDn other answers",
        }
    }

    /// So many pages on or back: to other answers where not all are in sight, else in what is complete.
    pub(super) fn turn(&mut self, pages: isize) {
        let (_, rows, shown) = self.grid();
        let by = |rows: usize| pages.saturating_mul(isize::try_from(rows).unwrap_or(1));
        if rows > shown {
            self.first = self.first.saturating_add_signed(by(shown));
            self.top = 0;
            self.scroll(0);
        } else {
            self.scroll(by(self.place().1.saturating_sub(2).max(1)));
        }
    }

    /// Scrolls what is complete.
    pub(super) fn scroll(&mut self, by: isize) {
        let (_, rows, shown) = self.grid();
        self.first = self.first.min(rows - shown);
        let room = self.place().1 - 1;
        let most = self.answers.iter().map(|a| a.rows.len().saturating_sub(room)).max().unwrap_or(0);
        self.top = self.top.saturating_add_signed(by).min(most);
    }

    /// Each answer in sight: column and row of its place, its heading, and its rows that are shown: the end of what is being written.
    pub fn shown(&self) -> impl Iterator<Item = (usize, usize, String, &[Row])> {
        let (columns, _, shown) = self.grid();
        let (first, room) = (self.first, self.place().1 - 1);
        let in_sight = self.answers.iter().enumerate().skip(first * columns).take(shown * columns);
        in_sight.map(move |(i, a)| {
            let state = match (a.finish, a.thinks) {
                (None, true) => "thinking",
                (None, false) if a.text.is_empty() => "waiting",
                (None, false) => "writing",
                (Some(Finish::Stop), _) => "",
                (Some(Finish::Length), _) => "length limit",
                (Some(Finish::Context), _) => "context full",
                (Some(Finish::Repeats), _) => "repeats itself",
                (Some(Finish::Stopped), _) => "stopped",
                (Some(Finish::Failed), _) => "failed",
            };
            let top = match a.finish {
                None => a.rows.len().saturating_sub(room),
                Some(_) => self.top.min(a.rows.len().saturating_sub(room)),
            };
            let rows = a.rows.get(top..(top + room).min(a.rows.len())).unwrap_or(&[]);
            let seed = a.seed.map_or(String::new(), |seed| format!("  seed {seed}"));
            (i % columns, i / columns - first, format!("{}{seed}  {state}", i + 1), rows)
        })
    }
}

/// Cells and rows of the grid in its place on the screen: without a margin on both sides, heading and keys.
fn inside(width: usize, height: usize) -> (usize, usize) {
    (width.saturating_sub(2), height.saturating_sub(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_a_place_for_each_within_the_area() {
        for (width, height) in [(78, 17), (158, 43), (36, 5), (20, 9)] {
            for n in 1..=9 {
                let ids: Vec<(MessageId, Option<u64>)> = (1..=n).map(|i| (MessageId(i), Some(7))).collect();
                let mut several = Several::new(&ids);
                several.delta(MessageId(1), false, "word ".repeat(200).as_str());
                several.set_size(width + 2, height + 2);
                several.prepare(Glyphs::Unicode);
                let (cells, rows) = several.place();
                for (column, row, _, shown) in several.shown() {
                    assert!(column * (cells + GAP) + cells <= width, "{width} {n} {cells}");
                    assert!(shown.len() < rows && (row + 1) * rows <= height, "{height} {n} {rows}");
                }
                // Each can be reached.
                let mut seen = std::collections::BTreeSet::new();
                for _ in 0..n {
                    seen.extend(several.shown().map(|(.., heading, _)| heading));
                    several.turn(1);
                }
                assert_eq!(seen.len() as i64, n, "{width}x{height}: {seen:?}");
            }
        }
    }
}
