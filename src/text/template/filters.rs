//! Filters and tests that the engine lacks, or has without arguments or values that Jinja2 takes.

use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::limits::count_bytes;
use super::methods::either;
use super::python::{indentation, str};

pub(super) fn default(value: &Value, or: Option<Value>, boolean: Option<Value>, names: Kwargs) -> Result<Value, Error> {
    let or = either(or, &names, "default_value")?.unwrap_or_else(|| Value::from(""));
    let falsy_too = either(boolean, &names, "boolean")?.is_some_and(|value| value.is_true());
    names.assert_all_used()?;
    Ok(if value.is_undefined() || falsy_too && !value.is_true() { or } else { value.clone() })
}

pub(super) fn trim(value: &Value, chars: Option<&str>, names: Kwargs) -> Result<Value, Error> {
    let (text, chars) = (str(value), either(chars, &names, "chars")?);
    names.assert_all_used()?;
    Ok(chars.map_or(text.trim(), |chars| text.trim_matches(|c| chars.contains(c))).into())
}

/// `int`, which gives its default for what is no number.
pub(super) fn int(
    state: &State,
    value: Value,
    or: Option<Value>,
    base: Option<u32>,
    names: Kwargs,
) -> Result<Value, Error> {
    let or = either(or, &names, "default")?.unwrap_or_else(|| Value::from(0));
    minijinja::filters::int(state, &digits(value), Some(or), base, names)
}

pub(super) fn float(state: &State, value: Value, or: Option<Value>, names: Kwargs) -> Result<Value, Error> {
    let or = either(or, &names, "default")?.unwrap_or_else(|| Value::from(0.0));
    minijinja::filters::float(state, &digits(value), Some(or), names)
}

/// Python reads numbers with white space around and `_` within.
fn digits(value: Value) -> Value {
    value.as_str().map(|text| Value::from(text.trim().replace('_', ""))).unwrap_or(value)
}

/// `indent`, by so many spaces or by a text.
pub(super) fn indent(state: &State, text: StringInput<'_>, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let names = named(&["width", "first", "blank"], places, &names)?;
    let width = names.get::<Option<Value>>("width")?.unwrap_or_else(|| Value::from(4));
    let (first, blank): (Option<bool>, Option<bool>) = (names.get("first")?, names.get("blank")?);
    names.assert_all_used()?;
    let indent = indentation(state, &width)?;
    count_bytes(state, text.as_str().matches('\n').count().saturating_mul(indent.len()))?;
    let line = |(at, line): (usize, &str)| match at {
        0 if first != Some(true) => line.to_owned(),
        1.. if line.is_empty() && blank != Some(true) => String::new(),
        _ => format!("{indent}{line}"),
    };
    let lines: Vec<String> = text.as_str().split('\n').enumerate().map(line).collect();
    Ok(Value::from(lines.join("\n")))
}

/// Arguments that Jinja2 takes by place too, by name.
fn named(order: &[&str], places: Rest<Value>, names: &Kwargs) -> Result<Kwargs, Error> {
    if places.len() > order.len() {
        return Err(ErrorKind::TooManyArguments.into());
    }
    let by_name = names.args().map(|name| Ok((name, names.get::<Value>(name)?)));
    order.iter().copied().zip(places.0).map(Ok).chain(by_name).collect()
}

pub(super) fn dictsort(value: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    minijinja::filters::dictsort(value, named(&["case_sensitive", "by", "reverse"], places, &names)?)
}

pub(super) fn truncate(state: &mut State, value: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let names = named(&["length", "killwords", "end", "leeway"], places, &names)?;
    minijinja_contrib::filters::truncate(state, value, names)
}

pub(super) fn wordcount(text: &str) -> usize {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count()
}

/// Python's sequences are all that has a length and is read by place or key: texts and mappings too.
pub(super) fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}
