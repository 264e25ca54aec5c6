//! From words of the worker to a response: one object, or a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde_json::Value;

use super::ask::{Ask, Listener, Prompt, Said, Told, Whole, Wish};
use super::prompt::{Call, Conversation};
use super::records::Record;
use super::refusal::Refusal;
use super::{EngineIs, Phase, Shared, files};
use crate::desk::render::Rendered;
use crate::protocol::engine::{Cancel, Constraint, Likely, ModelInfo, Token};
use crate::text::Begin;
use crate::text::grammar::Grammar;
use crate::text::schema::Unusable;
use crate::transcript::Finish;

/// A comment tells whoever waits that reading goes on, so often: some clients count lines that are no data, and give up.
const PROGRESS: Duration = Duration::from_secs(5);
/// Bytes of one frame of a stream; more goes into the next.
const FRAME_BYTES: usize = 16 << 10;

/// The model, if it can answer.
pub(super) fn model(shared: &Shared) -> Result<ModelInfo, Refusal> {
    match shared.engine() {
        EngineIs::Ready(info) => Ok(*info),
        EngineIs::Loading { what, done } => {
            Err(Refusal::new(503, "model_loading", format!("the model is being loaded: {what}, {:.0} %", done * 100.0)))
        }
        EngineIs::Down(down) => Err(Refusal::internal(down.why)),
    }
}

/// The model, if it is the one that a request names.
pub(super) fn model_named(shared: &Shared, name: Option<String>) -> Result<ModelInfo, Refusal> {
    let model = model(shared)?;
    match name {
        Some(name) if !name.eq_ignore_ascii_case(&model.name) && name != "default" => {
            let message = format!("there is no model {name} here, only {} (or default)", model.name);
            let mut refusal = Refusal::new(404, "model_not_found", message);
            refusal.param = Some("model".into());
            Err(refusal)
        }
        _ => Ok(model),
    }
}

/// Puts the documents in that are named, and renders, on a thread of its own: a conversation may be as long as the context.
pub(super) async fn render(
    shared: &Arc<Shared>,
    mut conversation: Conversation,
    field: &'static str,
) -> Result<Prompt, Refusal> {
    let shared = Arc::clone(shared);
    let of_library = conversation.turns.iter().any(|t| !t.files.is_empty());
    let rendered = tokio::task::spawn_blocking(move || {
        if of_library {
            files::put_in(&shared, &mut conversation, field)?;
        }
        conversation.render(&shared.renderer, field)
    });
    let rendered = rendered.await.map_err(|_| Refusal::internal("internal error while the messages were rendered"))?;
    Ok(Prompt { rendered: Arc::new(rendered?), tokens: None, of_library, field })
}

/// What keeps the answer to a rendered prompt to the grammar that a field asks for, tried in a process and compiled on a thread of
/// its own; without one, and where no function may be called, what keeps its quotes to the text.
pub(super) async fn constraint(
    shared: &Arc<Shared>,
    grammar: Option<(Grammar, &'static str)>,
    wish: &Wish,
    rendered: &Rendered,
) -> Result<Option<Constraint>, Refusal> {
    let Some((grammar, field)) = grammar else {
        let text = shared.renderer.model();
        let quoting = text.recommended.quoting().filter(|_| wish.calls.is_none());
        return Ok(quoting.map(|quoting| quoting.clone().constraint(&text.tokenizer, &shared.stop_ids)));
    };
    let (shared, begin) = (Arc::clone(shared), Begin::after_prompt(&rendered.text));
    // Never closed.
    let turn = Arc::clone(&shared.compiling).acquire_owned().await.ok();
    let compile = move || {
        // Also where the client has gone meanwhile: until it is done.
        let _turn = turn;
        let refused = |why| Refusal::field(field, format!("{field}: {why}"));
        let none = |why| Refusal::internal(format!("no answer can be kept to a grammar: {why}"));
        let grammars = shared.grammars().map_err(none)?;
        shared.schemas.check(&grammar).map_err(|unusable| match unusable {
            Unusable::Refused(why) => refused(why),
            Unusable::Untried(why) => none(why),
        })?;
        grammars.constraint(&grammar, begin).map_err(refused)
    };
    let compiled = tokio::task::spawn_blocking(compile).await;
    compiled.map_err(|_| Refusal::internal("internal error while a grammar was compiled"))?.map(Some)
}

/// Puts the question of a request into the queue.
pub(super) fn submit(
    shared: &Shared,
    prompt: Prompt,
    wish: Wish,
    wanted: usize,
    record: Option<Record>,
) -> Result<Listener, Refusal> {
    put(shared, prompt, wish, wanted, record, shared.queue)
}

/// Puts another question of a request into it that was let in with its first one, however many wait by now.
pub(super) fn submit_further(shared: &Shared, prompt: Prompt, wish: Wish, wanted: usize) -> Result<Listener, Refusal> {
    put(shared, prompt, wish, wanted, None, usize::MAX)
}

fn put(
    shared: &Shared,
    prompt: Prompt,
    wish: Wish,
    wanted: usize,
    record: Option<Record>,
    most: usize,
) -> Result<Listener, Refusal> {
    if *shared.phase.borrow() > Phase::Serving {
        return Err(Refusal::new(503, "shutting_down", "the server is ending"));
    }
    let taken = shared.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1));
    if taken.is_err() {
        let message = format!("{most} requests wait already (serve.queue); try again later");
        return Err(Refusal::new(429, "queue_full", message));
    }
    let cancel = Cancel::default();
    let (to, listener) = Listener::pair(&cancel);
    let ask = Ask { prompt, wish, wanted, index: 0, record, keep: true, cancel, to, asked: Instant::now() };
    match shared.asks.send(ask) {
        Ok(()) => Ok(listener),
        Err(_) => Err(Refusal::new(503, "shutting_down", "the server is ending")),
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Thoughts(String),
    Text(String),
    Call(Call),
}

