//! The first or the last tokens of a long text, found without encoding all of it.

use super::own_space::Before;
use super::tokenizer::Tokenizer;
use super::{Halt, TextError};

/// Bytes of text that are tried first for each token that is wanted.
const BYTES_A_TOKEN: usize = 6;
/// Extra tokens, so that the cut made for counting has no effect on the result.
const MARGIN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    First(u64),
    Last(u64),
}

impl Tokenizer {
    /// The text of the first or last tokens. Takes time in proportion to them, not to the text.
    pub fn part(&self, text: &str, part: Part, stop: &(dyn Fn() -> bool + Sync)) -> Result<String, TextError> {
        let (Part::First(wanted) | Part::Last(wanted)) = part;
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let halt = Halt { stop, most: usize::MAX };
        let mut bytes = wanted.saturating_add(MARGIN).saturating_mul(BYTES_A_TOKEN);
        loop {
            let (tried, whole) = match part {
                _ if bytes >= text.len() => (text, true),
                Part::First(_) => (text.get(..text.floor_char_boundary(bytes)).unwrap_or(text), false),
                Part::Last(_) => (text.get(text.ceil_char_boundary(text.len() - bytes)..).unwrap_or(text), false),
            };
            let tokens = self.encode_plain_until(tried, &halt)?;
            if !whole && tokens.len() < wanted.saturating_add(MARGIN) {
                bytes = bytes.saturating_mul(2);
                continue;
            }
            let from = match part {
                Part::First(_) => 0,
                Part::Last(_) => tokens.len().saturating_sub(wanted),
            };
            let kept = tokens.get(from..from.saturating_add(wanted).min(tokens.len())).unwrap_or(&tokens);
            let before = if from == 0 { Before::Edge } else { Before::Text };
            // A cut may split a character.
            return Ok(self.spell(kept, before).trim_matches('\u{FFFD}').to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokenizer::tests::{DEMO, PIECES};
    use super::*;

    #[test]
    fn a_part_is_what_its_tokens_say_and_the_rest_is_not_encoded() {
        let text = "Some words of a text, 12 of them;  then a line\nand häufig 中文 🙂 more.\n".repeat(400);
        for t in [&*DEMO, &*PIECES] {
            let all = t.encode_plain(&text).unwrap();
            for n in [0usize, 1, 7, 500, all.len() - 1, all.len(), all.len() + 9] {
                let first = t.spell(all.get(..n.min(all.len())).unwrap(), Before::Edge);
                assert_eq!(t.part(&text, Part::First(n as u64), &|| false).unwrap(), first.trim_matches('\u{FFFD}'));
                let from = all.len().saturating_sub(n);
                let last = t.spell(&all[from..], if from == 0 { Before::Edge } else { Before::Text });
                assert_eq!(t.part(&text, Part::Last(n as u64), &|| false).unwrap(), last.trim_matches('\u{FFFD}'));
            }
            let huge = text.repeat(2_000);
            let begun = std::time::Instant::now();
            for part in [Part::First(1_000), Part::Last(1_000)] {
                assert_eq!(t.part(&huge, part, &|| false).unwrap(), t.part(&text, part, &|| false).unwrap());
            }
            assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
            assert!(matches!(t.part(&huge, Part::First(u64::MAX), &|| true), Err(TextError::Stopped)));
        }
    }
}
