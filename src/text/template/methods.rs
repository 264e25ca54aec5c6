//! Methods of Python's strings, lists and dicts that chat templates call and `pycompat` lacks, or has without some arguments.

use minijinja::value::{ArgType, Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::limits::{count_bytes, refused};

/// An argument by its place, or else by its name.
pub(super) fn either<'a, T: ArgType<'a, Output = T>>(
    place: Option<T>,
    names: &'a Kwargs,
    name: &'a str,
) -> Result<Option<T>, Error> {
    if place.is_some() { Ok(place) } else { names.get(name) }
}

pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => string(state, text, name, args)?,
        (None, ValueKind::Seq) if name == "index" => Some(index(value, args)?),
        (None, ValueKind::Seq | ValueKind::Map) if name == "copy" => from_args(args).map(|()| Some(value.clone()))?,
        _ => None,
    };
    own.map_or_else(|| unknown_method_callback(state, value, name, args), Ok)
}

fn string(state: &mut State, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let one = || from_args::<(&str,)>(args).map(|(argument,)| argument);
    let own = match name {
        "split" | "rsplit" => split(text, name == "rsplit", args)?,
        "partition" | "rpartition" => {
            let sign = one()?;
            let tuple = match if name == "partition" { text.split_once(sign) } else { text.rsplit_once(sign) } {
                Some((before, after)) => [before, sign, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(tuple.map(Value::from)))
        }
        "removeprefix" => text.strip_prefix(one()?).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(one()?).unwrap_or(text).into(),
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => within(state, text, name, args)?,
        "zfill" | "ljust" | "rjust" | "center" => padded(state, text, name, args)?,
        "expandtabs" => expanded(state, text, args)?,
        "format" => {
            // The library counts a text once it is built.
            let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
            let widths = numbers.map(|digits| digits.parse().unwrap_or(usize::MAX));
            count_bytes(state, widths.fold(0, usize::saturating_add))?;
            return Ok(None);
        }
        _ => {
            let own = match name {
                "swapcase" => text.chars().flat_map(|c| cased(c, !c.is_uppercase())).collect::<String>().into(),
                "casefold" => text.to_lowercase().replace('ß', "ss").replace('ς', "σ").into(),
                "title" => title(text).into(),
                "istitle" => Value::from(title(text) == text && text.chars().any(char::is_alphabetic)),
                "isdecimal" => Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())),
                "isprintable" => Value::from(!text.chars().any(char::is_control)),
                "isidentifier" => {
                    let word = text.chars().all(|c| c.is_alphanumeric() || c == '_');
                    Value::from(word && text.chars().next().is_some_and(|c| !c.is_numeric()))
                }
                _ => return Ok(None),
            };
            let () = from_args(args)?;
            own
        }
    };
    Ok(Some(own))
}

/// A method that looks between the arguments `start` and `end`, which count characters.
fn within(state: &mut State, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, end): (Value, Option<i64>, Option<i64>) = from_args(args)?;
    let length = text.chars().count() as i64;
    let bound = |at: i64| if at < 0 { (at + length).max(0) } else { at };
    let (start, end) = (bound(start.unwrap_or(0)), bound(end.unwrap_or(length)).min(length));
    let part: String = text.chars().skip(start as usize).take((end - start).max(0) as usize).collect();
    let method = match name {
        "index" => "find",
        "rindex" => "rfind",
        name => name,
    };
    let found = unknown_method_callback(state, &Value::from(part), method, &[what])?;
    match (name, found.as_i64()) {
        ("index" | "rindex", Some(-1)) => Err(refused("substring not found")),
        ("find" | "rfind" | "index" | "rindex", Some(at @ 0..)) => Ok(Value::from(at + start)),
        _ => Ok(found),
    }
}

fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (sign, most, names): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let (sign, most) = (either(sign, &names, "sep")?, either(most, &names, "maxsplit")?);
    names.assert_all_used()?;
    let parts = most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match sign {
        Some("") => return Err(refused("empty separator")),
        Some(sign) if from_end => text.rsplitn(parts, sign).collect(),
        Some(sign) => text.splitn(parts, sign).collect(),
        None => words(text, from_end, parts),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Parts between white space, the last of them with all the rest.
fn words(text: &str, from_end: bool, most: usize) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text);
    loop {
        rest = if from_end { rest.trim_end() } else { rest.trim_start() };
        let cut = if from_end { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let Some((before, after)) = cut.filter(|_| parts.len() + 1 < most).map(|at| rest.split_at(at)) else { break };
        parts.push(if from_end { after.trim_start() } else { before });
        rest = if from_end { before } else { after };
    }
    parts.extend(Some(rest).filter(|rest| !rest.is_empty()));
    parts
}

pub(super) fn padded(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill, names): (Option<usize>, Option<&str>, Kwargs) = from_args(args)?;
    let width = either(width, &names, "width")?.unwrap_or(0);
    names.assert_all_used()?;
    count_bytes(state, width)?;
    let missing = width.saturating_sub(text.chars().count());
    let fill = if name == "zfill" { "0" } else { fill.unwrap_or(" ") };
    let before = match name {
        "ljust" => 0,
        // Python puts the odd one in front where the width is odd.
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let (sign, digits) = text.split_at(usize::from(name == "zfill" && text.starts_with(['-', '+'])));
    Ok(Value::from(format!("{sign}{}{digits}{}", fill.repeat(before), fill.repeat(missing - before))))
}

fn expanded(state: &State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (width,): (Option<usize>,) = from_args(args)?;
    let width = width.unwrap_or(8);
    count_bytes(state, text.matches('\t').count().saturating_mul(width))?;
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

fn cased(c: char, upper: bool) -> Vec<char> {
    if upper { c.to_uppercase().collect() } else { c.to_lowercase().collect() }
}

/// Python starts a word after anything that is no letter.
fn title(text: &str) -> String {
    let mut inside = false;
    text.chars().flat_map(|c| cased(c, !std::mem::replace(&mut inside, c.is_alphabetic()))).collect()
}

fn index(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (what, start, stop): (Value, Option<i64>, Option<i64>) = from_args(args)?;
    let bounds = start.unwrap_or(0)..stop.unwrap_or(i64::MAX);
    let at = list.try_iter()?.enumerate().position(|(at, item)| bounds.contains(&(at as i64)) && item == what);
    at.map(Value::from).ok_or_else(|| refused(format!("{what} is not in the list")))
}
