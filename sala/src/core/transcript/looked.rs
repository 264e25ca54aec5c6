//! The sources of an answer: passages of documents and of earlier messages, by the attention they got during decode.
//!
//! Shares exclude the attention on the first block of the context: models leave most of it there when they attend
//! nowhere in particular, so it does not depend on passages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sources {
    /// Attention during the answer, greatest first.
    pub passages: Vec<Passage>,
    /// Attention during the thoughts before it.
    pub thoughts: Vec<Passage>,
    /// Share of all attention that rested on the first block.
    pub first: f32,
    /// Of the rest, the share of the question and of the answer itself.
    pub own: f32,
    pub block_tokens: u32,
    /// Blocks with the greatest shares, ascending, with ten-thousandths: for maps.
    pub blocks: Vec<(u32, u16)>,
    /// Tokens that the shares are means over; 0 in data of earlier versions.
    pub tokens: u64,
    /// Sources of each sentence, in the order of the text; empty in data of earlier versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sentences: Vec<Sentence>,
    /// Names of the documents in `sentences`, by the number of their message.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<u64, String>,
}

/// A sentence of an answer: it begins at the end of the one before it. Written as an array, to save bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "(u64, Vec<Seen>)")]
pub struct Sentence {
    /// End in the answer's text, in bytes.
    pub end: u64,
    pub seen: Vec<Seen>,
}

impl From<Sentence> for (u64, Vec<Seen>) {
    fn from(sentence: Sentence) -> Self {
        (sentence.end, sentence.seen)
    }
}

/// A passage in few bytes: number of its message, first and last line, share in ten-thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen(pub u64, pub u64, pub u64, pub u16);

impl From<&Passage> for Seen {
    fn from(p: &Passage) -> Seen {
        let share = (f64::from(p.share) * 1e4).round().clamp(0.0, 1e4);
        Seen(p.number, p.first_line, p.last_line, share as u16)
    }
}

pub const MOST_PASSAGES: usize = 8;

impl Sources {
    pub fn by_sentence<'t>(&self, text: &'t str) -> Vec<(&'t str, Vec<Passage>)> {
        let mut from = 0;
        let passage = |seen: &Seen| Passage {
            document: self.names.get(&seen.0).cloned(),
            number: seen.0,
            first_line: seen.1,
            last_line: seen.2,
            share: f32::from(seen.3) / 1e4,
            ..Passage::default()
        };
        let sentence = |s: &Sentence| {
            let end = usize::try_from(s.end).unwrap_or(usize::MAX).min(text.len());
            // Imported data is untrusted: a position outside the text ends nothing.
            let words = text.get(from..end)?;
            from = end;
            Some((words.trim(), s.seen.iter().map(passage).collect()))
        };
        self.sentences.iter().filter_map(sentence).filter(|(words, _)| !words.is_empty()).collect()
    }

    /// The sources for a copy of the answer on another branch: `number` maps message numbers to that branch, `None` if
    /// the message is not on it. Block numbers are dropped, because blocks hold other tokens there.
    pub fn renumbered(mut self, number: impl Fn(u64) -> Option<u64>) -> Sources {
        let there = |at: &mut u64| number(*at).map(|new| *at = new).is_some();
        self.passages.retain_mut(|p| there(&mut p.number));
        self.thoughts.retain_mut(|p| there(&mut p.number));
        for sentence in &mut self.sentences {
            sentence.seen.retain_mut(|seen| there(&mut seen.0));
        }
        self.names = self.names.into_iter().filter_map(|(at, name)| Some((number(at)?, name))).collect();
        self.blocks.clear();
        self
    }

    /// Joins the sources of an answer and of its continuation. `written`: tokens of the first part, for data of
    /// earlier versions.
    pub fn then(self, next: Sources, written: u64) -> Sources {
        let first = if self.tokens > 0 { self.tokens } else { written };
        let all = (first + next.tokens).max(1) as f64;
        let (a, b) = (first as f64 / all, next.tokens as f64 / all);
        let mean = |x: f32, y: f32| (f64::from(x) * a + f64::from(y) * b) as f32;
        let mut blocks: BTreeMap<u32, f64> = BTreeMap::new();
        for (part, weight) in [(&self.blocks, a), (&next.blocks, b)] {
            for (block, share) in part {
                *blocks.entry(*block).or_default() += f64::from(*share) * weight;
            }
        }
        let blocks = blocks.into_iter().map(|(block, share)| (block, share.round().clamp(0.0, 1e4) as u16));
        let thoughts = match (self.thoughts.is_empty(), next.thoughts.is_empty()) {
            (_, true) => self.thoughts,
            (true, false) => next.thoughts,
            (false, false) => joined(self.thoughts, a, next.thoughts, b),
        };
        Sources {
            passages: joined(self.passages, a, next.passages, b),
            thoughts,
            first: mean(self.first, next.first),
            own: mean(self.own, next.own),
            block_tokens: next.block_tokens.max(self.block_tokens),
            blocks: blocks.filter(|b| b.1 > 0).collect(),
            tokens: first + next.tokens,
            sentences: self.sentences.into_iter().chain(next.sentences).collect(),
            names: self.names.into_iter().chain(next.names).collect(),
        }
    }
}

