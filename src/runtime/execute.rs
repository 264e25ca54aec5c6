//! Carrying a plan out: its base is made live, its steps are read and recorded one by one, the last one may be answered.
//!
//! The one mechanism behind asking, loading, resuming, going back, forking and reading again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::JobEnd;
use super::path::Path;
use super::plan::Plan;
use super::render::Rendered;
use super::segments::Step;
use super::slot::Last;
use super::work::{Feed, Feeding};
use super::{Done, RuntimeError, State, Then, Work};
use crate::config::settings::SaveStates;
use crate::core::transcript::MessageId;
use crate::engine::protocol::{Ended, Looked, Token};
use crate::runtime::protocol::{Activity, Level, ReadingProgress};
use crate::store::{Lost, NOT_WRITTEN, PRUNED};

/// Shortest text worth a progress display, in tokens.
const SHOWN_READING: u64 = 512;
/// Shortest text whose tokenizing is said, in bytes.
const SHOWN_TOKENIZING: usize = 1 << 20;

/// What making a state live took.
#[derive(Debug, Default)]
pub(super) struct Fed {
    /// Tokens that did not have to be read.
    pub(super) reused: u64,
    /// Tokens read.
    pub(super) read: u64,
    /// Time for them, milliseconds.
    pub(super) prefill_ms: f64,
    /// Whole time, milliseconds.
    pub(super) ms: f64,
    /// The last job, if one was run.
    pub(super) end: Option<JobEnd>,
}

/// How far the reading of a plan is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Tokens read, over all steps.
    pub(super) done: u64,
    /// Tokens to read in all.
    pub(super) total: u64,
    /// Tokens in the state now.
    pub(super) position: u64,
    /// Since the first step began.
    pub(super) elapsed: Duration,
}

impl Progress {
    /// Over all that was read: what it says of the time left does not jump.
    pub(super) fn tokens_per_s(&self) -> f64 {
        per_second(self.done, self.elapsed)
    }
}

/// A rate; 0 while there is none.
pub(super) fn per_second(tokens: u64, elapsed: Duration) -> f64 {
    match elapsed.as_secs_f64() {
        s if s > 0.0 => tokens as f64 / s,
        _ => 0.0,
    }
}

/// Looks at a plan while it is carried out.
pub(super) trait Watch: Send + 'static {
    /// Prefill went on.
    fn reading(&mut self, runtime: &mut State, progress: Progress);
    /// A round of decoding, and where each of its tokens looked if that was asked for.
    fn tokens(&mut self, _desk: &mut State, _tokens: &[Token], _looked: &[Looked], _tokens_per_s: f64) {}
    /// Now and then.
    fn tick(&mut self, _desk: &mut State) {}
    /// The conversation is on screen again: what is written goes into it.
    fn shown_again(&mut self, _desk: &mut State) {}
}

/// One of [`State::plan`], [`State::plan_answer`] and [`State::plan_past`].
pub(super) type Planner = fn(&State, &Rendered) -> Done<Plan>;

/// What is to be answered at the end of a plan.
#[derive(Clone, Debug)]
pub(super) struct ToAnswer {
    pub(super) last: Last,
    /// The message the answer ends; `None` leaves no trace of the last step in the store (an aside).
    pub(super) message: Option<MessageId>,
}

/// A plan that is being carried out.
struct Execution<W, F> {
    rendered: Arc<Rendered>,
    /// Not begun.
    steps: VecDeque<Step>,
    answer: Option<ToAnswer>,
    watch: W,
    fed: Fed,
    /// Tokens to read in all.
    total: u64,
    started: Instant,
    /// When the first step began.
    reading_since: Instant,
    then: F,
}

impl<W, F> Execution<W, F>
where
    W: Watch,
    F: FnOnce(&mut State, W, Done<Fed>) -> Done + Send + 'static,
{
    /// Begins the next step, or ends.
    fn go_on(mut self: Box<Self>, runtime: &mut State) -> Done {
        let Some(step) = self.steps.pop_front() else {
            return self.over(runtime, None);
        };
        let answer = self.answer.as_ref().filter(|_| self.steps.is_empty());
        let kept = answer.is_none_or(|a| a.message.is_some()) && runtime.here.apart.is_none();
        let export = kept && runtime.disk.policy != SaveStates::Never;
        match runtime.start_job(step.prompt.clone(), answer.map(|a| a.last.clone()), export) {
            Ok(id) => {
                runtime.here.work = Work::Feeding(Feeding::new(id, step, self));
                Ok(())
            }
            Err(e) => self.over(runtime, Some(e)),
        }
    }

    fn over(mut self, runtime: &mut State, failed: Option<RuntimeError>) -> Done {
        self.fed.ms = self.started.elapsed().as_secs_f64() * 1000.0;
        let fed = match failed {
            None => Ok(self.fed),
            Some(e) => {
                let e = runtime.disk.set_aside(e);
                // Whoever does not plan anew is asked whether to read it again.
                runtime.here.resume_pending |= matches!(e, RuntimeError::RowsLost(_));
                Err(e)
            }
        };
        (self.then)(runtime, self.watch, fed)
    }
}

