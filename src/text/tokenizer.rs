//! Characters to token ids and back, from the checkpoint's `tokenizer.json`.
//!
//! Encoding is the `tokenizers` crate's, token for token; long texts go a faster way that gives the same. Decoding is a
//! table of bytes per id, so that a stream and a whole list give the same text (the crate's decoder looks at a whole run of
//! byte tokens at once and cannot be streamed). Valid UTF-8 decodes as the crate does it. What a slice of tokens stands for
//! in the text it was made of is another question: see [`super::spell`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, Tokenizer as Library};

use super::caught::caught;
use super::long::{Fast, Halt, Literals, Run, Which};
use super::spell::{Before, LOWER_BLOCK, OwnSpace, without_own_space};
use super::stream::Detokenizer;
use super::{TextError, untrusted};
use crate::protocol::engine::Token;

/// Put into the literals of special tokens that occur in untrusted text; never encoded itself.
pub(crate) const SHIELD: char = '\u{10FFFD}';
/// Texts from this many bytes go the fast way, if the tokenizer has one.
const LONG_BYTES: usize = 64 * 1024;
/// No vocabulary is this large; a damaged file may say so.
const MAX_ID: Token = 8 << 20;

/// Whether control tokens such as `<|im_end|>` appear in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// As their literal.
    Show,
    /// Left out.
    Hide,
}

/// What one id contributes to a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Bytes, possibly part of a character.
    Bytes(&'a [u8]),
    /// A control token and its literal.
    Special(&'a str),
}

/// Bytes of every id.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end.
    ends: Vec<u32>,
    special: HashSet<Token>,
    /// Bytes of the longest one.
    longest: usize,
    /// Leading spaces that a whole text loses when it is decoded (SentencePiece puts one in front of every text).
    pub(super) strip_start: usize,
    /// When the tokenizer puts a space in front of a stretch of text.
    pub(super) own_space: OwnSpace,
    /// A space is written `▁`, so a `▁` of the text reads as one.
    pub(super) blocks: bool,
}

impl Pieces {
    /// What `id` contributes; an id outside the vocabulary contributes nothing.
    pub(super) fn get(&self, id: Token) -> Piece<'_> {
        let i = id as usize;
        let Some(&end) = self.ends.get(i) else {
            return Piece::Bytes(&[]);
        };
        let start = i.checked_sub(1).and_then(|p| self.ends.get(p)).copied().unwrap_or(0);
        let bytes = self.bytes.get(start as usize..end as usize).unwrap_or(&[]);
        match std::str::from_utf8(bytes) {
            Ok(literal) if self.special.contains(&id) => Piece::Special(literal),
            _ => Piece::Bytes(bytes),
        }
    }
}

/// How a vocabulary writes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// GPT-2's printable stand-ins for bytes.
    ByteLevel,
    /// `▁` for a space, `<0x0A>` for a byte.
    SentencePiece,
}

/// See the module.
pub struct Tokenizer {
    library: Library,
    /// The same, reading special literals as plain text. Made when first needed.
    plain: OnceLock<Library>,
    /// That one without a space of its own in front.
    plain_behind: OnceLock<Library>,
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

/// A token of `tokenizer_config.json`: its text, or an object that holds it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum NamedToken {
    Text(String),
    Object { content: String },
}

impl NamedToken {
    fn text(&self) -> &str {
        match self {
            NamedToken::Text(t) | NamedToken::Object { content: t } => t,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    add_bos_token: Option<bool>,
    bos_token: Option<NamedToken>,
    eos_token: Option<NamedToken>,
}

#[derive(Debug, Default, Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<OneOrMany>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(Token),
    Many(Vec<Token>),
}

/// The parts of `tokenizer.json` that say how text is prepared, without the vocabulary.
fn outline(mut json: serde_json::Value) -> serde_json::Value {
    if let Some(model) = json.get_mut("model").and_then(|m| m.as_object_mut()) {
        model.remove("vocab");
        model.remove("merges");
    }
    json
}

/// What loading takes: a second for a hundred thousand merges, unoptimised.
const PATIENCE: Duration = Duration::from_secs(60);
/// Encoded once while loading: what a tokenizer fails on or never ends with, it does here.
const PROBE: &str =
    "<|im_start|>user\n Hello, world! 123\t456\r\n  na\u{EF}ve \u{4F60}\u{597D} \u{1F642} it's x_y\0 END";

/// Tokenizer files are regular expressions, tables and settings of somebody else's making: they are read in one place.
fn load(tokenizer: &[u8]) -> Result<(Library, serde_json::Value, Pieces, Token), TextError> {
    let bytes = tokenizer.to_vec();
    let loaded = untrusted::run(PATIENCE, &|| false, move || {
        let mut library = Library::from_bytes(&bytes).map_err(|e| malformed("tokenizer.json", e))?;
        let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| malformed("tokenizer.json", e))?;
        // Nothing may be cut off a text or filled up to a length that the file names.
        library.with_truncation(None).map_err(|e| malformed("tokenizer.json", e))?;
        library.with_padding(None);
        library.encode_fast(PROBE, false).map_err(|e| malformed("tokenizer.json", e))?;
        let (pieces, max_id) = pieces(&library, &json)?;
        Ok((library, json, pieces, max_id))
    });
    loaded.unwrap_or_else(|e| Err(malformed("tokenizer.json", e)))
}

