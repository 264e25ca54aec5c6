//! Verbs that have another thread open files or ask the store, and wait for the result.
//!
//! A task that needs nothing of the conversation makes room for the next request: it and its verb go on in [`State::background`].

use std::time::Instant;

use crossbeam_channel::RecvTimeoutError;

use super::task::{Doing, Order, Task};
use super::verb::{Running, Verb, Wait, Wake};
use super::{Attendance, Done, RuntimeError, State};

impl Verb {
    /// Has another thread do something, and waits for it. A short task is waited for at once.
    pub(super) async fn elsewhere<T: Send + 'static>(
        &mut self,
        order: Order,
        work: impl FnOnce(&Doing) -> T + Send + 'static,
    ) -> Done<T> {
        let Order { what, failed, place, patience } = order;
        let (mut task, doing) = Task::new(what, place, self.here.session.serial);
        // The channel closes with `doing`, at the thread's end, however it ends.
        let thread = std::thread::Builder::new().name("background".into()).spawn(move || work(&doing));
        let thread = thread.map_err(|e| RuntimeError::Failed(format!("{failed} ({e})")))?;
        if self.quitting {
            task.leave();
        }
        let until = Instant::now() + patience;
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
    /// A task that needs nothing of the conversation makes room for the next request. One-shot requests keep their order.
    pub(super) fn make_room(&mut self) {
        let holds_up = !self.here.wait.background().is_some_and(Task::holds_up_nothing);
        if holds_up || self.attendance == Attendance::Absent {
            return;
        }
        if let (Wait::Background(task), Some(verb)) = (std::mem::take(&mut self.here.wait), self.here.verb.take()) {
            self.background.push((task, verb));
        }
    }

    /// The task that the conversation waits for made progress, or ended.
    pub(super) fn on_task(&mut self, progress: Option<String>) {
        match (&mut self.here.wait, progress) {
            (Wait::Background(task), Some(what)) => {
                task.what = what;
                let shown = task.activity();
                self.activity(shown);
            }
            (Wait::Background(_), None) => self.wake(Wake::Go),
            _ => {}
        }
    }

    /// The same of a task in the background.
    pub(super) fn on_background_task(&mut self, at: usize, progress: Option<String>) {
        match (self.background.get_mut(at), progress) {
            (Some((task, _)), Some(what)) => {
                task.what = what;
                self.show_rest();
            }
            (Some(_), None) => {
                let (task, verb): (Task, Running) = self.background.remove(at);
                self.at_once.push_back((task.serial, verb));
            }
            (None, _) => {}
        }
    }

    /// While no verb runs, the tasks in the background are shown.
    pub(super) fn show_rest(&mut self) {
        if self.here.wait.is_idle() || self.here.wait.gives_way() {
            self.idle();
        }
    }

    pub(super) fn stop_background_tasks(&mut self) {
        self.background.iter().for_each(|(task, _)| task.stop());
        if !self.background.is_empty() {
            self.show_rest();
        }
    }

    /// The program ends: tasks are stopped, and given up after a moment.
    pub(super) fn leave_background_tasks(&mut self) {
        self.background.iter_mut().for_each(|(task, _)| task.leave());
        for conversation in self.others.iter_mut().chain([&mut self.here]) {
            if let Wait::Background(task) = &mut conversation.wait {
                task.leave();
            }
        }
    }
}
