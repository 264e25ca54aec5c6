//! Work on other threads. A verb waits in place for what it needs ([`Verb::elsewhere`]); work in the background belongs
//! to no conversation, reports its own result, and lets the next request start ([`State::in_background`]).

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{Activity, Attendance, Done, Notice, RuntimeError, State, Verb, Wait, Wake};
use crate::engine::protocol::Cancel;
use crate::store::Watch;

/// Shorter tasks block the loop and are not shown.
const SHORT: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Task {
    /// Capacity 1; further lines are dropped. Closed when the thread ends.
    pub(super) progress: Receiver<String>,
    what: String,
    cancel: Cancel,
    /// Deadline after a stop.
    pub(super) until: Option<Instant>,
}

pub(super) struct Background {
    pub(super) task: Task,
    thread: JoinHandle<Done<Notice>>,
    /// The error if the thread panics.
    failed: &'static str,
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
    /// Runs `work` on another thread. `failed`: the error if it cannot start.
    fn start<T: Send + 'static>(
        what: String,
        failed: &str,
        work: impl FnOnce(&Doing) -> T + Send + 'static,
    ) -> Done<(Task, JoinHandle<T>)> {
        let (out, progress) = crossbeam_channel::bounded(1);
        let cancel = Cancel::default();
        let doing = Doing { cancel: cancel.clone(), out };
        // The thread drops `doing` when it ends, even by panic, and the channel closes.
        let thread = std::thread::Builder::new().name("background".into()).spawn(move || work(&doing));
        let thread = thread.map_err(|e| RuntimeError::Failed(format!("{failed} ({e})")))?;
        Ok((Task { progress, what, cancel, until: None }, thread))
    }

    fn is_short(&mut self) -> bool {
        let until = Instant::now() + SHORT;
        loop {
            match self.progress.recv_deadline(until) {
                Ok(what) => self.what = what,
                Err(e) => return e == RecvTimeoutError::Disconnected,
            }
        }
    }

    pub(super) fn activity(&self) -> Activity {
        match self.cancel.is_cancelled() {
            true => Activity::Stopping,
            false => Activity::Busy { what: self.what.clone() },
        }
    }

    pub(super) fn in_background(&self) -> Activity {
        let stopping = if self.cancel.is_cancelled() { "stopping: " } else { "" };
        Activity::Background { what: format!("{stopping}{}", self.what) }
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
        what: String,
        failed: &'static str,
        work: impl FnOnce(&Doing) -> T + Send + 'static,
    ) -> Done<T> {
        let (mut task, thread) = Task::start(what, failed, work)?;
        if self.quitting {
            task.leave();
        }
        if !task.is_short() {
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
    /// Runs `work` on another thread and returns; its notice is reported when it ends. One-shot requests keep their
    /// order, so they wait.
    pub fn in_background(
        &mut self,
        what: String,
        failed: &'static str,
        work: impl FnOnce(&Doing) -> Done<Notice> + Send + 'static,
    ) -> Done {
        let (mut task, thread) = Task::start(what, failed, work)?;
        if task.is_short() || self.attendance == Attendance::Absent {
            return result(thread, failed).map(|notice| self.report(notice));
        }
        self.background.push(Background { task, thread, failed });
        self.show_rest();
        Ok(())
    }

    /// `progress`: a line, or `None` at the end of the task.
    pub fn on_task(&mut self, channel: &Receiver<String>, progress: Option<String>) {
        let is_its = |task: &Task| task.progress.same_channel(channel);
        if let Some(at) = self.background.iter().position(|background| is_its(&background.task)) {
            match progress {
                Some(what) => self.background[at].task.what = what,
                None => {
                    let Background { thread, failed, .. } = self.background.remove(at);
                    match result(thread, failed) {
                        Ok(notice) => self.report(notice),
                        Err(e) => self.failed(&e),
                    }
                }
            }
            return self.show_rest();
        }
        if let Some(at) = self.here.all.iter().position(|c| c.wait.task().is_some_and(is_its)) {
            self.on(at, |state| {
                let Wait::Thread(task) = &mut state.here.wait else { return };
                let Some(what) = progress else { return state.wake(Wake::Go) };
                task.what = what;
                let shown = task.activity();
                state.activity(shown);
            });
        }
    }

    pub fn show_rest(&mut self) {
        if self.here.wait.rests() {
            self.idle();
        }
    }
}

fn result<T>(thread: JoinHandle<Done<T>>, failed: &str) -> Done<T> {
    thread.join().unwrap_or_else(|_| Err(RuntimeError::Failed(failed.into())))
}
