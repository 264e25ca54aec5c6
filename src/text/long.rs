//! Encoding long texts in pieces, only where that provably gives the same tokens.
//!
//! Two kinds of tokenizer allow it. Where a regular expression splits words and always ends a word at a line end, a text
//! may be cut after any `\n`. Where merges run over the whole text (SentencePiece), it may be cut between two characters
//! that no token of the vocabulary holds next to each other: every merge makes a token of the vocabulary, so none crosses.
//! Everything else is encoded whole.

use std::collections::HashSet;

use rayon::prelude::*;
use tokenizers::{
    Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer as Library,
};

use super::TextError;
use super::tokenizer::byte_token;
use crate::protocol::engine::Token;

/// Aim of a piece where words are split first.
const LINES_BYTES: usize = 64 * 1024;
/// Aim of a piece where merges run over all of it: merging is fastest while it stays in the cache.
const MERGE_BYTES: usize = 4 * 1024;

/// How a tokenizer's input may be cut.
pub(super) enum Cutter {
    /// Not known to be safe anywhere.
    Never,
    /// See [`AfterNewline`].
    AfterNewline(AfterNewline),
    /// See [`Bigrams`].
    Bigrams(Bigrams),
}

/// Every `\n` ends a word.
pub(super) struct AfterNewline;

/// Merges run over the whole text.
pub(super) struct Bigrams {
    /// Pairs of characters that stand next to each other in some token.
    joined: HashSet<(char, char)>,
    /// Characters that are tokens of their own; others fall back to bytes.
    known: HashSet<char>,
    /// Literals of added tokens, longest first.
    literals: Vec<(String, Token)>,
    /// Put in front of every run of text between added tokens.
    prepend: String,
    /// Replaced everywhere: from, to.
    replace: Option<(String, String)>,
}

impl Cutter {
    /// Looks at what the tokenizer does to a text; `outline` is `tokenizer.json` without its vocabulary.
    pub(super) fn new(library: &Library, outline: &serde_json::Value) -> Cutter {
        // Added tokens with these properties look at their surroundings.
        let plain = library.get_added_tokens_decoder().into_values().all(|t| {
            !t.lstrip && !t.rstrip && !t.single_word && !t.normalized && !t.content.contains('\n')
        });
        let truncates = library.get_truncation().is_some() || library.get_padding().is_some();
        if !plain || truncates {
            return Cutter::Never;
        }
        let field = |name: &str| outline.get(name).filter(|v| !v.is_null());
        if field("pre_tokenizer").is_some() {
            let ends_lines = field("normalizer").is_none() && newline_ends_words(library);
            return if ends_lines {
                Cutter::AfterNewline(AfterNewline)
            } else {
                Cutter::Never
            };
        }
        let bpe = outline
            .get("model")
            .filter(|m| m.get("type").and_then(|t| t.as_str()) == Some("BPE"));
        let whole = bpe.is_some_and(|m| {
            ["dropout", "continuing_subword_prefix", "end_of_word_suffix"]
                .iter()
                .all(|k| {
                    m.get(*k)
                        .is_none_or(|v| v.is_null() || v.as_str() == Some(""))
                })
        });
        match (
            whole,
            field("normalizer").map_or(Some((String::new(), None)), prepend_replace),
        ) {
            (true, Some((prepend, replace))) => {
                Cutter::Bigrams(Bigrams::new(library, prepend, replace))
            }
            _ => Cutter::Never,
        }
    }
}

/// Tries every surrounding of a line end that a word pattern could tell apart.
fn newline_ends_words(library: &Library) -> bool {
    const CLASSES: [&str; 13] = [
        "", "a", "Z", "1", ".", "'s", " ", "\t", "\r", "\n", "é", "中", "🙂",
    ];
    let Some(splitter) = library.get_pre_tokenizer() else {
        return false;
    };
    let pairs = || {
        CLASSES
            .iter()
            .flat_map(|a| CLASSES.iter().map(move |b| format!("{a}{b}")))
    };
    pairs().all(|before| {
        pairs().all(|after| {
            let text = format!("{before}\n{after}");
            let mut words = PreTokenizedString::from(text.as_str());
            splitter.pre_tokenize(&mut words).is_ok() && {
                let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
                let ends: HashSet<usize> = splits.iter().map(|(_, (_, end), _)| *end).collect();
                text.match_indices('\n')
                    .all(|(at, _)| ends.contains(&(at + 1)))
            }
        })
    })
}

