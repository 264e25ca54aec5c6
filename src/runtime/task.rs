//! Work on other threads, for which a verb waits in place ([`Verb::elsewhere`]).

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::{Activity, Done, RuntimeError, State, Verb, Wait, Wake};
use crate::engine::protocol::Cancel;
use crate::store::Watch;

/// Shorter tasks block the loop and are not shown.
const SHORT: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_millis(500);

/// The progress of all tasks, by their numbers; `None` at the end of one.
pub(super) struct Tasks {
    last: u64,
    out: Sender<(u64, Option<String>)>,
    pub(super) events: Receiver<(u64, Option<String>)>,
}

impl Default for Tasks {
    fn default() -> Tasks {
        let (out, events) = unbounded();
        Tasks { last: 0, out, events }
    }
}

#[derive(Debug)]
pub(super) struct Task {
    id: u64,
    what: String,
    cancel: Cancel,
    /// Deadline after a stop.
    pub(super) until: Option<Instant>,
}

pub(super) struct Doing {
    pub cancel: Cancel,
    id: u64,
    out: Sender<(u64, Option<String>)>,
}

impl Doing {
    /// Runs a long operation of the store; `line` formats its progress.
    pub(super) fn watched<T>(&self, line: impl Fn(u64, u64) -> String, work: impl FnOnce(&Watch<'_>) -> T) -> T {
        let progress = |done, of| {
            // A later line replaces one that was not shown yet.
            if self.out.is_empty() {
                let _ = self.out.send((self.id, Some(line(done, of))));
            }
        };
        work(&Watch { stop: &|| self.cancel.is_cancelled(), progress: &progress })
    }
}

impl Drop for Doing {
    /// At the end of the thread, even by panic.
    fn drop(&mut self) {
        let _ = self.out.send((self.id, None));
    }
}

impl Task {
    pub(super) fn activity(&self) -> Activity {
        match self.cancel.is_cancelled() {
            true => Activity::Stopping,
            false => Activity::Busy { what: self.what.clone() },
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
    /// Runs `work` on another thread and waits for the result. `failed`: the error if the thread cannot run to its end.
    pub async fn elsewhere<T: Send + 'static>(
        &mut self,
        what: String,
        failed: &'static str,
        work: impl FnOnce(&Doing) -> T + Send + 'static,
    ) -> Done<T> {
        self.tasks.last += 1;
        let id = self.tasks.last;
        let mut task = Task { id, what, cancel: Cancel::default(), until: None };
        let doing = Doing { cancel: task.cancel.clone(), id, out: self.tasks.out.clone() };
        let thread = std::thread::Builder::new().name("background".into()).spawn(move || work(&doing));
        let thread = thread.map_err(|e| RuntimeError::Failed(format!("{failed} ({e})")))?;
        if self.quitting {
            task.leave();
        }
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < SHORT {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !thread.is_finished() {
            let shown = task.activity();
            self.activity(shown);
            if matches!(self.wait(Wait::Thread(task)).await, Wake::Stopped) {
                return Err(RuntimeError::Stopped);
            }
        }
        thread.join().map_err(|_| RuntimeError::Failed(failed.into()))
    }
}

impl State {
    /// `progress`: a line, or `None` at the end of the task.
    pub fn on_task(&mut self, id: u64, progress: Option<String>) {
        let is_its = |task: &Task| task.id == id;
        let Some(at) = self.here.all.iter().position(|c| c.wait.task().is_some_and(is_its)) else { return };
        self.on(at, |state| {
            let Wait::Thread(task) = &mut state.here.wait else { return };
            let Some(what) = progress else { return state.wake(Wake::Go) };
            task.what = what;
            let shown = task.activity();
            state.activity(shown);
        });
    }
}
