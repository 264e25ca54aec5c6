//! Converts attended blocks into passages: the engine counts token positions, users read documents and lines.
//!
//! A walk along the rendered text with the tokens of the live path converts positions to bytes; bytes become lines of
//! a message. Blocks of the template's own text belong to no passage. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Path, Rendered, Renderer};
use crate::core::transcript::{MOST_PASSAGES, Message, Passage, Role, Seen, Sentence, Sources};
use crate::engine::protocol::{Looked, LookedAt};
use crate::store::TextBoundary;
use crate::text::{Before, Specials, Walk};

const SENTENCE_PASSAGES: usize = 3;
const MOST_BLOCKS: usize = 256;
/// Least share of a block that forms a passage.
const LEAST_SHARE: f64 = 0.005;
/// A neighbour joins a passage if its share is at least this part of the peak's share.
const JOINED_FROM: f64 = 0.25;

/// The text of a message in a rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) range: Range<usize>,
    pub(super) number: u64,
    /// Line of the message's own text at which the range begins.
    pub(super) line: u64,
    document: Option<String>,
}

/// The messages, located by the tokens of the live path.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    items: Vec<Item>,
    /// Byte of the rendered text at which each block begins, and the end of the last one.
    edges: Vec<usize>,
    /// Byte at which the question begins; attention from there on counts as the answer's own.
    own: usize,
}

impl Renderer {
    /// The texts of messages in their rendering, in order. Without those that the template changed.
    pub(super) fn items(&self, rendered: &Rendered, path: &[&Message]) -> Vec<Item> {
        let mut items = Vec::with_capacity(path.len());
        let mut at = 0;
        for (number, m) in (1..).zip(path) {
            let safe = self.safe(&m.text);
            let from_line = safe.trim_start_matches(['\n', '\r']);
            let cut = rendered.cuts.iter().find(|c| c.message == m.id).map(|c| c.end);
            let whole = from_line.trim_end();
            let end = cut.unwrap_or(rendered.text.len());
            let place = match m.role {
                // It ends right before its cut; an earlier match may be the template's text.
                Role::Assistant => end.checked_sub(whole.len()).filter(|from| *from >= at),
                Role::System | Role::User | Role::Document => {
                    rendered.text.get(at..end).and_then(|rest| rest.find(whole)).map(|n| at + n)
                }
            };
            let range = place.map(|from| from..from + whole.len());
            let found = range.filter(|r| !whole.is_empty() && rendered.text.get(r.clone()) == Some(whole));
            if let Some(range) = found {
                let before = safe.get(..safe.len() - from_line.len()).unwrap_or("");
                let document = m.meta.document.as_ref().map(|d| d.name.clone());
                items.push(Item { range: range.clone(), number, line: 1 + lines(before), document });
                at = range.end;
            }
            at = cut.unwrap_or(at).max(at);
        }
        items
    }

    /// Byte offsets of the edges of the path's blocks in the rendered text.
    fn edges(&self, text: &str, path: &Path, block: usize) -> Vec<usize> {
        let tokenizer = &self.model().tokenizer;
        let mut edges = Vec::new();
        let (mut from, mut before, mut position) = (0, Before::Edge, 0usize);
        let mut waiting: Vec<crate::engine::protocol::Token> = Vec::new();
        let last = path.segments().len();
        for (i, s) in path.segments().iter().enumerate() {
            waiting.extend(&s.content.prompt);
            waiting.extend(&s.content.completion);
            // A segment that ends inside a character has no place in the text; the next segment's end serves both.
            if s.content.boundary == TextBoundary::NOWHERE && i + 1 < last {
                continue;
            }
            let to = usize::try_from(s.content.boundary.bytes).unwrap_or(usize::MAX).clamp(from, text.len().max(from));
            let slice = text.get(from..to).unwrap_or("");
            let mut walk = Walk::new(tokenizer, slice, before);
            let (mut known, mut lost) = (0, None);
            for (n, token) in waiting.iter().enumerate() {
                if (position + n).is_multiple_of(block) {
                    edges.push(from + known);
                }
                // A start token that the template did not write has no text.
                let unwritten = position + n == 0
                    && tokenizer.bos == Some(*token)
                    && !slice.starts_with(&tokenizer.decode(&[*token], Specials::Show));
                if unwritten {
                    continue;
                }
                if lost.is_none() && !walk.step(*token) {
                    lost = Some((n, known));
                }
                known = match lost {
                    None => walk.place().unwrap_or(known),
                    // The tokens do not spell this text: the remaining bytes are divided evenly.
                    Some((since, at)) => at + (slice.len() - at) * (n + 1 - since) / (waiting.len() - since),
                };
            }
            position += waiting.len();
            before = tokenizer.before_next(&waiting, before);
            waiting.clear();
            from = to;
        }
        edges.push(from);
        edges
    }

