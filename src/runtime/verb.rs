//! Verbs: linear functions that wait in place, and the executor that runs them.
//!
//! A verb is an `async fn` of [`Verb`]. While it runs it owns the [`State`]; at each `.await` it returns the state to
//! the loop in [`super::run`], which handles requests, pages and other conversations. [`Conversation::wait`] names the
//! wait; the event that ends it is stored in [`Conversation::wake`], and [`State::settle`] resumes the verb at once.
//! All of it runs on one thread, so nothing interrupts a verb between two waits.
//!
//! A verb may drive children ([`Verb::child`]), each in another slot of the engine ([`super::fan_out`]).

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::slot::Slot;
use super::task::Task;
use super::{Done, State};
use crate::config::commands::WhileBusy;
use crate::engine::protocol::EngineEvent;
use crate::runtime::protocol::{Activity, Level, Notice};

/// How often a verb that waits for the engine may save and refresh its numbers.
const TICK: Duration = Duration::from_millis(200);

/// Passes the state between the loop and the verbs; exactly one of them holds it.
pub(super) type Baton = Rc<Cell<Option<Box<State>>>>;

pub(super) struct Running<T = Done>(Pin<Box<dyn Future<Output = T>>>);

impl<T> std::fmt::Debug for Running<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Key(char),
    /// Files of a load, by their index in the plan.
    Files(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Texts of all saves up to this one.
    Texts(u64),
    /// State of all saves up to this one.
    States(u64),
}

#[derive(Debug, Default)]
pub(super) enum Wait {
    /// No verb runs: the next request can begin.
    #[default]
    Idle,
    /// For the loop to handle pending events.
    Turn,
    /// For the model to load.
    Model,
    /// For the disk, until a deadline.
    Saved { wanted: Wanted, until: Instant },
    /// For another thread.
    Background(Task),
    /// For the user.
    Question { id: u64, notice: Box<Notice>, before: Activity },
    /// For commands to the engine.
    Engine { commands: Vec<u64>, work: Work, next_tick: Instant },
}

/// Work of the engine that a verb waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A job in the conversation's own slot.
    Job,
    /// A restore of that slot: it may continue in another process when the one that ran the model ends.
    Restore,
    /// Branches in other slots.
    Branches,
    /// The same, and every request has priority.
    Title,
}

#[derive(Debug)]
pub(super) enum Wake {
    Go,
    Stopped,
    Answer(Answer),
    /// An event of one of the commands.
    Engine(EngineEvent),
    /// [`Wait::Engine::next_tick`] is reached.
    Tick,
    /// The conversation is on screen again.
    ShownAgain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// As the next verb, since none runs.
    Next,
    /// At once; it needs no wait.
    AtOnce,
    /// After the running verb.
    Later,
    /// In another conversation, which replaces this one on screen.
    Leave,
    /// In a conversation of its own.
    Apart,
}

impl Wait {
    pub(super) fn turn_of(&self, request: WhileBusy) -> Turn {
        match (self, request) {
            (Wait::Idle, _) => Turn::Next,
            (_, WhileBusy::Runs) => Turn::AtOnce,
            (_, WhileBusy::Waits) => Turn::Later,
            (_, WhileBusy::Leaves) => Turn::Leave,
            (_, WhileBusy::Apart) => Turn::Apart,
        }
    }

    /// When the wait ends without an event.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Wait::Idle | Wait::Turn | Wait::Model | Wait::Question { .. } => None,
            Wait::Background(task) => task.deadline(),
            Wait::Saved { until, .. } => Some(*until),
            Wait::Engine { next_tick, .. } => Some(*next_tick),
        }
    }

    pub(super) fn owns(&self, command: u64) -> bool {
        matches!(self, Wait::Engine { commands, .. } if commands.contains(&command))
    }

    pub(super) fn background(&self) -> Option<&Task> {
        match self {
            Wait::Background(task) => Some(task),
            _ => None,
        }
    }

    pub(super) fn needs_engine(&self) -> bool {
        matches!(self, Wait::Model | Wait::Engine { .. })
    }

    /// Whether every request has priority over the verb.
    pub(super) fn gives_way(&self) -> bool {
        matches!(self, Wait::Engine { work: Work::Title, .. })
    }

    /// Whether the conversation's own slot is at work.
    pub(super) fn uses_own_slot(&self) -> bool {
        matches!(self, Wait::Engine { work: Work::Job | Work::Restore, .. })
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Wait::Idle)
    }
}

/// A verb's handle on the state.
pub(super) struct Verb {
    /// `None` during a wait.
    state: Option<Box<State>>,
    baton: Baton,
    /// The slot it uses, if not the conversation's own.
    slot: Option<Slot>,
}

impl Deref for Verb {
    type Target = State;

    fn deref(&self) -> &State {
        match &self.state {
            Some(state) => state,
            None => unreachable!("a verb runs while it waits"),
        }
    }
}

impl DerefMut for Verb {
    fn deref_mut(&mut self) -> &mut State {
        match &mut self.state {
            Some(state) => state,
            None => unreachable!("a verb runs while it waits"),
        }
    }
}

impl Drop for Verb {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.baton.set(Some(state));
        }
    }
}

/// Returns the state to the loop at the first poll, and takes it back at the next.
struct Handover<'a>(&'a mut Verb);

impl Future for Handover<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let Handover(verb) = self.get_mut();
        match verb.state.take() {
            Some(state) => {
                verb.baton.set(Some(state));
                Poll::Pending
            }
            None => {
                verb.state = verb.baton.take();
                Poll::Ready(())
            }
        }
    }
}

