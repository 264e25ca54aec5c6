//! The one executor: makes the base of a plan live, reads and records its steps one by one, and may answer the last
//! one.
//!
//! Ask, load, resume, undo, fork and reading again run in the conversation's own slot ([`Verb::execute`]); branches of
//! [`super::fan_out`] run in other slots. Both restore with [`Verb::restore`] and read with [`Verb::run`].

use std::time::{Duration, Instant};

use super::link::JobEnd;
use super::path::Path;
use super::plan::Plan;
use super::render::Rendered;
use super::segments::Step;
use super::slot::Last;
use super::verb::{Verb, Wake, Work};
use super::{Done, RuntimeError, State};
use crate::config::settings::SaveStates;
use crate::core::transcript::MessageId;
use crate::engine::protocol::{Ended, EngineEvent, EngineFault, Looked, StateImage, Token};
use crate::runtime::protocol::{Activity, Level, ReadingProgress};
use crate::store::{Lost, NOT_WRITTEN, NewSegment, PRUNED};

const SHOWN_READING: u64 = 512;
/// Shortest text with a tokenizing display, in bytes.
const SHOWN_TOKENIZING: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct PrefillStats {
    /// Tokens from kept or live state.
    pub(super) reused: u64,
    pub(super) read: u64,
    /// Prefill time, milliseconds.
    pub(super) prefill_ms: f64,
    /// Total time, milliseconds.
    pub(super) ms: f64,
    pub(super) end: Option<JobEnd>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Tokens read, over all steps.
    pub(super) done: u64,
    pub(super) total: u64,
    /// Tokens in the state.
    pub(super) position: u64,
    /// Since the start of the first step.
    pub(super) elapsed: Duration,
}

impl Progress {
    /// Average over the whole run, so that the estimated time left does not jump.
    pub(super) fn tokens_per_s(&self) -> f64 {
        per_second(self.done, self.elapsed)
    }
}

pub(super) fn per_second(tokens: u64, elapsed: Duration) -> f64 {
    match elapsed.as_secs_f64() {
        s if s > 0.0 => tokens as f64 / s,
        _ => 0.0,
    }
}

pub(super) trait Sink {
    fn reading(&mut self, _state: &mut State, _progress: Progress) {}
    /// A round of decoding, with the attention of each token if requested.
    fn tokens(&mut self, _state: &mut State, _tokens: &[Token], _looked: &[Looked], _tokens_per_s: f64) {}
    /// Called regularly, to save and to refresh numbers.
    fn tick(&mut self, _state: &mut State) {}
    /// A segment with its state; `message` ends in it.
    fn segment(
        &mut self,
        state: &mut State,
        segment: NewSegment,
        image: Option<StateImage>,
        complete: bool,
        message: Option<MessageId>,
    ) {
        state.save_segment(segment, image, message.filter(|_| complete));
    }
}

pub(super) type Planner = fn(&State, &Rendered) -> Done<Plan>;

#[derive(Clone, Debug)]
pub(super) struct ToAnswer {
    pub(super) last: Last,
    /// The message that ends with the answer; `None` keeps nothing of the last step in the store (an aside).
    pub(super) message: Option<MessageId>,
}

pub(super) struct PromptReading {
    started: Instant,
}

impl PromptReading {
    pub(super) fn begun() -> PromptReading {
        PromptReading { started: Instant::now() }
    }
}

impl Sink for PromptReading {
    fn reading(&mut self, state: &mut State, progress: Progress) {
        state.show_reading(self.started, progress);
    }
}

pub(super) fn cannot_be_used(lost: &Lost) -> String {
    let why = lost.why.trim_end_matches('.');
    if why == PRUNED {
        // All kept state is deleted, so the part that was found missing first does not matter.
        return format!("Kept state cannot be used: {PRUNED}.");
    }
    if why.starts_with(NOT_WRITTEN) {
        // How full the disk was then does not matter now.
        return "No state was kept: there was no room, or it could not be written.".into();
    }
    format!("Kept state cannot be used: {} of {}: {why}.", lost.what, lost.segment.short())
}

impl Verb {
    /// Plans after pending saves are on disk. [`RuntimeError::Stopped`] after a stop; [`State::fitting`] refuses a
    /// text that does not fit.
    pub(super) async fn planned(&mut self, rendered: &Rendered, planner: Planner) -> Done<Plan> {
        if rendered.text.len() >= SHOWN_TOKENIZING {
            self.activity(Activity::Busy { what: "tokenizing".into() });
        }
        if self.wants_stored(rendered) {
            let wanted = self.disk.states();
            if !self.disk.has(wanted) {
                self.saved(wanted).await;
            }
            if self.here.slot.stopped() {
                return Err(RuntimeError::Stopped);
            }
        }
        planner(self, rendered)
    }

