//! Turns of a conversation, and reading the messages of any API into them: roles, texts, documents, calls, results.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::files::sent;
use super::{Fields, Refusal, Result, kind, leave_out};
use crate::runtime::render::safe_name;
use crate::text::{ChatMessage, ChatRole};

/// Types of the parts of a message, for an error.
const KNOWN: &str = "'text', 'thinking', 'document', 'search_result', 'tool_use', 'tool_result', 'tool_reference'";
/// The name of a document without one.
const UNNAMED: &str = "document";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    pub id: String,
    pub name: String,
    /// An object; a string with the unchanged text if it is no object.
    pub arguments: Value,
    /// The model's own text of the arguments, if the model made the call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    written: String,
}

impl Call {
    pub(super) fn new(id: String, name: String, arguments: Value) -> Call {
        Call { id, name, arguments, written: String::new() }
    }

    pub(super) fn written(id: String, name: String, written: String) -> Call {
        Call { id, name, arguments: arguments(&written), written }
    }

    pub(super) fn text(&self) -> String {
        if self.written.is_empty() && !self.is_cut() { self.arguments.to_string() } else { self.written.clone() }
    }

    /// The call broke off before its arguments were complete.
    pub(super) fn is_cut(&self) -> bool {
        self.arguments.as_str().is_some_and(|text| text == self.written)
    }
}

/// Arguments of a call: JSON in a string. Invalid JSON was written by a model and stays unchanged.
pub(super) fn arguments(text: &str) -> Value {
    let Ok(mut value) = serde_json::from_str(text) else { return Value::String(text.to_owned()) };
    whole_zeros(&mut value);
    value
}

/// `-0` is a whole number in JSON, but is read as the float `-0.0`, which clients refuse for an integer.
fn whole_zeros(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_f64() == Some(0.0) => *value = 0.into(),
        Value::Array(list) => list.iter_mut().for_each(whole_zeros),
        Value::Object(map) => map.values_mut().for_each(whole_zeros),
        _ => {}
    }
}

/// A function that the model may call from a turn on, or no longer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Offer {
    /// Its place in the request, for errors.
    pub place: String,
    /// A `tool_definition` or a `tool_reference` of Anthropic's API.
    pub tool: Value,
    pub removed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    pub role: ChatRole,
    pub text: String,
    #[serde(default)]
    pub thinking: String,
    #[serde(default)]
    pub calls: Vec<Call>,
    /// The call that this turn is the result of.
    #[serde(default)]
    pub call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<Offer>,
}

impl Turn {
    pub(super) fn new(role: ChatRole, text: impl Into<String>) -> Turn {
        Turn { role, text: text.into(), ..Turn::default() }
    }
}

pub(super) fn without_billing(text: &str) -> String {
    let billing = "x-anthropic-billing-header:";
    let is_billing = |line: &&str| line.get(..billing.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(billing));
    text.split_inclusive('\n').filter(|line| !is_billing(line)).collect()
}

/// Reads `messages`: at least one is required.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<Turn>> {
    fields.require("messages")?;
    let mut turns = Vec::new();
    fields.objects("messages")?.into_iter().try_for_each(|fields| message(fields, &mut turns))?;
    if turns.is_empty() {
        return Err(fields.wrong("messages", "is empty: there is nothing to answer"));
    }
    Ok(turns)
}

/// Reads a message, and adds its turn. The results of calls in it are turns of their own.
pub(super) fn message(mut fields: Fields, turns: &mut Vec<Turn>) -> Result<()> {
    let role = match fields.text("role")?.as_deref() {
        // Claude Code sends its reminders as system messages between the turns.
        Some("system" | "developer") => ChatRole::System,
        Some("user") => ChatRole::User,
        Some("assistant") => ChatRole::Assistant,
        Some("tool" | "function") => ChatRole::Tool,
        Some(other) => {
            let what = format!("must be system, developer, user, assistant or tool, it is {other}");
            return Err(fields.wrong("role", what));
        }
        None => return Err(fields.wrong("role", "is missing")),
    };
    // An answer may consist of calls alone, a result may be empty, and a system message may change the effort alone.
    if role == ChatRole::User || role == ChatRole::System && !fields.has("output_config") {
        fields.require("content")?;
    }
    turns.push(Turn::new(role, ""));
    parts(&mut fields, "content", role, turns)?;
    if let Some(turn) = turns.last_mut().filter(|_| role == ChatRole::Assistant) {
        turn.thinking.push_str(&fields.text("reasoning_content")?.or(fields.text("reasoning")?).unwrap_or_default());
        for fields in fields.objects("tool_calls")? {
            turn.calls.push(call(fields)?);
        }
        if let Some(function) = fields.object("function_call")? {
            turn.calls.push(call_of(String::new(), function)?);
        }
        fields.ignore(&["refusal", "audio", "annotations"]);
    }
    if let Some(turn) = turns.last_mut().filter(|_| role == ChatRole::Tool) {
        turn.call_id = fields.text("tool_call_id")?;
    }
    turns.pop_if(|turn| *turn == Turn::new(ChatRole::System, ""));
    fields.ignore(&["name", "phase", "output_config"]);
    fields.done()
}

