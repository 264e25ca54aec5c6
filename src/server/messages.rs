//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's form.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Shared;
use super::body::{self, object};
use super::collected::{BROKE_OFF, Item, collect};
use super::content::{self, content, file_id};
use super::context::leave_out;
use super::fields::{Fields, kind};
use super::ids::fresh_id;
use super::noise::without_billing;
use super::notice::{Notice, Usage, Whole};
use super::plain::encode;
use super::prompt::Conversation;
use super::ready::model_named;
use super::refusal::{Family, Refusal};
use super::reply::{ask, render};
use super::sampling::{Thinking, format_of, params, stops};
use super::stream::{Form, event, stream};
use super::tools::{self, Tools};
use super::turns::{Call, Turn};
use crate::core::transcript::Finish;
use crate::engine::protocol::MOST_TOKENS;
use crate::runtime::render::safe_name;
use crate::text::grammar::Grammar;
use crate::text::{ChatMessage, ChatRole, decode};

/// A text as a document of the conversation.
fn named_text(name: &str, text: &str) -> String {
    let [document, _] = ChatMessage::document(&safe_name(name), text.trim_matches(['\n', '\r']));
    format!("{}\n\n", document.content)
}

fn document(fields: &mut Fields, at: &str, own: &mut Turn) -> Result<(), Refusal> {
    let title = fields.text("title")?;
    fields.ignore(&["context"]);
    let mut source = Fields::of(fields.need("source")?, &format!("{at}.source"))?;
    match source.need_text("type")?.as_str() {
        "file" => own.files.push(file_id(&mut source)?),
        of @ ("text" | "content") => {
            source.refuse("media_type", |v| v.as_str().is_some_and(|media| media.starts_with("text/")))?;
            let text = match of {
                "text" => source.need_text("data")?,
                _ => content(source.take("content"), &format!("{at}.source.content"), &["text"])?,
            };
            own.text.push_str(&named_text(title.as_deref().unwrap_or("document.txt"), &text));
        }
        "base64" => {
            let media = source.need_text("media_type")?;
            if !media.starts_with("text/") {
                let what = "only text can be sent. Add the file to the library (sala-chat library add FILE) and name it as in docs/serve.md";
                return Err(source.wrong("media_type", format!("is {media}: {what}")));
            }
            let data = source.need_text("data")?.replace(char::is_whitespace, "");
            let decoded = STANDARD.decode(data).ok().and_then(|bytes| decode(bytes, false).ok());
            let text = decoded.ok_or_else(|| source.wrong("data", "is not text in base64"))?.text;
            own.text.push_str(&named_text(title.as_deref().unwrap_or("document.txt"), &text));
        }
        other => {
            let what = format!("is {other:?}: a document is text, content, or a file of the library");
            return Err(source.wrong("type", what));
        }
    }
    source.done()
}

fn search_result(fields: &mut Fields) -> Result<String, Refusal> {
    let source = fields.text("source")?;
    let name = fields.text("title")?.or(source).unwrap_or_default();
    let place = fields.name("content");
    Ok(named_text(&name, &content(fields.take("content"), &place, &["text"])?))
}

/// The result of a call: a text, or blocks with texts and documents.
fn result(fields: &mut Fields) -> Result<Turn, Refusal> {
    let place = fields.name("content");
    let blocks = match fields.take("content") {
        Some(Value::Array(blocks)) => blocks,
        other => return Ok(Turn::new(ChatRole::Tool, content(other, &place, &["text"])?)),
    };
    let mut turn = Turn::new(ChatRole::Tool, "");
    for (i, value) in blocks.into_iter().enumerate() {
        let at = format!("{place}[{i}]");
        let mut inner = Fields::of(value, &at)?;
        match inner.text("type")?.as_deref() {
            Some("text") => turn.text.push_str(&inner.need_text("text")?),
            Some("document") => document(&mut inner, &at, &mut turn)?,
            Some("search_result") => turn.text.push_str(&search_result(&mut inner)?),
            // Names a function that the request has in full.
            Some("tool_reference") => turn.text.push_str(&inner.text("tool_name")?.unwrap_or_default()),
            other => {
                let what = other.unwrap_or("nothing");
                return Err(inner.wrong("type", format!("is {what}: this model reads text only")));
            }
        }
        inner.ignore(&["cache_control", "citations"]);
        inner.done()?;
    }
    Ok(turn)
}

