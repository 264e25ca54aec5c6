//! Fast encoding of long texts, with exactly the library's tokens. Two kinds of tokenizer allow it. If one regular
//! expression splits words ([`Words`]), words are independent: each distinct word is encoded once, and if every `\n`
//! ends a word, lines are encoded on several threads. If merges run over the whole text ([`Bigrams`], SentencePiece),
//! the text is cut between two characters that no token contains next to each other: every merge makes a token of the
//! vocabulary, so none crosses the cut. Other tokenizers are left to the library. A stretch of 64 KB without a safe
//! cut (one huge word) is cut anyway: merging it whole would take all memory. Cancellation and the token limit are
//! checked between batches.

mod bigrams;
mod words;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::Tokenizer as Library;

use super::TextError;
use super::own_space::Before;
use crate::engine::protocol::Token;
use bigrams::{Bigrams, prepend_replace};
use words::Words;

/// Longest stretch without a place to cut, in bytes.
const LONGEST_BYTES: usize = 64 * 1024;
/// Bytes of a batch; takes some hundredths of a second.
const BATCH_BYTES: usize = 1024 * 1024;

#[derive(Clone, Copy)]
pub struct Halt<'a> {
    /// Cancellation; polled every few hundredths of a second.
    pub stop: &'a (dyn Fn() -> bool + Sync),
    pub most: usize,
}

impl Halt<'static> {
    pub const NEVER: Halt<'static> = Halt { stop: &|| false, most: usize::MAX };
}

impl Halt<'_> {
    /// Fails if encoding must stop after so many tokens.
    pub fn check(&self, tokens: usize) -> Result<(), TextError> {
        if tokens > self.most {
            return Err(TextError::TooLong { most: self.most });
        }
        if (self.stop)() { Err(TextError::Stopped) } else { Ok(()) }
    }
}

pub(super) struct Fast {
    literals: Literals,
    /// Without special literals, which are read as text.
    plain_literals: Literals,
    kind: Kind,
}

enum Kind {
    Words(Words),
    Bigrams(Bigrams),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    All,
    NotSpecial,
}

/// Finds literals of added tokens, leftmost and longest, as the library does.
pub(super) struct Literals {
    finder: AhoCorasick,
    ids: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run<'a> {
    Text(&'a str),
    Literal(Token),
}

impl Literals {
    pub(super) fn new(library: &Library, which: Which) -> Option<Literals> {
        let mut pairs: Vec<(String, Token)> = library
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, t)| !t.content.is_empty() && (which == Which::All || !t.special))
            .map(|(id, t)| (t.content, id))
            .collect();
        pairs.sort();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(pairs.iter().map(|(literal, _)| literal))
            .ok()?;
        let ids = pairs.into_iter().map(|(_, id)| id).collect();
        Some(Literals { finder, ids })
    }

    pub(super) fn runs<'a>(&self, text: &'a str) -> impl Iterator<Item = Run<'a>> {
        let mut found = self.finder.find_iter(text);
        let mut from = 0;
        // A literal that follows the text just returned.
        let mut next = None;
        std::iter::from_fn(move || {
            if let Some(literal) = next.take() {
                return Some(literal);
            }
            let (start, end) = match found.next() {
                Some(found) => {
                    next = self.ids.get(found.pattern().as_usize()).copied().map(Run::Literal);
                    (found.start(), found.end())
                }
                None => (text.len(), text.len()),
            };
            let before = text.get(from..start).filter(|t| !t.is_empty()).map(Run::Text);
            from = end;
            before.or_else(|| next.take())
        })
    }
}

impl Fast {
    /// `outline` is `tokenizer.json` without its vocabulary. `None` if no fast path is known to be exact.
    pub(super) fn new(library: &Library, outline: &serde_json::Value) -> Option<Fast> {
        // Such added tokens depend on their surroundings.
        let plain = library
            .get_added_tokens_decoder()
            .into_values()
            .all(|t| !t.lstrip && !t.rstrip && !t.single_word && !t.normalized);
        if !plain || library.get_truncation().is_some() || library.get_padding().is_some() {
            return None;
        }
        let field = |name: &str| outline.get(name).filter(|v| !v.is_null());
        let kind = match (field("normalizer"), field("pre_tokenizer")) {
            (None, Some(splitter)) => Kind::Words(Words::new(library, splitter)?),
            (normalizer, None) => {
                let (prepend, replace) = normalizer.map_or(Some((String::new(), None)), prepend_replace)?;
                let model = outline.get("model")?;
                let bpe = model.get("type").and_then(|t| t.as_str()) == Some("BPE");
                let whole = ["dropout", "continuing_subword_prefix", "end_of_word_suffix"]
                    .iter()
                    .all(|k| model.get(*k).is_none_or(|v| v.is_null() || v.as_str() == Some("")));
                if !bpe || !whole {
                    return None;
                }
                Kind::Bigrams(Bigrams::new(library, prepend, replace))
            }
            (Some(_), Some(_)) => return None,
        };
        Some(Fast {
            literals: Literals::new(library, Which::All)?,
            plain_literals: Literals::new(library, Which::NotSpecial)?,
            kind,
        })
    }

    pub(super) fn encode(
        &self,
        library: &Library,
        text: &str,
        before: Before,
        halt: &Halt<'_>,
    ) -> Result<Vec<Token>, TextError> {
        let literals = match library.get_encode_special_tokens() {
            true => &self.plain_literals,
            false => &self.literals,
        };
        let mut ids = Vec::new();
        let mut before = before;
        for run in literals.runs(text) {
            match (run, &self.kind) {
                (Run::Literal(id), _) => ids.push(id),
                (Run::Text(run), Kind::Words(words)) => words.encode(library, run, &mut ids, halt)?,
                (Run::Text(run), Kind::Bigrams(bigrams)) => bigrams.encode(library, run, before, &mut ids, halt)?,
            }
            before = Before::Edge;
        }
        halt.check(ids.len())?;
        Ok(ids)
    }
}
