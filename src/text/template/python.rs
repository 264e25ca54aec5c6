//! Python's operators and functions that minijinja lacks or spells differently.

use std::sync::LazyLock;

use fancy_regex::{Captures, Regex};
use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, Output, State};
use serde_json::Value as Json;

use super::limits::{count_bytes, refused};
use super::methods::either;

/// The engine's own filter `format`.
pub(super) const PRINTF: &str = "__format";
/// `%5.1f`, `%(name)s` or `%%`.
static CONVERSION: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"%(?:\((?<name>[^)]*)\))?(?<flags>[-+ #0]*\d*(?:\.\d+)?)(?<kind>[A-Za-z%])").ok());

/// `left % right`: text that is filled in, or the remainder.
pub(super) fn percent(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        return filled(state, text, right);
    }
    if *right == Value::from(0) {
        return Err(refused("division by zero"));
    }
    // The engine's own operator; its error is without a line, which the caller adds.
    let remainder = state.env().compile_expression("left % right")?.eval(minijinja::context! { left, right });
    remainder.map_err(|e| refused(e.detail().unwrap_or("not numbers")))
}

/// The filter `format`: a text that is filled in with arguments or, by name, with keyword arguments.
pub(super) fn formatted(state: &mut State, text: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let names = Value::from(names);
    filled(state, &str(text), &if names.is_true() { names } else { Tuple::from(places.0).into() })
}

/// A text with `%s` and the like, filled in as Python does. The library lacks `%r`, and `%d` of what is no whole number.
fn filled(state: &mut State, text: &str, given: &Value) -> Result<Value, Error> {
    let parts = CONVERSION.as_ref().ok_or_else(|| refused("text cannot be filled in"))?;
    let mut places = if given.is_tuple() { given.try_iter()?.collect() } else { vec![given.clone()] }.into_iter();
    let mut values = Vec::new();
    let spelled = parts.replace_all(text, |part: &Captures<'_>| {
        let group = |name: &str| part.name(name).map(|group| group.as_str());
        let (mut kind, name) = (group("kind").unwrap_or_default(), group("name"));
        if kind == "%" {
            return "%%".to_owned();
        }
        let value = name.map_or_else(|| places.next(), |name| given.get_attr(name).ok());
        let is_whole = |value: &Value| value.is_integer() || value.kind() != ValueKind::Number;
        values.extend(value.map(|value| match kind {
            "r" => Value::from(repr(&value)),
            "s" => Value::from(str(&value)),
            "d" | "i" if value.kind() == ValueKind::Bool => Value::from(i64::from(value.is_true())),
            "d" | "i" if !is_whole(&value) => f64::try_from(value).map_or(Value::UNDEFINED, |f| (f as i128).into()),
            _ => value,
        }));
        kind = if kind == "r" { "s" } else { kind };
        format!("%{}{kind}", group("flags").unwrap_or_default())
    });
    // Text without a name takes nothing from a mapping, and leaves none of other values over.
    values.extend(places.filter(|value| value.kind() != ValueKind::Map));
    values.insert(0, spelled.into_owned().into());
    state.apply_filter(PRINTF, &values)
}

/// `{{ value }}` as Python prints it.
pub(super) fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined | ValueKind::Invalid => minijinja::escape_formatter(out, state, value),
        _ => out.write_str(&str(value)).map_err(Error::from),
    }
}

/// `str(value)` of Python.
pub(super) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            let float = minijinja::formatting::format(FormatStyle::Printf, "%s", std::slice::from_ref(value));
            float.unwrap_or_else(|_| value.to_string())
        }
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => repr(value),
        _ => value.to_string(),
    }
}

