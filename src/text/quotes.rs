//! Quotes that stand in the text: between the words that open a quote and the mark that closes it, only whole sentences of what
//! the model has read may be written.
//!
//! A small model chooses the sentence that answers, and sometimes loses a word while it copies it. A folder whose model quotes
//! says in `generation_config.json` how a quote begins ([`Recommended::quoting`](super::Recommended::quoting)). What may come next
//! depends on the tokens in front alone, so an answer is the same with speculation on and off, and the same when it was stopped
//! and goes on.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use super::tokenizer::Tokenizer;
use super::vocabulary::Piece;
use crate::protocol::engine::{Constrain, Constraint, Quoting, Token};

/// Closes a quote.
pub(super) const MARK: u8 = b'"';
/// In the place of a special token: no byte of a text, so no quote goes over it.
const BETWEEN: u8 = 0xff;

impl Quoting {
    /// What keeps quotes to the text in front of an answer.
    pub fn constraint(self, tokenizer: &Arc<Tokenizer>, stop: &[Token]) -> Constraint {
        let (tokenizer, stop, opening) = (Arc::clone(tokenizer), stop.to_vec(), self.opening.clone());
        let make = move |before: &[Token]| -> Box<dyn Constrain> {
            let (text, written) = spelled(&tokenizer, before);
            let (tokenizer, opening, stop) = (Arc::clone(&tokenizer), opening.clone().into_bytes(), stop.clone());
            let beginnings = OnceCell::new();
            let mut quotes = Quotes { tokenizer, stop, opening, text, beginnings, at: At::default() };
            quotes.at = quotes.behind(&quotes.at, &written).unwrap_or_default();
            Box::new(quotes)
        };
        Constraint(Arc::new(make), Some(self))
    }
}

/// The text of tokens, and what of it lies behind the last special one: the beginning of an answer that goes on.
fn spelled(tokenizer: &Tokenizer, tokens: &[Token]) -> (Vec<u8>, Vec<u8>) {
    let mut text = Vec::new();
    for token in tokens {
        match tokenizer.pieces.get(*token) {
            Piece::Bytes(bytes) => text.extend_from_slice(bytes),
            Piece::Special(_) => text.push(BETWEEN),
        }
    }
    let written = text.iter().rposition(|byte| *byte == BETWEEN).map_or(0, |at| at + 1);
    let behind = text.split_off(written);
    (text, behind)
}

/// Where an answer stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    /// Outside of quotes: the last bytes, as many as open one.
    Free(Vec<u8>),
    /// In a quote, which is what stands in front of these places of the text.
    Quote(Arc<[usize]>),
}

impl Default for At {
    fn default() -> Self {
        At::Free(Vec::new())
    }
}

/// Keeps the quotes of one answer.
struct Quotes {
    tokenizer: Arc<Tokenizer>,
    stop: Vec<Token>,
    opening: Vec<u8>,
    text: Vec<u8>,
    /// Where sentences of the text begin, once a quote is opened.
    beginnings: OnceCell<Arc<[usize]>>,
    at: At,
}

impl Quotes {
    /// Where an answer stands after more of it; `None` if that is no quote of the text.
    fn behind(&self, at: &At, bytes: &[u8]) -> Option<At> {
        let mut now = Cow::Borrowed(at);
        for byte in bytes {
            now = Cow::Owned(self.step(&now, *byte)?);
        }
        Some(now.into_owned())
    }

    fn step(&self, at: &At, byte: u8) -> Option<At> {
        match at {
            At::Free(last) => {
                let more = (last.len() + 1).saturating_sub(self.opening.len());
                let last: Vec<u8> = last.iter().copied().chain([byte]).skip(more).collect();
                Some(if last == self.opening { self.begun() } else { At::Free(last) })
            }
            At::Quote(places) if byte == MARK && places.iter().any(|place| ends(&self.text, *place)) => {
                Some(At::default())
            }
            At::Quote(places) => {
                let goes_on = |place: &&usize| byte != BETWEEN && self.text.get(**place) == Some(&byte);
                let places: Arc<[usize]> = places.iter().filter(goes_on).map(|place| place + 1).collect();
                (!places.is_empty()).then_some(At::Quote(places))
            }
        }
    }

