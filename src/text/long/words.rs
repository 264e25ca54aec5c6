//! Tokenizers that split words by one pattern. Each distinct word is encoded once.

use std::collections::{HashMap, HashSet};

use fancy_regex::Regex;
use rayon::prelude::*;
use tokenizers::{Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer as Library};

use super::super::TextError;
use super::super::vocabulary::byte_alphabet;
use super::{BATCH_BYTES, Halt, LONGEST_BYTES};
use crate::engine::protocol::Token;

/// Target size of a piece.
const LINES_BYTES: usize = 128 * 1024;

pub(super) struct Words {
    pattern: Regex,
    alphabet: [char; 256],
    /// Every `\n` ends a word.
    lines: bool,
}

impl Words {
    /// Supports one form: a pattern that isolates words, then byte-level spelling.
    pub(super) fn new(library: &Library, splitter: &serde_json::Value) -> Option<Words> {
        let is = |v: &serde_json::Value, key: &str, value: serde_json::Value| v.get(key) == Some(&value);
        let [split, bytes] = splitter.get("pretokenizers")?.as_array()?.as_slice() else {
            return None;
        };
        let known = is(split, "type", "Split".into())
            && is(split, "behavior", "Isolated".into())
            && is(split, "invert", false.into())
            && is(bytes, "type", "ByteLevel".into())
            && is(bytes, "add_prefix_space", false.into())
            && is(bytes, "use_regex", false.into());
        if !known {
            return None;
        }
        let pattern = Regex::new(split.get("pattern")?.get("Regex")?.as_str()?).ok()?;
        let mut alphabet = ['\0'; 256];
        for (c, byte) in byte_alphabet() {
            if let Some(slot) = alphabet.get_mut(usize::from(byte)) {
                *slot = c;
            }
        }
        Some(Words { pattern, alphabet, lines: newline_ends_words(library) })
    }

    pub(super) fn encode(
        &self,
        library: &Library,
        run: &str,
        ids: &mut Vec<Token>,
        halt: &Halt<'_>,
    ) -> Result<(), TextError> {
        let mut pieces = Vec::new();
        let mut rest = run;
        while self.lines && rest.len() > LINES_BYTES {
            let tail = rest.as_bytes().get(LINES_BYTES..).unwrap_or(&[]);
            let Some(at) = tail.iter().position(|b| *b == b'\n') else {
                break;
            };
            let (piece, after) = rest.split_at(LINES_BYTES + at + 1);
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        for batch in pieces.chunks(BATCH_BYTES / LINES_BYTES) {
            halt.check(ids.len())?;
            let room = Halt { most: halt.most.saturating_sub(ids.len()), ..*halt };
            let encoded: Result<Vec<Vec<Token>>, TextError> =
                batch.par_iter().map(|piece| self.encode_piece(library, piece, &room)).collect();
            encoded?.iter().for_each(|piece| ids.extend_from_slice(piece));
        }
        Ok(())
    }

    fn encode_piece(&self, library: &Library, piece: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        let mut ids = Vec::new();
        // Where in `ids` a word's tokens were first written.
        let mut seen: HashMap<&str, (usize, usize)> = HashMap::new();
        let (mut from, mut checked) = (0, 0);
        for found in self.pattern.find_iter(piece) {
            let found = found.map_err(|e| TextError::Encode(e.to_string()))?;
            // Text between matches is a word, too.
            for range in [from..found.start(), found.start()..found.end()] {
                self.encode_word(library, piece.get(range).unwrap_or(""), &mut seen, &mut ids, halt)?;
            }
            from = found.end();
            if from - checked > BATCH_BYTES / 16 {
                checked = from;
                halt.check(ids.len())?;
            }
        }
        self.encode_word(library, piece.get(from..).unwrap_or(""), &mut seen, &mut ids, halt)?;
        Ok(ids)
    }

    fn encode_word<'a>(
        &self,
        library: &Library,
        word: &'a str,
        seen: &mut HashMap<&'a str, (usize, usize)>,
        ids: &mut Vec<Token>,
        halt: &Halt<'_>,
    ) -> Result<(), TextError> {
        let mut rest = word;
        while !rest.is_empty() {
            let (word, after) = rest.split_at(rest.ceil_char_boundary(LONGEST_BYTES));
            if !after.is_empty() {
                halt.check(ids.len())?;
            }
            rest = after;
            if let Some(&(start, end)) = seen.get(word) {
                ids.extend_from_within(start..end);
                continue;
            }
            let spelled: String = word.bytes().filter_map(|b| self.alphabet.get(usize::from(b))).collect();
            let tokens = library.get_model().tokenize(&spelled);
            let tokens = tokens.map_err(|e| TextError::Encode(e.to_string()))?;
            let start = ids.len();
            ids.extend(tokens.into_iter().map(|t| t.id));
            seen.insert(word, (start, ids.len()));
        }
        Ok(())
    }
}

/// Tries all neighbours of a line end that a word pattern could distinguish.
fn newline_ends_words(library: &Library) -> bool {
    const CLASSES: [&str; 13] = ["", "a", "Z", "1", ".", "'s", " ", "\t", "\r", "\n", "é", "中", "🙂"];
    let Some(splitter) = library.get_pre_tokenizer() else {
        return false;
    };
    let pairs = || CLASSES.iter().flat_map(|a| CLASSES.iter().map(move |b| format!("{a}{b}")));
    pairs().all(|before| {
        pairs().all(|after| {
            let text = format!("{before}\n{after}");
            let mut words = PreTokenizedString::from(text.as_str());
            splitter.pre_tokenize(&mut words).is_ok() && {
                let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
                let ends: HashSet<usize> = splits.iter().map(|(_, (_, end), _)| *end).collect();
                text.match_indices('\n').all(|(at, _)| ends.contains(&(at + 1)))
            }
        })
    })
}
