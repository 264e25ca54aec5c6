//! The cut text, and the large pastes that placeholders in the input represent. Both move along to the input of another
//! session.

use std::ops::Range;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(in crate::tui) struct Clipboard {
    /// Contains placeholders.
    pub(in crate::tui) cut: String,
    /// Placeholder and text of each paste of this run.
    pastes: Vec<(String, Arc<str>)>,
}

impl Clipboard {
    pub(super) fn fold(&mut self, pasted: &str) -> String {
        let lines = match pasted.lines().count() {
            1 => "1 line".to_owned(),
            n => format!("{n} lines"),
        };
        let placeholder = format!("[paste {}: {lines}, {} characters]", self.pastes.len() + 1, pasted.chars().count());
        self.pastes.push((placeholder.clone(), pasted.into()));
        placeholder
    }

    /// A text that returns to the input, with its pastes as placeholders again.
    pub(super) fn folded(&self, text: &str) -> String {
        self.pastes.iter().fold(text.to_owned(), |text, (placeholder, pasted)| text.replace(&**pasted, placeholder))
    }

    fn places(&self, text: &str) -> Vec<(Range<usize>, &str)> {
        let mut places = Vec::new();
        for (placeholder, pasted) in &self.pastes {
            places.extend(text.match_indices(placeholder).map(|(at, found)| (at..at + found.len(), &**pasted)));
        }
        places.sort_by_key(|(range, _)| range.start);
        places
    }

    pub(super) fn expanded(&self, text: &str) -> String {
        let (mut out, mut at) = (String::with_capacity(text.len()), 0);
        for (range, pasted) in self.places(text) {
            out.push_str(&text[at..range.start]);
            out.push_str(pasted);
            at = range.end;
        }
        out.push_str(&text[at..]);
        out
    }

    /// The end of the placeholder that `at` is inside of; `at` if there is none.
    pub(super) fn snap(&self, text: &str, at: usize, forward: bool) -> usize {
        match self.places(text).into_iter().find(|(r, _)| r.start < at && at < r.end) {
            Some((r, _)) if forward => r.end,
            Some((r, _)) => r.start,
            None => at,
        }
    }
}
