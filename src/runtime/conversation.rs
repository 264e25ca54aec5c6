//! A conversation with all its state, and the list of active conversations.
//!
//! [`State::here`] is that list, and dereferences to the conversation that handles the present request or event: the one
//! in front, which receives the user's requests, unless [`State::on`] works in another one. A conversation that the user
//! leaves during work keeps its engine slot until all its requests are done; then it is dropped, as its text and state
//! are on disk.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

use super::baton::Running;
use super::session::Session;
use super::{Activity, Attendance, Done, Notice, Request, Rights, Slot, State, Tree, Wait, Wake};
use crate::config::commands::WhileBusy;
use crate::core::transcript::{Message, Role};
use crate::engine::protocol::SequenceId;
use crate::runtime::protocol::Meters;
use crate::store::SessionLock;

#[derive(Default)]
pub(super) struct Conversation {
    pub(super) session: Session,
    pub(super) lock: Option<SessionLock>,
    pub(super) slot: Slot,
    /// The waiting verb, its wait, and the event that ended the wait.
    pub(super) verb: Option<Running<Done>>,
    pub(super) wait: Wait,
    pub(super) wake: Option<Wake>,
    /// When the verb may next save and refresh its numbers.
    pub(super) next_tick: Option<Instant>,
    pub(super) queue: VecDeque<Request>,
    pub(super) apart: Option<Apart>,
    /// The session is open and its state is not restored yet.
    pub(super) resume_pending: bool,
    /// The question of the current request until it is saved; on failure it returns to the input.
    pub(super) typed: Option<String>,
    pub(super) meters: Meters,
    /// Last context threshold (80, 95 percent) that raised a warning.
    pub(super) warned: u64,
    pub(super) activity: Activity,
}

/// An aside that runs in parallel with another verb of its conversation. Nothing of it is kept.
#[derive(Debug)]
pub(super) struct Apart {
    question: String,
    pub(super) put_off: Option<String>,
    pub(super) waits: bool,
}

impl Deref for Conversation {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for Conversation {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

/// The active conversations; see the module.
pub(super) struct Active {
    pub(super) all: Vec<Conversation>,
    at: usize,
    front: usize,
}

impl Deref for Active {
    type Target = Conversation;

    fn deref(&self) -> &Conversation {
        &self.all[self.at]
    }
}

impl DerefMut for Active {
    fn deref_mut(&mut self) -> &mut Conversation {
        &mut self.all[self.at]
    }
}

impl Active {
    pub(super) fn new(first: Conversation) -> Active {
        Active { all: vec![first], at: 0, front: 0 }
    }

    pub(super) fn is_in_front(&self) -> bool {
        self.at == self.front
    }

    /// Works in another conversation from now on; `None`: in the one in front. Returns the one before.
    pub(super) fn enter(&mut self, at: Option<usize>) -> usize {
        std::mem::replace(&mut self.at, at.unwrap_or(self.front))
    }

    fn bring_to_front(&mut self, at: usize) {
        (self.at, self.front) = (at, at);
    }

    pub(super) fn front_first(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.front).chain((0..self.all.len()).filter(|at| *at != self.front))
    }

    /// Another conversation than the present one.
    pub(super) fn other(&self, is: impl Fn(&Conversation) -> bool) -> Option<usize> {
        (0..self.all.len()).find(|at| *at != self.at && is(&self.all[*at]))
    }

    fn remove(&mut self, at: usize) -> Conversation {
        self.at -= usize::from(self.at > at);
        self.front -= usize::from(self.front > at);
        self.all.remove(at)
    }
}

impl Conversation {
    pub(super) fn new(session: Session, sequence: SequenceId) -> Conversation {
        Conversation { session, slot: Slot::of(sequence), ..Conversation::default() }
    }

    fn is_done(&self) -> bool {
        self.wait.is_idle() && self.queue.is_empty()
    }
}

impl State {
    pub fn on<T>(&mut self, at: usize, work: impl FnOnce(&mut State) -> T) -> T {
        let before = self.here.enter(Some(at));
        let result = work(self);
        self.here.enter(Some(before));
        result
    }

    /// Another active conversation than the present one.
    pub fn at_work(&self, is: impl Fn(&Session) -> bool) -> Option<usize> {
        self.here.other(|other| other.apart.is_none() && is(&other.session))
    }

    /// Works in the conversation of a session, on screen or off; `None` if it is closed.
    pub fn in_session<T>(&mut self, is: impl Fn(&Session) -> bool, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        match self.at_work(&is) {
            Some(at) => Some(self.on(at, work)),
            None => is(&self.here.session).then(|| work(self)),
        }
    }

    pub fn engine_is_free(&self) -> bool {
        let works = |other: &Conversation| !other.wait.is_idle();
        self.engine.is_live() && self.engine.free_slots() > 0 && self.here.other(works).is_none()
    }

    fn aside_of(&self, serial: u64) -> Option<usize> {
        self.here.other(|other| other.apart.is_some() && other.serial == serial)
    }

    /// What a request does now; [`WhileBusy::Waits`] if it is queued.
    pub fn turn_of(&self, request: &Request) -> WhileBusy {
        let wanted = request.while_busy();
        match wanted {
            WhileBusy::Runs | WhileBusy::Waits => return wanted,
            WhileBusy::Leaves | WhileBusy::Apart if self.here.wait.is_idle() => return WhileBusy::Waits,
            WhileBusy::Leaves | WhileBusy::Apart => {}
        }
        // One-shot requests keep their order. A conversation that was left, or is not in the list yet, cannot be left.
        let can_be_left = self.here.is_in_front() && self.here.serial != 0;
        if self.attendance == Attendance::Absent || self.quitting || !can_be_left {
            return WhileBusy::Waits;
        }
        let Some(why) = self.engine.no_free_slot() else { return wanted };
        self.info(format!("{why}; this runs after the current work."));
        WhileBusy::Waits
    }

