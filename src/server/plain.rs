//! Paths that need no answer of the model: health, models, counters, tokens.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::ask::encode;
use super::request;
use super::{
    EngineIs, Fields, Refusal, Result, Shared, Usage, chat, date, listed, locked, model, model_of, object, render,
    token_list,
};
use crate::engine::protocol::{Command, ModelInfo, Token};
use crate::text::Specials;

pub(super) async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let (status, value) = match shared.engine() {
        EngineIs::Ready(info) => (StatusCode::OK, json!({ "status": "ok", "model": info.name, "parked": info.parked })),
        EngineIs::Loading { what, done } => {
            (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "loading", "what": what, "done": done }))
        }
        EngineIs::Down { why, .. } => (StatusCode::INTERNAL_SERVER_ERROR, json!({ "status": "failed", "why": why })),
    };
    (status, object(&value)).into_response()
}

/// Parks the engine or loads it again; answers when that is done.
pub(super) async fn parked(shared: Arc<Shared>, park: bool) -> Result<Response> {
    model(&shared)?;
    let command = if park { Command::Park } else { Command::Unpark };
    shared.options.engine.commands.try_send(command).map_err(|_| Refusal::internal("the engine takes no commands"))?;
    let is = |engine: &EngineIs| !matches!(engine, EngineIs::Ready(info) if info.parked != park);
    // The sender lives as long as the server.
    let _ = shared.engine.subscribe().wait_for(is).await;
    Ok(object(&json!({ "parked": model(&shared)?.parked })))
}

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let waiting = shared.waiting.load(Ordering::Relaxed) as u64;
    let ready = u64::from(matches!(shared.engine(), EngineIs::Ready(_)));
    let parked = u64::from(matches!(shared.engine(), EngineIs::Ready(info) if info.parked));
    let [running, connections] =
        [&shared.metrics.running, &shared.metrics.connections].map(|n| n.load(Ordering::Relaxed));
    let text = shared.metrics.text(&[
        ("requests_running", "Answers being read or written.", running),
        ("connections", "Open connections.", connections),
        ("requests_waiting", "Requests in the queue.", waiting),
        ("queue_limit", "Requests that may wait.", shared.options.serve.queue as u64),
        ("ready", "The model is loaded or parked.", ready),
        ("parked", "The model is parked: its memory is free.", parked),
    ]);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn describe(shared: &Shared, info: &ModelInfo) -> Value {
    json!({
        "id": info.name,
        "object": "model",
        "created": shared.started,
        "owned_by": "sala-chat",
        "max_model_len": info.context_limit,
        // Anthropic's names.
        "type": "model",
        "display_name": info.name,
        "created_at": date(shared.started.cast_signed()),
        "lifecycle": "active",
        "max_input_tokens": info.context_limit,
        "allowed_fallback_models": null, "capabilities": null, "line": null, "max_tokens": null,
        "deprecated_at": null, "retires_at": null,
    })
}

pub(super) async fn models(State(shared): State<Arc<Shared>>) -> Result<Response> {
    let info = model(&shared)?;
    let named = listed(&shared.options.serve.model_aliases).filter(|alias| !alias.contains('*'));
    let names = std::iter::once(info.name.as_str()).chain(named);
    let data: Vec<Value> =
        names.map(|name| describe(&shared, &ModelInfo { name: name.into(), ..info.clone() })).collect();
    let [first, last] = [data.first(), data.last()].map(|model| model.map(|model| model["id"].clone()));
    Ok(object(&json!({ "object": "list", "data": data, "has_more": false, "first_id": first, "last_id": last })))
}

/// `GET /tokenizer_info`: the data that evaluation harnesses need to render prompts themselves.
pub(super) async fn tokenizer_info(State(shared): State<Arc<Shared>>) -> Response {
    let (text, limit) = (shared.renderer.model(), model(&shared).map(|info| info.context_limit).ok());
    let spell = |token: Token| text.tokenizer.decode(&[token], Specials::Show);
    let end = shared.options.stop.first().copied().map(spell);
    object(&json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text.tokenizer.bos.map(spell),
        "eos_token": end,
        "pad_token": end,
        "model_max_length": limit,
        "chat_template": text.template.source,
    }))
}

pub(super) fn model_named(shared: &Shared, id: &str, _: Fields) -> Result<Value> {
    Ok(describe(shared, &request::model_named(shared, Some(id.to_owned()))?))
}

pub(super) fn tokenize(shared: &Shared, mut fields: Fields) -> Result<Value> {
    let limit = model_of(shared, &mut fields)?.context_limit;
    let special = fields.truth("add_special_tokens")?.unwrap_or(true);
    let prompt = fields.text("prompt")?;
    let chat = if fields.has("messages") { Some(chat::conversation(shared, &mut fields)?) } else { None };
    fields.done()?;
    let tokens = match (prompt, chat) {
        (Some(prompt), None) => encode(shared, &prompt, special)?,
        (None, Some(chat)) => encode(shared, &render(shared, chat)?.rendered.text, special)?,
        _ => return Err(Refusal::field("prompt", "either prompt or messages must be given")),
    };
    Ok(json!({ "count": tokens.len(), "max_model_len": limit, "tokens": tokens }))
}

