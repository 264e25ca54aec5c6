//! From words of the worker to whole answers, and what they took.

use super::refusal::Refusal;
use super::said::{Listener, Said, Told, Usage, Whole};
use super::turns::Call;
use crate::core::transcript::Finish;
use crate::engine::protocol::{Likely, Token};

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
