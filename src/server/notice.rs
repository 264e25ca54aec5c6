//! Events from the worker to a connection, and their channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::refusal::Refusal;
use super::turns::Call;
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

/// A token of an answer, for requests with log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LikelyToken {
    pub token: Token,
    pub likely: Likely,
    pub thought: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Notice {
    /// Prefill begins. The first event, once for each answer.
    Begun { index: usize, prompt_tokens: u64, cached_tokens: u64 },
    /// Log-probabilities of the prompt's tokens; the first token has none.
    Scored { tokens: Vec<Token>, likely: Vec<Likely> },
    /// Progress of the prefill, in tokens.
    Reading { done: u64, total: u64 },
    /// More thoughts or text of an answer.
    Text { index: usize, thinking: String, answer: String, tokens: Vec<LikelyToken> },
    /// A call of a function begins.
    Calling { index: usize, id: String, name: String },
    /// More of the call's arguments, a piece of JSON.
    Arguments { index: usize, more: String },
    /// The complete call.
    Call { index: usize, call: Call },
    /// The end of an answer; further answers may follow.
    Ended { index: usize, whole: Whole },
    /// The last event.
    Failed(Refusal),
}

impl Notice {
    fn bytes(&self) -> usize {
        match self {
            Notice::Text { thinking, answer, tokens, .. } => {
                let tokens_bytes: usize =
                    tokens.iter().map(|t| size_of::<LikelyToken>() + size_of_val(t.likely.best.as_slice())).sum();
                thinking.len() + answer.len() + tokens_bytes
            }
            Notice::Arguments { more, .. } => more.len(),
            Notice::Call { call, .. } => call.text().len(),
            Notice::Calling { .. } => 0,
            Notice::Begun { .. }
            | Notice::Scored { .. }
            | Notice::Reading { .. }
            | Notice::Ended { .. }
            | Notice::Failed(_) => 0,
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
    /// The prompt of several answers counts once.
    pub(super) fn take(&mut self, notice: &Notice) {
        match notice {
            Notice::Begun { index: 0, prompt_tokens, cached_tokens } => {
                (self.prompt_tokens, self.cached_tokens) = (*prompt_tokens, *cached_tokens);
            }
            Notice::Ended { whole, .. } => self.add_answer(&whole.usage),
            Notice::Begun { .. }
            | Notice::Scored { .. }
            | Notice::Reading { .. }
            | Notice::Text { .. }
            | Notice::Calling { .. }
            | Notice::Arguments { .. }
            | Notice::Call { .. }
            | Notice::Failed(_) => {}
        }
    }

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
#[derive(Debug)]
pub(super) struct Listener {
    from: UnboundedReceiver<Notice>,
    unread: Arc<AtomicUsize>,
    cancel: Cancel,
}

impl Listener {
    pub(super) fn pair(cancel: &Cancel) -> (Reporter, Listener) {
        let (to, from) = unbounded_channel();
        let unread = Arc::new(AtomicUsize::new(0));
        let reporter = Reporter { to, unread: Arc::clone(&unread) };
        (reporter, Listener { from, unread, cancel: cancel.clone() })
    }

    fn taken(&self, notice: Option<Notice>) -> Option<Notice> {
        if let Some(notice) = &notice {
            self.unread.fetch_sub(notice.bytes(), Ordering::Relaxed);
        }
        notice
    }

    pub(super) async fn next(&mut self) -> Option<Notice> {
        let notice = self.from.recv().await;
        self.taken(notice)
    }

    /// For a body that is polled.
    pub(super) fn poll_next(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Option<Notice>> {
        self.from.poll_recv(context).map(|notice| self.taken(notice))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_or_absent_reader_ends_the_answer() {
        let cancel = Cancel::default();
        let (reporter, mut listener) = Listener::pair(&cancel);
        let text =
            |bytes| Notice::Text { index: 0, thinking: String::new(), answer: "x".repeat(bytes), tokens: Vec::new() };
        assert!(reporter.report(text(UNREAD_BYTES)));
        assert!(!reporter.report(text(1)));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(listener.poll_next(&mut context).is_ready());
        assert!(reporter.report(text(1)));
        assert!(!cancel.is_cancelled());
        drop(listener);
        assert!(cancel.is_cancelled() && !reporter.report(text(1)));
    }
}
