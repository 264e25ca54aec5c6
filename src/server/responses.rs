//! `POST /v1/responses`: OpenAI's responses. An id names the state behind an answer: whoever names an older one forks there.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::ask::{Prompt, Said};
use super::chat::{arguments, content, format_of};
use super::fields::{Fields, kind};
use super::prompt::{Call, Conversation, Turn};
use super::records::Records;
use super::refusal::{Family, Refusal};
use super::reply::{self, Choice, Form, Usage, event, fresh_id, model_named, object, render, submit};
use super::sampling::{MOST_TOKENS, effort, wish};
use super::tools::Tools;
use super::{Shared, http, now_s};
use crate::text::ChatRole;
use crate::text::grammar::Grammar;
use crate::transcript::Finish;

/// Parts of messages that are texts.
const TEXTS: [&str; 3] = ["input_text", "output_text", "text"];

/// Adds an item to the turns.
fn item(value: Value, at: &str, turns: &mut Vec<Turn>) -> Result<(), Refusal> {
    let mut fields = Fields::of(value, at)?;
    fields.ignore(&["id", "status"]);
    match fields.text("type")?.as_deref() {
        None | Some("message") => {
            let role = match fields.text("role")?.as_deref() {
                Some("system" | "developer") => ChatRole::System,
                Some("user") => ChatRole::User,
                Some("assistant") => ChatRole::Assistant,
                other => {
                    let what = other.unwrap_or("nothing");
                    return Err(
                        fields.wrong("role", format!("must be system, developer, user or assistant, it is {what}"))
                    );
                }
            };
            let place = fields.name("content");
            let value = fields.need("content")?;
            turns.push(Turn::new(role, content(Some(value), &place, &TEXTS)?));
            fields.ignore(&["phase"]);
        }
        Some("function_call") => {
            let id = fields.text("call_id")?.unwrap_or_default();
            let name = fields.text("name")?.unwrap_or_default();
            let call = Call { id, name, arguments: arguments(&fields.text("arguments")?.unwrap_or_default()) };
            match turns.last_mut().filter(|t| t.role == ChatRole::Assistant) {
                Some(turn) => turn.calls.push(call),
                None => turns.push(Turn { calls: vec![call], ..Turn::new(ChatRole::Assistant, "") }),
            }
        }
        Some("function_call_output") => {
            let place = fields.name("output");
            let value = fields.need("output")?;
            let text = content(Some(value), &place, &TEXTS)?;
            turns.push(Turn { call_id: fields.text("call_id")?, ..Turn::new(ChatRole::Tool, text) });
        }
        // Thoughts of an earlier answer: the template drops them.
        Some("reasoning") => fields.ignore(&["summary", "content", "encrypted_content"]),
        Some(other) => return Err(fields.wrong("type", format!("is {other}, which is not supported"))),
    }
    fields.done()
}

/// Reads `input`.
fn input(fields: &mut Fields) -> Result<Vec<Turn>, Refusal> {
    let mut turns = Vec::new();
    match fields.need("input")? {
        Value::String(text) => turns.push(Turn::new(ChatRole::User, text)),
        Value::Array(items) => {
            for (i, value) in items.into_iter().enumerate() {
                item(value, &format!("input[{i}]"), &mut turns)?;
            }
        }
        other => return Err(fields.wrong("input", format!("must be a string or an array, it is {}", kind(&other)))),
    }
    if turns.is_empty() {
        return Err(fields.wrong("input", "is empty: there is nothing to answer"));
    }
    Ok(turns)
}

/// How a response is sent: what the request said, repeated.
struct Sent {
    id: String,
    created: u64,
    model: String,
    asked: Value,
    thoughts_id: String,
    message_id: String,
}

impl Sent {
    fn thoughts(&self, text: &str, status: &str) -> Value {
        json!({
            "type": "reasoning",
            "id": self.thoughts_id,
            "status": status,
            "summary": [],
            "content": [{ "type": "reasoning_text", "text": text }],
        })
    }

