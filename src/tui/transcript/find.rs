//! Search in the transcript.

use super::{Scroll, Transcript};
use crate::tui::entry::Part;

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