impl<W, F> Feed for Execution<W, F>
where
    W: Watch,
    F: FnOnce(&mut State, W, Done<Fed>) -> Done + Send + 'static,
{
    fn reading(&mut self, runtime: &mut State, done: u64) {
        let done = self.fed.read + done;
        let position = self.fed.reused + done;
        let progress = Progress { done, total: self.total, position, elapsed: self.reading_since.elapsed() };
        runtime.here.meters.prefill_tokens_per_s = progress.tokens_per_s();
        self.watch.reading(runtime, progress);
        runtime.show_position(position);
    }

    fn tokens(&mut self, runtime: &mut State, tokens: &[Token], looked: &[Looked], tokens_per_s: f64) {
        self.watch.tokens(runtime, tokens, looked, tokens_per_s);
    }

    fn tick(&mut self, runtime: &mut State) {
        self.watch.tick(runtime);
    }

    fn shown_again(&mut self, runtime: &mut State) {
        self.watch.shown_again(runtime);
    }

    fn end(mut self: Box<Self>, runtime: &mut State, step: Step, end: Done<JobEnd>) -> Done {
        let mut end = match end {
            Ok(end) => end,
            Err(e) => return self.over(runtime, Some(e)),
        };
        self.fed.read += end.done.prompt_in_state;
        self.fed.prefill_ms += end.done.stats.prefill_ms;
        runtime.read_at(self.fed.read, self.fed.prefill_ms);
        let answer = self.answer.as_ref().filter(|_| self.steps.is_empty());
        let (message, kept) = match answer {
            Some(answer) => (answer.message, answer.message.is_some()),
            None => (step.message, true),
        };
        let image = end.done.image.take();
        match runtime.absorb(&self.rendered, &step, &end) {
            Ok(Some((segment, complete))) if kept => runtime.save_segment(segment, image, message.filter(|_| complete)),
            Ok(_) => {}
            Err(e) => return self.over(runtime, Some(e)),
        }
        runtime.show_position(runtime.here.slot.live.position());
        let stopped = end.done.ended == Ended::Cancelled;
        self.fed.end = Some(end);
        if stopped {
            return self.over(runtime, None);
        }
        self.go_on(runtime)
    }
}

/// Shows the progress of reading text that is no `/load`.
pub(super) struct PromptReading {
    pub(super) started: Instant,
}

impl PromptReading {
    pub(super) fn begun() -> PromptReading {
        PromptReading { started: Instant::now() }
    }
}

impl Watch for PromptReading {
    fn reading(&mut self, runtime: &mut State, progress: Progress) {
        runtime.show_reading(self.started, progress);
    }
}

/// A sentence about kept state that was lost.
pub(super) fn cannot_be_used(lost: &Lost) -> String {
    let why = lost.why.trim_end_matches('.');
    if why == PRUNED {
        // All of it: which part was looked for first says nothing.
        return format!("Kept state cannot be used: {PRUNED}.");
    }
    if why.starts_with(NOT_WRITTEN) {
        // How full the disk was then says nothing of now.
        return "No state was kept: there was no room, or it could not be written.".into();
    }
    format!("Kept state cannot be used: {} of {}: {why}.", lost.what, lost.segment.short())
}

impl State {
    /// Plans once what is being written is there to be planned with. `then` gets [`RuntimeError::Stopped`] if it was stopped
    /// meanwhile; [`State::fitting`] refuses what does not fit.
    pub(super) fn when_planned(
        &mut self,
        rendered: Arc<Rendered>,
        planner: Planner,
        then: impl FnOnce(&mut State, Arc<Rendered>, Done<Plan>) -> Done + Send + 'static,
    ) -> Done {
        if rendered.text.len() >= SHOWN_TOKENIZING {
            self.activity(Activity::Busy { what: "tokenizing".into() });
        }
        if !self.wants_stored(&rendered) {
            let plan = planner(self, &rendered);
            return then(self, rendered, plan);
        }
        self.when_saved(self.disk.states(), move |runtime| {
            let plan =
                if runtime.here.slot.stopped() { Err(RuntimeError::Stopped) } else { planner(runtime, &rendered) };
            then(runtime, rendered, plan)
        })
    }

    /// Carries a plan out. `then` gets [`RuntimeError::RowsLost`] where kept state turned out damaged on its way: it may plan
    /// anew. With `answer`, the last step is answered.
    pub(super) fn execute<W: Watch>(
        &mut self,
        plan: Plan,
        rendered: Arc<Rendered>,
        answer: Option<ToAnswer>,
        watch: W,
        then: impl FnOnce(&mut State, W, Done<Fed>) -> Done + Send + 'static,
    ) -> Done {
        let started = Instant::now();
        let of = Arc::clone(&rendered);
        let planner = if answer.is_some() { State::plan_answer } else { State::plan };
        // What leaves no trace goes back to what was live before it.
        let stays = answer.as_ref().is_none_or(|a| a.message.is_some());
        self.activate(plan, of, planner, move |runtime, plan| {
            let plan = match plan {
                Ok(plan) => plan,
                Err(e) => return then(runtime, watch, Err(e)),
            };
            runtime.here.session.is_unread &= !stays;
            for (message, segment) in &plan.found {
                runtime.point(*message, *segment);
            }
            let (total, reused) = (plan.to_read(), plan.base.position());
            let fed = Fed { reused, ..Fed::default() };
            let steps = plan.steps.into();
            let reading_since = Instant::now();
            Box::new(Execution { rendered, steps, answer, watch, fed, total, started, reading_since, then })
                .go_on(runtime)
        })
    }