/// A field with content, as one turn.
pub(super) fn content(fields: &mut Fields, field: &'static str, role: ChatRole) -> Result<Turn> {
    let mut turns = vec![Turn::new(role, "")];
    parts(fields, field, role, &mut turns)?;
    Ok(turns.pop().unwrap_or_else(|| Turn::new(role, "")))
}

/// Adds the content in a field to the last turn: a string, or an array of parts.
fn parts(fields: &mut Fields, field: &'static str, role: ChatRole, turns: &mut Vec<Turn>) -> Result<()> {
    match fields.take(field) {
        None => Ok(()),
        Some(Value::Array(list)) => {
            fields.objects_of(field, list)?.into_iter().try_for_each(|fields| part(fields, role, turns))
        }
        Some(Value::String(text)) => {
            turns.last_mut().into_iter().for_each(|turn| turn.text.push_str(&text));
            Ok(())
        }
        Some(other) => {
            let what = format!("must be a string or an array of parts, it is {}", kind(&other));
            Err(fields.wrong(field, what))
        }
    }
}

fn part(mut fields: Fields, role: ChatRole, turns: &mut Vec<Turn>) -> Result<()> {
    let of = fields.text("type")?.unwrap_or_default();
    fields.ignore(&["annotations", "logprobs", "cache_control", "citations"]);
    // After the result of a call.
    if turns.last().is_none_or(|turn| turn.role != role) {
        turns.push(Turn::new(role, ""));
    }
    let Some(turn) = turns.last_mut() else { return Ok(()) };
    match (of.as_str(), role) {
        // A billing line of the Messages API is a part of its own, without a line end.
        ("text", ChatRole::System) if fields.name("text").starts_with("system[") => {
            turn.text.push_str(&without_billing(&fields.need_text("text")?))
        }
        ("text" | "input_text" | "output_text", _) => turn.text.push_str(&fields.need_text("text")?),
        ("refusal", ChatRole::Assistant) => turn.text.push_str(&fields.need_text("refusal")?),
        ("thinking", ChatRole::Assistant) => {
            turn.thinking.push_str(&fields.text("thinking")?.unwrap_or_default());
            fields.ignore(&["signature"]);
        }
        ("redacted_thinking", ChatRole::Assistant) => fields.ignore(&["data"]),
        ("tool_use", ChatRole::Assistant) => {
            let (id, name) = (fields.text("id")?.unwrap_or_default(), fields.text("name")?.unwrap_or_default());
            turn.calls.push(Call::new(id, name, fields.take("input").unwrap_or_else(|| json!({}))));
            fields.ignore(&["caller"]);
        }
        ("input_file", ChatRole::User) => file(&mut fields, turn)?,
        ("file", ChatRole::User) => {
            let mut inner = fields.need_object("file")?;
            file(&mut inner, turn)?;
            inner.done()?;
        }
        ("document", ChatRole::User | ChatRole::Tool) => document(&mut fields, turn)?,
        ("search_result", ChatRole::User | ChatRole::Tool) => {
            let source = fields.text("source")?;
            let name = fields.text("title")?.or(source).unwrap_or_default();
            turn.text.push_str(&named_text(&name, &content(&mut fields, "content", ChatRole::System)?.text));
        }
        ("tool_reference", ChatRole::Tool) => {
            let name = fields.need_text("tool_name")?;
            turn.text.push_str(&name);
            let tool = json!({ "type": of, "name": name });
            turn.offers.push(Offer { place: fields.name("tool_name"), tool, removed: false });
        }
        ("tool_addition" | "tool_removal", ChatRole::System) => {
            let (place, tool) = (fields.name("tool"), fields.need("tool")?);
            turn.offers.push(Offer { place, tool, removed: of == "tool_removal" });
        }
        ("tool_result", ChatRole::User) => {
            let call_id = fields.text("tool_use_id")?;
            let result = content(&mut fields, "content", ChatRole::Tool)?;
            fields.ignore(&["is_error"]);
            // Remove the empty turn that was started for this part.
            turns.pop_if(|turn| turn.text.is_empty() && turn.files.is_empty());
            turns.push(Turn { call_id, ..result });
        }
        // Of tools that another server has run.
        (other, ChatRole::Assistant) if !other.is_empty() && leave_out(&fields.name(other)) => return Ok(()),
        (other, _) => return Err(unreadable(&fields, other)),
    }
    fields.done()
}

/// Refuses a part of the type `of`.
fn unreadable(fields: &Fields, of: &str) -> Refusal {
    if ["image", "audio", "video"].iter().any(|media| of.contains(media)) {
        return fields.wrong("type", format!("is {of}: this model reads text only"));
    }
    // By these words, Anthropic's clients find out that they must send the message without the part.
    let place = fields.name("").replace('[', ".").replace(']', "");
    let found = format!("Input tag '{of}' found using 'type' does not match any of the expected tags: {KNOWN}");
    let anthropic = Some(format!("{}: {found}", place.trim_end_matches('.')));
    Refusal { anthropic, ..fields.wrong("type", format!("is {of:?}, which is not known in this place")) }
}

