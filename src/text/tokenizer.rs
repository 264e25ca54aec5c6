//! Text to token ids and back, from the checkpoint's `tokenizer.json`. Encoding equals the `tokenizers` crate's;
//! `long` is a faster path with the same result. Decoding ([`super::spell`]) is a table of bytes per id, so that a
//! stream and a whole list give the same text: the crate's decoder needs a whole run of byte tokens and cannot
//! stream.

mod bounds;
mod file;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, Tokenizer as Library};

use super::TextError;
use super::long::{Fast, Halt, Literals, Run, Which};
use super::own_space::{Before, without_own_space};
use super::vocabulary::{LOWER_BLOCK, Pieces};
use crate::core::caught::caught;
use crate::engine::protocol::Token;
use file::{GenerationConfig, NamedToken, OneOrMany, TokenizerConfig, load, parsed};

/// Inserted into literals of special tokens in untrusted text; never encoded itself.
pub(crate) const SHIELD: char = '\u{10FFFD}';
/// Texts from this size use the fast path, if the tokenizer has one.
const LONG_BYTES: usize = 64 * 1024;

/// Whether control tokens such as `<|im_end|>` appear in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    Show,
    Hide,
}

pub struct Tokenizer {
    library: Library,
    /// Reads special literals as plain text. Built on first use.
    plain: OnceLock<Library>,
    /// As `plain`, without the tokenizer's own space in front. Built on first use.
    plain_after: OnceLock<Library>,
    pub(super) pieces: Arc<Pieces>,
    bos: Option<Token>,
    stops: Vec<Token>,
    specials: Vec<String>,
    max_id: Token,
    json: serde_json::Value,
    fast: OnceLock<Option<Fast>>,
    pub(super) literals: Option<Literals>,
    hash: String,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("max_id", &self.max_id).field("bos", &self.bos).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// From file contents: `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`.
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
        stops.sort_unstable();
        stops.dedup();

