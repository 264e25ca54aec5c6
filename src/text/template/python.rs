//! What Python gives templates and minijinja spells differently: methods, `str`, `repr`, `json.dumps`.

use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};
use serde::Serialize;

/// Methods of Python's types.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    super::limits::check_method(value, name, args)?;
    match (name, value.as_str()) {
        // Python starts a word after anything that is no letter.
        ("title", Some(text)) if args.is_empty() => {
            let mut inside = false;
            let title = text.chars().flat_map(|c| {
                let cased: String = if inside { c.to_lowercase().collect() } else { c.to_uppercase().collect() };
                inside = c.is_alphabetic();
                cased.chars().collect::<Vec<char>>()
            });
            Ok(Value::from(title.collect::<String>()))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
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
            format!("[{}]", items.join(", "))
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
pub(super) fn json(Serde(mut json): Serde<serde_json::Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    super::limits::check_width(indent.unwrap_or(0))?;
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    let sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    let bad = |e: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, e.to_string());
    if sorted {
        json.sort_all_objects();
    }
    let mut style = PythonJson {
        indent,
        depth: 0,
        item: separators.as_ref().and_then(|s| s.first().cloned()),
        key: separators.as_ref().and_then(|s| s.get(1).cloned()),
        empty: false,
    };
    if style.item.is_none() {
        style.item = Some(if indent.is_some() { "," } else { ", " }.to_owned());
    }
    let mut out = Vec::new();
    json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).map_err(|e| bad(&e))?;
    String::from_utf8(out).map(Value::from_safe_string).map_err(|e| bad(&e))
}

/// Python's spacing: `{"a": [1, 2]}`, or indented lines.
struct PythonJson {
    indent: Option<usize>,
    depth: usize,
    item: Option<String>,
    key: Option<String>,
    /// Nothing was written into the innermost list or object.
    empty: bool,
}

impl PythonJson {
    fn line<W: ?Sized + std::io::Write>(&self, w: &mut W) -> std::io::Result<()> {
        match self.indent {
            Some(n) => write!(w, "\n{:width$}", "", width = n * self.depth),
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
            w.write_all(self.item.as_deref().unwrap_or(", ").as_bytes())?;
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
        w.write_all(self.key.as_deref().unwrap_or(": ").as_bytes())
    }
}
