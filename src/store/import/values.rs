//! JSON of other programs: values, and the contents of a message. A value of an unexpected type counts as missing.

use serde_json::Value;

use crate::store::arrival::LeftOut;
use crate::store::export::fence;
use crate::text::surrogates;

/// A conversation of a file; half a surrogate pair reads as U+FFFD. `Null` for one that is nested too deep.
pub(super) fn parsed(json: &str) -> Value {
    serde_json::from_str(&surrogates::mended(json)).unwrap_or_default()
}

/// The items of an object, or of a list, named by their ids or those of their messages, else by their numbers.
pub(super) fn items(json: &Value) -> Vec<(String, &Value)> {
    match json {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(items) => {
            let id = |value: &Value| name(&value["id"]).or_else(|| name(&value["message"]["id"]));
            items.iter().enumerate().map(|(at, value)| (id(value).unwrap_or(at.to_string()), value)).collect()
        }
        _ => Vec::new(),
    }
}

/// A name of a node: a text or a number.
pub(super) fn name(json: &Value) -> Option<String> {
    json.as_str().map(str::to_owned).or_else(|| json.is_number().then(|| json.to_string()))
}

/// Milliseconds of a time in seconds, milli-, micro- or nanoseconds since 1970, or as ISO 8601 text; 0 if unknown.
pub(super) fn time_ms(json: &Value) -> i64 {
    let text = json.as_str().map(str::trim);
    let ms = match (text.map_or_else(|| json.as_f64(), |text| text.parse().ok()), text) {
        // Each limit is some thousand years from 1970 in one unit and in 1973 in the next.
        (Some(n), _) if n < 1e11 => n * 1e3,
        (Some(n), _) if n < 1e14 => n,
        (Some(n), _) if n < 1e17 => n / 1e3,
        (Some(n), _) => n / 1e6,
        (None, Some(text)) => iso_ms(text).unwrap_or(0) as f64,
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

/// Text, or a list of texts and of objects with a text; an item without text is counted.
pub(super) fn parts(json: &Value, left_out: &mut LeftOut) -> String {
    let mut all = Vec::new();
    if let Value::Array(parts) = json {
        for part in parts {
            match part.as_str().or(part["text"].as_str()) {
                Some(text) => all.push(text),
                None if is_image(&part["content_type"]) || is_image(&part["type"]) => left_out.pictures += 1,
                None => left_out.other += u64::from(part.is_object() || part.is_array()),
            }
        }
    } else {
        all.extend(json.as_str());
    }
    all.retain(|text| !text.is_empty());
    all.join("\n\n")
}

pub(super) fn attached(list: &Value) -> LeftOut {
    let mut all = LeftOut::default();
    for file in list.as_array().into_iter().flatten().filter(|file| file.is_object()) {
        match ["type", "mime_type", "mimeType"].into_iter().any(|name| is_image(&file[name])) {
            true => all.pictures += 1,
            false => all.files += 1,
        }
    }
    all
}

fn is_image(kind: &Value) -> bool {
    kind.as_str().is_some_and(|kind| kind.starts_with("image"))
}

pub(super) fn code_block(code: &str, language: Option<&str>) -> String {
    if code.trim().is_empty() {
        return String::new();
    }
    let (fence, language) = (fence(code), language.filter(|l| *l != "unknown").unwrap_or_default());
    format!("{fence}{language}\n{}\n{fence}", code.trim_end())
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
            assert_eq!(time_ms(&parsed(json)), ms, "{json}");
        }
        for unknown in ["null", "-5", "1e300", "\"soon\"", "\"\"", "true", "[1]", "{}", "\"NaN\"", "\"inf\""] {
            assert_eq!(time_ms(&parsed(unknown)), 0, "{unknown}");
        }
    }

    #[test]
    fn half_a_surrogate_pair_costs_no_more_than_itself() {
        assert_eq!(parsed(r#""a\ud83d b""#), "a\u{FFFD} b");
        assert_eq!(parsed(r#""\\ud83d \ud83d\ude42 \uDE42\ud83d""#), "\\ud83d 🙂 \u{FFFD}\u{FFFD}");
        let last = parsed(r#"{"\ud83d":1,"a":2,"a":"x\ud83d"}"#);
        assert_eq!((&last["a"], &last["b"]), (&Value::from("x\u{FFFD}"), &Value::Null));
    }

    #[test]
    fn code_is_a_block_of_its_own() {
        assert_eq!(code_block("print(1)\n", Some("python")), "```python\nprint(1)\n```");
        assert_eq!(code_block("```x```", Some("unknown")), "````\n```x```\n````");
        assert_eq!(code_block(" ", None), "");
    }
}
