//! Executes the plans of a conversation: its base is restored from the store, and its steps are read, answered and
//! recorded ([`super::executor`]). Keeps the engine's state at the head of the conversation, as the next question will
//! find it.
//!
//! Ask, load, resume, undo, fork and reading again run in the conversation's own slot ([`Verb::execute`]); branches of
//! [`super::fan_out`] run in other slots. Both restore with [`Verb::restore`] and continue with [`Executor::run`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::executor::{Executor, Progress};
use super::link::Engine;
use super::render::SMALL_REST;
use super::verb::Work;
use super::{
    Activity, Done, Form, Path, Plan, PrefillStats, Rendered, RuntimeError, Sink, Slot, State, ToAnswer, Verb, Wake,
    grouped,
};
use crate::config::settings::SaveStates;
use crate::core::transcript::MessageId;
use crate::engine::protocol::{EngineEvent, EngineFault, JobDone, RowSource, StateImage};
use crate::runtime::protocol::ReadingProgress;
use crate::store::{Change, Lost, NOT_WRITTEN, NewSegment};
use crate::text::TextError;

pub(super) const THIS_CONVERSATION: &str = "This conversation";

const SHOWN_READING: u64 = 512;
/// Shortest text with a tokenizing display, in bytes.
const SHOWN_TOKENIZING: usize = 1 << 20;

/// Average over the whole run, so that the estimated time left does not jump.
pub(super) fn per_second(tokens: u64, elapsed: Duration) -> f64 {
    match elapsed.as_secs_f64() {
        s if s > 0.0 => tokens as f64 / s,
        _ => 0.0,
    }
}

pub(super) type Planner = fn(&State, &Rendered) -> Done<Plan>;

pub(super) fn cannot_be_used(lost: &Lost) -> String {
    let why = lost.why.trim_end_matches('.');
    format!("State cannot be used: {}.", why.strip_prefix(NOT_WRITTEN).unwrap_or(why))
}

impl RuntimeError {
    /// Whether another plan repairs the loss: always for saved state, `once` after a crash or a park of the engine.
    pub(super) fn is_mended_by_reading(&self, once: &mut bool) -> bool {
        let gone = matches!(self, RuntimeError::Engine(EngineFault::Gone(_) | EngineFault::Evicted));
        matches!(self, RuntimeError::RowsLost(_)) || (gone && !std::mem::replace(once, true))
    }
}

impl Verb {
    /// Plans after pending saves are on disk; [`State::fitting`] refuses a text that does not fit.
    pub async fn planned(&mut self, rendered: &Rendered, planner: Planner) -> Done<Plan> {
        if rendered.text.len() >= SHOWN_TOKENIZING {
            self.activity(Activity::Busy { what: "tokenizing".into() });
        }
        if self.may_be_deeper_on_disk(&self.here.slot.live.unchanged(&rendered.text)) {
            self.states_saved().await;
            self.unstopped()?;
        }
        planner(self, rendered)
    }

    pub async fn fitted(&mut self, rendered: &Rendered, planner: Planner, what: &str) -> Done<Plan> {
        let plan = self.planned(rendered, planner).await;
        self.fitting(plan, what)
    }

    /// Executes a plan and answers its last step. [`RuntimeError::RowsLost`]: a new plan avoids the damage.
    pub async fn execute(
        &mut self,
        plan: Plan,
        rendered: &Rendered,
        answer: Option<ToAnswer>,
        sink: &mut dyn Sink<Verb>,
    ) -> Done<PrefillStats> {
        let started = Instant::now();
        let planner = if answer.is_some() { State::plan_answer } else { State::plan };
        // After an answer without a message, the state before it is restored.
        let stays = answer.as_ref().is_none_or(|a| a.message.is_some());
        let plan = self.activate(plan, rendered, planner).await?;
        self.here.is_unread &= !stays;
        for (message, segment) in &plan.found {
            self.point(*message, *segment);
        }
        let stats = self.run(rendered, plan.steps, answer, sink).await.map_err(|e| self.disk.set_aside(e));
        // A verb that does not plan again asks the user whether to read the text again.
        self.here.resume_pending |= matches!(stats, Err(RuntimeError::RowsLost(_)));
        Ok(PrefillStats { ms: started.elapsed().as_secs_f64() * 1000.0, ..stats? })
    }

    /// Makes the plan's base live. Plans again without state that turns out unusable.
    pub async fn activate(&mut self, mut plan: Plan, rendered: &Rendered, planner: Planner) -> Done<Plan> {
        loop {
            if !self.here.slot.is_at(&plan.base) {
                self.activity(Activity::Restoring { share: None, tokens: plan.base.position() });
            }
            if self.restore(plan.base.clone()).await? {
                return Ok(plan);
            }
            plan = planner(self, rendered)?;
            self.say_reading_again(&plan);
        }
    }

