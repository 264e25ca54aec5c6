//! Delivers engine events to the verb that waits for them, or to all conversations.

use super::link::EngineState;
use super::verb::Work;
use super::{Activity, Attendance, DeviceNotes, Done, Level, Notice, RuntimeError, State, Verb, Wait, Wake, refused};
use crate::engine::protocol::{Command, EngineEvent, EngineFault, ModelInfo};
use crate::store::{Access, Change};

const PARKED: &str = "Parked: the memory of the model is free. The next question, or /unpark, brings it back.";

impl State {
    pub fn engine_failed(&mut self, fault: &EngineFault) {
        self.engine.failed(&mut self.here.slot, fault);
    }

    pub fn on_engine(&mut self, mut event: EngineEvent) {
        let owner = event.id_mut().and_then(|id| self.here.all.iter().position(|c| c.wait.owns(*id)));
        match (owner, event) {
            (_, EngineEvent::Failed { fault: fault @ EngineFault::Fatal { .. }, .. }) => self.on_fatal(fault),
            (Some(at), EngineEvent::Waiting { what, .. }) => self.on(at, |state| state.engine_waits(what)),
            (Some(at), event) => self.here.all[at].wake = Some(Wake::Engine(event)),
            (None, event) => self.on_unowned(event),
        }
        if !matches!(self.engine.state, EngineState::Starting) {
            let waiting = self.here.all.iter_mut().filter(|c| matches!(c.wait, Wait::Model));
            waiting.for_each(|c| c.wake = Some(Wake::Go));
        }
    }

    /// Every verb that waits for the engine receives the failure as the end of its command.
    fn on_fatal(&mut self, fault: EngineFault) {
        for c in self.here.all.iter_mut().filter(|c| matches!(c.wait, Wait::Engine { .. })) {
            c.wake = Some(Wake::Engine(EngineEvent::Failed { id: 0, fault: fault.clone() }));
        }
        match self.here.wait {
            Wait::Engine { .. } => {}
            _ => self.on_fault(fault),
        }
    }

    /// An event that no verb waits for, or one that concerns every conversation.
    fn on_unowned(&mut self, event: EngineEvent) {
        let in_job = matches!(self.here.wait, Wait::Engine { work: Work::Job, .. });
        match event {
            // A remote server reports its name and its limit only during a job.
            EngineEvent::Ready(info) if in_job => self.take_model(&info),
            EngineEvent::Ready(info) => {
                let known = self.engine.model().is_some_and(|m| m.fingerprint == info.fingerprint);
                self.take_model(&info);
                // Else it is the same model on another device, parked, or loaded again.
                if !known {
                    info.notes.iter().for_each(|note| self.note_on_device(note));
                    self.find_state();
                }
                // An open question does not depend on the engine.
                if self.here.wait.is_idle() || !known && matches!(self.here.wait, Wait::Question { .. }) {
                    self.idle();
                }
            }
            EngineEvent::Failed { id, fault } => {
                if id == 0 && matches!(fault, EngineFault::Gone(_)) {
                    // A verb that waits for a command receives the failure as that command's end.
                    let own = |wait: &Wait| matches!(wait, Wait::Engine { work: Work::Job | Work::Restore, .. });
                    self.here.all.iter_mut().filter(|c| !own(&c.wait)).for_each(|c| c.slot.lose());
                }
                if !in_job {
                    self.on_fault(fault);
                }
            }
            EngineEvent::Evicted { sequence } => {
                let evicted = self.here.all.iter_mut().filter(|c| c.slot.sequence == sequence);
                evicted.for_each(|c| c.slot.lose());
            }
            EngineEvent::Loading { what, done } => {
                let what = if done > 0.0 { format!("{what} {:.0}%", done * 100.0) } else { what };
                self.activity(Activity::Starting { what });
            }
            EngineEvent::Note(text) => self.warn(text),
            // Late events of a cancelled job.
            EngineEvent::Restored { .. }
            | EngineEvent::Reading { .. }
            | EngineEvent::Tokens { .. }
            | EngineEvent::Waiting { .. }
            | EngineEvent::Done { .. } => {}
        }
    }

