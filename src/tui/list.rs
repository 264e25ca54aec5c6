//! A filterable list with one selected row.

use nucleo_matcher::pattern::{AtomKind, CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher, Utf32Str};

#[derive(Clone, Debug)]
pub struct List<T> {
    items: Vec<T>,
    texts: Vec<String>,
    shown: Vec<usize>,
    selected: usize,
    query: String,
    literal: bool,
}

/// Indices of matching `texts`, best first; all of them for an empty query.
pub fn fuzzy<S: AsRef<str>>(query: &str, texts: &[S]) -> Vec<usize> {
    if query.trim().is_empty() {
        return (0..texts.len()).collect();
    }
    matching(&Pattern::parse(query, CaseMatching::Smart, Normalization::Smart), texts)
}

fn matching<S: AsRef<str>>(pattern: &Pattern, texts: &[S]) -> Vec<usize> {
    let mut matcher = Matcher::new(Config::DEFAULT);
    let mut buffer = Vec::new();
    let mut scored: Vec<(u32, usize)> = texts
        .iter()
        .enumerate()
        .filter_map(|(i, t)| pattern.score(Utf32Str::new(t.as_ref(), &mut buffer), &mut matcher).map(|s| (s, i)))
        .collect();
    scored.sort_by_key(|(score, i)| (std::cmp::Reverse(*score), *i));
    scored.into_iter().map(|(_, i)| i).collect()
}

impl<T> List<T> {
    pub fn new(items: Vec<T>, text: impl Fn(&T) -> String, literal: bool) -> List<T> {
        let texts: Vec<String> = items.iter().map(text).collect();
        let shown = (0..items.len()).collect();
        List { items, texts, shown, selected: 0, query: String::new(), literal }
    }

    pub fn query(&self) -> &str {
        &self.query
    }

    pub fn set_query(&mut self, query: String) {
        self.shown = match self.literal && !query.trim().is_empty() {
            true => {
                let (case, norm) = (CaseMatching::Ignore, Normalization::Smart);
                let mut found = matching(&Pattern::new(&query, case, norm, AtomKind::Substring), &self.texts);
                let begins = |i: &usize| self.texts[*i].trim_start_matches('/').starts_with(&query.to_lowercase());
                found.sort_by_key(|i| (!begins(i), *i));
                found
            }
            false => fuzzy(&query, &self.texts),
        };
        self.query = query;
        self.selected = 0;
    }

    pub fn set_query_text(&mut self, query: String) {
        self.query = query;
    }

    pub fn shown(&self) -> impl ExactSizeIterator<Item = &T> {
        self.shown.iter().map(|i| &self.items[*i])
    }

    pub fn items(&self) -> &[T] {
        &self.items
    }

    pub fn selected_index(&self) -> usize {
        self.selected
    }

    pub fn selected(&self) -> Option<&T> {
        self.shown.get(self.selected).and_then(|i| self.items.get(*i))
    }

    pub fn select(&mut self, index: usize) {
        self.selected = index.min(self.shown.len().saturating_sub(1));
    }

    pub fn step(&mut self, by: isize) {
        self.select(self.selected.saturating_add_signed(by));
    }
}

/// The first of `count` rows on screen, so that `selected` is near the middle.
pub fn first_row(selected: usize, count: usize, height: usize) -> usize {
    selected.saturating_sub(height / 2).min(count.saturating_sub(height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_selects_the_best_match_and_steps_stop_at_the_ends() {
        let mut l = List::new(vec!["war-and-peace", "contract", "peace treaty"], |s| s.to_string(), false);
        l.set_query("peac".into());
        assert_eq!(l.shown().count(), 2);
        l.step(5);
        assert_eq!(l.selected_index(), 1);
        l.step(-9);
        assert_eq!(l.selected_index(), 0);
        l.set_query("zzz".into());
        assert_eq!(l.selected(), None);
    }
}
