//! Messages of a request to turns: the content in any API, and the messages of a chat.

use serde_json::{Value, json};

use super::fields::{Fields, kind};
use super::refusal::Refusal;
use super::turns::{Call, Turn, arguments};
use crate::text::ChatRole;

/// The type of a text part in an earlier answer, and the field of its text.
pub(super) const REFUSAL: &str = "refusal";

/// The text of a message: a string, or parts that are texts.
pub(super) fn content(value: Option<Value>, at: &str, kinds: &[&str]) -> Result<String, Refusal> {
    parts(value, at, kinds, None)
}

/// A user's turn: its texts, and the documents of the library that it names.
pub(super) fn question(value: Option<Value>, at: &str, kinds: &[&str]) -> Result<Turn, Refusal> {
    let mut files = Vec::new();
    let text = parts(value, at, kinds, Some(&mut files))?;
    Ok(Turn { files, ..Turn::new(ChatRole::User, text) })
}

pub(super) fn file_id(fields: &mut Fields) -> Result<String, Refusal> {
    match fields.text("file_id")? {
        Some(id) => Ok(id),
        None => Err(fields.wrong("file_id", "is missing: documents are named by the ids of GET /v1/files")),
    }
}

fn parts(
    value: Option<Value>,
    at: &str,
    kinds: &[&str],
    mut files: Option<&mut Vec<String>>,
) -> Result<String, Refusal> {
    let parts = match value {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(parts)) => parts,
        Some(other) => {
            return Err(Refusal::field(
                at,
                format!("{at} must be a string or an array of parts, it is {}", kind(&other)),
            ));
        }
    };
    let mut text = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        let at = format!("{at}[{i}]");
        let mut part = Fields::of(part, &at)?;
        match (part.text("type")?.as_deref(), files.as_deref_mut()) {
            (Some(REFUSAL), _) if kinds.contains(&REFUSAL) => text.push_str(&part.need_text(REFUSAL)?),
            // Clients mix the names of both APIs of OpenAI.
            (Some(of), _) if kinds.contains(&of) || of == "input_text" => text.push_str(&part.need_text("text")?),
            (Some("input_file"), Some(files)) => files.push(file_id(&mut part)?),
            (Some("file"), Some(files)) => {
                let mut file = Fields::of(part.need("file")?, &format!("{at}.file"))?;
                files.push(file_id(&mut file)?);
                file.done()?;
            }
            (of, _) => {
                let what = of.unwrap_or("nothing");
                return Err(part.wrong("type", format!("is {what}: this model reads text only ({})", kinds.join(", "))));
            }
        }
        part.ignore(&["annotations", "logprobs", "cache_control", "citations"]);
        part.done()?;
    }
    Ok(text)
}

fn call(value: Value, at: &str) -> Result<Call, Refusal> {
    let mut fields = Fields::of(value, at)?;
    let id = fields.text("id")?.unwrap_or_default();
    fields.refuse("type", |v| v == "function" || v == "custom")?;
    fields.ignore(&["index"]);
    if let Some(mut custom) = fields.object("custom")? {
        fields.done()?;
        let (name, input) = (custom.text("name")?.unwrap_or_default(), custom.text("input")?.unwrap_or_default());
        return custom.done().map(|()| Call::new(id, name, json!({ "input": input })));
    }
    let function = Fields::of(fields.need("function")?, &format!("{at}.function"))?;
    fields.done()?;
    call_of(id, function)
}

fn call_of(id: String, mut function: Fields) -> Result<Call, Refusal> {
    let name = function.text("name")?.unwrap_or_default();
    // Some clients return the arguments as the object that they parsed.
    let arguments = match function.peek("arguments").filter(Value::is_object) {
        Some(object) => function.take("arguments").unwrap_or(object),
        None => arguments(&function.text("arguments")?.unwrap_or_default()),
    };
    function.done()?;
    Ok(Call::new(id, name, arguments))
}

fn turn(value: Value, at: &str) -> Result<Turn, Refusal> {
    let mut fields = Fields::of(value, at)?;
    let role = match fields.text("role")?.as_deref() {
        Some("system" | "developer") => ChatRole::System,
        Some("user") => ChatRole::User,
        Some("assistant") => ChatRole::Assistant,
        Some("tool" | "function") => ChatRole::Tool,
        Some(other) => {
            return Err(
                fields.wrong("role", format!("must be system, developer, user, assistant or tool, it is {other}"))
            );
        }
        None => return Err(fields.wrong("role", "is missing")),
    };
    let place = fields.name("content");
    let value = match role {
        // An answer may consist of calls alone, and a result may be empty.
        ChatRole::Assistant | ChatRole::Tool => fields.take("content"),
        ChatRole::System | ChatRole::User => Some(fields.need("content")?),
    };
    let mut turn = match role {
        ChatRole::User => question(value, &place, &["text"])?,
        ChatRole::Assistant => Turn::new(role, content(value, &place, &["text", REFUSAL])?),
        _ => Turn::new(role, content(value, &place, &["text"])?),
    };
    if role == ChatRole::Assistant {
        turn.thinking = fields.text("reasoning_content")?.or(fields.text("reasoning")?).unwrap_or_default();
        for (i, value) in fields.list("tool_calls")?.into_iter().flatten().enumerate() {
            turn.calls.push(call(value, &format!("{at}.tool_calls[{i}]"))?);
        }
        if let Some(function) = fields.object("function_call")? {
            turn.calls.push(call_of(String::new(), function)?);
        }
        fields.ignore(&["refusal", "audio", "annotations"]);
    }
    if role == ChatRole::Tool {
        turn.call_id = fields.text("tool_call_id")?;
    }
    fields.ignore(&["name"]);
    fields.done()?;
    Ok(turn)
}

/// At least one message is required.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<Value>, Refusal> {
    match fields.need("messages")? {
        Value::Array(messages) if !messages.is_empty() => Ok(messages),
        Value::Array(_) => Err(fields.wrong("messages", "is empty: there is nothing to answer")),
        other => Err(fields.wrong("messages", format!("must be an array, it is {}", kind(&other)))),
    }
}

pub(super) fn turns(fields: &mut Fields) -> Result<Vec<Turn>, Refusal> {
    messages(fields)?.into_iter().enumerate().map(|(i, value)| turn(value, &format!("messages[{i}]"))).collect()
}