    /// Executes a plan. [`RuntimeError::RowsLost`] if kept state is damaged: a new plan avoids it. With `answer`, the
    /// model answers the last step.
    pub(super) async fn execute(
        &mut self,
        plan: Plan,
        rendered: &Rendered,
        answer: Option<ToAnswer>,
        sink: &mut dyn Sink,
    ) -> Done<PrefillStats> {
        let started = Instant::now();
        let planner = if answer.is_some() { State::plan_answer } else { State::plan };
        // After an answer without a message, the state before it is restored.
        let stays = answer.as_ref().is_none_or(|a| a.message.is_some());
        let plan = self.activate(plan, rendered, planner).await?;
        self.here.session.is_unread &= !stays;
        for (message, segment) in &plan.found {
            self.point(*message, *segment);
        }
        let mut stats = PrefillStats { reused: plan.base.position(), ..PrefillStats::default() };
        let done = self.run(rendered, plan.steps, answer, &mut stats, sink).await;
        stats.ms = started.elapsed().as_secs_f64() * 1000.0;
        match done.map_err(|e| self.disk.set_aside(e)) {
            Ok(()) => Ok(stats),
            Err(e) => {
                // A verb that does not plan again asks the user whether to read the text again.
                self.here.resume_pending |= matches!(e, RuntimeError::RowsLost(_));
                Err(e)
            }
        }
    }

    /// Makes the plan's base live. Plans again without state that turns out unusable.
    pub(super) async fn activate(&mut self, mut plan: Plan, rendered: &Rendered, planner: Planner) -> Done<Plan> {
        while !self.here.slot.is_at(&plan.base) {
            self.activity(Activity::Restoring { share: None, tokens: plan.base.position() });
            if self.restore(plan.base.clone()).await? {
                return Ok(plan);
            }
            plan = planner(self, rendered)?;
            self.say_reading_again(&plan);
        }
        self.here.slot.read_as(&plan.base);
        Ok(plan)
    }

    /// Makes `path` live in the slot; rows that it shares with the live path stay in place. False: the store found the
    /// state unusable and recorded that, so that the next plan differs.
    pub(super) async fn restore(&mut self, path: Path) -> Done<bool> {
        let (begun, own) = (Instant::now(), self.is_in_own_slot());
        let (sequence, have) = (self.slot().sequence, self.slot().live.common(&path));
        if !own && self.here.slot.is_at(&path) {
            let from = self.here.slot.sequence;
            let id = self.start_fork(from, sequence)?;
            return self.restored(id, path).await.map(|_| true);
        }
        let (rows, end) = match path.head() {
            None => (Vec::new(), None),
            Some(_) if self.engine.server().is_some() => (Vec::new(), None),
            Some(tip) => {
                let opened = self.disk.open(&tip, have)?;
                if opened.plan.usable != path.segments().len() {
                    if let Some(lost) = opened.plan.lost.first().filter(|_| own) {
                        self.note(Level::Warn, cannot_be_used(lost));
                    }
                    return Ok(false);
                }
                (opened.rows, opened.end)
            }
        };
        let open_ms = begun.elapsed().as_secs_f64() * 1e3;
        match path.head() {
            None => self.slot().in_flight.clear(),
            // Rows of the shared part may still be in flight.
            Some(_) => self.slot().in_flight.extend(rows.iter().cloned()),
        }
        let id = self.start_restore(sequence, &path, path.prefix(have).position(), rows.clone(), end)?;
        match self.restored(id, path).await {
            Ok(restore_ms) => {
                tracing::debug!(open_ms, restore_ms, "state restored");
                self.slot().in_flight = rows;
                Ok(true)
            }
            // Rows are verified as they are read, so damage shows only now.
            Err(e) => match self.disk.set_aside(e) {
                lost @ RuntimeError::RowsLost(_) if own => {
                    self.note(Level::Warn, lost.to_string());
                    Ok(false)
                }
                e => Err(e),
            },
        }
    }

    /// Waits for a command that makes `path` live; returns its duration in milliseconds.
    pub(super) async fn restored(&mut self, id: u64, path: Path) -> Done<f64> {
        loop {
            match self.wait_for_engine(vec![id], Work::Restore).await.0 {
                Wake::Engine(EngineEvent::Restored { ms, .. }) => {
                    self.slot().made(path);
                    return Ok(ms);
                }
                Wake::Engine(EngineEvent::Failed { fault, .. }) => return Err(self.slot_failed(fault)),
                _ if self.is_in_own_slot() => self.show_in_flight(path.position()),
                _ => {}
            }
        }
    }

    /// After any failure the slot's state is empty; after a fatal one the engine is down.
    fn slot_failed(&mut self, fault: EngineFault) -> RuntimeError {
        self.slot().lose();
        if self.is_in_own_slot() || matches!(fault, EngineFault::Fatal { .. }) {
            self.engine_failed(&fault);
        }
        fault.into()
    }

