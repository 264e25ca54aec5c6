//! JSON bodies of requests, and of responses that are one object.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use serde_json::Value;

use super::context::blocking;
use super::fields::Fields;
use super::refusal::Refusal;

/// Deadline for a request's body.
const BODY: Duration = Duration::from_secs(120);
/// Maximum bytes of a body: several times the longest context.
pub(super) const BODY_BYTES: usize = 32 << 20;
/// Maximum objects in a body (messages, their parts, functions, nodes of schemas): more than a conversation has, and
/// few enough to fit in memory several times.
const BODY_OBJECTS: usize = 100_000;
/// A longer body, in bytes, is read on a thread of its own.
const LONG_BYTES: usize = 64 << 10;

/// Reads a JSON body; `long` reads its fields. A long body would block all other connections, so it is read on a
/// thread of its own.
pub(super) async fn read<T: Send + 'static>(
    request: Request,
    long: impl FnOnce(&mut Fields) -> Result<T, Refusal> + Send + 'static,
) -> Result<(Fields, T), Refusal> {
    let (head, body) = request.into_parts();
    let bytes = json(&head.headers, body).await?;
    let is_long = bytes.len() > LONG_BYTES;
    let read = move || {
        let mut fields = Fields::body(parse(&bytes)?)?;
        let read = long(&mut fields)?;
        Ok::<_, Refusal>((fields, read))
    };
    if !is_long {
        return read();
    }
    blocking(read).await
}

fn parse(bytes: &[u8]) -> Result<Value, Refusal> {
    let value: Value = serde_json::from_slice(bytes).map_err(|e| {
        // Only this fault contains these words.
        let why = match e.to_string().contains("hex escape") {
            true => {
                let (line, column) = (e.line(), e.column());
                format!("a text has half of a surrogate pair (\\ud800 to \\udfff) at line {line} column {column}")
            }
            false => format!("the body is not JSON: {e}"),
        };
        Refusal::new(400, "invalid_json", why)
    })?;
    if has_too_many(&value) {
        let what = "messages, parts of them and other objects; send fewer";
        let message = format!("the body has more than {BODY_OBJECTS} {what}");
        return Err(Refusal::new(413, "request_too_large", message));
    }
    Ok(value)
}

fn has_too_many(body: &Value) -> bool {
    let (mut waiting, mut objects) = (vec![body], 0);
    while let Some(value) = waiting.pop() {
        match value {
            Value::Object(map) => {
                objects += 1;
                waiting.extend(map.values());
            }
            // Most long lists contain numbers, so skip those.
            Value::Array(list) => waiting.extend(list.iter().filter(|v| v.is_object() || v.is_array())),
            _ => {}
        }
        if objects > BODY_OBJECTS {
            return true;
        }
    }
    false
}

async fn json(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let message =
            format!("the body must be application/json, it is {}", if kind.is_empty() { "nothing" } else { kind });
        return Err(Refusal::new(415, "unsupported_media_type", message));
    }
    if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(Refusal::new(
            415,
            "unsupported_media_type",
            "the body must be sent as it is, without Content-Encoding",
        ));
    }
    let late = |_| Refusal::new(408, "request_timeout", "the body did not arrive in time");
    tokio::time::timeout(BODY, bytes_of(body)).await.map_err(late)?
}

async fn bytes_of(mut body: Body) -> Result<Vec<u8>, Refusal> {
    let too_large =
        || Refusal::new(413, "request_too_large", format!("the body is larger than {} MiB", BODY_BYTES >> 20));
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|e| Refusal::new(400, "invalid_body", format!("the body broke off: {e}")))?;
        let data: Bytes = frame.into_data().unwrap_or_default();
        if bytes.len() + data.len() > BODY_BYTES {
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

pub(super) fn object(value: &Value) -> Response {
    let mut response = Body::from(value.to_string()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The result of reading this body, and whether the connections' thread did it.
    fn read_of(body: &Value) -> Result<bool, Refusal> {
        let request = Request::builder().header(header::CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let here = std::thread::current().id();
        runtime.block_on(read(request, move |_| Ok(std::thread::current().id() == here))).map(|(_, here)| here)
    }

    #[test]
    fn a_long_body_is_read_away_from_the_connections() {
        assert_eq!(read_of(&json!({ "tokens": [1, 2, 3] })), Ok(true));
        assert_eq!(read_of(&json!({ "tokens": vec![1; LONG_BYTES] })), Ok(false));
    }

    #[test]
    fn half_of_a_character_is_called_so() {
        for text in [r#"{"a": "\ud83d"}"#, r#"{"a": "\ud83d\n"}"#, r#"{"a": "\ude00"}"#, r#"{"a": "\ud83d\u0041"}"#] {
            let refusal = parse(text.as_bytes()).unwrap_err();
            assert!(refusal.message.contains("half of a surrogate pair"), "{text}: {}", refusal.message);
        }
        assert!(parse(r#"{"a": "\ud83d\ude00"}"#.as_bytes()).is_ok());
        let other = parse(br#"{"a": "\u12"}"#).unwrap_err();
        assert!(other.message.starts_with("the body is not JSON: "), "{}", other.message);
    }

    #[test]
    fn a_body_of_too_many_objects_is_refused_however_they_are_nested() {
        let parts = |count: usize| vec![json!({ "type": "text" }); count];
        let most = json!({ "messages": [{ "content": parts(BODY_OBJECTS - 2) }] });
        assert_eq!(read_of(&most), Ok(false));
        for body in [
            json!({ "messages": [{ "content": parts(BODY_OBJECTS - 1) }] }),
            json!({ "messages": [[[parts(BODY_OBJECTS)]]] }),
            json!({ "messages": parts(BODY_OBJECTS) }),
        ] {
            let refusal = read_of(&body).unwrap_err();
            assert_eq!((refusal.status, refusal.code), (413, "request_too_large"));
            assert!(refusal.message.contains("100000"), "{}", refusal.message);
        }
    }
}
