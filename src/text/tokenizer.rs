//! Text to token ids and back, from the checkpoint's `tokenizer.json`. Encoding (`encode`) equals the `tokenizers` crate's.
//! Decoding ([`super::spell`]) is a table of bytes per id, so that a stream and a whole list give the same text: the crate's
//! decoder needs a whole run of byte tokens and cannot stream.

mod bounds;
mod encode;
mod file;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, OnceLock};

use tokenizers::Tokenizer as Library;

use super::TextError;
use super::vocabulary::{LOWER_BLOCK, Pieces};
use crate::core::caught::caught;
use crate::engine::protocol::Token;
pub use encode::Halt;
use encode::Literals;
pub(super) use file::NamedToken;
use file::{GenerationConfig, OneOrMany, TokenizerConfig, load, parsed};

/// Inserted into literals of special tokens in untrusted text; never encoded itself.
pub(crate) const SHIELD: char = '\u{10FFFD}';

/// Whether control tokens such as `<|im_end|>` appear in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    Show,
    Hide,
}

pub struct Tokenizer {
    library: Library,
    /// Built on first use, as `plain_after`.
    plain: OnceLock<Library>,
    plain_after: OnceLock<Result<Library, String>>,
    neighbours: OnceLock<HashSet<(char, char)>>,
    pub(super) pieces: Arc<Pieces>,
    /// The id that every prompt starts with, if any.
    pub bos: Option<Token>,
    stops: Vec<Token>,
    specials: Vec<String>,
    pub max_id: Token,
    json: serde_json::Value,
    literals: Literals,
    /// Without special literals, which are read as text.
    plain_literals: Literals,
    /// BLAKE3 of `tokenizer.json`, hex: part of the fingerprint that kept state depends on.
    pub hash: String,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("max_id", &self.max_id).field("bos", &self.bos).finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub fn from_bytes(
        tokenizer: &[u8],
        config: Option<&[u8]>,
        generation: Option<&[u8]>,
    ) -> Result<Tokenizer, TextError> {
        let (library, json, pieces, max_id) = load(tokenizer)?;
        let config: TokenizerConfig = parsed("tokenizer_config.json", config)?;
        let generation: GenerationConfig = parsed("generation_config.json", generation)?;
        let id_of = |t: &Option<NamedToken>| t.as_ref().and_then(|t| library.token_to_id(t.text()));
        // If the config does not say, the post-processor decides whether a text starts with `<s>`.
        let add_bos = match config.add_bos_token {
            Some(say) => say,
            None => library.encode_fast("", true).map(|e| !e.get_ids().is_empty()).unwrap_or(false),
        };
        let bos = id_of(&config.bos_token).or_else(|| library.token_to_id("<s>")).filter(|_| add_bos);
        let mut stops: Vec<Token> = Vec::new();
        stops.extend(id_of(&config.eos_token));
        stops.extend(library.token_to_id("<|im_end|>"));
        match generation.eos_token_id {
            Some(OneOrMany::One(id)) => stops.push(id),
            Some(OneOrMany::Many(ids)) => stops.extend(ids),
            None => {}
        }

        let mut specials: Vec<String> = library
            .get_added_tokens_decoder()
            .into_values()
            .filter(|t| t.special && !t.content.is_empty())
            .map(|t| t.content)
            .collect();
        // Longest first: a literal wins over one that it contains.
        specials.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));

        Ok(Tokenizer {
            literals: Literals::new(&library, |_| true)?,
            plain_literals: Literals::new(&library, |token| !token.special)?,
            library,
            plain: OnceLock::new(),
            plain_after: OnceLock::new(),
            neighbours: OnceLock::new(),
            pieces: Arc::new(pieces),
            bos,
            stops,
            specials,
            max_id,
            json,
            hash: blake3::hash(tokenizer).to_hex().to_string(),
        })
    }

    /// Ids that end a turn: the model's own (`spec.eos`), the tokenizer's end token, the generation config's, `<|im_end|>`.
    pub fn stop_ids(&self, model_eos: &[Token]) -> Vec<Token> {
        let ids: BTreeSet<Token> = self.stops.iter().chain(model_eos).copied().collect();
        ids.into_iter().collect()
    }

    pub fn id(&self, literal: &str) -> Option<Token> {
        self.library.token_to_id(literal)
    }

    /// Refuses a tokenizer that could name a row the model does not have.
    pub fn check_vocabulary(&self, rows: usize) -> Result<(), TextError> {
        if (self.max_id as usize) < rows { Ok(()) } else { Err(TextError::Vocabulary { max_id: self.max_id, rows }) }
    }

    /// Defuses special literals in untrusted text: [`Tokenizer::encode_after`] then reads them as plain
    /// characters. Applied to user text and documents before rendering, so that a document cannot end its own turn.
    pub fn shield<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let touched = text.contains(SHIELD) || self.specials.iter().any(|s| text.contains(s.as_str()));
        if !touched {
            return Cow::Borrowed(text);
        }
        let mut out: String = text.chars().filter(|c| *c != SHIELD).collect();
        for literal in &self.specials {
            let mut chars = literal.chars();
            if let Some(first) = chars.next() {
                out = out.replace(literal.as_str(), &format!("{first}{SHIELD}{}", chars.as_str()));
            }
        }
        Cow::Owned(out)
    }

    /// The text of ids as the library decodes a whole text. Invalid UTF-8 is replaced by U+FFFD.
    pub fn decode(&self, ids: &[Token], specials: Specials) -> String {
        let decoded = caught(|| self.library.decode(ids, specials == Specials::Hide).ok());
        decoded.flatten().unwrap_or_default()
    }

    /// A lower bound of a text's tokens, without encoding it: its size divided by the longest token.
    pub fn least_tokens(&self, text: &str) -> usize {
        // Shields are not encoded, and a `▁` may be a space of one byte.
        let unspelled = text.matches(SHIELD).count() * SHIELD.len_utf8();
        let blocks = if self.pieces.blocks { text.matches(LOWER_BLOCK).count() * (LOWER_BLOCK.len() - 1) } else { 0 };
        (text.len() - unspelled - blocks) / self.pieces.longest.max(1)
    }

    /// Builds the other libraries in the background while the model loads, so that the first question need not wait.
    pub(super) fn prepare(self: &Arc<Self>) {
        let tokenizer = Arc::clone(self);
        let make = move || {
            // Encoding reports a tokenizer that the library fails on.
            caught(|| tokenizer.plain_after().map(drop));
        };
        // Without a thread they are built on first use.
        let _ = std::thread::Builder::new().name("tokenizer".into()).spawn(make);
    }
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
pub(super) mod tests;
