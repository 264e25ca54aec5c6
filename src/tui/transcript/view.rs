//! Position of the view of the transcript, its movement, the visible rows, and search.

use std::ops::Range;

use fancy_regex::{Regex, escape};

use super::{Scroll, Transcript};
use crate::tui::entry::{Look, Part};

impl Transcript {
    pub fn set_look(&mut self, look: Look, height: usize) {
        self.look = look;
        self.height = height.max(1);
    }

    pub fn look(&self) -> Look {
        self.look
    }

    pub(super) fn rows_of(&mut self, entry: usize) -> usize {
        let (look, colours) = (self.look, &self.colours);
        self.entries.get_mut(entry).map_or(0, |e| {
            e.ensure(look, colours);
            e.height()
        })
    }

    pub(super) fn end_top(&mut self) -> (usize, usize) {
        let mut missing = self.height;
        for i in (0..self.entries.len()).rev() {
            // The blank row after the last entry is not shown.
            let rows = self.rows_of(i) - usize::from(i + 1 == self.entries.len());
            if rows >= missing {
                return (i, rows - missing);
            }
            missing -= rows;
        }
        (0, 0)
    }

    fn top(&mut self) -> (usize, usize) {
        match self.scroll {
            Scroll::Follow => self.end_top(),
            Scroll::At { entry, anchor } => {
                let entry = entry.min(self.entries.len().saturating_sub(1));
                self.rows_of(entry);
                (entry, self.entries.get(entry).map_or(0, |e| e.row_of(anchor)))
            }
        }
    }

    pub(super) fn stand_at(&mut self, (entry, row): (usize, usize)) {
        self.news &= self.scroll != Scroll::Follow;
        self.rows_of(entry);
        if let Some(e) = self.entries.get(entry) {
            self.scroll = Scroll::At { entry, anchor: e.anchor_of(row) };
        }
    }

    pub fn scroll_by(&mut self, rows: isize) {
        let end = self.end_top();
        let (mut entry, mut row) = self.top();
        let mut left = rows.unsigned_abs();
        if rows < 0 {
            while left > 0 && (entry, row) != (0, 0) {
                if row == 0 {
                    entry -= 1;
                    row = self.rows_of(entry);
                }
                let step = left.min(row);
                row -= step;
                left -= step;
            }
        } else {
            while left > 0 && (entry, row) < end {
                let room = self.rows_of(entry) - row;
                let step = left.min(room);
                row += step;
                left -= step;
                if row == self.rows_of(entry) {
                    entry += 1;
                    row = 0;
                }
            }
        }
        let to = (entry, row).min(end);
        // A short conversation keeps following.
        if end != (0, 0) {
            self.stand_at(to);
        }
    }

    pub fn scroll_pages(&mut self, pages: isize) {
        self.scroll_by(pages * self.page());
    }

    pub fn scroll_top(&mut self) {
        if self.end_top() != (0, 0) {
            self.stand_at((0, 0));
        }
    }

    pub fn follow(&mut self) {
        self.scroll = Scroll::Follow;
    }

    /// Whether text below the window has arrived since the view stopped following; `None` while following.
    pub fn news_below(&self) -> Option<bool> {
        let last =
            |(entry, row): &(usize, usize)| entry + 1 == self.entries.len() && self.entries[*entry].height() <= row + 2;
        let shows_end = self.window.last().is_none_or(last);
        (self.scroll != Scroll::Follow).then_some(self.news && !shows_end)
    }

    pub fn page(&self) -> isize {
        isize::try_from(self.height.saturating_sub(2).max(1)).unwrap_or(1)
    }

    pub(super) fn reveal(&mut self, entry: usize) {
        let (top, rows) = (self.top(), self.rows_of(entry));
        let above: usize = (top.0..entry).map(|i| self.rows_of(i)).sum();
        let above = above.saturating_sub(top.1);
        if (entry, 0) < top || above + rows.min(self.height) > self.height {
            let end = self.end_top();
            self.stand_at((entry, 0).min(end));
        }
    }

    pub fn prepare(&mut self) {
        self.window.clear();
        if self.entries.is_empty() {
            return;
        }
        let (mut entry, mut row) = self.top();
        while self.window.len() < self.height && entry < self.entries.len() {
            let rows = row..self.rows_of(entry);
            self.window.extend(rows.take(self.height - self.window.len()).map(|row| (entry, row)));
            (entry, row) = (entry + 1, 0);
        }
    }
}

const HITS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    pub entry: usize,
    pub part: Part,
    pub source: usize,
}

/// What finds a query; `None` for an empty one. Lower case in the query matches both cases.
pub fn finder(query: &str) -> Option<Regex> {
    let case = if query.chars().any(char::is_uppercase) { "" } else { "(?i)" };
    Regex::new(&format!("{case}{}", escape(query))).ok().filter(|_| !query.is_empty())
}

/// Byte ranges in `text`.
pub fn ranges(finder: &Regex, text: &str) -> impl Iterator<Item = Range<usize>> {
    finder.find_iter(text).filter_map(Result::ok).map(|found| found.range())
}

impl Transcript {
    pub fn hits(&self, query: &str) -> Vec<Hit> {
        let Some(finder) = finder(query) else { return Vec::new() };
        let texts = self
            .entries
            .iter()
            .enumerate()
            .flat_map(|(entry, e)| e.texts(self.look.think).map(move |(part, text)| (entry, part, text)));
        let hits = texts.flat_map(|(entry, part, text)| {
            ranges(&finder, text).map(move |range| Hit { entry, part, source: range.start })
        });
        hits.take(HITS).collect()
    }

    pub fn row_of_hit(&self, hit: Hit) -> Option<usize> {
        self.entries.get(hit.entry).map(|e| e.row_of((hit.part, hit.source, 0)))
    }

    pub fn nearest(&mut self, hits: &[Hit]) -> Option<usize> {
        self.prepare();
        let below = match self.scroll {
            Scroll::Follow => None,
            Scroll::At { .. } => self.window.last().copied(),
        };
        let seen =
            |hit: &Hit| below.is_none_or(|(entry, row)| (hit.entry, self.row_of_hit(*hit)) <= (entry, Some(row)));
        hits.iter().rposition(seen).or(hits.len().checked_sub(1))
    }

    pub fn show_hit(&mut self, hit: Hit) {
        if let Some(e) = self.entries.get_mut(hit.entry) {
            e.unfold(hit.part);
        }
        self.rows_of(hit.entry);
        self.prepare();
        let Some(row) = self.row_of_hit(hit) else { return };
        if self.window.contains(&(hit.entry, row)) || self.end_top() == (0, 0) {
            return;
        }
        self.stand_at((hit.entry, row));
        let above = isize::try_from(self.height / 3).unwrap_or(0);
        self.scroll_by(-above);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn small_letters_find_both_and_capitals_only_themselves() {
        let found =
            |text: &str, query: &str| -> Vec<_> { super::ranges(&super::finder(query).unwrap(), text).collect() };
        assert_eq!(found("Peace and peace", "peace"), [0..5, 10..15]);
        assert_eq!(found("Peace and peace", "Peace").as_slice(), std::slice::from_ref(&(0..5)));
        assert_eq!(found("ÄÖ äö", "äö"), [0..4, 5..9]);
        assert_eq!(found("aaa", "aa").as_slice(), std::slice::from_ref(&(0..2)));
        assert_eq!(found("日本語の本", "本"), [3..6, 12..15]);
        assert_eq!(found("a.b* aab", "a.b*").as_slice(), std::slice::from_ref(&(0..4)));
        assert!(super::finder("").is_none());
    }
}
