//! The space that some tokenizers put in front of every stretch of text.

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

impl OwnSpace {
    pub(super) fn of(json: &serde_json::Value) -> OwnSpace {
        let kind = |v: &serde_json::Value| v.get("type").and_then(|t| t.as_str()).unwrap_or("").to_owned();
        let says = |v: &serde_json::Value| match kind(v).as_str() {
            "Prepend" => OwnSpace::Always,
            "Metaspace" if v.get("prepend_scheme").and_then(|s| s.as_str()) != Some("never") => OwnSpace::UnlessSpace,
            "ByteLevel" if v.get("add_prefix_space").and_then(|b| b.as_bool()) == Some(true) => OwnSpace::UnlessSpace,
            _ => OwnSpace::None,
        };
        let steps = |part: &str, list: &str| match json.get(part) {
            Some(v) => v.get(list).and_then(|l| l.as_array()).cloned().unwrap_or_else(|| vec![v.clone()]),
            None => Vec::new(),
        };
        let all = steps("normalizer", "normalizers").into_iter().chain(steps("pre_tokenizer", "pretokenizers"));
        all.map(|v| says(&v)).find(|s| *s != OwnSpace::None).unwrap_or_default()
    }
}

/// A part of `tokenizer.json` without its steps that put a space in front.
pub(super) fn without_own_space(mut part: serde_json::Value) -> Option<serde_json::Value> {
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
