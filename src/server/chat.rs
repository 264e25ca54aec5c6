//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::ask::{Said, Told};
use super::chunks::{Ending, MOST_CHOICES, include_usage, reason, usage};
use super::collected::{Collected, collect};
use super::completions::MOST_LIKELY;
use super::fields::{Fields, kind};
use super::prompt::{Call, Conversation, Turn};
use super::refusal::{Family, Refusal};
use super::reply::{self, fresh_id, model_named, object, render, submit};
use super::sampling::{stops, thinking, wish};
use super::stream::{Form, data, stream};
use super::tools::Tools;
use super::{Shared, http, likely, now_s};
use crate::protocol::engine::MOST_TOKENS;
use crate::text::ChatRole;
use crate::text::grammar::Grammar;

/// Fields that change nothing here.
const IGNORED: [&str; 9] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "verbosity",
];

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

/// The id of a document of the library.
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
            (Some(of), _) if kinds.contains(&of) => text.push_str(&part.text("text")?.unwrap_or_default()),
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

/// Arguments of a call: JSON in a string. What is no JSON was written by a model and is handed back as it was.
pub(super) fn arguments(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// A call as an object; its arguments are JSON in a string.
fn call_object(call: &Call) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": call.text() },
    })
}

fn call(value: Value, at: &str) -> Result<Call, Refusal> {
    let mut fields = Fields::of(value, at)?;
    let id = fields.text("id")?.unwrap_or_default();
    fields.refuse("type", |v| v == "function")?;
    let mut function = Fields::of(fields.need("function")?, &format!("{at}.function"))?;
    fields.ignore(&["index"]);
    fields.done()?;
    let name = function.text("name")?.unwrap_or_default();
    let arguments = arguments(&function.text("arguments")?.unwrap_or_default());
    function.done()?;
    Ok(Call::new(id, name, arguments))
}

fn turn(value: Value, at: &str) -> Result<Turn, Refusal> {
    let mut fields = Fields::of(value, at)?;
    let role = match fields.text("role")?.as_deref() {
        Some("system" | "developer") => ChatRole::System,
        Some("user") => ChatRole::User,
        Some("assistant") => ChatRole::Assistant,
        Some("tool") => ChatRole::Tool,
        Some(other) => {
            return Err(
                fields.wrong("role", format!("must be system, developer, user, assistant or tool, it is {other}"))
            );
        }
        None => return Err(fields.wrong("role", "is missing")),
    };
    let place = fields.name("content");
    let value = match role {
        // An answer may be calls alone, a result nothing.
        ChatRole::Assistant | ChatRole::Tool => fields.take("content"),
        ChatRole::System | ChatRole::User => Some(fields.need("content")?),
    };
    let mut turn = match role {
        ChatRole::User => question(value, &place, &["text"])?,
        _ => Turn::new(role, content(value, &place, &["text"])?),
    };
    if role == ChatRole::Assistant {
        turn.thinking = fields.text("reasoning_content")?.or(fields.text("reasoning")?).unwrap_or_default();
        for (i, value) in fields.list("tool_calls")?.into_iter().flatten().enumerate() {
            turn.calls.push(call(value, &format!("{at}.tool_calls[{i}]"))?);
        }
        fields.ignore(&["refusal", "audio", "function_call", "annotations"]);
    }
    if role == ChatRole::Tool {
        turn.call_id = fields.text("tool_call_id")?;
    }
    fields.ignore(&["name"]);
    fields.done()?;
    Ok(turn)
}

/// The turns of a conversation.
pub(super) fn turns(messages: Vec<Value>) -> Result<Vec<Turn>, Refusal> {
    if messages.is_empty() {
        return Err(Refusal::field("messages", "messages is empty: there is nothing to answer"));
    }
    messages.into_iter().enumerate().map(|(i, value)| turn(value, &format!("messages[{i}]"))).collect()
}

