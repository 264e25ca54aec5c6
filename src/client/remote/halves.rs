//! Parts of characters: servers that cut text in UTF-16 send a surrogate in one event and its partner in the next,
//! those that cut it in UTF-8 some bytes and the rest. Pure.
//!
//! Neither is valid alone, so [`mark`] and [`decoded`] replace each surrogate and each such byte by the noncharacter
//! U+FDD0 and four hexadecimal digits, and [`Halves`] joins them again in the text of the answer.

use crate::text::surrogates::{self, is_high, is_low};

const MARK: char = '\u{FDD0}';
const DIGITS: usize = 4;
/// Most parts that wait: two characters of three bytes.
const MOST: usize = 6;

fn is_byte(unit: u16) -> bool {
    (0x80..0x100).contains(&unit)
}

fn marked(unit: u16) -> String {
    format!("{MARK}{unit:04x}")
}

/// Replaces every lone surrogate in JSON by its mark.
pub(super) fn mark(json: &str) -> String {
    surrogates::replaced(json, marked)
}

/// UTF-8 with a mark for each byte that is not valid.
pub(super) fn decoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| marked(u16::from(*byte))));
    }
    text
}

/// The surrogates and bytes at the end of a text, which may wait for the rest of their character.
#[derive(Clone, Debug, Default)]
pub(super) struct Halves(Vec<u16>);

impl Halves {
    /// Resolves the marks of a text: parts of a character give it, those without partner U+FFFD.
    pub(super) fn join(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut pieces = text.split(MARK);
        self.push(pieces.next().unwrap_or_default(), &mut out);
        for piece in pieces {
            let marked = piece.split_at_checked(DIGITS);
            let half = marked.and_then(|(digits, after)| Some((u16::from_str_radix(digits, 16).ok()?, after)));
            match half.filter(|(unit, _)| is_byte(*unit) || is_high(*unit) || is_low(*unit)) {
                Some((unit, after)) => {
                    self.0.push(unit);
                    self.push(after, &mut out);
                }
                None => self.push(&format!("{MARK}{piece}"), &mut out),
            }
        }
        if self.0.len() > MOST || !self.clone().finish().ends_with(char::REPLACEMENT_CHARACTER) {
            out.push_str(&self.finish());
        }
        out
    }

    fn push(&mut self, text: &str, out: &mut String) {
        if !text.is_empty() {
            out.extend([&self.finish(), text]);
        }
    }

    pub(super) fn finish(&mut self) -> String {
        let units = std::mem::take(&mut self.0);
        let runs = units.chunk_by(|a, b| is_byte(*a) == is_byte(*b));
        let text = |run: &[u16]| match run.iter().map(|unit| u8::try_from(*unit)).collect::<Result<Vec<u8>, _>>() {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::from_utf16_lossy(run),
        };
        runs.map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(pieces: &[&str]) -> String {
        let mut halves = Halves::default();
        let read = |piece: &&str| serde_json::from_str::<String>(&mark(&format!("\"{piece}\""))).unwrap();
        let text: String = pieces.iter().map(|piece| halves.join(&read(piece))).collect();
        text + &halves.finish()
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
    fn bytes_of_a_character_are_joined_over_pieces() {
        let over = |pieces: &[&[u8]]| {
            let mut halves = Halves::default();
            let text: String = pieces.iter().map(|piece| halves.join(&decoded(piece))).collect();
            text + &halves.finish()
        };
        let whole = "é 😀漢".as_bytes();
        for cut in 0..=whole.len() {
            let (a, b) = whole.split_at(cut);
            assert_eq!(over(&[a, b]), "é 😀漢", "cut at {cut}");
        }
        assert_eq!(over(&whole.chunks(1).collect::<Vec<_>>()), "é 😀漢");
        assert_eq!(over(&[b"a\xf0\x9f", b"b\xff", b"\xe6\xbc"]), "a\u{FFFD}b\u{FFFD}\u{FFFD}");
    }

    #[test]
    fn other_text_stays() {
        for text in ["grün \\u00e9 \\n \\\\ud83d \\\\", "\\ud83d\\ude00", "\u{FDD0}zz \u{FDD0}", "\u{FDD0}0041"] {
            let wanted: String = serde_json::from_str(&format!("\"{text}\"")).unwrap();
            assert_eq!(joined(&[text]), wanted, "{text}");
        }
    }
}
