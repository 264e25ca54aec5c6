//! Text to ids. The `tokenizers` crate encodes a short text as it is. A long one is divided into stretches between special
//! literals, and each stretch into pieces that are encoded on several threads, so that encoding can stop. A piece ends where no
//! token crosses, if possible at a line or a word, so the ids are those of the crate.

use aho_corasick::{AhoCorasick, MatchKind};
use rayon::prelude::*;
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper, Tokenizer as Library};

use super::{SHIELD, Tokenizer};
use crate::core::caught::caught;
use crate::engine::protocol::Token;
use crate::text::TextError;
use crate::text::own_space::{Before, OwnSpace, without_own_space};

/// Texts from this size are divided.
const LONG_BYTES: usize = 64 * 1024;
/// Least size of a piece; its end is within as much again.
const PIECE_BYTES: usize = 32 * 1024;
/// Pieces between two checks of a [`Halt`]: some hundredths of a second.
const BATCH: usize = 16;

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

/// Finds literals of added tokens, leftmost and longest, as the library does.
pub(super) struct Literals {
    finder: AhoCorasick,
    ids: Vec<Token>,
}

impl Literals {
    pub(super) fn new(library: &Library, includes: impl Fn(&AddedToken) -> bool) -> Result<Literals, TextError> {
        let added = library.get_added_tokens_decoder().into_iter();
        let mut pairs: Vec<(String, Token)> = added
            .filter(|(_, token)| !token.content.is_empty() && includes(token))
            .map(|(id, token)| (token.content, id))
            .collect();
        pairs.sort();
        let (literals, ids): (Vec<String>, Vec<Token>) = pairs.into_iter().unzip();
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(literals);
        Ok(Literals { finder: finder.map_err(|e| TextError::malformed("tokenizer.json", e))?, ids })
    }

    /// The stretches of a text between literals, each with the literal after it.
    fn stretches<'a>(&self, text: &'a str) -> impl Iterator<Item = (&'a str, Option<Token>)> {
        let literals =
            self.finder.find_iter(text).map(|found| (found.range(), self.ids.get(found.pattern().as_usize()).copied()));
        let mut from = 0;
        literals.chain([(text.len()..text.len(), None)]).map(move |(at, literal)| {
            let stretch = text.get(from..at.start).unwrap_or_default();
            from = at.end;
            (stretch, literal)
        })
    }
}

