//! Several answers to one question, generated in parallel. Each equals the answer that its seed produces alone.

use std::sync::Arc;
use std::time::Instant;

use super::super::{
    Activity, Branch, Done, Fan, Grown, Notice, Path, Rendered, RuntimeError, State, Step, Verb, Written, grouped,
};
use super::again::Again;
use super::answer::Answer;
use crate::core::transcript::MessageId;

struct Made {
    id: MessageId,
    answer: Option<Answer>,
    rate: f64,
    path: Path,
    failed: Option<RuntimeError>,
}

struct Several {
    rendered: Arc<Rendered>,
    base: Path,
    steps: Vec<Step>,
    slots: Vec<Made>,
}

impl Verb {
    pub(super) async fn answer_side_by_side(&mut self, again: Again) -> Done {
        let started = Instant::now();
        let (rendered, mut plan) = self.plan_again(&again).await?;
        let rendered = Arc::new(rendered);
        plan.steps.pop();
        self.execute(plan, &rendered, None, &mut ()).await?;
        self.unstopped()?;

        let mut several = self.begin_several(&again, rendered, started)?;
        let done = self.fan_out(&mut several).await?;
        // A stop arrived before these answers got a slot.
        for at in 0..several.slots.len() {
            several.ended(self, at, Err(RuntimeError::Stopped));
        }
        self.report_meters();
        self.warn_of_full_context();
        let made: Vec<(MessageId, Path)> = several
            .slots
            .iter_mut()
            .filter(|s| s.failed.is_none())
            .map(|s| (s.id, std::mem::take(&mut s.path)))
            .collect();
        if made.is_empty() || self.engine.model().is_none() {
            let released = self.release(done);
            let failed = several.slots.into_iter().find_map(|s| s.failed);
            self.show_session();
            return released.and(Err(failed.unwrap_or(RuntimeError::Stopped)));
        }

        let ids: Vec<MessageId> = made.iter().map(|(id, _)| *id).collect();
        let chosen = match self.choose_answer(&ids).await.and_then(|id| self.move_head(Some(id)).map(|()| id)) {
            Ok(chosen) => made.into_iter().find(|(id, _)| *id == chosen),
            Err(e) => {
                self.release(done)?;
                return Err(e);
            }
        };
        self.show_session();
        let path = chosen.map(|(_, path)| path).unwrap_or_default();
        if !self.adopt(done, &path).await? {
            self.return_to(path).await?;
        }
        self.show_tree();
        self.report_meters();
        self.sync_quietly().await
    }
}

impl State {
    fn begin_several(&mut self, again: &Again, rendered: Arc<Rendered>, started: Instant) -> Done<Several> {
        let plan = self.plan_answer(&rendered)?;
        let (shared, read) = (plan.base.position(), plan.to_read());
        let answer = |i| self.new_answer(&rendered, self.sampling_again(again, i), started);
        let answers = (0..again.count).map(answer).collect::<Done<Vec<Answer>>>()?;
        for answer in &answers {
            self.add_quietly(answer.message.clone())?;
        }
        if again.answered && self.engine.server().is_none() {
            let (shared, read) = (grouped(shared), grouped(read));
            self.info(format!("Answering again: {shared} tokens shared, {read} read for the question."));
        }
        self.report(Notice::Several(answers.iter().map(|a| (a.message.id, a.seed())).collect()));
        // No token has arrived yet.
        self.activity(Activity::Busy { what: "reading the question".into() });
        let made = |answer: Answer| {
            let id = answer.message.id;
            Made { id, answer: Some(answer), rate: 0.0, path: Path::default(), failed: None }
        };
        let slots = answers.into_iter().map(made).collect();
        Ok(Several { rendered, base: plan.base, steps: plan.steps, slots })
    }
}

impl Fan for Several {
    fn count(&self) -> usize {
        self.slots.len()
    }

    fn prepare(&mut self, state: &mut State, which: usize) -> Done<Option<Branch>> {
        let Some(Made { id, answer: Some(answer), .. }) = self.slots.get(which) else { return Ok(None) };
        let (base, rendered, steps) = (self.base.clone(), Arc::clone(&self.rendered), self.steps.clone());
        let last = Some(state.last_of(answer)?);
        Ok(Some(Branch { base, rendered, steps, last, message: Some(*id) }))
    }

    fn tokens(&mut self, state: &mut State, which: usize, written: &Written<'_>) {
        let Some(slot) = self.slots.get_mut(which) else { return };
        slot.rate = written.tokens_per_s;
        if let Some(answer) = &mut slot.answer {
            answer.write(state, written.tokens, written.looked);
        }
        let tokens_per_s = self.slots.iter().filter(|s| s.answer.is_some()).map(|s| s.rate).sum();
        state.working(Activity::Answering { tokens_per_s });
    }

    fn tick(&mut self, state: &mut State) {
        self.slots.iter_mut().filter_map(|s| s.answer.as_mut()).for_each(|answer| answer.save(state));
    }

    fn shown_again(&mut self, state: &mut State) {
        let seed = |s: &Made| match &s.answer {
            Some(answer) => answer.seed(),
            None => state.here.session.tree.get(s.id).and_then(|m| m.meta.seed),
        };
        let seeds = self.slots.iter().map(|s| (s.id, seed(s))).collect();
        state.report(Notice::Several(seeds));
        for slot in &self.slots {
            match (&slot.answer, state.here.session.tree.get(slot.id)) {
                (Some(answer), _) => answer.report_again(state),
                (None, Some(complete)) => state.report(Notice::Finished(complete.clone())),
                (None, None) => {}
            }
        }
    }

    fn ended(&mut self, state: &mut State, which: usize, grown: Done<Grown>) {
        let Some(slot) = self.slots.get_mut(which) else { return };
        let Some(answer) = slot.answer.take() else { return };
        let stats = grown.map(|grown| {
            slot.path = grown.path;
            grown.stats
        });
        state.complete(answer, &self.rendered, &stats, &slot.path);
        slot.failed = stats.err();
    }
}