    /// At the beginning of a quote. Where there is nothing to be quoted, nothing is kept to it.
    fn begun(&self) -> At {
        let places = self.beginnings.get_or_init(|| beginnings(&self.text));
        if places.is_empty() { At::default() } else { At::Quote(Arc::clone(places)) }
    }
}

/// Where sentences begin: behind the end of another, at the beginning of a line, behind its number, mark, time, level or key, or in a
/// cell of a table. One pass: a line may be as long as the text.
fn beginnings(text: &[u8]) -> Arc<[usize]> {
    let mut places = Vec::new();
    // Of the line so far: its last byte that is no space, spaces behind that, the last of them, and whether it has a small letter.
    let (mut last, mut gap, mut space, mut small) = (None, 0, b' ', false);
    for (place, byte) in text.iter().copied().enumerate() {
        match byte {
            b'\n' | BETWEEN => (last, gap, space, small) = (None, 0, b' ', false),
            _ if byte.is_ascii_whitespace() => (gap, space) = (gap + 1, byte),
            _ => {
                let begins = match last {
                    None => true,
                    Some(_) if gap == 0 => false,
                    Some(last) => {
                        let word = u8::is_ascii_alphanumeric(&last) || matches!(last, b',' | 0x80..);
                        // Numbers, times and levels of a log have no small letters.
                        gap > 1 || space == b'\t' || !word || !small
                    }
                };
                if begins && byte != b'|' {
                    places.push(place);
                }
                (last, gap, small) = (Some(byte), 0, small || byte.is_ascii_lowercase());
            }
        }
    }
    places.into()
}

/// Whether a sentence may end in front of this place: with its mark, its line, its cell or its text.
fn ends(text: &[u8], place: usize) -> bool {
    let rest = text.get(place..).unwrap_or_default();
    let next = rest.iter().find(|byte| !matches!(**byte, b' ' | b'\t' | b'\r'));
    if next.is_none_or(|byte| matches!(*byte, b'\n' | BETWEEN)) || rest.starts_with(b" |") {
        return true;
    }
    let last = place.checked_sub(1).and_then(|at| text.get(at));
    let goes_on = rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'.');
    !goes_on && last.is_some_and(|byte| matches!(*byte, b'.' | b'!' | b'?'))
}

impl Constrain for Quotes {
    fn allows(&mut self, token: Token) -> bool {
        let whole = self.stop.contains(&token);
        match (&self.at, self.tokenizer.pieces.get(token)) {
            // The end of what was read is the end of a quote, too.
            (At::Quote(places), _) if whole => places.iter().all(|place| *place == self.text.len()),
            (At::Quote(_), Piece::Special(_)) => false,
            (At::Quote(_), Piece::Bytes(bytes)) => !bytes.is_empty() && self.behind(&self.at, bytes).is_some(),
            (At::Free(_), Piece::Special(_)) => true,
            (At::Free(_), Piece::Bytes(bytes)) => whole || self.behind(&self.at, bytes).is_some(),
        }
    }

    fn accept(&mut self, token: Token) {
        self.at = match self.tokenizer.pieces.get(token) {
            Piece::Bytes(bytes) => self.behind(&self.at, bytes).unwrap_or_default(),
            Piece::Special(_) => At::default(),
        };
    }

