//! Tokenizers with merges over the whole text, which is cut where no token can cross.

use std::collections::HashSet;

use rayon::prelude::*;
use tokenizers::{Model, Tokenizer as Library};

use super::super::TextError;
use super::super::own_space::Before;
use super::super::vocabulary::byte_token;
use super::{BATCH_BYTES, Halt, LONGEST_BYTES};
use crate::engine::protocol::Token;

/// Target size of a piece: merging is fastest while it fits the cache.
const MERGE_BYTES: usize = 4 * 1024;

pub(super) struct Bigrams {
    /// Pairs of neighbouring characters in tokens.
    joined: HashSet<(char, char)>,
    /// Characters that are tokens; others fall back to bytes.
    known: HashSet<char>,
    /// Prefix of every run of text between added tokens.
    prepend: String,
    /// Replaced everywhere: from, to.
    replace: Option<(String, String)>,
}

/// The normalizer of SentencePiece models: a prefix and one literal replacement.
pub(super) fn prepend_replace(normalizer: &serde_json::Value) -> Option<(String, Option<(String, String)>)> {
    let steps = match normalizer.get("normalizers").and_then(|n| n.as_array()) {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(normalizer),
    };
    let text = |v: &serde_json::Value, key: &str| v.get(key).and_then(|s| s.as_str()).map(str::to_owned);
    let (mut prepend, mut replace) = (String::new(), None);
    for step in steps {
        match step.get("type")?.as_str()? {
            // The prefix must not be touched by a replacement before it.
            "Prepend" if replace.is_none() && prepend.is_empty() => prepend = text(step, "prepend")?,
            "Replace" if replace.is_none() => {
                replace = Some((text(step.get("pattern")?, "String")?, text(step, "content")?));
            }
            _ => return None,
        }
    }
    Some((prepend, replace))
}

impl Bigrams {
    pub(super) fn new(library: &Library, prepend: String, replace: Option<(String, String)>) -> Bigrams {
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
        Bigrams { joined, known, prepend, replace }
    }

    /// Encodes text between two added tokens, or the rest of it after other text.
    pub(super) fn encode(
        &self,
        library: &Library,
        run: &str,
        before: Before,
        ids: &mut Vec<Token>,
        halt: &Halt<'_>,
    ) -> Result<(), TextError> {
        let mut text = match before {
            Before::Edge => self.prepend.clone(),
            Before::Text => String::new(),
        };
        // A replaced string must not cross the end of a batch.
        let one = self.replace.as_ref().is_none_or(|(from, _)| from.chars().nth(1).is_none());
        let mut rest = run;
        loop {
            halt.check(ids.len())?;
            let (now, later) = rest.split_at(if one { rest.ceil_char_boundary(BATCH_BYTES) } else { rest.len() });
            match &self.replace {
                Some((from, to)) => text.push_str(&now.replace(from.as_str(), to)),
                None => text.push_str(now),
            }
            rest = later;
            let mut pieces = Vec::with_capacity(text.len() / MERGE_BYTES + 1);
            let mut uncut = text.as_str();
            while let Some(at) = self.cut(uncut) {
                let (piece, after) = uncut.split_at(at);
                pieces.push(piece);
                uncut = after;
            }
            if rest.is_empty() {
                pieces.push(uncut);
            }
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
            encoded?.iter().for_each(|piece| ids.extend_from_slice(piece));
            if rest.is_empty() {
                return Ok(());
            }
            text = uncut.to_owned();
        }
    }

    /// The first safe cut at or after [`MERGE_BYTES`], or any after [`LONGEST_BYTES`]; `None` while the text is too
    /// short.
    fn cut(&self, text: &str) -> Option<usize> {
        let from = if text.len() > MERGE_BYTES { text.ceil_char_boundary(MERGE_BYTES) } else { return None };
        let mut chars = text.get(from..)?.char_indices();
        let (_, mut last) = chars.next()?;
        for (at, c) in chars {
            let safe = self.known.contains(&last) && self.known.contains(&c) && !self.joined.contains(&(last, c));
            if safe || from + at >= LONGEST_BYTES {
                return Some(from + at);
            }
            last = c;
        }
        None
    }
}