    fn message(&self, text: Option<&str>, status: &str) -> Value {
        let content = text.map(part);
        json!({
            "type": "message",
            "id": self.message_id,
            "status": status,
            "role": "assistant",
            "content": content.into_iter().collect::<Value>(),
        })
    }

    fn response(&self, status: &str, choice: Option<&Choice>, usage: Option<&Usage>) -> Value {
        let mut output = Vec::new();
        let mut incomplete = Value::Null;
        if let Some(choice) = choice {
            if !choice.thinking.is_empty() {
                output.push(self.thoughts(&choice.thinking, "completed"));
            }
            if !choice.answer.is_empty() || choice.calls.is_empty() {
                output.push(self.message(Some(&choice.answer), status));
            }
            output.extend(choice.calls.iter().map(|c| function_call(c, "completed")));
            if status == "incomplete" {
                incomplete = json!({ "reason": "max_output_tokens" });
            }
        }
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": incomplete,
            "model": self.model,
            "output": output,
            "usage": usage.map(|u| json!({
                "input_tokens": u.prompt_tokens,
                "input_tokens_details": { "cached_tokens": u.cached_tokens },
                "output_tokens": u.completion_tokens,
                "output_tokens_details": { "reasoning_tokens": u.thought_tokens },
                "total_tokens": u.prompt_tokens + u.completion_tokens,
            })),
        });
        if let (Some(map), Some(asked)) = (response.as_object_mut(), self.asked.as_object()) {
            map.extend(asked.clone());
        }
        response
    }
}

/// A call as an item.
fn function_call(call: &Call, status: &str) -> Value {
    json!({
        "type": "function_call",
        "id": format!("fc_{}", call.id),
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments.to_string(),
        "status": status,
    })
}

/// A text of a message.
fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn status(finish: Finish) -> &'static str {
    match finish {
        Finish::Length | Finish::Context => "incomplete",
        Finish::Stop | Finish::Repeats => "completed",
        Finish::Stopped | Finish::Failed => "failed",
    }
}

/// The stream of a response.
struct Events {
    sent: Sent,
    choice: Choice,
    usage: Usage,
    number: u64,
    /// The output item that is open: of thoughts or of text.
    open: Option<bool>,
    items: u64,
}

impl Events {
    fn tell(&mut self, out: &mut String, name: &str, mut value: Value) {
        value["sequence_number"] = self.number.into();
        self.number += 1;
        event(out, name, value);
    }

    fn begin(&mut self, thoughts: bool, out: &mut String) {
        let index = self.items;
        self.items += 1;
        self.open = Some(thoughts);
        if thoughts {
            let mut item = self.sent.thoughts("", "in_progress");
            item["content"] = json!([]);
            self.tell(out, "response.output_item.added", json!({ "output_index": index, "item": item }));
            return;
        }
        let item = self.sent.message(None, "in_progress");
        let id = self.sent.message_id.clone();
        self.tell(out, "response.output_item.added", json!({ "output_index": index, "item": item }));
        let added = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part("") });
        self.tell(out, "response.content_part.added", added);
    }

    fn end(&mut self, status: &str, out: &mut String) {
        let Some(thoughts) = self.open.take() else { return };
        let index = self.items - 1;
        let (id, text) = match thoughts {
            true => (self.sent.thoughts_id.clone(), self.choice.thinking.clone()),
            false => (self.sent.message_id.clone(), self.choice.answer.clone()),
        };
        let place = |extra: Value| {
            let mut value = json!({ "item_id": id, "output_index": index, "content_index": 0 });
            if let (Some(map), Some(extra)) = (value.as_object_mut(), extra.as_object()) {
                map.extend(extra.clone());
            }
            value
        };
        let item = if thoughts {
            self.tell(out, "response.reasoning_text.done", place(json!({ "text": text })));
            self.sent.thoughts(&text, "completed")
        } else {
            self.tell(out, "response.output_text.done", place(json!({ "text": text, "logprobs": [] })));
            self.tell(out, "response.content_part.done", place(json!({ "part": part(&text) })));
            self.sent.message(Some(&text), status)
        };
        self.tell(out, "response.output_item.done", json!({ "output_index": index, "item": item }));
    }

    fn text(&mut self, thoughts: bool, text: &str, out: &mut String) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(thoughts) {
            self.end("completed", out);
            self.begin(thoughts, out);
        }
        let (name, id, extra) = match thoughts {
            true => ("response.reasoning_text.delta", &self.sent.thoughts_id, Value::Null),
            false => ("response.output_text.delta", &self.sent.message_id, json!([])),
        };
        let mut delta = json!({ "item_id": id, "output_index": self.items - 1, "content_index": 0, "delta": text });
        if !extra.is_null() {
            delta["logprobs"] = extra;
        }
        let whole = if thoughts { &mut self.choice.thinking } else { &mut self.choice.answer };
        whole.push_str(text);
        self.tell(out, name, delta);
    }
}

