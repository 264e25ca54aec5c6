//! Python's operators and functions that minijinja lacks or spells differently.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, Output, State};
use serde_json::Value as Json;

use super::limits::{check_format, check_width, refused};
use super::methods::either;

/// `left % right`: text that is filled in, or the remainder.
pub(super) fn percent(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        check_format(text)?;
        let shown = |value: Value| match value.kind() {
            ValueKind::Number | ValueKind::String => value,
            _ => Value::from(str(&value)),
        };
        let values: Vec<Value> = match right.kind() {
            ValueKind::Map => vec![right.clone()],
            _ if right.is_tuple() => right.try_iter()?.map(shown).collect(),
            _ => vec![shown(right.clone())],
        };
        return minijinja::formatting::format(FormatStyle::Printf, text, &values).map(Value::from);
    }
    let zero = || refused("division by zero");
    match (i64::try_from(left.clone()), i64::try_from(right.clone())) {
        (Ok(_), Ok(0)) => Err(zero()),
        // The sign is the divisor's.
        (Ok(left), Ok(right)) => Ok(Value::from((left.wrapping_rem(right) + right).wrapping_rem(right))),
        _ => {
            let (left, right) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
            if right == 0.0 { Err(zero()) } else { Ok(Value::from(left - right * (left / right).floor())) }
        }
    }
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
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => repr(value),
        _ => value.to_string(),
    }
}

/// `repr` of a float. Rust writes exponents for the same numbers, but without a sign and with one digit.
fn float(number: f64) -> String {
    let text = format!("{number:?}").to_lowercase();
    let exponent = text.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?)));
    exponent.map_or_else(|| text.clone(), |(digits, exponent)| format!("{digits}e{exponent:+03}"))
}

/// `repr(value)` of Python.
fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => {
            let text = value.to_string();
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let mut out = String::from(quote);
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    c if c == quote => {
                        out.push('\\');
                        out.push(c);
                    }
                    c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
                    c => out.push(c),
                }
            }
            out.push(quote);
            out
        }
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
        _ => str(value),
    }
}

/// `tojson` as Hugging Face defines it: `json.dumps` with `ensure_ascii=False`, nothing escaped for HTML.
pub(super) fn json(value: Value, places: &[Value], names: Kwargs) -> Result<Value, Error> {
    let (ascii, indent, separators, sorted): (Option<Value>, Option<Value>, Option<Value>, Option<Value>) =
        from_args(places)?;
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (ascii, sorted) = (either(ascii, &names, "ensure_ascii")?, either(sorted, &names, "sort_keys")?);
    let (indent, separators) = (either(indent, &names, "indent")?, either(separators, &names, "separators")?);
    names.assert_all_used()?;
    let indent = indent.as_ref().map(indentation).transpose()?;
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
pub(super) fn indentation(width: &Value) -> Result<String, Error> {
    let columns = width.as_str().map_or_else(|| width.as_usize().unwrap_or(0), str::len);
    check_width(columns)?;
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
