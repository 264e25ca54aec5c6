//! Branches: jobs on states of their own, side by side in sequences beside the conversation's.
//!
//! Who wants them is a [`Fan`]: it makes the next branch ready whenever a sequence is free, is told what each one writes and how
//! it ended, and ends when there is nothing left. The conversation's own state stays where it is. A branch begins with a fork of that state or with
//! kept state from the disk, of which the engine does not read rows that the conversation has; its segments are the same as if it had been the conversation, byte for byte.
//!
//! The sequences and what runs in them are in `lane`.

mod lane;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::JobEnd;
use super::path::Path;
use super::render::Rendered;
use super::segments::Step;
use super::slot::Last;
use super::{Done, RuntimeError, State, Then, Work};
use crate::engine::protocol::{EngineEvent, EngineFault, Likely, Looked, SequenceId, StateImage, Token};
use crate::store::NewSegment;
use lane::Lane;

/// How often a fan gets a chance to save and to show how far it is.
const TICK: Duration = Duration::from_millis(200);

/// Something to be done on a state.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    /// The state.
    pub(super) base: Path,
    /// The text that is read on top of it, and its steps; the last one is followed by `last`.
    pub(super) rendered: Arc<Rendered>,
    pub(super) steps: VecDeque<Step>,
    pub(super) last: Last,
    /// The state behind it is kept.
    pub(super) export: bool,
}

/// What became of a branch.
#[derive(Debug, Default)]
pub(super) struct Grown {
    /// Its path now.
    pub(super) path: Path,
    /// Segments it added, and whether each holds all of its step.
    pub(super) segments: Vec<(NewSegment, Option<StateImage>, bool)>,
    /// Tokens read, and the time for them in milliseconds.
    pub(super) read: u64,
    pub(super) prefill_ms: f64,
    /// The last job.
    pub(super) end: Option<JobEnd>,
}

/// What a round of decoding brought.
pub(super) struct Written<'a> {
    pub(super) tokens: &'a [Token],
    pub(super) looked: &'a [Looked],
    /// How likely each token was, where the branch asked for it.
    pub(super) likely: &'a [Likely],
    pub(super) tokens_per_s: f64,
}

/// Wants branches.
pub(super) trait Fan: Send {
    /// How many there may be.
    fn count(&self) -> usize;
    /// Makes one of them ready, by its number from 0. Each is asked for once, in order; `None` where it is not to be had, and an
    /// error is its end.
    fn prepare(&mut self, runtime: &mut State, which: usize) -> Done<Option<Branch>>;
    /// A round of decoding.
    fn tokens(&mut self, runtime: &mut State, which: usize, written: &Written<'_>);
    /// Now and then.
    fn tick(&mut self, _desk: &mut State) {}
    /// The conversation is on screen again: what was told of it is told once more, as it stands.
    fn shown_again(&mut self, _desk: &mut State) {}
    /// A branch has ended.
    fn ended(&mut self, runtime: &mut State, which: usize, grown: Done<Grown>);
    /// Whether whatever is asked meanwhile goes first: it was nobody's wish.
    fn gives_way(&self) -> bool {
        false
    }
    /// All have ended.
    fn over(self: Box<Self>, runtime: &mut State, lanes: Lanes) -> Done;
}

/// Sequences that have done their work, and hold what it came to.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<(SequenceId, Path)>);

/// Branches that run.
pub(super) struct Branching {
    lanes: Vec<Lane>,
    /// Sequences there may be.
    most: usize,
    fan: Box<dyn Fan>,
    /// Branches that were asked for.
    asked: usize,
    /// Branches there was no room for when they were begun.
    waiting: Vec<(usize, Branch)>,
    next_tick: Instant,
    fatal: Option<EngineFault>,
}

impl std::fmt::Debug for Branching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Branching in {} sequences", self.lanes.len())
    }
}

impl Branching {
    /// Whether a command is one of its own.
    pub(super) fn owns(&self, id: u64) -> bool {
        self.lanes.iter().any(|lane| lane.doing.as_ref().is_some_and(|doing| doing.id == id))
    }

    /// It is on screen again.
    pub(super) fn shown_again(&mut self, runtime: &mut State) {
        self.fan.shown_again(runtime);
    }

    /// When it wants to be looked at without any event.
    pub(super) fn deadline(&self) -> Instant {
        self.next_tick
    }

    /// Whether whatever is asked meanwhile goes first.
    pub(super) fn gives_way(&self) -> bool {
        self.fan.gives_way()
    }

    /// Gives the fan its chance if it is time.
    pub(super) fn look(&mut self, runtime: &mut State) {
        if Instant::now() >= self.next_tick {
            self.fan.tick(runtime);
            self.next_tick = Instant::now() + TICK;
        }
    }