    /// Runs a request in a new conversation; the current one continues off screen.
    pub fn leave(&mut self, request: Request) {
        let Some(sequence) = self.engine.take_slot() else { return self.here.queue.push_back(request) };
        self.opened.note(&self.here.session);
        let session = self.empty_session();
        // The screen shows this until the new conversation replaces the current one; then another activity is a change.
        let activity = Activity::Busy { what: "opening".into() };
        self.here.all.push(Conversation { activity, ..Conversation::new(session, sequence) });
        self.here.bring_to_front(self.here.all.len() - 1);
        self.here.queue.push_back(request);
    }

    pub fn set_apart(&mut self, request: Request) {
        let Request::Aside(question) = request else { return self.here.queue.push_back(request) };
        if self.aside_of(self.here.serial).is_some() {
            return self.warn("One aside at a time: wait for its answer, or stop it first.");
        }
        let Some(sequence) = self.engine.take_slot() else {
            return self.here.queue.push_back(Request::Aside(question));
        };
        // An unfinished answer as far as it exists, without a document that is being read. The text of a partly kept
        // document differs from its loaded text, and the state contains all of it.
        let half = |m: &&Message| m.is_half_read() && self.live_end(m.id).is_none();
        let path = self.here.tree.path();
        let mut path: Vec<Message> = path.into_iter().take_while(|m| !half(m)).cloned().collect();
        let says_nothing = |m: &mut Message| match m.role {
            Role::Assistant => m.text.trim().is_empty(),
            Role::User => true,
            Role::System | Role::Document => false,
        };
        while path.pop_if(says_nothing).is_some() {}
        let head = path.last().map(|m| m.id);
        let session = Session {
            serial: self.here.serial,
            name: self.here.name.clone(),
            tree: Tree::new(path, head),
            rights: Rights::View("it is an aside.".into()),
            ends: self.here.ends.clone(),
            ..Session::empty(self.here.settings.clone(), self.here.system.clone())
        };
        let mut other = Conversation::new(session, sequence);
        other.queue.push_back(Request::Aside(question.clone()));
        other.apart = Some(Apart { question, put_off: None, waits: false });
        self.here.all.push(other);
    }

    pub fn end_aside(&mut self) -> Done {
        match self.aside_of(self.here.serial) {
            Some(at) => self.on(at, State::stop),
            None => self.stop(),
        }
        Ok(())
    }

    /// Shows a conversation that worked off screen. The previous one continues off screen or is dropped.
    pub fn take_up(&mut self, at: usize) {
        self.opened.note(&self.here.session);
        let left = self.here.enter(Some(at));
        self.here.bring_to_front(at);
        self.screen = self.here.serial;
        if self.here.all.get(left).is_some_and(Conversation::is_done) {
            let left = self.here.remove(left);
            self.put_away(left, self.opened.keeps_empty);
        }
        self.show_all_again();
    }

    fn show_all_again(&mut self) {
        let mut view = self.session_view();
        let written = view.messages.pop_if(|m| m.role == Role::Assistant && m.meta.finish.is_none());
        let written = written.filter(|_| !self.here.wait.is_idle());
        self.report(Notice::Session(view));
        if let Some(answer) = written {
            self.report(Notice::Added(answer));
        }
        self.show_meters();
        self.report(Notice::Activity(self.here.activity.clone()));
        match &self.here.wait {
            Wait::Question { notice, .. } => self.report((**notice).clone()),
            Wait::Engine { .. } => self.wake(Wake::ShownAgain),
            _ => {}
        }
    }

    /// Runs after each step: closes an opening that led nowhere, and drops conversations without work.
    pub fn tidy_conversations(&mut self) {
        let led_nowhere = self.here.serial == 0 && self.here.wait.is_idle() && self.here.queue.is_empty();
        let screen = self.screen;
        if let Some(at) = self.at_work(|session| led_nowhere && session.serial == screen) {
            self.here.bring_to_front(at);
            self.show_meters();
            self.report(Notice::Activity(self.here.activity.clone()));
        }
        let is_over = |c: &Conversation| c.is_done() && (c.apart.is_some() || c.serial != screen);
        while let Some(at) = self.here.other(is_over) {
            let other = self.here.remove(at);
            self.put_away(other, true);
        }
    }

    fn put_away(&mut self, other: Conversation, keeps_empty: bool) {
        // Without an engine there is no slot to release.
        self.engine.release(other.slot.sequence);
        let Some(apart) = other.apart else {
            self.disk.wait_for_texts();
            self.disk.let_go(other.session.id, other.lock);
            return self.opened.left(other.session, keeps_empty);
        };
        let Some(why) = apart.put_off else { return };
        let wait = |runtime: &mut State| {
            runtime.info(format!("The aside waits for the current work: {why}"));
            runtime.here.queue.push_back(Request::Aside(apart.question));
        };
        self.in_session(|session| session.serial == other.session.serial, wait);
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.here.all.iter().filter_map(|conversation| conversation.wait.deadline()).min()
    }
}
