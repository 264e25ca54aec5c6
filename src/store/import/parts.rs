//! The contents of a message of another program: text in parts, code, and parts without an equivalent here.

use serde_json::Value;

use crate::store::arrival::LeftOut;
use crate::store::export::fence;

/// Text, or a list of texts and of objects with a text; an item without text is counted.
pub(super) fn parts(json: &Value, left_out: &mut LeftOut) -> String {
    let mut all = Vec::new();
    if let Value::Array(parts) = json {
        for part in parts {
            match part.as_str().or(part["text"].as_str()) {
                Some(text) => all.push(text),
                None if is_image(&part["content_type"]) || is_image(&part["type"]) => left_out.pictures += 1,
                None => left_out.other += u64::from(part.is_object()),
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
    fn code_is_a_block_of_its_own() {
        assert_eq!(code_block("print(1)\n", Some("python")), "```python\nprint(1)\n```");
        assert_eq!(code_block("```x```", Some("unknown")), "````\n```x```\n````");
        assert_eq!(code_block(" ", None), "");
    }
}
