//! Folded pastes: a placeholder in the input represents a large paste.
//!
//! Text that leaves the input keeps its pastes; when it returns, each placeholder is unique again.

use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fold {
    number: usize,
    pasted: String,
}

impl Fold {
    fn placeholder(&self) -> String {
        let lines = match self.pasted.lines().count() {
            1 => "1 line".to_owned(),
            n => format!("{n} lines"),
        };
        format!("[paste {}: {lines}, {} characters]", self.number, self.pasted.chars().count())
    }
}

#[derive(Clone, Debug, Default)]
pub(in crate::tui) struct Folded {
    text: String,
    folds: Vec<Fold>,
}

impl Folded {
    pub(in crate::tui) fn plain(text: &str) -> Folded {
        Folded { text: text.to_owned(), folds: Vec::new() }
    }

    pub(super) fn is_plain(&self) -> bool {
        self.folds.is_empty()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Folds {
    kept: Vec<(String, Fold)>,
    made: usize,
}

impl Folds {
    pub(super) fn fold(&mut self, pasted: String) -> String {
        self.made += 1;
        self.keep(Fold { number: self.made, pasted })
    }

    fn keep(&mut self, fold: Fold) -> String {
        let placeholder = fold.placeholder();
        self.kept.push((placeholder.clone(), fold));
        placeholder
    }

    pub(super) fn forget(&mut self) {
        self.kept.clear();
    }

    fn places(&self, text: &str) -> Vec<(Range<usize>, &Fold)> {
        let of = |(placeholder, fold)| places_of(text, placeholder).map(move |range| (range, fold));
        let mut places: Vec<_> = self.kept.iter().map(|(p, f)| (p.as_str(), f)).flat_map(of).collect();
        places.sort_by_key(|(range, _)| range.start);
        places
    }

    pub(super) fn expanded(&self, text: &str) -> String {
        let (mut out, mut at) = (String::with_capacity(text.len()), 0);
        for (range, fold) in self.places(text) {
            out.push_str(&text[at..range.start]);
            out.push_str(&fold.pasted);
            at = range.end;
        }
        out.push_str(&text[at..]);
        out
    }

    pub(super) fn taken(&self, text: &str) -> Folded {
        let named = self.kept.iter().filter(|(placeholder, _)| text.contains(placeholder.as_str()));
        Folded { text: text.to_owned(), folds: named.map(|(_, fold)| fold.clone()).collect() }
    }

    /// Moves text into this input; a paste gets a new number if its old one is in use.
    pub(super) fn adopt(&mut self, folded: &Folded) -> String {
        let there = Folds { kept: folded.folds.iter().map(|f| (f.placeholder(), f.clone())).collect(), made: 0 };
        self.made = folded.folds.iter().map(|f| f.number).fold(self.made, usize::max);
        let mut names: Vec<(usize, String)> = Vec::new();
        for fold in &folded.folds {
            let name = match self.kept.iter().find(|(_, here)| here.number == fold.number) {
                Some((placeholder, here)) if here == fold => placeholder.clone(),
                Some(_) => self.fold(fold.pasted.clone()),
                None => self.keep(fold.clone()),
            };
            names.push((fold.number, name));
        }
        let (mut out, mut at) = (String::new(), 0);
        for (range, fold) in there.places(&folded.text) {
            out.push_str(&folded.text[at..range.start]);
            let name = names.iter().find(|(number, _)| *number == fold.number);
            out.push_str(name.map_or(&folded.text[range.clone()], |(_, name)| name));
            at = range.end;
        }
        out.push_str(&folded.text[at..]);
        out
    }

    pub(super) fn snap(&self, text: &str, at: usize, forward: bool) -> usize {
        let inside = self.kept.iter().flat_map(|(p, _)| places_of(text, p)).find(|r| r.start < at && at < r.end);
        match inside {
            Some(r) if forward => r.end,
            Some(r) => r.start,
            None => at,
        }
    }
}

fn places_of<'a>(text: &'a str, placeholder: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
    text.match_indices(placeholder).map(|(at, found)| at..at + found.len())
}
