//! How answers are written: whole as one object, or as a stream of events, in the form of each API.

use super::{Collected, Event, Family, Listener, Notice, Refusal, Result, collect, object};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;

/// Interval of comments that report the progress of the prefill: some clients count lines without data, and give up.
const PROGRESS: Duration = Duration::from_secs(5);
/// Bytes of one frame of a stream; more text starts the next frame.
const FRAME_BYTES: usize = 16 << 10;

pub(super) trait Form: Send + 'static {
    fn whole(&mut self, all: Collected) -> Value;
    /// Writes an event of the answer `index` to a stream; `all` includes it. With the last event of the last answer,
    /// writes the end of the stream.
    fn event(&mut self, index: usize, event: &Event, all: &mut Collected, out: &mut String);
    fn failed(&mut self, refusal: &Refusal, _all: &Collected, out: &mut String) {
        data(out, &refusal.to_json(Family::OpenAi));
    }
}

pub(super) fn data(out: &mut String, value: &Value) {
    out.push_str(&format!("data: {value}\n\n"));
}

pub(super) fn data_done(out: &mut String) {
    out.push_str("data: [DONE]\n\n");
}

/// Writes an event with a name, which its data repeats as `type`.
pub(super) fn event(out: &mut String, name: &str, mut value: Value) {
    value["type"] = name.into();
    out.push_str(&format!("event: {name}\n"));
    data(out, &value);
}

struct Events<F> {
    listener: Listener,
    form: F,
    all: Collected,
    first: Option<Notice>,
    ended: bool,
    /// The time of the start, or of the last comment.
    commented: Instant,
}

impl<F: Form> Events<F> {
    fn write(&mut self, notice: Option<Notice>, out: &mut String) {
        match notice.unwrap_or_else(|| Notice::Failed(Refusal::broke_off())) {
            Notice::Answer(index, event) => {
                self.all.take(index, &event);
                self.form.event(index, &event, &mut self.all, out);
                // A stream has sent them.
                self.all.choices.iter_mut().for_each(|choice| choice.tokens.clear());
                self.ended = self.all.is_over();
            }
            Notice::Failed(refusal) => {
                self.form.failed(&refusal, &self.all, out);
                self.ended = true;
            }
            Notice::Reading { done, total } if self.commented.elapsed() >= PROGRESS => {
                // No empty line after it: that would be an event without data.
                out.push_str(&format!(": read {done} of {total}\n"));
                self.commented = Instant::now();
            }
            Notice::Reading { .. } | Notice::Scored { .. } => {}
        }
    }

    /// The next frame, with everything that has arrived; `None` after the end.
    async fn frame(mut self) -> Option<(Result<Bytes, Infallible>, Events<F>)> {
        let mut out = String::new();
        while out.is_empty() && !self.ended {
            let first = self.first.take();
            let notice = if first.is_some() { first } else { self.listener.next().await };
            self.write(notice, &mut out);
            while !self.ended
                && out.len() < FRAME_BYTES
                && let Some(notice) = self.listener.ready()
            {
                self.write(Some(notice), &mut out);
            }
        }
        (!out.is_empty()).then(|| (Ok(out.into()), self))
    }
}

/// Answers a request in its form. A failure before the first event of a stream has an HTTP status of its own.
pub(super) async fn answer(mut listener: Listener, streamed: bool, mut form: impl Form) -> Result<Response> {
    if !streamed {
        return Ok(object(&form.whole(collect(listener).await?)));
    }
    let first = match listener.next().await.ok_or_else(Refusal::broke_off)? {
        Notice::Failed(refusal) => return Err(refusal),
        first => Some(first),
    };
    let all = Collected::new(listener.wanted);
    let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    let events = Events { listener, form, all, first, ended: false, commented: Instant::now() };
    Ok((headers, Body::from_stream(stream::unfold(events, Events::frame))).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::Cancel;

    struct Silent;

    impl Form for Silent {
        fn whole(&mut self, _: Collected) -> Value {
            Value::Null
        }

        fn event(&mut self, _: usize, _: &Event, _: &mut Collected, _: &mut String) {}
    }

    #[test]
    fn progress_of_the_prefill_is_a_comment_now_and_then() {
        let (_teller, listener) = Listener::pair(&Cancel::default(), 1);
        let all = Collected::new(1);
        let mut events = Events { listener, form: Silent, all, first: None, ended: false, commented: Instant::now() };
        let mut written = |commented: Option<Instant>, done| {
            events.commented = commented.unwrap_or(events.commented);
            let mut out = String::new();
            events.write(Some(Notice::Reading { done, total: 9 }), &mut out);
            out
        };
        assert_eq!(written(None, 1), "");
        let long_ago = Instant::now().checked_sub(PROGRESS);
        assert_eq!(written(Some(long_ago.unwrap()), 2), ": read 2 of 9\n");
        assert_eq!(written(None, 3), "");
    }
}