    /// Makes the plan's base live. State that turns out to be unusable is left out and planned around.
    pub(super) fn activate(
        &mut self,
        plan: Plan,
        rendered: Arc<Rendered>,
        planner: Planner,
        then: impl FnOnce(&mut State, Done<Plan>) -> Done + Send + 'static,
    ) -> Done {
        if self.here.slot.is_at(&plan.base) {
            self.here.slot.read_as(&plan.base);
            return then(self, Ok(plan));
        }
        self.activity(Activity::Restoring { share: None, tokens: plan.base.position() });
        let base = plan.base.clone();
        self.restore(base, move |runtime, usable| match usable {
            Ok(true) => then(runtime, Ok(plan)),
            Ok(false) => match planner(runtime, &rendered) {
                Ok(plan) => {
                    runtime.say_reading_again(&plan);
                    runtime.activate(plan, rendered, planner, Box::new(then) as Then<Done<Plan>>)
                }
                Err(e) => then(runtime, Err(e)),
            },
            Err(e) => then(runtime, Err(e)),
        })
    }

    /// Makes `path` live; rows it shares with the live path stay where they are. `then` gets false when the store found that
    /// its state is not usable after all, and has noted it: the next plan is another one.
    pub(super) fn restore(
        &mut self,
        path: Path,
        then: impl FnOnce(&mut State, Done<bool>) -> Done + Send + 'static,
    ) -> Done {
        let begun = Instant::now();
        let have = self.here.slot.live.common(&path);
        let keep = path.prefix(have).position();
        let (rows, end) = match path.head() {
            None => (Vec::new(), None),
            Some(_) if self.engine.server().is_some() => (Vec::new(), None),
            Some(tip) => match self.disk.store.open_what_can_be_read(&tip, have) {
                Ok(opened) if opened.plan.usable != path.segments().len() => {
                    if let Some(lost) = opened.plan.lost.first() {
                        self.note(Level::Warn, cannot_be_used(lost));
                    }
                    return then(self, Ok(false));
                }
                Ok(opened) => (opened.rows, opened.end),
                Err(e) => return then(self, Err(e.into())),
            },
        };
        let open_ms = begun.elapsed().as_secs_f64() * 1e3;
        let coming = rows.clone();
        let id = match self.start_restore(&path, keep, rows, end) {
            Ok(id) => id,
            Err(e) => return then(self, Err(e)),
        };
        let then = move |runtime: &mut State, done: Done<f64>| {
            let done = match done {
                Ok(restore_ms) => {
                    tracing::debug!(open_ms, restore_ms, "state put back");
                    runtime.here.slot.in_flight = coming;
                    Ok(true)
                }
                // Rows are checked as they are read: damage shows only now.
                Err(e) => match runtime.disk.set_aside(e) {
                    lost @ RuntimeError::RowsLost(_) => {
                        runtime.note(Level::Warn, lost.to_string());
                        Ok(false)
                    }
                    e => Err(e),
                },
            };
            then(runtime, done)
        };
        self.here.work = Work::Restoring { id, target: path, then: Box::new(then) };
        Ok(())
    }

    /// Progress of reading a prompt.
    pub(super) fn show_reading(&mut self, started: Instant, progress: Progress) {
        let Progress { done, total, position, .. } = progress;
        if total < SHOWN_READING {
            return;
        }
        self.working(Activity::Reading(ReadingProgress {
            files: Vec::new(),
            done,
            total,
            tokens_per_s: progress.tokens_per_s(),
            elapsed_ms: started.elapsed().as_secs_f64() * 1000.0,
            left_after: self.here.meters.context_limit.saturating_sub(position - done + total),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SegmentId;

    #[test]
    fn state_that_was_never_written_is_not_said_to_be_kept() {
        let said =
            |why: &str| cannot_be_used(&Lost { segment: SegmentId([0x1a; 32]), what: "KV rows", why: why.into() });
        let full = format!("{NOT_WRITTEN}State needs 800 KiB, 0 B free above the 5.0 GiB reserve.");
        assert_eq!(said(&full), "No state was kept: there was no room, or it could not be written.");
        assert_eq!(said(PRUNED), "Kept state cannot be used: it was pruned.");
        assert_eq!(said("damaged: odd"), "Kept state cannot be used: KV rows of 1a1a1a1a: damaged: odd.");
    }
}
