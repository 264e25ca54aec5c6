//! Verbs: linear functions that wait in place ([`super::baton`]).
//!
//! A verb is an `async fn` of [`Verb`]. At each `.await` it returns the [`State`] to the loop in [`super::run`], which
//! handles requests, pages and other conversations. [`Conversation::wait`] names the wait. It ends when its condition
//! holds or with the event in [`Conversation::wake`]; then [`State::settle`] resumes the verb.
//!
//! A verb may drive branches, each in another slot of the engine ([`super::fan_out`]).

use std::task::Poll;
use std::time::{Duration, Instant};

use super::baton::{Baton, Held, Running};
use super::executor::Executor;
use super::task::Task;
use super::{Activity, Attendance, Choice, Conversation, Done, Notice, RuntimeError, Slot, State};
use crate::engine::protocol::EngineEvent;
use crate::runtime::protocol::LoadPlan;

/// How often a verb that waits for the engine may save and refresh its numbers.
const TICK: Duration = Duration::from_millis(200);

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
    Model,
    Saved {
        wanted: Wanted,
        until: Instant,
    },
    Thread(Task),
    Question {
        id: u64,
        notice: Box<Notice>,
        before: Activity,
    },
    Engine {
        commands: Vec<u64>,
        work: Work,
        until: Instant,
    },
}

/// Work of the engine that a verb waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A job in the conversation's own slot.
    Job,
    /// A restore of that slot: it may continue in another process when the one that ran the model ends.
    Restore,
    Branches,
    /// The same, and every request has priority.
    Title,
}

#[derive(Debug)]
pub(super) enum Wake {
    /// What it waited for is there, or the time is over.
    Go,
    Stopped,
    Answer(Answer),
    Engine(EngineEvent),
    ShownAgain,
}

impl Wait {
    /// When the wait ends without an event.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Wait::Idle | Wait::Turn | Wait::Model | Wait::Question { .. } => None,
            Wait::Thread(task) => task.until,
            Wait::Saved { until, .. } | Wait::Engine { until, .. } => Some(*until),
        }
    }

    pub(super) fn owns(&self, command: u64) -> bool {
        matches!(self, Wait::Engine { commands, .. } if commands.contains(&command))
    }

    pub(super) fn task(&self) -> Option<&Task> {
        match self {
            Wait::Thread(task) => Some(task),
            _ => None,
        }
    }

    /// Whether every request has priority over the verb.
    pub(super) fn gives_way(&self) -> bool {
        matches!(self, Wait::Engine { work: Work::Title, .. })
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Wait::Idle)
    }

    /// Whether no verb runs that a request waits for.
    pub(super) fn rests(&self) -> bool {
        self.is_idle() || self.gives_way()
    }
}

/// Another slot than the conversation's own.
pub(super) struct BranchSlot {
    pub(super) slot: Slot,
    pub(super) keeps: bool,
}

/// A verb's handle on the state; it uses the conversation's slot or another one.
pub(super) type Verb = Held<State, Option<BranchSlot>>;

impl Verb {
    /// Returns the event that ended the wait.
    pub async fn wait(&mut self, wait: Wait) -> Wake {
        self.here.wait = wait;
        self.hand_back().await;
        self.here.wake.take().unwrap_or(Wake::Go)
    }

    /// Waits for events of engine commands. True on a tick: time to save and to refresh numbers.
    pub async fn wait_for_engine(&mut self, commands: Vec<u64>, work: Work) -> (Wake, bool) {
        let until = self.here.next_tick.unwrap_or_else(Instant::now);
        let wake = self.wait(Wait::Engine { commands, work, until }).await;
        let due = Instant::now() >= until;
        self.here.next_tick = Some(if due { Instant::now() + TICK } else { until });
        (wake, due)
    }

    pub fn slot(&mut self) -> &mut Slot {
        self.parts().1
    }

    pub fn is_in_own_slot(&self) -> bool {
        self.own.is_none()
    }

    /// The key of the user's choice. The last one cancels and loses nothing; without a user the first is taken.
    pub async fn ask_user(&mut self, text: String, choices: &[(char, &str)]) -> char {
        let cancel = choices.last().map_or('\x1b', |(key, _)| *key);
        if self.attendance == Attendance::Absent {
            return choices.first().map_or(cancel, |(key, _)| *key);
        }
        match self.put(text, choices, None).await {
            Some(Answer::Key(key)) if choices.iter().any(|(known, _)| *known == key) => key,
            Some(Answer::Key(_) | Answer::Files(_)) | None => cancel,
        }
    }

