//! From a read request to the worker's queue: its prompt is rendered, its grammar compiled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::routing::{MethodRouter, post};
use tokio::sync::Semaphore;

use super::stream::Reporter;
use super::stream::answer;
use super::{
    Conversation, Fields, Form, Format, Listener, Params, Phase, Record, Refusal, Result, Shared, blocking, files,
    own_data, request,
};
use crate::engine::protocol::{Cancel, Constraint, Token};
use crate::runtime::render::Rendered;
use crate::text::schema::Unusable;
use crate::text::{Before, Begin, quotes};

/// Grammars that compile at a time: fewer than the rendering threads, so that requests without one do not wait.
static COMPILERS: Semaphore = Semaphore::const_new(2);

#[derive(Clone, Debug)]
pub(super) struct Prompt {
    /// Its text, special tokens as literals, and where state is worth keeping.
    pub rendered: Arc<Rendered>,
    /// Tokens from the client, used unchanged. Only state of exactly these tokens matches.
    pub tokens: Option<Arc<Vec<Token>>>,
    pub of_library: bool,
    pub field: &'static str,
}

#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub prompt: Prompt,
    pub params: Params,
    /// Which of its answers this is.
    pub index: usize,
    pub record: Option<Record>,
    pub keep: bool,
    pub cancel: Cancel,
    pub to: Reporter,
    pub since: Instant,
}

impl Ask {
    /// Whether kept state is found by its text, and worth keeping for others.
    pub(super) fn is_text(&self) -> bool {
        self.prompt.tokens.is_none() && self.params.score.is_none()
    }

    /// Splits a request into one per answer: they run concurrently. A prompt to be scored is read once before.
    pub(super) fn each(self) -> Vec<Ask> {
        if self.params.score.is_some() {
            return vec![self];
        }
        let other = |index| Ask { index, record: None, ..self.clone() };
        let others: Vec<Ask> = (1..self.params.wanted).map(other).collect();
        std::iter::once(self).chain(others).collect()
    }
}

/// Inserts the named documents and renders. This and the next two take time: a conversation may fill the context.
pub(super) fn render(shared: &Shared, mut conversation: Conversation) -> Result<Prompt> {
    let (field, of_library) = (conversation.field, conversation.turns.iter().any(|t| !t.files.is_empty()));
    if of_library {
        own_data()?;
        files::put_in(shared, &mut conversation)?;
    }
    let rendered = Arc::new(conversation.render(&shared.renderer)?);
    Ok(Prompt { rendered, tokens: None, of_library, field })
}

/// Tokenizes a rendered prompt, after the start token if `start` is set.
pub(super) fn encode(shared: &Shared, text: &str, start: bool) -> Result<Vec<Token>> {
    let tokenizer = &shared.renderer.model().tokenizer;
    let tokens = if start { tokenizer.encode_prompt(text) } else { tokenizer.encode_after(text, Before::Edge) };
    tokens.map_err(|e| Refusal::internal(e.to_string()))
}

pub(super) fn count(shared: &Shared, conversation: Conversation) -> Result<usize> {
    Ok(encode(shared, &render(shared, conversation)?.rendered.text, true)?.len())
}

/// The constraint for the answer to a rendered prompt: a field's grammar, tried in a process and compiled on a thread
/// of its own. Without a grammar and without callable functions, the constraint restricts quotes to verbatim text.
pub(super) async fn constraint(
    shared: &Arc<Shared>,
    format: Format,
    params: &Params,
    rendered: &Rendered,
) -> Result<Option<Constraint>> {
    let Some((grammar, field)) = format else {
        let text = shared.renderer.model();
        let quoting = text.recommended.quoting.as_ref().filter(|_| params.calls.is_none());
        return Ok(quoting.map(|quoting| quotes::constraint(quoting, &text.tokenizer, &shared.options.stop)));
    };
    let (shared, begin) = (Arc::clone(shared), Begin::after_prompt(&rendered.text));
    // The semaphore is never closed.
    let turn = COMPILERS.acquire().await.ok();
    let compile = move || {
        // Held until the compiler is done, even if the client disconnects.
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
    blocking(compile).await.map(Some)
}

/// A request for answers, as each API reads it.
pub(super) struct Received {
    pub conversation: Conversation,
    pub params: Params,
    /// Of the answer, unless it must be a call.
    pub format: Format,
    pub record: Option<Record>,
}

/// A path that answers requests: `read` gives the form of the answer, too.
pub(super) fn answers<F: Form>(read: fn(&Shared, Fields) -> Result<(Received, F)>) -> MethodRouter<Arc<Shared>> {
    let rendered = move |shared: &Shared, fields: Fields| {
        let (Received { conversation, mut params, format, record }, form) = read(shared, fields)?;
        (params.calls, params.one_call) = (conversation.tools.calls(), conversation.tools.one_call);
        params.thinking_budget = conversation.thinking.budget.unwrap_or(params.thinking_budget);
        let format = conversation.tools.grammar().map(|grammar| (grammar, "tools")).or(format);
        Ok((render(shared, conversation)?, params, format, record, form))
    };
    post(move |State(shared): State<Arc<Shared>>, request: Request| async move {
        let (prompt, mut params, format, record, form) = request::read(&shared, request, rendered).await?;
        params.constraint = constraint(&shared, format, &params, &prompt.rendered).await?;
        let streamed = params.streamed;
        answer(submit(&shared, prompt, params, record, shared.options.serve.queue)?, streamed, form).await
    })
}

/// Queues a prompt unless `most` requests wait; a further prompt of an accepted request has no such limit.
pub(super) fn submit(
    shared: &Shared,
    prompt: Prompt,
    params: Params,
    record: Option<Record>,
    most: usize,
) -> Result<Listener> {
    let ending = || Refusal::new(503, "shutting_down", "the server is ending");
    if *shared.phase.borrow() > Phase::Serving {
        return Err(ending());
    }
    let taken = shared.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1));
    if taken.is_err() {
        let message = format!("{most} requests wait already (serve.queue); try again later");
        return Err(Refusal::new(429, "queue_full", message));
    }
    let cancel = Cancel::default();
    let (to, listener) = Listener::pair(&cancel, params.wanted);
    let ask = Ask { prompt, params, index: 0, record, keep: true, cancel, to, since: Instant::now() };
    shared.asks.send(Some(ask)).map(|()| listener).map_err(|_| ending())
}
