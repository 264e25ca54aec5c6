//! Paths that need no answer of the model: health, models, counters, tokens.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::ask::encode;
use super::request::{self, list, model_named};
use super::{
    EngineIs, Fields, Id, Refusal, Result, Shared, blocking, chat, model, model_of, object, render, token_list,
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
    let text = shared.metrics.text(&[
        ("requests_waiting", "Requests in the queue.", waiting),
        ("queue_limit", "Requests that may wait.", shared.options.queue as u64),
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
        "created_at": jiff::Timestamp::from_second(shared.started.cast_signed()).map(|at| at.to_string()).ok(),
        "lifecycle": "active",
        "max_input_tokens": info.context_limit,
    })
}

pub(super) async fn models(State(shared): State<Arc<Shared>>) -> Result<Response> {
    let info = model(&shared)?;
    let named = shared.options.rules.model_aliases.iter().filter(|alias| !alias.contains('*'));
    let names = std::iter::once(&info.name).chain(named).cloned();
    let data = names.map(|name| describe(&shared, &ModelInfo { name, ..info.clone() })).collect();
    Ok(object(&list(data, false)))
}

/// `GET /tokenizer_info`: the data that evaluation harnesses need to render prompts themselves.
pub(super) async fn tokenizer_info(State(shared): State<Arc<Shared>>) -> Response {
    let (text, limit) = (shared.renderer.model(), model(&shared).map(|info| info.context_limit).ok());
    let spell = |token: Token| text.tokenizer.decode(&[token], Specials::Show);
    let end = shared.options.stop.first().copied().map(spell);
    object(&json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text.tokenizer.bos().map(spell),
        "eos_token": end,
        "pad_token": end,
        "model_max_length": limit,
        "chat_template": text.template.source(),
    }))
}

pub(super) async fn model_route(State(shared): State<Arc<Shared>>, Id(id): Id) -> Result<Response> {
    Ok(object(&describe(&shared, &model_named(&shared, Some(id))?)))
}

pub(super) async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response> {
    let read = |shared: &Shared, mut fields: Fields| {
        let limit = model_of(shared, &mut fields)?.context_limit;
        let special = fields.truth("add_special_tokens")?.unwrap_or(true);
        let prompt = fields.text("prompt")?;
        let chat = if fields.has("messages") { Some(chat::conversation(shared, &mut fields)?) } else { None };
        fields.done().map(|()| (prompt, chat, special, limit))
    };
    let (prompt, chat, special, limit) = request::read(&shared, request, read).await?;
    let text = match (prompt, chat) {
        (Some(prompt), None) => prompt,
        (None, Some(chat)) => render(&shared, chat).await?.rendered.text.clone(),
        _ => return Err(Refusal::field("prompt", "either prompt or messages must be given")),
    };
    let tokens = encode(&shared, text, special).await?;
    blocking(move || Ok(object(&json!({ "count": tokens.len(), "max_model_len": limit, "tokens": tokens })))).await
}

pub(super) async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response> {
    let read = |shared: &Shared, mut fields: Fields| {
        model_of(shared, &mut fields)?;
        fields.require("tokens")?;
        let tokens = token_list(shared, &fields.list("tokens")?.unwrap_or_default(), "tokens")?;
        fields.done()?;
        Ok(object(&json!({ "prompt": shared.renderer.model().tokenizer.decode(&tokens, Specials::Show) })))
    };
    request::read(&shared, request, read).await
}
