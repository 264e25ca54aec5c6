//! Ends answers: closes thoughts after a budget, and detects texts that repeat themselves. Both depend only on the
//! tokens of the answer, so an answer is the same with speculation on and off, and the same again from its seed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::own_space::Before;
use super::stream::{Begin, StreamDecoder};
use super::tokenizer::Tokenizer;
use super::{TextError, thoughts};
pub use crate::engine::protocol::Watched;
use crate::engine::protocol::{Steer, Steered, Steering, Token, Watching};

/// Longest period that counts as a loop, in tokens.
const LONGEST_PERIOD: usize = 512;
/// Least length of a loop: longer than tables of zeros, rulers and lists that users request.
const LEAST_TOKENS: usize = 1_536;
/// Least repetitions of its period.
const LEAST_TIMES: usize = 8;

/// What looks at an answer; `None` where nothing is watched. `spent` tokens of its thought were written before.
pub fn steering(
    watched: Watched,
    tokenizer: &Arc<Tokenizer>,
    begin: Begin,
    spent: u64,
) -> Result<Option<Steering>, TextError> {
    if watched == Watched::default() {
        return Ok(None);
    }
    let close = tokenizer.encode_after(thoughts::BETWEEN, Before::Text)?;
    let tokenizer = Arc::clone(tokenizer);
    let watching = Watching { watched, in_thought: begin == Begin::Thought, spent };
    let make = move || -> Box<dyn Steer> {
        Box::new(Watch {
            watched,
            spent,
            text: StreamDecoder::new(tokenizer.clone(), begin),
            close: close.clone(),
            closing: VecDeque::new(),
            repeats: Repeats::default(),
        })
    };
    Ok(Some(Steering(Arc::new(make), watching)))
}

struct Watch {
    watched: Watched,
    spent: u64,
    text: StreamDecoder,
    close: Vec<Token>,
    closing: VecDeque<Token>,
    repeats: Repeats,
}

impl Steer for Watch {
    fn drawn(&mut self, token: Token, ends: bool) -> Steered {
        let budget = self.watched.thought_tokens;
        if self.closing.is_empty() && budget > 0 && self.text.in_thought() && self.spent >= budget && !ends {
            self.closing = self.close.iter().copied().collect();
        }
        let (token, steered) = match self.closing.pop_front() {
            Some(forced) if forced == token => (token, Steered::Take),
            Some(forced) => (forced, Steered::Instead(forced)),
            None => (token, Steered::Take),
        };
        if ends && steered == Steered::Take {
            return steered;
        }
        self.text.push(token);
        self.spent += u64::from(self.text.in_thought());
        if self.watched.loops && self.repeats.push(token) { Steered::Last } else { steered }
    }
}

/// Detects a text that repeats one period.
#[derive(Clone, Debug, Default)]
pub struct Repeats {
    last: VecDeque<Token>,
    /// For each period: tokens in a row that equal the one a period before.
    runs: Vec<u32>,
}

impl Repeats {
    /// Adds a token; true once the text is in a loop.
    pub fn push(&mut self, token: Token) -> bool {
        self.runs.resize(LONGEST_PERIOD, 0);
        let mut found = false;
        for (i, (run, before)) in self.runs.iter_mut().zip(self.last.iter().rev()).enumerate() {
            let period = i + 1;
            *run = if *before == token { run.saturating_add(1) } else { 0 };
            // The first period itself is not in the run.
            let whole = *run as usize + period;
            found |= *run > 0 && whole >= LEAST_TOKENS.max(LEAST_TIMES * period);
        }
        self.last.push_back(token);
        if self.last.len() > LONGEST_PERIOD {
            self.last.pop_front();
        }
        found
    }
}

#[cfg(test)]
#[path = "steer_tests.rs"]
mod tests;
