//! Paths that need no answer of the model: health, models, counters, tokens.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::body::{self, object};
use super::chat::going_on;
use super::content;
use super::context::blocking;
use super::fields::{Fields, kind};
use super::ids::Id;
use super::prompt::Conversation;
use super::ready::{model, model_named};
use super::refusal::Refusal;
use super::reply::render;
use super::sampling::Thinking;
use super::tools::Tools;
use super::{EngineIs, Shared};
use crate::engine::protocol::{Command, ModelInfo, Token};
use crate::text::{Before, Specials};

pub(super) async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let (status, value) = match shared.engine() {
        EngineIs::Ready(info) => (200, json!({ "status": "ok", "model": info.name, "parked": info.parked })),
        EngineIs::Loading { what, done } => (503, json!({ "status": "loading", "what": what, "done": done })),
        EngineIs::Down(down) => (500, json!({ "status": "failed", "why": down.why })),
    };
    let mut response = object(&value);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

pub(super) async fn park(State(shared): State<Arc<Shared>>) -> Result<Response, Refusal> {
    parked(&shared, true).await
}

pub(super) async fn unpark(State(shared): State<Arc<Shared>>) -> Result<Response, Refusal> {
    parked(&shared, false).await
}

/// Parks the engine or loads it again; answers when that is done.
async fn parked(shared: &Shared, park: bool) -> Result<Response, Refusal> {
    model(shared)?;
    let command = if park { Command::Park } else { Command::Unpark };
    shared.commands.try_send(command).map_err(|_| Refusal::internal("the engine takes no commands"))?;
    let is = |engine: &EngineIs| !matches!(engine, EngineIs::Ready(info) if info.parked != park);
    // The sender lives as long as the server.
    let _ = shared.engine.subscribe().wait_for(is).await;
    Ok(object(&json!({ "parked": model(shared)?.parked })))
}

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let waiting = shared.waiting.load(Ordering::Relaxed) as u64;
    let ready = u64::from(matches!(shared.engine(), EngineIs::Ready(_)));
    let parked = u64::from(matches!(shared.engine(), EngineIs::Ready(info) if info.parked));
    let text = shared.metrics.text(&[
        ("requests_waiting", "Requests in the queue.", waiting),
        ("queue_limit", "Requests that may wait.", shared.queue as u64),
        ("ready", "The model is loaded or parked.", ready),
        ("parked", "The model is parked: its memory is free.", parked),
    ]);
    let mut response = Body::from(text).into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
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

pub(super) async fn models(State(shared): State<Arc<Shared>>) -> Result<Response, Refusal> {
    let info = model(&shared)?;
    let named = shared.rules.model_aliases.iter().filter(|alias| !alias.contains('*'));
    let names: Vec<String> = std::iter::once(info.name.clone()).chain(named.cloned()).collect();
    let data = names.iter().map(|name| describe(&shared, &ModelInfo { name: name.clone(), ..info.clone() }));
    Ok(object(&json!({
        "object": "list",
        "data": data.collect::<Value>(),
        "has_more": false,
        "first_id": names.first(),
        "last_id": names.last(),
    })))
}

/// `GET /tokenizer_info`: the data that evaluation harnesses need to render prompts themselves.
pub(super) async fn tokenizer_info(State(shared): State<Arc<Shared>>) -> Response {
    let (text, limit) = (shared.renderer.model(), model(&shared).map(|info| info.context_limit).ok());
    let spell = |token: Token| text.tokenizer.decode(&[token], Specials::Show);
    let end = shared.stop_ids.first().copied().map(spell);
    object(&json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text.tokenizer.bos().map(spell),
        "eos_token": end,
        "pad_token": end,
        "model_max_length": limit,
        "chat_template": text.template.source(),
    }))
}

pub(super) async fn model_route(State(shared): State<Arc<Shared>>, Id(id): Id) -> Result<Response, Refusal> {
    Ok(object(&describe(&shared, &model_named(&shared, Some(id))?)))
}

/// Tokenizes a rendered prompt on a thread of its own, after the start token if `start` is set.
pub(super) async fn encode(shared: &Arc<Shared>, text: String, start: bool) -> Result<Vec<Token>, Refusal> {
    let shared = Arc::clone(shared);
    let encode = move || {
        let tokenizer = &shared.renderer.model().tokenizer;
        let tokens = if start { tokenizer.encode_prompt(&text) } else { tokenizer.encode_after(&text, Before::Edge) };
        tokens.map_err(|e| Refusal::internal(e.to_string()))
    };
    blocking(encode).await
}

pub(super) async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let shared = &shared;
    let given = |fields: &mut Fields| {
        let prompt = fields.text("prompt")?;
        let turns = if fields.has("messages") { Some(content::turns(fields)?) } else { None };
        Ok::<_, Refusal>((prompt, turns))
    };
    let (mut fields, given) = body::read(request, given).await?;
    let info = model_named(shared, fields.text("model")?)?;
    let special = fields.truth("add_special_tokens")?.unwrap_or(true);
    let tokens = match given {
        (Some(prompt), None) => {
            fields.done()?;
            encode(shared, prompt, special).await?
        }
        (None, Some(turns)) => {
            let think = Thinking::of_chat(shared, &mut fields)?.mode;
            let (open, closed) = going_on(&mut fields, &turns)?;
            let tools = Tools::read(&mut fields, "parameters")?;
            fields.done()?;
            let conversation = Conversation { turns, tools, think, open, closed };
            let text = render(shared, conversation, "messages").await?.rendered.text.clone();
            encode(shared, text, special).await?
        }
        _ => return Err(Refusal::field("prompt", "either prompt or messages must be given")),
    };
    let limit = info.context_limit;
    blocking(move || Ok(object(&json!({ "count": tokens.len(), "max_model_len": limit, "tokens": tokens })))).await
}

pub(super) fn token_list(shared: &Shared, list: &[Value], field: &str) -> Result<Vec<Token>, Refusal> {
    let most = shared.renderer.model().tokenizer.max_id();
    let token = |value: &Value| value.as_u64().and_then(|n| Token::try_from(n).ok()).filter(|t| *t <= most);
    list.iter()
        .map(|v| token(v).ok_or_else(|| Refusal::field(field, format!("{field} must hold token ids from 0 to {most}"))))
        .collect()
}

pub(super) async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let shared = &shared;
    let of = Arc::clone(shared);
    let shown = move |fields: &mut Fields| {
        let list = match fields.need("tokens")? {
            Value::Array(list) => list,
            other => return Err(fields.wrong("tokens", format!("must be an array, it is {}", kind(&other)))),
        };
        let tokens = token_list(&of, &list, "tokens")?;
        Ok(object(&json!({ "prompt": of.renderer.model().tokenizer.decode(&tokens, Specials::Show) })))
    };
    let (mut fields, shown) = body::read(request, shown).await?;
    let _ = model_named(shared, fields.text("model")?)?;
    fields.done().map(|()| shown)
}