/// Joins the weighted passages of two parts, greatest first; passages that share lines are merged.
fn joined(first: Vec<Passage>, a: f64, next: Vec<Passage>, b: f64) -> Vec<Passage> {
    let weighed = |mut p: Passage, weight: f64| {
        p.share = (f64::from(p.share) * weight) as f32;
        p.forced = (f64::from(p.forced) * weight) as f32;
        p
    };
    let mut all: Vec<Passage> = first.into_iter().map(|p| weighed(p, a)).collect();
    for p in next.into_iter().map(|p| weighed(p, b)) {
        let same = |q: &&mut Passage| {
            (q.number, &q.document) == (p.number, &p.document)
                && q.first_line <= p.last_line
                && p.first_line <= q.last_line
        };
        match all.iter_mut().find(same) {
            Some(q) => {
                q.share += p.share;
                q.forced += p.forced;
                (q.first_line, q.last_line) = (q.first_line.min(p.first_line), q.last_line.max(p.last_line));
                (q.first_block, q.last_block) = (q.first_block.min(p.first_block), q.last_block.max(p.last_block));
            }
            None => all.push(p),
        }
    }
    all.sort_by(|p, q| q.share.total_cmp(&p.share));
    all.truncate(MOST_PASSAGES);
    all
}

/// Neighbouring blocks of one document or message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Passage {
    /// `None` for the conversation.
    pub document: Option<String>,
    /// Number of the message that holds it, on its branch.
    pub number: u64,
    /// First line of the message's own text, from 1.
    pub first_line: u64,
    pub last_line: u64,
    /// 0 to 1.
    pub share: f32,
    /// The forced part of the share: from rows that had to attend there, because it was in their local window.
    pub forced: f32,
    pub first_block: u32,
    pub last_block: u32,
}

impl Passage {
    /// `war.txt 41,210-41,262`, `#3`. The name is raw: it must be cleaned before it is shown.
    pub fn place(&self) -> String {
        let grouped = crate::core::grouped;
        match &self.document {
            None => format!("#{}", self.number),
            Some(name) if self.first_line == self.last_line => format!("{name} {}", grouped(self.first_line)),
            Some(name) => format!("{name} {}-{}", grouped(self.first_line), grouped(self.last_line)),
        }
    }

    /// `31%`.
    pub fn percent(&self) -> String {
        format!("{:.0}%", f64::from(self.share.clamp(0.0, 1.0)) * 100.0)
    }

    pub fn lines<'t>(&self, text: &'t str) -> impl Iterator<Item = (u64, &'t str)> {
        lines(text, self.first_line, self.last_line)
    }
}

