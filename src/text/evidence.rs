//! Evidence for a sentence of a document: the words that it shares with the question. A small model chooses a
//! sentence by its first words and overlooks words shared with the question or related to its words ([`thesaurus`]);
//! rarer words count more. Only documents count: earlier messages always resemble the question. The text is read in
//! one pass.

use std::collections::HashMap;
use std::ops::Range;

use super::sentences::{BETWEEN, ends as ends_at};
use super::stem::{put_stem, words};
use super::template::ChatMessage;
use super::thesaurus;
use crate::engine::protocol::Quoting;

/// Longer sentences are cut: one may be as long as its text.
const SENTENCE_BYTES: usize = 512;
/// Highest weight of words, in logits.
const MOST: f32 = 14.0;
/// Words of a question; each is a bit.
const QUESTION_WORDS: usize = 64;
/// Weight of a related word, relative to the word itself.
const RELATED: f32 = 0.8;

/// Words without a meaning for the search.
const STOP: &str = " a about all also am an and any are as at be been being by can could did do document does doing don done each every file \
    for from had has have having he her here him his how i if in into is it its just ll many may me mention mentioned might much must my no \
    nor not of on one only or other our please re said say says shall she should so some such tell text than that the their them then there \
    these they this those to too us ve very was we were what when where which who whom whose why will with would you your ";

/// Words of [`STOP`] that in this spelling are names.
const NAMES: [&str; 6] = ["Don", "IT", "May", "US", "WHO", "Will"];

/// Evidence for a sentence, in logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Evidence {
    /// In favour of it over others.
    pub(super) favours: f32,
    /// In favour of quoting at all: how much of the question it covers.
    pub(super) covers: f32,
}

/// The evidence for the sentences that begin at these positions.
pub(super) fn weigh(text: &[u8], begin: &[usize], quoting: &Quoting) -> Vec<Evidence> {
    let (documents, question) = parts(text);
    let stems = stems(text.get(question).unwrap_or_default());
    if stems.is_empty() {
        return vec![Evidence::default(); begin.len()];
    }
    let read = Read::of(text, &documents, &stems, &quoting.thesaurus);
    let weighed = begin.iter().map(|begin| {
        let document = documents.get(documents.partition_point(|document| document.end <= *begin));
        let is_inside = document.is_some_and(|document| document.start <= *begin);
        if is_inside { read.evidence(*begin, quoting) } else { Evidence::default() }
    });
    weighed.collect()
}

/// The documents of a text, and the last question: all are turns of the same role.
fn parts(text: &[u8]) -> (Vec<Range<usize>>, Range<usize>) {
    let [opens, closes] = ChatMessage::DOCUMENT.map(str::as_bytes);
    let (mut documents, mut question, mut speaker) = (Vec::new(), 0..0, None);
    let mut start = 0;
    for part in text.split(|byte| *byte == BETWEEN) {
        let end = start + part.len();
        // At most the role precedes it, on a line of its own.
        let role = part.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let role = if part.starts_with(opens) { 0 } else { role };
        let body = part.get(role..).unwrap_or_default();
        if body.starts_with(opens) {
            let to = body.windows(closes.len()).rposition(|last| last == closes).unwrap_or(body.len());
            let from = body.iter().position(|byte| *byte == b'\n').map_or(to, |at| (at + 1).min(to));
            documents.push(start + role + from..start + role + to);
            speaker = part.get(..role);
            question = 0..0;
        } else if speaker.is_some_and(|speaker| part.starts_with(speaker)) && !body.trim_ascii().is_empty() {
            question = start + speaker.map_or(0, <[u8]>::len)..end;
        }
        start = end + 1;
    }
    (documents, question)
}

/// The text of documents; everything else is blanked, because nothing else may be quoted.
pub(super) fn documents_alone(text: &[u8]) -> Vec<u8> {
    let mut own = vec![BETWEEN; text.len()];
    for document in parts(text).0 {
        // The line end before the closing line belongs to the template.
        let closed = text.get(document.end..).is_some_and(|rest| rest.starts_with(ChatMessage::DOCUMENT[1].as_bytes()));
        let last = closed && text.get(document.clone()).is_some_and(|own| own.ends_with(b"\n"));
        let range = document.start..document.end - usize::from(last);
        if let (Some(to), Some(from)) = (own.get_mut(range.clone()), text.get(range)) {
            to.copy_from_slice(from);
        }
    }
    own
}

fn stems(question: &[u8]) -> HashMap<Vec<u8>, u32> {
    let mut stems = HashMap::new();
    let mut own = Vec::new();
    // Capitals mean nothing in a text of capitals only.
    let spelled = question.iter().any(u8::is_ascii_lowercase);
    for (past, word) in words(question) {
        let lower = word.to_ascii_lowercase();
        let says = lower.len() > 1 || lower.first().is_some_and(u8::is_ascii_digit);
        let before = question.get(..past - word.len()).unwrap_or_default().trim_ascii_end().last();
        let within = before.is_some_and(|byte| !matches!(*byte, b'.' | b'?' | b'!'));
        // At the beginning of a sentence any word may have one capital.
        let capital = within || is_capitals(word);
        let name = spelled && capital && NAMES.iter().any(|name| name.as_bytes() == word);
        let stop = !name && STOP.split(' ').any(|stop| stop.as_bytes() == lower);
        if says && !stop && stems.len() < QUESTION_WORDS {
            put_stem(word, &mut own);
            let next = stems.len() as u32;
            stems.entry(own.clone()).or_insert(next);
        }
    }
    stems
}