fn file_id(fields: &mut Fields) -> Result<String> {
    let what = "is missing: documents are named by the ids of GET /v1/files";
    fields.text("file_id")?.ok_or_else(|| fields.wrong("file_id", what))
}

/// A file of OpenAI's APIs: a document of the library, or a data URL.
fn file(fields: &mut Fields, turn: &mut Turn) -> Result<()> {
    let name = fields.text("filename")?;
    fields.ignore(&["detail"]);
    fields.refuse_because("file_url", "is not fetched: send file_data, or the file_id of a document", |_| false)?;
    let Some(data) = fields.text("file_data")? else {
        turn.files.push(file_id(fields)?);
        return Ok(());
    };
    let Some((media, data)) = data.strip_prefix("data:").and_then(|url| url.split_once(";base64,")) else {
        return Err(fields.wrong("file_data", "must be a data URL: data:application/pdf;base64,…"));
    };
    let name = name.as_deref().unwrap_or(UNNAMED);
    // Parameters may follow the type: `application/pdf;name=a.pdf`.
    let media = media.split(';').next().unwrap_or_default();
    turn.text.push_str(&named_text(name, &sent(name, media, data, &fields.name("file_data"))?));
    Ok(())
}

/// A text as a document of the conversation.
fn named_text(name: &str, text: &str) -> String {
    let [document, _] = ChatMessage::document(&safe_name(name), text.trim_matches(['\n', '\r']));
    format!("{}\n\n", document.content)
}

fn document(fields: &mut Fields, turn: &mut Turn) -> Result<()> {
    let title = fields.text("title")?;
    let name = title.as_deref().unwrap_or(UNNAMED);
    fields.ignore(&["context"]);
    let mut source = fields.need_object("source")?;
    let text = match source.need_text("type")?.as_str() {
        "file" => {
            turn.files.push(file_id(&mut source)?);
            return source.done();
        }
        "text" => {
            source.refuse("media_type", |v| v.as_str().is_some_and(|media| media.starts_with("text/")))?;
            source.need_text("data")?
        }
        "content" => content(&mut source, "content", ChatRole::System)?.text,
        "base64" => {
            let (media, data) = (source.need_text("media_type")?, source.need_text("data")?);
            sent(name, &media, &data, &source.name("data"))?
        }
        other => {
            let what = format!("is {other:?}: a document is text, content, base64, or a file of the library");
            return Err(source.wrong("type", what));
        }
    };
    turn.text.push_str(&named_text(name, &text));
    source.done()
}

fn call(mut fields: Fields) -> Result<Call> {
    let id = fields.text("id")?.unwrap_or_default();
    fields.refuse("type", |v| v == "function" || v == "custom")?;
    fields.ignore(&["index"]);
    if fields.has("custom") {
        let mut custom = fields.below("custom")?;
        let (name, input) = (custom.text("name")?.unwrap_or_default(), custom.text("input")?.unwrap_or_default());
        return custom.done().map(|()| Call::new(id, name, json!({ "input": input })));
    }
    fields.require("function")?;
    call_of(id, fields.below("function")?)
}

fn call_of(id: String, mut function: Fields) -> Result<Call> {
    let name = function.text("name")?.unwrap_or_default();
    // Some clients return the arguments as the object that they parsed.
    let arguments = match function.peek("arguments").filter(Value::is_object) {
        Some(object) => function.take("arguments").unwrap_or(object),
        None => arguments(&function.text("arguments")?.unwrap_or_default()),
    };
    function.done()?;
    Ok(Call::new(id, name, arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(content: Value) -> Result<Vec<Turn>> {
        messages(&mut Fields::of(json!({ "messages": [{ "role": "user", "content": content }] }), "").unwrap())
    }

    #[test]
    fn a_document_in_base64_is_text_or_refused_by_its_type() {
        let sent = |media: &str, data: &str| {
            let source = json!({ "type": "base64", "media_type": media, "data": data });
            let content = json!([{ "type": "document", "title": "a.txt", "source": source }]);
            turns(content).map(|turns| turns[0].text.clone())
        };
        assert!(sent("text/plain", "VGhlIHJlbnQgaXMgN\nTAwIOKCrC4=").unwrap().contains("The rent is 500 €."));
        let image = sent("image/png", "JVBERi0=").unwrap_err().message;
        assert!(image.contains("is image/png") && image.contains("sala-chat library add FILE"), "{image}");
        assert!(sent("text/plain", "%").unwrap_err().message.ends_with("is not text in base64"));
    }

    #[test]
    fn a_document_before_the_result_of_a_call_stays() {
        let content = json!([
            { "type": "document", "source": { "type": "file", "file_id": "file-1" } },
            { "type": "tool_result", "tool_use_id": "c1", "content": "12 degrees" },
        ]);
        let turns = turns(content).unwrap();
        let roles: Vec<ChatRole> = turns.iter().map(|t| t.role).collect();
        assert_eq!(roles, [ChatRole::User, ChatRole::Tool]);
        assert_eq!((turns[0].files.as_slice(), turns[1].call_id.as_deref()), (&["file-1".to_owned()][..], Some("c1")));
    }
}