    /// Makes `path` live in the slot. False: its state is unusable, and the next plan differs.
    pub async fn restore(&mut self, path: Path) -> Done<bool> {
        let (begun, own) = (Instant::now(), self.is_in_own_slot());
        let have = self.slot().live.common(&path);
        if self.slot().is_at(&path) {
            self.slot().made(path);
            return Ok(true);
        }
        if !own && self.here.slot.is_at(&path) {
            let from = self.here.slot.sequence;
            self.copy(from, path).await?;
            return Ok(true);
        }
        let (rows, end) = match path.head() {
            Some(tip) if self.engine.server().is_none() => {
                let opened = self.disk.store_of(&tip).open_path(&tip, have)?;
                if opened.plan.usable != path.segments().len() {
                    if let Some(lost) = opened.plan.lost.first().filter(|_| own) {
                        self.warn(cannot_be_used(lost));
                    }
                    return Ok(false);
                }
                (opened.rows, opened.end)
            }
            _ => (Vec::new(), None),
        };
        let open_ms = begun.elapsed().as_secs_f64() * 1e3;
        match path.head() {
            None => self.slot().in_flight.clear(),
            // Rows of the shared part may still be in flight.
            Some(_) => self.slot().in_flight.extend(rows.iter().cloned()),
        }
        let sources = rows.iter().map(|rows| Arc::clone(rows) as Arc<dyn RowSource>).collect();
        match self.make_live(path, sources, end).await {
            Ok(restore_ms) => {
                tracing::debug!(open_ms, restore_ms, "state restored");
                self.slot().in_flight = rows;
                Ok(true)
            }
            // Rows are verified as they are read, so damage shows only now.
            Err(e) => match self.disk.set_aside(e) {
                lost @ RuntimeError::RowsLost(_) if own => {
                    self.warn(lost.to_string());
                    Ok(false)
                }
                e => Err(e),
            },
        }
    }

    /// Makes the state at the head live, as the next question will find it; reads the missing part.
    pub async fn sync(&mut self) -> Done<PrefillStats> {
        self.engine_ready().await?;
        let rendered = self.known_size(self.past(), THIS_CONVERSATION)?;
        if self.is_synced(&rendered) {
            self.here.is_unread = false;
            return Ok(PrefillStats { reused: self.here.slot.live.position(), ..PrefillStats::default() });
        }
        let plan = self.fitted(&rendered, State::plan_past, THIS_CONVERSATION).await?;
        self.say_reading_again(&plan);
        self.execute(plan, &rendered, None, &mut ()).await
    }

    /// The same up to the end of the last message, unless more than a few tokens are left, which are named.
    pub async fn sync_a_few(&mut self) -> Done<PrefillStats> {
        self.engine_ready().await?;
        let rendered = self.known_size(self.past(), THIS_CONVERSATION)?;
        let plan = self.fitted(&rendered, State::plan, THIS_CONVERSATION).await?;
        let left = rendered.text.len().saturating_sub(plan.base.text_bytes());
        if left > SMALL_REST && plan.to_read() > 0 {
            self.say_cost(&plan, "Continuing from there reads", " again");
            return Ok(PrefillStats::default());
        }
        self.execute(plan, &rendered, None, &mut ()).await
    }

    /// After an answer: if the template drops thoughts, the answer is read again without them, so that the next
    /// question starts at once. After a stop nothing is read, because that could take long and interfaces wait for the
    /// stop to end; the next question does the work.
    pub async fn sync_quietly(&mut self) -> Done {
        let end = self.here.tree.head().and_then(|head| self.here.ends.get(&head)).copied();
        if self.engine.server().is_some() && end.is_some() && end == self.here.slot.live.head() {
            // A server reads nothing now, and its count covers the answer as generated, with thoughts and white space.
            return Ok(());
        }
        // The next question reports a text that does not fit.
        let no_room = |e: &RuntimeError| matches!(e, RuntimeError::Text(TextError::TooLong { .. }));
        let rendered = match self.past() {
            Err(e) if no_room(&e) => return Ok(()),
            rendered => rendered?,
        };
        if self.quitting || self.here.slot.stopped() || self.is_synced(&rendered) {
            return Ok(());
        }
        self.here.slot.begin();
        let plan = match self.planned(&rendered, State::plan).await {
            Err(e) if no_room(&e) => return Ok(()),
            plan => plan?,
        };
        if !self.fits(plan.total()) {
            return Ok(());
        }
        if !self.noted_dropped_thoughts && self.leaves_thoughts_out(&rendered) && plan.to_read() > 0 {
            self.noted_dropped_thoughts = true;
            self.info(
                "This model's template drops earlier thoughts: answers are read again without them, in the background.",
            );
        }
        self.execute(plan, &rendered, None, &mut ()).await?;
        self.report_meters();
        Ok(())
    }

