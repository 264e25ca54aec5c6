//! Sizes in `tokenizer.json`, checked before anything is built from them: a short file can ask for any amount of memory.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

/// Commas of a vocabulary, and of its merges. The largest known vocabulary has a million tokens.
const ENTRIES: usize = 4_000_000;
/// Bytes of the added tokens in the file, and of all their texts.
const ADDED_BYTES: [usize; 2] = [16 << 20, 2 << 20];
/// Bytes of a part of the file other than the vocabulary; known ones have kilobytes.
const PART_BYTES: usize = 64 << 10;
/// Bytes of a normalizer, which may have a table of characters.
const NORMALIZER_BYTES: usize = 4 << 20;
const STEPS: usize = 64;
/// How many times longer the steps of a normalizer may make a text, one after the other.
const GROWTH: usize = 16;
/// Bytes that a step may put in front of a text.
const PREPENDED_BYTES: usize = 64;

type Parts<'a> = BTreeMap<String, &'a RawValue>;

/// The parts of the file that say how text is prepared, without the vocabulary.
pub(super) fn outline(file: &[u8]) -> Result<Value, String> {
    let parts: Parts<'_> = serde_json::from_slice(file).map_err(|e| e.to_string())?;
    let mut outline = serde_json::Map::new();
    for (name, part) in parts {
        let value = match name.as_str() {
            "model" => model(part)?,
            "added_tokens" => added(part)?,
            _ => bounded(&name, part)?,
        };
        if name == "normalizer" {
            let grows = growth(&value, &mut 0)?;
            if grows > GROWTH {
                return Err(format!("normalizer makes a text up to {grows} times longer, more than {GROWTH}"));
            }
        }
        outline.insert(name, value);
    }
    Ok(Value::Object(outline))
}

fn too_large(name: &str, size: usize, unit: &str, most: usize) -> String {
    format!("{name} has {size} {unit}, more than {most}")
}

fn bounded(name: &str, part: &RawValue) -> Result<Value, String> {
    let most = if name == "normalizer" { NORMALIZER_BYTES } else { PART_BYTES };
    let size = part.get().len();
    if size > most {
        return Err(too_large(name, size, "bytes", most));
    }
    serde_json::from_str(part.get()).map_err(|e| format!("{name}: {e}"))
}

fn model(part: &RawValue) -> Result<Value, String> {
    let fields: Parts<'_> = serde_json::from_str(part.get()).map_err(|e| format!("model: {e}"))?;
    let mut outline = serde_json::Map::new();
    for (name, field) in fields {
        let path = format!("model.{name}");
        if matches!(name.as_str(), "vocab" | "merges") {
            let count = field.get().matches(',').count() + 1;
            if count > ENTRIES {
                return Err(too_large(&path, count, "entries", ENTRIES));
            }
        } else {
            outline.insert(name, bounded(&path, field)?);
        }
    }
    Ok(Value::Object(outline))
}

fn added(part: &RawValue) -> Result<Value, String> {
    let [in_file, of_texts] = ADDED_BYTES;
    let size = part.get().len();
    if size > in_file {
        return Err(too_large("added_tokens", size, "bytes", in_file));
    }
    let tokens: Vec<Value> = serde_json::from_str(part.get()).map_err(|e| format!("added_tokens: {e}"))?;
    let size = tokens.iter().filter_map(|token| token["content"].as_str()).map(str::len).sum();
    if size > of_texts { Err(too_large("added_tokens", size, "bytes of text", of_texts)) } else { Ok(tokens.into()) }
}

/// How many times longer a normalizer may make a text. `steps` counts those that were looked at.
fn growth(normalizer: &Value, steps: &mut usize) -> Result<usize, String> {
    *steps += 1;
    if *steps > STEPS {
        return Err(format!("normalizer has more than {STEPS} steps"));
    }
    let field = |name: &str| normalizer[name].as_str().map_or(0, str::len);
    if field("prepend") > PREPENDED_BYTES {
        return Err(too_large("normalizer.prepend", field("prepend"), "bytes", PREPENDED_BYTES));
    }
    if let Some(parts) = normalizer["normalizers"].as_array() {
        return parts.iter().try_fold(1usize, |grows, part| Ok(grows.saturating_mul(growth(part, steps)?)));
    }
    let content = field("content");
    Ok(match &normalizer["pattern"] {
        // It may match nothing at all, in front of each character.
        Value::Object(pattern) if pattern.contains_key("Regex") => 1 + content,
        Value::Object(pattern) => {
            let length = pattern.get("String").and_then(Value::as_str).map_or(0, str::len);
            content.div_ceil(length.max(1)).max(1)
        }
        _ => 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(part: &str, value: &str) -> String {
        let file = format!(r#"{{"model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": []}}, "{part}": {value}}}"#);
        outline(file.as_bytes()).map(|_| String::new()).unwrap_or_else(|why| why)
    }

    #[test]
    fn sizes_are_refused_by_name_and_value() {
        let long = |n: usize| "y".repeat(n);
        let replace = |from: &str, to: &str| format!(r#"{{"type":"Replace","pattern":{{{from}}},"content":"{to}"}}"#);
        let double = replace(r#""String":"a""#, "aa");
        let sequence =
            |n: usize| format!(r#"{{"type":"Sequence","normalizers":[{}]}}"#, vec![double.clone(); n].join(","));
        for (part, value, why) in [
            (
                "normalizer",
                format!(r#"{{"type":"Prepend","prepend":"{}"}}"#, long(3_000)),
                "normalizer.prepend has 3000 bytes",
            ),
            ("normalizer", replace(r#""String":" ""#, &long(99)), "up to 99 times longer, more than 16"),
            ("normalizer", replace(r#""Regex":"x*""#, &long(16)), "up to 17 times longer"),
            ("normalizer", sequence(5), "up to 32 times longer"),
            ("normalizer", sequence(99), "more than 64 steps"),
            ("post_processor", format!("[{}0]", "0,".repeat(40_000)), "post_processor has 80003 bytes"),
            (
                "added_tokens",
                format!(r#"[{{"content":"{}"}}]"#, long(3 << 20)),
                "added_tokens has 3145728 bytes of text",
            ),
            ("added_tokens", "7".into(), "added_tokens: invalid type"),
            ("unknown", format!(r#""{}""#, long(70 << 10)), "unknown has 71682 bytes"),
        ] {
            let message = refused(part, &value);
            assert!(message.contains(why), "{part}: {message}");
        }
        assert_eq!(refused("normalizer", &sequence(4)), "");
        assert_eq!(refused("normalizer", &replace(r#""String":" ""#, "▁")), "");
        assert_eq!(refused("normalizer", &format!(r#"{{"precompiled_charsmap":"{}"}}"#, long(300_000))), "");
        let merges = format!(r#"{{"model":{{"merges":[{}0]}}}}"#, "0,".repeat(ENTRIES));
        assert_eq!(outline(merges.as_bytes()).unwrap_err(), "model.merges has 4000001 entries, more than 4000000");
    }
}
