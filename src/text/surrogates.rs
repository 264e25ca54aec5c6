//! Surrogates in JSON: two escapes are a character beyond U+FFFF, and one alone is not valid in a text. Pure.

use std::borrow::Cow;

pub const fn is_high(unit: u16) -> bool {
    unit & 0xFC00 == 0xD800
}

pub const fn is_low(unit: u16) -> bool {
    unit & 0xFC00 == 0xDC00
}

/// The code unit of an escape `\uXXXX` at the beginning of a text.
fn escape(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// JSON with U+FFFD for every lone surrogate, which other programs write where they cut a character.
pub fn mended(json: &str) -> Cow<'_, str> {
    match json.contains(r"\ud") || json.contains(r"\uD") {
        true => replaced(json, |_| r"\ufffd".to_owned()).into(),
        false => json.into(),
    }
}

/// JSON with every lone surrogate replaced.
pub fn replaced(json: &str, with: impl Fn(u16) -> String) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let unit = escape(from);
        let pair = unit.is_some_and(is_high) && from.get(6..).and_then(escape).is_some_and(is_low);
        let length = match unit {
            Some(_) if pair => 12,
            Some(unit) if is_high(unit) || is_low(unit) => {
                out.push_str(&with(unit));
                rest = from.get(6..).unwrap_or("");
                continue;
            }
            // An escaped backslash hides the next letter.
            _ => 1 + from.chars().nth(1).map_or(0, char::len_utf8),
        };
        let (escaped, after) = from.split_at_checked(length).unwrap_or((from, ""));
        out.push_str(escaped);
        rest = after;
    }
    out + rest
}