    /// Shows a question; `None` if the user stops instead of answering.
    pub async fn put(&mut self, text: String, choices: &[(char, &str)], plan: Option<LoadPlan>) -> Option<Answer> {
        // A stop that waits concerns the work before the question.
        let stopped = self.here.slot.cancel.is_cancelled();
        self.wait(Wait::Turn).await;
        if self.quitting || !stopped && self.here.slot.cancel.is_cancelled() {
            return None;
        }
        self.next_question += 1;
        let id = self.next_question;
        let before = self.here.activity.clone();
        match self.here.is_in_front() {
            true => self.activity(Activity::Idle),
            // Off screen only the question is reported, not an end of work.
            false => self.here.activity = Activity::Idle,
        }
        let notice = Box::new(Notice::Question { id, text, choices: Choice::all(choices), plan });
        self.report((*notice).clone());
        match self.wait(Wait::Question { id, notice, before }).await {
            Wake::Answer(answer) => Some(answer),
            _ => None,
        }
    }

    pub async fn confirm(&mut self, text: String, yes: &str) -> bool {
        self.ask_user(text, &[('\n', yes), ('\x1b', "cancel")]).await == '\n'
    }
}

/// A verb that begins at its first poll.
pub(super) fn verb(baton: &Baton<State>, body: impl AsyncFnOnce(&mut Verb) -> Done + 'static) -> Running<Done> {
    let baton = baton.clone();
    Running::new(async move { body(&mut Verb::new(baton, None)).await })
}

impl State {
    /// Runs a verb of a conversation up to its next wait or its end.
    pub fn resume_verb(mut self: Box<State>, at: usize, mut running: Running<Done>) -> Box<State> {
        let baton = self.baton.clone();
        self.here.enter(Some(at));
        self.here.wait = Wait::Idle;
        let (mut state, polled) = running.poll(&baton, self);
        match polled {
            Poll::Pending => state.here.verb = Some(running),
            Poll::Ready(done) => state.after(done),
        }
        state.here.enter(None);
        state
    }

    /// Serves the requests that wait for nothing, and resumes all verbs at the end of their wait.
    pub fn settle(mut self: Box<State>) -> Box<State> {
        while let Some(request) = self.at_once.pop_front() {
            let baton = self.baton.clone();
            let mut running = verb(&baton, async move |verb| verb.carry_out(request).await);
            let (state, polled) = running.poll(&baton, self);
            self = state;
            match polled {
                Poll::Ready(done) => done.unwrap_or_else(|e| self.failed(&e)),
                Poll::Pending => {
                    let what = "internal error: a request that runs at any time waited";
                    self.failed(&RuntimeError::Failed(what.into()));
                }
            }
        }
        while let Some(at) = self.woken() {
            match self.here.all[at].verb.take() {
                Some(running) => self = self.resume_verb(at, running),
                None => self.here.all[at].wake = None,
            }
        }
        self
    }

    /// A conversation at the end of its wait; the one in front first.
    fn woken(&self) -> Option<usize> {
        let is_over = |wait: &Wait| match wait {
            Wait::Saved { wanted, until } => self.disk.has(*wanted) || Instant::now() >= *until,
            Wait::Engine { until, .. } => Instant::now() >= *until,
            _ => false,
        };
        let ended = |c: &Conversation| c.wake.is_some() || c.verb.is_some() && is_over(&c.wait);
        self.here.front_first().find(|at| ended(&self.here.all[*at]))
    }

    pub fn wake(&mut self, wake: Wake) {
        self.here.wake = Some(wake);
    }

    /// Ignored if the question is no longer open.
    pub fn answered(&mut self, question: u64, answer: Answer) -> Done {
        if let Wait::Question { id, before, .. } = &self.here.wait
            && *id == question
        {
            // The stop that led to the question is over.
            if *before != Activity::Stopping {
                self.activity(before.clone());
            }
            self.wake(Wake::Answer(answer));
        }
        Ok(())
    }
}
