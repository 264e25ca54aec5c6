//! A request on its way from a connection to the worker, with the channel for its events.

use std::sync::Arc;
use std::time::Instant;

use super::calls::Calls;
use super::limited::Limits;
use super::notice::Reporter;
use super::records::Record;
use crate::engine::protocol::{Cancel, Constraint, Sampling, SpecMode, Token, Watched};
use crate::runtime::render::Rendered;

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
pub(super) struct Params {
    pub sampling: Sampling,
    pub limits: Limits,
    pub max_tokens: u64,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    pub spec: SpecMode,
    /// Tokens of thought after which the answer begins; 0 sets no limit.
    pub thinking_budget: u64,
    pub stop_loops: bool,
    /// Unchanged text: thoughts are not separated.
    pub raw: bool,
    pub calls: Option<Calls>,
    pub one_call: bool,
    pub constraint: Option<Constraint>,
    /// Log-probabilities of the answer's tokens, with this many alternatives each.
    pub likely: Option<u8>,
    /// The same for the prompt's tokens.
    pub score: Option<u8>,
}

impl Params {
    /// The conditions that end an answer early. An answer with a grammar must stay valid to its end, however
    /// repetitive: only the grammar or the maximum length ends it.
    pub(super) fn watched(&self) -> Watched {
        // A constraint on quotes alone leaves the answer free.
        let bound = self.constraint.as_ref().is_some_and(|constraint| constraint.1.is_none());
        Watched { thought_tokens: self.thinking_budget, loops: self.stop_loops && !bound }
    }
}

#[derive(Debug)]
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
        let others = (1..self.wanted).map(|index| Ask {
            prompt: self.prompt.clone(),
            params: self.params.clone(),
            wanted: self.wanted,
            index,
            record: None,
            keep: self.keep,
            cancel: self.cancel.clone(),
            to: self.to.clone(),
            since: self.since,
        });
        let others: Vec<Ask> = others.collect();
        std::iter::once(self).chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::Quoting;

    #[test]
    fn an_answer_that_is_kept_to_a_grammar_is_not_watched_for_loops() {
        let constraint = |quoting| Constraint(Arc::new(|_| unreachable!("nothing is drawn")), quoting);
        let loops = |constraint| {
            let params = Params {
                sampling: Sampling::default(),
                limits: Limits::default(),
                max_tokens: 9,
                stop: Vec::new(),
                spec: SpecMode::Auto,
                thinking_budget: 5,
                stop_loops: true,
                raw: false,
                calls: None,
                one_call: false,
                constraint,
                likely: None,
                score: None,
            };
            let watched = params.watched();
            assert_eq!(watched.thought_tokens, 5);
            watched.loops
        };
        assert!(loops(None) && loops(Some(constraint(Some(Quoting::default())))));
        assert!(!loops(Some(constraint(None))));
    }
}