fn is_capitals(word: &[u8]) -> bool {
    word.iter().all(u8::is_ascii_uppercase)
}

/// Whether a word is spelled in small letters although [`NAMES`] has it.
fn is_common(word: &[u8]) -> bool {
    let name = NAMES.iter().map(|name| name.as_bytes()).find(|name| name.eq_ignore_ascii_case(word));
    name.is_some_and(|name| match is_capitals(name) {
        true => name != word,
        false => word.first().is_some_and(u8::is_ascii_lowercase),
    })
}

#[derive(Clone, Copy, Debug, Default)]
struct Found {
    own: u64,
    related: u64,
}

impl Found {
    fn and(self, other: Found) -> Found {
        Found { own: self.own | other.own, related: self.related | other.related }
    }
}

/// Words that documents share with a question.
struct Read<'a> {
    text: &'a [u8],
    ends: Vec<usize>,
    /// The position after each word that matches the question, and which words it matches.
    found: Vec<(usize, Found)>,
    /// Weight of each word of the question: itself, and itself or a related one. Rarer words weigh more.
    says: Vec<[f32; 2]>,
    /// Weight of a sentence with all of them.
    all: f32,
}

impl<'a> Read<'a> {
    fn of(text: &'a [u8], documents: &[Range<usize>], stems: &HashMap<Vec<u8>, u32>, thesaurus: &str) -> Read<'a> {
        let related = thesaurus::related(thesaurus, stems);
        let (mut ends, mut found, mut stem) = (Vec::new(), Vec::new(), Vec::new());
        for document in documents {
            // Not after a space: each run of spaces is examined once.
            let last = |place: &usize| {
                place.checked_sub(1).and_then(|at| text.get(at)).is_some_and(|b| !b.is_ascii_whitespace())
            };
            let places = document.start + 1..document.end + 1;
            ends.extend(places.filter(|place| last(place) && ends_at(text, *place)));
            for (at, word) in words(text.get(document.clone()).unwrap_or_default()) {
                put_stem(word, &mut stem);
                let own = stems.get(stem.as_slice()).filter(|_| !is_common(word)).map_or(0, |number| 1 << number);
                let related = related.get(stem.as_slice()).copied().unwrap_or(0);
                if own | related != 0 {
                    found.push((document.start + at, Found { own, related }));
                }
            }
        }
        // Sentences that contain each word.
        let mut have = vec![[0_u32; 2]; stems.len()];
        let mut rest = found.as_slice();
        while let Some((past, _)) = rest.first() {
            let end = ends.get(ends.partition_point(|end| end < past)).copied().unwrap_or(usize::MAX);
            let (sentence, others) = rest.split_at(rest.partition_point(|(past, _)| *past <= end));
            let found = sentence.iter().fold(Found::default(), |all, (_, found)| all.and(*found));
            for (i, [own, either]) in have.iter_mut().enumerate() {
                *own += (found.own >> i & 1) as u32;
                *either += ((found.own | found.related) >> i & 1) as u32;
            }
            rest = others;
        }
        let rare = |have: u32| (1.0 + ends.len() as f32 / have as f32).ln();
        let says: Vec<[f32; 2]> =
            have.iter().map(|have| have.map(|have| if have == 0 { 0.0 } else { rare(have) })).collect();
        let all = have.iter().map(|[_, either]| rare((*either).max(1))).sum();
        Read { text, ends, found, says, all }
    }

    fn evidence(&self, begin: usize, quoting: &Quoting) -> Evidence {
        let end = self.ends.get(self.ends.partition_point(|end| *end <= begin)).copied().unwrap_or(self.text.len());
        let end = end.min(begin + SENTENCE_BYTES);
        let first = self.found.partition_point(|(past, _)| *past <= begin);
        let within = self.found.iter().skip(first).take_while(|(past, _)| *past <= end);
        let found = within.fold(Found::default(), |all, (_, found)| all.and(*found));
        let (mut words, mut covered) = (0.0, 0.0);
        for (i, [own, either]) in self.says.iter().enumerate() {
            if found.own >> i & 1 == 1 {
                words += quoting.words * own;
                covered += either;
            } else if found.related >> i & 1 == 1 {
                words += quoting.related * either;
                covered += RELATED * either;
            }
        }
        let length = quoting.length * ((end - begin) as f32).ln();
        let covered = if self.all > 0.0 { covered / self.all } else { 0.0 };
        Evidence { favours: words.clamp(-MOST, MOST) + length, covers: quoting.covered * (covered - 0.5) }
    }
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