fn malformed(file: &str, reason: impl ToString) -> TextError {
    TextError::Malformed { file: file.to_owned(), reason: reason.to_string() }
}

impl Tokenizer {
    /// From file contents: `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`.
    ///
    /// # Errors
    /// Contents that do not parse, or a decoder this program does not know.
    pub fn from_bytes(
        tokenizer: &[u8],
        config: Option<&[u8]>,
        generation: Option<&[u8]>,
    ) -> Result<Tokenizer, TextError> {
        let (library, json, pieces, max_id) = load(tokenizer)?;
        let config: TokenizerConfig = match config {
            Some(bytes) => serde_json::from_slice(bytes).map_err(|e| malformed("tokenizer_config.json", e))?,
            None => TokenizerConfig::default(),
        };
        let generation: GenerationConfig = match generation {
            Some(bytes) => serde_json::from_slice(bytes).map_err(|e| malformed("generation_config.json", e))?,
            None => GenerationConfig::default(),
        };
        let id_of = |t: &Option<NamedToken>| t.as_ref().and_then(|t| library.token_to_id(t.text()));
        // Without a word in the config, the post-processor says whether a text starts with `<s>`.
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
        // Longest first: a literal that contains another one wins.
        specials.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));

        let literals = Literals::new(&library, Which::All);
        Ok(Tokenizer {
            library,
            plain: OnceLock::new(),
            plain_behind: OnceLock::new(),
            pieces: Arc::new(pieces),
            bos,
            stops,
            specials,
            max_id,
            json: outline(json),
            fast: OnceLock::new(),
            literals,
            hash: blake3::hash(tokenizer).to_hex().to_string(),
        })
    }

    /// The id every prompt starts with, if this model wants one.
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

    /// The id of a literal such as `<|im_start|>`.
    pub fn id(&self, literal: &str) -> Option<Token> {
        self.library.token_to_id(literal)
    }

    /// Largest id of the vocabulary.
    pub fn max_id(&self) -> Token {
        self.max_id
    }

    /// Refuses a tokenizer that could name a row the model does not have.
    ///
    /// # Errors
    /// [`TextError::Vocabulary`].
    pub fn check_vocabulary(&self, rows: usize) -> Result<(), TextError> {
        if (self.max_id as usize) < rows { Ok(()) } else { Err(TextError::Vocabulary { max_id: self.max_id, rows }) }
    }

    /// Makes the special literals in text of others harmless: [`Tokenizer::encode_with_special`] then reads them as plain
    /// characters. For user text and documents before they are rendered; a document cannot end its own turn.
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

    /// Tokens that a text has at least, found without encoding it: no token spells more bytes than the longest.
    pub fn least_tokens(&self, text: &str) -> usize {
        // What no token spells, and a `▁`, which may be a space of one byte.
        let unspelled = text.matches(SHIELD).count() * SHIELD.len_utf8();
        let blocks = if self.pieces.blocks { text.matches(LOWER_BLOCK).count() * (LOWER_BLOCK.len() - 1) } else { 0 };
        (text.len() - unspelled - blocks) / self.pieces.longest.max(1)
    }

    /// Ids of a rendered prompt, with the start token in front if the model wants one and the template did not write it.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.encode_prompt_until(text, &Halt::NEVER)
    }

    /// As [`Tokenizer::encode_prompt`], unless it is given up.
    ///
    /// # Errors
    /// [`TextError::Encode`], [`TextError::Stopped`], [`TextError::TooLong`].
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
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.encode_with_special_until(text, &Halt::NEVER)
    }

    /// As [`Tokenizer::encode_with_special`], unless it is given up.
    ///
    /// # Errors
    /// [`TextError::Encode`], [`TextError::Stopped`], [`TextError::TooLong`].
    pub fn encode_with_special_until(&self, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        if !text.contains(SHIELD) {
            return self.encode_long(&self.library, text, halt);
        }
        let Some(literals) = &self.literals else {
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
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.encode_plain_until(text, &Halt::NEVER)
    }

    /// As [`Tokenizer::encode_plain`], unless it is given up.
    ///
    /// # Errors
    /// [`TextError::Encode`], [`TextError::Stopped`], [`TextError::TooLong`].
    pub fn encode_plain_until(&self, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        self.encode_long(self.plain(), text, halt)
    }

    fn plain(&self) -> &Library {
        self.plain.get_or_init(|| {
            let mut plain = self.library.clone();
            plain.set_encode_special_tokens(true);
            plain
        })
    }

    /// As [`Tokenizer::encode_plain`], for a text that goes on behind other text.
    pub(super) fn encode_plain_behind(&self, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        let plain = self.plain();
        if let Some(fast) = self.fast() {
            return unless_it_panics(|| fast.encode(plain, text, Before::Text, halt));
        }
        let behind = match self.plain_behind.get() {
            Some(library) => library,
            None => {
                let made = self.without_own_space(plain)?;
                self.plain_behind.get_or_init(|| made)
            }
        };
        encode_lines(behind, behind, text, halt)
    }

    /// The library's tokenizer, with the steps that put a space in front left out.
    fn without_own_space(&self, library: &Library) -> Result<Library, TextError> {
        let part = |name: &str| self.json.get(name).filter(|v| !v.is_null()).cloned().and_then(without_own_space);
        let bad = |e: serde_json::Error| malformed("tokenizer.json", e);
        let normalizer: Option<NormalizerWrapper> =
            part("normalizer").map(serde_json::from_value).transpose().map_err(bad)?;
        let splitter: Option<PreTokenizerWrapper> =
            part("pre_tokenizer").map(serde_json::from_value).transpose().map_err(bad)?;
        let mut library = library.clone();
        library.with_normalizer(normalizer).map_err(|e| malformed("tokenizer.json", e))?;
        library.with_pre_tokenizer(splitter);
        Ok(library)
    }

    fn fast(&self) -> Option<&Fast> {
        self.fast.get_or_init(|| Fast::new(&self.library, &self.json)).as_ref()
    }

    /// The text of some ids as the library decodes a whole text. Bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[Token], specials: Specials) -> String {
        let mut decoder = Detokenizer::of_whole(self);
        let mut out = String::new();
        for &id in ids {
            match self.pieces.get(id) {
                Piece::Bytes(bytes) => decoder.push(bytes, &mut out),
                Piece::Special(literal) => {
                    decoder.finish(&mut out);
                    if specials == Specials::Show {
                        out.push_str(literal);
                    }
                }
            }
        }
        decoder.finish(&mut out);
        out
    }

    fn encode_long(&self, library: &Library, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        match self.fast().filter(|_| text.len() >= LONG_BYTES) {
            Some(fast) => unless_it_panics(|| fast.encode(library, text, Before::Edge, halt)),
            None => encode_lines(library, library, text, halt),
        }
    }
}

