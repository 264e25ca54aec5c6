//! The runtime's loop: the one place that waits. It takes whatever comes first and hands it to the present [`Work`], or begins
//! the next request. What is said first is in `greet`, what is said last in `finish`.

mod finish;
mod greet;

use std::time::Instant;

use crossbeam_channel::{Receiver, Select, never};

use super::dispatch::Dispatch;
use super::errand::Errand;
use super::link::EngineState;
use super::work::{Answer, Turn};
use super::{Attendance, Done, RuntimeError, State, Then, Work};
use crate::config::commands::{WhileBusy, line_of};
use crate::core::Exit;
use crate::engine::protocol::{EngineEvent, EngineFault};
use crate::runtime::protocol::{Activity, Level, Notice, Request};
use crate::store::{SaveEvent, StoreError};

/// What the runtime woke up for.
enum Event {
    Request(Request),
    /// The interface is gone.
    Gone,
    Engine(EngineEvent),
    Save(SaveEvent),
    /// The writer has failed, and said so.
    WriterGone,
    /// What an errand is at; it has ended if it says nothing.
    Errand(Whose, Option<String>),
    Tick,
}

/// Whose errand it is.
#[derive(Clone, Copy)]
enum Whose {
    InHand,
    Seat(usize),
    Beside(usize),
}

/// The engine's thread has ended without a word.
fn gone() -> EngineEvent {
    let why = "The engine ended unexpectedly. Text is safe; sala-chat -c goes on with it.".into();
    EngineEvent::Failed { id: 0, fault: EngineFault::Fatal { why, exit: Exit::Failure } }
}

impl State {
    /// Runs until [`Request::Quit`] or until the interface is gone.
    pub(super) fn run(mut self) {
        self.greet();
        self.begin(State::first_session);
        while !(self.quitting && self.is_at_rest()) {
            self.take_names();
            // Whoever asked for a stop while the last step went on means that step, and nothing that begins now.
            if !self.inbox.has_waiting() && self.advance() {
                continue;
            }
            self.tell_served();
            match self.next() {
                Event::Request(r) => {
                    self.come += 1;
                    self.on_request(r);
                }
                Event::Gone => {
                    self.inbox.close();
                    self.quit();
                }
                Event::Engine(e) => self.on_engine(e),
                Event::Save(e) => self.on_save(e),
                Event::WriterGone => self.disk.events = never(),
                Event::Errand(Whose::InHand, what) => self.on_errand(what),
                Event::Errand(Whose::Seat(at), what) => self.beside(at, |runtime| runtime.on_errand(what)),
                Event::Errand(Whose::Beside(at), what) => self.on_errand_beside(at, what),
                Event::Tick => {
                    self.errands.retain(|errand| !errand.is_left());
                    self.on_tick();
                    let due = |work: &Work| work.deadline().is_some_and(|d| d <= Instant::now());
                    self.beside_each(due, State::on_tick);
                }
            }
        }
        self.finish();
    }

    /// Whether nothing goes on, here or elsewhere.
    fn is_at_rest(&self) -> bool {
        self.here.work.is_idle() && self.errands.is_empty() && self.other_works().all(Work::is_idle)
    }

    /// Begins what needs no event, here or in another conversation; false when there is nothing.
    fn advance(&mut self) -> bool {
        self.tidy_seats();
        self.advance_in_hand() || (0..self.other_works().count()).any(|at| self.beside(at, State::advance_in_hand))
    }

    fn advance_in_hand(&mut self) -> bool {
        if !self.here.queue.is_empty() {
            self.make_room();
        }
        match std::mem::take(&mut self.here.work) {
            Work::Ready(then) => {
                self.resumed(then, ());
                true
            }
            Work::Idle if self.quitting => false,
            Work::Idle if self.here.resume_pending && self.here.queue.is_empty() && self.engine.model().is_some() => {
                self.begin(|runtime| runtime.finish_resume(Box::new(|_, ()| Ok(()))));
                true
            }
            Work::Idle => match self.here.queue.pop_front() {
                Some(request) => {
                    self.begin(|runtime| runtime.handle(request));
                    true
                }
                None if self.title_is_due() => {
                    self.begin(State::make_title);
                    true
                }
                None => false,
            },
            work => {
                self.here.work = work;
                false
            }
        }
    }

    /// Says that all that was asked for is done. What gives way to a request was asked for by nobody.
    fn tell_served(&mut self) {
        let beside =
            self.attendance == Attendance::Present && self.here.work.errand().is_some_and(Errand::holds_up_nothing);
        let rests = self.here.queue.is_empty() && (self.here.work.is_idle() || self.here.work.gives_way() || beside);
        if rests && self.served < self.come {
            self.served = self.come;
            self.out.tell(Notice::Acknowledged(self.served));
        }
    }

