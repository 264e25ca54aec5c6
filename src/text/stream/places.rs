//! Where each token of a raw completion begins in its text.

use std::sync::Arc;

use super::Detokenizer;
use crate::engine::protocol::Token;
use crate::text::own_space::Before;
use crate::text::tokenizer::{Specials, Tokenizer};
use crate::text::vocabulary::Piece;

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

    /// For the result of a [`super::StreamDecoder`], after so many characters.
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
