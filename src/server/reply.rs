//! From a request to an entry of the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::ask::{Ask, Params, Prompt};
use super::context::{blocking, own_data};
use super::notice::Listener;
use super::prompt::Conversation;
use super::records::Record;
use super::refusal::Refusal;
use super::{Phase, Shared, files};
use crate::engine::protocol::{Cancel, Constraint};
use crate::runtime::render::Rendered;
use crate::text::grammar::Grammar;
use crate::text::schema::Unusable;
use crate::text::{Begin, quotes};

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

/// The constraint for the answer to a rendered prompt: a field's grammar, tried in a process and compiled on a thread
/// of its own. Without a grammar and without callable functions, the constraint restricts quotes to verbatim text.
pub(super) async fn constraint(
    shared: &Arc<Shared>,
    grammar: Option<(Grammar, &'static str)>,
    params: &Params,
    rendered: &Rendered,
) -> Result<Option<Constraint>, Refusal> {
    let Some((grammar, field)) = grammar else {
        let text = shared.renderer.model();
        let quoting = text.recommended.quoting().filter(|_| params.calls.is_none());
        return Ok(quoting.map(|quoting| quotes::constraint(quoting, &text.tokenizer, &shared.stop_ids)));
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

/// Queues a conversation: with the functions that it may call, and the grammar of its answer unless they force one.
pub(super) async fn ask(
    shared: &Arc<Shared>,
    conversation: Conversation,
    field: &'static str,
    mut params: Params,
    grammar: Option<(Grammar, &'static str)>,
    wanted: usize,
    record: Option<Record>,
) -> Result<Listener, Refusal> {
    (params.calls, params.one_call) = (conversation.tools.calls(), conversation.tools.one_call());
    let grammar = conversation.tools.grammar().map(|g| (g, "tools")).or(grammar);
    let prompt = render(shared, conversation, field).await?;
    params.constraint = constraint(shared, grammar, &params, &prompt.rendered).await?;
    submit(shared, prompt, params, wanted, record, shared.queue)
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
    let ask = Ask { prompt, params, wanted, index: 0, record, keep: true, cancel, to, since: Instant::now() };
    match shared.asks.send(ask) {
        Ok(()) => Ok(listener),
        Err(_) => Err(Refusal::new(503, "shutting_down", "the server is ending")),
    }
}
