//! Text of a stream of tokens: whole characters only, thoughts separate from the answer. `Detokenizer` turns bytes
//! into characters, `Splitter` separates `<think>…</think>`, [`StreamDecoder`] combines both, and [`Places`] says where in a
//! text each token begins. Invariant: all deltas together equal the text of the whole list after the prompt, without special
//! tokens; no part of a tag is ever emitted.

use std::sync::Arc;

use super::own_space::{Before, OwnSpace};
use super::thoughts::{self, CLOSE, OPEN};
use super::tokenizer::{Specials, Tokenizer};
use super::vocabulary::Piece;
use crate::engine::protocol::Token;

/// Bytes to characters. Holds back an incomplete character.
#[derive(Clone, Debug)]
pub(super) struct Detokenizer {
    held: Vec<u8>,
    /// Leading spaces still to omit.
    strip: usize,
    /// Leading spaces to omit where a stretch of text begins.
    own_spaces: usize,
}

impl Detokenizer {
    pub(super) fn new(tokenizer: &Tokenizer, before: Before) -> Detokenizer {
        let own_spaces = usize::from(tokenizer.pieces.own_space != OwnSpace::None);
        let strip = if before == Before::Edge { own_spaces } else { 0 };
        Detokenizer { held: Vec::new(), strip, own_spaces }
    }

    /// Appends what a token adds; the literal of a special one if `specials` says so.
    pub(super) fn token(&mut self, piece: &Piece, specials: Specials, out: &mut String) {
        match piece {
            Piece::Bytes(bytes) => self.push(bytes, out),
            Piece::Special(literal) => {
                // No character crosses it, and a stretch of text begins after it.
                self.finish(out);
                self.strip = self.own_spaces;
                out.push_str(if specials == Specials::Show { literal } else { "" });
            }
        }
    }

    /// Appends complete characters. Invalid UTF-8 is replaced by U+FFFD.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let mut from = 0;
        for chunk in held.utf8_chunks() {
            let (valid, broken) = (chunk.valid(), chunk.invalid());
            let spaces = valid.bytes().take(self.strip).take_while(|b| *b == b' ').count();
            self.strip = if spaces == valid.len() { self.strip - spaces } else { 0 };
            out.push_str(valid.get(spaces..).unwrap_or(""));
            from += valid.len() + broken.len();
            match std::str::from_utf8(broken) {
                // Later bytes complete the character.
                Err(e) if e.error_len().is_none() && from == held.len() => self.held = broken.to_vec(),
                Err(_) => {
                    self.strip = 0;
                    out.push('\u{FFFD}');
                }
                Ok(_) => {}
            }
        }
    }

    /// No more bytes follow: ends an incomplete character.
    pub(super) fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            self.held.clear();
            out.push('\u{FFFD}');
        }
    }
}

/// New text of an answer. Thoughts precede the text that follows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    pub thinking: String,
    pub answer: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Begin {
    /// Outside a thought, which the answer may open.
    #[default]
    Answer,
    /// Inside a thought: the prompt ended with `<think>`.
    Thought,
}

impl Begin {
    /// How the answer to this rendered prompt begins.
    pub fn after_prompt(prompt: &str) -> Begin {
        if thoughts::opened(prompt) { Begin::Thought } else { Begin::Answer }
    }
}

/// Separates thoughts from an answer. As plain text, `<think>` opens a thought only at the beginning of an answer:
/// later the answer only mentions it. As a control token it opens one anywhere.
#[derive(Clone, Debug)]
struct Splitter {
    in_thought: bool,
    /// More than white space of the thought or the answer was met.
    begun: bool,
    /// Nothing but white space came so far, and a tag may open a thought.
    may_open: bool,
    /// Text that may become a tag, or white space that ends a thought.
    held: String,
}

impl Splitter {
    fn new(begin: Begin) -> Splitter {
        let in_thought = begin == Begin::Thought;
        Splitter { in_thought, begun: false, may_open: !in_thought, held: String::new() }
    }

    fn push(&mut self, text: &str, delta: &mut Delta) {
        self.held.push_str(text);
        loop {
            let text = self.held.trim_start();
            if self.may_open {
                if let Some(rest) = text.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.begin(true);
                    continue;
                }
                if OPEN.starts_with(text) {
                    return;
                }
                (self.may_open, self.begun) = (false, true);
            } else if !self.begun {
                self.held = text.to_owned();
                self.begun = !self.held.is_empty();
            }
            if !self.in_thought {
                return self.flush(delta);
            }
            let Some(at) = self.held.find(CLOSE) else { break };
            let rest = self.held.split_off(at + CLOSE.len());
            self.held.truncate(at);
            delta.thinking.push_str(self.held.trim_end());
            self.held = rest;
            self.begin(false);
        }
        let tag = (1..CLOSE.len()).rev().find(|n| self.held.ends_with(CLOSE.get(..*n).unwrap_or(CLOSE)));
        let certain = self.held.len() - tag.unwrap_or(0);
        let certain = self.held.get(..certain).map_or(0, |t| t.trim_end().len());
        let rest = self.held.split_off(certain);
        delta.thinking.push_str(&std::mem::replace(&mut self.held, rest));
    }

    fn begin(&mut self, in_thought: bool) {
        (self.in_thought, self.begun, self.may_open) = (in_thought, false, false);
    }

    /// The answer is complete: releases the text held back.
    fn finish(&mut self, delta: &mut Delta) {
        if self.in_thought {
            self.held.truncate(self.held.trim_end().len());
        }
        self.flush(delta);
    }

    fn flush(&mut self, delta: &mut Delta) {
        let held = std::mem::take(&mut self.held);
        if self.in_thought { delta.thinking.push_str(&held) } else { delta.answer.push_str(&held) }
    }
}