/// One of the answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// In the order in which they were written.
    pub items: Vec<Item>,
    /// Its tokens, where that was asked for.
    pub tokens: Vec<Told>,
    pub whole: Option<Whole>,
}

impl Choice {
    /// Takes in what was said of this answer.
    pub(super) fn take(&mut self, said: &Said) {
        match said {
            Said::Text { thinking, answer, tokens, .. } => {
                self.add(thinking, answer);
                self.tokens.extend_from_slice(tokens);
            }
            Said::Call { call, .. } => self.items.push(Item::Call(call.clone())),
            Said::Ended { whole, .. } => self.whole = Some(whole.clone()),
            Said::Begun { .. }
            | Said::Scored { .. }
            | Said::Reading { .. }
            | Said::Calling { .. }
            | Said::Arguments { .. }
            | Said::Failed(_) => {}
        }
    }

    /// More thoughts, and more text behind them.
    pub(super) fn add(&mut self, thinking: &str, answer: &str) {
        match self.items.last_mut() {
            _ if thinking.is_empty() => {}
            Some(Item::Thoughts(before)) => before.push_str(thinking),
            _ => self.items.push(Item::Thoughts(thinking.to_owned())),
        }
        match self.items.last_mut() {
            _ if answer.is_empty() => {}
            Some(Item::Text(before)) => before.push_str(answer),
            _ => self.items.push(Item::Text(answer.to_owned())),
        }
    }

    /// All its thoughts.
    pub(super) fn thinking(&self) -> String {
        let one = |item: &Item| if let Item::Thoughts(text) = item { text.clone() } else { String::new() };
        self.items.iter().map(one).collect()
    }

    /// All its text.
    pub(super) fn answer(&self) -> String {
        let one = |item: &Item| if let Item::Text(text) = item { text.clone() } else { String::new() };
        self.items.iter().map(one).collect()
    }

    /// The calls in it.
    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.items.iter().filter_map(|item| if let Item::Call(call) = item { Some(call) } else { None })
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Collected {
    pub usage: Usage,
    /// Tokens of the prompt and how likely all but the first were, where that was asked for.
    pub scored: Option<(Vec<Token>, Vec<Likely>)>,
    pub choices: Vec<Choice>,
}

/// What was read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub thought_tokens: u64,
}

impl Usage {
    /// Takes in what was said. The prompt of several answers counts once.
    pub(super) fn take(&mut self, said: &Said) {
        match said {
            Said::Begun { index: 0, prompt_tokens, cached_tokens } => {
                (self.prompt_tokens, self.cached_tokens) = (*prompt_tokens, *cached_tokens);
            }
            Said::Ended { whole, .. } => {
                self.completion_tokens += whole.completion_tokens;
                self.thought_tokens += whole.thought_tokens;
            }
            Said::Begun { .. }
            | Said::Scored { .. }
            | Said::Reading { .. }
            | Said::Text { .. }
            | Said::Calling { .. }
            | Said::Arguments { .. }
            | Said::Call { .. }
            | Said::Failed(_) => {}
        }
    }
}

impl Usage {
    /// Adds another prompt's.
    pub(super) fn add(&mut self, other: &Usage) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.completion_tokens += other.completion_tokens;
        self.thought_tokens += other.thought_tokens;
    }
}

/// Said where an answer ends that nobody stopped.
pub(super) const BROKE_OFF: &str = "the answer broke off: the server is ending";

