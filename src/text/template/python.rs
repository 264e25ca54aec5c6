//! Python's operators and functions that minijinja lacks or spells differently.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Serde, StringInput, Value, ValueKind, from_args};
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

/// `length`, which is 0 for what is not defined.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { minijinja::filters::length(value) }
}

/// `default`, with Jinja2's names of the arguments.
pub(super) fn default(value: &Value, or: Option<Value>, boolean: Option<Value>, names: Kwargs) -> Result<Value, Error> {
    let or = either(or, &names, "default_value")?.unwrap_or_else(|| Value::from(""));
    let falsy_too = either(boolean, &names, "boolean")?.is_some_and(|value| value.is_true());
    names.assert_all_used()?;
    Ok(if value.is_undefined() || falsy_too && !value.is_true() { or } else { value.clone() })
}

/// `trim`, with Jinja2's name of the argument.
pub(super) fn trim(value: &Value, chars: Option<&str>, names: Kwargs) -> Result<Value, Error> {
    let (text, chars) = (str(value), either(chars, &names, "chars")?);
    names.assert_all_used()?;
    Ok(chars.map_or(text.trim(), |chars| text.trim_matches(|c| chars.contains(c))).into())
}

/// `replace`, with Jinja2's name of the argument.
pub(super) fn replace(
    value: &Value,
    old: StringInput<'_>,
    new: StringInput<'_>,
    count: Option<i64>,
    names: Kwargs,
) -> Result<Value, Error> {
    let count = either(count, &names, "count")?.and_then(|count| usize::try_from(count).ok());
    names.assert_all_used()?;
    Ok(Value::from(str(value).replacen(old.as_str(), new.as_str(), count.unwrap_or(usize::MAX))))
}

/// `{{ value }}` as Python prints it.
pub(super) fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Seq | ValueKind::Map => {
            out.write_str(&str(value)).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// `str(value)` of Python.
pub(super) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Seq | ValueKind::Map => repr(value),
        _ => value.to_string(),
    }
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
                    c => out.push(c),
                }
            }
            out.push(quote);
            out
        }
        ValueKind::Seq => {
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
pub(super) fn json(Serde(mut json): Serde<Json>, places: &[Value], names: Kwargs) -> Result<Value, Error> {
    let (ascii, indent, separators, sorted): (Option<Value>, Option<Value>, Option<Value>, Option<Value>) =
        from_args(places)?;
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (ascii, sorted) = (either(ascii, &names, "ensure_ascii")?, either(sorted, &names, "sort_keys")?);
    let (indent, separators) = (either(indent, &names, "indent")?, either(separators, &names, "separators")?);
    names.assert_all_used()?;
    // A text is used as it is, a number means so many spaces.
    let indent = match indent.as_ref().map(|indent| (indent.as_str(), indent.as_usize().unwrap_or(0))) {
        Some((Some(text), _)) => Some(text.to_owned()),
        Some((None, width)) => check_width(width).map(|()| Some(" ".repeat(width)))?,
        None => None,
    };
    check_width(indent.as_ref().map_or(0, String::len))?;
    let mut signs = [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned);
    if let Some(separators) = separators {
        let given = separators.try_iter()?.map(|sign| str(&sign));
        signs.iter_mut().zip(given).for_each(|(sign, given)| *sign = given);
    }
    if is_set(sorted) {
        json.sort_all_objects();
    }
    let [item, key] = signs;
    let mut out = String::new();
    Style { indent, item, key }.write(&json, 1, &mut out);
    if is_set(ascii) {
        let units = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
        out = out.chars().map(|c| if c < '\u{7f}' { c.to_string() } else { units(c) }).collect();
    }
    Ok(Value::from_safe_string(out))
}

/// Python's spacing of JSON: `{"a": [1, 2]}`, or indented lines.
struct Style {
    indent: Option<String>,
    item: String,
    key: String,
}

impl Style {
    fn write(&self, json: &Json, depth: usize, out: &mut String) {
        let (open, close, items): (char, char, Vec<(Option<&String>, &Json)>) = match json {
            Json::Array(items) => ('[', ']', items.iter().map(|item| (None, item)).collect()),
            Json::Object(fields) => ('{', '}', fields.iter().map(|(name, item)| (Some(name), item)).collect()),
            scalar => return out.push_str(&scalar.to_string()),
        };
        let line = |depth| self.indent.as_ref().map_or(String::new(), |indent| format!("\n{}", indent.repeat(depth)));
        out.push(open);
        for (i, (name, item)) in items.iter().enumerate() {
            out.push_str(if i > 0 { &self.item } else { "" });
            out.push_str(&line(depth));
            if let Some(name) = name {
                out.push_str(&Json::from(name.as_str()).to_string());
                out.push_str(&self.key);
            }
            self.write(item, depth + 1, out);
        }
        if !items.is_empty() {
            out.push_str(&line(depth - 1));
        }
        out.push(close);
    }
}