#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Arc<Tokenizer>,
    characters: Detokenizer,
    splitter: Splitter,
    /// A raw completion has no thoughts.
    raw: bool,
    thought_tokens: u64,
}

impl StreamDecoder {
    pub fn new(tokenizer: Arc<Tokenizer>, begin: Begin) -> StreamDecoder {
        let characters = Detokenizer::new(&tokenizer, Before::Text);
        StreamDecoder { tokenizer, characters, splitter: Splitter::new(begin), raw: false, thought_tokens: 0 }
    }

    /// For a raw completion: thoughts and their tags are text of the answer, as far as they are no control tokens.
    pub fn raw(tokenizer: Arc<Tokenizer>) -> StreamDecoder {
        let splitter = Splitter { begun: true, may_open: false, ..Splitter::new(Begin::Answer) };
        StreamDecoder { splitter, raw: true, ..StreamDecoder::new(tokenizer, Begin::Answer) }
    }

    /// The text of one more token. Control tokens other than thought tags add none.
    pub fn push(&mut self, id: Token) -> Delta {
        self.push_all(&[id])
    }

    pub fn push_all(&mut self, ids: &[Token]) -> Delta {
        let mut delta = Delta::default();
        for &id in ids {
            let (piece, mut text) = (self.tokenizer.pieces.get(id), String::new());
            self.characters.token(piece, Specials::Hide, &mut text);
            self.splitter.push(&text, &mut delta);
            match piece {
                Piece::Special(literal) if !self.raw && literal == OPEN => {
                    self.splitter.flush(&mut delta);
                    self.splitter.begin(true);
                }
                Piece::Special(literal) if !self.raw && literal == CLOSE => {
                    self.splitter.finish(&mut delta);
                    self.splitter.begin(false);
                }
                Piece::Bytes(_) | Piece::Special(_) => {}
            }
            self.thought_tokens += u64::from(self.splitter.in_thought);
        }
        delta
    }

    /// Text still held back. Call once, after the last token.
    pub fn finish(&mut self) -> Delta {
        let mut delta = Delta::default();
        let mut text = String::new();
        self.characters.finish(&mut text);
        self.splitter.push(&text, &mut delta);
        self.splitter.finish(&mut delta);
        delta
    }

    pub fn in_thought(&self) -> bool {
        self.splitter.in_thought
    }

    /// Whether the last token belongs to the answer, not to a thought, its tags or the white space around them;
    /// `None` while both are possible.
    pub fn in_answer(&self) -> Option<bool> {
        match (self.splitter.may_open, self.splitter.in_thought) {
            (true, _) => None,
            (false, true) => Some(false),
            // Part of a character is no white space.
            (false, false) => Some(self.splitter.begun || !self.characters.held.is_empty()),
        }
    }

    /// Text of the answer in the token that closes a thought; `None` while the thought is open. The tag may be
    /// several tokens, and its last token may contain text of the answer.
    pub(super) fn after_thought(&self, id: Token) -> Option<&[u8]> {
        let bytes = match self.tokenizer.pieces.get(id) {
            Piece::Special(literal) => return (*literal == CLOSE).then_some(&[]),
            Piece::Bytes(bytes) => bytes,
        };
        let mut cuts = (1..=bytes.len()).filter_map(|end| bytes.split_at_checked(end));
        cuts.find_map(|(tag, rest)| {
            if !tag.ends_with(b">") {
                return None;
            }
            let (mut characters, mut splitter) = (self.characters.clone(), self.splitter.clone());
            let mut text = String::new();
            characters.push(tag, &mut text);
            splitter.push(&text, &mut Delta::default());
            (!splitter.in_thought).then_some(rest)
        })
    }

    /// Tokens after which a thought was open.
    pub fn thought_tokens(&self) -> u64 {
        self.thought_tokens
    }
}

/// The position of each token in a text: the characters that are complete before it.
#[derive(Clone, Debug)]
pub struct Places {
    tokenizer: Arc<Tokenizer>,
    characters: Detokenizer,
    /// Whether the text contains control tokens, as literals.
    specials: Specials,
    at: usize,
}

impl Places {
    /// For the result of [`Tokenizer::spell`] for a prompt.
    pub fn of_prompt(tokenizer: Arc<Tokenizer>) -> Places {
        let characters = Detokenizer::new(&tokenizer, Before::Edge);
        Places { tokenizer, characters, specials: Specials::Show, at: 0 }
    }

    /// For the result of a [`StreamDecoder`], after so many characters.
    pub fn after(tokenizer: Arc<Tokenizer>, characters: usize) -> Places {
        let at = characters;
        let characters = Detokenizer::new(&tokenizer, Before::Text);
        Places { tokenizer, characters, specials: Specials::Hide, at }
    }

    pub fn next(&mut self, id: Token) -> usize {
        let (place, mut text) = (self.at, String::new());
        self.characters.token(self.tokenizer.pieces.get(id), self.specials, &mut text);
        self.at += text.chars().count();
        place
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
