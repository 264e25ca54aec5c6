//! Calls of functions in an answer: taken out of its text, their arguments told as they are written.
//!
//! Two ways of writing them are read: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, which models are told where their
//! template says nothing of functions, and the released model's `<function name="…"><param name="…">…</param></function>`
//! ([`native`]). A call is one once its name is there and its arguments begin; what does not come that far is text. One whose
//! arguments break off stays a call whose arguments are no JSON, as other servers tell it.

mod native;

use serde_json::{Map, Value};

use super::prompt::Call;
use super::reply::fresh_id;
use native::Native;

/// The mark before and behind a call that is written as JSON.
const JSON: (&str, &str) = ("<tool_call>", "</tool_call>");
const OPENINGS: [(&str, &str); 2] = [JSON, native::MARKS];
/// Bytes that may become a call; what is longer is text after all.
const MOST: usize = 1 << 20;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    /// A call begins: its id and its name.
    Begun(String, String),
    /// More of the arguments of the call that has begun.
    Arguments(String),
    /// It has ended: all of it.
    Call(Call),
}

/// Looks for calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// The end of the answer that may be the beginning of a call, or of a mark in one.
    held: String,
    /// The answer is a call and nothing else, as JSON.
    whole: bool,
    /// Only functions of these names are called; any other call is text.
    only: Option<Vec<String>>,
    /// What was last was a call: white space behind it is no text.
    behind_call: bool,
    open: Option<Open>,
}

/// A call that is being written.
#[derive(Clone, Debug)]
struct Open {
    id: String,
    name: String,
    written: String,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    Json(Scan),
    /// Its arguments are complete, the mark behind it is to come.
    Closing,
    Native(Native),
}

impl Calls {
    /// For an answer that must be a call.
    pub(super) fn whole() -> Calls {
        Calls { whole: true, ..Calls::default() }
    }

    /// For one in which only functions of these names may be called.
    pub(super) fn only(names: Vec<String>) -> Calls {
        Calls { only: Some(names), ..Calls::default() }
    }

