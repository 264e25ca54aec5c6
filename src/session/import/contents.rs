//! What a message of another program holds: text in parts, code, thoughts, and what there is no place for here.

use serde::de::{MapAccess, SeqAccess};

use super::lenient::{Any, Key, Lenient, step_over, value};
use crate::session::arrival::LeftOut;
use crate::session::export::fence;

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

/// What Open WebUI writes before an answer, taken off it.
#[derive(Debug, PartialEq)]
pub(super) struct Split {
    pub thinking: String,
    /// Calls of tools with their results, which are left out.
    pub tools: u64,
    pub text: String,
}

/// The thoughts and the calls of tools that Open WebUI writes at the beginning of an answer, and the answer.
pub(super) fn split_answer(text: String) -> Split {
    let (mut thoughts, mut tools, mut rest) = (Vec::new(), 0, text.as_str());
    loop {
        if let Some((thought, after)) = leading_reasoning(rest) {
            thoughts.push(thought);
            rest = after;
        } else if let Some((_, after)) = leading_block(rest, "tool_calls") {
            tools += 1;
            rest = after;
        } else {
            break;
        }
    }
    if thoughts.is_empty() && tools == 0 {
        return Split { thinking: String::new(), tools, text };
    }
    Split { thinking: thoughts.join("\n\n"), tools, text: rest.trim_start().to_owned() }
}

/// What is in a block `<details type="KIND" …>…</details>` that a text begins with, and what follows it.
fn leading_block<'a>(text: &'a str, kind: &str) -> Option<(&'a str, &'a str)> {
    let tag = text.trim_start().strip_prefix("<details type=\"")?.strip_prefix(kind)?.strip_prefix('"')?;
    tag.split_once('>')?.1.split_once("</details>")
}

/// A block `<details type="reasoning" …><summary>…</summary>…</details>`: its lines are quoted, its characters written for HTML.
fn leading_reasoning(text: &str) -> Option<(String, &str)> {
    let (block, after) = leading_block(text, "reasoning")?;
    let block = block.trim();
    let body = block.strip_prefix("<summary>").and_then(|heading| heading.split_once("</summary>"));
    let mut body = body.map_or(block, |(_, body)| body).trim().to_owned();
    // The ampersand last: what it begins was written so.
    for (written, meant) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#x27;", "'"), ("&#39;", "'"), ("&amp;", "&")]
    {
        body = body.replace(written, meant);
    }
    let lines = body.lines().map(|line| line.strip_prefix("> ").or_else(|| line.strip_prefix('>')).unwrap_or(line));
    Some((lines.collect::<Vec<_>>().join("\n"), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_at_the_beginning_is_no_part_of_the_answer() {
        let text = "<details type=\"reasoning\" done=\"true\" duration=\"5\">\n<summary>Thought for 5 seconds</summary>\n\
                    &gt; Is 1 &lt; 2?\n&gt; &amp;lt; is &quot;less&quot;\n</details>\n<details type=\"reasoning\">\n> plain\n</details>\nYes.";
        let split = |text: &str| {
            let Split { thinking, tools, text } = split_answer(text.to_owned());
            (thinking, tools, text)
        };
        assert_eq!(split(text), ("Is 1 < 2?\n&lt; is \"less\"\n\nplain".into(), 0, "Yes.".into()));
        let used = "<details type=\"reasoning\">\n> ask\n</details>\n<details type=\"tool_calls\" arguments=\"&quot;{}&quot;\" \
                    result=\"42\">\n<summary>Tool Executed</summary>\n</details>\n<details type=\"reasoning\">\n> 42\n</details>\nIt is 42.";
        assert_eq!(split(used), ("ask\n\n42".into(), 1, "It is 42.".into()));
        for whole in ["Yes.", "Yes. <details type=\"reasoning\">no</details>", "<details type=\"reasoning\">no end"] {
            assert_eq!(split(whole), (String::new(), 0, whole.to_owned()));
        }
    }

    #[test]
    fn code_is_a_block_that_ends_behind_it() {
        assert_eq!(code_block("print(1)\n", Some("python")), "```python\nprint(1)\n```");
        assert_eq!(code_block("```x```", Some("unknown")), "````\n```x```\n````");
        assert_eq!(code_block(" ", None), "");
    }
}
