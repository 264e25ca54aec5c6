//! Several answers to one question (`/regen`, `-n`): in parallel if the engine has free slots, else one after the
//! other. Each equals the answer that its seed produces alone. The user chooses the one that continues the
//! conversation.

use std::sync::Arc;
use std::time::Instant;

use super::super::verb::Work;
use super::super::{
    Activity, Branch, Done, Fan, Grown, Notice, Path, Plan, Rendered, RuntimeError, State, Step, Verb, Written,
    grouped, refused,
};
use super::THIS_QUESTION;
use super::answer::Answer;
use crate::config::commands::MOST_ANSWERS;
use crate::core::transcript::{Message, MessageId, Role};
use crate::engine::protocol::{MOST_TEMPERATURE, Sampling};

pub(super) struct Again {
    pub(super) question: MessageId,
    pub(super) count: u64,
    /// The question has an earlier answer.
    pub(super) answered: bool,
    pub(super) temperature: Option<f32>,
    /// Seed of the first answer; each further answer adds one.
    pub(super) seed: Option<u64>,
}

struct Made {
    id: MessageId,
    /// `None` once it has ended.
    answer: Option<Answer>,
    rate: f64,
    failed: Option<RuntimeError>,
}

struct Several {
    rendered: Arc<Rendered>,
    base: Path,
    steps: Vec<Step>,
    made: Vec<Made>,
}

pub(super) fn known_count(count: u64) -> Done {
    if count <= MOST_ANSWERS {
        return Ok(());
    }
    refused(format!("Between 1 and {MOST_ANSWERS} answers can be generated at once (got {count})."))
}

impl Verb {
    pub async fn regen(&mut self, at: Option<u64>, count: u64, temperature: Option<f32>, seed: Option<u64>) -> Done {
        self.here.may_write()?;
        known_count(count)?;
        if let Some(t) = temperature.filter(|t| !(0.0..=MOST_TEMPERATURE).contains(&f64::from(*t))) {
            return refused(format!("temperature must be 0 to {MOST_TEMPERATURE} (got {t})"));
        }
        let question = self.question_of(at)?;
        if temperature.unwrap_or(self.here.settings.sampling.temperature) == 0.0 {
            self.info("At temperature 0 a complete answer is always the same. Try /regen temp=0.7.");
        }
        self.ready_to_write().await?;
        self.answer_again(Again { question, count: count.max(1), answered: true, temperature, seed }).await
    }

    /// Answers a question again; the user chooses the answer that continues the conversation.
    pub(super) async fn answer_again(&mut self, again: Again) -> Done {
        let side_by_side = again.count > 1 && self.engine.free_slots() > 0;
        let made = match side_by_side {
            true => self.answer_side_by_side(&again).await?,
            false => self.answer_in_turn(&again).await?,
        };
        let chosen = self.choose_answer(&made).await?;
        self.move_head(Some(chosen))?;
        self.show_session();
        self.sync_quietly().await?;
        if side_by_side {
            self.show_tree();
            self.report_meters();
        }
        Ok(())
    }

    async fn answer_in_turn(&mut self, again: &Again) -> Done<Vec<MessageId>> {
        let mut made = Vec::new();
        loop {
            let started = Instant::now();
            let (rendered, plan) = self.plan_again(again).await?;
            let answer = self.new_answer(&rendered, self.sampling_again(again, made.len() as u64), started)?;
            made.push(self.write_answer(answer, plan, &rendered).await?);
            if made.len() as u64 >= again.count || self.here.slot.stopped() {
                return Ok(made);
            }
        }
    }

    /// The answers that were written, if only in part.
    async fn answer_side_by_side(&mut self, again: &Again) -> Done<Vec<MessageId>> {
        let started = Instant::now();
        let (rendered, mut plan) = self.plan_again(again).await?;
        // The text before the question is read once, in the conversation's own slot.
        plan.steps.pop();
        self.execute(plan, &rendered, None, &mut ()).await?;
        self.unstopped()?;

        let plan = self.plan_answer(&rendered)?;
        let answer = |i| self.new_answer(&rendered, self.sampling_again(again, i), started);
        let answers = (0..again.count).map(answer).collect::<Done<Vec<Answer>>>()?;
        for answer in &answers {
            self.add_quietly(answer.message.clone())?;
        }
        self.report(Notice::Several(answers.iter().map(|a| (a.message.id, a.message.meta.seed)).collect()));
        // No token has arrived yet.
        self.activity(Activity::Busy { what: "reading the question".into() });
        let made = |a: Answer| Made { id: a.message.id, answer: Some(a), rate: 0.0, failed: None };
        let made = answers.into_iter().map(made).collect();
        let mut several = Several { rendered: Arc::new(rendered), base: plan.base, steps: plan.steps, made };
        let done = self.fan_out(&mut several, Work::Branches).await;
        // A stop arrived before these answers got a slot.
        for at in 0..several.made.len() {
            several.ended(self, at, Err(RuntimeError::Stopped));
        }
        self.report_meters();
        self.warn_of_full_context();

        let (whole, failed): (Vec<Made>, Vec<Made>) = several.made.into_iter().partition(|m| m.failed.is_none());
        if whole.is_empty() || done.is_err() {
            self.show_session();
            let why = failed.into_iter().find_map(|m| m.failed);
            return Err(done.err().or(why).unwrap_or(RuntimeError::Stopped));
        }
        Ok(whole.into_iter().map(|m| m.id).collect())
    }