    /// More of the answer: what is certain of it.
    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while match &self.open {
            None => self.look(&mut parts),
            Some(_) => self.go_on(&mut parts),
        } {}
        parts
    }

    /// Looks for the next call; whether there is more to do with what is held.
    fn look(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.whole {
            return self.open_json(0, parts);
        }
        let first = OPENINGS.iter().filter_map(|pair| Some((self.held.find(pair.0)?, pair))).min_by_key(|f| f.0);
        let Some((at, &(open, close))) = first else {
            let certain = certain(&self.held, &OPENINGS.map(|pair| pair.0));
            let text = self.cut(certain);
            self.text(text, parts);
            return false;
        };
        let text = self.cut(at);
        self.text(text, parts);
        let opened = match open == JSON.0 {
            true => self.open_json(open.len(), parts),
            false => self.open_native(open.len(), parts),
        };
        if opened {
            return true;
        }
        // Another order of its fields, or no call.
        let Some(end) = self.held.find(close).map(|at| at + close.len()) else {
            if self.held.len() > MOST {
                let text = std::mem::take(&mut self.held);
                self.text(text, parts);
            }
            return false;
        };
        let written = self.cut(end);
        let inner = written.strip_prefix(open).and_then(|w| w.strip_suffix(close)).unwrap_or_default();
        match json_call(inner).filter(|(name, _)| open == JSON.0 && self.may_call(name)) {
            Some((name, arguments)) => self.all_of(name, arguments, parts),
            None => self.text(written, parts),
        }
        true
    }

    /// Begins with a call whose JSON is `at` bytes behind the beginning of what is held, if it is one for sure.
    fn open_json(&mut self, at: usize, parts: &mut Vec<Part>) -> bool {
        let Head::At(name, arguments) = head(self.held.get(at..).unwrap_or_default()) else { return false };
        if !self.may_call(&name) {
            return false;
        }
        self.cut(at + arguments);
        self.begin(name, Form::Json(Scan::default()), parts);
        true
    }

    /// The same with a call that is written as elements.
    fn open_native(&mut self, at: usize, parts: &mut Vec<Part>) -> bool {
        let Some((name, body)) = native::head(self.held.get(at..).unwrap_or_default()) else { return false };
        if !self.may_call(&name) {
            return false;
        }
        self.cut(at + body);
        self.begin(name, Form::Native(Native::default()), parts);
        true
    }

    fn text(&mut self, text: String, parts: &mut Vec<Part>) {
        let text = if self.behind_call { text.trim_start().to_owned() } else { text };
        if !text.is_empty() {
            self.behind_call = false;
            parts.push(Part::Text(text));
        }
    }

    fn may_call(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|n| n == name))
    }

    fn begin(&mut self, name: String, form: Form, parts: &mut Vec<Part>) {
        let id = fresh_id("call_");
        parts.push(Part::Begun(id.clone(), name.clone()));
        self.open = Some(Open { id, name, written: String::new(), form });
    }

    /// Tells a call that was found in one piece.
    fn all_of(&mut self, name: String, arguments: String, parts: &mut Vec<Part>) {
        self.begin(name, Form::Closing, parts);
        self.more(arguments, parts);
        self.end(parts);
        self.open = None;
    }

    /// Goes on with the call that is open; whether there is more to do with what is held.
    fn go_on(&mut self, parts: &mut Vec<Part>) -> bool {
        let Some(Open { form, .. }) = &mut self.open else { return false };
        match form {
            Form::Json(scan) => {
                let end = scan.end(&self.held);
                let piece = self.cut(end.unwrap_or(self.held.len()));
                self.more(piece, parts);
                if end.is_some() {
                    self.end(parts);
                }
                end.is_some()
            }
            Form::Closing => {
                let tail = self.held.trim_start();
                let tail = tail.strip_prefix('}').unwrap_or(tail).trim_start();
                if let Some(rest) = tail.strip_prefix(JSON.1) {
                    self.held = rest.to_owned();
                } else if self.whole || JSON.1.starts_with(tail) {
                    return false;
                } else {
                    // Nobody closed it: what follows is text.
                    self.held = tail.to_owned();
                }
                self.open = None;
                true
            }
            Form::Native(native) => {
                let step = native.step(&mut self.held);
                self.more(step.arguments, parts);
                if step.ended {
                    self.end(parts);
                    self.open = None;
                }
                step.goes_on
            }
        }
    }

    /// More of the open call's arguments.
    fn more(&mut self, piece: String, parts: &mut Vec<Part>) {
        let Some(open) = self.open.as_mut().filter(|_| !piece.is_empty()) else { return };
        open.written.push_str(&piece);
        match parts.last_mut() {
            Some(Part::Arguments(before)) => before.push_str(&piece),
            _ => parts.push(Part::Arguments(piece)),
        }
    }

    /// The open call's arguments are complete, or nothing more comes of them.
    fn end(&mut self, parts: &mut Vec<Part>) {
        if let Some(open) = &mut self.open {
            open.form = Form::Closing;
            self.behind_call = true;
            let Open { id, name, written, .. } = open.clone();
            parts.push(Part::Call(Call::written(id, name, written)));
        }
    }

    /// Takes so many bytes off the beginning of what is held.
    fn cut(&mut self, at: usize) -> String {
        let rest = self.held.split_off(at);
        std::mem::replace(&mut self.held, rest)
    }

    /// The answer is complete: what was held back is text after all, or the end of a call that broke off.
    pub(super) fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let mut parts = Vec::new();
        match self.open.as_ref().map(|open| open.form.clone()) {
            Some(Form::Closing) => {}
            Some(Form::Json(_)) => self.end(&mut parts),
            Some(Form::Native(native)) => {
                self.more(native.broken_off(&held), &mut parts);
                self.end(&mut parts);
            }
            None => match json_call(&held).filter(|_| self.whole) {
                Some((name, arguments)) => self.all_of(name, arguments, &mut parts),
                None => self.text(held, &mut parts),
            },
        }
        self.open = None;
        parts
    }
}

