//! Turns of a conversation, and reading the messages of any API into them: roles, texts, documents, calls, results.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::request::current;
use super::{Fields, Refusal, Result, kind, leave_out, locked};
use crate::config::settings::LoadConfig;
use crate::core::{counted, plain_words};
use crate::runtime::render::safe_name;
use crate::text::sources::{self, Cause, Problem, Remark, SourceError, SourceOptions};
use crate::text::{ChatMessage, ChatRole, decode};

const PDF: &str = "application/pdf";
/// Seconds and text for all PDFs of a request.
const PDFS_S: u64 = 120;
const PDFS_MIB: u64 = 32;
/// Those that are read at a time, in all requests.
static READERS: Semaphore = Semaphore::const_new(2);
/// The name of a document without one.
const UNNAMED: &str = "document.txt";

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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

impl Turn {
    pub(super) fn new(role: ChatRole, text: impl Into<String>) -> Turn {
        Turn { role, text: text.into(), thinking: String::new(), calls: Vec::new(), call_id: None, files: Vec::new() }
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
    // An answer may consist of calls alone, and a result may be empty.
    if matches!(role, ChatRole::System | ChatRole::User) {
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
    fields.ignore(&["name", "phase"]);
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
        // Names a function that the request has in full.
        ("tool_reference", ChatRole::Tool) => turn.text.push_str(&fields.text("tool_name")?.unwrap_or_default()),
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
        (other, _) => {
            let what = if other.is_empty() { "nothing" } else { other };
            return Err(fields.wrong("type", format!("is {what}: this model reads text only")));
        }
    }
    fields.done()
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

/// The text of a file in base64, by its media type: text, or a PDF. `field` holds it.
fn sent(name: &str, media: &str, data: &str, field: &str) -> Result<String> {
    if media != PDF && !media.starts_with("text/") {
        let what = "only text and PDF can be sent. Add the file to the library (sala-chat library add FILE) and name it as in docs/serve.md";
        return Err(Refusal::field(field, format!("{field} is {media}: {what}")));
    }
    let wrong = |what: String| Refusal::field(field, format!("{field}: {name} {what}"));
    let bytes = STANDARD.decode(data.replace(char::is_whitespace, "")).ok();
    if media == PDF {
        return pdf(name, &bytes.ok_or_else(|| wrong("is not base64".into()))?, wrong);
    }
    let decoded = bytes.and_then(|bytes| decode(bytes, false).ok());
    decoded.map(|decoded| decoded.text).ok_or_else(|| wrong("is not text in base64".into()))
}

/// The text of a PDF, by the reader of `/load`. Unreadable pages are named in the log. `wrong` refuses its content.
fn pdf(name: &str, bytes: &[u8], wrong: impl Fn(String) -> Refusal) -> Result<String> {
    let context = current();
    let mut left = locked(&context.pdfs);
    let (end, room) = left.get_or_insert_with(|| (Instant::now() + Duration::from_secs(PDFS_S), PDFS_MIB << 20));
    let time = || end.saturating_duration_since(Instant::now());
    let beyond = || wrong(format!("is too much: a request's PDFs may take {PDFS_S} s and have {PDFS_MIB} MiB of text"));
    let fault = |why: String| Refusal::internal(format!("{name} cannot be read here: {why}"));
    let _turn = loop {
        match READERS.try_acquire() {
            _ if time().is_zero() || context.ended.is_cancelled() => return Err(beyond()),
            Ok(turn) => break turn,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let folder = tempfile::tempdir().map_err(|e| fault(plain_words(&e)))?;
    let file = folder.path().join("document.pdf");
    std::fs::write(&file, bytes).map_err(|e| fault(plain_words(&e)))?;
    let (reader, all) = (context.program.clone(), SourceOptions::new(&LoadConfig::default()));
    let options = SourceOptions { reader, max_file_bytes: *room, convert_time: time(), ..all };
    let unread = |problem: Problem| match problem {
        Problem::NoTextLayer { pages } => {
            wrong(format!("has {}, and no text on them (perhaps a scan)", counted(pages as u64, "page")))
        }
        Problem::NeedsConverter { .. } => wrong("is no PDF".to_owned()),
        Problem::Io(reason) | Problem::Document { reason, cause: Cause::Start, .. } => fault(reason),
        Problem::TooLarge { .. } | Problem::Document { cause: Cause::Size, .. } => beyond(),
        Problem::Document { .. } if time().is_zero() => beyond(),
        Problem::Document { reason, .. } => wrong(format!("cannot be read: {reason}")),
        other => wrong(format!("cannot be read: {other}")),
    };
    let read = sources::gather(&[file.display().to_string()], &options, &context.ended).map_err(|e| match e {
        SourceError::File { problem, .. } => unread(problem),
        other => wrong(format!("cannot be read: {other}")),
    });
    let document = read?.documents.pop().ok_or_else(|| wrong("is empty".into()))?;
    *room = room.saturating_sub(document.text.len() as u64);
    if let Some(Remark::Missing(what)) = document.note {
        tracing::warn!("{name:?}, sent as a PDF: {what}");
    }
    Ok(document.text)
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