    pub(super) fn map(&self, rendered: &Rendered, path: &[&Message], live: &Path, block: usize) -> Map {
        let items = self.items(rendered, path);
        let question = path.len() as u64;
        let own = items.iter().find(|i| i.number == question && i.document.is_none()).map(|i| i.range.start);
        let own = own.or(rendered.cuts.last().map(|c| c.end)).unwrap_or(0);
        Map { items, edges: self.edges(&rendered.text, live, block.max(1)), own }
    }
}

fn lines(text: &str) -> u64 {
    text.bytes().filter(|b| *b == b'\n').count() as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    First,
    Item(usize),
    Own,
    Frame,
}

impl Map {
    fn bytes(&self, block: usize) -> Range<usize> {
        let end = self.edges.last().copied().unwrap_or(0);
        let edge = |b: usize| self.edges.get(b).copied().unwrap_or(end);
        edge(block)..edge(block + 1)
    }

    fn owner(&self, block: usize) -> Owner {
        let bytes = self.bytes(block);
        if block == 0 {
            return Owner::First;
        }
        if bytes.start + bytes.len() / 2 >= self.own {
            return Owner::Own;
        }
        let overlap = |i: &Item| i.range.end.min(bytes.end).saturating_sub(i.range.start.max(bytes.start));
        let most = self.items.iter().enumerate().max_by_key(|(_, i)| overlap(i));
        match most {
            Some((n, item)) if 2 * overlap(item) >= bytes.len() => Owner::Item(n),
            Some(_) | None => Owner::Frame,
        }
    }

    /// Blocks of an earlier passage: the recorded ones if they hold the same lines, else those with its lines.
    pub(super) fn blocks_of(&self, text: &str, passage: &Passage) -> Range<u32> {
        let same = |p: &Passage| {
            (p.number, p.first_line, p.last_line) == (passage.number, passage.first_line, passage.last_line)
        };
        let owner = self.owner(passage.first_block as usize);
        let share = |block| Share { block, owner, share: 0.0, forced: 0.0 };
        let run = [share(passage.first_block), share(passage.last_block)];
        if self.passage(text, &run.each_ref()).is_some_and(|p| same(&p)) {
            return passage.first_block..passage.last_block + 1;
        }
        let Some(item) = self.items.iter().find(|i| i.number == passage.number) else {
            return 0..0;
        };
        let inside = text.get(item.range.clone()).unwrap_or("");
        let line_start = |line: u64| match line.checked_sub(item.line).and_then(|n| usize::try_from(n).ok()) {
            None | Some(0) => item.range.start,
            Some(n) => {
                inside.match_indices('\n').nth(n - 1).map_or(item.range.end, |(at, _)| item.range.start + at + 1)
            }
        };
        let (from, to) = (line_start(passage.first_line), line_start(passage.last_line.saturating_add(1)));
        let block =
            |byte: usize| u32::try_from(self.edges.partition_point(|e| *e <= byte).saturating_sub(1)).unwrap_or(0);
        // The first block is an attention sink and is never hidden.
        block(from).max(1)..block(to.saturating_sub(1)).saturating_add(1).max(1)
    }

    /// Passages of an answer; `None` if the engine reported no attention.
    pub(super) fn sources(&self, text: &str, looked: &LookedAt, sentences: &[(usize, Looked)]) -> Option<Sources> {
        if looked.answer.tokens + looked.thoughts.tokens == 0 {
            return None;
        }
        let first = |l: &Looked| l.blocks.iter().filter(|b| b.block == 0).map(|b| f64::from(b.share)).sum::<f64>();
        let shares = self.shares(&looked.answer);
        let own: f64 = shares.iter().filter(|s| s.owner == Owner::Own).map(|s| s.share).sum();
        let mut blocks: Vec<(u32, u16)> = shares.iter().map(|s| (s.block, (s.share * 1e4).round() as u16)).collect();
        blocks.retain(|b| b.1 > 0);
        blocks.sort_by_key(|(block, share)| (std::cmp::Reverse(*share), *block));
        blocks.truncate(MOST_BLOCKS);
        blocks.sort_unstable();
        let mut names = BTreeMap::new();
        let sentences = sentences.iter().map(|(end, looked)| {
            let mut passages = self.passages(text, &self.shares(looked));
            passages.truncate(SENTENCE_PASSAGES);
            names.extend(passages.iter().filter_map(|p| Some((p.number, p.document.clone()?))));
            Sentence { end: *end as u64, seen: passages.iter().map(Seen::from).collect() }
        });
        let sentences = sentences.collect();
        Some(Sources {
            tokens: looked.answer.tokens,
            sentences,
            names,
            passages: self.passages(text, &shares),
            thoughts: self.passages(text, &self.shares(&looked.thoughts)),
            first: rounded(first(&looked.answer)),
            own: rounded(own),
            block_tokens: looked.answer.block_tokens,
            blocks,
        })
    }