impl Form for Events {
    fn said(&mut self, said: &Said, out: &mut String) -> bool {
        self.usage.take(said);
        match said {
            Said::Begun { .. } => {
                let begun = self.sent.response("in_progress", None, None);
                self.tell(out, "response.created", json!({ "response": begun }));
                self.tell(out, "response.in_progress", json!({ "response": begun }));
            }
            Said::Text { thinking, answer, .. } => {
                self.text(true, thinking, out);
                self.text(false, answer, out);
            }
            Said::Call { call, .. } => {
                self.end("completed", out);
                let index = self.items;
                self.items += 1;
                let mut item = function_call(call, "in_progress");
                item["arguments"] = "".into();
                let id = item["id"].clone();
                self.tell(out, "response.output_item.added", json!({ "output_index": index, "item": item }));
                let written = call.arguments.to_string();
                let delta = json!({ "item_id": id, "output_index": index, "delta": written });
                self.tell(out, "response.function_call_arguments.delta", delta);
                let done = json!({ "item_id": id, "output_index": index, "arguments": written, "name": call.name });
                self.tell(out, "response.function_call_arguments.done", done);
                let item = function_call(call, "completed");
                self.tell(out, "response.output_item.done", json!({ "output_index": index, "item": item }));
                self.choice.calls.push(call.clone());
            }
            Said::Ended { whole, .. } if whole.finish == Finish::Stopped => {
                self.failed(&Refusal::new(503, "shutting_down", reply::BROKE_OFF), out);
                return true;
            }
            Said::Ended { whole, .. } => {
                let status = status(whole.finish);
                if self.open != Some(false) && self.choice.calls.is_empty() {
                    self.end("completed", out);
                    self.begin(false, out);
                }
                self.end(status, out);
                let response = self.sent.response(status, Some(&self.choice), Some(&self.usage));
                self.tell(out, &format!("response.{status}"), json!({ "response": response }));
                return true;
            }
            Said::Scored { .. } | Said::Reading { .. } | Said::Failed(_) => {}
        }
        false
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        let mut response = self.sent.response("failed", None, None);
        response["error"] = json!({ "code": refusal.code, "message": refusal.message });
        self.tell(out, "response.failed", json!({ "response": response }));
    }
}

/// Reads `text`: what was said, to be repeated, and what it means.
fn text_format(fields: &mut Fields) -> Result<(Value, Option<Grammar>), Refusal> {
    let said = fields.take("text").unwrap_or_else(|| json!({ "format": { "type": "text" } }));
    let mut text = Fields::of(said.clone(), "text")?;
    let grammar = match text.object("format")? {
        Some(format) => format_of(format)?,
        None => None,
    };
    text.ignore(&["verbosity"]);
    text.done()?;
    Ok((said, grammar))
}