impl Tokenizer {
    /// Ids of a rendered prompt, with the start token in front if the model wants one and the template did not write it.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.encode_prompt_until(text, &Halt::NEVER)
    }

    pub fn encode_prompt_until(&self, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        let mut ids = self.encode_after_until(text, Before::Edge, halt)?;
        if let Some(bos) = self.bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Ids of a text in which special literals are tokens, as Hugging Face encodes a rendered template. No start token. A
    /// text that continues other text gets no space of the tokenizer's own in front.
    pub fn encode_after(&self, text: &str, before: Before) -> Result<Vec<Token>, TextError> {
        self.encode_after_until(text, before, &Halt::NEVER)
    }

    pub fn encode_after_until(&self, text: &str, before: Before, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        let continues = before == Before::Text && self.pieces.own_space != OwnSpace::None;
        match text.len() < LONG_BYTES && !continues && !text.contains(SHIELD) {
            true => encode_whole(&self.library, text, halt),
            false => self.encode_stretches(text, &self.literals, before, halt),
        }
    }

    /// Ids of a text in which special literals are only characters.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.encode_plain_until(text, &Halt::NEVER)
    }

    pub fn encode_plain_until(&self, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
        match text.len() < LONG_BYTES {
            true => encode_whole(self.plain(), text, halt),
            false => self.encode_stretches(text, &self.plain_literals, Before::Edge, halt),
        }
    }

    pub(super) fn encode_stretches(
        &self,
        text: &str,
        literals: &Literals,
        before: Before,
        halt: &Halt<'_>,
    ) -> Result<Vec<Token>, TextError> {
        let (plain, later) = (self.plain(), self.plain_after()?);
        let (mut ids, mut before) = (Vec::new(), before);
        for (stretch, literal) in literals.stretches(text) {
            let stretch = stretch.replace(SHIELD, "");
            // Only the first piece of a stretch has the tokenizer's own space in front.
            let mut first = if before == Before::Edge { plain } else { later };
            for batch in self.cut(&stretch, PIECE_BYTES).chunks(BATCH) {
                halt.check(ids.len())?;
                let encode = |(i, piece)| encode_library(if i == 0 { first } else { later }, piece);
                let encoded: Result<Vec<_>, TextError> = batch.par_iter().copied().enumerate().map(encode).collect();
                ids.extend(encoded?.concat());
                first = later;
            }
            ids.extend(literal);
            before = Before::Edge;
        }
        halt.check(ids.len())?;
        Ok(ids)
    }

    /// Pieces of at least so many bytes, and up to twice as many.
    pub(super) fn cut<'a>(&self, text: &'a str, bytes: usize) -> Vec<&'a str> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while rest.len() > 2 * bytes {
            let (piece, after) = rest.split_at(self.end_of_piece(rest, bytes));
            pieces.push(piece);
            rest = after;
        }
        pieces.extend(Some(rest).filter(|rest| !rest.is_empty()));
        pieces
    }

    /// In front of a line, else a word, else anywhere, where no token holds both neighbours; else it may cost a merge.
    fn end_of_piece(&self, text: &str, bytes: usize) -> usize {
        let neighbours = self.neighbours.get_or_init(|| self.pieces.neighbours());
        let from = text.ceil_char_boundary(bytes);
        let window = text.get(from..text.ceil_char_boundary(2 * bytes)).unwrap_or_default();
        let find = |is: fn(char, char) -> bool| {
            let mut places = window.char_indices().zip(window.chars().skip(1));
            let place = places.find(|((_, last), next)| is(*last, *next) && !neighbours.contains(&(*last, *next)));
            place.map(|((at, last), _)| at + last.len_utf8())
        };
        let line = || find(|last, next| last == '\n' && !next.is_whitespace());
        let word = || find(|last, next| !last.is_whitespace() && next == ' ');
        let other = || find(|last, next| !last.is_whitespace() && !next.is_whitespace());
        from + line().or_else(word).or_else(other).unwrap_or(0)
    }

    /// Reads special literals as plain text.
    pub(super) fn plain(&self) -> &Library {
        self.plain.get_or_init(|| {
            let mut plain = self.library.clone();
            plain.set_encode_special_tokens(true);
            plain
        })
    }

    /// As `plain`, without the tokenizer's own space in front.
    pub(super) fn plain_after(&self) -> Result<&Library, TextError> {
        if self.pieces.own_space == OwnSpace::None {
            return Ok(self.plain());
        }
        let made = self.plain_after.get_or_init(|| self.without_own_space().map_err(|e| e.to_string()));
        made.as_ref().map_err(|e| TextError::malformed("tokenizer.json", e))
    }

    fn without_own_space(&self) -> tokenizers::Result<Library> {
        let part = |name: &str| self.json.get(name).filter(|v| !v.is_null()).cloned().and_then(without_own_space);
        let normalizer: Option<NormalizerWrapper> = part("normalizer").map(serde_json::from_value).transpose()?;
        let splitter: Option<PreTokenizerWrapper> = part("pre_tokenizer").map(serde_json::from_value).transpose()?;
        let mut library = self.plain().clone();
        library.with_normalizer(normalizer)?;
        library.with_pre_tokenizer(splitter);
        Ok(library)
    }
}

fn encode_whole(library: &Library, text: &str, halt: &Halt<'_>) -> Result<Vec<Token>, TextError> {
    let ids = encode_library(library, text)?;
    halt.check(ids.len())?;
    Ok(ids)
}

/// The library's ids. A panic of the library is an error.
fn encode_library(library: &Library, text: &str) -> Result<Vec<Token>, TextError> {
    let encoded = caught(|| library.encode_fast(text, false).map(|encoded| encoded.get_ids().to_vec()));
    let encoded = encoded.ok_or_else(|| TextError::Encode("the library fails on it".to_owned()))?;
    encoded.map_err(|e| TextError::Encode(e.to_string()))
}
