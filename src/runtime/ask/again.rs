//! `/regen`: generates one or several new answers to a question; the user chooses the answer that continues the
//! conversation.

use std::time::Instant;

use super::super::{Done, Plan, Rendered, RuntimeError, State, Verb, first_words, grouped, refused};
use super::THIS_QUESTION;
use crate::config::commands::MOST_ANSWERS;
use crate::core::transcript::{MessageId, Role};
use crate::engine::protocol::{MOST_TEMPERATURE, Sampling};

pub(super) struct Again {
    pub(super) question: MessageId,
    pub(super) count: u64,
    /// The question has an earlier answer.
    pub(super) answered: bool,
    temperature: Option<f32>,
    /// Seed of the first answer; each further answer adds one.
    seed: Option<u64>,
}

impl Again {
    pub(super) fn first(question: MessageId, count: u64, seed: u64) -> Again {
        Again { question, count, answered: false, temperature: None, seed: Some(seed) }
    }
}

impl Verb {
    pub(in crate::runtime) async fn regen(
        &mut self,
        at: Option<u64>,
        count: u64,
        temperature: Option<f32>,
        seed: Option<u64>,
    ) -> Done {
        self.here.session.may_write()?;
        known_count(count)?;
        if let Some(t) = temperature.filter(|t| !(0.0..=MOST_TEMPERATURE).contains(&f64::from(*t))) {
            return refused(format!("temperature must be 0 to {MOST_TEMPERATURE} (got {t})"));
        }
        let question = self.question_of(at)?;
        if temperature.unwrap_or(self.here.session.settings.sampling.temperature) == 0.0 {
            self.info("At temperature 0 the answer will be the same. Try /regen temp=0.7.");
        }
        self.engine_ready().await?;
        self.here.session.may_write()?;
        self.answer_again(Again { question, count: count.max(1), answered: true, temperature, seed }).await
    }

    pub(super) async fn answer_again(&mut self, again: Again) -> Done {
        if again.count > 1 && self.engine.free_slots() > 0 {
            return self.answer_side_by_side(again).await;
        }
        let mut made = Vec::new();
        loop {
            made.push(self.answer_once_more(&again, made.len() as u64).await?);
            if made.len() as u64 >= again.count || self.here.slot.stopped() {
                break;
            }
        }
        if made.len() > 1 {
            let chosen = self.choose_answer(&made).await?;
            self.move_head(Some(chosen))?;
        }
        self.show_session();
        self.sync_quietly().await
    }

    pub(super) async fn plan_again(&mut self, again: &Again) -> Done<(Rendered, Plan)> {
        self.move_head(Some(again.question))?;
        self.show_session();
        let rendered = self.prompt(&self.here.session.tree.path(), THIS_QUESTION)?;
        let plan = self.fitted(&rendered, State::plan_answer, THIS_QUESTION).await?;
        Ok((rendered, plan))
    }

    async fn answer_once_more(&mut self, again: &Again, i: u64) -> Done<MessageId> {
        let started = Instant::now();
        let (rendered, plan) = self.plan_again(again).await?;
        let (shared, read) = (grouped(plan.base.position()), grouped(plan.to_read()));
        let answer = self.new_answer(&rendered, self.sampling_again(again, i), started)?;
        let made = self.write_answer(answer, plan, &rendered).await?;
        if again.answered && self.engine.server().is_none() {
            self.info(format!("Answered again: {shared} tokens shared, {read} read for the question."));
        }
        Ok(made)
    }

    pub(super) async fn choose_answer(&mut self, made: &[MessageId]) -> Done<MessageId> {
        let text = |id| self.here.session.tree.get(id).map_or("", |m| m.text.as_str());
        let labels: Vec<String> = made.iter().map(|id| first_words(text(*id), 60)).collect();
        let last = ('\x1b', "keep the last; /branch shows the others");
        let choices: Vec<_> = ('1'..='9').zip(labels.iter().map(String::as_str)).chain([last]).collect();
        let key = self.ask_user("Which answer continues the conversation?".into(), &choices).await;
        let chosen = key.to_digit(10).and_then(|n| made.get((n as usize).checked_sub(1)?));
        if chosen.is_some() {
            // The stop that led to the question is over.
            self.here.slot.begin();
        }
        let chosen = chosen.or(made.last()).copied();
        chosen.ok_or_else(|| RuntimeError::Failed("internal error: no answer was made".into()))
    }
}

impl State {
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
            Some(_) => refused("Only answers can be regenerated. /timeline shows the numbers."),
            None => refused("There is no answer to regenerate yet."),
        }
    }

    pub(super) fn sampling_again(&self, again: &Again, i: u64) -> Sampling {
        let mut sampling = self.next_sampling();
        sampling.temperature = again.temperature.unwrap_or(sampling.temperature);
        sampling.seed = match again.seed {
            Some(seed) => seed.wrapping_add(i),
            // The configured seed alone would reproduce the existing answer.
            None if self.here.session.settings.seed.is_some() => sampling.seed.wrapping_add(i),
            None => sampling.seed,
        };
        sampling
    }
}

pub(super) fn known_count(count: u64) -> Done {
    if (1..=MOST_ANSWERS).contains(&count.max(1)) {
        return Ok(());
    }
    refused(format!("Between 1 and {MOST_ANSWERS} answers can be generated at once (got {count})."))
}
