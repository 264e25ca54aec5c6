//! The runtime's loop, the only place that waits for events. It takes the next event, ends the waits it concerns, and
//! resumes their verbs, or begins the next request.

mod ends;

use std::time::Instant;

use crossbeam_channel::{Receiver, Select, never};

use super::baton::Running;
use super::link::EngineState;
use super::task::Task;
use super::verb::verb;
use super::{Activity, Attendance, Done, Level, Notice, Request, RuntimeError, State, Verb, Wait, Wake};
use crate::config::commands::{WhileBusy, line_of};
use crate::engine::protocol::EngineEvent;
use crate::store::{SaveEvent, StoreError};
use crate::text::sources::follow::Look;

enum Event {
    Request(Request),
    Gone,
    Engine(EngineEvent),
    Save(SaveEvent),
    WriterGone,
    /// Of the files that a session follows, by its serial.
    Look(u64, Look),
    /// Progress of a background task; `None` at its end.
    Task(Owner, Option<String>),
    Tick,
}

#[derive(Clone, Copy)]
enum Owner {
    Here,
    Other(usize),
    Background(usize),
}

impl State {
    pub(super) fn run(mut self: Box<State>) {
        self.greet();
        let first = verb(&self.baton, Verb::first_session);
        self = self.resume_verb(first).settle();
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
            match self.next() {
                Event::Request(r) => {
                    self.received += 1;
                    if let Err(e) = self.on_request(r) {
                        self.failed(&e);
                    }
                }
                Event::Gone => {
                    self.inbox.close();
                    self.quit();
                }
                Event::Engine(e) => self.on_engine(e),
                Event::Save(e) => self.on_save(e),
                Event::WriterGone => self.disk.events = never(),
                Event::Look(serial, look) => self.on_look(serial, look),
                Event::Task(Owner::Here, progress) => self.on_task(progress),
                Event::Task(Owner::Other(at), progress) => self.on_other(at, |state| state.on_task(progress)),
                Event::Task(Owner::Background(at), progress) => self.on_background_task(at, progress),
                Event::Tick => {
                    self.background.retain(|(task, _)| !task.is_given_up());
                    self.on_tick();
                    let due = |wait: &Wait| wait.deadline().is_some_and(|d| d <= Instant::now());
                    self.on_each_other(due, State::on_tick);
                }
            }
            self = self.settle();
        }
        self.finish();
    }

    fn is_at_rest(&self) -> bool {
        self.here.wait.is_idle() && self.background.is_empty() && self.others.iter().all(|other| other.wait.is_idle())
    }

    /// Begins work that needs no event, in any conversation; false if there is none.
    fn advance(mut self: Box<State>) -> (Box<State>, bool) {
        self.tidy_conversations();
        if let Some(running) = self.next_verb() {
            return (self.resume_verb(running).settle(), true);
        }
        for at in 0..self.others.len() {
            if let Some(running) = self.on_other(at, State::next_verb) {
                return (self.run_in(Some(at), running, State::resume_verb).settle(), true);
            }
        }
        (self, false)
    }

    /// The verb of `here` that can continue or begin.
    fn next_verb(&mut self) -> Option<Running<Done>> {
        if !self.here.queue.is_empty() {
            self.make_room();
        }
        match self.here.wait {
            Wait::Turn => return self.here.verb.take(),
            Wait::Idle if self.quitting => return None,
            Wait::Idle => {}
            _ => return None,
        }
        let baton = &self.baton;
        let next = if self.here.resume_pending && self.here.queue.is_empty() && self.engine.is_live() {
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
        let wait = &self.here.wait;
        let held_up = !wait.background().is_some_and(Task::holds_up_nothing);
        let alongside = self.attendance == Attendance::Present && !held_up;
        let rests = self.here.queue.is_empty() && (wait.rests() || alongside);
        if rests && self.acknowledged < self.received {
            self.acknowledged = self.received;
            self.out.report(Notice::Acknowledged(self.acknowledged));
        }
    }

    fn next(&self) -> Event {
        if let Some(request) = self.inbox.take_waiting() {
            return Event::Request(request);
        }
        let here = self.here.wait.background().map(|task| (Owner::Here, task));
        let others = self.others.iter().enumerate();
        let others = others.filter_map(|(at, other)| Some((Owner::Other(at), other.wait.background()?)));
        let background = self.background.iter().enumerate().map(|(at, (task, _))| (Owner::Background(at), task));
        let tasks = here.into_iter().chain(others).chain(background).map(|(owner, task)| (owner, &task.progress));
        let tasks: Vec<(Owner, &Receiver<String>)> = tasks.collect();
        let mut waits = Select::new();
        let request = waits.recv(self.inbox.channel());
        let engine = waits.recv(&self.engine.events);
        let save = waits.recv(&self.disk.events);
        let look = waits.recv(&self.follows.looks);
        for (_, progress) in &tasks {
            waits.recv(progress);
        }
        let ready = match self.deadline() {
            Some(at) => waits.select_deadline(at).ok(),
            None => Some(waits.select()),
        };
        let Some(ready) = ready else { return Event::Tick };
        match ready.index() {
            at if at == request => ready.recv(self.inbox.channel()).map_or(Event::Gone, Event::Request),
            at if at == engine => {
                Event::Engine(ready.recv(&self.engine.events).unwrap_or_else(|_| self.engine.ended()))
            }
            at if at == save => ready.recv(&self.disk.events).map_or(Event::WriterGone, Event::Save),
            at if at == look => {
                ready.recv(&self.follows.looks).map_or(Event::Tick, |(serial, look)| Event::Look(serial, look))
            }
            at => match tasks.get(at - look - 1) {
                Some((owner, progress)) => Event::Task(*owner, ready.recv(progress).ok()),
                None => Event::Tick,
            },
        }
    }

    pub(super) fn after(&mut self, done: Done) {
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
            if !self.off_screen || self.here.queue.is_empty() {
                self.idle();
            }
        }
    }

    /// Shows that no verb runs: a background task, the model's loading, or nothing.
    pub(super) fn idle(&mut self) {
        let task = self.background.last().filter(|_| !self.off_screen).map(|(task, _)| task.activity());
        self.activity(match (&self.engine.state, task) {
            (_, Some(task)) => task,
            (EngineState::Starting, None) => Activity::Starting { what: "loading the model".into() },
            (EngineState::Ready(_) | EngineState::Down { .. }, None) => Activity::Idle,
        });
    }

    pub(super) fn failed(&mut self, e: &RuntimeError) {
        if self.attendance == Attendance::Absent || self.must_open {
            let error = match e {
                RuntimeError::Store(in_use @ StoreError::InUse { .. }) => {
                    format!("{in_use}. Close it there first, or fork a copy in a chat: sala-chat -r NAME asks for it.")
                }
                e => e.to_string(),
            };
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
                let why = self.no_session(name);
                self.warn(why);
            }
            RuntimeError::Engine(_)
            | RuntimeError::RowsLost(_)
            | RuntimeError::Failed(_)
            | RuntimeError::Store(_)
            | RuntimeError::Text(_) => self.note(Level::Error, e.to_string()),
            RuntimeError::Refused(_)
            | RuntimeError::Damaged(_)
            | RuntimeError::NotThere(_)
            | RuntimeError::TooLong(_) => self.warn(e.to_string()),
        }
    }

    fn on_request(&mut self, request: Request) -> Done {
        match request {
            // A one-shot run ends after all requests before it.
            Request::Quit if self.attendance == Attendance::Absent => self.here.queue.push_back(Request::Quit),
            // In one-shot use, a stop ends the run.
            Request::Stop if !self.one_shot => self.stop(),
            Request::Stop | Request::Quit => self.quit(),
            Request::StopAside => return self.end_aside(),
            Request::Choose { question, key } => return self.choose(question, key),
            Request::ChooseFiles { question, files } => return self.choose_files(question, files),
            Request::There { serial, request } => return self.queued_there(serial, request),
            Request::Remember(text) => return self.remember(text),
            Request::Draft { serial, text } => return self.draft_changed(serial, text),
            Request::LeaveQueued(request) => self.in_turn(*request, true),
            r => self.in_turn(r, false),
        }
        Ok(())
    }

    /// Serves or queues a request. `promised`: the interface holds more input for this conversation.
    pub(super) fn in_turn(&mut self, request: Request, promised: bool) {
        if request.while_busy() == WhileBusy::Leaves {
            self.here.promised = promised;
        }
        if request.while_busy() != WhileBusy::Runs {
            self.make_room();
        }
        match request {
            // A title belongs to no request and yields to one.
            r if self.here.wait.gives_way() && r.while_busy() != WhileBusy::Runs => {
                self.here.queue.push_back(r);
                self.here.slot.cancel.cancel();
            }
            r => match self.turn_of(&r) {
                WhileBusy::Runs => {
                    let running = verb(&self.baton, async move |v| v.carry_out(r).await);
                    self.at_once.push_back((self.here.session.serial, running));
                }
                WhileBusy::Waits => self.here.queue.push_back(r),
                WhileBusy::Leaves => self.leave(r),
                WhileBusy::Apart => self.set_apart(r),
            },
        }
    }

    fn quit(&mut self) {
        self.quitting = true;
        self.stop();
        self.on_each_other(|_| true, State::stop);
        self.leave_background_tasks();
    }

    pub(super) fn stop(&mut self) {
        self.here.slot.cancel.cancel();
        // While a verb runs, a stop applies to the verb alone.
        if !self.off_screen && self.here.wait.rests() {
            self.background.iter().for_each(|(task, _)| task.stop());
            if !self.background.is_empty() {
                self.show_rest();
            }
        }
        if self.here.wait.gives_way() {
            return;
        }
        match &self.here.wait {
            Wait::Background(task) => {
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
        self.saved();
        self.on_each_other(|wait| matches!(wait, Wait::Saved { .. }), State::saved);
        // The marks of kept state have changed.
        if kept && self.here.wait.rests() {
            self.show_tree();
            self.report_library();
        }
    }

    fn saved(&mut self) {
        if matches!(self.here.wait, Wait::Saved { wanted, .. } if self.disk.has(wanted)) {
            self.wake(Wake::Go);
        }
    }

    fn on_tick(&mut self) {
        match &self.here.wait {
            Wait::Saved { until, .. } if Instant::now() >= *until => self.wake(Wake::Go),
            Wait::Background(task) if task.is_given_up() => self.wake(Wake::Stopped),
            Wait::Engine { until, .. } if Instant::now() >= *until => self.wake(Wake::Tick),
            _ => {}
        }
    }
}
