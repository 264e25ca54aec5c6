//! A chat of Open WebUI: a map of messages with parents, or a plain list, which older versions wrote and newer ones
//! add. The list is used if it has more texts. Skips and counts messages of the system and of tools. An answer is text
//! with blocks `<details type="KIND" …>` of thoughts, executed code and tool calls.

use serde_json::Value;

use super::tree::{Content, Tree, Words};
use super::values::{attached, code_block, items, name, parts, time_ms};
use crate::core::transcript::{Message, Role};
use crate::store::arrival::LeftOut;
use crate::store::export::{SessionJson, fence_after};

const BEGIN: &str = "<details type=\"";
const END: &str = "</details>";
/// Ends a block of code, which is not escaped and may contain [`END`] itself.
const CODE_END: &str = "\n```\n</details>";

pub(super) fn conversation(conversation: &Value) -> (SessionJson, LeftOut) {
    let chat = &conversation["chat"];
    let title = chat["title"].as_str().or(conversation["title"].as_str()).unwrap_or_default();
    let history = &chat["history"];
    let from_map = messages(title, name(&history["currentId"]), &history["messages"]);
    let from_list = messages(title, None, &chat["messages"]);
    let texts = |chat: &SessionJson| chat.messages.iter().filter(|m| !m.text.trim().is_empty()).count();
    let is_list = texts(&from_list.0) > texts(&from_map.0) || from_map.0.messages.is_empty();
    if is_list { from_list } else { from_map }
}

fn messages(title: &str, head: Option<String>, json: &Value) -> (SessionJson, LeftOut) {
    let mut tree = Tree::default();
    if let Some(list) = json.as_array() {
        let all = list.iter().filter_map(|message| words(message, &mut tree.left_out)).enumerate();
        let messages: Vec<Message> = all.map(|(at, words)| words.message(at, at.checked_sub(1))).collect();
        return (SessionJson::new(title.to_owned(), messages.last().map(|m| m.id), messages), tree.left_out);
    }
    for (id, message) in items(json) {
        let words = words(message, &mut tree.left_out);
        let content = words.map_or(Content::Nothing, |words| Content::Words(Box::new(words)));
        tree.put(id, name(&message["parentId"]), content);
    }
    tree.conversation(title, head)
}

fn words(message: &Value, left_out: &mut LeftOut) -> Option<Words> {
    let mut inside = LeftOut::default();
    let content = parts(&message["content"], &mut inside);
    let role = left_out.speaker(message["role"].as_str(), !content.is_empty())?;
    left_out.add(inside);
    left_out.add(attached(&message["files"]));
    let Split { text, thinking, left_out: of_answer } = match role {
        Role::Assistant => split_answer(content),
        Role::User | Role::System | Role::Document => Split { text: content, ..Split::default() },
    };
    left_out.add(of_answer);
    Some(Words { role, text, thinking, created_ms: time_ms(&message["timestamp"]) })
}

#[derive(Debug, Default, PartialEq)]
struct Split {
    thinking: String,
    /// Includes executed code and its output as blocks.
    text: String,
    left_out: LeftOut,
}

fn split_answer(text: String) -> Split {
    let (mut thoughts, mut pieces, mut left_out) = (Vec::new(), Vec::new(), LeftOut::default());
    let (mut rest, mut at) = (text.as_str(), 0);
    let mut fence = None;
    while let Some(line) = rest.get(at..).filter(|line| !line.is_empty()) {
        if fence.is_none() && line.starts_with(BEGIN) {
            let Some(Block { kind, attributes, body, after }) = block(line) else { break };
            pieces.push(rest.get(..at).unwrap_or_default().trim().to_owned());
            (rest, at) = (after, 0);
            match kind {
                "reasoning" => thoughts.push(reasoning(body)),
                "code_interpreter" => {
                    pieces.push(code(body));
                    let printed = attributes.split_once(" output=\"").and_then(|(_, value)| value.split_once('"'));
                    match printed.map(|(escaped, _)| output(escaped)) {
                        Some(Some(output)) => pieces.push(code_block(&output, None)),
                        Some(None) => left_out.other += 1,
                        None => {}
                    }
                }
                "tool_calls" => left_out.tools += 1,
                _ => left_out.other += 1,
            }
        } else {
            let line = line.split_inclusive('\n').next().unwrap_or(line);
            fence = fence_after(fence, line);
            at += line.len();
        }
    }
    if pieces.is_empty() {
        return Split { text, ..Split::default() };
    }
    pieces.push(rest.trim().to_owned());
    for all in [&mut thoughts, &mut pieces] {
        all.retain(|text| !text.is_empty());
    }
    Split { thinking: thoughts.join("\n\n"), text: pieces.join("\n\n"), left_out }
}

struct Block<'a> {
    kind: &'a str,
    attributes: &'a str,
    body: &'a str,
    after: &'a str,
}

fn block(text: &str) -> Option<Block<'_>> {
    let (tag, _) = text.lines().next()?.split_once('>')?;
    let (kind, attributes) = tag.strip_prefix(BEGIN)?.split_once('"')?;
    let whole = text.get(tag.len() + 1..)?;
    let end = whole.find(END)?;
    let body = whole.get(..end)?.trim_start();
    let heading = body.strip_prefix("<summary>").and_then(|heading| heading.split_once("</summary>"));
    let body = heading.map_or(body, |(_, body)| body).trim_start();
    let (body, after) = match kind {
        "code_interpreter" if body.starts_with("```") => whole.get(end - body.len()..)?.split_once(CODE_END)?,
        _ => (body.trim_end(), whole.get(end + END.len()..)?),
    };
    Some(Block { kind, attributes, body, after })
}

