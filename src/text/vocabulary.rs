//! The bytes of every id of a vocabulary.

use std::collections::{HashMap, HashSet};

use tokenizers::Tokenizer as Library;

use super::TextError;
use super::own_space::OwnSpace;
use crate::engine::protocol::Token;

/// Larger ids only occur in damaged files.
const MAX_ID: Token = 8 << 20;
/// SentencePiece's sign for a space, which it cannot distinguish from a `▁` in the text.
pub(super) const LOWER_BLOCK: &str = "\u{2581}";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Bytes, possibly part of a character.
    Bytes(&'a [u8]),
    /// A control token and its literal.
    Special(&'a str),
}

#[derive(Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end.
    ends: Vec<u32>,
    special: HashSet<Token>,
    pub(super) longest: usize,
    /// Leading spaces that decoding a whole text removes.
    pub(super) strip_start: usize,
    /// When the tokenizer puts a space in front of a stretch of text.
    pub(super) own_space: OwnSpace,
    /// A `▁` in the text reads as a space.
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

pub(super) fn pieces(library: &Library, json: &serde_json::Value) -> Result<(Pieces, Token), TextError> {
    let (spelling, strip_start) = spelling(json)?;
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
                    None => table.bytes.extend(word.replace(LOWER_BLOCK, " ").into_bytes()),
                },
            }
        }
        let begun = table.ends.last().map_or(0, |end| *end as usize);
        table.longest = table.longest.max(table.bytes.len() - begun);
        table.ends.push(u32::try_from(table.bytes.len()).map_err(|e| TextError::malformed("tokenizer.json", e))?);
    }
    Ok((table, max_id))
}

/// `<0x0A>` is the byte 10.
pub(super) fn byte_token(word: &str) -> Option<u8> {
    let hex = word.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// How the vocabulary spells bytes, and the leading spaces that decoding removes.
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
    Err(TextError::malformed(
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
