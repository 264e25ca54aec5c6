//! The chat protocol: request bodies, and the meaning of each event of the answer. Pure.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::codec::Conversation;
use super::halves;
use crate::config::settings::ThinkMode;
use crate::engine::protocol::{Sampling, Usage};

/// Fields that every server knows. Others are left out after a refusal, with one note.
const NEEDED: [&str; 3] = ["model", "messages", "stream"];
const LENGTH: [&str; 2] = ["max_tokens", "max_completion_tokens"];
const GOING_ON: [&str; 2] = ["continue_final_message", "add_generation_prompt"];

#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    pub(super) sampling: Sampling,
    /// `None`: the server's own limit.
    pub(super) max_tokens: Option<u64>,
}

/// The body of a request. `left_out`: fields that this server refuses.
pub(super) fn body(model: &str, conversation: &Conversation, draw: Draw, left_out: &BTreeSet<String>) -> Value {
    let s = draw.sampling;
    // The newer name only after the older one is refused: local servers know the older one.
    let limit = if left_out.contains("max_tokens") { "max_completion_tokens" } else { "max_tokens" };
    // Digits as configured: an f32 converted to f64 would show more of them.
    let number = |x: f32| x.to_string().parse::<f64>().ok();
    let unless = |off: f32, x: f32| number(x).filter(|_| x != off);
    let think = (conversation.think != ThinkMode::Auto).then_some(conversation.think == ThinkMode::On);
    let mut body = json!({
        "model": model,
        "messages": conversation.messages,
        "stream": true,
        "stream_options": { "include_usage": true },
        limit: draw.max_tokens,
        "temperature": number(s.temperature),
        "top_p": number(s.top_p),
        "seed": s.seed,
        "presence_penalty": unless(0.0, s.presence_penalty),
        "frequency_penalty": unless(0.0, s.frequency_penalty),
        "min_p": unless(0.0, s.min_p),
        "repetition_penalty": unless(1.0, s.repeat_penalty),
        "top_k": (s.top_k > 0).then_some(s.top_k),
        "chat_template_kwargs": think.map(|on| json!({ "enable_thinking": on })),
        "continue_final_message": conversation.open.then_some(true),
        "add_generation_prompt": conversation.open.then_some(false),
    });
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|name, value| !value.is_null() && !left_out.contains(name));
    }
    body
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused<'a> {
    Fields(Vec<&'a str>),
    Length(u64),
    GoingOn,
    All,
}

pub(super) fn refused<'a>(sent: &'a Value, message: &str) -> Refused<'a> {
    let named = |name: &str| {
        message.match_indices(name).any(|(at, _)| {
            let part = |c: char| c.is_alphanumeric() || c == '_';
            let before = message.get(..at).and_then(|s| s.chars().next_back());
            let after = message.get(at + name.len()..).and_then(|s| s.chars().next());
            !before.is_some_and(part) && !after.is_some_and(part)
        })
    };
    let sent_fields = sent.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let fields: Vec<&str> = sent_fields.filter(|name| !NEEDED.contains(name) && named(name)).collect();
    if fields.iter().any(|name| GOING_ON.contains(name)) {
        return Refused::GoingOn;
    }
    // A server that does not know a field does not repeat its value.
    let length = fields.iter().filter(|name| LENGTH.contains(name)).find_map(|name| sent.get(name)?.as_u64());
    match length.filter(|tokens| named(&tokens.to_string())) {
        Some(tokens) => Refused::Length(tokens),
        None if fields.is_empty() => Refused::All,
        None => Refused::Fields(fields),
    }
}

