//! Position of the view of the transcript, its movement, the visible rows, and search.

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

/// Byte ranges of `query` in `text`. Lower case in the query matches both cases.
pub fn ranges(text: &str, query: &str) -> Vec<std::ops::Range<usize>> {
    let exact = query.chars().any(char::is_uppercase);
    let wanted: Vec<char> = match exact {
        true => query.chars().collect(),
        false => query.chars().flat_map(char::to_lowercase).collect(),
    };
    let mut found = Vec::new();
    let Some(first) = wanted.first().copied() else { return found };
    let mut next = 0;
    for (at, c) in text.char_indices() {
        if at < next || !(c == first || !exact && c.to_lowercase().next() == Some(first)) {
            continue;
        }
        if let Some(len) = begins(&text[at..], &wanted, exact) {
            next = at + len;
            found.push(at..next);
        }
    }
    found
}

fn begins(text: &str, wanted: &[char], exact: bool) -> Option<usize> {
    let mut wanted = wanted.iter();
    let mut end = 0;
    for (at, c) in text.char_indices() {
        if wanted.len() == 0 {
            return Some(at);
        }
        let same = if exact { wanted.next() == Some(&c) } else { c.to_lowercase().all(|l| wanted.next() == Some(&l)) };
        if !same {
            return None;
        }
        end = at + c.len_utf8();
    }
    (wanted.len() == 0).then_some(end)
}

impl Transcript {
    pub fn hits(&self, query: &str) -> Vec<Hit> {
        let mut hits = Vec::new();
        for (entry, e) in self.entries.iter().enumerate() {
            for (part, text) in e.texts(self.look.think) {
                let room = HITS - hits.len();
                let ranges = ranges(text, query).into_iter().take(room);
                hits.extend(ranges.map(|r| Hit { entry, part, source: r.start }));
            }
        }
        hits
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
    use super::ranges;

    #[test]
    fn small_letters_find_both_and_capitals_only_themselves() {
        assert_eq!(ranges("Peace and peace", "peace"), [0..5, 10..15]);
        assert_eq!(ranges("Peace and peace", "Peace").as_slice(), std::slice::from_ref(&(0..5)));
        assert_eq!(ranges("ÄÖ äö", "äö"), [0..4, 5..9]);
        assert_eq!(ranges("aaa", "aa").as_slice(), std::slice::from_ref(&(0..2)));
        assert_eq!(ranges("日本語の本", "本"), [3..6, 12..15]);
        assert!(ranges("text", "").is_empty());
        // The lower case of this letter has two characters; both match.
        assert_eq!(ranges("İx", "i\u{307}x").as_slice(), std::slice::from_ref(&(0..3)));
    }
}
