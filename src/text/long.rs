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

use std::collections::{HashMap, HashSet};

use aho_corasick::{AhoCorasick, MatchKind};
use fancy_regex::Regex;
use rayon::prelude::*;
use tokenizers::{Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer as Library};

use super::TextError;
use super::spell::Before;
use super::vocabulary::{byte_alphabet, byte_token};
use crate::protocol::engine::Token;

/// Aim of a piece where words are split first.
const LINES_BYTES: usize = 128 * 1024;
/// Aim of a piece where merges run over all of it: merging is fastest while it stays in the cache.
const MERGE_BYTES: usize = 4 * 1024;

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

/// One pattern splits words, bytes are spelled as characters.
struct Words {
    pattern: Regex,
    alphabet: [char; 256],
    /// Every `\n` ends a word.
    lines: bool,
}

/// Merges run over the whole text.
struct Bigrams {
    /// Pairs of characters that stand next to each other in some token.
    joined: HashSet<(char, char)>,
    /// Characters that are tokens of their own; others fall back to bytes.
    known: HashSet<char>,
    /// Put in front of every run of text between added tokens.
    prepend: String,
    /// Replaced everywhere: from, to.
    replace: Option<(String, String)>,
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

/// Tries every surrounding of a line end that a word pattern could tell apart.
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

/// The normaliser of SentencePiece models: a prefix, and one literal replacement.
fn prepend_replace(normalizer: &serde_json::Value) -> Option<(String, Option<(String, String)>)> {
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

impl Words {
    /// Knows one form: a pattern that isolates words, then bytes spelled as characters.
    fn new(library: &Library, splitter: &serde_json::Value) -> Option<Words> {
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

    fn encode(&self, library: &Library, run: &str, ids: &mut Vec<Token>, halt: &Halt<'_>) -> Result<(), TextError> {
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
            // What the pattern leaves out is a word too.
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
        if word.is_empty() {
            return Ok(());
        }
        let mut word = word;
        while word.len() > LONGEST_BYTES {
            halt.check(ids.len())?;
            let (first, rest) = word.split_at(boundary(word, LONGEST_BYTES));
            self.encode_word(library, first, seen, ids, halt)?;
            word = rest;
        }
        if let Some(&(start, end)) = seen.get(word) {
            ids.extend_from_within(start..end);
            return Ok(());
        }
        let spelled: String = word.bytes().filter_map(|b| self.alphabet.get(usize::from(b))).collect();
        let tokens = library.get_model().tokenize(&spelled);
        let tokens = tokens.map_err(|e| TextError::Encode(e.to_string()))?;
        let start = ids.len();
        ids.extend(tokens.into_iter().map(|t| t.id));
        seen.insert(word, (start, ids.len()));
        Ok(())
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
        Bigrams { joined, known, prepend, replace }
    }

    /// Text between two added tokens, or what of it comes behind other text.
    fn encode(
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
        // What is replaced must not lie across the end of a batch.
        let one = self.replace.as_ref().is_none_or(|(from, _)| from.chars().nth(1).is_none());
        let mut rest = run;
        loop {
            halt.check(ids.len())?;
            let (now, later) = rest.split_at(if one { boundary(rest, BATCH_BYTES) } else { rest.len() });
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

    /// The first safe cut at or after [`MERGE_BYTES`], or any after [`LONGEST_BYTES`]; `None` while the text is too short to
    /// tell.
    fn cut(&self, text: &str) -> Option<usize> {
        let from = if text.len() > MERGE_BYTES { boundary(text, MERGE_BYTES) } else { return None };
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

/// The first place between two characters at or after `at`.
fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len())
}
