//! Text of a raw completion, and where each token begins in it.

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
    /// A decoder for tokens that follow other text.
    pub fn new(tokenizer: Arc<Tokenizer>) -> PlainDecoder {
        let characters = Detokenizer::new(&tokenizer, Before::Text);
        PlainDecoder { tokenizer, characters }
    }

    pub fn push(&mut self, id: Token) -> String {
        let mut text = String::new();
        match self.tokenizer.pieces.get(id) {
            Piece::Bytes(bytes) => self.characters.push(bytes, &mut text),
            Piece::Special(_) => self.characters.edge(&mut text),
        }
        text
    }

    /// Text still held back. Call once, after the last token.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.characters.finish(&mut text);
        text
    }
}

/// The position of each token in a text, in characters: that of the character that its first byte belongs to.
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

    /// For the result of [`PlainDecoder`], after so many characters.
    pub fn after(tokenizer: Arc<Tokenizer>, characters: usize) -> Places {
        let at = characters;
        let characters = Detokenizer::new(&tokenizer, Before::Text);
        Places { tokenizer, characters, specials: Specials::Hide, at }
    }

    pub fn next(&mut self, id: Token) -> usize {
        let mut text = String::new();
        match self.tokenizer.pieces.get(id) {
            Piece::Bytes(bytes) => {
                let (first, rest) = bytes.split_at(bytes.len().min(1));
                self.characters.push(first, &mut text);
                self.at += text.chars().count();
                // The first byte ended a character, belongs to an incomplete one, or was omitted.
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