pub(super) fn is_too_long(message: &str) -> bool {
    // Codes are words between `_`, and some servers quote the names of fields.
    let words: Vec<&str> = message.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let message = words.join(" ").to_ascii_lowercase();
    let has = |any: &[&str]| any.iter().any(|words| message.contains(words));
    let of = ["context", "n ctx", "model len", "prompt len", "input len", "input token", "prompt token", "token count"];
    has(&["prompt is too long", "input is too long", "too many tokens", "conversation is too long"])
        || has(&["tokens limit reached", "string above max length"])
        || (has(&of) && has(&["exceed", "maximum", "overflow", "too long", "too large", "fit"]))
        || (has(&of) && has(&["larger than", "longer than", "greater than", "less than"]))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finished {
    Stop,
    Length,
    /// The server gave up its answer, for this reason in its word.
    Broken(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Chunk {
    pub(super) thinking: String,
    pub(super) text: String,
    /// A whole message, which repeats the pieces before it.
    pub(super) whole: bool,
    pub(super) tools: Vec<String>,
    pub(super) in_call: bool,
    pub(super) finished: Option<Finished>,
    pub(super) usage: Option<Usage>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Done,
    Chunk(Chunk),
    Failed(String),
    /// No part of an answer, in its words: a sign of life, another protocol, or a failure in a form of its own.
    Other(String),
    /// A part of JSON, or an answer of another form.
    Strange,
}

/// Servers' names for thoughts. Some send several, and one of them may be empty.
const THOUGHTS: [&str; 4] = ["reasoning_content", "reasoning", "thinking", "reasoning_details"];
/// Fields that only a failure has.
const ERRORS: [&str; 4] = ["error", "errors", "error_code", "error_msg"];
/// Fields with the words of a failure.
const WORDS: [&str; 9] =
    ["error", "errors", "message", "detail", "msg", "error_msg", "status_msg", "base_resp", "title"];
/// Parts of the reasons for which servers give up an answer.
const GIVEN_UP: [&str; 11] = [
    "abort",
    "cancel",
    "error",
    "filter",
    "safety",
    "time",
    "recitation",
    "blocklist",
    "prohibited",
    "insufficient",
    "sensitive",
];
const MOST_TOKENS: u64 = 1 << 40;

fn count(value: &Value) -> Option<u64> {
    let number = match value {
        Value::Number(n) => n.as_f64(),
        Value::String(s) => s.trim().parse().ok(),
        _ => None,
    };
    number.filter(|n| *n >= 0.0).map(|n| (n as u64).min(MOST_TOKENS))
}

fn counted(usage: &Value) -> Option<Usage> {
    let of = |pointer: &str| usage.pointer(pointer).and_then(count);
    let (prompt, completion) = (of("/prompt_tokens"), of("/completion_tokens"));
    if prompt.is_none() && completion.is_none() {
        return None;
    }
    let prompt_tokens = prompt.unwrap_or(0);
    Some(Usage {
        prompt_tokens,
        // Cached tokens cannot exceed the prompt.
        cached_tokens: of("/prompt_tokens_details/cached_tokens").unwrap_or(0).min(prompt_tokens),
        completion_tokens: completion.unwrap_or(0),
        thought_tokens: of("/completion_tokens_details/reasoning_tokens").unwrap_or(0),
    })
}

/// The text of a field, a part or a list of parts.
fn text_in(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text_in).collect(),
        Value::Object(part) => {
            ["text", "thinking", "summary"].iter().filter_map(|k| part.get(*k)).map(text_in).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

fn failed(error: &Value) -> Event {
    Event::Failed(words_of(error).unwrap_or_else(|| "no reason given".to_owned()))
}

/// Some servers send the field of an error with every event.
fn is_set(value: &Value) -> bool {
    !matches!(value.to_string().as_str(), "null" | "false" | "0" | "\"0\"" | "\"\"" | "{}" | "[]")
}

fn finished(reason: &str) -> Finished {
    let lower = reason.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    if has(&GIVEN_UP) {
        Finished::Broken(reason.replace('_', " "))
    } else if has(&["length", "max_", "limit"]) {
        Finished::Length
    } else {
        Finished::Stop
    }
}

/// Reads the data of one event, or a whole answer in one object.
pub(super) fn event(data: &str) -> Event {
    let data = data.trim();
    if data.eq_ignore_ascii_case("[DONE]") {
        return Event::Done;
    }
    let Ok(value) = serde_json::from_str::<Value>(&halves::mark(data)) else {
        return match data.trim_start_matches('[').get(..5) {
            Some(word) if word.eq_ignore_ascii_case("error") => Event::Failed(data.to_owned()),
            _ if data.is_empty() || data.starts_with(['{', '[']) => Event::Strange,
            _ => Event::Other(data.to_owned()),
        };
    };
    // Some servers put their error into a list.
    let mut values = std::iter::once(&value).chain(value.as_array().into_iter().flatten());
    // In an event with an answer only the first field means a failure.
    let fields = if value["choices"].is_null() { &ERRORS[..] } else { &ERRORS[..1] };
    if let Some(error) =
        values.find(|value| fields.iter().any(|field| is_set(&value[*field])) || value["object"] == "error")
    {
        return failed(error);
    }
    if value["choices"].is_null() && value["usage"].is_null() {
        return Event::Other(words_of(&value).unwrap_or_default());
    }
    if !(value["choices"].is_null() || value["choices"].is_array()) {
        return Event::Strange;
    }
    let mut chunk = Chunk { usage: counted(&value["usage"]), ..Chunk::default() };
    // Only the first of several answers is used.
    let choices = value["choices"].as_array().into_iter().flatten();
    for choice in choices.filter(|choice| choice["index"].as_u64().unwrap_or(0) == 0) {
        if is_set(&choice["error"]) {
            return failed(&choice["error"]);
        }
        chunk.whole = choice["delta"].is_null();
        let delta = if chunk.whole { &choice["message"] } else { &choice["delta"] };
        let content = &delta["content"];
        let parts = match content {
            Value::Array(parts) => parts.as_slice(),
            Value::String(_) | Value::Null => std::slice::from_ref(content),
            Value::Object(_) | Value::Bool(_) | Value::Number(_) => return Event::Strange,
        };
        let (thoughts, text): (Vec<&Value>, Vec<&Value>) =
            parts.iter().partition(|part| part.get("thinking").is_some());
        let thoughts: String = thoughts.into_iter().map(text_in).collect();
        let mut named = THOUGHTS.iter().map(|name| text_in(&delta[*name])).filter(|text| !text.is_empty());
        chunk.thinking.push_str(&if thoughts.is_empty() { named.next().unwrap_or_default() } else { thoughts });
        chunk.text.extend(text.into_iter().map(text_in));
        chunk.text.push_str(delta["refusal"].as_str().unwrap_or_default());
        let old_call = Some(&delta["function_call"]).filter(|call| call.is_object());
        for call in delta["tool_calls"].as_array().into_iter().flatten().chain(old_call) {
            let name = call.pointer("/function/name").or(call.get("name")).and_then(Value::as_str);
            chunk.tools.extend(name.filter(|name| !name.is_empty()).map(str::to_owned));
            chunk.in_call = true;
        }
        let reason = &choice["finish_reason"];
        let reason = reason.as_str().or(reason["type"].as_str()).filter(|reason| !reason.is_empty());
        chunk.finished = reason.map(finished).or(chunk.finished);
    }
    Event::Chunk(chunk)
}

/// The server's own words in an error object, a list of them or a plain string.
pub(super) fn words_of(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()).filter(|s| !s.trim().is_empty()),
        Value::Array(list) => {
            let all: Vec<String> = list.iter().take(4).filter_map(words_of).collect();
            (!all.is_empty()).then(|| all.join("; "))
        }
        Value::Object(map) => {
            let mut inner = WORDS.iter().find_map(|k| words_of(map.get(*k)?))?;
            // The code says it where the words do not.
            let mut codes = ["code", "type", "error_type"].iter().filter_map(|k| map.get(*k)?.as_str());
            if let Some(code) = codes.find(|code| is_too_long(code)).filter(|_| !is_too_long(&inner)) {
                inner = format!("{inner} ({code})");
            }
            // In a list of faults each names its field.
            let place = map.get("loc").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            let place: Vec<&str> = place.filter(|l| !l.is_empty() && *l != "body").collect();
            Some(if place.is_empty() { inner } else { format!("{}: {inner}", place.join(".")) })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) context: Option<u64>,
}

/// The models of `/v1/models`; `None` for another form.
pub(super) fn models(list: &Value) -> Option<Vec<Listed>> {
    let listed = |m: &Value| {
        let context = ["/max_model_len", "/context_length", "/max_context_length", "/context_window", "/meta/n_ctx"]
            .iter()
            .find_map(|at| m.pointer(at)?.as_u64());
        Some(Listed {
            name: m.get("id")?.as_str()?.to_owned(),
            context: context.filter(|c| (1..MOST_TOKENS).contains(c)),
        })
    };
    Some(list.get("data")?.as_array()?.iter().filter_map(listed).collect())
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