/// Adds a block of a message to its turns. The result of a call is a turn of its own.
fn block(value: Value, at: &str, role: ChatRole, turns: &mut Vec<Turn>) -> Result<(), Refusal> {
    let mut fields = Fields::of(value, at)?;
    let of = fields.text("type")?.unwrap_or_default();
    fields.ignore(&["cache_control", "citations"]);
    let own = match turns.last_mut() {
        Some(turn) if turn.role == role => turn,
        _ => {
            turns.push(Turn::new(role, ""));
            let Some(turn) = turns.last_mut() else { return Ok(()) };
            turn
        }
    };
    match (of.as_str(), role) {
        ("text", _) => own.text.push_str(&fields.need_text("text")?),
        ("thinking", ChatRole::Assistant) => {
            own.thinking.push_str(&fields.text("thinking")?.unwrap_or_default());
            fields.ignore(&["signature"]);
        }
        ("redacted_thinking", ChatRole::Assistant) => fields.ignore(&["data"]),
        ("tool_use", ChatRole::Assistant) => {
            let id = fields.text("id")?.unwrap_or_default();
            let name = fields.text("name")?.unwrap_or_default();
            let arguments = fields.take("input").unwrap_or_else(|| json!({}));
            fields.ignore(&["caller"]);
            own.calls.push(Call::new(id, name, arguments));
        }
        ("document", ChatRole::User) => document(&mut fields, at, own)?,
        ("search_result", ChatRole::User) => own.text.push_str(&search_result(&mut fields)?),
        ("tool_result", ChatRole::User) => {
            let id = fields.text("tool_use_id")?;
            let result = result(&mut fields)?;
            fields.ignore(&["is_error"]);
            let result = Turn { call_id: id, ..result };
            // Remove the empty turn that was started for this block.
            if turns.last().is_some_and(|t| t.role == role && t.text.is_empty() && t.files.is_empty()) {
                turns.pop();
            }
            turns.push(result);
        }
        // Blocks of tools that another server has run.
        (other, ChatRole::Assistant) if !other.is_empty() && leave_out(&format!("{at}.{other}")) => return Ok(()),
        (other, _) => return Err(fields.wrong("type", format!("is {other:?}: this model reads text only"))),
    }
    fields.done()
}

fn turns(fields: &mut Fields) -> Result<Vec<Turn>, Refusal> {
    let mut turns = Vec::new();
    if let Some(mut system) = fields.take("system") {
        // Before the parts are joined: a billing line is a part of its own, without a line end.
        for part in system.as_array_mut().into_iter().flatten() {
            if let Some(text) = part["text"].as_str() {
                part["text"] = without_billing(text).into();
            }
        }
        let text = content(Some(system), "system", &["text"])?;
        if !text.is_empty() {
            turns.push(Turn::new(ChatRole::System, text));
        }
    }
    for (i, message) in content::messages(fields)?.into_iter().enumerate() {
        let at = format!("messages[{i}]");
        let mut message = Fields::of(message, &at)?;
        let role = match message.text("role")?.as_deref() {
            Some("user") => ChatRole::User,
            Some("assistant") => ChatRole::Assistant,
            // Claude Code sends its reminders as system messages between the turns.
            Some("system") => ChatRole::System,
            other => {
                let what = other.unwrap_or("nothing");
                return Err(message.wrong("role", format!("must be user, assistant or system, it is {what}")));
            }
        };
        match message.need("content")? {
            Value::String(text) => turns.push(Turn::new(role, text)),
            Value::Array(blocks) => {
                turns.push(Turn::new(role, ""));
                for (j, value) in blocks.into_iter().enumerate() {
                    block(value, &format!("{at}.content[{j}]"), role, &mut turns)?;
                }
            }
            other => {
                return Err(message.wrong("content", format!("must be a string or an array, it is {}", kind(&other))));
            }
        }
        message.done()?;
    }
    Ok(turns)
}

/// Contains every field of the clients' types.
fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation": { "ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0 },
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "inference_geo": null,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "thinking_tokens": usage.thought_tokens },
        "server_tool_use": null,
        "service_tier": "standard",
    })
}

fn tool_use(call: &Call) -> Value {
    // A call that broke off has no arguments object.
    let input = if call.arguments.is_object() { call.arguments.clone() } else { json!({}) };
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
}