/// The library's tokens, line by line where a text is long and the tokenizer has no faster way: a cut at a line end may then
/// cost a merge, and nothing else is known to be stoppable.
fn encode_lines(library: &Library, behind: &Library, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
    let mut ids = Vec::new();
    let (mut rest, mut first) = (text, true);
    while !rest.is_empty() {
        halt.check(ids.len())?;
        let at = rest.as_bytes().iter().skip(LONG_BYTES).position(|b| *b == b'\n').map(|at| LONG_BYTES + at + 1);
        let (piece, after) = rest.split_at(at.unwrap_or(rest.len()));
        ids.extend(encode_library(if first { library } else { behind }, piece)?);
        (rest, first) = (after, false);
    }
    halt.check(ids.len())?;
    Ok(ids)
}

/// A tokenizer that panics on a text has failed to encode it.
fn unless_it_panics<T>(work: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    caught(work).unwrap_or_else(|| Err(TextError::Encode("the library fails on it".to_owned())))
}

fn encode_library(library: &Library, text: &str) -> Result<Vec<Token>, TextError> {
    unless_it_panics(|| {
        let encoded = library.encode_fast(text, false).map_err(|e| TextError::Encode(e.to_string()))?;
        Ok(encoded.get_ids().to_vec())
    })
}

/// The bytes of every id, and the largest id.
fn pieces(library: &Library, json: &serde_json::Value) -> Result<(Pieces, Token), TextError> {
    let (spelling, strip_start) = spelling(json)?;
    let added = library.get_added_tokens_decoder();
    let vocabulary = library.get_vocab(true);
    let max_id = vocabulary.values().copied().max().ok_or_else(|| malformed("tokenizer.json", "empty vocabulary"))?;
    if max_id > MAX_ID {
        return Err(malformed("tokenizer.json", format!("token id {max_id} is above {MAX_ID}")));
    }
    let mut words: Vec<&str> = vec![""; max_id as usize + 1];
    for (word, &id) in &vocabulary {
        if let Some(slot) = words.get_mut(id as usize) {
            *slot = word;
        }
    }
    let alphabet = byte_alphabet();
    let blocks = spelling == Spelling::SentencePiece;
    let mut table = Pieces { strip_start, own_space: OwnSpace::of(json), blocks, ..Pieces::default() };
    for (id, word) in (0..=max_id).zip(words) {
        if let Some(token) = added.get(&id) {
            table.bytes.extend_from_slice(token.content.as_bytes());
            if token.special {
                table.special.insert(id);
            }
        } else {
            match spelling {
                Spelling::ByteLevel => {
                    let bytes: Option<Vec<u8>> = word.chars().map(|c| alphabet.get(&c).copied()).collect();
                    table.bytes.extend(bytes.unwrap_or_else(|| word.as_bytes().to_vec()));
                }
                Spelling::SentencePiece => match byte_token(word) {
                    Some(byte) => table.bytes.push(byte),
                    None => table.bytes.extend(word.replace('\u{2581}', " ").into_bytes()),
                },
            }
        }
        let begun = table.ends.last().map_or(0, |end| *end as usize);
        table.longest = table.longest.max(table.bytes.len() - begun);
        table.ends.push(u32::try_from(table.bytes.len()).map_err(|e| malformed("tokenizer.json", e))?);
    }
    Ok((table, max_id))
}

