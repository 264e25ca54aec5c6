//! What needs no answer of the model: health, models, counters, tokens.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::task::JoinError;

use super::body::{self, object};
use super::content;
use super::fields::{Fields, kind};
use super::ids::Id;
use super::prompt::Conversation;
use super::ready::{model, model_named};
use super::refusal::{Family, Refusal};
use super::reply::render;
use super::sampling::thinking;
use super::tools::Tools;
use super::{EngineIs, Shared};
use crate::engine::protocol::{ModelInfo, Token};
use crate::text::{Before, Specials, TextError};

/// `GET /health`.
pub(super) async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let (status, value) = match shared.engine() {
        EngineIs::Ready(info) => (200, json!({ "status": "ok", "model": info.name })),
        EngineIs::Loading { what, done } => (503, json!({ "status": "loading", "what": what, "done": done })),
        EngineIs::Down(down) => (500, json!({ "status": "failed", "why": down.why })),
    };
    let mut response = object(&value);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// `GET /metrics`.
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let waiting = shared.waiting.load(Ordering::Relaxed) as u64;
    let ready = u64::from(matches!(shared.engine(), EngineIs::Ready(_)));
    let text = shared.metrics.text(&[
        ("requests_waiting", "Requests in the queue.", waiting),
        ("queue_limit", "Requests that may wait.", shared.queue as u64),
        ("ready", "The model is loaded.", ready),
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
    })
}

/// `GET /v1/models`.
pub(super) async fn models(State(shared): State<Arc<Shared>>) -> Response {
    match model(&shared) {
        Ok(info) => object(&json!({ "object": "list", "data": [describe(&shared, &info)] })),
        Err(refusal) => refusal.respond(Family::OpenAi),
    }
}

/// `GET /v1/models/ID`.
pub(super) async fn model_route(State(shared): State<Arc<Shared>>, Id(id): Id) -> Response {
    match model_named(&shared, Some(id)) {
        Ok(info) => object(&describe(&shared, &info)),
        Err(refusal) => refusal.respond(Family::OpenAi),
    }
}

/// What a thread that tokenized has found.
fn joined(tokens: Result<Result<Vec<Token>, TextError>, JoinError>) -> Result<Vec<Token>, Refusal> {
    let tokens = tokens.map_err(|_| Refusal::internal("internal error while tokenizing"))?;
    tokens.map_err(|e| Refusal::internal(e.to_string()))
}

/// Tokens of a rendered prompt, behind the start token if that is wanted, found on a thread of its own.
pub(super) async fn encode(shared: &Arc<Shared>, text: String, start: bool) -> Result<Vec<Token>, Refusal> {
    let shared = Arc::clone(shared);
    let encode = move || {
        let tokenizer = &shared.renderer.model().tokenizer;
        if start { tokenizer.encode_prompt(&text) } else { tokenizer.encode_behind(&text, Before::Edge) }
    };
    joined(tokio::task::spawn_blocking(encode).await)
}

async fn tokens_of(shared: &Arc<Shared>, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let given = |fields: &mut Fields| {
        let prompt = fields.text("prompt")?;
        let turns = if fields.has("messages") { Some(content::turns(fields)?) } else { None };
        Ok::<_, Refusal>((prompt, turns))
    };
    let (mut fields, given) = body::read(headers, body, given).await?;
    let info = model_named(shared, fields.text("model")?)?;
    let special = fields.truth("add_special_tokens")?.unwrap_or(true);
    let tokens = match given {
        (Some(prompt), None) => {
            fields.done()?;
            encode(shared, prompt, special).await?
        }
        (None, Some(turns)) => {
            let think = thinking(shared, &mut fields)?;
            let closed = fields.truth("add_generation_prompt")? == Some(false);
            let tools = Tools::read(&mut fields, "parameters")?;
            fields.done()?;
            let conversation = Conversation { turns, tools, think, closed, ..Conversation::default() };
            let text = render(shared, conversation, "messages").await?.rendered.text.clone();
            encode(shared, text, special).await?
        }
        _ => return Err(Refusal::field("prompt", "either prompt or messages must be given")),
    };
    let told = move || object(&json!({ "count": tokens.len(), "max_model_len": info.context_limit, "tokens": tokens }));
    tokio::task::spawn_blocking(told).await.map_err(|_| Refusal::internal("internal error while tokens were listed"))
}

/// `POST /tokenize`.
pub(super) async fn tokenize(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Body) -> Response {
    tokens_of(&shared, &headers, body).await.unwrap_or_else(|refusal| refusal.respond(Family::OpenAi))
}

/// A list of token ids of this model.
pub(super) fn token_list(shared: &Shared, list: &[Value], field: &str) -> Result<Vec<Token>, Refusal> {
    let most = shared.renderer.model().tokenizer.max_id();
    let token = |value: &Value| value.as_u64().and_then(|n| Token::try_from(n).ok()).filter(|t| *t <= most);
    list.iter()
        .map(|v| token(v).ok_or_else(|| Refusal::field(field, format!("{field} must hold token ids from 0 to {most}"))))
        .collect()
}

async fn text_of(shared: &Arc<Shared>, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let of = Arc::clone(shared);
    let told = move |fields: &mut Fields| {
        let list = match fields.need("tokens")? {
            Value::Array(list) => list,
            other => return Err(fields.wrong("tokens", format!("must be an array, it is {}", kind(&other)))),
        };
        let tokens = token_list(&of, &list, "tokens")?;
        Ok(object(&json!({ "prompt": of.renderer.model().tokenizer.decode(&tokens, Specials::Show) })))
    };
    let (mut fields, told) = body::read(headers, body, told).await?;
    let _ = model_named(shared, fields.text("model")?)?;
    fields.done().map(|()| told)
}

/// `POST /detokenize`.
pub(super) async fn detokenize(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Body) -> Response {
    text_of(&shared, &headers, body).await.unwrap_or_else(|refusal| refusal.respond(Family::OpenAi))
}
