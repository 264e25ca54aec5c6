//! The runtime's loop, the only place that waits for events. It takes the next event, ends the waits it concerns, and
//! resumes their verbs, or begins the next request.

mod ends;

use crossbeam_channel::{at, never, select};

use super::baton::Running;
use super::link::EngineState;
use super::sessions::LISTED;
use super::task::Task;
use super::verb::verb;
use super::{Activity, Attendance, Conversation, Done, Level, Notice, Request, RuntimeError, State, Verb, Wait, Wake};
use crate::config::commands::help::sentence;
use crate::config::commands::{WhileBusy, line_of};
use crate::store::{SaveEvent, SessionFilter, StoreError};
use crate::text::near::meant;

/// An error as a sentence. Some begin with a path or an address, which stays as it is.
fn in_chat(error: &RuntimeError) -> String {
    use StoreError::{Exists, Import, IsFolder, NoInput, NotAFile, NotOurs};
    let text = error.to_string();
    let stop = if text.ends_with(['.', '?', '!']) { "" } else { "." };
    let first = match error {
        RuntimeError::Store(
            Exists { .. } | Import { .. } | IsFolder { .. } | NoInput { .. } | NotAFile { .. } | NotOurs { .. },
        ) => text.clone(),
        _ if text.starts_with("http") => text.clone(),
        _ => sentence(&text),
    };
    format!("{first}{stop}")
}

impl State {
    pub fn run(mut self: Box<State>) {
        self.greet();
        let first = verb(&self.baton, Verb::first_session);
        self = self.resume_verb(0, first).settle();
        while !(self.quitting && self.is_at_rest()) {
            self.take_names();
            // Requests that arrived during the last step are handled first, so that a stop never applies to a step
            // that begins after it.
            if !self.inbox.has_waiting() {
                let advanced;
                (self, advanced) = self.advance();
                if advanced {
                    continue;
                }
            }
            self.acknowledge();
            self.on_next_event();
            self = self.settle();
        }
        self.finish();
    }

    fn is_at_rest(&self) -> bool {
        self.here.all.iter().all(|conversation| conversation.wait.is_idle())
    }

    /// Begins work that needs no event, in any conversation; false if there is none.
    fn advance(mut self: Box<State>) -> (Box<State>, bool) {
        self.tidy_conversations();
        let all: Vec<usize> = self.here.front_first().collect();
        match all.into_iter().find_map(|at| Some((at, self.on(at, State::next_verb)?))) {
            Some((at, running)) => (self.resume_verb(at, running).settle(), true),
            None => (self, false),
        }
    }

    /// The verb of `here` that can continue or begin.
    fn next_verb(&mut self) -> Option<Running<Done>> {
        match self.here.wait {
            Wait::Turn => return self.here.verb.take(),
            Wait::Idle if self.quitting => return None,
            Wait::Idle => {}
            _ => return None,
        }
        let baton = &self.baton;
        // Without a user, the question's own prefill reads lost state.
        let resumes = self.here.resume_pending && self.attendance == Attendance::Present;
        let next = if resumes && self.here.queue.is_empty() && self.engine.is_live() {
            verb(baton, Verb::finish_resume)
        } else if let Some(request) = self.here.queue.pop_front() {
            verb(baton, async move |v| v.carry_out(request).await)
        } else if self.title_is_due() {
            verb(baton, Verb::make_title)
        } else if self.watch_is_due() {
            verb(baton, Verb::watch_again)
        } else if self.rebase_is_due() {
            verb(baton, Verb::rebase)
        } else {
            return None;
        };
        self.here.slot.begin();
        Some(next)
    }

    /// Acknowledges all requests once none of them runs. A title belongs to no request.
    fn acknowledge(&mut self) {
        let rests = self.here.queue.is_empty() && self.here.wait.rests();
        if rests && self.acknowledged < self.received {
            self.acknowledged = self.received;
            self.out.report(Notice::Acknowledged(self.acknowledged));
        }
    }

    fn on_next_event(&mut self) {
        if let Some(request) = self.inbox.take_waiting() {
            return self.on_request(request);
        }
        // Clones, as the handlers change the state.
        let (requests, events) = (self.inbox.channel.clone(), self.engine.events.clone());
        let (saves, looks, tasks) = (self.disk.events.clone(), self.follows.looks.clone(), self.tasks.events.clone());
        let deadline = self.deadline().map_or_else(never, at);
        select! {
            recv(requests) -> request => match request {
                Ok(request) => self.on_request(request),
                Err(_) => {
                    self.inbox.channel = never();
                    self.quit();
                }
            },
            recv(events) -> event => {
                let event = event.unwrap_or_else(|_| self.engine.ended());
                self.on_engine(event);
            }
            recv(saves) -> event => match event {
                Ok(event) => self.on_save(event),
                Err(_) => self.disk.events = never(),
            },
            recv(looks) -> look => look.into_iter().for_each(|(serial, look)| self.on_look(serial, look)),
            recv(tasks) -> task => task.into_iter().for_each(|(id, progress)| self.on_task(id, progress)),
            recv(deadline) -> _ => self.on_deadline(),
        }
    }

