//! Answers on their way from the worker to a client: their events, what they add up to, and how they are written: whole
//! as one object, or as a stream of events, in the form of each API.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::request::Ends;
use super::{Call, Family, Refusal, Result, object};
use crate::core::transcript::Finish;
use crate::engine::protocol::{Cancel, Likely, Token};

/// Bytes of text that a slow reader may leave unread; beyond that its answer ends.
const UNREAD_BYTES: usize = 4 << 20;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Whole {
    pub finish: Finish,
    pub stopped_by: Option<String>,
    /// Of this answer, without the prompt.
    pub usage: Usage,
    /// Complete calls of functions in it.
    pub calls: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct LikelyToken {
    pub token: Token,
    pub likely: Likely,
    pub thought: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Notice {
    /// Log-probabilities of the prompt's tokens; the first token has none.
    Scored {
        tokens: Vec<Token>,
        likely: Vec<Likely>,
    },
    /// Progress of the prefill, in tokens.
    Reading {
        done: u64,
        total: u64,
    },
    /// An event of one of the request's answers, by its number.
    Answer(usize, Event),
    Failed(Refusal),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// Prefill begins: the first event, with the tokens of the prompt.
    Begun(Usage),
    Thoughts(String),
    /// More text, and tokens whether or not they completed some.
    Text(String, Vec<LikelyToken>),
    Calling {
        id: String,
        name: String,
    },
    /// More of the call's arguments, a piece of JSON.
    Arguments(String),
    Call(Call),
    Ended(Whole),
}

impl Notice {
    fn bytes(&self) -> usize {
        let Notice::Answer(_, event) = self else { return 0 };
        match event {
            Event::Text(text, tokens) => {
                let token = |t: &LikelyToken| size_of::<LikelyToken>() + size_of_val(t.likely.best.as_slice());
                text.len() + tokens.iter().map(token).sum::<usize>()
            }
            Event::Thoughts(text) | Event::Arguments(text) => text.len(),
            Event::Call(call) => call.text().len(),
            Event::Begun(_) | Event::Calling { .. } | Event::Ended(_) => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub thought_tokens: u64,
    /// Milliseconds of prefill and of decode.
    pub prompt_ms: f64,
    pub predicted_ms: f64,
    pub drafted_tokens: u64,
    pub accepted_tokens: u64,
}

impl Usage {
    pub(super) fn add(&mut self, other: &Usage) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.completion_tokens += other.completion_tokens;
        self.thought_tokens += other.thought_tokens;
        self.prompt_ms += other.prompt_ms;
        self.predicted_ms += other.predicted_ms;
        self.drafted_tokens += other.drafted_tokens;
        self.accepted_tokens += other.accepted_tokens;
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Thoughts(String),
    Text(String),
    Call(Call),
}

/// An answer, as far as its events have arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub items: Vec<Item>,
    pub tokens: Vec<LikelyToken>,
    /// The function of the open call, or of the last one.
    pub calling: String,
    pub whole: Option<Whole>,
}

impl Choice {
    pub(super) fn take(&mut self, event: &Event) {
        match (event, self.items.last_mut()) {
            (Event::Thoughts(text), Some(Item::Thoughts(before))) => before.push_str(text),
            (Event::Thoughts(text), _) => self.items.push(Item::Thoughts(text.clone())),
            (Event::Text(text, tokens), last) => {
                match last {
                    Some(Item::Text(before)) => before.push_str(text),
                    _ if text.is_empty() => {}
                    _ => self.items.push(Item::Text(text.clone())),
                }
                self.tokens.extend_from_slice(tokens);
            }
            (Event::Call(call), _) => self.items.push(Item::Call(call.clone())),
            (Event::Ended(whole), _) => self.whole = Some(whole.clone()),
            (Event::Calling { name, .. }, _) => self.calling.clone_from(name),
            (Event::Begun(_) | Event::Arguments(_), _) => {}
        }
    }

    pub(super) fn thinking(&self) -> String {
        let thoughts = |item: &Item| if let Item::Thoughts(text) = item { Some(text.clone()) } else { None };
        self.items.iter().filter_map(thoughts).collect()
    }

    pub(super) fn answer(&self) -> String {
        let text = |item: &Item| if let Item::Text(text) = item { Some(text.clone()) } else { None };
        self.items.iter().filter_map(text).collect()
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.items.iter().filter_map(|item| if let Item::Call(call) = item { Some(call) } else { None })
    }
}

/// All answers to a request, as far as their events have arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct Collected {
    pub usage: Usage,
    /// Tokens of the prompt and the log-probabilities of all but the first, if the request asks for them.
    pub scored: Option<(Vec<Token>, Vec<Likely>)>,
    pub choices: Vec<Choice>,
}

impl Collected {
    pub(super) fn new(wanted: usize) -> Collected {
        Collected { choices: vec![Choice::default(); wanted], ..Collected::default() }
    }

    pub(super) fn take(&mut self, index: usize, event: &Event) {
        match event {
            // The prompt of several answers counts once.
            Event::Begun(usage) if index == 0 => self.usage.add(usage),
            Event::Ended(whole) => self.usage.add(&whole.usage),
            _ => {}
        }
        self.choices.get_mut(index).into_iter().for_each(|choice| choice.take(event));
    }

    pub(super) fn is_over(&self) -> bool {
        self.choices.iter().all(|choice| choice.whole.is_some())
    }
}

pub(super) async fn collect(mut listener: Listener) -> Result<Collected> {
    let mut all = Collected::new(listener.wanted);
    while !all.is_over() {
        match listener.next().await.ok_or_else(Refusal::broke_off)? {
            Notice::Scored { tokens, likely } => all.scored = Some((tokens, likely)),
            Notice::Reading { .. } => {}
            Notice::Answer(index, event) => all.take(index, &event),
            Notice::Failed(refusal) => return Err(refusal),
        }
    }
    Ok(all)
}

/// The worker's end of the channel. Never blocks.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    to: UnboundedSender<Notice>,
    unread: Arc<AtomicUsize>,
}

impl Reporter {
    /// Sends an event; false when the reader is gone or too slow.
    pub(super) fn report(&self, notice: Notice) -> bool {
        let bytes = notice.bytes();
        let unread = self.unread.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.to.send(notice).is_ok() && unread <= UNREAD_BYTES
    }
}

/// The connection's end. Dropping it ends the answer within a round.
pub(super) struct Listener {
    from: UnboundedReceiver<Notice>,
    unread: Arc<AtomicUsize>,
    _ends: Ends,
    /// The number of answers.
    pub wanted: usize,
}

impl Listener {
    pub(super) fn pair(cancel: &Cancel, wanted: usize) -> (Reporter, Listener) {
        let (to, from) = unbounded_channel();
        let unread = Arc::new(AtomicUsize::new(0));
        let reporter = Reporter { to, unread: Arc::clone(&unread) };
        (reporter, Listener { from, unread, _ends: Ends(cancel.clone()), wanted })
    }

    pub(super) async fn next(&mut self) -> Option<Notice> {
        let notice = self.from.recv().await?;
        self.unread.fetch_sub(notice.bytes(), Ordering::Relaxed);
        Some(notice)
    }
}

/// Interval of comments that report the progress of the prefill: some clients count lines without data, and give up.
const PROGRESS: Duration = Duration::from_secs(5);

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

    /// The next frame; `None` after the end.
    async fn frame(mut self) -> Option<(Result<Bytes, Infallible>, Events<F>)> {
        let mut out = String::new();
        while !self.ended && out.is_empty() {
            let notice = match self.first.take() {
                None => self.listener.next().await,
                first => first,
            };
            self.write(notice, &mut out);
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
    use futures_util::FutureExt;

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

    #[test]
    fn a_slow_or_absent_reader_ends_the_answer() {
        let cancel = Cancel::default();
        let (reporter, mut listener) = Listener::pair(&cancel, 1);
        let text = |bytes| Notice::Answer(0, Event::Text("x".repeat(bytes), Vec::new()));
        assert!(reporter.report(text(UNREAD_BYTES)));
        assert!(!reporter.report(text(1)));
        assert!(listener.next().now_or_never().flatten().is_some());
        assert!(reporter.report(text(1)));
        assert!(!cancel.is_cancelled());
        drop(listener);
        assert!(cancel.is_cancelled() && !reporter.report(text(1)));
    }
}