/// `repr(value)` of Python. The engine's own differs in floats.
fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect();
            match (value.is_tuple(), items.as_slice()) {
                (true, [one]) => format!("({one},)"),
                (true, all) => format!("({})", all.join(", ")),
                (false, all) => format!("[{}]", all.join(", ")),
            }
        }
        ValueKind::Map => {
            let item = |key: Value| format!("{}: {}", repr(&key), repr(&value.get_item(&key).unwrap_or_default()));
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(item).collect();
            format!("{{{}}}", items.join(", "))
        }
        ValueKind::String => {
            let list = Value::from(vec![value.clone()]).to_string();
            list.trim_start_matches('[').trim_end_matches(']').to_owned()
        }
        _ => str(value),
    }
}

/// `tojson` as Hugging Face defines it: `json.dumps` with `ensure_ascii=False`, nothing escaped for HTML.
pub(super) fn json(state: &State, value: Value, places: &[Value], names: Kwargs) -> Result<Value, Error> {
    let (ascii, indent, separators, sorted): (Option<Value>, Option<Value>, Option<Value>, Option<Value>) =
        from_args(places)?;
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (ascii, sorted) = (either(ascii, &names, "ensure_ascii")?, either(sorted, &names, "sort_keys")?);
    let (indent, separators) = (either(indent, &names, "indent")?, either(separators, &names, "separators")?);
    names.assert_all_used()?;
    let indent = indent.as_ref().map(|width| indentation(state, width)).transpose()?;
    let mut signs = [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned);
    if let Some(separators) = separators {
        let given = separators.try_iter()?.map(|sign| str(&sign));
        signs.iter_mut().zip(given).for_each(|(sign, given)| *sign = given);
    }
    let [item, key] = signs;
    let mut out = String::new();
    Style { indent, item, key, sorted: is_set(sorted) }.write(&value, 1, &mut out)?;
    if is_set(ascii) {
        let units = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
        out = out.chars().map(|c| if c < '\u{7f}' { c.to_string() } else { units(c) }).collect();
    }
    Ok(Value::from_safe_string(out))
}

/// A text as it is, or so many spaces.
pub(super) fn indentation(state: &State, width: &Value) -> Result<String, Error> {
    let columns = width.as_str().map_or_else(|| width.as_usize().unwrap_or(0), str::len);
    count_bytes(state, columns)?;
    Ok(width.as_str().map_or_else(|| " ".repeat(columns), str::to_owned))
}

/// Python's spacing of JSON: `{"a": [1, 2]}`, or indented lines.
struct Style {
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let (open, close, mut items): (char, char, Vec<(Option<String>, Value)>) = match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => ('[', ']', value.try_iter()?.map(|item| (None, item)).collect()),
            ValueKind::Map => {
                let item = |key: Value| Ok((Some(scalar(&key)?), value.get_item(&key)?));
                ('{', '}', value.try_iter()?.map(item).collect::<Result<_, Error>>()?)
            }
            kind => {
                let text = scalar(value)?;
                out.push_str(&if kind == ValueKind::String { quoted(&text) } else { text });
                return Ok(());
            }
        };
        if self.sorted {
            items.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        let line = |depth| self.indent.as_ref().map_or(String::new(), |indent| format!("\n{}", indent.repeat(depth)));
        out.push(open);
        for (i, (name, item)) in items.iter().enumerate() {
            out.push_str(if i > 0 { &self.item } else { "" });
            out.push_str(&line(depth));
            if let Some(name) = name {
                out.push_str(&quoted(name));
                out.push_str(&self.key);
            }
            self.write(item, depth + 1, out)?;
        }
        if !items.is_empty() {
            out.push_str(&line(depth - 1));
        }
        out.push(close);
        Ok(())
    }
}

fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}

/// A value without parts as it is in JSON, or as a key is named there.
fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(value.is_true().to_string()),
        ValueKind::None | ValueKind::Undefined => Ok("null".to_owned()),
        ValueKind::Number | ValueKind::String => Ok(str(value)),
        kind => Err(refused(format!("a value of type {kind} cannot be written as JSON"))),
    }
}
