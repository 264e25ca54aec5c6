//! The released model's notation of calls: an element with one element per parameter, which contains the value as
//! text. The output is JSON.

use super::{Read, certain};

/// The marks around such a call; the name ends with [`NAME_END`].
pub(super) const MARKS: (&str, &str) = ("<function name=\"", "</function>");
const PARAM: &str = "<param name=\"";
const NAME_END: &str = "\">";
const CDATA: &str = "<![CDATA[";

/// Reads a call; `None` unless its first parameter or its end has begun. Text that cannot begin a mark breaks it.
/// `last`: the text is complete.
pub(super) fn read(text: &str, last: bool) -> Option<Read> {
    let (name, mut rest) = text.split_once(NAME_END)?;
    if ![PARAM, MARKS.1].iter().any(|mark| rest.trim_start().starts_with(mark)) {
        return None;
    }
    let mut arguments = String::new();
    let end = loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(MARKS.1) {
            arguments.push_str(if arguments.is_empty() { "{}" } else { "}" });
            break Some(after);
        }
        let Some(named) = rest.strip_prefix(PARAM) else {
            let may_become = PARAM.starts_with(rest) || MARKS.1.starts_with(rest);
            break (!may_become).then_some(rest);
        };
        let Some((key, value)) = named.split_once(NAME_END) else { break None };
        let (cdata, value) = match value.strip_prefix(CDATA) {
            Some(value) => (true, value),
            None if CDATA.starts_with(value) => break None,
            None => (false, value),
        };
        let mark = if cdata { "]]></param>" } else { "</param>" };
        let plain = |raw: &str| if cdata { raw.to_owned() } else { unescaped(raw) };
        let before = if arguments.is_empty() { "{" } else { "," };
        let key = format!("{before}\"{}\":", quoted(&unescaped(key)));
        if let Some((raw, after)) = value.split_once(mark) {
            arguments.push_str(&format!("{key}{}", typed(plain(raw))));
            rest = after;
            continue;
        }
        // It may be a JSON value other than a text: only its end decides.
        let undecided = value.trim_start().is_empty() || value.trim_start().starts_with(may_be_json);
        if undecided && last {
            arguments.push_str(&format!("{key}{value}"));
        } else if !undecided {
            let certain = certain(value, &[mark]).min(if cdata { value.len() } else { entity(value) });
            let begun = value.get(..if last { value.len() } else { certain }).unwrap_or_default();
            arguments.push_str(&format!("{key}\"{}", quoted(&plain(begun))));
        }
        break None;
    };
    Some(Read { name: unescaped(name), arguments, end: end.map(|after| text.len() - after.len()) })
}

fn may_be_json(c: char) -> bool {
    c.is_ascii_digit() || "{[-tfn".contains(c)
}

/// A value as JSON: text that is no JSON, or is a JSON string, turns into a string.
fn typed(text: String) -> String {
    let value = serde_json::from_str(&text).ok().filter(|v: &serde_json::Value| !v.is_string());
    value.unwrap_or(serde_json::Value::String(text)).to_string()
}

/// A text between the quotation marks of a JSON string.
fn quoted(text: &str) -> String {
    let whole = serde_json::Value::from(text).to_string();
    whole.get(1..whole.len() - 1).unwrap_or_default().to_owned()
}

/// Where an incomplete entity begins.
fn entity(text: &str) -> usize {
    let at = text.rfind('&').filter(|at| text.len() - at < "&quot;".len());
    at.filter(|at| !text.get(*at..).unwrap_or_default().contains(';')).unwrap_or(text.len())
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}
