//! Words of a text, and their stems.

use super::sentences::BETWEEN;

/// Words of a text, each with the position after it.
pub(super) fn words(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let letter = |byte: &u8| byte.is_ascii_alphanumeric() || (0x80..BETWEEN).contains(byte);
        let rest = text.get(at..)?;
        let begin = at + rest.iter().position(letter)?;
        let word = text.get(begin..)?;
        let word = word.get(..word.iter().position(|byte| !letter(byte)).unwrap_or(word.len()))?;
        at = begin + word.len();
        Some((at, word))
    })
}

/// Writes a crude stem of a word: "deposits", "deposited" and "deposit" share one.
pub(super) fn put_stem(word: &[u8], stem: &mut Vec<u8>) {
    const ENDINGS: [(&str, &str); 9] = [
        ("ies", "y"),
        ("ied", "y"),
        ("ings", ""),
        ("ing", ""),
        ("ed", ""),
        ("es", ""),
        ("s", ""),
        ("ly", ""),
        ("e", ""),
    ];
    stem.clear();
    match std::str::from_utf8(word) {
        Ok(word) if !word.is_ascii() => stem.extend_from_slice(word.to_lowercase().as_bytes()),
        _ => stem.extend(word.iter().map(u8::to_ascii_lowercase)),
    }
    if stem.len() <= 3 {
        return;
    }
    let left = |ending: &str| stem.strip_suffix(ending.as_bytes()).map_or(0, <[u8]>::len);
    let ending = ENDINGS.iter().find(|(ending, _)| left(ending) >= 3 && !(*ending == "s" && stem.ends_with(b"ss")));
    if let Some((ending, other)) = ending {
        stem.truncate(left(ending));
        stem.extend_from_slice(other.as_bytes());
    }
    // "planned" and "plan".
    if let [.., a, b] = stem.as_slice()
        && a == b
        && stem.len() > 3
        && !matches!(b, b's' | b'l')
    {
        stem.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_word_have_one_stem() {
        let stem = |word: &str| {
            let mut stem = Vec::new();
            put_stem(word.as_bytes(), &mut stem);
            String::from_utf8(stem).unwrap()
        };
        for forms in [
            ["deposit", "deposits", "deposited"],
            ["plan", "planned", "planning"],
            ["city", "cities", "City"],
            ["close", "closes", "closing"],
        ] {
            assert!(forms.iter().all(|form| stem(form) == stem(forms[0])), "{forms:?} {:?}", forms.map(stem));
        }
        for other in ["gas", "pass", "as", "é", "ÉTÉ"] {
            assert_eq!(stem(other), other.to_lowercase());
        }
    }
}
