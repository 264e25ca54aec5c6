//! Encoding long texts fast, only in ways that provably give the library's tokens.
//!
//! Two kinds of tokenizer allow it. Where one regular expression splits words ([`Words`]), words are independent: each
//! distinct one is encoded once, and where every `\n` ends a word the lines are shared out over threads. Where merges run
//! over the whole text ([`Bigrams`], SentencePiece), it may be cut between two characters that no token of the vocabulary
//! holds next to each other: every merge makes a token of the vocabulary, so none crosses. Everything else is left to the
//! library. Where nothing allows a cut for 64 KB (one word of a hundred million letters) it is cut all the same: no text that
//! means anything has such a place, and merging it whole would take all memory.
//!
//! Work is done in batches; between two of them a stop is looked for, and the number of tokens.

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
/// Text of a batch, in bytes: some hundredths of a second.
const BATCH_BYTES: usize = 1024 * 1024;

/// When encoding is given up.
#[derive(Clone, Copy)]
pub struct Halt<'a> {
    /// Told to stop; asked every few hundredths of a second.
    pub stop: &'a (dyn Fn() -> bool + Sync),
    /// More tokens than this are of no use.
    pub most: usize,
}

impl Halt<'static> {
    /// Never.
    pub const NEVER: Halt<'static> = Halt { stop: &|| false, most: usize::MAX };
}

impl Halt<'_> {
    /// Whether to go on after so many tokens.
    ///
    /// # Errors
    /// [`TextError::Stopped`], [`TextError::TooLong`].
    pub fn check(&self, tokens: usize) -> Result<(), TextError> {
        if tokens > self.most {
            return Err(TextError::TooLong { most: self.most });
        }
        if (self.stop)() { Err(TextError::Stopped) } else { Ok(()) }
    }
}

/// A faster way to the library's tokens.
pub(super) struct Fast {
    /// Literals that are tokens, as the library finds them.
    literals: Literals,
    /// The same where special literals are read as text.
    plain_literals: Literals,
    kind: Kind,
}

enum Kind {
    Words(Words),
    Bigrams(Bigrams),
}

/// Which added tokens a text is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    All,
    NotSpecial,
}

/// Literals of added tokens, found leftmost and longest, as the library does.
pub(super) struct Literals {
    finder: AhoCorasick,
    ids: Vec<Token>,
}

/// A stretch of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run<'a> {
    /// Between literals.
    Text(&'a str),
    /// A literal's token.
    Literal(Token),
}

impl Literals {
    /// The added tokens of a tokenizer.
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

    /// The first stretch of the text.
    pub(super) fn first<'a>(&self, text: &'a str) -> Option<Run<'a>> {
        let Some(found) = self.finder.find(text) else {
            return (!text.is_empty()).then_some(Run::Text(text));
        };
        match text.get(..found.start()).filter(|t| !t.is_empty()) {
            Some(before) => Some(Run::Text(before)),
            None => self.ids.get(found.pattern().as_usize()).copied().map(Run::Literal),
        }
    }

    /// The text in stretches, each found when it is asked for.
    pub(super) fn runs<'a>(&self, text: &'a str) -> impl Iterator<Item = Run<'a>> {
        let mut found = self.finder.find_iter(text);
        let mut from = 0;
        // A literal that was found behind the text that goes first.
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
    /// Looks at what the tokenizer does to a text; `outline` is `tokenizer.json` without its vocabulary. `None` if nothing
    /// is known to be safe.
    pub(super) fn new(library: &Library, outline: &serde_json::Value) -> Option<Fast> {
        // Added tokens with these properties look at their surroundings.
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

    /// The tokens of a text.
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