/// `<0x0A>` is the byte 10.
pub(super) fn byte_token(word: &str) -> Option<u8> {
    let hex = word.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// How the vocabulary spells bytes, and how many leading spaces a decoded text loses.
fn spelling(json: &serde_json::Value) -> Result<(Spelling, usize), TextError> {
    let decoder = json.get("decoder").unwrap_or(&serde_json::Value::Null);
    let kind = |v: &serde_json::Value| v.get("type").and_then(|t| t.as_str()).unwrap_or("none").to_owned();
    let parts = match decoder.get("decoders").and_then(|d| d.as_array()) {
        Some(parts) => parts.as_slice(),
        None => std::slice::from_ref(decoder),
    };
    let kinds: Vec<String> = parts.iter().map(kind).collect();
    if kinds.iter().any(|k| k == "ByteLevel") {
        return Ok((Spelling::ByteLevel, 0));
    }
    if kinds.iter().any(|k| k == "ByteFallback" || k == "Metaspace") {
        let strip = parts.iter().map(|p| match kind(p).as_str() {
            "Strip" => p.get("start").and_then(|n| n.as_u64()).unwrap_or(0),
            "Metaspace" => u64::from(p.get("prepend_scheme").and_then(|s| s.as_str()) != Some("never")),
            _ => 0,
        });
        return Ok((Spelling::SentencePiece, usize::try_from(strip.sum::<u64>()).unwrap_or(0)));
    }
    Err(malformed(
        "tokenizer.json",
        format!("decoder `{}` is not supported (byte level or byte fallback is)", kinds.join(", ")),
    ))
}

/// GPT-2's printable characters and the bytes they stand for.
pub(super) fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 256u32;
    (0..=255u8)
        .filter_map(|b| {
            let code = if printable(b) {
                u32::from(b)
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).map(|c| (c, b))
        })
        .collect()
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
pub(super) mod tests;