/// Lines `first` to `last` of a text, from 1, with their numbers.
pub(super) fn lines(text: &str, first: u64, last: u64) -> impl Iterator<Item = (u64, &str)> {
    let skipped = usize::try_from(first.max(1) - 1).unwrap_or(usize::MAX);
    (1..).zip(text.lines()).skip(skipped).take_while(move |(n, _)| *n <= last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_lines_are_those_of_the_text() {
        let mut p =
            Passage { document: Some("war.txt".into()), first_line: 41_210, last_line: 41_262, ..Passage::default() };
        p.share = 0.314;
        assert_eq!((p.place(), p.percent()), ("war.txt 41,210-41,262".into(), "31%".into()));
        let p = Passage { first_line: 2, last_line: 3, ..p };
        assert_eq!(p.lines("a\nb\nc\nd").collect::<Vec<_>>(), [(2, "b"), (3, "c")]);
        assert_eq!(Passage { first_line: 2, last_line: 2, ..p.clone() }.place(), "war.txt 2");
        // Imported data is untrusted.
        assert_eq!(
            Passage { first_line: 0, last_line: u64::MAX, ..p.clone() }.lines("a").collect::<Vec<_>>(),
            [(1, "a")]
        );
        assert_eq!(Passage { first_line: u64::MAX, last_line: 0, ..p }.lines("a").count(), 0);
        assert_eq!(Passage { number: 3, ..Passage::default() }.place(), "#3");
    }

    #[test]
    fn a_copy_on_another_branch_speaks_of_the_messages_there() {
        let passage = |number: u64| Passage { number, first_line: 10 * number, ..Passage::default() };
        let sentence = Sentence { end: 5, seen: vec![Seen(3, 1, 2, 900), Seen(1, 1, 2, 100)] };
        let sources = Sources {
            passages: vec![passage(3), passage(2), passage(1)],
            thoughts: vec![passage(2)],
            sentences: vec![sentence],
            names: BTreeMap::from([(1, "a.txt".into()), (2, "b.txt".into()), (3, "c.txt".into())]),
            blocks: vec![(7, 9)],
            ..Sources::default()
        };
        // The second of three documents is gone.
        let moved = sources.renumbered(|n| match n {
            1 => Some(1),
            3 => Some(2),
            _ => None,
        });
        let places = |of: &[Passage]| of.iter().map(|p| (p.number, p.first_line)).collect::<Vec<_>>();
        assert_eq!((places(&moved.passages), places(&moved.thoughts)), (vec![(2, 30), (1, 10)], vec![]));
        assert_eq!(moved.sentences[0].seen, [Seen(2, 1, 2, 900), Seen(1, 1, 2, 100)]);
        assert_eq!(moved.names, BTreeMap::from([(1, "a.txt".into()), (2, "c.txt".into())]));
        assert!(moved.blocks.is_empty());
    }

    #[test]
    fn an_answer_that_went_on_looked_where_both_parts_did() {
        let passage = |number, lines: (u64, u64), share| Passage {
            document: Some("a.txt".into()),
            number,
            first_line: lines.0,
            last_line: lines.1,
            share,
            ..Passage::default()
        };
        let first = Sources {
            passages: vec![passage(1, (10, 12), 0.4), passage(1, (50, 51), 0.2)],
            first: 0.8,
            tokens: 30,
            blocks: vec![(3, 4000), (9, 2000)],
            sentences: vec![Sentence { end: 9, seen: vec![Seen(1, 10, 12, 4000)] }],
            names: [(1, "a.txt".into())].into(),
            ..Sources::default()
        };
        let next = Sources {
            passages: vec![passage(1, (12, 14), 0.8), passage(2, (12, 14), 0.1)],
            first: 0.4,
            tokens: 10,
            blocks: vec![(3, 8000)],
            sentences: vec![Sentence { end: 20, seen: Vec::new() }],
            ..Sources::default()
        };
        let both = first.clone().then(next.clone(), 0);
        let places: Vec<_> = both.passages.iter().map(|p| (p.number, p.first_line, p.last_line)).collect();
        assert_eq!(places, [(1, 10, 14), (1, 50, 51), (2, 12, 14)]);
        assert!((both.passages[0].share - 0.5).abs() < 1e-6 && (both.first - 0.7).abs() < 1e-6, "{both:?}");
        assert_eq!((both.tokens, both.blocks.as_slice()), (40, &[(3, 5000), (9, 1500)][..]));
        let text = "It is so. And that it was";
        let sentences = both.by_sentence(text);
        assert_eq!((sentences[0].0, sentences[0].1[0].place()), ("It is so.", "a.txt 10-12".into()));
        assert_eq!((sentences[1].0, sentences[1].1.len()), ("And that i", 0));
        // A part without a token count has the weight of `written` tokens.
        let old = Sources { tokens: 0, ..first };
        assert_eq!(old.then(next, 30).passages, both.passages);
        // Positions in imported data are untrusted.
        let wild = Sources { sentences: vec![Sentence { end: u64::MAX, seen: Vec::new() }; 2], ..Sources::default() };
        assert_eq!(wild.by_sentence("日本").len(), 1);
        let wild = Sources { sentences: vec![Sentence { end: 1, seen: Vec::new() }], ..Sources::default() };
        assert!(wild.by_sentence("日本").is_empty());
    }

    #[test]
    fn sentences_are_kept_in_few_bytes_and_old_messages_have_none() {
        let sources = Sources {
            sentences: vec![Sentence { end: 41, seen: vec![Seen(1, 41_210, 41_262, 3141)] }],
            names: [(1, "war.txt".into())].into(),
            ..Sources::default()
        };
        let text = serde_json::to_string(&sources).unwrap();
        assert!(text.contains("[[41,[[1,41210,41262,3141]]]]") && text.contains("{\"1\":\"war.txt\"}"), "{text}");
        assert_eq!(serde_json::from_str::<Sources>(&text).unwrap(), sources);
        let old: Sources = serde_json::from_str("{\"passages\":[],\"first\":0.5}").unwrap();
        assert_eq!((old.tokens, old.sentences.len()), (0, 0));
    }
}
