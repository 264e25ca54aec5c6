//! Verbs that run a blocking task on another thread and wait for its result.
//!
//! A task that does not need the conversation lets the next request start; task and verb move to
//! [`State::background`].

use std::time::Instant;

use crossbeam_channel::RecvTimeoutError;

use super::baton::Running;
use super::task::{Doing, Order, Task};
use super::{Attendance, Done, RuntimeError, State, Verb, Wait, Wake};

impl Verb {
    /// Runs `work` on another thread and waits for the result. A short task blocks the loop.
    pub(super) async fn elsewhere<T: Send + 'static>(
        &mut self,
        order: Order,
        work: impl FnOnce(&Doing) -> T + Send + 'static,
    ) -> Done<T> {
        let Order { what, failed, place, patience } = order;
        let (mut task, doing) = Task::new(what, place, self.here.session.serial);
        // The thread drops `doing` when it ends, even by panic, and the channel closes.
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
    /// Moves a task that does not need the conversation to the background, so that the next request can start.
    /// One-shot requests keep their order.
    pub(super) fn make_room(&mut self) {
        let holds_up = !self.here.wait.background().is_some_and(Task::holds_up_nothing);
        if holds_up || self.attendance == Attendance::Absent {
            return;
        }
        if let (Wait::Background(task), Some(verb)) = (std::mem::take(&mut self.here.wait), self.here.verb.take()) {
            self.background.push((task, verb));
        }
    }

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

    pub(super) fn on_background_task(&mut self, at: usize, progress: Option<String>) {
        match (self.background.get_mut(at), progress) {
            (Some((task, _)), Some(what)) => {
                task.what = what;
                self.show_rest();
            }
            (Some(_), None) => {
                let (task, verb): (Task, Running<Done>) = self.background.remove(at);
                self.at_once.push_back((task.serial, verb));
            }
            (None, _) => {}
        }
    }

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

    /// At the end of the program: stops the tasks and abandons those that do not end in time.
    pub(super) fn leave_background_tasks(&mut self) {
        self.background.iter_mut().for_each(|(task, _)| task.leave());
        for conversation in self.others.iter_mut().chain([&mut self.here]) {
            if let Wait::Background(task) = &mut conversation.wait {
                task.leave();
            }
        }
    }
}
