//! Python's operators and functions that minijinja lacks or spells differently.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};
use serde::Serialize;

use super::methods::{Arguments, replaced, stripped};

/// `left % right`: text that is filled in, or the remainder.
pub(super) fn percent(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        super::limits::check_format(text)?;
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
    let zero = || Error::new(ErrorKind::InvalidOperation, "division by zero");
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
pub(super) fn default(value: &Value, places: &[Value], names: Kwargs) -> Result<Value, Error> {
    let args = Arguments { places, names };
    let or = args.value(0, "default_value")?.unwrap_or_else(|| Value::from(""));
    let falsy_too = args.flag(1, "boolean")?;
    args.end(2)?;
    Ok(if value.is_undefined() || falsy_too && !value.is_true() { or } else { value.clone() })
}

/// `trim`, with Jinja2's names of the arguments.
pub(super) fn trim(text: &Value, places: &[Value], names: Kwargs) -> Result<Value, Error> {
    let args = Arguments { places, names };
    let chars = args.text(0, "chars")?;
    args.end(1)?;
    Ok(Value::from(stripped(&str(text), "strip", chars)))
}

/// `replace`, with Jinja2's names of the arguments.
pub(super) fn replace(text: &Value, places: &[Value], names: Kwargs) -> Result<Value, Error> {
    let args = Arguments { places, names };
    let replaced = replaced(&str(text), &args, 0)?;
    args.end(3).map(|()| replaced)
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
            let items: Vec<String> = value.try_iter().map(|i| i.map(|v| repr(&v)).collect()).unwrap_or_default();
            match (value.is_tuple(), items.as_slice()) {
                (true, [one]) => format!("({one},)"),
                (true, all) => format!("({})", all.join(", ")),
                (false, all) => format!("[{}]", all.join(", ")),
            }
        }
        ValueKind::Map => {
            let items: Vec<String> = value
                .try_iter()
                .map(|keys| {
                    keys.map(|k| {
                        let v = value.get_item(&k).unwrap_or(Value::UNDEFINED);
                        format!("{}: {}", repr(&k), repr(&v))
                    })
                    .collect()
                })
                .unwrap_or_default();
            format!("{{{}}}", items.join(", "))
        }
        _ => str(value),
    }
}

/// `tojson` as Hugging Face defines it: `json.dumps` with `ensure_ascii=False`, nothing escaped for HTML.
pub(super) fn json(Serde(mut json): Serde<serde_json::Value>, places: &[Value], names: Kwargs) -> Result<Value, Error> {
    let args = Arguments { places, names };
    let ascii = args.flag(0, "ensure_ascii")?;
    let indent = args.value(1, "indent")?;
    // A text is used as it is, a number means so many spaces.
    let indent = match indent.as_ref().map(|indent| (indent.as_str(), indent.as_usize())) {
        Some((Some(text), _)) => Some(text.to_owned()),
        Some((None, width)) => {
            let width = width.unwrap_or(0);
            super::limits::check_width(width)?;
            Some(" ".repeat(width))
        }
        None => None,
    };
    super::limits::check_width(indent.as_ref().map_or(0, String::len))?;
    let separators = args.value(2, "separators")?;
    let sorted = args.flag(3, "sort_keys")?;
    args.end(4)?;
    let mut signs = [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned);
    if let Some(separators) = separators {
        let given = separators.try_iter()?.map(|sign| str(&sign));
        signs.iter_mut().zip(given).for_each(|(sign, given)| *sign = given);
    }
    if sorted {
        json.sort_all_objects();
    }
    let bad = |e: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, e.to_string());
    let [item, key] = signs;
    let style = PythonJson { indent, depth: 0, item, key, ascii, empty: false };
    let mut out = Vec::new();
    json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).map_err(|e| bad(&e))?;
    String::from_utf8(out).map(Value::from_safe_string).map_err(|e| bad(&e))
}

/// Python's spacing: `{"a": [1, 2]}`, or indented lines.
struct PythonJson {
    indent: Option<String>,
    depth: usize,
    item: String,
    key: String,
    ascii: bool,
    /// Nothing was written into the innermost list or object.
    empty: bool,
}

impl PythonJson {
    fn line<W: ?Sized + std::io::Write>(&self, w: &mut W) -> std::io::Result<()> {
        match &self.indent {
            Some(indent) => write!(w, "\n{}", indent.repeat(self.depth)),
            None => Ok(()),
        }
    }

    fn begin<W: ?Sized + std::io::Write>(&mut self, w: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth += 1;
        self.empty = true;
        w.write_all(bracket)
    }

    fn next<W: ?Sized + std::io::Write>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        self.empty = false;
        if !first {
            w.write_all(self.item.as_bytes())?;
        }
        self.line(w)
    }

    fn end<W: ?Sized + std::io::Write>(&mut self, w: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth = self.depth.saturating_sub(1);
        if !std::mem::take(&mut self.empty) {
            self.line(w)?;
        }
        w.write_all(bracket)
    }
}

impl serde_json::ser::Formatter for PythonJson {
    fn write_string_fragment<W: ?Sized + std::io::Write>(&mut self, w: &mut W, text: &str) -> std::io::Result<()> {
        if !self.ascii {
            return w.write_all(text.as_bytes());
        }
        let mut units = [0; 2];
        text.chars().try_for_each(|c| match c {
            ' '..='~' => w.write_all(&[c as u8]),
            c => c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(w, "\\u{unit:04x}")),
        })
    }
    fn begin_array<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.begin(w, b"[")
    }
    fn end_array<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.end(w, b"]")
    }
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        self.next(w, first)
    }
    fn begin_object<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.begin(w, b"{")
    }
    fn end_object<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.end(w, b"}")
    }
    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        self.next(w, first)
    }
    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(self.key.as_bytes())
    }
}
