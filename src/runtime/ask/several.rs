//! Several answers to one question, written side by side: each is the one that its seed gives alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::super::branches::{Branch, Fan, Grown, Lanes, Written};
use super::super::execute::{Fed, PromptReading, Watch};
use super::super::path::Path;
use super::super::render::Rendered;
use super::super::segments::Step;
use super::super::slot::Last;
use super::super::{Done, RuntimeError, State, grouped};
use super::THIS_QUESTION;
use super::again::Again;
use super::answer::Answer;
use crate::config::settings::SaveStates;
use crate::core::transcript::MessageId;
use crate::runtime::protocol::{Activity, Level, Notice};

/// One of them.
struct Slot {
    id: MessageId,
    /// `None` once it is complete.
    answer: Option<Answer>,
    last: Option<Last>,
    /// Tokens per second.
    rate: f64,
    /// The state behind it.
    path: Path,
    failed: Option<RuntimeError>,
}

/// All of them.
struct Several {
    rendered: Arc<Rendered>,
    base: Path,
    steps: VecDeque<Step>,
    slots: Vec<Slot>,
}

impl State {
    /// Reads all but the question, then answers it side by side.
    pub(super) fn answer_side_by_side(&mut self, again: Again) -> Done {
        let started = Instant::now();
        self.move_head(Some(again.question))?;
        self.show_session();
        let rendered = self.prompt(&self.here.session.tree.path(), THIS_QUESTION)?;
        self.when_planned(rendered, State::plan_answer, move |runtime, rendered, plan| {
            let mut plan = runtime.fitting(plan, THIS_QUESTION)?;
            plan.steps.pop();
            let of = Arc::clone(&rendered);
            runtime.execute(plan, rendered, None, PromptReading::begun(), move |runtime, _, fed| {
                fed?;
                if runtime.here.slot.stopped() {
                    return Err(RuntimeError::Stopped);
                }
                runtime.write_side_by_side(again, of, started)
            })
        })
    }

    fn write_side_by_side(&mut self, again: Again, rendered: Arc<Rendered>, started: Instant) -> Done {
        let plan = self.plan_answer(&rendered)?;
        let (shared, read) = (plan.base.position(), plan.to_read());
        let mut slots = Vec::new();
        for i in 0..again.count {
            let answer = self.new_answer(&rendered, self.sampling_again(&again, i), started)?;
            let last = Some(self.last_of(&answer)?);
            let (id, rate, path) = (answer.id(), 0.0, Path::default());
            slots.push(Slot { id, answer: Some(answer), last, rate, path, failed: None });
        }
        for answer in slots.iter().filter_map(|s| s.answer.as_ref()) {
            self.add_answer_quietly(answer)?;
        }
        if again.answered && self.engine.server().is_none() {
            let text =
                format!("Answering again: {} tokens shared, {} read for the question.", grouped(shared), grouped(read));
            self.note(Level::Info, text);
        }
        let answers =
            slots.iter().filter_map(|s| s.answer.as_ref()).map(|a| (a.id(), a.sampling().seed_of_draws())).collect();
        self.tell(Notice::Several(answers));
        // There is no token yet.
        self.activity(Activity::Busy { what: "reading the question".into() });
        self.branch_out(Several { rendered, base: plan.base, steps: plan.steps.into(), slots })
    }
}

impl Fan for Several {
    fn count(&self) -> usize {
        self.slots.len()
    }

    fn prepare(&mut self, runtime: &mut State, which: usize) -> Done<Option<Branch>> {
        let Some(last) = self.slots.get_mut(which).and_then(|slot| slot.last.take()) else { return Ok(None) };
        let export = runtime.disk.policy != SaveStates::Never;
        let (base, rendered, steps) = (self.base.clone(), Arc::clone(&self.rendered), self.steps.clone());
        Ok(Some(Branch { base, rendered, steps, last, export }))
    }

