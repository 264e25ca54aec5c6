//! What the engine says: to the present [`Work`], or to nobody in particular.

use super::link::{EngineState, JobEnd};
use super::work::Feeding;
use super::{Attendance, Done, RuntimeError, State, Then, Work};
use crate::engine::protocol::{EngineEvent, EngineFault, JobDone, ModelInfo};
use crate::runtime::protocol::{Activity, Level, Notice};

impl State {
    /// Hands an event to whoever it is about.
    pub(super) fn on_engine(&mut self, mut event: EngineEvent) {
        let seat = event.id_mut().and_then(|id| self.seat_at_work_on(*id));
        match (seat, &event) {
            (Some(at), _) => self.beside(at, |runtime| runtime.on_engine_in_hand(event)),
            (None, EngineEvent::Failed { fault: fault @ EngineFault::Fatal { .. }, .. }) => {
                // All that needs it ends.
                let fault = fault.clone();
                self.on_engine_in_hand(event);
                let told = |runtime: &mut State| {
                    runtime.on_engine_in_hand(EngineEvent::Failed { id: 0, fault: fault.clone() })
                };
                self.beside_each(Work::needs_engine, told);
            }
            (None, EngineEvent::Failed { id: 0, fault: fault @ EngineFault::Gone(_) }) => {
                // Whoever waits for a command hears it as the end of that.
                let fault = fault.clone();
                self.on_engine_in_hand(event);
                let no_command = |work: &Work| !matches!(work, Work::Restoring { .. } | Work::Feeding(_));
                self.beside_each(no_command, |runtime| runtime.engine_failed(&fault));
            }
            (None, EngineEvent::Ready(_)) => {
                self.on_engine_in_hand(event);
                self.beside_each(|work| matches!(work, Work::Starting(_)), State::engine_is_there);
            }
            (None, _) => self.on_engine_in_hand(event),
        }
    }

    /// Somebody waited for the engine in a conversation that was left.
    fn engine_is_there(&mut self) {
        match std::mem::take(&mut self.here.work) {
            Work::Starting(then) => self.resumed(then, ()),
            work => self.here.work = work,
        }
    }

    fn on_engine_in_hand(&mut self, event: EngineEvent) {
        let concerns = |id: u64, of: u64, fault: &EngineFault| of == id || matches!(fault, EngineFault::Fatal { .. });
        match (std::mem::take(&mut self.here.work), event) {
            (work, EngineEvent::Waiting { id, what }) if work.owns(id) => {
                self.here.work = work;
                self.waits(what);
            }
            (Work::Restoring { id, target, then }, EngineEvent::Restored { id: of, ms }) if of == id => {
                self.here.slot.made(target);
                self.resumed(then, Ok(ms));
            }
            (Work::Restoring { id, then, .. }, EngineEvent::Failed { id: of, fault }) if concerns(id, of, &fault) => {
                self.engine_failed(&fault);
                self.resumed(then, Err(fault.into()));
            }
            (Work::Feeding(f), EngineEvent::Failed { id: of, fault }) if concerns(f.id, of, &fault) => {
                self.engine_failed(&fault);
                let done = f.feed.end(self, f.step, Err(fault.into()));
                self.after(done);
            }
            (Work::Feeding(f), event) => self.on_job(f, event),
            (Work::Branching(branching), event) => {
                if let Some(other) = self.on_branches(branching, event) {
                    self.on_idle_engine(other, false);
                }
            }
            (Work::Starting(then), event) => {
                self.on_idle_engine(event, true);
                match self.engine.state {
                    EngineState::Starting => self.here.work = Work::Starting(then),
                    EngineState::Ready(_) | EngineState::Down { .. } => self.resumed(then, ()),
                }
            }
            (work, event) => {
                self.here.work = work;
                self.on_idle_engine(event, false);
            }
        }
    }

    /// The engine waits with what goes on: for memory, for a server.
    fn waits(&mut self, what: String) {
        match self.here.apart.as_mut().map(|apart| std::mem::replace(&mut apart.waits, true)) {
            Some(true) => {}
            Some(false) => self.note(Level::Warn, format!("The aside is {what}")),
            None => self.working(Activity::Busy { what }),
        }
    }

    /// Something about the job that runs, or a late word of one that was given up.
    fn on_job(&mut self, mut f: Feeding, event: EngineEvent) {
        f.look(self);
        match event {
            EngineEvent::Reading { id, done, .. } if id == f.id => f.feed.reading(self, done),
            EngineEvent::Tokens { id, tokens, tokens_per_s, looked, .. } if id == f.id => {
                f.feed.tokens(self, &tokens, &looked, tokens_per_s);
                f.generated.extend_from_slice(&tokens);
            }
            EngineEvent::Done { id, done } if id == f.id => {
                self.count_job(&done);
                let done = f.feed.end(self, f.step, Ok(JobEnd { done, generated: f.generated }));
                return self.after(done);
            }
            // A server has told its name and its limit only now.
            EngineEvent::Ready(info) => self.take_model(&info),
            EngineEvent::Note(text) => self.note(Level::Warn, text),
            EngineEvent::Failed { .. }
            | EngineEvent::Loading { .. }
            | EngineEvent::Restored { .. }
            | EngineEvent::Reading { .. }
            | EngineEvent::Tokens { .. }
            | EngineEvent::Waiting { .. }
            | EngineEvent::Evicted { .. }
            | EngineEvent::Done { .. } => {}
        }
        self.here.work = Work::Feeding(f);
    }