/// What an answer has to be, as `response_format` and as `text.format` of a response say it: there the schema stands beside its
/// type.
pub(super) fn format_of(mut format: Fields) -> Result<Option<Grammar>, Refusal> {
    let of = format.text("type")?;
    let schema_of = |mut fields: Fields| {
        let schema = fields.need("schema")?;
        fields.ignore(&["name", "description", "strict"]);
        fields.done()?;
        Ok(Some(Grammar::Json(schema)))
    };
    match of.as_deref() {
        Some("text") => format.done().map(|()| None),
        Some("json_object") => format.done().map(|()| Some(Grammar::object())),
        Some("json_schema") => match format.object("json_schema")? {
            Some(inner) => format.done().and_then(|()| schema_of(inner)),
            None => schema_of(format),
        },
        _ => Err(format.wrong("type", "must be text, json_object or json_schema")),
    }
}

/// How a chat completion is sent.
struct Sent {
    shared: Arc<Shared>,
    id: String,
    model: String,
    fingerprint: String,
    created: u64,
    /// A last event says what was read and written.
    include_usage: bool,
    /// How likely tokens were is told.
    likely: bool,
}

impl Sent {
    fn likely(&self, tokens: &[Told]) -> Value {
        match self.likely {
            true => likely::chat(&self.shared.renderer.model().tokenizer, tokens),
            false => Value::Null,
        }
    }

    fn whole(&self, all: &Collected) -> Value {
        let choices = all.choices.iter().enumerate().map(|(index, choice)| {
            let (thinking, answer) = (choice.thinking(), choice.answer());
            let calls: Vec<Value> = choice.calls().map(call_object).collect();
            let mut message = json!({ "role": "assistant", "content": answer });
            if !calls.is_empty() {
                if answer.is_empty() {
                    message["content"] = Value::Null;
                }
                message["tool_calls"] = calls.into();
            }
            if !thinking.is_empty() {
                message["reasoning_content"] = thinking.into();
            }
            let finish = choice.whole.as_ref().map(reason);
            json!({
                "index": index,
                "message": message,
                "logprobs": self.likely(&choice.tokens),
                "finish_reason": finish,
            })
        });
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices.collect::<Value>(),
            "usage": usage(&all.usage),
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        });
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&self, index: usize, delta: Value, finish: Option<&str>) -> Value {
        self.chunk(json!([{ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish }]))
    }
}

/// The stream of a chat completion.
struct Chunks {
    sent: Sent,
    ending: Ending,
    /// Calls in each answer.
    calls: Vec<usize>,
}

impl Chunks {
    /// A part of the call that is being made.
    fn call(&self, index: usize, part: Value, out: &mut String) {
        let mut call = json!({ "index": self.calls.get(index).copied().unwrap_or(0) });
        if let (Some(call), Value::Object(part)) = (call.as_object_mut(), part) {
            call.extend(part);
        }
        data(out, &self.sent.choice(index, json!({ "tool_calls": [call] }), None));
    }
}

impl Form for Chunks {
    fn said(&mut self, said: &Said, out: &mut String) -> bool {
        self.ending.count(said);
        match said {
            Said::Begun { index, .. } => {
                data(out, &self.sent.choice(*index, json!({ "role": "assistant", "content": "" }), None));
            }
            Said::Text { index, thinking, answer, tokens } => {
                if !thinking.is_empty() {
                    data(out, &self.sent.choice(*index, json!({ "reasoning_content": thinking }), None));
                }
                if !answer.is_empty() || tokens.iter().any(|t| !t.thought) {
                    let mut chunk = self.sent.choice(*index, json!({ "content": answer }), None);
                    chunk["choices"][0]["logprobs"] = self.sent.likely(tokens);
                    data(out, &chunk);
                }
            }
            Said::Calling { index, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                self.call(*index, json!({ "id": id, "type": "function", "function": function }), out);
            }
            Said::Arguments { index, more } => self.call(*index, json!({ "function": { "arguments": more } }), out),
            Said::Call { index, .. } => self.calls.get_mut(*index).into_iter().for_each(|n| *n += 1),
            Said::Ended { index, whole } => {
                let sent = &self.sent;
                let last = |reason: &str| sent.choice(*index, json!({}), Some(reason));
                return self.ending.ended(whole, last, || sent.chunk(json!([])), out);
            }
            Said::Scored { .. } | Said::Reading { .. } | Said::Failed(_) => {}
        }
        false
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        data(out, &refusal.to_json(Family::OpenAi));
    }
}

