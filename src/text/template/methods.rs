//! Methods of Python's strings, lists and dicts that chat templates call, with Python's names and meaning of the arguments.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

use super::limits;

/// Arguments of a call, by place or by name.
pub(super) struct Arguments<'a> {
    pub(super) places: &'a [Value],
    pub(super) names: Kwargs,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(args: &'a [Value]) -> Result<Arguments<'a>, Error> {
        let (places, names) = from_args(args)?;
        Ok(Arguments { places, names })
    }

    /// `None` also where it is Python's `None`.
    pub(super) fn value(&self, at: usize, name: &str) -> Result<Option<Value>, Error> {
        let named = || self.names.get::<Option<Value>>(name);
        let value = match self.places.get(at) {
            Some(value) => Some(value.clone()),
            None => named()?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    }

    pub(super) fn text(&self, at: usize, name: &str) -> Result<Option<String>, Error> {
        let value = self.value(at, name)?;
        value.map(|value| value.as_str().map(str::to_owned).ok_or_else(|| wrong(name, "text", &value))).transpose()
    }

    pub(super) fn number(&self, at: usize, name: &str) -> Result<Option<i64>, Error> {
        let value = self.value(at, name)?;
        value.map(|value| i64::try_from(value.clone()).map_err(|_| wrong(name, "a number", &value))).transpose()
    }

    fn needed(&self, at: usize, name: &str) -> Result<String, Error> {
        self.text(at, name)?.ok_or_else(|| Error::new(ErrorKind::MissingArgument, format!("`{name}` is missing")))
    }

    pub(super) fn flag(&self, at: usize, name: &str) -> Result<bool, Error> {
        Ok(self.value(at, name)?.is_some_and(|value| value.is_true()))
    }

    /// Refuses what no parameter has taken.
    pub(super) fn end(&self, places: usize) -> Result<(), Error> {
        if self.places.len() > places {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.names.assert_all_used()
    }
}

fn wrong(name: &str, kind: &str, value: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("`{name}` has to be {kind}, not {}", value.kind()))
}

/// A method of a value.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let called = Arguments::new(args)?;
    let (result, places) = match (value.as_str(), value.kind()) {
        (Some(text), _) => string(text, name, &called)?,
        (None, ValueKind::Seq) => (list(value, name, &called)?, 3),
        (None, ValueKind::Map) if name == "copy" => (Some(value.clone()), 0),
        _ => (None, 0),
    };
    match result {
        Some(result) => called.end(places).map(|()| result),
        None => {
            if let (Some(text), "format") = (value.as_str(), name) {
                limits::check_format(text)?;
            }
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
        }
    }
}

/// The result and the number of parameters; no result for a method that is looked for elsewhere.
fn string(text: &str, name: &str, args: &Arguments<'_>) -> Result<(Option<Value>, usize), Error> {
    let (value, places) = match name {
        "split" | "rsplit" => (split(text, name == "rsplit", args)?, 2),
        "partition" | "rpartition" => {
            let sign = args.needed(0, "sep")?;
            let parts = if name == "partition" { text.split_once(&sign) } else { text.rsplit_once(&sign) };
            let tuple = match parts {
                Some((before, after)) => [before, &sign, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            (Value::from(Tuple::from(tuple.map(Value::from))), 1)
        }
        "removeprefix" => (text.strip_prefix(&args.needed(0, "prefix")?).unwrap_or(text).into(), 1),
        "removesuffix" => (text.strip_suffix(&args.needed(0, "suffix")?).unwrap_or(text).into(), 1),
        "find" | "rfind" | "index" | "rindex" => {
            let (what, (from, within)) = (args.needed(0, "sub")?, part(text, args)?);
            let found = within.and_then(|w| if name.starts_with('r') { w.rfind(&what) } else { w.find(&what) });
            let at = found.zip(within).map(|(at, w)| from + w.get(..at).unwrap_or_default().chars().count());
            match at {
                Some(at) => (Value::from(at), 3),
                None if name.ends_with("find") => (Value::from(-1), 3),
                None => return Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
            }
        }
        "count" => {
            let (what, (_, within)) = (args.needed(0, "sub")?, part(text, args)?);
            (Value::from(within.map_or(0, |within| within.matches(&what).count())), 3)
        }
        "startswith" | "endswith" => {
            let of = args.value(0, "prefix")?.unwrap_or_default();
            let of: Vec<Value> = if of.as_str().is_some() { vec![of] } else { of.try_iter()?.collect() };
            let within = part(text, args)?.1;
            let matches = |of: &Value| {
                let (within, of) = (within?, of.as_str()?);
                Some(if name == "startswith" { within.starts_with(of) } else { within.ends_with(of) })
            };
            (Value::from(of.iter().any(|of| matches(of) == Some(true))), 3)
        }
        "strip" | "lstrip" | "rstrip" => (stripped(text, name, args.text(0, "chars")?).into(), 1),
        "replace" => (replaced(text, args, 0)?, 3),
        "zfill" | "ljust" | "rjust" | "center" => (padded(text, name, args)?, 2),
        "expandtabs" => (expanded(text, args.number(0, "tabsize")?.unwrap_or(8))?, 1),
        "splitlines" => (lines(text, args.flag(0, "keepends")?).into_iter().map(Value::from).collect(), 1),
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            (text.chars().map(swap).collect::<String>().into(), 0)
        }
        "casefold" => (text.to_lowercase().replace('ß', "ss").replace('ς', "σ").into(), 0),
        "title" => (title(text).into(), 0),
        "istitle" => (Value::from(title(text) == text && text.chars().any(char::is_alphabetic)), 0),
        "isdecimal" => (Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())), 0),
        "isprintable" => (Value::from(!text.chars().any(char::is_control)), 0),
        "isidentifier" => {
            let word = text.chars().all(|c| c.is_alphanumeric() || c == '_');
            (Value::from(word && text.chars().next().is_some_and(|c| !c.is_numeric())), 0)
        }
        _ => return Ok((None, 0)),
    };
    Ok((Some(value), places))
}