impl Verb {
    /// Returns the event that ended the wait.
    pub(super) async fn wait(&mut self, wait: Wait) -> Wake {
        self.here.wait = wait;
        Handover(self).await;
        self.here.wake.take().unwrap_or(Wake::Go)
    }

    /// Waits for events of engine commands. True on a tick: time to save and to refresh numbers.
    pub(super) async fn wait_for_engine(&mut self, commands: Vec<u64>, work: Work) -> (Wake, bool) {
        let next_tick = self.here.next_tick.max(Instant::now());
        let wake = self.wait(Wait::Engine { commands, work, next_tick }).await;
        let due = Instant::now() >= next_tick;
        self.here.next_tick = if due { Instant::now() + TICK } else { next_tick };
        (wake, due)
    }

    pub(super) fn slot(&mut self) -> &mut Slot {
        match (&mut self.slot, &mut self.state) {
            (Some(slot), _) => slot,
            (None, Some(state)) => &mut state.here.slot,
            (None, None) => unreachable!("a verb runs while it waits"),
        }
    }

    pub(super) fn is_in_own_slot(&self) -> bool {
        self.slot.is_none()
    }

    /// Runs `child`, which uses another slot, up to its next wait. The child stores its wait in
    /// [`Conversation::wait`].
    pub(super) fn poll<T>(&mut self, child: &mut Running<T>) -> Poll<T> {
        self.baton.set(self.state.take());
        let polled = child.0.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.state = self.baton.take();
        polled
    }

    /// Begins a child that uses `slot`.
    pub(super) fn child<T: 'static>(
        &self,
        slot: Slot,
        body: impl AsyncFnOnce(&mut Verb) -> Done<T> + 'static,
    ) -> Running<(Slot, Done<T>)> {
        let baton = Rc::clone(&self.baton);
        Running(Box::pin(async move {
            let mut verb = Verb { state: baton.take(), baton, slot: Some(slot) };
            let done = body(&mut verb).await;
            (verb.slot.take().unwrap_or_default(), done)
        }))
    }

    pub(super) async fn let_others_go_first(&mut self) {
        self.wait(Wait::Turn).await;
    }
}

/// A verb that begins at its first poll.
pub(super) fn verb(baton: &Baton, body: impl AsyncFnOnce(&mut Verb) -> Done + 'static) -> Running {
    let baton = Rc::clone(baton);
    Running(Box::pin(async move {
        let mut verb = Verb { state: baton.take(), baton, slot: None };
        body(&mut verb).await
    }))
}

impl State {
    /// Runs a verb of `here` up to its next wait or its end.
    pub(super) fn resume_verb(mut self: Box<State>, mut running: Running) -> Box<State> {
        let baton = Rc::clone(&self.baton);
        self.here.wait = Wait::Idle;
        baton.set(Some(self));
        let polled = running.0.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Some(mut state) = baton.take() else { unreachable!("a verb keeps the state while it waits") };
        match polled {
            Poll::Pending => {
                state.here.verb = Some(running);
                if let Some(shown) = state.here.wait.background().map(Task::activity) {
                    state.activity(shown);
                }
            }
            Poll::Ready(done) => state.after(done),
        }
        state
    }

    /// Runs a verb that waits at most for another thread, while the conversation's own verb waits.
    fn run_at_once(mut self: Box<State>, mut running: Running) -> Box<State> {
        let baton = Rc::clone(&self.baton);
        let own = (std::mem::take(&mut self.here.wait), self.here.wake.take());
        baton.set(Some(self));
        let polled = running.0.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Some(mut state) = baton.take() else { unreachable!("a verb keeps the state while it waits") };
        let wait = std::mem::replace(&mut state.here.wait, own.0);
        state.here.wake = own.1;
        match (polled, wait) {
            (Poll::Ready(Ok(())), _) => {}
            (Poll::Ready(Err(e)), _) => state.failed(&e),
            (Poll::Pending, Wait::Background(task)) => state.background.push((task, running)),
            (Poll::Pending, _) => {
                state.note(Level::Error, "internal error: a request waits for something while another verb runs");
            }
        }
        state
    }

    /// Resumes all verbs at the end of their wait.
    pub(super) fn settle(mut self: Box<State>) -> Box<State> {
        loop {
            if let Some((serial, running)) = self.at_once.pop_front() {
                let at = self.at_work(|session| session.serial == serial);
                self = self.run_in(at, running, State::run_at_once);
                if self.here.wait.is_idle() || self.here.wait.gives_way() {
                    self.idle();
                }
                continue;
            }
            let at = match self.here.wake.is_some() {
                true => None,
                false => match self.others.iter().position(|other| other.wake.is_some()) {
                    Some(at) => Some(at),
                    None => return self,
                },
            };
            let conversation = match at.is_some_and(|at| at < self.others.len()) {
                true => &mut self.others[at.unwrap_or_default()],
                false => &mut self.here,
            };
            match conversation.verb.take() {
                Some(running) => self = self.run_in(at, running, State::resume_verb),
                None => conversation.wake = None,
            }
        }
    }

    /// Runs a verb in `here` or in another conversation.
    pub(super) fn run_in(
        mut self: Box<State>,
        at: Option<usize>,
        running: Running,
        run: fn(Box<State>, Running) -> Box<State>,
    ) -> Box<State> {
        let Some(at) = at else { return run(self, running) };
        self.exchange(at);
        self.off_screen = true;
        self = run(self, running);
        self.off_screen = false;
        self.exchange(at);
        self
    }

    pub(super) fn wake(&mut self, wake: Wake) {
        self.here.wake = Some(wake);
    }
}
