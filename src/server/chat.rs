//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::ask::{Prompt, Said};
use super::fields::{Fields, kind};
use super::prompt::{Call, Conversation, Turn};
use super::refusal::{Family, Refusal};
use super::reply::{self, Collected, Form, Usage, data, fresh_id, model_named, object, render, submit};
use super::sampling::{MOST_TOKENS, stops, thinking, wish};
use super::{Shared, http, now_s};
use crate::text::ChatRole;
use crate::transcript::Finish;

/// Answers to one request.
pub(super) const MOST_CHOICES: u64 = 16;
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

/// Why an answer ended, in OpenAI's words.
pub(super) fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::Repeats => "stop",
        Finish::Length | Finish::Context => "length",
        Finish::Stopped | Finish::Failed => "error",
    }
}

/// What was read and written, in OpenAI's form.
pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.thought_tokens },
    })
}

/// The text of a message: a string, or parts that are texts.
pub(super) fn content(value: Option<Value>, at: &str, kinds: &[&str]) -> Result<String, Refusal> {
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
        match part.text("type")?.as_deref() {
            Some(of) if kinds.contains(&of) => text.push_str(&part.text("text")?.unwrap_or_default()),
            of => {
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
    Ok(Call { id, name, arguments })
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
    let value = fields.take("content");
    let mut turn = Turn::new(role, content(value, &place, &["text"])?);
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

/// How a chat completion is sent.
struct Sent {
    id: String,
    model: String,
    fingerprint: String,
    created: u64,
    /// A last event says what was read and written.
    include_usage: bool,
    wanted: usize,
}

impl Sent {
    fn whole(&self, all: &Collected) -> Value {
        let choices = all.choices.iter().enumerate().map(|(index, choice)| {
            let mut message = json!({ "role": "assistant", "content": choice.answer });
            if !choice.thinking.is_empty() {
                message["reasoning_content"] = choice.thinking.as_str().into();
            }
            let finish = choice.whole.as_ref().map(|w| reason(w.finish));
            json!({ "index": index, "message": message, "logprobs": null, "finish_reason": finish })
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
    usage: Usage,
    ended: usize,
}

impl Form for Chunks {
    fn said(&mut self, said: &Said, out: &mut String) -> bool {
        self.usage.take(said);
        match said {
            Said::Begun { index, .. } => {
                data(out, &self.sent.choice(*index, json!({ "role": "assistant", "content": "" }), None));
            }
            Said::Text { index, thinking, answer } => {
                if !thinking.is_empty() {
                    data(out, &self.sent.choice(*index, json!({ "reasoning_content": thinking }), None));
                }
                if !answer.is_empty() {
                    data(out, &self.sent.choice(*index, json!({ "content": answer }), None));
                }
            }
            Said::Ended { whole, .. } if whole.finish == Finish::Stopped => {
                self.failed(&Refusal::new(503, "shutting_down", reply::BROKE_OFF), out);
                return true;
            }
            Said::Ended { index, whole } => {
                data(out, &self.sent.choice(*index, json!({}), Some(reason(whole.finish))));
                self.ended += 1;
                if self.ended == self.sent.wanted {
                    if self.sent.include_usage {
                        let mut last = self.sent.chunk(json!([]));
                        last["usage"] = usage(&self.usage);
                        data(out, &last);
                    }
                    out.push_str("data: [DONE]\n\n");
                    return true;
                }
            }
            Said::Reading { .. } | Said::Failed(_) => {}
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
    let wish = wish(shared, &mut fields, stop, most)?;
    let think = thinking(shared, &mut fields)?;
    let wanted = usize::try_from(fields.whole("n", 1..=MOST_CHOICES)?.unwrap_or(1)).unwrap_or(1);
    let streamed = fields.truth("stream")?.unwrap_or(false);
    let mut include_usage = false;
    if let Some(mut options) = fields.object("stream_options")? {
        include_usage = options.truth("include_usage")?.unwrap_or(false);
        options.ignore(&["include_obfuscation", "continuous_usage_stats"]);
        options.done()?;
    }
    fields.refuse("logprobs", |v| v == false)?;
    fields.refuse("top_logprobs", |v| v == 0)?;
    fields.refuse("logit_bias", |v| v.as_object().is_some_and(serde_json::Map::is_empty))?;
    fields.refuse("tools", |v| v.as_array().is_some_and(Vec::is_empty))?;
    fields.refuse("tool_choice", |v| v == "none" || v == "auto")?;
    fields.refuse("response_format", |v| v["type"] == "text")?;
    fields.refuse("modalities", |v| *v == json!(["text"]))?;
    fields.ignore(&["parallel_tool_calls"]);
    fields.ignore(&IGNORED);
    fields.done()?;
    let conversation = Conversation { turns, think, ..Conversation::default() };
    let rendered = render(shared, conversation, "messages").await?;
    let prompt = Prompt { rendered: Arc::new(rendered), tokens: None, field: "messages" };
    let listener = submit(shared, prompt, wish, wanted, None)?;
    let sent = Sent {
        id: fresh_id("chatcmpl-"),
        model: info.name,
        fingerprint: info.fingerprint.chars().take(12).collect(),
        created: now_s(),
        include_usage,
        wanted,
    };
    if streamed {
        return reply::stream(listener, Chunks { sent, usage: Usage::default(), ended: 0 }).await;
    }
    Ok(object(&sent.whole(&reply::collect(listener, wanted).await?)))
}

/// `POST /v1/chat/completions`.
pub(super) async fn completions(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Body) -> Response {
    answer(&shared, &headers, body).await.unwrap_or_else(|refusal| refusal.respond(Family::OpenAi))
}