/// Why an answer ended, and the stop text that ended it.
fn reason(whole: &Whole) -> (&'static str, Option<&str>) {
    match (whole.finish, &whole.stopped_by) {
        (Finish::Stop | Finish::Repeats, None) if whole.calls > 0 => ("tool_use", None),
        (_, Some(stop)) => ("stop_sequence", Some(stop)),
        (Finish::Length, None) => ("max_tokens", None),
        (Finish::Context, None) => ("model_context_window_exceeded", None),
        (Finish::Stop | Finish::Repeats | Finish::Stopped | Finish::Failed, None) => ("end_turn", None),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thoughts,
    Text,
    Call,
}

/// The stream of a message: one block of thoughts, then one of text, then one for each call.
struct Events {
    id: String,
    model: String,
    usage: Usage,
    /// The open block, after its number.
    open: Option<(usize, Block)>,
    blocks: usize,
}

impl Events {
    fn close(&mut self, out: &mut String) {
        if let Some((index, block)) = self.open.take() {
            if block == Block::Thoughts {
                let delta = json!({ "type": "signature_delta", "signature": "" });
                event(out, "content_block_delta", json!({ "index": index, "delta": delta }));
            }
            event(out, "content_block_stop", json!({ "index": index }));
        }
    }

    fn text(&mut self, thoughts: bool, text: &str, out: &mut String) {
        if text.is_empty() {
            return;
        }
        let of = if thoughts { Block::Thoughts } else { Block::Text };
        if self.open.is_none_or(|(_, open)| open != of) {
            self.close(out);
            let block = match thoughts {
                true => json!({ "type": "thinking", "thinking": "", "signature": "" }),
                false => json!({ "type": "text", "text": "" }),
            };
            event(out, "content_block_start", json!({ "index": self.blocks, "content_block": block }));
            self.open = Some((self.blocks, of));
            self.blocks += 1;
        }
        let delta = match thoughts {
            true => json!({ "type": "thinking_delta", "thinking": text }),
            false => json!({ "type": "text_delta", "text": text }),
        };
        event(out, "content_block_delta", json!({ "index": self.blocks - 1, "delta": delta }));
    }
}

impl Form for Events {
    fn notice(&mut self, notice: &Notice, out: &mut String) -> bool {
        self.usage.take(notice);
        match notice {
            Notice::Begun { .. } => {
                let message = json!({
                    "id": self.id,
                    "type": "message",
                    "role": "assistant",
                    "model": self.model,
                    "content": [],
                    "container": null,
                    "stop_details": null,
                    "stop_reason": null,
                    "stop_sequence": null,
                    "usage": usage(&self.usage),
                });
                event(out, "message_start", json!({ "message": message }));
            }
            Notice::Text { thinking, answer, .. } => {
                self.text(true, thinking, out);
                self.text(false, answer, out);
            }
            Notice::Calling { id, name, .. } => {
                self.close(out);
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                event(out, "content_block_start", json!({ "index": self.blocks, "content_block": block }));
                self.open = Some((self.blocks, Block::Call));
                self.blocks += 1;
            }
            Notice::Arguments { more, .. } => {
                let delta = json!({ "type": "input_json_delta", "partial_json": more });
                event(out, "content_block_delta", json!({ "index": self.blocks - 1, "delta": delta }));
            }
            Notice::Call { .. } => self.close(out),
            Notice::Ended { whole, .. } if whole.finish == Finish::Stopped => {
                self.failed(&Refusal::new(503, "shutting_down", BROKE_OFF), out);
                return true;
            }
            Notice::Ended { whole, .. } => {
                self.close(out);
                let (reason, stop) = reason(whole);
                let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
                event(out, "message_delta", json!({ "delta": delta, "usage": usage(&self.usage) }));
                event(out, "message_stop", json!({}));
                return true;
            }
            Notice::Scored { .. } | Notice::Reading { .. } | Notice::Failed(_) => {}
        }
        false
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        event(out, "error", refusal.to_json(Family::Anthropic));
    }
}

/// Reads the fields that both paths share, apart from the turns.
fn conversation(
    shared: &Shared,
    fields: &mut Fields,
    turns: Vec<Turn>,
) -> Result<(Conversation, Option<u64>), Refusal> {
    // Allows a server to drop earlier results; this server drops none.
    fields.ignore(&["context_management"]);
    let Thinking { mode: think, budget } = Thinking::of_messages(shared, fields)?;
    let tools = Tools::read(fields, tools::ANTHROPIC)?;
    let open = turns.last().is_some_and(|t| t.role == ChatRole::Assistant);
    Ok((Conversation { turns, tools, think, open, ..Conversation::default() }, budget))
}

/// Reads `output_config`: the schema of the answer.
fn output(fields: &mut Fields) -> Result<Option<Grammar>, Refusal> {
    fields.ignore(&["cache_control"]);
    // The name of the field while it was in beta.
    let earlier = fields.object("output_format")?;
    let mut format = None;
    if let Some(mut output) = fields.object("output_config")? {
        format = output.object("format")?;
        output.ignore(&["effort"]);
        output.done()?;
    }
    match format.or(earlier) {
        Some(format) => format_of(format, "schema"),
        None => Ok(None),
    }
}

/// Clients that rely on conversations stored by the server send all messages after this error.
fn refuse_thread(fields: &mut Fields) -> Result<(), Refusal> {
    let refused = fields.refuse_because("thread", "is not supported: send all messages", |_| false);
    refused.map_err(|mut refusal| {
        let code = "thread_unsupported_request";
        refusal.details = Some(Box::new(json!({ "error_code": code, "unsupported": ["thread"] })));
        refusal
    })
}

pub(super) async fn messages(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let shared = &shared;
    let (mut fields, turns) = body::read(request, turns).await?;
    let info = model_named(shared, fields.text("model")?)?;
    let (conversation, budget) = conversation(shared, &mut fields, turns)?;
    let Some(most) = fields.whole("max_tokens", 1..=MOST_TOKENS)? else {
        fields.need("max_tokens")?;
        return Err(fields.wrong("max_tokens", "is missing"));
    };
    refuse_thread(&mut fields)?;
    let stop = stops(&mut fields, "stop_sequences")?;
    let mut params = params(shared, &mut fields, stop, Some(most))?;
    params.thinking_budget = budget.unwrap_or(params.thinking_budget);
    let streamed = fields.truth("stream")?.unwrap_or(false);
    let grammar = output(&mut fields)?;
    fields.ignore(&["metadata", "service_tier", "inference_geo"]);
    fields.done_for_answer()?;
    let grammar = grammar.map(|g| (g, "output_config"));
    let listener = ask(shared, conversation, "messages", params, grammar, 1, None).await?;
    let id = fresh_id("msg_");
    if streamed {
        let form = Events { id, model: info.name, usage: Usage::default(), open: None, blocks: 0 };
        return stream(listener, form).await;
    }
    let all = collect(listener, 1).await?;
    let choice = all.choices.into_iter().next().unwrap_or_default();
    let block = |item: &Item| match item {
        Item::Thoughts(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        Item::Text(text) => json!({ "type": "text", "text": text }),
        Item::Call(call) => tool_use(call),
    };
    let blocks: Vec<Value> = choice.items.iter().map(block).collect();
    let (reason, stop) = choice.whole.as_ref().map_or(("end_turn", None), reason);
    Ok(object(&json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": info.name,
        "content": blocks,
        "container": null,
        "stop_details": null,
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage(&all.usage),
    })))
}

