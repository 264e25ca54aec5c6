//! Methods of Python's strings, lists and dicts that chat templates call and minijinja-contrib does not have.

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, State};

use super::limits;

pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), name) {
        (Some(text), "rsplit") => {
            let (sep, most): (&str, Option<usize>) = from_args(args)?;
            let mut parts: Vec<Value> = match most {
                Some(most) => text.rsplitn(most + 1, sep).map(Value::from).collect(),
                None => text.rsplit(sep).map(Value::from).collect(),
            };
            parts.reverse();
            Ok(Value::from(parts))
        }
        (Some(text), "partition" | "rpartition") => {
            let (sep,): (&str,) = from_args(args)?;
            let (first, rest) = ([text, "", ""], ["", "", text]);
            let tuple = match name {
                "partition" => text.split_once(sep).map_or(first, |(before, after)| [before, sep, after]),
                _ => text.rsplit_once(sep).map_or(rest, |(before, after)| [before, sep, after]),
            };
            Ok(Value::from(Tuple::from(tuple.map(Value::from))))
        }
        (Some(text), "removeprefix") => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        (Some(text), "removesuffix") => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        (None, "copy") if matches!(value.kind(), ValueKind::Seq | ValueKind::Map) => Ok(value.clone()),
        (text, _) => {
            if let (Some(text), "format") = (text, name) {
                limits::check_format(text)?;
            }
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
        }
    }
}