/// The part of a text between the arguments `start` and `end`, counted in characters, and where it begins.
fn part<'t>(text: &'t str, args: &Arguments<'_>) -> Result<(usize, Option<&'t str>), Error> {
    let length = text.chars().count() as i64;
    let bound = |at: Option<i64>, default: i64| {
        let at = at.unwrap_or(default);
        if at < 0 { (at + length).max(0) } else { at }
    };
    let (start, end) = (bound(args.number(1, "start")?, 0), bound(args.number(2, "end")?, length).min(length));
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    let within = if start > end { None } else { text.get(byte(start)..byte(end)) };
    Ok((start as usize, within))
}

fn split(text: &str, from_end: bool, args: &Arguments<'_>) -> Result<Value, Error> {
    let most = args.number(1, "maxsplit")?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
    let parts: Vec<&str> = match args.text(0, "sep")? {
        Some(sign) if sign.is_empty() => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(sign) if from_end => {
            let mut parts: Vec<&str> = text.rsplitn(most + 1, &sign).collect();
            parts.reverse();
            parts
        }
        Some(sign) => text.splitn(most + 1, &sign).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = if from_end { text.trim_end() } else { text.trim_start() };
            let cut =
                |rest: &str| if from_end { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
            while let Some(at) = cut(rest).filter(|_| parts.len() < most) {
                let (before, after) = rest.split_at(at);
                let (part, left) =
                    if from_end { (after.trim_start(), before.trim_end()) } else { (before, after.trim_start()) };
                parts.push(part);
                rest = left;
            }
            parts.push(rest);
            parts.retain(|part| !part.is_empty());
            if from_end {
                parts.reverse();
            }
            parts
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// `strip`, `lstrip` or `rstrip`.
pub(super) fn stripped<'t>(text: &'t str, name: &str, chars: Option<String>) -> &'t str {
    let strips = |c: char| chars.as_ref().map_or(c.is_whitespace(), |chars| chars.contains(c));
    let text = if name == "rstrip" { text } else { text.trim_start_matches(strips) };
    if name == "lstrip" { text } else { text.trim_end_matches(strips) }
}

/// `replace(old, new, count)`, with arguments that begin at a position.
pub(super) fn replaced(text: &str, args: &Arguments<'_>, at: usize) -> Result<Value, Error> {
    let (old, new) = (args.needed(at, "old")?, args.needed(at + 1, "new")?);
    let count = args.number(at + 2, "count")?.and_then(|count| usize::try_from(count).ok());
    Ok(Value::from(count.map_or_else(|| text.replace(&old, &new), |count| text.replacen(&old, &new, count))))
}

fn padded(text: &str, name: &str, args: &Arguments<'_>) -> Result<Value, Error> {
    let width = usize::try_from(args.number(0, "width")?.unwrap_or(0)).unwrap_or(0);
    limits::check_width(width)?;
    let missing = width.saturating_sub(text.chars().count());
    let fill = if name == "zfill" { "0".to_owned() } else { args.text(1, "fillchar")?.unwrap_or_else(|| " ".into()) };
    let before = match name {
        "ljust" => 0,
        // Python puts the odd one in front where the width is odd.
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let (sign, digits) = text.split_at(usize::from(name == "zfill" && text.starts_with(['-', '+'])));
    Ok(Value::from(format!("{sign}{}{digits}{}", fill.repeat(before), fill.repeat(missing - before))))
}

fn expanded(text: &str, width: i64) -> Result<Value, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    limits::check_width(width)?;
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = if width == 0 { 0 } else { width - column % width };
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::from(out))
}

fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\u{B}' | '\u{C}' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| ends(*c)) {
        let length = if rest.get(at..).is_some_and(|rest| rest.starts_with("\r\n")) { 2 } else { end.len_utf8() };
        lines.push(rest.get(..if keep_ends { at + length } else { at }).unwrap_or_default());
        rest = rest.get(at + length..).unwrap_or_default();
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Python starts a word after anything that is no letter.
fn title(text: &str) -> String {
    let mut inside = false;
    let cased = text.chars().flat_map(|c| {
        let cased: String = if inside { c.to_lowercase().collect() } else { c.to_uppercase().collect() };
        inside = c.is_alphabetic();
        cased.chars().collect::<Vec<char>>()
    });
    cased.collect()
}

fn list(value: &Value, name: &str, args: &Arguments<'_>) -> Result<Option<Value>, Error> {
    match name {
        "copy" => Ok(Some(value.clone())),
        "index" => {
            let what = args.value(0, "value")?.unwrap_or_default();
            let (start, stop) = (args.number(1, "start")?.unwrap_or(0), args.number(2, "stop")?.unwrap_or(i64::MAX));
            let inside = |at: &usize| (start..stop).contains(&(*at as i64));
            let at = value.try_iter()?.enumerate().position(|(at, item)| inside(&at) && item == what);
            let missing = || Error::new(ErrorKind::InvalidOperation, format!("{what} is not in the list"));
            at.map(Value::from).map(Some).ok_or_else(missing)
        }
        _ => Ok(None),
    }
}