        let mut specials: Vec<String> = library
            .get_added_tokens_decoder()
            .into_values()
            .filter(|t| t.special && !t.content.is_empty())
            .map(|t| t.content)
            .collect();
        // Longest first: a literal wins over one that it contains.
        specials.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));

        let literals = Literals::new(&library, Which::All);
        Ok(Tokenizer {
            library,
            plain: OnceLock::new(),
            plain_after: OnceLock::new(),
            pieces: Arc::new(pieces),
            bos,
            stops,
            specials,
            max_id,
            json,
            fast: OnceLock::new(),
            literals,
            hash: blake3::hash(tokenizer).to_hex().to_string(),
        })
    }

    /// The id that every prompt starts with, if any.
    pub fn bos(&self) -> Option<Token> {
        self.bos
    }

    /// BLAKE3 of `tokenizer.json`, hex: part of the fingerprint that kept state depends on.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Ids that end a turn: the model's own (`spec.eos`), the tokenizer's end token, the generation config's, `<|im_end|>`.
    pub fn stop_ids(&self, model_eos: &[Token]) -> Vec<Token> {
        let mut ids = self.stops.clone();
        ids.extend_from_slice(model_eos);
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    pub fn id(&self, literal: &str) -> Option<Token> {
        self.library.token_to_id(literal)
    }

    pub fn max_id(&self) -> Token {
        self.max_id
    }

    /// Refuses a tokenizer that could name a row the model does not have.
    pub fn check_vocabulary(&self, rows: usize) -> Result<(), TextError> {
        if (self.max_id as usize) < rows { Ok(()) } else { Err(TextError::Vocabulary { max_id: self.max_id, rows }) }
    }

    /// Defuses special literals in untrusted text: [`Tokenizer::encode_with_special`] then reads them as plain
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

    /// A lower bound of a text's tokens, without encoding it: its size divided by the longest token.
    pub fn least_tokens(&self, text: &str) -> usize {
        // Shields are not encoded, and a `▁` may be a space of one byte.
        let unspelled = text.matches(SHIELD).count() * SHIELD.len_utf8();
        let blocks = if self.pieces.blocks { text.matches(LOWER_BLOCK).count() * (LOWER_BLOCK.len() - 1) } else { 0 };
        (text.len() - unspelled - blocks) / self.pieces.longest.max(1)
    }

    /// Ids of a rendered prompt, with the start token in front if the model wants one and the template did not write it.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.encode_prompt_until(text, &Halt::NEVER)
    }

    /// As [`Tokenizer::encode_prompt`], until `halt`.
    pub fn encode_prompt_until(&self, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        let mut ids = self.encode_with_special_until(text, halt)?;
        if let Some(bos) = self.bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Ids of a text in which special literals are tokens, as Hugging Face encodes a rendered template. No start token.
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.encode_with_special_until(text, &Halt::NEVER)
    }

    /// As [`Tokenizer::encode_with_special`], until `halt`.
    pub fn encode_with_special_until(&self, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        let Some(literals) = self.literals.as_ref().filter(|_| text.contains(SHIELD)) else {
            return self.encode_long(&self.library, text, halt);
        };
        let mut ids = Vec::new();
        for run in literals.runs(text) {
            let room = Halt { most: halt.most.saturating_sub(ids.len()), ..*halt };
            match run {
                Run::Literal(id) => ids.push(id),
                Run::Text(run) => ids.extend(self.encode_long(self.plain(), &run.replace(SHIELD, ""), &room)?),
            }
        }
        Ok(ids)
    }

    /// Ids of a text in which special literals are only characters.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.encode_plain_until(text, &Halt::NEVER)
    }

    /// As [`Tokenizer::encode_plain`], until `halt`.
    pub fn encode_plain_until(&self, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        self.encode_long(self.plain(), text, halt)
    }

    /// Builds the lazy tables in the background while the model loads, so that the first question need not wait.
    pub(super) fn prepare(self: &Arc<Self>) {
        let tokenizer = Arc::clone(self);
        let make = move || {
            // Encoding reports a tokenizer that the library fails on.
            caught(|| {
                tokenizer.plain();
                tokenizer.fast();
            });
        };
        // Without a thread they are built on first use.
        let _ = std::thread::Builder::new().name("tokenizer".into()).spawn(make);
    }

    fn plain(&self) -> &Library {
        self.plain.get_or_init(|| {
            let mut plain = self.library.clone();
            plain.set_encode_special_tokens(true);
            plain
        })
    }

    /// As [`Tokenizer::encode_plain`], for text that continues other text.
    pub(super) fn encode_plain_after(&self, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        let plain = self.plain();
        if let Some(fast) = self.fast() {
            return unless_it_panics(|| fast.encode(plain, text, Before::Text, halt));
        }
        let later = match self.plain_after.get() {
            Some(library) => library,
            None => {
                let made = self.without_own_space(plain)?;
                self.plain_after.get_or_init(|| made)
            }
        };
        encode_lines(later, later, text, halt)
    }

    /// The library's tokenizer, with the steps that put a space in front left out.
    fn without_own_space(&self, library: &Library) -> Result<Library, TextError> {
        let part = |name: &str| self.json.get(name).filter(|v| !v.is_null()).cloned().and_then(without_own_space);
        let bad = |e: serde_json::Error| TextError::malformed("tokenizer.json", e);
        let normalizer: Option<NormalizerWrapper> =
            part("normalizer").map(serde_json::from_value).transpose().map_err(bad)?;
        let splitter: Option<PreTokenizerWrapper> =
            part("pre_tokenizer").map(serde_json::from_value).transpose().map_err(bad)?;
        let mut library = library.clone();
        library.with_normalizer(normalizer).map_err(|e| TextError::malformed("tokenizer.json", e))?;
        library.with_pre_tokenizer(splitter);
        Ok(library)
    }

    fn fast(&self) -> Option<&Fast> {
        self.fast.get_or_init(|| Fast::new(&self.library, &self.json)).as_ref()
    }

    fn encode_long(&self, library: &Library, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        // A short text does not build the tables: the first question would wait for them.
        let fast = if text.len() < LONG_BYTES { None } else { self.fast() };
        match fast {
            Some(fast) => unless_it_panics(|| fast.encode(library, text, Before::Edge, halt)),
            None => encode_lines(library, library, text, halt),
        }
    }
}

/// The library's tokens. A long text is encoded line by line, so that encoding can stop; a cut may cost a merge.
fn encode_lines(library: &Library, later: &Library, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
    let mut ids = Vec::new();
    let (mut rest, mut first) = (text, true);
    while !rest.is_empty() {
        halt.check(ids.len())?;
        let at = rest.as_bytes().iter().skip(LONG_BYTES).position(|b| *b == b'\n').map(|at| LONG_BYTES + at + 1);
        let (piece, after) = rest.split_at(at.unwrap_or(rest.len()));
        ids.extend(encode_library(if first { library } else { later }, piece)?);
        (rest, first) = (after, false);
    }
    halt.check(ids.len())?;
    Ok(ids)
}

/// Turns a panic of the library into an error.
fn unless_it_panics<T>(work: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    caught(work).unwrap_or_else(|| Err(TextError::Encode("the library fails on it".to_owned())))
}

fn encode_library(library: &Library, text: &str) -> Result<Vec<Token>, TextError> {
    unless_it_panics(|| {
        let encoded = library.encode_fast(text, false).map_err(|e| TextError::Encode(e.to_string()))?;
        Ok(encoded.get_ids().to_vec())
    })
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
pub(super) mod tests;
