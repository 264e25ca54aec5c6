//! Why a request is refused: a status, a sentence, and the field in question, in the form of each API.

use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub(super) type Result<T, E = Refusal> = std::result::Result<T, E>;

/// The client disconnected. Not part of HTTP: only the counters show it.
pub(super) const CLIENT_GONE: u16 = 499;

/// Anthropic's clients that rely on conversations stored by the server send all messages after this error.
pub(super) const THREAD: &str = "thread_unsupported_request";

/// Maximum characters of an error's message, or of the name in it: the client's value may be as long as a body.
const MOST_CHARACTERS: usize = 1_000;

fn clipped(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()).into(),
        None => text.into(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub status: u16,
    pub code: &'static str,
    pub param: Option<String>,
    /// A sentence with the cause and the remedy.
    pub message: String,
    /// In place of the message in Anthropic's form: words that its clients search for.
    pub anthropic: Option<String>,
}

/// The API of a request: each has its own form of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    OpenAi,
    Anthropic,
}

impl Family {
    pub(super) fn of(path: &str, headers: &HeaderMap) -> Family {
        let is_anthropic = path.starts_with("/v1/messages") || headers.contains_key(super::VERSION);
        if is_anthropic { Family::Anthropic } else { Family::OpenAi }
    }
}

impl Refusal {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { status, code, param: None, message: message.into(), anthropic: None }
    }

    pub(super) fn field(param: impl Into<String>, message: impl Into<String>) -> Refusal {
        Refusal::new(400, "invalid_value", message).about(param)
    }

    pub(super) fn about(self, param: impl Into<String>) -> Refusal {
        Refusal { param: Some(param.into()), ..self }
    }

    pub(super) fn unsupported(self) -> Refusal {
        Refusal { code: "unsupported_parameter", ..self }
    }

    pub(super) fn internal(message: impl Into<String>) -> Refusal {
        Refusal::new(500, "internal_error", message)
    }

    /// The server's shutdown ended the answer.
    pub(super) fn broke_off() -> Refusal {
        Refusal::new(503, "shutting_down", "the answer broke off: the server is ending")
    }

    pub(super) fn gone() -> Refusal {
        Refusal::new(CLIENT_GONE, "client_closed_request", "the client went away")
    }

    fn kind(&self, family: Family) -> &'static str {
        match (family, self.status) {
            (_, 401) => "authentication_error",
            (_, 403) => "permission_error",
            (Family::Anthropic, 404) => "not_found_error",
            (Family::Anthropic, 413) => "request_too_large",
            (_, 429) => "rate_limit_error",
            (Family::Anthropic, 503) => "overloaded_error",
            (Family::OpenAi, 503) => "service_unavailable_error",
            (Family::Anthropic, 500..) => "api_error",
            (Family::OpenAi, 500..) => "server_error",
            _ => "invalid_request_error",
        }
    }

    pub(super) fn to_json(&self, family: Family) -> Value {
        let kind = self.kind(family);
        match family {
            Family::OpenAi => json!({
                "error": {
                    "message": clipped(&self.message),
                    "type": kind,
                    "param": self.param.as_deref().map(clipped),
                    "code": self.code,
                }
            }),
            Family::Anthropic => {
                let message = match (&self.anthropic, &self.param) {
                    (Some(message), _) => message.clone(),
                    (None, Some(param)) if !self.message.contains(param.as_str()) => {
                        format!("{param}: {}", self.message)
                    }
                    (None, _) => self.message.clone(),
                };
                let message = clipped(&message);
                let mut error = json!({ "type": kind, "message": message });
                if self.code == THREAD {
                    error["details"] = json!({ "error_code": THREAD, "unsupported": [self.param] });
                }
                json!({ "type": "error", "error": error, "request_id": null })
            }
        }
    }

    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(super) fn respond(&self, family: Family) -> Response {
        let mut response = (self.status(), Json(self.to_json(family))).into_response();
        let headers = response.headers_mut();
        if self.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Some clients repeat a request whatever its status.
        if (400..500).contains(&self.status) && !matches!(self.status, 408 | 409 | 429) {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if matches!(self.status, 429 | 503) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Carries the refusal to the outermost layer ([`super::http`]), which writes it in the form of the path's API.
impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}