    /// Begins as many branches as there is room for. False when none runs and none is to come.
    fn fill(&mut self, runtime: &mut State) -> bool {
        while !runtime.here.slot.stopped() && self.fatal.is_none() {
            let free = self.lanes.iter().position(|lane| lane.doing.is_none());
            if free.is_none() && (self.lanes.len() >= self.most || runtime.engine.free_slots() == 0) {
                break;
            }
            let Some((which, branch)) = self.waiting.pop().or_else(|| self.next(runtime)) else { break };
            let at = match free {
                Some(at) => at,
                None => {
                    let Some(sequence) = runtime.engine.take_slot() else {
                        self.waiting.push((which, branch));
                        break;
                    };
                    self.lanes.push(Lane { sequence, path: Path::default(), doing: None });
                    self.lanes.len() - 1
                }
            };
            self.begin(runtime, at, which, branch);
        }
        if runtime.here.slot.stopped() {
            for (which, _) in std::mem::take(&mut self.waiting) {
                self.fan.ended(runtime, which, Err(RuntimeError::Stopped));
            }
        }
        self.lanes.iter().any(|lane| lane.doing.is_some())
    }

    /// The next branch that can be had.
    fn next(&mut self, runtime: &mut State) -> Option<(usize, Branch)> {
        while self.asked < self.fan.count() && !runtime.here.slot.stopped() {
            let which = self.asked;
            self.asked += 1;
            match self.fan.prepare(runtime, which) {
                Ok(Some(branch)) => return Some((which, branch)),
                Ok(None) => {}
                Err(e) => {
                    let stopped = matches!(e, RuntimeError::Stopped);
                    self.fan.ended(runtime, which, Err(e));
                    if stopped {
                        return None;
                    }
                }
            }
        }
        None
    }
}

impl State {
    /// How many branches can run beside the conversation.
    pub(super) fn lanes(&self) -> usize {
        self.engine.free_slots()
    }

    /// Runs branches; nothing else goes on meanwhile.
    pub(super) fn branch_out(&mut self, fan: impl Fan + 'static) -> Done {
        let lanes = self.lanes();
        if lanes == 0 {
            let why = match self.engine.slots() {
                0 | 1 => "This engine holds one conversation at a time.",
                _ => "All conversations that this engine holds are at work: wait for one to end, or stop it.",
            };
            return Err(RuntimeError::Refused(why.into()));
        }
        let branching = Branching {
            lanes: Vec::new(),
            most: lanes,
            fan: Box::new(fan),
            asked: 0,
            waiting: Vec::new(),
            next_tick: Instant::now() + TICK,
            fatal: None,
        };
        self.go_on_branching(Box::new(branching))
    }

    fn go_on_branching(&mut self, mut branching: Box<Branching>) -> Done {
        if branching.fill(self) {
            self.here.work = Work::Branching(branching);
            return Ok(());
        }
        let Branching { lanes, fan, fatal, .. } = *branching;
        let lanes = Lanes(lanes.into_iter().map(|lane| (lane.sequence, lane.path)).collect());
        let done = fan.over(self, lanes);
        match fatal {
            Some(fault) => Err(fault.into()),
            None => done,
        }
    }

    /// An event while branches run.
    pub(super) fn on_branches(&mut self, mut branching: Box<Branching>, event: EngineEvent) -> Option<EngineEvent> {
        branching.look(self);
        let other = branching.take(self, event);
        let done = self.go_on_branching(branching);
        self.after(done);
        other
    }

    /// Gives sequences back.
    pub(super) fn release(&mut self, lanes: Lanes) {
        for (sequence, _) in lanes.0 {
            // Where the engine is gone there is nothing to give back.
            let _ = self.engine.release(sequence);
        }
    }

    /// Makes the state of a branch the conversation's, and gives all sequences back. `then` gets false when no sequence holds it.
    pub(super) fn adopt(&mut self, lanes: Lanes, path: Path, then: Then<bool>) -> Done {
        let holds = lanes.0.iter().find(|(_, held)| held.head().is_some() && held.head() == path.head());
        let Some((from, _)) = holds else {
            self.release(lanes);
            return then(self, false);
        };
        let id = self.start_fork(*from, self.here.slot.sequence)?;
        self.release(lanes);
        let then = Box::new(|runtime: &mut State, done: Done<f64>| match done {
            Ok(_) => then(runtime, true),
            Err(e) => Err(e),
        });
        self.here.work = Work::Restoring { id, target: path, then };
        Ok(())
    }
}