    /// Waits for whatever comes first.
    fn next(&self) -> Event {
        if let Some(request) = self.inbox.take_waiting() {
            return Event::Request(request);
        }
        let in_hand = self.here.work.errand().map(|errand| (Whose::InHand, errand));
        let seats = self.other_works().enumerate().filter_map(|(at, work)| Some((Whose::Seat(at), work.errand()?)));
        let beside = self.errands.iter().enumerate().map(|(at, errand)| (Whose::Beside(at), errand));
        let errands = in_hand.into_iter().chain(seats).chain(beside).map(|(whose, errand)| (whose, errand.said()));
        let errands: Vec<(Whose, &Receiver<String>)> = errands.collect();
        let mut waits = Select::new();
        let request = waits.recv(self.inbox.channel());
        let engine = waits.recv(&self.engine.events);
        let save = waits.recv(&self.disk.events);
        for (_, said) in &errands {
            waits.recv(said);
        }
        let ready = match self.deadline() {
            Some(at) => waits.select_deadline(at).ok(),
            None => Some(waits.select()),
        };
        let Some(ready) = ready else { return Event::Tick };
        match ready.index() {
            at if at == request => ready.recv(self.inbox.channel()).map_or(Event::Gone, Event::Request),
            at if at == engine => Event::Engine(ready.recv(&self.engine.events).unwrap_or_else(|_| gone())),
            at if at == save => ready.recv(&self.disk.events).map_or(Event::WriterGone, Event::Save),
            at => match errands.get(at - save - 1) {
                Some((whose, said)) => Event::Errand(*whose, ready.recv(said).ok()),
                None => Event::Tick,
            },
        }
    }

    /// Begins a piece of work: a stop from now on is for it.
    fn begin(&mut self, work: impl FnOnce(&mut State) -> Done) {
        self.here.slot.begin();
        let done = work(self);
        self.after(done);
    }

    /// What was waited for is here.
    pub(super) fn resumed<T>(&mut self, then: Then<T>, with: T) {
        let done = then(self, with);
        self.after(done);
    }

    /// After each step: a failure ends the work, and so does a step that waits for nothing.
    pub(super) fn after(&mut self, done: Done) {
        if let Err(e) = done {
            self.here.work = Work::Idle;
            if let Some(text) = self.here.typed.take() {
                // Nothing of it was saved: it goes back to where it was typed.
                self.tell(Notice::Input { text: line_of(&text), editing: None });
            }
            self.failed(&e);
        }
        if let Some(errand) = self.here.work.errand() {
            self.activity(errand.activity());
        }
        if self.here.work.is_idle() {
            self.here.typed = None;
            self.shelve_what_is_read();
            // Beside, the end is told when all that was asked is done.
            if !self.off_screen || self.here.queue.is_empty() {
                self.idle();
            }
        }
    }

    /// Says that nothing runs, but for what another thread does beside. While the model is being loaded that is said instead.
    pub(super) fn idle(&mut self) {
        let beside = self.errands.last().filter(|_| !self.off_screen).map(Errand::activity);
        self.activity(match (&self.engine.state, beside) {
            (_, Some(beside)) => beside,
            (EngineState::Starting, None) => Activity::Starting { what: "loading the model".into() },
            (EngineState::Ready(_) | EngineState::Down { .. }, None) => Activity::Idle,
        });
    }

    fn failed(&mut self, e: &RuntimeError) {
        if self.attendance == Attendance::Absent || self.must_open {
            let error = match e {
                RuntimeError::Store(in_use @ StoreError::InUse { .. }) => {
                    format!("{in_use}. Close it there first, or fork a copy in a chat: sala-chat -r NAME asks for it.")
                }
                e => e.to_string(),
            };
            self.tell(Notice::Fatal { error, exit: e.exit() });
            self.quitting = true;
            return;
        }
        match e {
            RuntimeError::Stopped => {}
            RuntimeError::Store(in_use @ StoreError::InUse { .. }) => {
                self.note(Level::Warn, format!("{in_use}. Close it there first."));
            }
            RuntimeError::Store(StoreError::NoSession { name }) => {
                let why = self.no_session(name);
                self.note(Level::Warn, why);
            }
            RuntimeError::Engine(_)
            | RuntimeError::RowsLost(_)
            | RuntimeError::Failed(_)
            | RuntimeError::Store(_)
            | RuntimeError::Text(_) => self.note(Level::Error, e.to_string()),
            RuntimeError::Refused(_)
            | RuntimeError::Damaged(_)
            | RuntimeError::NotThere(_)
            | RuntimeError::TooLong(_) => self.note(Level::Warn, e.to_string()),
        }
    }

    /// A request: for what goes on, now, or later.
    fn on_request(&mut self, request: Request) {
        match request {
            // Nobody types it in a hurry there: it is for the end of what was asked before.
            Request::Quit if self.attendance == Attendance::Absent => self.here.queue.push_back(Request::Quit),
            // Without anybody to go on, stopping is ending.
            Request::Stop if self.attendance == Attendance::Present => self.stop(),
            Request::Stop | Request::Quit => self.quit(),
            Request::StopAside => self.stop_aside(),
            Request::Choose { question, key } => self.answered(question, Answer::Key(key)),
            Request::ChooseFiles { question, files } => self.answered(question, Answer::Files(files)),
            Request::There { serial, request } => self.there(serial, request),
            Request::Remember(text) => self.remember_prompt(&text),
            Request::Draft { serial, text } => self.keep_draft(serial, text),
            Request::LeaveQueued(request) => self.in_turn(*request, true),
            r => self.in_turn(r, false),
        }
    }

