//! Calls of functions in an answer: extracted from its text, their arguments streamed during decode.
//!
//! There are two notations: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, which the system text describes if
//! the template has no functions, and the released model's `<function name="…"><param name="…">…</param></function>`
//! ([`native`]). A call begins with its name and the start of its arguments; anything shorter is text. If the
//! arguments break off, the call has arguments that are no JSON, as with other servers.

mod native;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::ids::fresh_id;
use super::turns::Call;
use native::Native;

/// The marks around a call in JSON.
const JSON: (&str, &str) = ("<tool_call>", "</tool_call>");
const OPENINGS: [(&str, &str); 2] = [JSON, native::MARKS];
/// Maximum bytes of a possible call; anything longer is text.
const MOST: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    /// Id and name.
    Begun(String, String),
    Arguments(String),
    Call(Call),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// The end of the answer that may begin a call, or a mark in one.
    held: String,
    /// The answer is a call of one of these functions and nothing else, as JSON.
    whole: Option<Vec<String>>,
    /// Only these names are calls; any other call is text.
    only: Option<Vec<String>>,
    /// The previous part was a call: white space after it is not text.
    after_call: bool,
    open: Option<Open>,
}

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
    /// The arguments are complete, the closing mark is missing.
    Closing,
    Native(Native),
}

impl Calls {
    pub(super) fn whole(names: Vec<String>) -> Calls {
        Calls { whole: Some(names), ..Calls::default() }
    }

    pub(super) fn only(names: Vec<String>) -> Calls {
        Calls { only: Some(names), ..Calls::default() }
    }

    /// Takes more of the answer; returns the parts that are certain.
    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while match &self.open {
            None => self.look(&mut parts),
            Some(_) => self.go_on(&mut parts),
        } {}
        parts
    }

    /// Looks for the next call; true if the held text may contain more.
    fn look(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.whole.is_some() {
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
        // Its fields have another order, or it is no call.
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

    /// Opens a call if its JSON certainly starts at byte `at` of the held text.
    fn open_json(&mut self, at: usize, parts: &mut Vec<Part>) -> bool {
        let Head::At(name, arguments) = head(self.held.get(at..).unwrap_or_default()) else { return false };
        if !self.may_call(&name) {
            return false;
        }
        self.cut(at + arguments);
        self.begin(name, Form::Json(Scan::default()), parts);
        true
    }

    /// Opens the call in elements that starts there.
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
        let text = if self.after_call { text.trim_start().to_owned() } else { text };
        if !text.is_empty() {
            self.after_call = false;
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

    fn all_of(&mut self, name: String, arguments: String, parts: &mut Vec<Part>) {
        self.begin(name, Form::Closing, parts);
        self.more(arguments, parts);
        self.end(parts);
        self.open = None;
    }

    /// Continues the open call; true if the held text may contain more.
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
                } else if self.whole.is_some() || JSON.1.starts_with(tail) {
                    return false;
                } else {
                    // The closing mark is missing: the rest is text.
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
                step.more
            }
        }
    }

    fn more(&mut self, piece: String, parts: &mut Vec<Part>) {
        let Some(open) = self.open.as_mut().filter(|_| !piece.is_empty()) else { return };
        open.written.push_str(&piece);
        match parts.last_mut() {
            Some(Part::Arguments(before)) => before.push_str(&piece),
            _ => parts.push(Part::Arguments(piece)),
        }
    }

    /// The open call's arguments are complete, or broke off.
    fn end(&mut self, parts: &mut Vec<Part>) {
        if let Some(open) = &mut self.open {
            open.form = Form::Closing;
            self.after_call = true;
            let Open { id, name, written, .. } = open.clone();
            parts.push(Part::Call(Call::written(id, name, written)));
        }
    }

    fn cut(&mut self, at: usize) -> String {
        let rest = self.held.split_off(at);
        std::mem::replace(&mut self.held, rest)
    }

    /// The answer is complete: held text is plain text, or the end of a call that broke off.
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
            None => match self.whole.as_ref().map(|names| json_call(&held).or_else(|| broken_off(&held, names))) {
                Some(Some((name, arguments))) => self.all_of(name, arguments, &mut parts),
                // The start of a call without a certain function is dropped: it is neither a call nor text.
                Some(None) if held.trim_start().starts_with('{') => {}
                Some(None) | None => self.text(held, &mut parts),
            },
        }
        self.open = None;
        parts
    }
}

/// Bytes of a text that cannot begin a mark.
fn certain(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|m| m.len()).max().unwrap_or(0);
    let may_begin = |at: &usize| {
        let end = text.get(*at..).unwrap_or_default();
        !end.is_empty() && marks.iter().any(|mark| mark.starts_with(end))
    };
    (text.len().saturating_sub(longest)..text.len()).find(may_begin).unwrap_or(text.len())
}

enum Head {
    /// Its name, and where its arguments object begins.
    At(String, usize),
    /// Not such a beginning, or an incomplete one.
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
            let Some(after) = rest.strip_prefix(want) else { return Head::No };
            rest = after;
        }
        rest = rest.trim_start();
    }
    if rest.starts_with('{') { Head::At(name, text.len() - rest.len()) } else { Head::No }
}

/// Name and partial arguments of an answer that must be a call of one of `names` and broke off before its arguments
/// began: the function may be clear before its name is complete.
fn broken_off(text: &str, names: &[String]) -> Option<(String, String)> {
    fn after<'a>(text: &'a str, marks: &[&str]) -> Option<&'a str> {
        marks.iter().try_fold(text.trim_start(), |rest, mark| Some(rest.strip_prefix(mark)?.trim_start()))
    }
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let name = after(text, &["{", "\"name\"", ":"]).unwrap_or_default();
    let mut values = serde_json::Deserializer::from_str(name).into_iter::<String>();
    if let Some(Ok(read)) = values.next() {
        let rest = name.get(values.byte_offset()..).unwrap_or_default();
        return Some((read, after(rest, &[",", "\"arguments\"", ":"]).unwrap_or_default().to_owned()));
    }
    let begun = name.strip_prefix('"').unwrap_or_default();
    let mut meant = names.iter().filter(|n| n.starts_with(begun));
    match (meant.next(), meant.next()) {
        (Some(name), None) => Some((name.clone(), String::new())),
        _ => None,
    }
}

/// Looks for the end of a JSON object.
#[derive(Clone, Debug, Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Where the object ends in `text`, the next piece of it.
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

fn json_call(text: &str) -> Option<(String, String)> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let name = value.get("name")?.as_str()?.to_owned();
    let arguments = match value.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        // Some models write the arguments as JSON in a string.
        Some(Value::String(text)) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => {
            return Some((name, text.clone()));
        }
        Some(arguments) => arguments.clone(),
    };
    Some((name, arguments.to_string()))
}
