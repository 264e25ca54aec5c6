//! Halves of characters: servers that cut text in UTF-16 send a surrogate in one event and its partner in the next,
//! and servers that cut it in UTF-8 send the bytes of a character in several. Pure.
//!
//! JSON with either is not valid, so [`mark`] and [`text`] replace each by the noncharacter U+FDD0 and four hexadecimal
//! digits, and [`Halves`] joins them again in the text of the answer.

use crate::text::surrogates::{self, is_high, is_low};

const MARK: char = '\u{FDD0}';
const DIGITS: usize = 4;

/// Replaces every lone surrogate in JSON by its mark.
pub(super) fn mark(json: &str) -> String {
    surrogates::replaced(json, |unit| format!("{MARK}{unit:04x}"))
}

/// Bytes as text, with a mark for every byte that is not UTF-8.
pub(super) fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|byte| format!("{MARK}{byte:04x}")));
    }
    out
}

/// The surrogate and the bytes that wait for their partners.
#[derive(Clone, Debug, Default)]
pub(super) struct Halves(Option<u16>, Vec<u8>);

impl Halves {
    /// Resolves the marks of a text: a pair gives a character, a half without partner U+FFFD.
    pub(super) fn join(&mut self, text: &str) -> String {
        if text.is_empty() || (self.0.is_none() && self.1.is_empty() && !text.contains(MARK)) {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let marked = rest.strip_prefix(MARK).and_then(|r| r.split_at_checked(DIGITS));
            let half = marked.and_then(|(digits, after)| Some((u16::from_str_radix(digits, 16).ok()?, after)));
            match half {
                Some((unit, after)) => {
                    self.half(unit, &mut out);
                    rest = after;
                }
                None => {
                    out.push_str(self.finish());
                    let end = rest.char_indices().skip(1).find(|(_, c)| *c == MARK).map_or(rest.len(), |(at, _)| at);
                    let (plain, after) = rest.split_at(end);
                    out.push_str(plain);
                    rest = after;
                }
            }
        }
        out
    }

    fn byte(&mut self, byte: u8, out: &mut String) {
        self.1.push(byte);
        match std::str::from_utf8(&self.1) {
            Ok(character) => out.push_str(character),
            Err(error) if error.error_len().is_none() => return,
            Err(_) => out.push('\u{FFFD}'),
        }
        self.1.clear();
    }

    fn half(&mut self, unit: u16, out: &mut String) {
        if let Some(byte) = u8::try_from(unit).ok().filter(|byte| !byte.is_ascii()) {
            return self.byte(byte, out);
        }
        if let Some(high) = self.0.filter(|_| is_low(unit)) {
            self.0 = None;
            out.extend(char::decode_utf16([high, unit]).flatten());
            return;
        }
        out.push_str(self.finish());
        if is_high(unit) { self.0 = Some(unit) } else { out.push('\u{FFFD}') }
    }

    /// U+FFFD for a half without a partner.
    pub(super) fn finish(&mut self) -> &'static str {
        let waits = self.0.take().is_some() || !self.1.is_empty();
        self.1.clear();
        if waits { "\u{FFFD}" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(pieces: &[&str]) -> String {
        let mut halves = Halves::default();
        let read = |piece: &&str| serde_json::from_str::<String>(&mark(&format!("\"{piece}\""))).unwrap();
        let text: String = pieces.iter().map(|piece| halves.join(&read(piece))).collect();
        text + halves.finish()
    }

    #[test]
    fn halves_are_joined_and_single_ones_replaced() {
        assert_eq!(joined(&["smile \\ud83d", "\\uDE00 end"]), "smile 😀 end");
        assert_eq!(joined(&["a\\ud83d", "", "\\ude00"]), "a😀");
        assert_eq!(joined(&["\\ud83d", "b", "\\ude00"]), "\u{FFFD}b\u{FFFD}");
        assert_eq!(joined(&["\\ud83d\\ud83d\\ude00", "\\ud83d"]), "\u{FFFD}😀\u{FFFD}");
        assert_eq!(joined(&["\\ud83d", "\\ude00\\ud83c", "\\udf0d"]), "😀🌍");
    }

    #[test]
    fn bytes_of_a_character_are_joined_and_single_ones_replaced() {
        let joined = |pieces: &[&[u8]]| {
            let mut halves = Halves::default();
            pieces.iter().map(|piece| halves.join(&text(piece))).collect::<String>() + halves.finish()
        };
        assert_eq!(joined(&[b"caf\xc3", b"", b"\xa9 end"]), "café end");
        assert_eq!(joined(&[b"\xf0", b"\x9f\x98", b"\x80"]), "😀");
        assert_eq!(joined(&[b"\xe2\x82", b" a\xff", b"\xc3"]), "\u{FFFD} a\u{FFFD}\u{FFFD}");
    }

    #[test]
    fn other_text_stays() {
        for text in ["grün \\u00e9 \\n \\\\ud83d \\\\", "\\ud83d\\ude00", "\u{FDD0}zz \u{FDD0}", "\u{FDD0}0041"] {
            let wanted: String = serde_json::from_str(&format!("\"{text}\"")).unwrap();
            assert_eq!(joined(&[text]), wanted.replace("\u{FDD0}0041", "\u{FFFD}"), "{text}");
        }
    }
}