/// Bytes of a text that cannot be the beginning of a mark.
fn certain(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|m| m.len()).max().unwrap_or(0);
    let may_begin = |at: &usize| {
        let end = text.get(*at..).unwrap_or_default();
        !end.is_empty() && marks.iter().any(|mark| mark.starts_with(end))
    };
    (text.len().saturating_sub(longest)..text.len()).find(may_begin).unwrap_or(text.len())
}

/// What a call that is written as JSON begins with.
enum Head {
    /// Its name, and where its arguments begin, which are an object.
    At(String, usize),
    /// What is there is no such beginning, or not all of one.
    No,
}

fn head(text: &str) -> Head {
    let mut rest = text.trim_start();
    let mut name = String::new();
    for want in ["{", "\"name\"", ":", "", ",", "\"arguments\"", ":"] {
        if want.is_empty() {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            let Some(Ok(read)) = values.next() else { return Head::No };
            name = read;
            rest = rest.get(values.byte_offset()..).unwrap_or_default();
        } else {
            let Some(behind) = rest.strip_prefix(want) else { return Head::No };
            rest = behind;
        }
        rest = rest.trim_start();
    }
    if rest.starts_with('{') { Head::At(name, text.len() - rest.len()) } else { Head::No }
}

/// Looks for the end of a JSON object.
#[derive(Clone, Debug, Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Where it ends in what comes next of it.
    fn end(&mut self, text: &str) -> Option<usize> {
        for (at, c) in text.bytes().enumerate() {
            match (self.in_string, c) {
                (true, _) if self.escaped => self.escaped = false,
                (true, b'\\') => self.escaped = true,
                (_, b'"') => self.in_string = !self.in_string,
                (false, b'{' | b'[') => self.depth += 1,
                (false, b'}' | b']') => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Name and arguments of a call that is written as JSON.
fn json_call(text: &str) -> Option<(String, String)> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let name = value.get("name")?.as_str()?.to_owned();
    let arguments = match value.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        // Some models write them as JSON in a string.
        Some(Value::String(text)) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => {
            return Some((name, text.clone()));
        }
        Some(arguments) => arguments.clone(),
    };
    Some((name, arguments.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All parts of an answer that comes in pieces of so many characters: texts joined, and of each call what was told at its end,
    /// which is what was told on the way.
    fn read(mut calls: Calls, text: &str, size: usize) -> Vec<Part> {
        let (mut all, mut name, mut arguments) = (Vec::new(), None, String::new());
        let chars: Vec<char> = text.chars().collect();
        let pieces: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
        let mut told: Vec<Part> = pieces.iter().flat_map(|piece| calls.push(piece)).collect();
        told.extend(calls.finish());
        for part in told {
            match (all.last_mut(), part) {
                (Some(Part::Text(before)), Part::Text(text)) => before.push_str(&text),
                (_, Part::Begun(id, of)) => assert_eq!(name.replace((id, of)), None),
                (_, Part::Arguments(piece)) => arguments.push_str(&piece),
                (_, Part::Call(mut call)) => {
                    assert_eq!(name.take(), Some((std::mem::take(&mut call.id), call.name.clone())));
                    assert_eq!(std::mem::take(&mut arguments), call.text());
                    all.push(Part::Call(call));
                }
                (_, text) => all.push(text),
            }
        }
        all
    }

    /// Pieces of every length give the same parts.
    fn parts_of(calls: &Calls, text: &str) -> Vec<Part> {
        let whole = read(calls.clone(), text, text.len().max(1));
        for size in [1, 2, 7] {
            assert_eq!(read(calls.clone(), text, size), whole, "{text} in pieces of {size}");
        }
        whole
    }

    fn parts(text: &str) -> Vec<Part> {
        parts_of(&Calls::default(), text)
    }

    fn found(name: &str, written: &str) -> Part {
        Part::Call(Call::written(String::new(), name.into(), written.into()))
    }

    #[test]
    fn calls_are_taken_out_of_the_text_in_both_ways_of_writing_them() {
        let json =
            "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 3, \"of\": \"a } \\\" b\"}}\n</tool_call>";
        let look = found("look", "{\"at\": 3, \"of\": \"a } \\\" b\"}");
        assert_eq!(parts(&format!("Let me see. {json}")), [Part::Text("Let me see. ".into()), look.clone()]);
        assert_eq!(parts(&format!("{json}\n{json} Well.")), [look.clone(), look, Part::Text("Well.".into())]);
        let native = "<function name=\"weather\"> <param name=\"place\">Rome &amp; &lt;b></param><param name=\"days\">2</param>\n\
                      <param name=\"note\"><![CDATA[a < b]]></param><param name=\"list\">[1, \"x\"]</param>\
                      <param name=\"not\">true or so</param></function>";
        let weather = found(
            "weather",
            "{\"place\":\"Rome & <b>\",\"days\":2,\"note\":\"a < b\",\"list\":[1,\"x\"],\"not\":\"true or so\"}",
        );
        assert_eq!(parts(native), std::slice::from_ref(&weather));
        assert_eq!(parts(&format!("{native}{native}")), [weather.clone(), weather]);
        assert_eq!(parts("<function name=\"now\"></function>"), [found("now", "{}")]);
    }

    #[test]
    fn a_long_argument_is_told_while_it_is_written() {
        for begin in [
            "<tool_call>{\"name\": \"write\", \"arguments\": {\"text\": \"",
            "<function name=\"write\"><param name=\"text\"><![CDATA[",
        ] {
            let mut calls = Calls::default();
            calls.push(begin);
            let told = calls.push("Once upon a time \u{e4} there was");
            assert!(
                matches!(told.last(), Some(Part::Arguments(piece)) if piece.contains("upon a time \u{e4}")),
                "{told:?}"
            );
        }
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            "a < b <tool",
            "<tool_call>never closed",
            "<tool_call>no json</tool_call>",
            "<tool_call>{\"name\": \"x\"",
            "<function name=\"x\">y</function>",
        ] {
            assert_eq!(parts(text), [Part::Text(text.into())]);
        }
        // Another order of the fields, and arguments as JSON in a string.
        assert_eq!(
            parts("<tool_call>{\"arguments\": {\"at\": 3}, \"name\": \"look\"}</tool_call>"),
            [found("look", "{\"at\":3}")]
        );
        assert_eq!(
            parts("<tool_call>{\"name\": \"look\", \"arguments\": \"{\\\"at\\\": 3}\"}</tool_call>"),
            [found("look", "{\"at\": 3}")]
        );
    }

    #[test]
    fn a_call_that_breaks_off_is_one_whose_arguments_are_no_json() {
        for (text, written) in [
            ("<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": 3", "{\"at\": 3"),
            ("<function name=\"look\"><param name=\"at\">Ro", "{\"at\":\"Ro"),
            ("<function name=\"look\"><param name=\"at\">[1, 2", "{\"at\":[1, 2"),
        ] {
            let parts = parts(text);
            assert_eq!(parts, [found("look", written)]);
            assert!(matches!(&parts[0], Part::Call(call) if call.is_cut()));
        }
        // Complete, and only not closed.
        let open = "<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": 3}}";
        assert_eq!(parts(open), [found("look", "{\"at\": 3}")]);
        assert_eq!(parts(&format!("{open} So.")), [found("look", "{\"at\": 3}"), Part::Text("So.".into())]);
    }

    #[test]
    fn an_answer_that_must_be_a_call_is_told_on_the_way_and_what_is_not_allowed_stays_text() {
        let text = "{\n \"name\": \"look\", \"arguments\": {\"at\": [3, {}]}}";
        let found = [found("look", "{\"at\": [3, {}]}")];
        assert_eq!(parts_of(&Calls::whole(), text), found);
        let call = format!("<tool_call>{text}</tool_call>");
        assert_eq!(parts_of(&Calls::only(vec!["look".into()]), &call), found);
        assert_eq!(parts_of(&Calls::only(vec!["other".into()]), &call), [Part::Text(call.clone())]);
    }
}
