//! Calls of functions in an answer: extracted from its text, their arguments streamed during decode.
//!
//! There are two notations: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, which the system text describes if
//! the template has no functions, and the released model's `<function name="…"><param name="…">…</param></function>`.
//! A call begins with its name and the start of its arguments; anything shorter is text. If the arguments break off, the
//! call has arguments that are no JSON, as with other servers.
//!
//! The text from the opening mark on is held, and read anew as it grows; what it adds to the arguments is sent.

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::request::fresh_id;
use super::stream::Event;
use super::turns::Call;

const JSON: (&str, &str) = ("<tool_call>", "</tool_call>");
const NATIVE: (&str, &str) = ("<function name=\"", "</function>");
const OPENINGS: [(&str, &str); 2] = [JSON, NATIVE];
const PARAM: &str = "<param name=\"";
const NAME_END: &str = "\">";
const CDATA: &str = "<![CDATA[";
/// Maximum bytes of a possible call; anything longer is text.
const MOST: usize = 1 << 20;

/// A call, as far as a text holds it.
struct Read {
    name: String,
    /// JSON, or the beginning of it.
    arguments: String,
    /// Where the call ends in the text, if it does.
    end: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// The end of the answer that may begin a call, or that begins with the open one.
    held: String,
    /// The answer is a call and nothing else, as JSON.
    whole: bool,
    /// Only these names are calls; any other call is text.
    only: Option<Vec<String>>,
    /// The previous part was a call: white space after it is not text.
    after_call: bool,
    /// The id of the open call, and the bytes of its arguments that are sent.
    open: Option<(String, usize)>,
}

impl Calls {
    pub(super) fn new(whole: bool, only: Option<Vec<String>>) -> Calls {
        Calls { whole, only, ..Calls::default() }
    }

    /// Takes more of the answer; returns the events that are certain.
    pub(super) fn push(&mut self, text: &str) -> Vec<Event> {
        self.held.push_str(text);
        let mut events = Vec::new();
        while self.step(&mut events) {}
        events
    }

    /// True if the held text may contain more.
    fn step(&mut self, events: &mut Vec<Event>) -> bool {
        if self.whole {
            if let Some(read) = json(&self.held, false) {
                self.more(&read, events);
            }
            return false;
        }
        let first = OPENINGS.iter().filter_map(|pair| Some((self.held.find(pair.0)?, pair))).min_by_key(|f| f.0);
        let Some((at, &(open, close))) = first else {
            let text = self.cut(certain(&self.held, &OPENINGS.map(|pair| pair.0)));
            self.text(text, events);
            return false;
        };
        let text = self.cut(at);
        self.text(text, events);
        if let Some(read) = self.read(open, false) {
            self.more(&read, events);
            let Some(end) = read.end else { return false };
            self.end(read, events);
            self.cut(open.len() + end);
            return true;
        }
        // Its fields have another order, or it is no call.
        let Some(end) = self.held.find(close).map(|at| at + close.len()) else {
            if self.held.len() > MOST {
                let text = std::mem::take(&mut self.held);
                self.text(text, events);
            }
            return false;
        };
        let written = self.cut(end);
        let inner = written.strip_prefix(open).and_then(|w| w.strip_suffix(close)).unwrap_or_default();
        match json_call(inner).filter(|read| open == JSON.0 && self.may_call(&read.name)) {
            Some(read) => self.end(read, events),
            None => self.text(written, events),
        }
        true
    }

    /// Reads the call that the held text begins with, if it certainly is one.
    fn read(&self, open: &str, last: bool) -> Option<Read> {
        let text = self.held.strip_prefix(open)?;
        let read = if open == JSON.0 { json(text, last) } else { native(text, last) };
        read.filter(|read| self.may_call(&read.name))
    }

    fn text(&mut self, text: String, events: &mut Vec<Event>) {
        let text = if self.after_call { text.trim_start().to_owned() } else { text };
        if !text.is_empty() {
            self.after_call = false;
            events.push(Event::Text(text, Vec::new()));
        }
    }

    fn may_call(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|n| n == name))
    }

    /// Opens the call unless it is open, and sends what is new in its arguments.
    fn more(&mut self, read: &Read, events: &mut Vec<Event>) {
        let (_, sent) = self.open.get_or_insert_with(|| {
            let id = fresh_id("call_");
            events.push(Event::Calling { id: id.clone(), name: read.name.clone() });
            (id, 0)
        });
        let piece = read.arguments.get(*sent..).unwrap_or_default();
        *sent += piece.len();
        if !piece.is_empty() {
            events.push(Event::Arguments(piece.to_owned()));
        }
    }

    /// The call is complete, or broke off.
    fn end(&mut self, read: Read, events: &mut Vec<Event>) {
        self.more(&read, events);
        if let Some((id, _)) = self.open.take() {
            events.push(Event::Call(Call::written(id, read.name, read.arguments)));
            self.after_call = true;
        }
    }

    fn cut(&mut self, at: usize) -> String {
        let rest = self.held.split_off(at);
        std::mem::replace(&mut self.held, rest)
    }

    /// The answer is complete: held text is plain text, or a call that broke off.
    pub(super) fn finish(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let open = OPENINGS.iter().find_map(|(open, _)| self.read(open, true));
        let held = std::mem::take(&mut self.held);
        let read = if self.whole { json(&held, true).or_else(|| json_call(&held)) } else { open };
        match read {
            Some(read) => self.end(read, &mut events),
            // The start of a call without arguments is dropped: it is neither a call nor text.
            None if self.whole && held.trim_start().starts_with('{') => {}
            None => self.text(held, &mut events),
        }
        events
    }
}