    /// Reads steps on top of the slot's state and answers the last one if `answer` is given. A stop ends it early.
    pub(super) async fn run(
        &mut self,
        rendered: &Rendered,
        steps: Vec<Step>,
        mut answer: Option<ToAnswer>,
        stats: &mut PrefillStats,
        sink: &mut dyn Sink,
    ) -> Done {
        let total = steps.iter().map(|s| s.prompt.len() as u64).sum();
        let (since, count) = (Instant::now(), steps.len());
        // A branch without a message is not saved.
        let keeps = self.is_in_own_slot() || answer.as_ref().is_none_or(|a| a.message.is_some());
        for (step, left) in steps.into_iter().zip((0..count).rev()) {
            let answer = answer.take_if(|_| left == 0);
            let kept = answer.as_ref().map_or(keeps, |a| a.message.is_some());
            let message = answer.as_ref().map_or(step.message, |a| a.message);
            let export = kept && self.here.apart.is_none() && self.disk.policy != SaveStates::Never;
            let sequence = self.slot().sequence;
            let id = self.start_job(sequence, step.prompt.clone(), answer.map(|a| a.last), export)?;
            let mut end = self.job(id, (total, since), stats, sink).await?;
            stats.read += end.done.prompt_in_state;
            stats.prefill_ms += end.done.stats.prefill_ms;
            let image = end.done.image.take();
            let absorbed = self.absorb(rendered, &step, &end)?;
            if let Some((segment, complete)) = absorbed.filter(|_| kept) {
                sink.segment(self, segment, image, complete, message);
            }
            if self.is_in_own_slot() {
                let position = self.here.slot.live.position();
                self.read_at(stats.read, stats.prefill_ms);
                self.show_position(position);
            }
            let stopped = end.done.ended == Ended::Cancelled;
            stats.end = Some(end);
            if stopped {
                break;
            }
        }
        Ok(())
    }

    async fn job(
        &mut self,
        id: u64,
        (total, since): (u64, Instant),
        stats: &PrefillStats,
        sink: &mut dyn Sink,
    ) -> Done<JobEnd> {
        let mut generated = Vec::new();
        loop {
            let (wake, due) = self.wait_for_engine(vec![id], Work::Job).await;
            match wake {
                Wake::Engine(EngineEvent::Reading { done, .. }) if self.is_in_own_slot() => {
                    let done = stats.read + done;
                    let position = stats.reused + done;
                    let progress = Progress { done, total, position, elapsed: since.elapsed() };
                    self.here.meters.prefill_tokens_per_s = progress.tokens_per_s();
                    sink.reading(self, progress);
                    self.show_position(position);
                }
                Wake::Engine(EngineEvent::Tokens { tokens, tokens_per_s, looked, .. }) => {
                    sink.tokens(self, &tokens, &looked, tokens_per_s);
                    generated.extend_from_slice(&tokens);
                }
                Wake::Engine(EngineEvent::Done { done, .. }) => {
                    self.count_job(&done);
                    return Ok(JobEnd { done, generated });
                }
                Wake::Engine(EngineEvent::Failed { fault, .. }) => return Err(self.slot_failed(fault)),
                _ => {}
            }
            if due && self.is_in_own_slot() {
                sink.tick(self);
                if generated.is_empty() {
                    let position = self.here.slot.live.position();
                    self.show_in_flight(position);
                }
            }
        }
    }

    /// Adds the result of a job to the slot's path. Returns the segment and whether the whole step was read; `None` if
    /// the job did nothing.
    fn absorb(&mut self, rendered: &Rendered, step: &Step, end: &JobEnd) -> Done<Option<(NewSegment, bool)>> {
        let mut live = std::mem::take(&mut self.slot().live);
        let absorbed = self.absorbed(&mut live, rendered, step, end);
        match absorbed {
            Ok(_) => self.slot().live = live,
            Err(_) => self.slot().lose(),
        }
        absorbed
    }
}

impl State {
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
    fn state_that_was_never_written_is_not_called_kept() {
        let sentence =
            |why: &str| cannot_be_used(&Lost { segment: SegmentId([0x1a; 32]), what: "KV rows", why: why.into() });
        let full = format!("{NOT_WRITTEN}State needs 800 KiB, 0 B free above the 5.0 GiB reserve.");
        assert_eq!(sentence(&full), "No state was kept: there was no room, or it could not be written.");
        assert_eq!(sentence(PRUNED), "Kept state cannot be used: it was pruned.");
        assert_eq!(sentence("damaged: odd"), "Kept state cannot be used: KV rows of 1a1a1a1a: damaged: odd.");
    }
}
