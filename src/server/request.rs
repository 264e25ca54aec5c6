//! What handlers take of a request: its JSON body, an id in its path, its model. Responses that are one object.
//!
//! The context of a request, for code at any depth: the names of left-out fields, the owner of the connection, and what
//! its documents may take. It lives in a task-local, so that readers of nested fields need no parameter for it;
//! [`blocking`] carries it to other threads.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on, post};
use glob::{MatchOptions, Pattern};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde_json::Value;

use super::{EngineIs, Fields, Owner, Refusal, Result, Shared, VERSION, listed, locked};
use crate::engine::protocol::{Cancel, ModelInfo, Token};
use crate::text::surrogates;

const BODY_DEADLINE: Duration = Duration::from_secs(120);
/// Maximum bytes of a body: several times the longest context.
pub(super) const BODY_BYTES: usize = 32 << 20;
/// Maximum objects in a body (messages, their parts, functions, nodes of schemas): more than a conversation has, and
/// few enough to fit in memory several times.
const BODY_OBJECTS: usize = 100_000;

/// Reads the fields of a JSON body on a thread of its own: what takes time would block all other connections.
pub(super) async fn read<T: Send + 'static>(
    shared: &Arc<Shared>,
    request: Request,
    read: impl FnOnce(&Shared, Fields) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (head, body) = request.into_parts();
    check(&head.headers)?;
    // It has arrived: `http` collects it.
    let body = body.collect().await.map_err(|e| Refusal::internal(e.to_string()))?;
    let (shared, bytes) = (Arc::clone(shared), body.to_bytes());
    blocking(move || read(&shared, Fields::of(parse(&bytes)?, "")?)).await
}

/// A path that reads a body and is answered at once.
pub(super) fn posted(read: fn(&Shared, Fields) -> Result<Value>) -> MethodRouter<Arc<Shared>> {
    post(async move |State(shared): State<Arc<Shared>>, request: Request| {
        self::read(&shared, request, move |shared, fields| read(shared, fields).map(|value| object(&value))).await
    })
}

/// A path that looks something up by an id and the query string, which has words and numbers without escapes, and
/// [`VERSION`] if it is a header; on a thread of its own, since that may read the disk.
pub(super) fn by_id(
    method: MethodFilter,
    look: fn(&Shared, &str, Fields) -> Result<Value>,
) -> MethodRouter<Arc<Shared>> {
    on(method, async move |shared: State<Arc<Shared>>, id: Result<Path<String>, PathRejection>, request: Request| {
        let not_utf8 = "the path is not UTF-8 once its codes of % are resolved";
        let Path(id) = id.map_err(|_| Refusal::new(400, "invalid_url", not_utf8))?;
        let pairs = request.uri().query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.chain(request.headers().contains_key(VERSION).then_some((VERSION, "")));
        let query = Fields::of(pairs.map(|(name, value)| (name.to_owned(), Value::from(value))).collect(), "")?;
        blocking(move || look(&shared, &id, query).map(|value| object(&value))).await
    })
}

fn parse(bytes: &[u8]) -> Result<Value> {
    let not_json = |e: &dyn Display| Refusal::new(400, "invalid_json", format!("the body is not JSON: {e}"));
    let text = str::from_utf8(bytes).map_err(|e| not_json(&e))?;
    let value: Value = serde_json::from_str(&surrogates::mended(text)).map_err(|e| not_json(&e))?;
    if objects(&value) > BODY_OBJECTS {
        let what = "messages, parts of them and other objects; send fewer";
        let message = format!("the body has more than {BODY_OBJECTS} {what}");
        return Err(Refusal::new(413, "request_too_large", message));
    }
    Ok(value)
}

/// Objects in a value, at any depth. The parser limits the depth.
fn objects(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(objects).sum::<usize>(),
        Value::Array(list) => list.iter().map(objects).sum(),
        _ => 0,
    }
}

fn check(headers: &HeaderMap) -> Result<()> {
    let unsupported = |message: &str| Err(Refusal::new(415, "unsupported_media_type", message));
    let kind = headers.get(axum::http::header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("nothing");
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return unsupported(&format!("the body must be application/json, it is {kind}: set the header content-type"));
    }
    match headers.get(axum::http::header::CONTENT_ENCODING) {
        Some(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            unsupported("the body must be sent as it is, without Content-Encoding")
        }
        _ => Ok(()),
    }
}

