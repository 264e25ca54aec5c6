//! From the worker's events to a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde_json::Value;

use super::collected::BROKE_OFF;
use super::notice::{Listener, Notice};
use super::refusal::Refusal;

/// Interval of comments that report the progress of the prefill: some clients count lines without data, and give up.
const PROGRESS: Duration = Duration::from_secs(5);
/// Bytes of one frame of a stream; more text starts the next frame.
const FRAME_BYTES: usize = 16 << 10;

pub(super) trait Form: Send + Unpin + 'static {
    /// Writes an event; true after the last one.
    fn notice(&mut self, notice: &Notice, out: &mut String) -> bool;
    fn failed(&mut self, refusal: &Refusal, out: &mut String);
}

/// An event without a name.
pub(super) fn data(out: &mut String, value: &Value) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// The end mark of a stream.
pub(super) fn data_done(out: &mut String) {
    out.push_str("data: [DONE]\n\n");
}

/// An event with a name, which its data repeats as `type`.
pub(super) fn event(out: &mut String, name: &str, mut value: Value) {
    if let Some(map) = value.as_object_mut() {
        map.insert("type".into(), name.into());
    }
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    data(out, &value);
}

struct Events<F> {
    listener: Listener,
    form: F,
    first: Option<Notice>,
    ended: bool,
    /// The time of the start, or of the last comment.
    commented: Instant,
}

impl<F: Form> Events<F> {
    fn write(&mut self, notice: Option<&Notice>, out: &mut String) {
        self.ended = match notice {
            None => {
                self.form.failed(&Refusal::new(503, "shutting_down", BROKE_OFF), out);
                true
            }
            Some(Notice::Failed(refusal)) => {
                self.form.failed(refusal, out);
                true
            }
            Some(Notice::Reading { done, total }) => {
                if self.commented.elapsed() >= PROGRESS {
                    // No empty line after it: that would be an event without data.
                    out.push_str(&format!(": read {done} of {total}\n"));
                    self.commented = Instant::now();
                }
                false
            }
            Some(notice) => self.form.notice(notice, out),
        };
    }
}

impl<F: Form> hyper::body::Body for Events<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut out = String::new();
        if let Some(first) = self.first.take() {
            self.write(Some(&first), &mut out);
        }
        while !self.ended && out.len() < FRAME_BYTES {
            match self.listener.poll_next(context) {
                Poll::Ready(notice) => self.write(notice.as_ref(), &mut out),
                Poll::Pending if out.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        match out.is_empty() {
            true => Poll::Ready(None),
            false => Poll::Ready(Some(Ok(Frame::data(out.into())))),
        }
    }
}

/// A stream of events; a failure before the first event has an HTTP status of its own.
pub(super) async fn stream(mut listener: Listener, form: impl Form) -> Result<Response, Refusal> {
    let first = match listener.next().await {
        Some(Notice::Failed(refusal)) => return Err(refusal),
        Some(notice) => notice,
        None => return Err(Refusal::new(503, "shutting_down", BROKE_OFF)),
    };
    let events = Events { listener, form, first: Some(first), ended: false, commented: Instant::now() };
    let mut response = Body::new(events).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::Cancel;

    /// Writes nothing, and ends with the first event.
    struct Silent;

    impl Form for Silent {
        fn notice(&mut self, _: &Notice, _: &mut String) -> bool {
            true
        }

        fn failed(&mut self, _: &Refusal, _: &mut String) {}
    }

    #[test]
    fn progress_of_the_prefill_is_a_comment_now_and_then() {
        let (_teller, listener) = Listener::pair(&Cancel::default());
        let mut events = Events { listener, form: Silent, first: None, ended: false, commented: Instant::now() };
        let mut written = |commented: Option<Instant>, done| {
            events.commented = commented.unwrap_or(events.commented);
            let mut out = String::new();
            events.write(Some(&Notice::Reading { done, total: 9 }), &mut out);
            out
        };
        assert_eq!(written(None, 1), "");
        let long_ago = Instant::now().checked_sub(PROGRESS);
        assert_eq!(written(Some(long_ago.unwrap()), 2), ": read 2 of 9\n");
        assert_eq!(written(None, 3), "");
    }
}
