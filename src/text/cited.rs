//! Looks up the quotes of an answer in documents.
//!
//! A quote is a passage in quotation marks of any typographic form, or a block quote, of four words or more. Words are
//! compared folded: without case, typographic variants and hyphenation. An [`Index`] of the runs of four words is made
//! once for each document, so that a look-up costs a few comparisons however long the document is.

mod extract;
mod fold;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::LazyLock;

use crate::core::transcript::{Match, Quote};
use extract::{Cut, quoted};
use fold::{Word, gap, hash, words};

/// Least number of words of a quote, and words of an indexed run. A close match has at least four words in one run,
/// because 85 % of five or six words are all of them.
const RUN: usize = 4;
/// Share of a quote's words that a close match has in one run, percent.
const CLOSE: usize = 85;
/// Places compared for one quote: enough for repetitive texts such as logs.
const MOST_PLACES: usize = 4096;
/// Bytes before and after a quote in which the answer may name its line or page.
const CLAIM_WITHIN: usize = 100;

#[derive(Debug)]
pub struct Index {
    words: Vec<Word>,
    /// Hash and first word of each run of [`RUN`] words, sorted.
    runs: Vec<(u32, u32)>,
    /// Starts of lines after the first, and of pages after the first, in bytes.
    lines: Vec<u32>,
    pages: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub name: &'a str,
    pub text: &'a str,
    pub index: &'a Index,
}

/// Words of a quote that stand in a document: the quote's words `run` from the document's word `at` on.
struct Place {
    matched: Match,
    run: Range<usize>,
    at: usize,
}

impl Index {
    pub fn new(text: &str) -> Index {
        let words = words(text);
        let mut runs: Vec<(u32, u32)> = (0..).zip(words.windows(RUN)).map(|(at, run)| (run_hash(run), at)).collect();
        runs.sort_unstable();
        let after =
            |mark: u8| text.bytes().enumerate().filter(move |(_, b)| *b == mark).map(|(at, _)| at as u32 + 1).collect();
        Index { words, runs, lines: after(b'\n'), pages: after(b'\x0c') }
    }

    /// First words of the runs that begin like `run`.
    fn places(&self, run: &[Word]) -> &[(u32, u32)] {
        let hash = run_hash(run);
        let first = self.runs.partition_point(|(other, _)| *other < hash);
        let rest = self.runs.get(first..).unwrap_or_default();
        rest.get(..rest.partition_point(|(other, _)| *other == hash)).unwrap_or_default()
    }

    /// Line and page of a byte, from 1.
    fn position(&self, byte: u32) -> (u64, u64) {
        let count = |starts: &[u32]| starts.partition_point(|start| *start <= byte) as u64 + 1;
        (count(&self.lines), count(&self.pages))
    }

    fn bytes(&self, words: Range<usize>) -> Option<Range<u32>> {
        let last = self.words.get(words.end.checked_sub(1)?)?;
        Some(self.words.get(words.start)?.start..last.end)
    }
}

fn run_hash(run: &[Word]) -> u32 {
    hash(run.iter().map(|word| word.folded)) as u32
}

