//! `/regen`: answering a question again, once or several times, and choosing the answer that goes on.

use std::time::Instant;

use super::super::tree::first_words;
use super::super::{Done, RuntimeError, State, grouped};
use super::THIS_QUESTION;
use crate::config::commands::MOST_ANSWERS;
use crate::core::transcript::{MessageId, Role};
use crate::engine::protocol::{MOST_TEMPERATURE, Sampling};
use crate::runtime::protocol::{Choice, Level};

/// Answers that are being made to one question.
pub(super) struct Again {
    pub(super) question: MessageId,
    pub(super) count: u64,
    /// It was answered before.
    pub(super) answered: bool,
    temperature: Option<f32>,
    /// Of the first of them; the others count on from it.
    seed: Option<u64>,
    made: Vec<MessageId>,
}

impl Again {
    /// First answers to a question.
    pub(super) fn first(question: MessageId, count: u64, seed: u64) -> Again {
        Again { question, count, answered: false, temperature: None, seed: Some(seed), made: Vec::new() }
    }
}

impl State {
    /// `/regen`: answers a question again, `count` times.
    pub(in crate::runtime) fn regen(
        &mut self,
        at: Option<u64>,
        count: u64,
        temperature: Option<f32>,
        seed: Option<u64>,
    ) -> Done {
        self.here.session.may_write()?;
        known_count(count)?;
        if let Some(t) = temperature.filter(|t| !(0.0..=MOST_TEMPERATURE).contains(&f64::from(*t))) {
            return Err(RuntimeError::Refused(format!("temperature must be 0 to {MOST_TEMPERATURE} (got {t})")));
        }
        let question = self.question_of(at)?;
        if temperature.unwrap_or(self.here.session.settings.sampling.temperature) == 0.0 {
            self.note(Level::Info, "Greedy answers repeat themselves; /regen temp=0.7 draws another one.");
        }
        let again = Again { question, count: count.max(1), answered: true, temperature, seed, made: Vec::new() };
        self.with_engine(move |runtime| {
            runtime.here.session.may_write()?;
            runtime.answer_again(again)
        })
    }

    /// The question whose answer is to be made again.
    fn question_of(&self, at: Option<u64>) -> Done<MessageId> {
        let path = self.here.session.tree.path();
        let last = match at {
            Some(n) => Some(self.here.session.numbered(n)?),
            None => path.iter().rev().find(|m| m.role == Role::User || m.role == Role::Assistant).copied(),
        };
        match last {
            Some(m) if m.role == Role::User => Ok(m.id),
            Some(m) if m.role == Role::Assistant => {
                m.parent.ok_or_else(|| RuntimeError::Refused("That message has no question before it.".into()))
            }
            Some(_) => {
                Err(RuntimeError::Refused("Only answers can be made again. /timeline shows the numbers.".into()))
            }
            None => Err(RuntimeError::Refused("There is no answer to make again yet.".into())),
        }
    }

    /// Makes the answers side by side; one after another where the engine has one conversation only.
    pub(super) fn answer_again(&mut self, again: Again) -> Done {
        if again.count > 1 && self.lanes() > 0 {
            return self.answer_side_by_side(again);
        }
        let started = Instant::now();
        self.move_head(Some(again.question))?;
        self.show_session();
        let rendered = self.prompt(&self.here.session.tree.path(), THIS_QUESTION)?;
        self.when_planned(rendered, State::plan_answer, move |runtime, rendered, plan| {
            let plan = runtime.fitting(plan, THIS_QUESTION)?;
            let (shared, read) = (plan.base.position(), plan.to_read());
            let sampling = runtime.sampling_again(&again, again.made.len() as u64);
            let answer = runtime.new_answer(&rendered, sampling, started)?;
            runtime.write_answer(answer, plan, rendered, move |runtime, made| {
                if again.answered && runtime.engine.server().is_none() {
                    let (shared, read) = (grouped(shared), grouped(read));
                    let text = format!("Answered again: {shared} tokens shared, {read} read for the question.");
                    runtime.note(Level::Info, text);
                }
                runtime.made_again(again, made)
            })
        })
    }

    /// How answer `i` of them is drawn.
    pub(super) fn sampling_again(&self, again: &Again, i: u64) -> Sampling {
        let mut sampling = self.next_sampling();
        sampling.temperature = again.temperature.unwrap_or(sampling.temperature);
        sampling.seed = match again.seed {
            Some(seed) => seed.wrapping_add(i),
            // A seed that was set would make the same answer each time.
            None if self.here.session.settings.seed.is_some() => sampling.seed.wrapping_add(i),
            None => sampling.seed,
        };
        sampling
    }

    fn made_again(&mut self, mut again: Again, made: MessageId) -> Done {
        again.made.push(made);
        if (again.made.len() as u64) < again.count && !self.here.slot.stopped() {
            return self.answer_again(again);
        }
        if again.made.len() == 1 {
            self.show_session();
            return self.sync_quietly();
        }
        self.choose_answer(again.made, |runtime, chosen| {
            runtime.move_head(Some(chosen))?;
            runtime.show_session();
            runtime.sync_quietly()
        })
    }

    /// Several answers to one question: which one goes on.
    pub(super) fn choose_answer(
        &mut self,
        made: Vec<MessageId>,
        then: impl FnOnce(&mut State, MessageId) -> Done + Send + 'static,
    ) -> Done {
        let mut choices: Vec<Choice> = made
            .iter()
            .zip('1'..='9')
            .map(|(id, key)| {
                let text = self.here.session.tree.get(*id).map_or("", |m| m.text.as_str());
                Choice { key, label: first_words(text, 60) }
            })
            .collect();
        choices.push(Choice { key: '\x1b', label: "keep the last; /branch shows the others".into() });
        self.ask_user("Which answer goes on?".into(), choices, move |runtime, key| {
            let chosen = key.to_digit(10).and_then(|n| made.get((n as usize).checked_sub(1)?));
            if chosen.is_some() {
                // A stop led to the question, and is over.
                runtime.here.slot.begin();
            }
            match chosen.or(made.last()) {
                Some(id) => then(runtime, *id),
                None => Err(RuntimeError::Failed("internal error: no answer was made".into())),
            }
        })
    }
}

/// Refuses a number of answers that is not possible.
pub(super) fn known_count(count: u64) -> Done {
    if (1..=MOST_ANSWERS).contains(&count.max(1)) {
        return Ok(());
    }
    Err(RuntimeError::Refused(format!("Between 1 and {MOST_ANSWERS} answers can be made at once (got {count}).")))
}