/// Waits for all answers. An answer that was given up is an error.
pub(super) async fn collect(mut listener: Listener, wanted: usize) -> Result<Collected, Refusal> {
    let mut all = Collected { choices: vec![Choice::default(); wanted], ..Collected::default() };
    let mut ended = 0;
    while ended < wanted {
        let said = listener.next().await.ok_or_else(|| Refusal::new(503, "shutting_down", BROKE_OFF))?;
        all.usage.take(&said);
        if let Said::Ended { whole, .. } = &said {
            if whole.finish == Finish::Stopped {
                return Err(Refusal::new(503, "shutting_down", BROKE_OFF));
            }
            ended += 1;
        }
        match said {
            Said::Scored { tokens, likely } => all.scored = Some((tokens, likely)),
            Said::Failed(refusal) => return Err(refusal),
            Said::Text { index, .. } | Said::Call { index, .. } | Said::Ended { index, .. } => {
                if let Some(choice) = all.choices.get_mut(index) {
                    choice.take(&said);
                }
            }
            Said::Begun { .. } | Said::Reading { .. } | Said::Calling { .. } | Said::Arguments { .. } => {}
        }
    }
    Ok(all)
}

/// How the events of an API look.
pub(super) trait Form: Send + Unpin + 'static {
    /// Writes what one word means; true after the last one.
    fn said(&mut self, said: &Said, out: &mut String) -> bool;
    /// Writes that it failed after the stream had begun.
    fn failed(&mut self, refusal: &Refusal, out: &mut String);
}

/// An event without a name.
pub(super) fn data(out: &mut String, value: &Value) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// What comes after the last event.
pub(super) fn data_done(out: &mut String) {
    out.push_str("data: [DONE]\n\n");
}

/// An event with a name, which its data repeat as their type.
pub(super) fn event(out: &mut String, name: &str, mut value: Value) {
    if let Some(map) = value.as_object_mut() {
        map.insert("type".into(), name.into());
    }
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    data(out, &value);
}

/// A stream of events.
struct Events<F> {
    listener: Listener,
    form: F,
    first: Option<Said>,
    ended: bool,
    /// When it began, or the last comment was written.
    commented: Instant,
}

impl<F: Form> Events<F> {
    /// Writes what one word means.
    fn write(&mut self, said: Option<&Said>, out: &mut String) {
        self.ended = match said {
            None => {
                self.form.failed(&Refusal::new(503, "shutting_down", BROKE_OFF), out);
                true
            }
            Some(Said::Failed(refusal)) => {
                self.form.failed(refusal, out);
                true
            }
            Some(Said::Reading { done, total }) => {
                if self.commented.elapsed() >= PROGRESS {
                    // No empty line behind it: that would be an event without data.
                    out.push_str(&format!(": read {done} of {total}\n"));
                    self.commented = Instant::now();
                }
                false
            }
            Some(said) => self.form.said(said, out),
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
                Poll::Ready(said) => self.write(said.as_ref(), &mut out),
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

/// A stream of events; what fails before the first one has a status of its own.
pub(super) async fn stream(mut listener: Listener, form: impl Form) -> Result<Response, Refusal> {
    let first = match listener.next().await {
        Some(Said::Failed(refusal)) => return Err(refusal),
        Some(said) => said,
        None => return Err(Refusal::new(503, "shutting_down", BROKE_OFF)),
    };
    let events = Events { listener, form, first: Some(first), ended: false, commented: Instant::now() };
    let mut response = Body::new(events).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// An object.
pub(super) fn object(value: &Value) -> Response {
    let mut response = Body::from(value.to_string()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An id of an answer.
pub(super) fn fresh_id(prefix: &str) -> String {
    format!("{prefix}{:014x}", crate::desk::fresh_seed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes nothing, and ends with the first word.
    struct Silent;

    impl Form for Silent {
        fn said(&mut self, _: &Said, _: &mut String) -> bool {
            true
        }

        fn failed(&mut self, _: &Refusal, _: &mut String) {}
    }

    #[test]
    fn reading_is_told_now_and_then_and_is_no_event() {
        let (_teller, listener) = Listener::pair(&Cancel::default());
        let mut events = Events { listener, form: Silent, first: None, ended: false, commented: Instant::now() };
        let mut written = |commented: Option<Instant>, done| {
            events.commented = commented.unwrap_or(events.commented);
            let mut out = String::new();
            events.write(Some(&Said::Reading { done, total: 9 }), &mut out);
            out
        };
        assert_eq!(written(None, 1), "");
        let long_ago = Instant::now().checked_sub(PROGRESS);
        assert_eq!(written(Some(long_ago.unwrap()), 2), ": read 2 of 9\n");
        assert_eq!(written(None, 3), "");
    }
}