pub(super) fn detokenize(shared: &Shared, mut fields: Fields) -> Result<Value> {
    model_of(shared, &mut fields)?;
    fields.require("tokens")?;
    let tokens = token_list(shared, &fields.list("tokens")?.unwrap_or_default(), "tokens")?;
    fields.done()?;
    Ok(json!({ "prompt": shared.renderer.model().tokenizer.decode(&tokens, Specials::Show) }))
}

/// Maximum names of left-out fields with a counter of their own.
const MOST_IGNORED: usize = 200;

#[derive(Debug, Default)]
pub(super) struct Metrics {
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    ignored: Mutex<BTreeMap<String, u64>>,
    tokens: Mutex<Usage>,
    pub running: AtomicU64,
    pub connections: AtomicU64,
    first_token_count: AtomicU64,
    first_token_us: AtomicU64,
}

impl Metrics {
    pub(super) fn request(&self, path: String, status: u16) {
        *locked(&self.requests).entry((path, status)).or_default() += 1;
    }

    pub(super) fn tokens(&self, usage: &Usage) {
        locked(&self.tokens).add(usage);
    }

    /// Counts a left-out part of a request; true the first time.
    pub(super) fn ignored(&self, name: &str) -> bool {
        let mut ignored = locked(&self.ignored);
        if ignored.len() >= MOST_IGNORED && !ignored.contains_key(name) {
            *ignored.entry("other".to_owned()).or_default() += 1;
            return false;
        }
        let count = ignored.entry(name.to_owned()).or_default();
        *count += 1;
        *count == 1
    }

    pub(super) fn first_token(&self, after: Duration) {
        self.first_token_count.fetch_add(1, Ordering::Relaxed);
        self.first_token_us.fetch_add(after.as_micros() as u64, Ordering::Relaxed);
    }

    /// `gauges` are the current values: name, help, value.
    fn text(&self, gauges: &[(&'static str, &'static str, u64)]) -> String {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let plain = |value: u64| vec![(String::new(), value.to_string())];
        let request = |((path, status), count): (&(String, u16), &u64)| {
            (format!("{{path=\"{path}\",status=\"{status}\"}}"), count.to_string())
        };
        let ignored = |(name, count): (&String, &u64)| {
            let name = name.replace(['\\', '"'], "?").replace(char::is_control, "?");
            (format!("{{field=\"{name}\"}}"), count.to_string())
        };
        let sum = get(&self.first_token_us) as f64 / 1e6;
        let first_token =
            vec![("_sum".to_owned(), sum.to_string()), ("_count".to_owned(), get(&self.first_token_count).to_string())];
        let requests = locked(&self.requests).iter().map(request).collect();
        let ignored = locked(&self.ignored).iter().map(ignored).collect();
        let tokens = *locked(&self.tokens);
        let counters = [
            ("requests_total", "Requests answered, by path and status.", requests),
            ("ignored_fields_total", "Requests with a field or a tool that was left out, by name.", ignored),
            ("prompt_tokens_total", "Tokens of prompts.", plain(tokens.prompt_tokens)),
            ("cached_tokens_total", "Tokens of prompts found in kept state.", plain(tokens.cached_tokens)),
            ("generated_tokens_total", "Tokens generated.", plain(tokens.completion_tokens)),
            ("drafted_tokens_total", "Tokens drafted by speculation.", plain(tokens.drafted_tokens)),
            ("accepted_tokens_total", "Drafted tokens accepted.", plain(tokens.accepted_tokens)),
        ];
        let mut out = String::new();
        let mut family = |name: &str, help: &str, kind: &str, rows: Vec<(String, String)>| {
            out.push_str(&format!("# HELP sala_chat_{name} {help}\n# TYPE sala_chat_{name} {kind}\n"));
            rows.iter().for_each(|(labels, value)| out.push_str(&format!("sala_chat_{name}{labels} {value}\n")));
        };
        counters.into_iter().for_each(|(name, help, rows)| family(name, help, "counter", rows));
        gauges.iter().for_each(|(name, help, value)| family(name, help, "gauge", plain(*value)));
        family("first_token_seconds", "From a request to its first token.", "summary", first_token);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_prometheus_form() {
        let metrics = Metrics::default();
        metrics.request("/health".into(), 200);
        metrics.first_token(Duration::from_millis(200));
        let text = metrics.text(&[("requests_waiting", "In the queue.", 3)]);
        assert!(text.contains("sala_chat_requests_total{path=\"/health\",status=\"200\"} 1\n"), "{text}");
        assert!(
            text.contains("first_token_seconds_sum 0.2\n") && text.contains("first_token_seconds_count 1\n"),
            "{text}"
        );
        assert!(text.contains("\nsala_chat_requests_waiting 3\n"));
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            assert!(line.rsplit_once(' ').is_some_and(|(_, n)| n.parse::<f64>().is_ok()), "{line}");
        }
    }
}
