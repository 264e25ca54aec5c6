//! What travels from a connection to the thread that feeds the engine: a question, with the way back.

use std::sync::Arc;
use std::time::Instant;

use super::calls::Calls;
use super::limited::Limits;
use super::records::Record;
use super::said::Teller;
use crate::engine::protocol::{Cancel, Constraint, Sampling, SpecMode, Token, Watched};
use crate::runtime::render::Rendered;

/// What the model reads.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    /// Its text, special tokens as literals, and where state is worth keeping.
    pub rendered: Arc<Rendered>,
    /// Given: these tokens, raw. Only state of just these counts as kept.
    pub tokens: Option<Arc<Vec<Token>>>,
    /// There are documents of the library in it.
    pub of_library: bool,
    /// The field it came from, for errors.
    pub field: &'static str,
}

/// How it is answered.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub sampling: Sampling,
    pub limits: Limits,
    pub max_tokens: u64,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    pub spec: SpecMode,
    /// Tokens of thought after which the answer begins; 0 is no limit.
    pub thinking_budget: u64,
    /// Whether a text that repeats itself is ended.
    pub stop_loops: bool,
    /// The text as it is: no thoughts are taken out.
    pub raw: bool,
    /// Calls of functions are taken out of the text.
    pub calls: Option<Calls>,
    /// The answer ends behind its first call.
    pub one_call: bool,
    /// Which tokens may be drawn.
    pub constraint: Option<Constraint>,
    /// How likely tokens were is told, with so many of the likeliest in their place.
    pub likely: Option<u8>,
    /// The same of the prompt's tokens.
    pub score: Option<u8>,
}

impl Wish {
    /// What an answer is watched for. One that is kept to a grammar is to be valid to its end, however often it says the same: it
    /// ends by itself or at its longest.
    pub(super) fn watched(&self) -> Watched {
        // What only keeps quotes to the text leaves the answer free.
        let bound = self.constraint.as_ref().is_some_and(|constraint| constraint.1.is_none());
        Watched { thought_tokens: self.thinking_budget, loops: self.stop_loops && !bound }
    }
}

/// A question.
#[derive(Debug)]
pub(super) struct Ask {
    pub prompt: Prompt,
    pub wish: Wish,
    /// Answers wanted, and which of them this is.
    pub wanted: usize,
    pub index: usize,
    pub record: Option<Record>,
    /// State behind it is kept.
    pub keep: bool,
    pub cancel: Cancel,
    pub to: Teller,
    pub asked: Instant,
}

impl Ask {
    /// The answers that are wanted, each a question of its own: they go on side by side.
    pub(super) fn each(self) -> Vec<Ask> {
        let others = (1..self.wanted).map(|index| Ask {
            prompt: self.prompt.clone(),
            wish: self.wish.clone(),
            wanted: self.wanted,
            index,
            record: None,
            keep: self.keep,
            cancel: self.cancel.clone(),
            to: self.to.clone(),
            asked: self.asked,
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
            let wish = Wish {
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
            let watched = wish.watched();
            assert_eq!(watched.thought_tokens, 5);
            watched.loops
        };
        assert!(loops(None) && loops(Some(constraint(Some(Quoting::default())))));
        assert!(!loops(Some(constraint(None))));
    }
}
