//! JSON bodies: of a request, read, and of what is answered as one object.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use serde_json::Value;

use super::refusal::Refusal;

/// A request's body has come by then.
const BODY: Duration = Duration::from_secs(120);
/// Bytes of it: several times what the longest context takes.
pub(super) const BODY_BYTES: usize = 32 << 20;
/// A body longer than this is parsed on a thread of its own.
const LONG_BYTES: usize = 64 << 10;

/// Reads a JSON body.
pub(super) async fn json(headers: &HeaderMap, body: Body) -> Result<Value, Refusal> {
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
    let bytes = match tokio::time::timeout(BODY, bytes_of(body)).await {
        Ok(bytes) => bytes?,
        Err(_) => return Err(Refusal::new(408, "request_timeout", "the body did not come in time")),
    };
    let long = bytes.len() > LONG_BYTES;
    let broken = || Refusal::internal("internal error while the body was read");
    let parse = move || serde_json::from_slice(&bytes);
    // Reading a long one would keep all other connections waiting.
    let parsed = if long { tokio::task::spawn_blocking(parse).await.map_err(|_| broken())? } else { parse() };
    parsed.map_err(|e| Refusal::new(400, "invalid_json", format!("the body is not JSON: {e}")))
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

/// An object.
pub(super) fn object(value: &Value) -> Response {
    let mut response = Body::from(value.to_string()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