    async fn plan_again(&mut self, again: &Again) -> Done<(Rendered, Plan)> {
        self.move_head(Some(again.question))?;
        self.show_session();
        let rendered = self.prompt(&self.here.tree.path())?;
        let plan = self.fitted(&rendered, State::plan_answer, THIS_QUESTION).await?;
        if again.answered && self.engine.server().is_none() {
            let (shared, read) = (grouped(plan.base.position()), grouped(plan.to_read()));
            self.info(format!("Answering again: {shared} tokens shared, {read} read for the question."));
        }
        Ok((rendered, plan))
    }

    async fn choose_answer(&mut self, made: &[MessageId]) -> Done<MessageId> {
        if let [one] = made {
            return Ok(*one);
        }
        let last = ('\x1b', "keep the last; /branch shows the others");
        let choices: Vec<_> = ('1'..='9').take(made.len()).map(|key| (key, "")).chain([last]).collect();
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
        let path = self.here.tree.path();
        let last = match at {
            Some(n) => Some(self.here.numbered(n)?),
            None => path.into_iter().rfind(|m| m.role == Role::User || m.role == Role::Assistant),
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

    fn sampling_again(&self, again: &Again, i: u64) -> Sampling {
        let mut sampling = self.next_sampling();
        sampling.temperature = again.temperature.unwrap_or(sampling.temperature);
        sampling.seed = match again.seed {
            Some(seed) => seed.wrapping_add(i),
            // The configured seed alone would reproduce the existing answer.
            None if self.here.settings.seed.is_some() => sampling.seed.wrapping_add(i),
            None => sampling.seed,
        };
        sampling
    }
}

impl Fan for Several {
    fn prepare(&mut self, state: &mut State, which: usize) -> Done<Option<Branch>> {
        let Some(Made { id, answer: Some(answer), .. }) = self.made.get(which) else { return Ok(None) };
        let (base, rendered, steps) = (self.base.clone(), Arc::clone(&self.rendered), self.steps.clone());
        let last = Some(state.last_of(answer)?);
        Ok(Some(Branch { base, rendered, steps, last, message: Some(*id) }))
    }

    fn tokens(&mut self, state: &mut State, which: usize, written: &Written<'_>) {
        let Some(made) = self.made.get_mut(which) else { return };
        made.rate = written.tokens_per_s;
        if let Some(answer) = &mut made.answer {
            answer.write(state, written.tokens, written.looked);
        }
        let tokens_per_s = self.made.iter().filter(|m| m.answer.is_some()).map(|m| m.rate).sum();
        state.working(Activity::Answering { tokens_per_s });
    }

    fn tick(&mut self, state: &mut State) {
        self.made.iter_mut().filter_map(|m| m.answer.as_mut()).for_each(|answer| answer.save(state));
    }

    fn shown_again(&mut self, state: &mut State) {
        let tree = &state.here.tree;
        let messages: Vec<&Message> = self.made.iter().filter_map(|m| tree.get(m.id)).collect();
        state.report(Notice::Several(messages.iter().map(|m| (m.id, m.meta.seed)).collect()));
        for message in messages {
            match message.meta.finish {
                None => state.report_text(message.id, message.thinking.clone(), message.text.clone()),
                Some(_) => state.report(Notice::Finished(message.clone())),
            }
        }
    }

    fn ended(&mut self, state: &mut State, which: usize, grown: Done<Grown>) {
        let Some(made) = self.made.get_mut(which) else { return };
        let Some(answer) = made.answer.take() else { return };
        let (path, stats) = match grown {
            Ok(Grown { path, stats }) => (path, Ok(stats)),
            Err(e) => (Path::default(), Err(e)),
        };
        state.end_answer(answer, &self.rendered, &stats, &path);
        made.failed = stats.err();
    }
}
