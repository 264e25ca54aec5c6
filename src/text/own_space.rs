//! The space that some tokenizers put in front of every stretch of text.

use serde_json::Value;

/// What precedes the first of some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Before {
    /// Nothing or a special token: the tokenizer adds its own space.
    #[default]
    Edge,
    Text,
}

/// When a tokenizer puts a space of its own in front of a stretch of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum OwnSpace {
    #[default]
    None,
    Always,
    /// Unless the text begins with one.
    UnlessSpace,
}

/// The steps of a part of `tokenizer.json`: those of its list, or the part itself.
pub(super) fn steps<'a>(json: &'a Value, part: &str, list: &str) -> &'a [Value] {
    let part = &json[part];
    part[list].as_array().map_or(std::slice::from_ref(part), Vec::as_slice)
}

/// The type of a step.
pub(super) fn kind(step: &Value) -> &str {
    step["type"].as_str().unwrap_or("none")
}

impl OwnSpace {
    pub(super) fn of(json: &Value) -> OwnSpace {
        let says = |step: &Value| match kind(step) {
            "Prepend" => OwnSpace::Always,
            "Metaspace" if step["prepend_scheme"] != "never" => OwnSpace::UnlessSpace,
            "ByteLevel" if step["add_prefix_space"] == true => OwnSpace::UnlessSpace,
            _ => OwnSpace::None,
        };
        let (first, then) = (steps(json, "normalizer", "normalizers"), steps(json, "pre_tokenizer", "pretokenizers"));
        first.iter().chain(then).map(says).find(|says| *says != OwnSpace::None).unwrap_or_default()
    }
}

/// A part of `tokenizer.json` without its steps that put a space in front.
pub(super) fn without_own_space(mut part: Value) -> Option<Value> {
    for list in ["normalizers", "pretokenizers"] {
        if let Some(steps) = part.get_mut(list).and_then(|l| l.as_array_mut()) {
            *steps = std::mem::take(steps).into_iter().filter_map(without_own_space).collect();
            return Some(part);
        }
    }
    match part.get("type").and_then(|t| t.as_str()) {
        Some("Prepend") | None => return None,
        Some("Metaspace") => part["prepend_scheme"] = "never".into(),
        Some("ByteLevel") => part["add_prefix_space"] = false.into(),
        Some(_) => {}
    }
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizers_that_put_a_space_in_front_in_other_ways_are_known() {
        let of = |text: &str| OwnSpace::of(&serde_json::from_str(text).unwrap());
        assert_eq!(of(r#"{"normalizer": {"type": "Prepend", "prepend": "▁"}}"#), OwnSpace::Always);
        assert_eq!(of(r#"{"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}}"#), OwnSpace::UnlessSpace);
        assert_eq!(of(r#"{"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"}}"#), OwnSpace::None);
        assert_eq!(of(r#"{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}}"#), OwnSpace::UnlessSpace);
        assert_eq!(of(r#"{"normalizer": null, "pre_tokenizer": null}"#), OwnSpace::None);
    }
}