async fn answer(shared: &Arc<Shared>, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let mut fields = Fields::body(http::json(headers, body).await?)?;
    let info = model_named(shared, fields.text("model")?)?;
    let turns = match fields.need("messages")? {
        Value::Array(messages) => turns(messages)?,
        other => return Err(fields.wrong("messages", format!("must be an array, it is {}", kind(&other)))),
    };
    let stop = stops(&mut fields, "stop")?;
    let most = fields.whole("max_completion_tokens", 1..=MOST_TOKENS)?;
    let most = most.or(fields.whole("max_tokens", 1..=MOST_TOKENS)?);
    let mut wish = wish(shared, &mut fields, stop, most)?;
    let think = thinking(shared, &mut fields)?;
    let wanted = usize::try_from(fields.whole("n", 1..=MOST_CHOICES)?.unwrap_or(1)).unwrap_or(1);
    let streamed = fields.truth("stream")?.unwrap_or(false);
    let include_usage = include_usage(&mut fields)?;
    let likely = fields.truth("logprobs")?.unwrap_or(false);
    let most_likely = fields.whole("top_logprobs", 0..=MOST_LIKELY)?;
    if most_likely.is_some_and(|n| n > 0) && !likely {
        return Err(fields.wrong("top_logprobs", "needs logprobs: true"));
    }
    wish.likely = likely.then_some(most_likely.and_then(|n| u8::try_from(n).ok()).unwrap_or(0));
    fields.refuse("logit_bias", |v| v.as_object().is_some_and(serde_json::Map::is_empty))?;
    let tools = Tools::read(&mut fields, "parameters")?;
    wish.calls = tools.calls();
    wish.one_call = tools.one_call();
    let grammar = match fields.object("response_format")? {
        Some(format) => format_of(format)?,
        None => None,
    };
    fields.refuse("modalities", |v| *v == json!(["text"]))?;
    fields.ignore(&IGNORED);
    fields.done()?;
    let grammar = tools.grammar().map(|g| (g, "tools")).or(grammar.map(|g| (g, "response_format")));
    let prompt = render(shared, Conversation { turns, tools, think, open: false }, "messages").await?;
    wish.constraint = reply::constraint(shared, grammar, &wish, &prompt.rendered).await?;
    let listener = submit(shared, prompt, wish, wanted, None)?;
    let sent = Sent {
        shared: Arc::clone(shared),
        likely,
        id: fresh_id("chatcmpl-"),
        model: info.name,
        fingerprint: info.fingerprint.chars().take(12).collect(),
        created: now_s(),
        include_usage,
    };
    if streamed {
        let ending = Ending::of(wanted, include_usage);
        return stream(listener, Chunks { sent, ending, calls: vec![0; wanted] }).await;
    }
    Ok(object(&sent.whole(&collect(listener, wanted).await?)))
}

/// `POST /v1/chat/completions`.
pub(super) async fn completions(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Body) -> Response {
    answer(&shared, &headers, body).await.unwrap_or_else(|refusal| refusal.respond(Family::OpenAi))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_is_read_is_in_the_table_of_fields() {
        let document = include_str!("../../docs/serve.md");
        let (_, table) = document.split_once("## Fields of a chat completion").unwrap();
        let table: Vec<&str> =
            table.lines().skip_while(|l| !l.starts_with('|')).take_while(|l| l.starts_with('|')).collect();
        let reads =
            include_str!("chat.rs").split_once("async fn answer(").unwrap().1.split_once("fields.done()").unwrap().0;
        let calls = reads.split("fields.").skip(1).filter_map(|call| call.split_once("(\"")?.1.split_once('"'));
        let mut fields: Vec<&str> = calls.map(|(field, _)| field).collect();
        assert!(fields.contains(&"messages") && fields.contains(&"logit_bias"), "{fields:?}");
        fields.extend(IGNORED);
        // It is told above the table.
        for field in fields.into_iter().filter(|f| *f != "model") {
            assert!(table.iter().any(|line| line.contains(&format!("`{field}`"))), "{field}");
        }
    }
}