    /// What the end of a job says of the engine.
    pub(super) fn count_job(&mut self, done: &JobDone) {
        self.here.meters.model.memory = done.memory;
        self.here.meters.spec.add(&done.stats.spec);
    }

    /// An engine event outside any job. `waited`: somebody waits for the engine, and is told of its failure.
    fn on_idle_engine(&mut self, event: EngineEvent, waited: bool) {
        match event {
            EngineEvent::Ready(info) => {
                let known = self.engine.model().is_some_and(|m| m.fingerprint == info.fingerprint);
                self.take_model(&info);
                if known {
                    // The same model somewhere else.
                    return;
                }
                for note in &info.notes {
                    if self.device_notes.is_news(note) {
                        self.note(Level::Warn, note.clone());
                    }
                }
                self.model_is_known();
                // A question that waits since before does not wait for the engine.
                if !waited && (self.here.work.is_idle() || matches!(self.here.work, Work::Asking { .. })) {
                    self.idle();
                }
            }
            EngineEvent::Failed { fault, .. } => {
                self.engine_failed(&fault);
                let error = fault.to_string();
                match fault {
                    _ if waited => {}
                    EngineFault::Fatal { exit, .. } if self.attendance == Attendance::Absent => {
                        self.tell(Notice::Fatal { error, exit });
                        self.quitting = true;
                    }
                    _ => {
                        if self.here.work.is_idle() {
                            self.idle();
                        }
                        self.note(Level::Error, error);
                    }
                }
            }
            EngineEvent::Loading { what, done } => {
                let what = if done > 0.0 { format!("{what} {:.0}%", done * 100.0) } else { what };
                self.activity(Activity::Starting { what });
            }
            EngineEvent::Note(text) => self.note(Level::Warn, text),
            // Late events of a job that was given up.
            EngineEvent::Restored { .. }
            | EngineEvent::Reading { .. }
            | EngineEvent::Tokens { .. }
            | EngineEvent::Waiting { .. }
            | EngineEvent::Evicted { .. }
            | EngineEvent::Done { .. } => {}
        }
    }

    /// What answers is known, and how much fits.
    fn take_model(&mut self, info: &ModelInfo) {
        let before = self.engine.model().and_then(|m| m.host.clone());
        self.here.meters.context_limit = info.context_limit;
        self.here.meters.model = info.clone();
        self.engine.loaded(info);
        self.tell(Notice::Ready(info.clone()));
        self.tell(Notice::Meters(self.here.meters.clone()));
        if let Some(host) = info.host.as_ref().filter(|host| before.as_ref() != Some(host)) {
            self.note(Level::Info, format!("The model runs in {host}; this terminal uses it."));
        }
    }

    /// Progress of the rows in flight, while somebody waits for them.
    pub(super) fn show_in_flight(&mut self, tokens: u64) {
        if let share @ Some(_) = self.here.slot.share_in_flight() {
            self.working(Activity::Restoring { tokens, share });
        }
    }

    /// Goes on once the model is loaded and the state of a session that was just opened is back.
    pub(super) fn with_engine(&mut self, then: impl FnOnce(&mut State) -> Done + Send + 'static) -> Done {
        self.when_ready(Box::new(|runtime, ()| then(runtime)))
    }

    fn when_ready(&mut self, then: Then<()>) -> Done {
        match &self.engine.state {
            EngineState::Ready(_) => {
                let resuming = std::mem::take(&mut self.here.resume_pending);
                // Whoever asks in a session whose state is lost is asked first whether to read it again. With nobody
                // there to answer, the question's own prefill reads what is missing.
                match self.attendance {
                    Attendance::Present if resuming => return self.finish_resume(then),
                    Attendance::Absent if resuming => self.say_lost_state(),
                    Attendance::Present | Attendance::Absent => {}
                }
                then(self, ())
            }
            EngineState::Down { why, exit } => Err(EngineFault::Fatal { why: why.clone(), exit: *exit }.into()),
            EngineState::Starting if self.quitting => Err(RuntimeError::Stopped),
            EngineState::Starting => {
                self.here.work = Work::Starting(Box::new(|runtime, ()| runtime.when_ready(then)));
                Ok(())
            }
        }
    }
}
