//! Tasks on other threads, and verbs that wait for them. A task that does not need the conversation lets the next
//! request start; task and verb move to [`State::background`].

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::baton::Running;
use super::{Activity, Attendance, Done, RuntimeError, State, Verb, Wait, Wake};
use crate::engine::protocol::Cancel;
use crate::store::Watch;

/// Shorter tasks block the loop and are not shown.
const SHORT: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    InTurn,
    Background,
}

#[derive(Debug)]
pub(super) struct Task {
    /// Capacity 1; further lines are dropped. Closed when the thread ends.
    pub(super) progress: Receiver<String>,
    pub(super) what: String,
    place: Place,
    cancel: Cancel,
    pub(super) serial: u64,
    /// Deadline after a stop.
    pub(super) until: Option<Instant>,
}

pub(super) struct Doing {
    pub cancel: Cancel,
    out: Sender<String>,
}

impl Doing {
    /// Runs a long operation of the store; `line` formats its progress.
    pub(super) fn watched<T>(&self, line: impl Fn(u64, u64) -> String, work: impl FnOnce(&Watch<'_>) -> T) -> T {
        let progress = |done, of| {
            if self.out.is_empty() {
                // If full, a later line replaces this one; if closed, the task was abandoned.
                let _ = self.out.try_send(line(done, of));
            }
        };
        work(&Watch { stop: &|| self.cancel.is_cancelled(), progress: &progress })
    }
}

impl Task {
    pub(super) fn activity(&self) -> Activity {
        let what = self.what.clone();
        match (self.place, self.cancel.is_cancelled()) {
            (Place::InTurn, true) => Activity::Stopping,
            (Place::InTurn, false) => Activity::Busy { what },
            (Place::Background, true) => Activity::Background { what: format!("stopping: {what}") },
            (Place::Background, false) => Activity::Background { what },
        }
    }

    pub(super) fn stop(&self) {
        self.cancel.cancel();
    }

    /// Stops it; after `GRACE` the runtime abandons it.
    pub(super) fn leave(&mut self) {
        self.stop();
        self.until.get_or_insert(Instant::now() + GRACE);
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

impl Verb {
    /// Runs `work` on another thread and waits for the result. `failed`: the error if the thread cannot start or
    /// panics.
    pub async fn elsewhere<T: Send + 'static>(
        &mut self,
        place: Place,
        what: String,
        failed: &'static str,
        work: impl FnOnce(&Doing) -> T + Send + 'static,
    ) -> Done<T> {
        let (out, progress) = crossbeam_channel::bounded(1);
        let cancel = Cancel::default();
        let doing = Doing { cancel: cancel.clone(), out };
        let mut task = Task { progress, what, place, cancel, serial: self.here.serial, until: None };
        // The thread drops `doing` when it ends, even by panic, and the channel closes.
        let thread = std::thread::Builder::new().name("background".into()).spawn(move || work(&doing));
        let thread = thread.map_err(|e| RuntimeError::Failed(format!("{failed} ({e})")))?;
        if self.quitting {
            task.leave();
        }
        let until = Instant::now() + SHORT;
        let ended = loop {
            match task.progress.recv_deadline(until) {
                Ok(what) => task.what = what,
                Err(RecvTimeoutError::Disconnected) => break true,
                Err(RecvTimeoutError::Timeout) => break false,
            }
        };
        if !ended && matches!(self.wait(Wait::Background(task)).await, Wake::Stopped) {
            return Err(RuntimeError::Stopped);
        }
        thread.join().map_err(|_| RuntimeError::Failed(failed.into()))
    }
}

impl State {
    /// The verb of `here` waits. A task that needs no conversation moves to the background, so that the next request
    /// can start; one-shot requests keep their order.
    pub fn waits(&mut self, verb: Running<Done>) {
        match std::mem::take(&mut self.here.wait) {
            Wait::Background(task) if task.place == Place::Background && self.attendance == Attendance::Present => {
                self.background.push((task, verb));
                return self.idle();
            }
            wait => self.here.wait = wait,
        }
        if let Wait::Background(task) = &self.here.wait {
            let shown = task.activity();
            self.activity(shown);
        }
        self.here.verb = Some(verb);
    }

    pub fn on_task(&mut self, progress: Option<String>) {
        let Wait::Background(task) = &mut self.here.wait else { return };
        let Some(what) = progress else { return self.wake(Wake::Go) };
        task.what = what;
        let shown = task.activity();
        self.activity(shown);
    }

    pub fn on_background_task(&mut self, at: usize, progress: Option<String>) {
        let Some((task, _)) = self.background.get_mut(at) else { return };
        if let Some(what) = progress {
            task.what = what;
            return self.show_rest();
        }
        let (task, verb) = self.background.remove(at);
        self.at_once.push_back((task.serial, verb));
    }

    pub fn show_rest(&mut self) {
        if self.here.wait.rests() {
            self.idle();
        }
    }
}
