//! From a read request to the worker's queue: its prompt is rendered, its grammar compiled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{MethodRouter, post};

use super::context::{blocking, own_data};
use super::fields::Fields;
use super::notice::{Listener, Reporter};
use super::params::Params;
use super::prompt::Conversation;
use super::records::Record;
use super::refusal::Refusal;
use super::sampling::Format;
use super::stream::{Form, answer};
use super::{Phase, Shared, files, request};
use crate::engine::protocol::{Cancel, Constraint, Token};
use crate::runtime::render::Rendered;
use crate::text::schema::Unusable;
use crate::text::{Before, Begin, quotes};

#[derive(Clone, Debug)]
pub(super) struct Prompt {
    /// Its text, special tokens as literals, and where state is worth keeping.
    pub rendered: Arc<Rendered>,
    /// Tokens from the client, used unchanged. Only state of exactly these tokens matches.
    pub tokens: Option<Arc<Vec<Token>>>,
    pub of_library: bool,
    /// Its field in the request, for errors.
    pub field: &'static str,
}

#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub prompt: Prompt,
    pub params: Params,
    /// The number of answers, and which of them this is.
    pub wanted: usize,
    pub index: usize,
    pub record: Option<Record>,
    pub keep: bool,
    pub cancel: Cancel,
    pub to: Reporter,
    pub since: Instant,
}

impl Ask {
    /// Splits a request into one per answer: they run concurrently.
    pub(super) fn each(self) -> Vec<Ask> {
        let others: Vec<Ask> = (1..self.wanted).map(|index| Ask { index, record: None, ..self.clone() }).collect();
        std::iter::once(self).chain(others).collect()
    }
}

/// Inserts the named documents and renders, on a thread of its own: a conversation may be as long as the context.
pub(super) async fn render(
    shared: &Arc<Shared>,
    mut conversation: Conversation,
    field: &'static str,
) -> Result<Prompt, Refusal> {
    let shared = Arc::clone(shared);
    let of_library = conversation.turns.iter().any(|t| !t.files.is_empty());
    if of_library {
        own_data()?;
    }
    let rendered = blocking(move || {
        if of_library {
            files::put_in(&shared, &mut conversation, field)?;
        }
        conversation.render(&shared.renderer, field)
    });
    Ok(Prompt { rendered: Arc::new(rendered.await?), tokens: None, of_library, field })
}

/// Tokenizes a rendered prompt on a thread of its own, after the start token if `start` is set.
pub(super) async fn encode(shared: &Arc<Shared>, text: String, start: bool) -> Result<Vec<Token>, Refusal> {
    let shared = Arc::clone(shared);
    let encode = move || {
        let tokenizer = &shared.renderer.model().tokenizer;
        let tokens = if start { tokenizer.encode_prompt(&text) } else { tokenizer.encode_after(&text, Before::Edge) };
        tokens.map_err(|e| Refusal::internal(e.to_string()))
    };
    blocking(encode).await
}

/// The tokens of a conversation's prompt.
pub(super) async fn count(
    shared: &Arc<Shared>,
    conversation: Conversation,
    field: &'static str,
) -> Result<usize, Refusal> {
    let prompt = render(shared, conversation, field).await?;
    Ok(encode(shared, prompt.rendered.text.clone(), true).await?.len())
}

/// The constraint for the answer to a rendered prompt: a field's grammar, tried in a process and compiled on a thread
/// of its own. Without a grammar and without callable functions, the constraint restricts quotes to verbatim text.
pub(super) async fn constraint(
    shared: &Arc<Shared>,
    format: Format,
    params: &Params,
    rendered: &Rendered,
) -> Result<Option<Constraint>, Refusal> {
    let Some((grammar, field)) = format else {
        let text = shared.renderer.model();
        let quoting = text.recommended.quoting().filter(|_| params.calls.is_none());
        return Ok(quoting.map(|quoting| quotes::constraint(quoting, &text.tokenizer, &shared.options.stop)));
    };
    let (shared, begin) = (Arc::clone(shared), Begin::after_prompt(&rendered.text));
    // The semaphore is never closed.
    let turn = Arc::clone(&shared.compiling).acquire_owned().await.ok();
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
    /// The field of the conversation, for errors.
    pub field: &'static str,
    pub params: Params,
    /// Of the answer, unless it must be a call.
    pub format: Format,
    pub wanted: usize,
    pub streamed: bool,
    pub record: Option<Record>,
}

/// A path that answers requests: `read` gives the form of the answer, too.
pub(super) fn answers<F: Form>(
    read: fn(&Shared, Fields) -> Result<(Received, F), Refusal>,
) -> MethodRouter<Arc<Shared>> {
    post(move |State(shared): State<Arc<Shared>>, request: Request| async move {
        let (received, form) = request::read(&shared, request, read).await?;
        respond(&shared, received, form).await
    })
}

async fn respond(shared: &Arc<Shared>, received: Received, form: impl Form) -> Result<Response, Refusal> {
    let Received { conversation, field, mut params, format, wanted, streamed, record } = received;
    (params.calls, params.one_call) = (conversation.tools.calls(), conversation.tools.one_call);
    let format = conversation.tools.grammar().map(|grammar| (grammar, "tools")).or(format);
    let prompt = render(shared, conversation, field).await?;
    params.constraint = constraint(shared, format, &params, &prompt.rendered).await?;
    let listener = submit(shared, prompt, params, wanted, record, shared.options.queue)?;
    answer(listener, wanted, streamed, form).await
}

/// Queues a prompt unless `most` requests wait; a further prompt of an accepted request has no such limit.
pub(super) fn submit(
    shared: &Shared,
    prompt: Prompt,
    params: Params,
    wanted: usize,
    record: Option<Record>,
    most: usize,
) -> Result<Listener, Refusal> {
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
    let (to, listener) = Listener::pair(&cancel);
    let ask = Ask { prompt, params, wanted, index: 0, record, keep: true, cancel, to, since: Instant::now() };
    shared.asks.send(ask).map(|()| listener).map_err(|_| ending())
}