/// The normaliser of SentencePiece models: a prefix, and one literal replacement.
fn prepend_replace(normalizer: &serde_json::Value) -> Option<(String, Option<(String, String)>)> {
    let steps = match normalizer.get("normalizers").and_then(|n| n.as_array()) {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(normalizer),
    };
    let text =
        |v: &serde_json::Value, key: &str| v.get(key).and_then(|s| s.as_str()).map(str::to_owned);
    let (mut prepend, mut replace) = (String::new(), None);
    for step in steps {
        match step.get("type")?.as_str()? {
            // The prefix must not be touched by a replacement before it.
            "Prepend" if replace.is_none() && prepend.is_empty() => {
                prepend = text(step, "prepend")?
            }
            "Replace" if replace.is_none() => {
                replace = Some((
                    text(step.get("pattern")?, "String")?,
                    text(step, "content")?,
                ));
            }
            _ => return None,
        }
    }
    Some((prepend, replace))
}

impl AfterNewline {
    pub(super) fn encode(&self, library: &Library, text: &str) -> Result<Vec<Token>, TextError> {
        let mut pieces = Vec::with_capacity(text.len() / LINES_BYTES + 1);
        let mut rest = text;
        while rest.len() > LINES_BYTES {
            let tail = rest.as_bytes().get(LINES_BYTES..).unwrap_or(&[]);
            let Some(at) = tail.iter().position(|b| *b == b'\n') else {
                break;
            };
            let (piece, after) = rest.split_at(LINES_BYTES + at + 1);
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        let ids: Result<Vec<Vec<Token>>, TextError> = pieces
            .par_iter()
            .map(|piece| {
                library
                    .encode_fast(*piece, false)
                    .map(|e| e.get_ids().to_vec())
                    .map_err(|e| TextError::Encode(e.to_string()))
            })
            .collect();
        Ok(ids?.concat())
    }
}

impl Bigrams {
    fn new(library: &Library, prepend: String, replace: Option<(String, String)>) -> Bigrams {
        let mut joined = HashSet::new();
        let mut known = HashSet::new();
        for word in library.get_vocab(false).keys() {
            let mut chars = word.chars();
            let Some(mut last) = chars.next() else {
                continue;
            };
            if chars.as_str().is_empty() {
                known.insert(last);
            }
            if byte_token(word).is_some() {
                continue;
            }
            for c in chars {
                joined.insert((last, c));
                last = c;
            }
        }
        let mut literals: Vec<(String, Token)> = library
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, t)| (t.content, id))
            .collect();
        literals.retain(|(l, _)| !l.is_empty());
        literals.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        Bigrams {
            joined,
            known,
            literals,
            prepend,
            replace,
        }
    }

    pub(super) fn encode(&self, library: &Library, text: &str) -> Result<Vec<Token>, TextError> {
        let literal_is_token = !library.get_encode_special_tokens();
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut rest = text;
        while !rest.is_empty() {
            let next = self
                .literals
                .iter()
                .filter(|(l, _)| {
                    literal_is_token || !library.get_added_vocabulary().is_special_token(l)
                })
                .filter_map(|(l, id)| rest.find(l.as_str()).map(|at| (at, l.len(), *id)))
                .min_by_key(|(at, len, _)| (*at, std::cmp::Reverse(*len)));
            let (at, len, id) = match next {
                Some((at, len, id)) => (at, len, Some(id)),
                None => (rest.len(), 0, None),
            };
            let (run, after) = rest.split_at(at);
            if !run.is_empty() {
                self.encode_run(library, run, &mut ids)?;
            }
            ids.extend(id);
            rest = after.get(len..).unwrap_or("");
        }
        Ok(ids)
    }

    /// Text between two added tokens.
    fn encode_run(
        &self,
        library: &Library,
        run: &str,
        ids: &mut Vec<Token>,
    ) -> Result<(), TextError> {
        let mut text = format!("{}{run}", self.prepend);
        if let Some((from, to)) = &self.replace {
            text = text.replace(from.as_str(), to);
        }
        let mut pieces = Vec::with_capacity(text.len() / MERGE_BYTES + 1);
        let mut rest = text.as_str();
        while let Some(at) = self.cut(rest) {
            let (piece, after) = rest.split_at(at);
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        let model = library.get_model();
        let encoded: Result<Vec<Vec<Token>>, TextError> = pieces
            .par_iter()
            .with_min_len(8)
            .map(|piece| {
                model
                    .tokenize(piece)
                    .map(|tokens| tokens.into_iter().map(|t| t.id).collect())
                    .map_err(|e| TextError::Encode(e.to_string()))
            })
            .collect();
        for piece in encoded? {
            ids.extend(piece);
        }
        Ok(())
    }

    /// The first safe cut at or after [`MERGE_BYTES`].
    fn cut(&self, text: &str) -> Option<usize> {
        let mut from = MERGE_BYTES;
        while from < text.len() && !text.is_char_boundary(from) {
            from += 1;
        }
        let mut chars = text.get(from..)?.char_indices();
        let (_, mut last) = chars.next()?;
        for (at, c) in chars {
            if self.known.contains(&last)
                && self.known.contains(&c)
                && !self.joined.contains(&(last, c))
            {
                return Some(from + at);
            }
            last = c;
        }
        None
    }
}
