//! Delivers engine events to the verb that waits for them, or to all conversations.

use super::link::EngineState;
use super::verb::{Verb, Wait, Wake, Work};
use super::{Attendance, Done, RuntimeError, State};
use crate::engine::protocol::{EngineEvent, EngineFault, ModelInfo};
use crate::runtime::protocol::{Activity, Level, Notice};

impl State {
    pub(super) fn on_engine(&mut self, mut event: EngineEvent) {
        let other = event.id_mut().and_then(|id| self.others.iter().position(|other| other.wait.owns(*id)));
        match (other, &event) {
            (Some(at), _) => self.on_other(at, |state| state.on_engine_here(event)),
            (None, EngineEvent::Failed { fault: fault @ EngineFault::Fatal { .. }, .. }) => {
                // Every wait for the engine ends.
                let fault = fault.clone();
                self.on_engine_here(event);
                let failed =
                    |state: &mut State| state.on_engine_here(EngineEvent::Failed { id: 0, fault: fault.clone() });
                self.on_each_other(Wait::needs_engine, failed);
            }
            (None, EngineEvent::Failed { id: 0, fault: fault @ EngineFault::Gone(_) }) => {
                // A verb that waits for a command receives the failure as that command's end.
                let fault = fault.clone();
                self.on_engine_here(event);
                self.on_each_other(|wait| !wait.uses_own_slot(), |state| state.engine_failed(&fault));
            }
            (None, EngineEvent::Ready(_)) => {
                self.on_engine_here(event);
                self.on_each_other(|wait| matches!(wait, Wait::Model), |state| state.wake(Wake::Go));
            }
            (None, _) => self.on_engine_here(event),
        }
    }

    fn on_engine_here(&mut self, mut event: EngineEvent) {
        let id = event.id_mut().copied();
        let owned = id.is_some_and(|id| self.here.wait.owns(id));
        match (&self.here.wait, event) {
            (Wait::Engine { .. }, EngineEvent::Waiting { what, .. }) if owned => self.waits(what),
            (Wait::Engine { .. }, event) if owned => self.wake(Wake::Engine(event)),
            (Wait::Engine { .. }, event @ EngineEvent::Failed { fault: EngineFault::Fatal { .. }, .. }) => {
                self.wake(Wake::Engine(event));
            }
            // A remote server reports its name and its limit only now.
            (Wait::Engine { work: Work::Job, .. }, EngineEvent::Ready(info)) => self.take_model(&info),
            (Wait::Engine { work: Work::Job, .. }, EngineEvent::Failed { .. }) => {}
            (Wait::Model, event) => {
                self.on_idle_engine(event, true);
                if !matches!(self.engine.state, EngineState::Starting) {
                    self.wake(Wake::Go);
                }
            }
            (_, event) => self.on_idle_engine(event, false),
        }
    }

    fn waits(&mut self, what: String) {
        match self.here.apart.as_mut().map(|apart| std::mem::replace(&mut apart.waits, true)) {
            Some(true) => {}
            Some(false) => self.note(Level::Warn, format!("The aside is {what}")),
            None => self.working(Activity::Busy { what }),
        }
    }

    /// An event without a waiting verb. `waited`: a verb waits for the model and reports its failure.
    fn on_idle_engine(&mut self, event: EngineEvent, waited: bool) {
        match event {
            EngineEvent::Ready(info) => {
                let known = self.engine.model().is_some_and(|m| m.fingerprint == info.fingerprint);
                self.take_model(&info);
                if known {
                    // The same model on another device.
                    return;
                }
                for note in &info.notes {
                    if self.device_notes.is_news(note) {
                        self.note(Level::Warn, note.clone());
                    }
                }
                self.model_is_known();
                // An open question does not depend on the engine.
                if !waited && (self.here.wait.is_idle() || matches!(self.here.wait, Wait::Question { .. })) {
                    self.idle();
                }
            }
            EngineEvent::Failed { fault, .. } => {
                self.engine_failed(&fault);
                let error = fault.to_string();
                match fault {
                    _ if waited => {}
                    EngineFault::Fatal { exit, .. } if self.attendance == Attendance::Absent => {
                        self.report(Notice::Fatal { error, exit });
                        self.quitting = true;
                    }
                    _ => {
                        if self.here.wait.is_idle() {
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
            // Late events of a cancelled job.
            EngineEvent::Restored { .. }
            | EngineEvent::Reading { .. }
            | EngineEvent::Tokens { .. }
            | EngineEvent::Waiting { .. }
            | EngineEvent::Evicted { .. }
            | EngineEvent::Done { .. } => {}
        }
    }

    fn take_model(&mut self, info: &ModelInfo) {
        let before = self.engine.model().and_then(|m| m.host.clone());
        self.here.meters.context_limit = info.context_limit;
        self.here.meters.model = info.clone();
        self.recall_speed();
        self.engine.loaded(info);
        self.report(Notice::Ready(info.clone()));
        self.report(Notice::Meters(self.here.meters.clone()));
        if let Some(host) = info.host.as_ref().filter(|host| before.as_ref() != Some(host)) {
            self.note(Level::Info, format!("The model runs in {host}; this terminal uses it."));
        }
    }

    /// Progress of the rows in flight, while a verb waits for them.
    pub(super) fn show_in_flight(&mut self, tokens: u64) {
        if let share @ Some(_) = self.here.slot.share_in_flight() {
            self.working(Activity::Restoring { tokens, share });
        }
    }
}

impl Verb {
    pub(super) async fn engine_ready(&mut self) -> Done {
        loop {
            match &self.engine.state {
                EngineState::Ready(_) => break,
                EngineState::Down { why, exit } => {
                    return Err(EngineFault::Fatal { why: why.clone(), exit: *exit }.into());
                }
                EngineState::Starting if self.quitting => return Err(RuntimeError::Stopped),
                EngineState::Starting => {
                    if matches!(self.wait(Wait::Model).await, Wake::Stopped) {
                        return Err(RuntimeError::Stopped);
                    }
                }
            }
        }
        let resuming = std::mem::take(&mut self.here.resume_pending);
        // If state is lost, the user decides whether to read it again. Without a user, the question's own prefill
        // reads it.
        match self.attendance {
            Attendance::Present if resuming => self.finish_resume().await?,
            Attendance::Absent if resuming => self.say_lost_state(),
            Attendance::Present | Attendance::Absent => {}
        }
        Ok(())
    }
}