    /// Shares of the other blocks, relative to the attention outside the first block.
    fn shares(&self, looked: &Looked) -> Vec<Share> {
        let later = || looked.blocks.iter().filter(|b| b.block > 0);
        let rest: f64 = later().map(|b| f64::from(b.share)).sum();
        let part = |x: f32| if rest > 0.0 { f64::from(x) / rest } else { 0.0 };
        later()
            .map(|b| Share {
                block: b.block,
                owner: self.owner(b.block as usize),
                share: part(b.share),
                forced: part(b.forced),
            })
            .collect()
    }

    /// Passages above the threshold, highest share first.
    fn passages(&self, text: &str, shares: &[Share]) -> Vec<Passage> {
        let mut left: Vec<&Share> = shares.iter().filter(|s| matches!(s.owner, Owner::Item(_))).collect();
        let there = (1..self.edges.len()).filter(|b| matches!(self.owner(*b), Owner::Item(_))).count();
        let even = left.iter().map(|s| s.share).sum::<f64>() / there.max(1) as f64;
        // With few blocks, none can reach twice the even share.
        let least = (even * if there < 8 { 1.0 } else { 2.0 }).max(LEAST_SHARE);
        let mut passages = Vec::new();
        // The list is in block order, so neighbours are adjacent.
        while let Some(peak) = (0..left.len()).max_by(|a, b| left[*a].share.total_cmp(&left[*b].share).then(b.cmp(a))) {
            let top = left[peak];
            if top.share < least || passages.len() == 2 * MOST_PASSAGES {
                break;
            }
            let joins = |a: &Share, b: &Share| {
                a.owner == b.owner && a.block.abs_diff(b.block) == 1 && b.share >= (top.share * JOINED_FROM).max(least)
            };
            let from = peak - (1..=peak).rev().take_while(|i| joins(left[*i], left[*i - 1])).count();
            let to = peak + (peak + 1..left.len()).take_while(|i| joins(left[*i - 1], left[*i])).count();
            let run: Vec<&Share> = left.drain(from..=to).collect();
            passages.extend(self.passage(text, &run));
        }
        passages.sort_by(|a, b| b.share.total_cmp(&a.share));
        passages.truncate(MOST_PASSAGES);
        passages
    }

    fn passage(&self, text: &str, run: &[&Share]) -> Option<Passage> {
        let (first, last) = (run.first()?, run.last()?);
        let Owner::Item(n) = first.owner else { return None };
        let item = self.items.get(n)?;
        let from = self.bytes(first.block as usize).start.clamp(item.range.start, item.range.end);
        let to = self.bytes(last.block as usize).end.clamp(from, item.range.end);
        let before = item.line + lines(text.get(item.range.start..from)?);
        // A line end at the edge belongs to the line before it.
        let inside = text.get(from..to)?;
        let (leading, solid) = (inside.len() - inside.trim_start_matches('\n').len(), inside.trim_matches('\n'));
        let first_line = before + leading as u64;
        Some(Passage {
            document: item.document.clone(),
            number: item.number,
            first_line,
            last_line: first_line + lines(solid),
            share: rounded(run.iter().map(|s| s.share).sum()),
            forced: rounded(run.iter().map(|s| s.forced).sum()),
            first_block: first.block,
            last_block: last.block,
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Share {
    block: u32,
    owner: Owner,
    share: f64,
    forced: f64,
}

fn rounded(share: f64) -> f32 {
    // Adding 0.0 turns the negative zero of an empty sum into zero.
    ((share * 1e4).round() / 1e4 + 0.0) as f32
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