async fn answer(shared: &Arc<Shared>, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let mut fields = Fields::body(http::json(headers, body).await?)?;
    let info = model_named(shared, fields.text("model")?)?;
    let asked = input(&mut fields)?;
    let instructions = fields.text("instructions")?;
    let previous = fields.text("previous_response_id")?;
    let most = fields.whole("max_output_tokens", 1..=MOST_TOKENS)?;
    let mut wish = wish(shared, &mut fields, Vec::new(), most)?;
    let mut think = shared.settings.think;
    let reasoning = fields.take("reasoning");
    if let Some(value) = reasoning.clone() {
        let mut reasoning = Fields::of(value, "reasoning")?;
        think = effort(&mut reasoning, "effort", think)?;
        reasoning.ignore(&["summary", "generate_summary"]);
        reasoning.done()?;
    }
    let store = fields.truth("store")?.unwrap_or(true);
    let streamed = fields.truth("stream")?.unwrap_or(false);
    let metadata = fields.take("metadata").unwrap_or_else(|| json!({}));
    let (offered, choice) = (fields.peek("tools"), fields.peek("tool_choice"));
    let tools = Tools::read(&mut fields, "parameters")?;
    wish.calls = tools.calls();
    let (text, grammar) = text_format(&mut fields)?;
    fields.refuse("background", |v| v == false)?;
    fields.refuse("truncation", |v| v == "disabled")?;
    fields.refuse("top_logprobs", |v| v == 0)?;
    fields.ignore(&["include", "user", "parallel_tool_calls", "service_tier", "max_tool_calls", "stream_options"]);
    fields.ignore(&["prompt_cache_key", "prompt_cache_retention", "safety_identifier", "client_metadata"]);
    fields.done()?;
    let (parent, earlier) = match previous.clone() {
        Some(id) => {
            let shared = Arc::clone(shared);
            let found = tokio::task::spawn_blocking(move || shared.records.find(&id, "previous_response_id"));
            let found = found.await.map_err(|_| Refusal::internal("internal error while an answer was looked up"))?;
            found.map(|(at, turns)| (Some(at), turns))?
        }
        None => (None, Vec::new()),
    };
    let record = shared.records.begin(parent, asked.clone());
    let mut turns: Vec<Turn> = instructions.iter().map(|text| Turn::new(ChatRole::System, text)).collect();
    turns.extend(earlier);
    turns.extend(asked);
    let grammar = tools.grammar().map(|g| (g, "tools")).or(grammar.map(|g| (g, "text")));
    let rendered = render(shared, Conversation { turns, tools, think, open: false }, "input").await?;
    wish.constraint = reply::constraint(shared, grammar, &rendered).await?;
    let sent = Sent {
        id: Records::id(&record),
        created: now_s(),
        model: info.name,
        asked: json!({
            "instructions": instructions,
            "max_output_tokens": most,
            "metadata": metadata,
            "parallel_tool_calls": true,
            "previous_response_id": previous,
            "reasoning": reasoning.unwrap_or_else(|| json!({ "effort": null, "summary": null })),
            "store": store,
            "temperature": wish.sampling.temperature,
            "text": text,
            "tool_choice": choice.unwrap_or_else(|| "auto".into()),
            "tools": offered.unwrap_or_else(|| json!([])),
            "top_p": wish.sampling.top_p,
            "truncation": "disabled",
        }),
        thoughts_id: fresh_id("rs_"),
        message_id: fresh_id("msg_"),
    };
    let prompt = Prompt { rendered: Arc::new(rendered), tokens: None, field: "input" };
    let listener = submit(shared, prompt, wish, 1, store.then_some(record))?;
    if streamed {
        let (choice, usage) = (Choice::default(), Usage::default());
        return reply::stream(listener, Events { sent, choice, usage, number: 0, open: None, items: 0 }).await;
    }
    let all = reply::collect(listener, 1).await?;
    let choice = all.choices.into_iter().next().unwrap_or_default();
    let finish = choice.whole.as_ref().map_or(Finish::Failed, |w| w.finish);
    Ok(object(&sent.response(status(finish), Some(&choice), Some(&all.usage))))
}

/// `POST /v1/responses`.
pub(super) async fn responses(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Body) -> Response {
    answer(&shared, &headers, body).await.unwrap_or_else(|refusal| refusal.respond(Family::OpenAi))
}
