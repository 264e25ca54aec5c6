//! `/regen`: answering a question again, once or several times, and choosing the answer that goes on.

use std::time::Instant;

use super::super::conversation::first_words;
use super::super::{DeskError, Done, State, grouped};
use crate::protocol::desk::{Choice, Level};
use crate::transcript::{MessageId, Role};

impl State {
    /// `/regen`: answers a question again, `count` times.
    pub(in crate::desk) fn regen(
        &mut self,
        at: Option<u64>,
        count: u64,
        temperature: Option<f32>,
        seed: Option<u64>,
    ) -> Done {
        self.may_write()?;
        self.need_engine()?;
        if !(1..=9).contains(&count.max(1)) {
            return Err(DeskError::Refused(format!("Between 1 and 9 answers can be made at once (got {count}).")));
        }
        if let Some(t) = temperature.filter(|t| !(0.0..=2.0).contains(t)) {
            return Err(DeskError::Refused(format!("temperature must be 0 to 2 (got {t})")));
        }
        let path = self.open.conversation.path();
        let last = match at {
            Some(n) => self.open.conversation.at_number(n),
            None => path.iter().rev().find(|m| m.role == Role::User || m.role == Role::Assistant).copied(),
        };
        let question = match last {
            Some(m) if m.role == Role::User => m.id,
            Some(m) if m.role == Role::Assistant => match m.parent {
                Some(q) => q,
                None => {
                    return Err(DeskError::Refused("That message has no question before it.".into()));
                }
            },
            Some(_) => {
                return Err(DeskError::Refused("Only answers can be made again. /timeline shows the numbers.".into()));
            }
            None => {
                return Err(DeskError::Refused("There is no answer to make again yet.".into()));
            }
        };
        let mut made = Vec::new();
        for i in 0..count.max(1) {
            let started = Instant::now();
            self.move_head(Some(question));
            self.show_session();
            let rendered = {
                let path = self.open.conversation.path();
                self.renderer.prompt(&path, self.open.settings.think)?
            };
            let plan = self.plan(&rendered)?;
            self.check_room(&plan, "This question")?;
            let shared = plan.base.position();
            let read = plan.to_read();
            let mut sampling = self.next_sampling();
            sampling.temperature = temperature.unwrap_or(sampling.temperature);
            sampling.seed = seed.map_or(sampling.seed, |s| s.wrapping_add(i));
            if self.open.settings.seed.is_some() && seed.is_none() && i > 0 {
                sampling.seed = sampling.seed.wrapping_add(i);
            }
            made.push(self.answer(plan, &rendered, sampling, started)?);
            self.note(
                Level::Info,
                format!("Answered again: {} tokens shared, {} read for the question.", grouped(shared), grouped(read)),
            );
            if self.cancel.is_cancelled() {
                break;
            }
        }
        if made.len() > 1 {
            self.choose_answer(&made);
        }
        self.show_session();
        self.settle_quietly()
    }

    /// Several answers to one question: which one goes on.
    fn choose_answer(&mut self, made: &[MessageId]) {
        let mut choices: Vec<Choice> = made
            .iter()
            .zip('1'..='9')
            .map(|(id, key)| {
                let text = self.open.conversation.get(*id).map_or("", |m| m.text.as_str());
                Choice { key, label: first_words(text, 60) }
            })
            .collect();
        choices.push(Choice { key: '\x1b', label: "keep the last; /branch shows the others".into() });
        let key = self.ask_user("Which answer goes on?".into(), choices);
        let chosen = key.to_digit(10).and_then(|n| made.get((n as usize).checked_sub(1)?));
        if let Some(id) = chosen {
            self.move_head(Some(*id));
        }
    }
}
