//! The released model's notation of calls: an element with one element per parameter, which contains the value as
//! text. The output is JSON.

/// The marks around such a call; the name ends with [`NAME_END`].
pub(super) const MARKS: (&str, &str) = ("<function name=\"", "</function>");
const PARAM: &str = "<param name=\"";
const NAME_END: &str = "\">";
const CDATA: &str = "<![CDATA[";

/// The name of a call, and the offset of its first parameter or its end, once one of them has arrived.
pub(super) fn head(text: &str) -> Option<(String, usize)> {
    let (name, body) = text.split_once(NAME_END)?;
    let body = body.trim_start();
    let is_call = body.starts_with(PARAM) || body.starts_with(MARKS.1);
    is_call.then(|| (unescaped(name), text.len() - body.len()))
}

#[derive(Clone, Debug, Default)]
pub(super) struct Native {
    /// The output contains a parameter.
    any: bool,
    value: Option<Value>,
}

#[derive(Clone, Debug)]
struct Value {
    key: String,
    /// The text is unescaped, without entities.
    cdata: bool,
    /// The value is certainly a text, and the output contains its beginning.
    begun: bool,
}

#[derive(Debug, Default)]
pub(super) struct Step {
    pub arguments: String,
    /// The call is complete, or broken.
    pub ended: bool,
    /// The held text may contain more.
    pub more: bool,
}

impl Step {
    fn open(arguments: String) -> Step {
        Step { arguments, ended: false, more: true }
    }

    fn ended(arguments: String) -> Step {
        Step { arguments, ended: true, more: true }
    }
}

impl Native {
    pub(super) fn step(&mut self, held: &mut String) -> Step {
        match self.value.take() {
            None => self.between(held),
            Some(value) => self.within(value, held),
        }
    }

    fn between(&mut self, held: &mut String) -> Step {
        let rest = held.trim_start();
        if let Some(after) = rest.strip_prefix(MARKS.1) {
            *held = after.to_owned();
            return Step::ended(if self.any { "}" } else { "{}" }.to_owned());
        }
        let Some(named) = rest.strip_prefix(PARAM) else {
            // Text that cannot begin a mark breaks the call, and the rest is text.
            let may_become = PARAM.starts_with(rest) || MARKS.1.starts_with(rest);
            return if may_become { Step::default() } else { Step::ended(String::new()) };
        };
        let Some((key, text)) = named.split_once(NAME_END) else { return Step::default() };
        let (cdata, text) = match text.strip_prefix(CDATA) {
            Some(text) => (true, text),
            None if CDATA.starts_with(text) => return Step::default(),
            None => (false, text),
        };
        self.value = Some(Value { key: unescaped(key), cdata, begun: false });
        *held = text.to_owned();
        Step::open(String::new())
    }

    fn within(&mut self, mut value: Value, held: &mut String) -> Step {
        let mark = if value.cdata { "]]></param>" } else { "</param>" };
        let end = held.find(mark);
        let text = |raw: &str| if value.cdata { raw.to_owned() } else { unescaped(raw) };
        match (end, value.begun) {
            (Some(at), begun) => {
                let (raw, after) =
                    (held.get(..at).unwrap_or_default(), held.get(at + mark.len()..).unwrap_or_default());
                let more = match begun {
                    true => format!("{}\"", quoted(&text(raw))),
                    false => format!("{}{}", self.key(&value.key), typed(text(raw))),
                };
                *held = after.to_owned();
                Step::open(more)
            }
            // It may be a JSON value other than a text: only its end decides.
            (None, false) if held.trim_start().starts_with(may_be_json) || held.trim_start().is_empty() => {
                self.value = Some(value);
                Step::default()
            }
            (None, begun) => {
                let certain = super::certain(held, &[mark]);
                let certain = if value.cdata { certain } else { certain.min(entity(held)) };
                let rest = held.split_off(certain);
                let more = quoted(&text(held));
                *held = rest;
                let begin = if begun { String::new() } else { format!("{}\"", self.key(&value.key)) };
                value.begun = true;
                self.value = Some(value);
                Step { arguments: format!("{begin}{more}"), ..Step::default() }
            }
        }
    }

    /// Closes the arguments of a call that broke off.
    pub(super) fn broken_off(mut self, held: &str) -> String {
        match self.value.take() {
            None => String::new(),
            Some(value) if value.begun => quoted(held),
            Some(value) => format!("{}{held}", self.key(&value.key)),
        }
    }

    /// The JSON in front of a value.
    fn key(&mut self, key: &str) -> String {
        let before = if std::mem::replace(&mut self.any, true) { "," } else { "{" };
        format!("{before}\"{}\":", quoted(key))
    }
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
