//! From the worker's events to whole answers, and their usage.

use super::notice::{LikelyToken, Listener, Notice, Usage, Whole};
use super::refusal::Refusal;
use super::turns::Call;
use crate::core::transcript::Finish;
use crate::engine::protocol::{Likely, Token};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Thoughts(String),
    Text(String),
    Call(Call),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// In the order of decode.
    pub items: Vec<Item>,
    /// Its tokens, if the request asks for log-probabilities.
    pub tokens: Vec<LikelyToken>,
    pub whole: Option<Whole>,
}

impl Choice {
    pub(super) fn take(&mut self, notice: &Notice) {
        match notice {
            Notice::Text { thinking, answer, tokens, .. } => {
                self.add(thinking, answer);
                self.tokens.extend_from_slice(tokens);
            }
            Notice::Call { call, .. } => self.items.push(Item::Call(call.clone())),
            Notice::Ended { whole, .. } => self.whole = Some(whole.clone()),
            Notice::Begun { .. }
            | Notice::Scored { .. }
            | Notice::Reading { .. }
            | Notice::Calling { .. }
            | Notice::Arguments { .. }
            | Notice::Failed(_) => {}
        }
    }

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

    pub(super) fn thinking(&self) -> String {
        self.items
            .iter()
            .filter_map(|item| if let Item::Thoughts(text) = item { Some(&**text) } else { None })
            .collect()
    }

    pub(super) fn answer(&self) -> String {
        self.items.iter().filter_map(|item| if let Item::Text(text) = item { Some(&**text) } else { None }).collect()
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.items.iter().filter_map(|item| if let Item::Call(call) = item { Some(call) } else { None })
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Collected {
    pub usage: Usage,
    /// Tokens of the prompt and the log-probabilities of all but the first, if the request asks for them.
    pub scored: Option<(Vec<Token>, Vec<Likely>)>,
    pub choices: Vec<Choice>,
}

/// The error of an answer that the server's shutdown ended.
pub(super) const BROKE_OFF: &str = "the answer broke off: the server is ending";

/// Waits for all answers. A cancelled answer is an error.
pub(super) async fn collect(mut listener: Listener, wanted: usize) -> Result<Collected, Refusal> {
    let mut all = Collected { choices: vec![Choice::default(); wanted], ..Collected::default() };
    let mut ended = 0;
    while ended < wanted {
        let notice = listener.next().await.ok_or_else(|| Refusal::new(503, "shutting_down", BROKE_OFF))?;
        all.usage.take(&notice);
        if let Notice::Ended { whole, .. } = &notice {
            if whole.finish == Finish::Stopped {
                return Err(Refusal::new(503, "shutting_down", BROKE_OFF));
            }
            ended += 1;
        }
        match notice {
            Notice::Scored { tokens, likely } => all.scored = Some((tokens, likely)),
            Notice::Failed(refusal) => return Err(refusal),
            Notice::Text { index, .. } | Notice::Call { index, .. } | Notice::Ended { index, .. } => {
                if let Some(choice) = all.choices.get_mut(index) {
                    choice.take(&notice);
                }
            }
            Notice::Begun { .. } | Notice::Reading { .. } | Notice::Calling { .. } | Notice::Arguments { .. } => {}
        }
    }
    Ok(all)
}
