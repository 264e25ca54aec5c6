//! What takes long, as states. The loop in [`super::run`] owns the channels and hands each event to the present state; what
//! a state waited for goes to the function that was left with it, which begins the next state or ends the request. Nothing
//! else ever waits for a request, the engine or a person, so stopping, looking and quitting always work.

use std::time::{Duration, Instant};

use super::branches::Branching;
use super::errand::Errand;
use super::link::JobEnd;
use super::path::Path;
use super::segments::Step;
use super::{Done, State, Then};
use crate::config::commands::WhileBusy;
use crate::engine::protocol::{Looked, Token};
use crate::runtime::protocol::{Activity, Notice};

/// How often something that runs gets a chance to save and to refresh its numbers.
const TICK: Duration = Duration::from_millis(500);

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Key of a choice.
    Key(char),
    /// Files of a load, by their place in the plan.
    Files(Vec<usize>),
}

/// What has to be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Texts of all saves up to this one.
    Texts(u64),
    /// State of all saves up to this one.
    States(u64),
}

/// What goes on.
#[derive(Default)]
pub(super) enum Work {
    /// Nothing: the next request can begin.
    #[default]
    Idle,
    /// Goes on without waiting for anything: a long row of steps that need no engine does not fill the stack.
    Ready(Then<()>),
    /// The model is being loaded.
    Starting(Then<()>),
    /// Something is being written that has to be on disk first, or until then.
    Saving { wanted: Wanted, until: Instant, then: Then<()> },
    /// Another thread does something.
    Errand(Errand),
    /// A question is on the screen. `None`: the user stopped instead of answering.
    Asking { question: u64, notice: Box<Notice>, before: Activity, then: Then<Option<Answer>> },
    /// Kept state is being put back.
    Restoring { id: u64, target: Path, then: Then<Done<f64>> },
    /// A segment is read or an answer written.
    Feeding(Feeding),
    /// Branches are read and written beside the conversation.
    Branching(Box<Branching>),
}

/// A job of the engine.
pub(super) struct Feeding {
    pub(super) id: u64,
    pub(super) step: Step,
    /// Tokens it has reported.
    pub(super) generated: Vec<Token>,
    pub(super) next_tick: Instant,
    pub(super) feed: Box<dyn Feed>,
}

/// Looks at a job while it runs, and says what comes after it.
pub(super) trait Feed: Send {
    /// Prefill went on: tokens of this job read so far.
    fn reading(&mut self, runtime: &mut State, done: u64);
    /// A round of decoding, and where each of its tokens looked.
    fn tokens(&mut self, runtime: &mut State, tokens: &[Token], looked: &[Looked], tokens_per_s: f64);
    /// Now and then.
    fn tick(&mut self, runtime: &mut State);
    /// The conversation is on screen again: what is written goes into it.
    fn shown_again(&mut self, runtime: &mut State);
    /// It ended.
    fn end(self: Box<Self>, runtime: &mut State, step: Step, end: Done<JobEnd>) -> Done;
}

/// When a request has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing goes on: it is the next piece of work.
    Next,
    /// It is served beside what goes on, and waits for nothing.
    Beside,
    /// After what goes on.
    Later,
    /// In another conversation, which takes the place of this one.
    Leave,
    /// In a conversation of its own.
    Apart,
}

impl Work {
    /// When a request has its turn while this goes on.
    pub(super) fn turn_of(&self, request: WhileBusy) -> Turn {
        match (self, request) {
            (Work::Idle, _) => Turn::Next,
            (
                Work::Ready(_)
                | Work::Starting(_)
                | Work::Saving { .. }
                | Work::Errand(_)
                | Work::Asking { .. }
                | Work::Restoring { .. }
                | Work::Feeding(_)
                | Work::Branching(_),
                WhileBusy::Runs,
            ) => Turn::Beside,
            (_, WhileBusy::Waits) => Turn::Later,
            (_, WhileBusy::Leaves) => Turn::Leave,
            (_, WhileBusy::Apart) => Turn::Apart,
        }
    }

    /// When it wants to be looked at without any event.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Work::Idle | Work::Ready(_) | Work::Starting(_) | Work::Asking { .. } => None,
            Work::Errand(errand) => errand.deadline(),
            Work::Saving { until, .. } => Some(*until),
            Work::Restoring { .. } => Some(Instant::now() + TICK),
            Work::Feeding(f) => Some(f.next_tick),
            Work::Branching(b) => Some(b.deadline()),
        }
    }

    /// Whether a command of the engine is its own.
    pub(super) fn owns(&self, command: u64) -> bool {
        match self {
            Work::Restoring { id, .. } => *id == command,
            Work::Feeding(f) => f.id == command,
            Work::Branching(b) => b.owns(command),
            Work::Idle
            | Work::Ready(_)
            | Work::Starting(_)
            | Work::Saving { .. }
            | Work::Errand(_)
            | Work::Asking { .. } => false,
        }
    }

    /// The errand in hand.
    pub(super) fn errand(&self) -> Option<&Errand> {
        match self {
            Work::Errand(errand) => Some(errand),
            _ => None,
        }
    }

    /// Whether it waits for the engine.
    pub(super) fn needs_engine(&self) -> bool {
        matches!(self, Work::Starting(_) | Work::Restoring { .. } | Work::Feeding(_) | Work::Branching(_))
    }

    /// Whether whatever is asked goes before what goes on.
    pub(super) fn gives_way(&self) -> bool {
        matches!(self, Work::Branching(b) if b.gives_way())
    }

    /// Whether nothing goes on.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Work::Idle)
    }
}

impl Feeding {
    pub(super) fn new(id: u64, step: Step, feed: Box<dyn Feed>) -> Feeding {
        Feeding { id, step, generated: Vec::new(), next_tick: Instant::now() + TICK, feed }
    }

    /// Gives the job its chance if it is time.
    pub(super) fn look(&mut self, runtime: &mut State) {
        if Instant::now() >= self.next_tick {
            self.feed.tick(runtime);
            self.next_tick = Instant::now() + TICK;
        }
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Work::Idle => "Idle",
            Work::Ready(_) => "Ready",
            Work::Starting(_) => "Starting",
            Work::Saving { .. } => "Saving",
            Work::Errand(_) => "Errand",
            Work::Asking { .. } => "Asking",
            Work::Restoring { .. } => "Restoring",
            Work::Feeding(_) => "Feeding",
            Work::Branching(_) => "Branching",
        })
    }
}