pub(super) async fn whole(body: &mut Body) -> Result<Bytes> {
    let too_large = format!("the body is larger than {} MiB", BODY_BYTES >> 20);
    let too_large = Refusal::new(413, "request_too_large", too_large);
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(too_large);
    }
    match tokio::time::timeout(BODY_DEADLINE, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(all)) => Ok(all.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(too_large),
        Ok(Err(e)) => Err(Refusal::new(400, "invalid_body", format!("the body broke off: {e}"))),
        Err(_) => Err(Refusal::new(408, "request_timeout", "the body did not arrive in time")),
    }
}

pub(super) fn object(value: &Value) -> Response {
    Json(value).into_response()
}

pub(super) fn model(shared: &Shared) -> Result<ModelInfo> {
    match shared.engine() {
        EngineIs::Ready(info) => Ok(*info),
        EngineIs::Loading { what, done } => {
            Err(Refusal::new(503, "model_loading", format!("the model is being loaded: {what}, {:.0} %", done * 100.0)))
        }
        EngineIs::Down { why, .. } => Err(Refusal::internal(why)),
    }
}

/// The model, unless the field `model` names another one.
pub(super) fn model_of(shared: &Shared, fields: &mut Fields) -> Result<ModelInfo> {
    model_named(shared, fields.text("model")?)
}

/// The model, unless a request names another one; a response to an alias repeats the alias.
pub(super) fn model_named(shared: &Shared, name: Option<String>) -> Result<ModelInfo> {
    let model = model(shared)?;
    let Some(name) = name.filter(|name| !name.is_empty() && name != "default") else { return Ok(model) };
    if name.eq_ignore_ascii_case(&model.name) {
        return Ok(model);
    }
    if listed(&shared.options.serve.model_aliases).any(|alias| matches(alias, &name)) {
        return Ok(ModelInfo { name, ..model });
    }
    let only = format!("only {} (or default); serve.model_aliases adds names", model.name);
    Err(Refusal::new(404, "model_not_found", format!("there is no model {name} here, {only}")).about("model"))
}

pub(super) fn token_id(shared: &Shared, value: &Value) -> Option<Token> {
    let most = shared.renderer.model().tokenizer.max_id;
    value.as_u64().and_then(|n| Token::try_from(n).ok()).filter(|t| *t <= most)
}

pub(super) fn token_list(shared: &Shared, list: &[Value], field: &str) -> Result<Vec<Token>> {
    let tokens: Option<Vec<Token>> = list.iter().map(|value| token_id(shared, value)).collect();
    let most = shared.renderer.model().tokenizer.max_id;
    tokens.ok_or_else(|| Refusal::field(field, format!("{field} must hold token ids from 0 to {most}")))
}

/// Whether a name matches an alias, in which `*` matches any text.
fn matches(alias: &str, name: &str) -> bool {
    let options = MatchOptions { case_sensitive: false, ..MatchOptions::default() };
    let join = |all: String, part: String| format!("{}*{part}", all.trim_end_matches('*'));
    let literal = alias.split('*').map(Pattern::escape).reduce(join).unwrap_or_default();
    Pattern::new(&literal).is_ok_and(|pattern| pattern.matches_with(name, options))
}

pub(super) fn fresh_id(prefix: &str) -> String {
    format!("{prefix}{:014x}", crate::runtime::fresh_seed())
}

const MOST_HEADER_BYTES: usize = 1 << 10;

tokio::task_local! {
    pub(super) static REQUEST: Arc<Context>;
}

#[derive(Debug, Default)]
pub(super) struct Context {
    /// `serve.unknown_fields = "refuse"`.
    pub refuse_unknown: bool,
    pub owner: Owner,
    /// [`super::Options::program`].
    pub program: Vec<OsString>,
    pub left_out: Mutex<BTreeSet<String>>,
    /// When the reading of its PDFs must end, and the bytes of text that they may still have.
    pub pdfs: Mutex<Option<(Instant, u64)>>,
    /// Set once the request is answered, or its connection closed.
    pub ended: Cancel,
}

/// Cancels when it is dropped.
pub(super) struct Ends(pub Cancel);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

pub(super) fn current() -> Arc<Context> {
    REQUEST.try_with(Arc::clone).unwrap_or_default()
}

/// Leaves a part of the request out and remembers its name; false if the settings refuse unknown parts.
pub(super) fn leave_out(name: &str) -> bool {
    let leave = |context: &Arc<Context>| {
        if !context.refuse_unknown {
            locked(&context.left_out).insert(without_positions(name));
        }
        !context.refuse_unknown
    };
    REQUEST.try_with(leave).unwrap_or(false)
}

