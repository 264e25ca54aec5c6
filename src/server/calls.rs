//! Calls of functions in an answer: taken out of its text, never shown in part.
//!
//! Two ways of writing them are read: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, which models are told where their
//! template says nothing of functions, and the released model's `<function name="…"><param name="…">…</param></function>`.

use serde_json::{Map, Value};

use super::prompt::Call;
use super::reply::fresh_id;

const OPENINGS: [(&str, &str); 2] = [("<tool_call>", "</tool_call>"), ("<function name=\"", "</function>")];
/// Bytes of one call; what is longer is text after all.
const MOST: usize = 1 << 20;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Call(Call),
}

/// Looks for calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// The end of the answer that is a call, or may be the beginning of one.
    held: String,
    /// The answer is a call and nothing else, as JSON.
    whole: bool,
}

impl Calls {
    /// For an answer that must be a call.
    pub(super) fn whole() -> Calls {
        Calls { held: String::new(), whole: true }
    }

    /// More of the answer: what is certain of it.
    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        if self.whole {
            return Vec::new();
        }
        let mut parts = Vec::new();
        loop {
            let first = OPENINGS.iter().filter_map(|pair| Some((self.held.find(pair.0)?, pair))).min_by_key(|f| f.0);
            let Some((at, (open, close))) = first else {
                let whole = self.held.len();
                let may_begin = |at: &usize| {
                    let end = self.held.get(*at..).unwrap_or_default();
                    !end.is_empty() && OPENINGS.iter().any(|(open, _)| open.starts_with(end))
                };
                let from = whole.saturating_sub(OPENINGS.iter().map(|o| o.0.len()).max().unwrap_or(0));
                let certain = (from..whole).find(may_begin).unwrap_or(whole);
                let rest = self.held.split_off(certain);
                text_part(&mut parts, std::mem::replace(&mut self.held, rest));
                return parts;
            };
            let rest = self.held.split_off(at);
            text_part(&mut parts, std::mem::replace(&mut self.held, rest));
            let Some(end) = self.held.find(close).map(|at| at + close.len()) else {
                if self.held.len() > MOST {
                    text_part(&mut parts, std::mem::take(&mut self.held));
                }
                return parts;
            };
            let rest = self.held.split_off(end);
            let written = std::mem::replace(&mut self.held, rest);
            match call(&written, open, close) {
                Some(call) => parts.push(Part::Call(call)),
                None => text_part(&mut parts, written),
            }
        }
    }

    /// The answer is complete: what was held back is text after all.
    pub(super) fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        if let Some((name, arguments)) = json_call(&held).filter(|_| self.whole) {
            return vec![Part::Call(Call { id: fresh_id("call_"), name, arguments })];
        }
        let mut parts = Vec::new();
        text_part(&mut parts, held);
        parts
    }
}

/// Name and arguments of a call that is written as JSON.
fn json_call(text: &str) -> Option<(String, Value)> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let name = value.get("name")?.as_str()?.to_owned();
    Some((name, value.get("arguments").cloned().unwrap_or_else(|| Value::Object(Map::new()))))
}

fn text_part(parts: &mut Vec<Part>, text: String) {
    // White space between calls is no text.
    let behind_call = matches!(parts.last(), Some(Part::Call(_))) && text.trim().is_empty();
    if !text.is_empty() && !behind_call {
        parts.push(Part::Text(text));
    }
}

fn call(written: &str, open: &str, close: &str) -> Option<Call> {
    let inner = written.strip_prefix(open)?.strip_suffix(close)?;
    let (name, arguments) = match open {
        "<tool_call>" => json_call(inner)?,
        _ => {
            let (name, parameters) = inner.split_once("\">")?;
            (unescaped(name), Value::Object(parameters_of(parameters)?))
        }
    };
    Some(Call { id: fresh_id("call_"), name, arguments })
}

/// Reads `<param name="KEY">VALUE</param>…`. A value that is JSON and no plain word is taken as that.
fn parameters_of(text: &str) -> Option<Map<String, Value>> {
    let mut parameters = Map::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix("<param name=\"")?.split_once("\">")?;
        let (value, after) = match after.strip_prefix("<![CDATA[") {
            Some(raw) => {
                let (value, after) = raw.split_once("]]>")?;
                (value.to_owned(), after.strip_prefix("</param>")?)
            }
            None => {
                let (value, after) = after.split_once("</param>")?;
                (unescaped(value), after)
            }
        };
        let value =
            serde_json::from_str(&value).ok().filter(|v: &Value| !v.is_string()).unwrap_or(Value::String(value));
        parameters.insert(unescaped(key), value);
        rest = after.trim_start();
    }
    Some(parameters)
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Pieces of every length give the same parts.
    fn parts(text: &str) -> Vec<Part> {
        let read = |size: usize| {
            let mut calls = Calls::default();
            let chars: Vec<char> = text.chars().collect();
            let mut all: Vec<Part> = Vec::new();
            let pieces = chars.chunks(size).map(|c| c.iter().collect::<String>());
            let mut add = |more: Vec<Part>| {
                for mut part in more {
                    if let Part::Call(call) = &mut part {
                        call.id.clear();
                    }
                    match (all.last_mut(), part) {
                        (Some(Part::Text(before)), Part::Text(text)) => before.push_str(&text),
                        (_, part) => all.push(part),
                    }
                }
            };
            pieces.for_each(|piece| add(calls.push(&piece)));
            add(calls.finish());
            all
        };
        let whole = read(text.len().max(1));
        assert_eq!(read(1), whole, "{text}");
        assert_eq!(read(7), whole, "{text}");
        whole
    }

    fn found(name: &str, arguments: Value) -> Part {
        Part::Call(Call { id: String::new(), name: name.into(), arguments })
    }

    #[test]
    fn calls_are_taken_out_of_the_text_in_both_ways_of_writing_them() {
        assert_eq!(
            parts("Let me see. <tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 3}}\n</tool_call>"),
            [Part::Text("Let me see. ".into()), found("look", json!({ "at": 3 }))]
        );
        let native = "<function name=\"weather\"><param name=\"place\">Rome</param><param name=\"days\">2</param>\
                      <param name=\"note\"><![CDATA[a < b]]></param></function>";
        assert_eq!(parts(native), [found("weather", json!({ "place": "Rome", "days": 2, "note": "a < b" }))]);
        assert_eq!(parts(&format!("{native}{native}")).len(), 2);
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            "a < b <tool",
            "<tool_call>never closed",
            "<tool_call>no json</tool_call>",
            "<function name=\"x\">y</function>",
        ] {
            assert_eq!(parts(text), [Part::Text(text.into())]);
        }
    }
}
