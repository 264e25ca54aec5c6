//! The contents of a message of another program: text in parts, code, and parts without an equivalent here.

use super::json::{each, fields, text};
use crate::store::arrival::LeftOut;
use crate::store::export::fence;

/// Text, or a list of texts and of objects with a text; an item without text is counted.
pub(super) fn parts(json: &str, left_out: &mut LeftOut) -> String {
    let mut all = Vec::new();
    if json.starts_with('[') {
        each(json, &mut |_, part| {
            let [own, kind, other_kind] = fields(part, ["text", "content_type", "type"]);
            match text(part).or_else(|| text(own)) {
                Some(text) => all.push(text),
                None if is_image(kind) || is_image(other_kind) => left_out.pictures += 1,
                None => left_out.other += u64::from(part.starts_with('{')),
            }
        });
    } else {
        all.extend(text(json));
    }
    all.retain(|text| !text.is_empty());
    all.join("\n\n")
}

pub(super) fn attached(list: &str) -> LeftOut {
    let mut all = LeftOut::default();
    if list.starts_with('[') {
        each(list, &mut |_, file| {
            let is_image = fields(file, ["type", "mime_type", "mimeType"]).into_iter().any(is_image);
            match file.starts_with('{') {
                true if is_image => all.pictures += 1,
                true => all.files += 1,
                false => {}
            }
        });
    }
    all
}

fn is_image(kind: &str) -> bool {
    text(kind).is_some_and(|kind| kind.starts_with("image"))
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
