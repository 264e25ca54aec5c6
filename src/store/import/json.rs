//! JSON of other programs, read field by field.
//!
//! A value of an unexpected type counts as missing, the last of several fields with one name counts, and half a
//! surrogate pair in a text reads as U+FFFD: one odd value costs nothing but itself.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

pub(super) fn each<'a>(json: &'a str, put: &mut dyn FnMut(Cow<'a, str>, &'a str)) {
    // The syntax was checked when the file was read; values of other types have no items.
    let _ = serde_json::Deserializer::from_str(json).deserialize_any(Each(put));
}

pub(super) fn fields<'a, const N: usize>(json: &'a str, names: [&str; N]) -> [&'a str; N] {
    let mut found = ["null"; N];
    if json.starts_with('{') {
        each(json, &mut |name, value| {
            if let Some((_, place)) = names.iter().zip(&mut found).find(|(wanted, _)| **wanted == name) {
                *place = value;
            }
        });
    }
    found
}

pub(super) fn text(json: &str) -> Option<String> {
    serde_json::from_str::<Text<'_>>(json).ok().map(|text| text.0.into_owned())
}

/// A time in seconds, milliseconds, microseconds or nanoseconds since 1970, or as ISO 8601 text, in milliseconds; 0 if
/// unknown.
pub(super) fn time_ms(json: &str) -> i64 {
    let written = text(json);
    let number = match &written {
        Some(text) => text.trim().parse().ok(),
        None => serde_json::from_str::<f64>(json).ok(),
    };
    let ms = match (number, &written) {
        // Each limit is some thousand years from 1970 in one unit and in 1973 in the next.
        (Some(n), _) if n < 1e11 => n * 1e3,
        (Some(n), _) if n < 1e14 => n,
        (Some(n), _) if n < 1e17 => n / 1e3,
        (Some(n), _) => n / 1e6,
        (None, Some(text)) => iso_ms(text.trim()).unwrap_or(0) as f64,
        (None, None) => 0.0,
    };
    // Until the year 5138.
    if (0.0..1e14).contains(&ms) { ms as i64 } else { 0 }
}

/// Without an offset it is UTC.
fn iso_ms(text: &str) -> Option<i64> {
    let at = text.parse::<jiff::Timestamp>().or_else(|_| {
        let civil = text.parse::<jiff::civil::DateTime>()?;
        Ok::<_, jiff::Error>(civil.to_zoned(jiff::tz::TimeZone::UTC)?.timestamp())
    });
    at.ok().map(jiff::Timestamp::as_millisecond)
}

struct Each<'f, 'a>(&'f mut dyn FnMut(Cow<'a, str>, &'a str));

impl<'a> Visitor<'a> for Each<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or an object")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(item) = list.next_element::<&RawValue>()? {
            (self.0)(Cow::Borrowed(""), item.get());
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'a>>(self, mut object: A) -> Result<(), A::Error> {
        while let Some((Text(name), value)) = object.next_entry::<Text<'a>, &RawValue>()? {
            (self.0)(name, value.get());
        }
        Ok(())
    }
}

struct Text<'a>(Cow<'a, str>);

impl<'a> Deserialize<'a> for Text<'a> {
    fn deserialize<D: Deserializer<'a>>(json: D) -> Result<Self, D::Error> {
        // As bytes, because a Rust string cannot hold half a surrogate pair.
        json.deserialize_bytes(TextVisitor)
    }
}

struct TextVisitor;

impl<'a> Visitor<'a> for TextVisitor {
    type Value = Text<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_bytes<E: Error>(self, bytes: &'a [u8]) -> Result<Text<'a>, E> {
        Ok(Text(String::from_utf8_lossy(bytes)))
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text<'a>, E> {
        Ok(Text(String::from_utf8_lossy(bytes).into_owned().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_in_every_unit_and_as_text() {
        for (json, ms) in [
            ("1755000000", 1_755_000_000_000),
            ("1755000000.25", 1_755_000_000_250),
            ("1755000000123", 1_755_000_000_123),
            ("1755000000123456", 1_755_000_000_123),
            ("1755000000123456789", 1_755_000_000_123),
            ("\"1755000000\"", 1_755_000_000_000),
            ("\"2026-08-12T10:00:00Z\"", 1_786_528_800_000),
            ("\"2026-08-12T12:00:00.5+02:00\"", 1_786_528_800_500),
            ("\"2026-08-12 10:00:00\"", 1_786_528_800_000),
            ("\"2026-08-12\"", 1_786_492_800_000),
            ("4.5", 4_500),
        ] {
            assert_eq!(time_ms(json), ms, "{json}");
        }
        for unknown in ["null", "-5", "1e300", "\"soon\"", "\"\"", "true", "[1]", "{}", "\"NaN\"", "\"inf\""] {
            assert_eq!(time_ms(unknown), 0, "{unknown}");
        }
    }

    #[test]
    fn half_a_surrogate_pair_costs_no_more_than_itself() {
        assert_eq!(text(r#""a\ud83d b""#).unwrap().replace('\u{FFFD}', "?"), "a??? b");
        assert_eq!(fields(r#"{"\ud83d":1,"a":2,"a":"x\ud83d"}"#, ["a", "b"]), [r#""x\ud83d""#, "null"]);
        assert_eq!((text("17"), text("null"), text("[1]"), text("{}")), (None, None, None, None));
    }
}
