//! Events of answers on their way from the worker to a connection, and the answers that they add up to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::context::Ends;
use super::{Call, Refusal, Result};
use crate::core::transcript::Finish;
use crate::engine::protocol::{Cancel, Likely, Token};

/// Bytes of text that a slow reader may leave unread; beyond that its answer ends.
const UNREAD_BYTES: usize = 4 << 20;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Whole {
    pub finish: Finish,
    pub stopped_by: Option<String>,
    /// Of this answer; each of several answers counts the prompt.
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
    /// Adds the usage of another prompt.
    pub(super) fn add(&mut self, other: &Usage) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.add_answer(other);
    }

    /// Adds another answer to the same prompt.
    fn add_answer(&mut self, other: &Usage) {
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
            (Event::Begun(_) | Event::Calling { .. } | Event::Arguments(_), _) => {}
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
        // The prompt of several answers counts once.
        if let (0, Event::Begun(usage)) = (index, event) {
            (self.usage.prompt_tokens, self.usage.cached_tokens) = (usage.prompt_tokens, usage.cached_tokens);
        }
        if let Event::Ended(whole) = event {
            self.usage.add_answer(&whole.usage);
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

    /// A notice that has arrived.
    pub(super) fn ready(&mut self) -> Option<Notice> {
        self.next().now_or_never().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_or_absent_reader_ends_the_answer() {
        let cancel = Cancel::default();
        let (reporter, mut listener) = Listener::pair(&cancel, 1);
        let text = |bytes| Notice::Answer(0, Event::Text("x".repeat(bytes), Vec::new()));
        assert!(reporter.report(text(UNREAD_BYTES)));
        assert!(!reporter.report(text(1)));
        assert!(listener.ready().is_some());
        assert!(reporter.report(text(1)));
        assert!(!cancel.is_cancelled());
        drop(listener);
        assert!(cancel.is_cancelled() && !reporter.report(text(1)));
    }
}