impl Source<'_> {
    /// The best place of a quote; of equally good ones the first that `fits`, else the first.
    fn find(&self, cut: &Cut, own: &[Word], fits: impl Fn(&Place) -> bool) -> Option<Place> {
        let count = own.len();
        let need = (count * CLOSE).div_ceil(100).max(RUN);
        // Every run of `need` words has the words of the middle.
        let middle = count.checked_sub(need)?..need;
        let runs = (middle.start..=middle.end.checked_sub(RUN)?)
            .map(|s| (s, self.index.places(own.get(s..s + RUN).unwrap_or_default())));
        let (from, places) = runs.min_by_key(|(_, places)| places.len())?;
        let places = places.iter().take(MOST_PLACES).filter_map(|(_, at)| self.place(cut, own, from, *at as usize));
        let long = places.filter(|place| place.run.len() >= need);
        long.min_by_key(|place| Reverse((place.matched, fits(place), place.run.len())))
    }

    /// The longest run of equal words through the quote's word `from` at the document's word `at`.
    fn place(&self, cut: &Cut, own: &[Word], from: usize, at: usize) -> Option<Place> {
        let theirs = &self.index.words;
        let equal = |a: &&Word, b: &&Word| a.folded == b.folded;
        let pairs = |(a, b): &(&Word, &Word)| equal(a, b);
        let before = own.get(..from)?.iter().rev().zip(theirs.get(..at)?.iter().rev()).take_while(pairs).count();
        let after = own.get(from..)?.iter().zip(theirs.get(at..)?).take_while(pairs).count();
        let (run, at) = (from - before..from + after, at - before);
        let whole = run == (0..own.len());
        let matched = match whole {
            true if self.is_exact(cut, own, at) => Match::Exact,
            true if self.is_equal(cut, own, at) => Match::Equal,
            _ => Match::Close,
        };
        Some(Place { matched, run, at })
    }

    fn lines(&self, place: &Place) -> ((u64, u64), (u64, u64)) {
        let bytes = self.index.bytes(place.at..place.at + place.run.len()).unwrap_or_default();
        (self.index.position(bytes.start), self.index.position(bytes.end.saturating_sub(1)))
    }

    /// Whether the document has the quote's text there, byte for byte.
    fn is_exact(&self, cut: &Cut, own: &[Word], at: usize) -> bool {
        let (Some(first), Some(here)) = (own.first(), self.index.words.get(at)) else { return false };
        let from = (here.start as usize).checked_sub(first.start as usize);
        from.and_then(|from| self.text.get(from..from + cut.text.len())).is_some_and(|text| text == cut.text)
    }

    /// Whether the marks between the words are equal, too, and those around them belong to the quote or the document.
    fn is_equal(&self, cut: &Cut, own: &[Word], at: usize) -> bool {
        let theirs = self.index.words.get(at..at + own.len()).unwrap_or_default();
        let inner = own.iter().zip(theirs).skip(1).all(|(a, b)| a.gap == b.gap);
        let (Some(first), Some(last), Some(bytes)) = (own.first(), own.last(), self.index.bytes(at..at + own.len()))
        else {
            return false;
        };
        let (start, end) = (bytes.start as usize, bytes.end as usize);
        let before = at.checked_sub(1).and_then(|at| self.index.words.get(at)).map_or(0, |word| word.end as usize);
        let after = self.index.words.get(at + own.len()).map_or(self.text.len(), |word| word.start as usize);
        let marks = |text: &str, range: Range<usize>| gap(text.get(range).unwrap_or_default());
        let lead = marks(&cut.text, 0..first.start as usize);
        let trail = marks(&cut.text, last.end as usize..cut.text.len());
        // A sentence that quotes puts its own full stop or comma inside the marks.
        let trail = trail.trim_end_matches(['.', ',', ';', ':', '!', '?', '"']);
        inner && marks(self.text, before..start).ends_with(&lead) && marks(self.text, end..after).starts_with(trail)
    }
}

/// The quotes of an answer, in its order. Without documents there is nothing to check.
pub fn check(answer: &str, documents: &[Source<'_>]) -> Vec<Quote> {
    if documents.is_empty() {
        return Vec::new();
    }
    quoted(answer).iter().map(|cut| looked_up(answer, cut, documents).0).collect()
}

/// The quote, with its document and the words that stand there.
fn looked_up<'a, 'd>(answer: &str, cut: &Cut, documents: &'a [Source<'d>]) -> (Quote, Option<(&'a Source<'d>, Place)>) {
    let (own, claim) = (words(&cut.text), claim(answer, cut));
    let found = documents.iter().filter_map(|document| {
        let fits = |place: &Place| claim.as_ref().is_none_or(|claim| claim.holds(document, place) == Some(true));
        Some((document, document.find(cut, &own, fits)?))
    });
    let best = found.min_by_key(|(_, place)| Reverse(place.matched));
    let mut quote = Quote { text: cut.text.clone(), ..Quote::default() };
    if let Some((document, place)) = &best {
        let ((first_line, page), (last_line, _)) = document.lines(place);
        (quote.first_line, quote.last_line, quote.matched) = (first_line, last_line, place.matched);
        quote.page = (!document.index.pages.is_empty()).then_some(page);
        quote.document = Some(document.name.to_owned());
        let wrong = |claim: &Claim| claim.holds(document, place) == Some(false);
        quote.corrects = claim.filter(wrong).map(|claim| claim.words);
    }
    (quote, best)
}

/// A line or page that an answer names for a quote.
struct Claim {
    words: String,
    page: bool,
    first: u64,
    last: u64,
}

impl Claim {
    /// `None`: a page of a document without pages.
    fn holds(&self, document: &Source<'_>, place: &Place) -> Option<bool> {
        let ((first_line, first_page), (last_line, last_page)) = document.lines(place);
        match self.page {
            true if document.index.pages.is_empty() => None,
            true => Some(self.first <= last_page && first_page <= self.last),
            false => Some(self.first <= last_line && first_line <= self.last),
        }
    }
}

const CLAIM: &str = r"(?i)(?:\b(?<line>lines?|ln\.?|l\.|zeilen?)\s*|\b(?<page>pages?|pp?\.|seiten?)\s*|\w:|\bL)(?<first>\d[\d,]*)(?:\s*(?:-|–|to|bis)\s*L?(?<last>\d[\d,]*))?";