pub(super) async fn count_tokens(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let shared = &shared;
    let (mut fields, turns) = body::read(request, turns).await?;
    let _ = model_named(shared, fields.text("model")?)?;
    let (conversation, _) = conversation(shared, &mut fields, turns)?;
    fields.ignore(&["output_config", "output_format", "cache_control"]);
    fields.done()?;
    let prompt = render(shared, conversation, "messages").await?;
    let tokens = encode(shared, prompt.rendered.text.clone(), true).await?;
    Ok(object(&json!({ "input_tokens": tokens.len() })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_in_base64_is_text_or_refused_by_its_type() {
        let sent = |media: &str, data: &str| {
            let source = json!({ "type": "base64", "media_type": media, "data": data });
            let content = json!([{ "type": "document", "title": "a.txt", "source": source }]);
            let messages = json!({ "messages": [{ "role": "user", "content": content }] });
            turns(&mut Fields::of(messages, "").unwrap()).map(|turns| turns[0].text.clone())
        };
        assert!(sent("text/plain", "VGhlIHJlbnQgaXMgN\nTAwIOKCrC4=").unwrap().contains("The rent is 500 €."));
        let pdf = sent("application/pdf", "JVBERi0=").unwrap_err().message;
        assert!(pdf.contains("media_type is application/pdf") && pdf.contains("sala-chat library add FILE"), "{pdf}");
        assert!(sent("text/plain", "%").unwrap_err().message.ends_with("is not text in base64"));
    }

    #[test]
    fn a_document_before_the_result_of_a_call_stays() {
        let content = json!([
            { "type": "document", "source": { "type": "file", "file_id": "file-1" } },
            { "type": "tool_result", "tool_use_id": "c1", "content": "12 degrees" },
        ]);
        let mut fields = Fields::of(json!({ "messages": [{ "role": "user", "content": content }] }), "").unwrap();
        let turns = turns(&mut fields).unwrap();
        let roles: Vec<ChatRole> = turns.iter().map(|t| t.role).collect();
        assert_eq!(roles, [ChatRole::User, ChatRole::Tool]);
        assert_eq!((turns[0].files.as_slice(), turns[1].call_id.as_deref()), (&["file-1".to_owned()][..], Some("c1")));
    }
}
