//! Text of a stream that is a whole with its prompt: as it is, and where each token begins in it.

use std::sync::Arc;

use super::Detokenizer;
use crate::engine::protocol::Token;
use crate::text::own_space::Before;
use crate::text::tokenizer::{Specials, Tokenizer};
use crate::text::vocabulary::Piece;

/// Text of a raw completion: thoughts and all, control tokens left out.
#[derive(Clone, Debug)]
pub struct PlainDecoder {
    tokenizer: Arc<Tokenizer>,
    characters: Detokenizer,
}

impl PlainDecoder {
    /// A decoder for what goes on behind other text.
    pub fn new(tokenizer: Arc<Tokenizer>) -> PlainDecoder {
        let characters = Detokenizer::new(&tokenizer, Before::Text);
        PlainDecoder { tokenizer, characters }
    }

    /// Text of one more token.
    pub fn push(&mut self, id: Token) -> String {
        let mut text = String::new();
        match self.tokenizer.pieces.get(id) {
            Piece::Bytes(bytes) => self.characters.push(bytes, &mut text),
            Piece::Special(_) => self.characters.edge(&mut text),
        }
        text
    }

    /// What was still held back. Call once, after the last token.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.characters.finish(&mut text);
        text
    }
}

/// Where each token begins in a text, in its characters: the place of the character that its first byte is of.
#[derive(Clone, Debug)]
pub struct Places {
    tokenizer: Arc<Tokenizer>,
    characters: Detokenizer,
    /// Whether control tokens are in the text, as their literals.
    specials: Specials,
    /// Characters that are complete.
    at: usize,
}

impl Places {
    /// In what [`Tokenizer::spell`] gives for a prompt.
    pub fn of_prompt(tokenizer: Arc<Tokenizer>) -> Places {
        let characters = Detokenizer::new(&tokenizer, Before::Edge);
        Places { tokenizer, characters, specials: Specials::Show, at: 0 }
    }

    /// In what [`PlainDecoder`] gives, behind so many characters.
    pub fn behind(tokenizer: Arc<Tokenizer>, characters: usize) -> Places {
        let at = characters;
        let characters = Detokenizer::new(&tokenizer, Before::Text);
        Places { tokenizer, characters, specials: Specials::Hide, at }
    }

    /// That of one more token.
    pub fn next(&mut self, id: Token) -> usize {
        let mut text = String::new();
        match self.tokenizer.pieces.get(id) {
            Piece::Bytes(bytes) => {
                let (first, rest) = bytes.split_at(bytes.len().min(1));
                self.characters.push(first, &mut text);
                self.at += text.chars().count();
                // The first byte either ended a character just now, or is of one that is still open, or was left out.
                let ended = !text.is_empty() && self.characters.held.is_empty();
                let place = if ended { self.at - 1 } else { self.at };
                text.clear();
                self.characters.push(rest, &mut text);
                self.at += text.chars().count();
                place
            }
            Piece::Special(literal) => {
                self.characters.edge(&mut text);
                self.at += text.chars().count();
                let place = self.at;
                if self.specials == Specials::Show {
                    self.at += literal.chars().count();
                }
                place
            }
        }
    }
}
