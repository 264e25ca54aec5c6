//! What a message of another program holds: text in parts, code, thoughts, and what there is no place for here.

use serde::de::{MapAccess, SeqAccess};

use super::lenient::{Any, Key, Lenient, step_over, value};
use crate::store::arrival::LeftOut;
use crate::store::export::fence;

/// Text in parts: strings, or objects with a text; others, such as pictures, have none.
#[derive(Default)]
pub(super) struct Parts {
    pub text: String,
    pub left_out: LeftOut,
}

impl Lenient for Parts {
    fn text(text: &str) -> Option<Parts> {
        Some(Parts { text: text.to_owned(), left_out: LeftOut::default() })
    }

    fn list<'de, A: SeqAccess<'de>>(mut items: A) -> Result<Option<Parts>, A::Error> {
        let mut all = Parts::default();
        while let Some(Any(part)) = items.next_element::<Any<Part>>()? {
            match part {
                Some(Part::Text(text)) if all.text.is_empty() => all.text = text,
                Some(Part::Text(text)) if !text.is_empty() => {
                    all.text.push_str("\n\n");
                    all.text.push_str(&text);
                }
                Some(Part::Text(_)) | None => {}
                Some(Part::Picture) => all.left_out.pictures += 1,
                Some(Part::Other) => all.left_out.other += 1,
            }
        }
        Ok(Some(all))
    }
}

enum Part {
    Text(String),
    Picture,
    Other,
}

impl Lenient for Part {
    fn text(text: &str) -> Option<Part> {
        Some(Part::Text(text.to_owned()))
    }

    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Part>, A::Error> {
        let (mut text, mut kind) = (None, None::<String>);
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Text => text = value(&mut fields)?,
                Key::ContentType | Key::Type => kind = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        let is_picture = kind.is_some_and(|kind| kind.starts_with("image"));
        Ok(Some(match text {
            Some(text) => Part::Text(text),
            None if is_picture => Part::Picture,
            None => Part::Other,
        }))
    }
}

/// A list of thoughts, each with a heading or none.
pub(super) struct Thoughts(pub String);

impl Lenient for Thoughts {
    fn list<'de, A: SeqAccess<'de>>(mut items: A) -> Result<Option<Thoughts>, A::Error> {
        let mut all = Vec::new();
        while let Some(Any(thought)) = items.next_element::<Any<Thought>>()? {
            all.extend(thought.map(|thought| thought.0).filter(|text| !text.is_empty()));
        }
        Ok(Some(Thoughts(all.join("\n\n"))))
    }
}

struct Thought(String);

impl Lenient for Thought {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Thought>, A::Error> {
        let (mut heading, mut text) = (None::<String>, None::<String>);
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Summary => heading = value(&mut fields)?,
                Key::Content => text = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        let parts = heading.into_iter().chain(text).filter(|part| !part.is_empty());
        Ok(Some(Thought(parts.collect::<Vec<_>>().join("\n"))))
    }
}

/// How many files are attached, pictures apart.
#[derive(Default)]
pub(super) struct Attached {
    pub pictures: u64,
    pub files: u64,
}

impl Lenient for Attached {
    fn list<'de, A: SeqAccess<'de>>(mut items: A) -> Result<Option<Attached>, A::Error> {
        let mut all = Attached::default();
        while let Some(Any(file)) = items.next_element::<Any<File>>()? {
            match file {
                Some(File::Picture) => all.pictures += 1,
                Some(File::Other) => all.files += 1,
                None => {}
            }
        }
        Ok(Some(all))
    }
}

enum File {
    Picture,
    Other,
}

impl Lenient for File {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<File>, A::Error> {
        let mut is_picture = false;
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Type | Key::MimeType => {
                    is_picture |= value::<String, A>(&mut fields)?.is_some_and(|kind| kind.starts_with("image"));
                }
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(if is_picture { File::Picture } else { File::Other }))
    }
}

/// Code as a block of Markdown.
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
    fn code_is_a_block_that_ends_behind_it() {
        assert_eq!(code_block("print(1)\n", Some("python")), "```python\nprint(1)\n```");
        assert_eq!(code_block("```x```", Some("unknown")), "````\n```x```\n````");
        assert_eq!(code_block(" ", None), "");
    }
}