/// Thoughts: their lines are quoted and escaped for HTML.
fn reasoning(body: &str) -> String {
    let body = unescaped(body);
    let lines = body.lines().map(|line| line.strip_prefix("> ").or_else(|| line.strip_prefix('>')).unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

fn code(body: &str) -> String {
    match body.strip_prefix("```").map(|fenced| fenced.split_once('\n').unwrap_or((fenced, ""))) {
        Some((language, code)) => code_block(code, Some(language.trim())),
        None => code_block(body, None),
    }
}

fn output(escaped: &str) -> Option<String> {
    match serde_json::from_str(&unescaped(escaped)).ok()? {
        Value::String(text) => Some(text),
        Value::Object(fields) => {
            let printed = ["stdout", "stderr", "result"].into_iter().filter_map(|name| fields.get(name)?.as_str());
            let printed = printed.map(str::trim_end).filter(|text| !text.is_empty());
            Some(printed.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

fn unescaped(written: &str) -> String {
    // The ampersand last: an earlier replacement would decode `&amp;lt;` twice.
    let marks = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#x27;", "'"), ("&#39;", "'"), ("&amp;", "&")];
    marks.into_iter().fold(written.to_owned(), |text, (written, meant)| text.replace(written, meant))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> (String, String, LeftOut) {
        let Split { thinking, text, left_out } = split_answer(text.to_owned());
        (thinking, text, left_out)
    }

    #[test]
    fn reasoning_is_no_part_of_the_answer() {
        let text = "<details type=\"reasoning\" done=\"true\" duration=\"5\">\n<summary>Thought for 5 seconds</summary>\n\
                    &gt; Is 1 &lt; 2?\n&gt; &amp;lt; is &quot;less&quot;\n</details>\n<details type=\"reasoning\">\n> plain\n</details>\nYes.";
        assert_eq!(split(text), ("Is 1 < 2?\n&lt; is \"less\"\n\nplain".into(), "Yes.".into(), LeftOut::default()));
        let used = "<details type=\"reasoning\">\n> ask\n</details>\n<details type=\"tool_calls\" arguments=\"&quot;{}&quot;\" \
                    result=\"42\">\n<summary>Tool Executed</summary>\n</details>\n<details type=\"reasoning\">\n> 42\n</details>\nIt is 42.";
        let tools = |tools| LeftOut { tools, ..LeftOut::default() };
        assert_eq!(split(used), ("ask\n\n42".into(), "It is 42.".into(), tools(1)));
        let between = "I look.\n<details type=\"tool_calls\" done=\"true\">\n</details>\n<details type=\"reasoning\">\n> so\n\
                       </details>\n    Twice.\n<details type=\"tool_calls\" done=\"true\">\n</details>";
        assert_eq!(split(between), ("so".into(), "I look.\n\nTwice.".into(), tools(2)));
        let other = "A.\n<details type=\"map\">\n<summary>Map</summary>\nhere\n</details>\n";
        assert_eq!(split(other), (String::new(), "A.".into(), LeftOut { other: 1, ..LeftOut::default() }));
    }

    #[test]
    fn what_is_no_block_stays_as_it_is() {
        for whole in [
            "Yes. \n",
            "Yes. <details type=\"reasoning\">no</details>",
            "<details type=\"reasoning\">no end",
            "<details>\n<summary>More</summary>\nhidden\n</details>\n",
            "So:\n```html\n<details type=\"reasoning\">\n``\n</details>\n```\n",
            "~~~~\n~~~\n<details type=\"tool_calls\">\n</details>\n~~~~",
            "<details type=\"code_interpreter\" done=\"true\">\n```python\nno end</details>\nYes.",
        ] {
            assert_eq!(split(whole), (String::new(), whole.to_owned(), LeftOut::default()));
        }
        let after = "```\na\n```\n<details type=\"tool_calls\">\n</details>";
        assert_eq!(split(after).1, "```\na\n```");
        // A fence indented this far opens nothing.
        let code = "So:\n\n    ```\n<details type=\"tool_calls\">\n</details>";
        assert_eq!(split(code).1, "So:\n\n    ```");
    }

    #[test]
    fn code_that_was_run_is_a_block_and_what_it_printed_the_next() {
        let run = |output: &str, code: &str| {
            format!(
                "I count.\n<details type=\"code_interpreter\" done=\"true\"{output}>\n<summary>Analyzed</summary>\n\
                 ```python\n{code}\n```\n</details>\nTwelve."
            )
        };
        let text = |output: &str| split(&run(output, "print(1 < 2)\nx = \"</details>\"")).1;
        let code = "I count.\n\n```python\nprint(1 < 2)\nx = \"</details>\"\n```";
        let printed = " output=\"{&quot;stdout&quot;: &quot;&lt;a&gt;\\n12\\n&quot;, &quot;result&quot;: &quot;n&quot;, &quot;stderr&quot;: null}\"";
        assert_eq!(text(printed), format!("{code}\n\n```\n<a>\n12\nn\n```\n\nTwelve."));
        assert_eq!(text(" output=\"&quot;12 ```&quot;\""), format!("{code}\n\n````\n12 ```\n````\n\nTwelve."));
        for nothing in ["", " output=\"\"", " output=\"{&quot;stdout&quot;: &quot;&quot;}\"", " output=\"[1]\""] {
            assert_eq!(text(nothing), format!("{code}\n\nTwelve."), "{nothing}");
        }
        assert_eq!(split(&run(" output=\"[1]\"", "1")).2, LeftOut { other: 1, ..LeftOut::default() });
        assert_eq!(split(&run("", "1")).2, LeftOut::default());
        assert_eq!(split(&run("", "")).1, "I count.\n\nTwelve.");
    }
}
