//! The bytes of every id of a vocabulary.

use std::collections::{HashMap, HashSet};

use tokenizers::Tokenizer as Library;

use super::TextError;
use super::own_space::{OwnSpace, kind, steps};
use crate::engine::protocol::Token;

/// Larger ids only occur in damaged files.
const MAX_ID: Token = 8 << 20;
/// SentencePiece's sign for a space, which it cannot distinguish from a `▁` in the text.
pub(super) const LOWER_BLOCK: &str = "\u{2581}";

#[derive(Debug)]
pub(super) enum Piece {
    /// Bytes, possibly part of a character.
    Bytes(Vec<u8>),
    /// A control token and its literal.
    Special(String),
}

#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// By id.
    pieces: Vec<Piece>,
    pub(super) longest: usize,
    /// When the tokenizer puts a space in front of a stretch of text.
    pub(super) own_space: OwnSpace,
    /// A `▁` in the text reads as a space.
    pub(super) blocks: bool,
}

impl Piece {
    /// A special token has the bytes of its literal.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Special(literal) => literal.as_bytes(),
        }
    }
}

impl Pieces {
    /// What `id` contributes; an id outside the vocabulary contributes nothing.
    pub(super) fn get(&self, id: Token) -> &Piece {
        static NOTHING: Piece = Piece::Bytes(Vec::new());
        self.pieces.get(id as usize).unwrap_or(&NOTHING)
    }

    /// All neighbours within a token. Two other characters are never in one token.
    pub(super) fn neighbours(&self) -> HashSet<(char, char)> {
        let texts = self.pieces.iter().map(|piece| String::from_utf8_lossy(piece.bytes()));
        texts.flat_map(|text| text.chars().zip(text.chars().skip(1)).collect::<Vec<_>>()).collect()
    }
}

pub(super) fn pieces(library: &Library, json: &serde_json::Value) -> Result<(Pieces, Token), TextError> {
    let blocks = is_sentencepiece(json)?;
    let added = library.get_added_tokens_decoder();
    let vocabulary = library.get_vocab(true);
    let max_id =
        vocabulary.values().copied().max().ok_or_else(|| TextError::malformed("tokenizer.json", "empty vocabulary"))?;
    if max_id > MAX_ID {
        return Err(TextError::malformed("tokenizer.json", format!("token id {max_id} is above {MAX_ID}")));
    }
    let mut words: Vec<&str> = vec![""; max_id as usize + 1];
    for (word, &id) in &vocabulary {
        if let Some(slot) = words.get_mut(id as usize) {
            *slot = word;
        }
    }
    // GPT-2's printable characters and the bytes they stand for.
    let is_printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let own = (0..=u8::MAX).filter(is_printable).map(|b| (char::from(b), b));
    let moved = (0..=u8::MAX).filter(|b| !is_printable(b)).zip('\u{100}'..).map(|(b, c)| (c, b));
    let alphabet: HashMap<char, u8> = own.chain(moved).collect();
    let mut table = Pieces { own_space: OwnSpace::of(json), blocks, ..Pieces::default() };
    for (id, word) in (0..=max_id).zip(words) {
        let bytes = || match blocks {
            true => byte_token(word).map_or_else(|| word.replace(LOWER_BLOCK, " ").into_bytes(), |byte| vec![byte]),
            false => {
                let bytes: Option<Vec<u8>> = word.chars().map(|c| alphabet.get(&c).copied()).collect();
                bytes.unwrap_or_else(|| word.as_bytes().to_vec())
            }
        };
        let piece = match added.get(&id) {
            Some(token) if token.special => Piece::Special(token.content.clone()),
            Some(token) => Piece::Bytes(token.content.clone().into_bytes()),
            None => Piece::Bytes(bytes()),
        };
        table.longest = table.longest.max(piece.bytes().len());
        table.pieces.push(piece);
    }
    Ok((table, max_id))
}

/// `<0x0A>` is the byte 10.
fn byte_token(word: &str) -> Option<u8> {
    let hex = word.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// Whether a vocabulary writes `▁` for a space and `<0x0A>` for a byte; else it has GPT-2's stand-ins for bytes.
fn is_sentencepiece(json: &serde_json::Value) -> Result<bool, TextError> {
    let kinds: Vec<&str> = steps(json, "decoder", "decoders").iter().map(kind).collect();
    match kinds.as_slice() {
        kinds if kinds.contains(&"ByteLevel") => Ok(false),
        kinds if kinds.contains(&"ByteFallback") || kinds.contains(&"Metaspace") => Ok(true),
        kinds => {
            let reason = format!("decoder `{}` is not supported (byte level or byte fallback is)", kinds.join(", "));
            Err(TextError::malformed("tokenizer.json", reason))
        }
    }
}