/// The nearest one in the quote's paragraph.
fn claim(answer: &str, cut: &Cut) -> Option<Claim> {
    static PATTERN: LazyLock<Option<fancy_regex::Regex>> = LazyLock::new(|| fancy_regex::Regex::new(CLAIM).ok());
    let pattern = PATTERN.as_ref()?;
    let read = |found: fancy_regex::Captures<'_>| {
        let number = |name: &str| found.name(name)?.as_str().replace(',', "").parse::<u64>().ok();
        let (first, page) = (number("first")?, found.name("page").is_some());
        let last = number("last").unwrap_or(first);
        let range = if last > first { format!("s {first}-{last}") } else { format!(" {first}") };
        let words = format!("{}{range}", if page { "page" } else { "line" });
        Some((Claim { words, page, first, last: last.max(first) }, found.get(0)?.range()))
    };
    let before =
        answer.get(answer.floor_char_boundary(cut.range.start.saturating_sub(CLAIM_WITHIN))..cut.range.start)?;
    let before = before.rsplit("\n\n").next()?;
    let after =
        answer.get(cut.range.end..answer.ceil_char_boundary((cut.range.end + CLAIM_WITHIN).min(answer.len())))?;
    let after = after.split("\n\n").next()?;
    let earlier = pattern.captures_iter(before).filter_map(|found| read(found.ok()?)).last();
    let later = pattern.captures(after).ok().flatten().and_then(read);
    let earlier = earlier.map(|(claim, at)| (before.get(at.end..).unwrap_or_default(), claim));
    let later = later.map(|(claim, at)| (after.get(..at.start).unwrap_or_default(), claim));
    // No other quote is between the quote and the number.
    let apart = earlier.into_iter().chain(later).filter(|(between, _)| !between.contains(extract::MARKS));
    apart.min_by_key(|(between, _)| between.len()).map(|(_, claim)| claim)
}

/// Each quote with its source: what differs is marked as in a diff of words, `[-quote-]{+source+}`.
pub fn compared(answer: &str, documents: &[Source<'_>]) -> Vec<(Quote, String)> {
    let compared = |cut: &Cut| {
        let (quote, best) = looked_up(answer, cut, documents);
        let Some((document, place)) = best else { return (quote, cut.text.clone()) };
        let own = words(&cut.text);
        let word =
            |text: &str, word: &Word| text.get(word.start as usize..word.end as usize).unwrap_or_default().to_owned();
        let (mut out, mut end) = (String::new(), 0);
        for (n, ours) in own.iter().enumerate() {
            out.push_str(cut.text.get(end..ours.start as usize).unwrap_or_default());
            end = ours.end as usize;
            let theirs = (place.at + n).checked_sub(place.run.start).and_then(|at| document.index.words.get(at));
            let (ours, theirs) =
                (word(&cut.text, ours), theirs.map_or(String::new(), |theirs| word(document.text, theirs)));
            out.push_str(&if ours == theirs { ours } else { format!("[-{ours}-]{{+{theirs}+}}") });
        }
        out.push_str(cut.text.get(end..).unwrap_or_default());
        (quote, out)
    };
    quoted(answer).iter().map(compared).collect()
}

/// The line that shares most with a text, by the rarity of its longer words: document, line from 1, its text.
pub fn nearest<'a>(text: &str, documents: &[Source<'a>]) -> Option<(&'a str, u64, &'a str)> {
    let topics: HashSet<u64> =
        words(text).iter().filter(|word| word.is_topical(text)).map(|word| word.folded).collect();
    let (mut total, mut counts, mut found) = (0_u32, HashMap::new(), Vec::new());
    for (i, document) in documents.iter().enumerate() {
        for word in &document.index.words {
            total += 1;
            if topics.contains(&word.folded) {
                *counts.entry(word.folded).or_insert(0_u32) += 1;
                found.push(((i, document.index.position(word.start).0), word.folded));
            }
        }
    }
    let rarity = |word: &u64| (f64::from(total) / f64::from(counts.get(word).copied().unwrap_or(1))).ln();
    let lines = found.chunk_by(|(a, _), (b, _)| a == b).filter_map(|line| {
        let shared: BTreeSet<u64> = line.iter().map(|(_, word)| *word).collect();
        Some((shared.iter().map(rarity).sum::<f64>(), line.first()?.0))
    });
    // The first of equal lines.
    let (_, (document, line)) = lines.rev().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let Source { name, text, .. } = documents.get(document)?;
    Some((name, line, text.split('\n').nth(usize::try_from(line - 1).ok()?)?))
}

#[cfg(test)]
#[path = "cited_tests.rs"]
pub(crate) mod tests;
