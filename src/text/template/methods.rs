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

    fn text(&self, at: usize, name: &str) -> Result<Option<String>, Error> {
        let value = self.value(at, name)?;
        value.map(|value| value.as_str().map(str::to_owned).ok_or_else(|| wrong(name, "text", &value))).transpose()
    }

    fn number(&self, at: usize, name: &str) -> Result<Option<i64>, Error> {
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

/// A method of a value; minijinja-contrib has those without a difference.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let called = Arguments::new(args)?;
    let (result, places) = match (value.as_str(), value.kind()) {
        (Some(text), _) => match name {
            "split" | "rsplit" => (split(text, name == "rsplit", &called)?, 2),
            "partition" | "rpartition" => (partition(text, name == "rpartition", &called)?, 1),
            "removeprefix" => (text.strip_prefix(&called.needed(0, "prefix")?).unwrap_or(text).into(), 1),
            "removesuffix" => (text.strip_suffix(&called.needed(0, "suffix")?).unwrap_or(text).into(), 1),
            "find" | "rfind" => {
                let what = called.needed(0, "sub")?;
                let at = if name == "find" { text.find(&what) } else { text.rfind(&what) };
                // Python counts characters.
                let at = at.map_or(-1, |at| text.get(..at).unwrap_or_default().chars().count() as i64);
                (Value::from(at), 1)
            }
            _ => {
                if name == "format" {
                    limits::check_format(text)?;
                }
                return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
            }
        },
        (None, ValueKind::Seq | ValueKind::Map) if name == "copy" => (value.clone(), 0),
        _ => return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    };
    called.end(places).map(|()| result)
}

fn partition(text: &str, from_end: bool, args: &Arguments<'_>) -> Result<Value, Error> {
    let sign = args.needed(0, "sep")?;
    let tuple = match if from_end { text.rsplit_once(&sign) } else { text.split_once(&sign) } {
        Some((before, after)) => [before, &sign, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(tuple.map(Value::from))))
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
        None if from_end => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while let Some(at) = rest.rfind(char::is_whitespace).filter(|_| parts.len() < most) {
                parts.push(rest.get(at..).unwrap_or_default().trim_start());
                rest = rest.get(..at).unwrap_or_default().trim_end();
            }
            parts.push(rest);
            parts.retain(|part| !part.is_empty());
            parts.reverse();
            parts
        }
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start();
            while let Some(at) = rest.find(char::is_whitespace).filter(|_| parts.len() < most) {
                parts.push(rest.get(..at).unwrap_or_default());
                rest = rest.get(at..).unwrap_or_default().trim_start();
            }
            parts.push(rest);
            parts.retain(|part| !part.is_empty());
            parts
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}