/// Bytes of a text that cannot begin a mark.
pub(super) fn certain(text: &str, marks: &[impl AsRef<str>]) -> usize {
    let longest = marks.iter().map(|mark| mark.as_ref().len()).max().unwrap_or(0);
    let may_begin = |at: &usize| {
        text.get(*at..).is_some_and(|end| !end.is_empty() && marks.iter().any(|mark| mark.as_ref().starts_with(end)))
    };
    (text.len().saturating_sub(longest)..text.len()).find(may_begin).unwrap_or(text.len())
}

/// The text after some marks, and the white space around each.
fn after<'a>(text: &'a str, marks: &[&str]) -> Option<&'a str> {
    marks.iter().try_fold(text.trim_start(), |rest, mark| Some(rest.strip_prefix(mark)?.trim_start()))
}

/// A JSON string at the beginning of a text, and the text after it.
fn string(text: &str) -> Option<(String, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let read = values.next()?.ok()?;
    Some((read, text.get(values.byte_offset()..)?))
}

/// Reads a call in JSON; `None` unless its arguments have begun. It ends with its closing mark, or at other text: the
/// mark may be missing. `last`: the text is complete.
fn json(text: &str, last: bool) -> Option<Read> {
    let (name, rest) = string(after(text, &["{", "\"name\"", ":"])?)?;
    let rest = after(rest, &[",", "\"arguments\"", ":"])?;
    if !rest.starts_with('{') {
        return None;
    }
    let Some(end) = object_end(rest) else { return Some(Read { name, arguments: rest.to_owned(), end: None }) };
    let (arguments, tail) = rest.split_at_checked(end)?;
    let tail = tail.trim_start();
    let tail = tail.strip_prefix('}').unwrap_or(tail).trim_start();
    let rest = match tail.strip_prefix(JSON.1) {
        Some(rest) => Some(rest),
        None => (last || !JSON.1.starts_with(tail)).then_some(tail),
    };
    Some(Read { name, arguments: arguments.to_owned(), end: rest.map(|rest| text.len() - rest.len()) })
}

fn object_end(text: &str) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (at, c) in text.bytes().enumerate() {
        match (in_string, c) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

fn json_call(text: &str) -> Option<Read> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let name = value.get("name")?.as_str()?.to_owned();
    let arguments = match value.get("arguments") {
        None | Some(Value::Null) => "{}".to_owned(),
        // Some models write the arguments as JSON in a string.
        Some(Value::String(text)) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => text.clone(),
        Some(arguments) => arguments.to_string(),
    };
    Some(Read { name, arguments, end: None })
}

/// Reads a call in the notation of elements; `None` unless its first parameter or its end has begun. Text that cannot
/// begin a mark breaks it. `last`: the text is complete.
fn native(text: &str, last: bool) -> Option<Read> {
    let (name, mut rest) = text.split_once(NAME_END)?;
    if ![PARAM, NATIVE.1].iter().any(|mark| rest.trim_start().starts_with(mark)) {
        return None;
    }
    let mut arguments = String::new();
    let end = loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(NATIVE.1) {
            arguments.push_str(if arguments.is_empty() { "{}" } else { "}" });
            break Some(after);
        }
        let Some(named) = rest.strip_prefix(PARAM) else {
            let may_become = PARAM.starts_with(rest) || NATIVE.1.starts_with(rest);
            break (!may_become).then_some(rest);
        };
        let Some((key, value)) = named.split_once(NAME_END) else { break None };
        let (cdata, value) = match value.strip_prefix(CDATA) {
            Some(value) => (true, value),
            None if CDATA.starts_with(value) => break None,
            None => (false, value),
        };
        let mark = if cdata { "]]></param>" } else { "</param>" };
        let plain = |raw: &str| if cdata { raw.to_owned() } else { unescaped(raw) };
        let before = if arguments.is_empty() { "{" } else { "," };
        let key = format!("{before}\"{}\":", quoted(&unescaped(key)));
        if let Some((raw, after)) = value.split_once(mark) {
            arguments.push_str(&format!("{key}{}", typed(plain(raw))));
            rest = after;
            continue;
        }
        // It may be a JSON value other than a text: only its end decides.
        let undecided = value.trim_start().is_empty()
            || value.trim_start().starts_with(|c: char| c.is_ascii_digit() || "{[-tfn".contains(c));
        if undecided && last {
            arguments.push_str(&format!("{key}{value}"));
        } else if !undecided {
            let certain = certain(value, &[mark]).min(if cdata { value.len() } else { entity(value) });
            let begun = value.get(..if last { value.len() } else { certain }).unwrap_or_default();
            arguments.push_str(&format!("{key}\"{}", quoted(&plain(begun))));
        }
        break None;
    };
    Some(Read { name: unescaped(name), arguments, end: end.map(|after| text.len() - after.len()) })
}

/// A value as JSON: text that is no JSON, or is a JSON string, turns into a string.
fn typed(text: String) -> String {
    let value = serde_json::from_str(&text).ok().filter(|v: &Value| !v.is_string());
    value.unwrap_or(Value::String(text)).to_string()
}

/// A text between the quotation marks of a JSON string.
fn quoted(text: &str) -> String {
    let whole = Value::from(text).to_string();
    whole.get(1..whole.len() - 1).unwrap_or_default().to_owned()
}

/// Where an incomplete entity begins.
fn entity(text: &str) -> usize {
    let at = text.rfind('&').filter(|at| text.len() - at < "&quot;".len());
    at.filter(|at| !text.get(*at..).unwrap_or_default().contains(';')).unwrap_or(text.len())
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}