    pub async fn return_to(&mut self, path: Path) -> Done {
        if self.here.slot.is_at(&path) {
            return Ok(());
        }
        self.here.slot.begin();
        self.states_saved().await;
        self.activity(Activity::Restoring { share: None, tokens: path.position() });
        if !self.restore(path).await? {
            self.sync().await?;
        }
        Ok(())
    }
}

impl State {
    pub fn say_reading_again(&self, plan: &Plan) {
        self.say_cost(plan, "Reading", self.here.again());
    }

    fn say_cost(&self, plan: &Plan, reading: &str, again: &str) {
        let (read, total, about) = (plan.to_read(), grouped(plan.total()), self.about(plan.to_read()));
        // Where a server reads, this machine reads nothing.
        if self.engine.server().is_none() && read > 0 {
            self.info(format!("{reading} {} of {total} tokens{again}{about}.", grouped(read)));
        }
    }

    /// Reports the loss, and the cost of the new read that the current work needs.
    pub fn read_lost_again(&mut self, lost: &RuntimeError, plan: &Plan) {
        self.here.resume_pending = false;
        self.warn(lost.to_string());
        self.say_reading_again(plan);
    }

    /// Whether this rendering omits the thoughts of the last answer. Unknown for a server.
    fn leaves_thoughts_out(&self, rendered: &Rendered) -> bool {
        let path = self.here.tree.path();
        let thoughts = self.engine.renderer.safe(path.last().map_or("", |m| m.thinking.trim()));
        self.engine.server().is_none() && !thoughts.is_empty() && !rendered.text.contains(&*thoughts)
    }

    pub fn past(&self) -> Done<Rendered> {
        self.rendered(&self.here.tree.path(), Form::Past)
    }
}

impl Executor for Verb {
    fn parts(&mut self) -> (&mut Engine, &mut Slot) {
        let (state, own) = self.split();
        let slot = own.as_mut().map_or(&mut state.here.slot, |own| &mut own.slot);
        (&mut state.engine, slot)
    }

    async fn event(&mut self, command: u64, restores: bool) -> (Option<EngineEvent>, bool) {
        let work = if restores { Work::Restore } else { Work::Job };
        let (wake, due) = self.wait_for_engine(vec![command], work).await;
        (if let Wake::Engine(event) = wake { Some(event) } else { None }, due)
    }

    fn keeps(&self) -> bool {
        self.here.apart.is_none() && self.own.as_ref().is_none_or(|own| own.keeps)
    }

    fn exports(&self) -> bool {
        self.disk.policy != SaveStates::Never
    }

    fn keep(&mut self, segment: NewSegment, image: Option<StateImage>, message: Option<MessageId>) {
        let id = segment.id();
        let link = message.map(|message| {
            self.here.ends.insert(message, id);
            Change::Link { message, segment: id }
        });
        let session = self.here.id;
        self.disk.segment(session, segment, link, image);
    }

    fn not_answering(&mut self, tokens: u64) {
        if let Some(share) = self.here.slot.share_in_flight().filter(|_| self.is_in_own_slot()) {
            self.working(Activity::Restoring { tokens, share: Some(share) });
        }
    }

    async fn texts_on_disk(&mut self) {
        self.texts_saved().await;
    }

    fn reading(&mut self, progress: Progress, shown: bool) {
        if self.is_in_own_slot() {
            let Progress { done, total, position, elapsed } = progress;
            let tokens_per_s = per_second(done, elapsed);
            if !shown && total >= SHOWN_READING {
                let elapsed_ms = elapsed.as_secs_f64() * 1000.0;
                let left_after = self.engine.info.context_limit.saturating_sub(position - done + total);
                let files = Vec::new();
                let shown = ReadingProgress { files, done, total, tokens_per_s, elapsed_ms, left_after };
                self.working(Activity::Reading(shown));
            }
            self.here.meters.prefill_tokens_per_s = tokens_per_s;
            self.show_position(position);
        }
    }

    fn step_ended(&mut self, stats: &PrefillStats, done: &JobDone) {
        self.engine.info.memory = done.memory;
        self.here.meters.spec.add(&done.stats.spec);
        if self.is_in_own_slot() {
            let position = self.here.slot.live.position();
            self.read_at(stats.read, stats.prefill_ms);
            self.show_position(position);
        }
    }
}