    fn stuck(&self) -> String {
        "no token goes on with the quote".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Before;
    use crate::text::tokenizer::tests::{demo, sentencepiece};

    const OPENING: &str = "The document says: \"";
    const DOCUMENT: &str = "# Boats\n\nThe Anna is a barge. She was built in 1904 by Dr. Hall, who said \"never\n\
        again\".\n\n- blue hull\n- two masts; no engine\n\n4.2 No dogs on board!\n2026-01-02 INFO  pump started\n2026-01-02 ERROR bilge full\n\
        | Mooring | 16 | a day |\nkey = \"a b\"\nThe Anna sails on Mondays. Zoë knows why";

    /// Of single bytes, and of pieces.
    fn tokenizers() -> [Arc<Tokenizer>; 2] {
        [demo(), sentencepiece()].map(Arc::new)
    }

    /// Whether an answer to the document is let through, token by token, to its end.
    fn passes(tokenizer: &Arc<Tokenizer>, answer: &str) -> Result<(), String> {
        let turn = |text: &str| tokenizer.encode_with_special(text).unwrap();
        let before = turn(&format!("<|im_start|>user\n{DOCUMENT}<|im_end|>\n<|im_start|>assistant\n"));
        let stop = tokenizer.stop_ids(&[]);
        let constraint = Quoting { opening: OPENING.to_owned() }.constraint(tokenizer, &stop);
        let mut quotes = (constraint.0)(&before);
        let mut with = before;
        let mut so_far = String::new();
        for token in tokenizer.encode_behind(answer, Before::Text).unwrap() {
            if !quotes.allows(token) {
                return Err(so_far);
            }
            quotes.accept(token);
            so_far += &tokenizer.spell(&[token], Before::Text);
            // The same from what is written so far.
            with.push(token);
            let mut resumed = (constraint.0)(&with);
            for next in (0..=tokenizer.max_id()).step_by(7) {
                assert_eq!(resumed.allows(next), quotes.allows(next), "{so_far:?} {next}");
            }
        }
        if quotes.allows(stop[0]) { Ok(()) } else { Err(so_far) }
    }

    #[test]
    fn what_is_quoted_is_a_sentence_of_the_text() {
        for tokenizer in tokenizers() {
            for right in [
                "Hello! The document says nothing.",
                "I could not find that in the document.",
                "The document says: \"The Anna is a barge.\"",
                "The document says: \"The Anna sails on Mondays.\" That is all \"I\" know.",
                "The document says: \"blue hull\"",
                "The document says: \"two masts; no engine\"",
                "The document says: \"No dogs on board!\"",
                "The document says: \"pump started\"",
                "The document says: \"bilge full\"",
                "The document says: \"Mooring | 16 | a day\"",
                "The document says: \"key = \"a b\"\"",
                "The document says: \"Zoë knows why\"",
                "The document says: \"She was built in 1904 by Dr. Hall, who said \"never\nagain\".\"",
                "The document says: \"The Anna is a barge.\" The document says: \"blue hull\"",
            ] {
                assert_eq!(passes(&tokenizer, right), Ok(()), "{right}");
            }
            for wrong in [
                "The document says: \"The Anna is a large.\"",
                "The document says: \"Anna is a barge.\"",
                "The document says: \"The Anna is a\"",
                "The document says: \"\"",
                "The document says: \"1904 by Dr. Hall\"",
                "The document says: \"The Anna is a barge. She was built\"",
                "The document says: \"hull\"",
                "The document says: \"The Anna is a barge.",
                "The document says: \"blue hull\" The document says: \"red hull\"",
            ] {
                assert!(passes(&tokenizer, wrong).is_err(), "{wrong}");
            }
        }
    }

    #[test]
    fn a_text_of_one_long_line_takes_no_time() {
        let text = "word, ".repeat(1 << 20).into_bytes();
        assert_eq!(*beginnings(&text), [0]);
        assert!(!ends(&text, 4) && ends(&text, text.len() - 1));
        let spaces = [b"Go. ".as_slice(), &vec![b'x'; 1 << 22]].concat();
        assert_eq!(*beginnings(&spaces), [0, 4]);
        assert!(ends(&spaces, 3));
    }

    #[test]
    fn where_nothing_stands_in_front_nothing_is_kept_to_it() {
        let [tokenizer, _] = tokenizers();
        let constraint = Quoting { opening: OPENING.to_owned() }.constraint(&tokenizer, &[]);
        let mut quotes = (constraint.0)(&[]);
        for token in tokenizer.encode_behind("The document says: \"Anything", Before::Text).unwrap() {
            assert!(quotes.allows(token));
            quotes.accept(token);
        }
    }
}
