//! Halves of characters: servers that cut text in UTF-16 send a surrogate in one event and its partner in the next.
//! Pure.
//!
//! JSON with one alone is not valid, so [`mark`] replaces each by the noncharacter U+FDD0 and four hexadecimal digits,
//! and [`Halves`] joins them again in the text of the answer.

use crate::text::surrogates::{self, is_high, is_low};

const MARK: char = '\u{FDD0}';
const DIGITS: usize = 4;

/// Replaces every lone surrogate in JSON by its mark.
pub(super) fn mark(json: &str) -> String {
    surrogates::replaced(json, |unit| format!("{MARK}{unit:04x}"))
}

/// The surrogate that waits for its partner.
#[derive(Clone, Debug, Default)]
pub(super) struct Halves(Option<u16>);

impl Halves {
    /// Resolves the marks of a text: a pair gives a character, a half without partner U+FFFD.
    pub(super) fn join(&mut self, text: &str) -> String {
        if self.0.is_none() && !text.contains(MARK) {
            return text.to_owned();
        }
        let mut units: Vec<u16> = self.0.take().into_iter().collect();
        let mut pieces = text.split(MARK);
        units.extend(pieces.next().unwrap_or_default().encode_utf16());
        for piece in pieces {
            let marked = piece.split_at_checked(DIGITS);
            let half = marked.and_then(|(digits, after)| Some((u16::from_str_radix(digits, 16).ok()?, after)));
            match half.filter(|(unit, _)| is_high(*unit) || is_low(*unit)) {
                Some((unit, after)) => units.extend(std::iter::once(unit).chain(after.encode_utf16())),
                None => units.extend(format!("{MARK}{piece}").encode_utf16()),
            }
        }
        self.0 = units.pop_if(|unit| is_high(*unit));
        char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    }

    /// U+FFFD for a half without a partner.
    pub(super) fn finish(&mut self) -> &'static str {
        if self.0.take().is_some() { "\u{FFFD}" } else { "" }
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
    fn other_text_stays() {
        for text in ["grün \\u00e9 \\n \\\\ud83d \\\\", "\\ud83d\\ude00", "\u{FDD0}zz \u{FDD0}", "\u{FDD0}0041"] {
            let wanted: String = serde_json::from_str(&format!("\"{text}\"")).unwrap();
            assert_eq!(joined(&[text]), wanted, "{text}");
        }
    }
}
