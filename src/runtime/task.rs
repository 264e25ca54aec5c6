//! A task on another thread and its progress.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::Activity;
use crate::engine::protocol::Cancel;
use crate::store::Watch;

/// Shorter tasks are not shown.
pub(super) const SHORT: Duration = Duration::from_millis(100);
/// How long the end of the program waits for a stopped task.
const GRACE: Duration = Duration::from_millis(500);

pub(super) struct Order {
    pub what: String,
    /// The error if its thread cannot start or panics.
    pub failed: &'static str,
    pub place: Place,
    /// How long the runtime blocks for it without showing it.
    pub patience: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Later requests wait for it.
    InTurn,
    /// Later requests run in parallel.
    Background,
}

pub(super) struct Task {
    /// Capacity 1; further lines are dropped. Closed when the thread ends.
    pub(super) progress: Receiver<String>,
    pub(super) what: String,
    place: Place,
    cancel: Cancel,
    pub(super) serial: u64,
    /// Deadline after a stop.
    until: Option<Instant>,
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
    pub(super) fn new(what: String, place: Place, serial: u64) -> (Task, Doing) {
        let (out, progress) = crossbeam_channel::bounded(1);
        let cancel = Cancel::default();
        let doing = Doing { cancel: cancel.clone(), out };
        (Task { progress, what, place, cancel, serial, until: None }, doing)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.until
    }

    pub(super) fn activity(&self) -> Activity {
        match (self.place, self.cancel.is_cancelled()) {
            (Place::InTurn, true) => Activity::Stopping,
            (Place::InTurn, false) => Activity::Busy { what: self.what.clone() },
            (Place::Background, true) => Activity::Background { what: format!("stopping: {}", self.what) },
            (Place::Background, false) => Activity::Background { what: self.what.clone() },
        }
    }

    /// Whether the next request can start before it ends.
    pub(super) fn holds_up_nothing(&self) -> bool {
        self.place == Place::Background
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

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({})", self.what)
    }
}
