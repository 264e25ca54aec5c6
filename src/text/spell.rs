//! From ids back to the exact text that they encode. SentencePiece adds a space in front of every stretch of text
//! between special tokens, and its decoder removes one from the whole text; so decoding a slice of tokens does not
//! give the text of that slice. Here each token is spelled raw (`▁` is a space, a byte token is its byte), without
//! the spaces that the tokenizer added. Invariant: tokens encoded from a text spell that text.

use super::own_space::{Before, OwnSpace};
use super::stream::Detokenizer;
use super::tokenizer::{SHIELD, Specials, Tokenizer};
use super::vocabulary::{LOWER_BLOCK, Piece};
use crate::engine::protocol::Token;

/// Compares tokens with a text and counts how much of it they spell.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    tokenizer: &'a Tokenizer,
    text: &'a str,
    at: usize,
    before: Before,
}

impl<'a> Walk<'a> {
    pub fn new(tokenizer: &'a Tokenizer, text: &'a str, before: Before) -> Walk<'a> {
        Walk { tokenizer, text, at: 0, before }
    }

    /// Adds a token; false if it does not spell the next characters, which ends the walk.
    pub fn step(&mut self, token: Token) -> bool {
        match self.tokenizer.pieces.get(token) {
            Piece::Special(literal) => {
                self.before = Before::Edge;
                // A shielded literal is text, not this token.
                let met = self.rest().starts_with(literal.as_bytes());
                self.at += literal.len();
                met
            }
            Piece::Bytes(bytes) => {
                let mut bytes: &[u8] = bytes;
                if std::mem::replace(&mut self.before, Before::Text) == Before::Edge && self.own_space_here() {
                    bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
                }
                bytes.iter().all(|b| self.byte(*b))
            }
        }
    }

    /// Bytes of the text spelled so far; `None` inside a character.
    pub fn place(&self) -> Option<usize> {
        self.text.is_char_boundary(self.at).then_some(self.at)
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or(&[])
    }

    fn own_space_here(&self) -> bool {
        match self.tokenizer.pieces.own_space {
            OwnSpace::None => false,
            OwnSpace::Always => true,
            OwnSpace::UnlessSpace => !self.rest().starts_with(b" "),
        }
    }

    fn byte(&mut self, byte: u8) -> bool {
        let mut shield = [0; 4];
        let shield = SHIELD.encode_utf8(&mut shield).as_bytes();
        if self.rest().starts_with(shield) && self.text.is_char_boundary(self.at) {
            self.at += shield.len();
        }
        let rest = self.rest();
        if rest.first() == Some(&byte) {
            self.at += 1;
            return true;
        }
        let block = byte == b' ' && self.tokenizer.pieces.blocks && rest.starts_with(LOWER_BLOCK.as_bytes());
        self.at += if block { LOWER_BLOCK.len() } else { 0 };
        block
    }
}

impl Tokenizer {
    /// What precedes the token after these; `before` is what precedes them.
    pub fn before_next(&self, tokens: &[Token], before: Before) -> Before {
        match tokens.last().map(|id| self.pieces.get(*id)) {
            None => before,
            Some(Piece::Special(_)) => Before::Edge,
            Some(Piece::Bytes(_)) => Before::Text,
        }
    }

    /// The text that these tokens encode, special tokens as their literals. Invalid UTF-8 is replaced by U+FFFD.
    pub fn spell(&self, tokens: &[Token], before: Before) -> String {
        let (mut decoder, mut out) = (Detokenizer::new(self, before), String::new());
        tokens.iter().for_each(|id| decoder.token(self.pieces.get(*id), Specials::Show, &mut out));
        decoder.finish(&mut out);
        out
    }

    /// The bytes of one token, perhaps part of a character. A special token adds its literal.
    pub fn bytes(&self, token: Token) -> &[u8] {
        self.pieces.get(token).bytes()
    }

    /// As [`Tokenizer::spell`], with the text of plain tokens shielded: encoding the result gives these tokens again,
    /// even if plain tokens spell a special literal.
    pub fn spell_shielded(&self, tokens: &[Token], before: Before) -> String {
        let special = |id: &Token| matches!(self.pieces.get(*id), Piece::Special(_));
        let (mut out, mut before) = (String::new(), before);
        for run in tokens.chunk_by(|a, b| special(a) == special(b)) {
            let spelled = self.spell(run, before);
            match run.first().is_some_and(special) {
                true => out.push_str(&spelled),
                false => out.push_str(&self.shield(&spelled)),
            }
            before = self.before_next(run, before);
        }
        out
    }
}

#[cfg(test)]
#[path = "spell_tests.rs"]
mod tests;
