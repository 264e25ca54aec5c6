//! Where sentences of a text begin and end. The text has a mark in place of special tokens.

/// In place of a special token: no byte of UTF-8, so no quote crosses it.
pub(super) const BETWEEN: u8 = 0xff;

/// Where sentences begin: after another one, at the beginning of a line, after its number, bullet, time, level or
/// key, or in a table cell. One pass: a line may be as long as the text.
pub(super) fn beginnings(text: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    // Of the line so far: its last byte that is not a space, the spaces after that, the last of them, and whether it
    // has a small letter.
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
    places
}

/// Whether a sentence may end before this position: at its full stop, line end, cell end or the end of the text.
pub(super) fn ends(text: &[u8], place: usize) -> bool {
    let rest = text.get(place..).unwrap_or_default();
    let next = rest.iter().find(|byte| !matches!(**byte, b' ' | b'\t' | b'\r'));
    if next.is_none_or(|byte| matches!(*byte, b'\n' | BETWEEN)) || rest.starts_with(b" |") {
        return true;
    }
    let last = place.checked_sub(1).and_then(|at| text.get(at));
    let continues = rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'.');
    !continues && last.is_some_and(|byte| matches!(*byte, b'.' | b'!' | b'?'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_one_long_line_takes_no_time() {
        let text = "word, ".repeat(1 << 20).into_bytes();
        assert_eq!(beginnings(&text), [0]);
        assert!(!ends(&text, 4) && ends(&text, text.len() - 1));
        let spaces = [b"Go. ".as_slice(), &vec![b'x'; 1 << 22]].concat();
        assert_eq!(beginnings(&spaces), [0, 4]);
        assert!(ends(&spaces, 3));
    }
}