    fn tokens(&mut self, runtime: &mut State, which: usize, written: &Written<'_>) {
        let Some(slot) = self.slots.get_mut(which) else { return };
        slot.rate = written.tokens_per_s;
        if let Some(answer) = &mut slot.answer {
            answer.write(runtime, written.tokens, written.looked);
        }
        let tokens_per_s = self.slots.iter().filter(|s| s.answer.is_some()).map(|s| s.rate).sum();
        runtime.working(Activity::Answering { tokens_per_s });
    }

    fn tick(&mut self, runtime: &mut State) {
        self.slots.iter_mut().filter_map(|s| s.answer.as_mut()).for_each(|answer| answer.tick(runtime));
    }

    fn shown_again(&mut self, runtime: &mut State) {
        let seed = |s: &Slot| match &s.answer {
            Some(answer) => answer.sampling().seed_of_draws(),
            None => runtime.here.session.tree.get(s.id).and_then(|m| m.meta.seed),
        };
        let told = self.slots.iter().map(|s| (s.id, seed(s))).collect();
        runtime.tell(Notice::Several(told));
        for slot in &self.slots {
            match (&slot.answer, runtime.here.session.tree.get(slot.id)) {
                (Some(answer), _) => answer.tell_again(runtime),
                (None, Some(complete)) => runtime.tell(Notice::Finished(complete.clone())),
                (None, None) => {}
            }
        }
    }

    fn ended(&mut self, runtime: &mut State, which: usize, grown: Done<Grown>) {
        let Some(slot) = self.slots.get_mut(which) else { return };
        let Some(answer) = slot.answer.take() else { return };
        let fed = grown.map(|mut grown| {
            slot.path = std::mem::take(&mut grown.path);
            let last = grown.segments.len().saturating_sub(1);
            for (i, (segment, image, whole)) in grown.segments.into_iter().enumerate() {
                // What comes before the last is a piece of a long question.
                runtime.save_segment(segment, image, Some(slot.id).filter(|_| whole && i == last));
            }
            let (reused, read, prefill_ms) = (self.base.position(), grown.read, grown.prefill_ms);
            Fed { reused, read, prefill_ms, end: grown.end, ..Fed::default() }
        });
        runtime.complete(answer, &self.rendered, &fed, &slot.path);
        slot.failed = fed.err();
    }

    fn over(mut self: Box<Self>, runtime: &mut State, lanes: Lanes) -> Done {
        // Stopped before there was room for them.
        for slot in &mut self.slots {
            if let Some(answer) = slot.answer.take() {
                runtime.complete(answer, &self.rendered, &Err(RuntimeError::Stopped), &Path::default());
                slot.failed = Some(RuntimeError::Stopped);
            }
        }
        runtime.report_meters();
        runtime.warn_of_full_context();
        let made: Vec<(MessageId, Path)> = self
            .slots
            .iter_mut()
            .filter(|s| s.answer.is_none() && s.failed.is_none())
            .map(|s| (s.id, std::mem::take(&mut s.path)))
            .collect();
        if made.is_empty() || runtime.engine.model().is_none() {
            runtime.release(lanes);
            let failed = self.slots.into_iter().find_map(|s| s.failed);
            runtime.show_session();
            return Err(failed.unwrap_or(RuntimeError::Stopped));
        }
        let ids = made.iter().map(|(id, _)| *id).collect();
        runtime.choose_answer(ids, move |runtime, chosen| {
            let Some((id, path)) = made.into_iter().find(|(id, _)| *id == chosen) else {
                runtime.release(lanes);
                return Err(RuntimeError::Failed("internal error: an answer that was not made".into()));
            };
            if let Err(e) = runtime.move_head(Some(id)) {
                runtime.release(lanes);
                return Err(e);
            }
            runtime.show_session();
            let back = path.clone();
            let then = |runtime: &mut State| {
                runtime.show_tree();
                runtime.report_meters();
                runtime.sync_quietly()
            };
            runtime.adopt(
                lanes,
                path,
                Box::new(move |runtime, adopted| match adopted {
                    true => then(runtime),
                    false => runtime.return_to(back, then),
                }),
            )
        })
    }
}