    /// A request that has its turn. `promised`: more comes for the conversation in hand, should this one lead away from it.
    pub(super) fn in_turn(&mut self, request: Request, promised: bool) {
        if request.while_busy() == WhileBusy::Leaves {
            self.here.promised = promised;
        }
        if request.while_busy() != WhileBusy::Runs {
            self.make_room();
        }
        match request {
            // What goes on was nobody's wish.
            r if self.here.work.gives_way() && r.while_busy() != WhileBusy::Runs => {
                self.here.queue.push_back(r);
                self.here.slot.cancel.cancel();
            }
            r => match self.turn_of(&r) {
                Turn::Beside => self.serve(r),
                Turn::Next | Turn::Later => self.here.queue.push_back(r),
                Turn::Leave => self.leave(r),
                Turn::Apart => self.set_apart(r),
            },
        }
    }

    /// Ends as soon as everything that goes on has ended.
    fn quit(&mut self) {
        self.quitting = true;
        self.stop();
        self.beside_each(|_| true, State::stop);
        self.leave_errands();
    }

    /// Serves a request beside the work that goes on, which stays what it is.
    fn serve(&mut self, request: Request) {
        self.beside_work(|runtime| runtime.handle(request));
    }

    /// Does something beside the work that goes on; what it has another thread do goes on beside as well.
    pub(super) fn beside_work(&mut self, step: impl FnOnce(&mut State) -> Done) {
        let goes_on = std::mem::take(&mut self.here.work);
        let done = step(self);
        if let Err(e) = done {
            self.failed(&e);
        }
        match std::mem::replace(&mut self.here.work, goes_on) {
            Work::Idle => {}
            Work::Errand(errand) => self.errands.push(errand),
            _ => self.note(Level::Error, "internal error: a request waits for something while something else goes on"),
        }
    }

    /// Ends what goes on as soon as it can.
    pub(super) fn stop(&mut self) {
        self.here.slot.cancel.cancel();
        // With something in hand that is meant.
        if !self.off_screen && (self.here.work.is_idle() || self.here.work.gives_way()) {
            self.stop_errands();
        }
        if self.here.work.gives_way() {
            return;
        }
        match std::mem::take(&mut self.here.work) {
            Work::Errand(errand) => {
                errand.stop();
                let shown = errand.activity();
                self.here.work = Work::Errand(errand);
                self.activity(shown);
            }
            Work::Asking { then, .. } => self.resumed(then, None),
            Work::Starting(_) => self.after(Err(RuntimeError::Stopped)),
            // What is being saved is saved; whoever waits for it looks whether to stop.
            Work::Saving { then, .. } => self.resumed(then, ()),
            Work::Idle => {}
            work @ (Work::Ready(_) | Work::Restoring { .. } | Work::Feeding(_) | Work::Branching(_)) => {
                self.here.work = work;
                self.activity(Activity::Stopping);
            }
        }
    }

    fn on_save(&mut self, event: SaveEvent) {
        let kept = self.disk.on_event(event);
        self.saved();
        self.beside_each(|work| matches!(work, Work::Saving { .. }), State::saved);
        // What is marked as kept has changed.
        if kept && (self.here.work.is_idle() || self.here.work.gives_way()) {
            self.show_tree();
            self.tell_library();
        }
    }

    /// Something is on disk, or will not come there.
    fn saved(&mut self) {
        match std::mem::take(&mut self.here.work) {
            Work::Saving { wanted, then, .. } if self.disk.has(wanted) => self.resumed(then, ()),
            work => self.here.work = work,
        }
    }

    fn on_tick(&mut self) {
        match std::mem::take(&mut self.here.work) {
            Work::Saving { until, then, .. } if Instant::now() >= until => self.resumed(then, ()),
            Work::Errand(errand) if errand.is_left() => self.after(Err(RuntimeError::Stopped)),
            Work::Restoring { id, target, then } => {
                self.show_in_flight(target.position());
                self.here.work = Work::Restoring { id, target, then };
            }
            Work::Feeding(mut f) => {
                f.look(self);
                if f.generated.is_empty() {
                    self.show_in_flight(self.here.slot.live.position());
                }
                self.here.work = Work::Feeding(f);
            }
            Work::Branching(mut b) => {
                b.look(self);
                self.here.work = Work::Branching(b);
            }
            work => self.here.work = work,
        }
    }

    /// One request, from the first word to the last.
    fn handle(&mut self, request: Request) -> Done {
        request.execute(&mut Dispatch(self))
    }
}