    /// A verb that waits for the model reports the failure itself.
    fn on_fault(&mut self, fault: EngineFault) {
        self.engine_failed(&fault);
        let error = fault.to_string();
        match fault {
            _ if matches!(self.here.wait, Wait::Model) => {}
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

    fn engine_waits(&mut self, what: String) {
        match self.here.apart.as_mut().map(|apart| std::mem::replace(&mut apart.waits, true)) {
            Some(true) => {}
            Some(false) => self.warn(format!("The aside is {what}")),
            None => self.working(Activity::Busy { what }),
        }
    }

    fn note_on_device(&mut self, note: &str) {
        let name = format!("noted {}", blake3::hash(note.as_bytes()).to_hex());
        match self.options.device_notes {
            DeviceNotes::None => return,
            DeviceNotes::All => {}
            DeviceNotes::New if self.disk.store.measured(&name).is_some() => return,
            // An unsaved session and a read-only directory show it again.
            DeviceNotes::New if !matches!(self.disk.store.access, Access::Writable) => {}
            DeviceNotes::New => drop(self.disk.remember(Change::Measured { name, value: 1.0 })),
        }
        self.warn(note);
    }

    fn take_model(&mut self, info: &ModelInfo) {
        let (host, parked) = self.engine.model().map(|m| (m.host.clone(), m.parked)).unzip();
        self.engine.loaded(info);
        // Of an earlier run with this model on this device.
        self.reading_speed = self.disk.store.measured(&self.speed_name()).unwrap_or(0.0);
        if parked.is_none_or(|was| was == info.parked) {
            self.report(Notice::Ready(info.clone()));
        }
        self.show_meters();
        let host = host.flatten();
        if let Some(now) = info.host.as_ref().filter(|now| host.as_ref() != Some(now)) {
            self.info(format!("The model runs in {now}; this terminal uses it."));
        }
        if info.parked && parked != Some(true) {
            self.disk.write_held();
            self.info(PARKED);
        }
    }
}

impl Verb {
    /// The model is loaded, and the state of a resumed session is restored.
    pub async fn engine_ready(&mut self) -> Done {
        self.model_known().await?;
        self.unparked().await
    }

    /// The same for a verb that writes; lost state may make the session read-only.
    pub async fn ready_to_write(&mut self) -> Done {
        self.here.may_write()?;
        self.engine_ready().await?;
        self.here.may_write()
    }

    /// The model was loaded once. A parked one begins to return.
    pub async fn model_known(&mut self) -> Done {
        self.model_started().await?;
        if self.engine.is_parked() {
            self.engine.send(Command::Unpark)?;
        }
        let resuming = std::mem::take(&mut self.here.resume_pending);
        // The user decides whether lost state is read again. Without a user, the question's own prefill reads it.
        if resuming && self.attendance == Attendance::Present {
            self.finish_resume().await?;
        } else if resuming
            && self.engine.server().is_none()
            && let Some(why) = self.lost_state()
        {
            self.warn(format!("{why} It is read again."));
        }
        Ok(())
    }

    pub async fn unparked(&mut self) -> Done {
        self.model_is(false).await
    }

    /// `/park`: waits until nothing runs, also for other users of the engine.
    pub async fn park(&mut self) -> Done {
        if self.engine.server().is_some() {
            return refused("The model runs on a server, which this program cannot park.");
        }
        self.model_started().await?;
        if self.engine.is_parked() {
            self.info(PARKED);
        }
        self.states_saved().await;
        self.engine.send(Command::Park)?;
        self.activity(Activity::Busy { what: "parking".into() });
        self.model_is(true).await
    }

    pub async fn unpark(&mut self) -> Done {
        self.engine_ready().await?;
        self.say("The model is in memory.")
    }

    async fn model_started(&mut self) -> Done {
        loop {
            match &self.engine.state {
                EngineState::Ready => return Ok(()),
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
    }

    /// Waits for the engine to park or to return. A stop ends the wait alone: other users may wait for the same.
    async fn model_is(&mut self, parked: bool) -> Done {
        while self.engine.model().is_some_and(|m| m.parked != parked) {
            if matches!(self.wait(Wait::Model).await, Wake::Stopped) {
                return Err(RuntimeError::Stopped);
            }
        }
        self.model_started().await
    }
}