    fn on_deadline(&mut self) {
        let given_up = |c: &&mut Conversation| c.wait.task().is_some_and(Task::is_given_up);
        self.here.all.iter_mut().filter(given_up).for_each(|c| c.wake = Some(Wake::Stopped));
    }

    pub fn after(&mut self, done: Done) {
        if let Err(e) = done {
            if let Some(text) = self.here.typed.take() {
                // The question was not saved.
                self.report(Notice::Input { text: line_of(&text), editing: None });
            }
            self.failed(&e);
        }
        if self.here.wait.is_idle() {
            self.here.typed = None;
            self.shelve_what_is_read();
            // Off screen the end is shown after the last request.
            if self.here.is_in_front() || self.here.queue.is_empty() {
                self.idle();
            }
        }
    }

    /// Shows that no verb runs: the model's loading, or nothing.
    pub fn idle(&mut self) {
        self.activity(match &self.engine.state {
            EngineState::Starting => Activity::Starting { what: "loading the model".into() },
            EngineState::Ready | EngineState::Down { .. } => Activity::Idle,
        });
    }

    pub fn failed(&mut self, e: &RuntimeError) {
        if self.attendance == Attendance::Absent || self.must_open {
            let in_use = matches!(e, RuntimeError::Store(StoreError::InUse { .. }));
            let error = if in_use { format!("{e}. Close it there first.") } else { e.to_string() };
            self.report(Notice::Fatal { error, exit: e.exit() });
            self.quitting |= self.one_shot || self.must_open;
            return;
        }
        match e {
            RuntimeError::Stopped => {}
            RuntimeError::Store(in_use @ StoreError::InUse { .. }) => {
                self.warn(format!("{in_use}. Close it there first."));
            }
            RuntimeError::Store(StoreError::NoSession { name }) => {
                let records = self.disk.store.sessions(SessionFilter::Live, LISTED).unwrap_or_default();
                let near = meant(name, records.iter().map(|r| r.name.as_str()));
                self.warn(format!("No session is called \"{name}\".{near} /sessions lists them."));
            }
            RuntimeError::Refused(why)
            | RuntimeError::Damaged(why)
            | RuntimeError::NotThere(why)
            | RuntimeError::TooLong(why) => self.warn(why),
            e => self.note(Level::Error, in_chat(e)),
        }
    }

    fn on_request(&mut self, request: Request) {
        self.received += 1;
        match request {
            // A one-shot run ends after all requests before it.
            Request::Quit if self.attendance == Attendance::Absent => self.here.queue.push_back(Request::Quit),
            // In one-shot use, a stop ends the run.
            Request::Stop if !self.one_shot => self.stop(),
            Request::Stop | Request::Quit => self.quit(),
            // A title belongs to no request and yields to one.
            r if self.here.wait.gives_way() && r.while_busy() != WhileBusy::Runs => {
                self.here.queue.push_back(r);
                self.here.slot.cancel.cancel();
            }
            r => match self.turn_of(&r) {
                WhileBusy::Runs => self.at_once.push_back(r),
                WhileBusy::Waits => self.here.queue.push_back(r),
                WhileBusy::Leaves => self.leave(r),
                WhileBusy::Apart => self.set_apart(r),
            },
        }
    }

    fn quit(&mut self) {
        self.quitting = true;
        (0..self.here.all.len()).for_each(|at| self.on(at, State::stop));
        for conversation in &mut self.here.all {
            if let Wait::Thread(task) = &mut conversation.wait {
                task.leave();
            }
        }
    }

    pub fn stop(&mut self) {
        self.here.slot.cancel.cancel();
        if self.here.wait.gives_way() {
            return;
        }
        match &self.here.wait {
            Wait::Thread(task) => {
                task.stop();
                let shown = task.activity();
                self.activity(shown);
            }
            // A save continues; the verb checks for the stop.
            Wait::Question { .. } | Wait::Model | Wait::Saved { .. } => self.wake(Wake::Stopped),
            Wait::Idle => {}
            Wait::Turn | Wait::Engine { .. } => self.activity(Activity::Stopping),
        }
    }

    fn on_save(&mut self, event: SaveEvent) {
        let kept = self.disk.on_event(event);
        // The marks of kept state have changed.
        if kept && self.here.wait.rests() {
            self.show_tree();
            self.report_library();
        }
    }
}