/// `messages[3].name` is `messages[].name`.
fn without_positions(name: &str) -> String {
    let (first, rest) = name.split_at(name.find('[').unwrap_or(name.len()));
    let rest = rest.split_inclusive('[').map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
    std::iter::once(first).chain(rest).flat_map(str::chars).take(200).collect()
}

pub(super) fn key_required() -> Refusal {
    let message = "the library and earlier responses need a key, because the system cannot tell which user this connection \
                   belongs to: set serve.key_file and send the key";
    Refusal::new(403, "key_required", message)
}

/// Refuses one user's data if the owner of the connection is unknown.
pub(super) fn own_data() -> Result<()> {
    match REQUEST.try_with(|context| context.owner) {
        Ok(Owner::Unknown) => Err(key_required()),
        Ok(Owner::Same | Owner::Other | Owner::HasKey) | Err(_) => Ok(()),
    }
}

/// The names as a header: printable ASCII, cut at the maximum length.
pub(super) fn left_out_header(names: &[String]) -> Option<HeaderValue> {
    let plain = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
    let mut text = names.iter().map(|name| name.chars().map(plain).collect::<String>()).collect::<Vec<_>>().join(", ");
    if text.len() > MOST_HEADER_BYTES {
        text.truncate(MOST_HEADER_BYTES);
        text.push_str("...");
    }
    HeaderValue::from_str(&text).ok().filter(|text| !text.is_empty())
}

/// Runs long work on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let context = current();
    let done = tokio::task::spawn_blocking(move || REQUEST.sync_scope(context, work));
    done.await.map_err(|_| Refusal::internal("internal error while the request was read"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_body_of_too_many_objects_is_refused_however_they_are_nested() {
        let parts = |count: usize| vec![json!({ "type": "text" }); count];
        let read = |body: &Value| parse(body.to_string().as_bytes()).map(drop);
        assert_eq!(read(&json!({ "messages": [{ "content": parts(BODY_OBJECTS - 2) }] })), Ok(()));
        for body in [
            json!({ "messages": [{ "content": parts(BODY_OBJECTS - 1) }] }),
            json!({ "messages": [[[parts(BODY_OBJECTS)]]] }),
            json!({ "messages": parts(BODY_OBJECTS) }),
        ] {
            let refusal = read(&body).unwrap_err();
            assert_eq!((refusal.status, refusal.code), (413, "request_too_large"));
            assert!(refusal.message.contains("100000"), "{}", refusal.message);
        }
    }

    #[test]
    fn an_alias_may_hold_stars() {
        for (alias, name) in [
            ("*", "x"),
            ("*", ""),
            ("gpt-*", "GPT-4o-mini"),
            ("*-mini", "o4-mini"),
            ("a*b*c", "aXbYc"),
            ("a**b***", "aXb"),
            ("**", "x"),
        ] {
            assert!(matches(alias, name), "{alias} {name}");
        }
        for (alias, name) in [("gpt-4o", "gpt-4o-mini"), ("gpt-*", "xgpt-4"), ("*-mini", "o4-mini-2"), ("a*b", "ac")] {
            assert!(!matches(alias, name), "{alias} {name}");
        }
    }

    #[test]
    fn names_lose_their_positions_and_fit_a_header() {
        assert_eq!(without_positions("tools[12].a[3].b7[x1]"), "tools[].a[].b7[x1]");
        let header = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            left_out_header(&names).map(|h| h.to_str().unwrap().to_owned())
        };
        assert_eq!(header(&[]), None);
        assert_eq!(header(&["a", "b\nc: d,é"]).unwrap(), "a, b?c:?d??");
        let long = "x".repeat(200);
        let all = header(&[long.as_str(); 9]).unwrap();
        assert!(all.len() < MOST_HEADER_BYTES + 20 && all.ends_with("..."), "{all}");
    }

    #[test]
    fn nothing_is_left_out_where_unknown_fields_are_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for refuse_unknown in [true, false] {
            let context = Arc::new(Context { refuse_unknown, ..Context::default() });
            let left = runtime.block_on(REQUEST.scope(Arc::clone(&context), async {
                blocking(|| Ok(leave_out("messages[4].odd") && leave_out("messages[5].odd"))).await
            }));
            assert_eq!(left, Ok(!refuse_unknown));
            let names: &[&str] = if refuse_unknown { &[] } else { &["messages[].odd"] };
            assert_eq!(Vec::from_iter(locked(&context.left_out).iter().cloned()), names);
        }
    }
}
