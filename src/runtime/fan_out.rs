//! Fan-out: the executor in several slots in parallel, for answers to compare (`-n`, `/ask-all`, `/when`) and for
//! titles.
//!
//! A [`Fan`] prepares the next branch whenever a slot is free and receives the output of each. The conversation's own
//! state does not change. A branch begins with a fork of that state or with kept state; its segments are byte for byte
//! the same as if it ran alone.

use std::sync::Arc;
use std::task::Poll;

use super::baton::Running;
use super::executor::Executor;
use super::verb::{BranchSlot, Work};
use super::{
    Activity, Done, Last, Path, PrefillStats, Rendered, RuntimeError, Slot, State, Step, ToAnswer, Verb, Wait, Wake,
    Written, grouped, refused,
};
use crate::core::transcript::MessageId;
use crate::engine::protocol::{EngineEvent, EngineFault, Sampling};
use crate::text::Begin;

#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) base: Path,
    /// The text to read, and its steps; `last` follows the last step.
    pub(super) rendered: Arc<Rendered>,
    pub(super) steps: Vec<Step>,
    /// `None` only reads, and keeps what it reads.
    pub(super) last: Option<Last>,
    /// The message that ends with the answer; `None` keeps nothing.
    pub(super) message: Option<MessageId>,
}

#[derive(Debug, Default)]
pub(super) struct Grown {
    pub(super) path: Path,
    pub(super) stats: PrefillStats,
}

pub(super) trait Fan {
    /// Prepares a branch by its number from 0. Called once for each, in order, until there is none; an error ends it.
    fn prepare(&mut self, state: &mut State, which: usize) -> Done<Option<Branch>>;
    fn tokens(&mut self, _state: &mut State, _which: usize, _written: &Written<'_>) {}
    fn tick(&mut self, _state: &mut State) {}
    /// The conversation is on screen again: sends all output again.
    fn shown_again(&mut self, _state: &mut State) {}
    fn ended(&mut self, state: &mut State, which: usize, grown: Done<Grown>);
}

/// Branches that are known beforehand, and what each became; `None` before its end.
struct Known {
    branches: std::vec::IntoIter<Done<Branch>>,
    grown: Vec<Option<Done<Grown>>>,
    /// What is counted while they run.
    what: Option<&'static str>,
}

impl Fan for Known {
    fn prepare(&mut self, _state: &mut State, _which: usize) -> Done<Option<Branch>> {
        self.branches.next().transpose()
    }

    fn ended(&mut self, state: &mut State, which: usize, grown: Done<Grown>) {
        if let Some(place) = self.grown.get_mut(which) {
            *place = Some(grown);
        }
        if let Some(what) = self.what {
            let (done, of) = (self.grown.iter().flatten().filter(|g| g.is_ok()).count(), self.grown.len());
            state.working(Activity::Busy { what: format!("{done} of {of} {what}") });
        }
    }
}

#[derive(Default)]
struct Lanes {
    running: Vec<Lane>,
    /// These wait for memory.
    waiting: Vec<(usize, Branch)>,
    /// The number of the next branch.
    next: usize,
    most: usize,
    /// Slots of branches that have ended.
    free: Vec<Slot>,
    fatal: Option<EngineFault>,
}

struct Lane {
    which: usize,
    branch: Branch,
    wrote: bool,
    commands: Vec<u64>,
    run: Running<(Slot, Done<Grown>)>,
}

impl Verb {
    /// Runs all branches. Each round begins one, or waits for an event of one.
    pub async fn fan_out(&mut self, fan: &mut dyn Fan, work: Work) -> Done {
        if let Some(why) = self.engine.no_free_slot() {
            return refused(format!("{why}."));
        }
        let mut all = Lanes { most: self.engine.free_slots(), ..Lanes::default() };
        loop {
            let at = match self.begin_branch(fan, &mut all) {
                Some(at) => at,
                None if all.running.is_empty() => break,
                None => match self.branch_event(fan, &mut all, work).await {
                    Some(at) => at,
                    None => continue,
                },
            };
            let Some((slot, ended)) = self.drive(&mut all.running[at]) else { continue };
            let Lane { which, branch, wrote, .. } = all.running.remove(at);
            match ended {
                // The device has no memory for it: it waits until another branch has ended.
                Err(e) if e.is_of_the_slot() && !wrote && !all.running.is_empty() => {
                    tracing::debug!(%e, "a slot less");
                    all.most = all.running.len() + all.free.len();
                    all.waiting.push((which, branch));
                    self.engine.release(slot.sequence);
                }
                ended => {
                    all.free.push(slot);
                    let ended = ended.map_err(|e| self.disk.set_aside(e));
                    fan.ended(self, which, ended);
                }
            }
        }
        let why = || all.fatal.clone().map_or(RuntimeError::Stopped, RuntimeError::from);
        all.waiting.iter().for_each(|(which, _)| fan.ended(self, *which, Err(why())));
        all.free.iter().for_each(|slot| self.engine.release(slot.sequence));
        all.fatal.map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// The next branch, if a slot is free for it.
    fn begin_branch(&mut self, fan: &mut dyn Fan, all: &mut Lanes) -> Option<usize> {
        if self.here.slot.stopped() || all.fatal.is_some() {
            return None;
        }
        let mut slot = match all.free.pop() {
            Some(slot) => slot,
            None if all.running.len() < all.most => Slot::of(self.engine.take_slot()?),
            None => return None,
        };
        let Some((which, branch)) = all.waiting.pop().or_else(|| self.next_branch(fan, &mut all.next)) else {
            all.free.push(slot);
            return None;
        };
        // It stores its waits in the conversation's wait and stops with the conversation.
        slot.cancel = self.here.slot.cancel.clone();
        let (baton, of) = (self.baton.clone(), branch.clone());
        let run = Running::new(async move {
            let keeps = of.message.is_some() || of.last.is_none();
            let mut verb = Verb::new(baton, Some(BranchSlot { slot, keeps }));
            let grown = verb.run_branch(of).await;
            (verb.own.take().map(|own| own.slot).unwrap_or_default(), grown)
        });
        all.running.push(Lane { which, branch, wrote: false, commands: Vec::new(), run });
        Some(all.running.len() - 1)
    }

    /// Waits for an event and leaves it for its branch.
    async fn branch_event(&mut self, fan: &mut dyn Fan, all: &mut Lanes, work: Work) -> Option<usize> {
        let commands = all.running.iter().flat_map(|lane| lane.commands.clone()).collect();
        let (wake, due) = self.wait_for_engine(commands, work).await;
        if due {
            fan.tick(self);
        }
        let mut event = match wake {
            Wake::Engine(EngineEvent::Failed { fault: fault @ EngineFault::Fatal { .. }, .. }) => {
                self.engine_failed(&fault);
                for lane in all.running.drain(..) {
                    fan.ended(self, lane.which, Err(fault.clone().into()));
                }
                all.fatal = Some(fault);
                return None;
            }
            Wake::Engine(event) => event,
            Wake::ShownAgain => {
                fan.shown_again(self);
                return None;
            }
            _ => return None,
        };
        let id = event.id_mut().copied()?;
        let at = all.running.iter().position(|lane| lane.commands.contains(&id))?;
        if let EngineEvent::Tokens { tokens, tokens_per_s, looked, likely, .. } = &event {
            let lane = &mut all.running[at];
            lane.wrote = true;
            fan.tokens(self, lane.which, &Written { tokens, looked, likely, tokens_per_s: *tokens_per_s });
        }
        self.wake(Wake::Engine(event));
        Some(at)
    }

    /// Runs branches that are known beforehand. `what` names them while they are counted on screen.
    pub async fn all_of(
        &mut self,
        branches: Vec<Done<Branch>>,
        what: Option<&'static str>,
        work: Work,
    ) -> Done<Vec<Option<Done<Grown>>>> {
        let grown = branches.iter().map(|_| None).collect();
        let mut known = Known { branches: branches.into_iter(), grown, what };
        self.fan_out(&mut known, work).await?;
        Ok(known.grown)
    }

    /// Runs a branch in idle time; every request has priority. `None` if it failed.
    pub async fn in_idle_time(&mut self, branch: Branch) -> Done<Option<Grown>> {
        let grown = self.all_of(vec![Ok(branch)], None, Work::Title).await?.pop().flatten();
        Ok(grown.and_then(|grown| grown.inspect_err(|e| tracing::debug!(%e, "a branch in idle time")).ok()))
    }

    fn next_branch(&mut self, fan: &mut dyn Fan, next: &mut usize) -> Option<(usize, Branch)> {
        while !self.here.slot.stopped() {
            let which = *next;
            *next += 1;
            let e = match fan.prepare(self, which) {
                Ok(branch) => return branch.map(|branch| (which, branch)),
                Err(e) => e,
            };
            let stopped = matches!(e, RuntimeError::Stopped);
            fan.ended(self, which, Err(e));
            if stopped {
                break;
            }
        }
        None
    }

    /// Runs a lane up to its next wait; returns the result at its end.
    fn drive(&mut self, lane: &mut Lane) -> Option<(Slot, Done<Grown>)> {
        match self.poll(&mut lane.run) {
            Poll::Ready(ended) => Some(ended),
            Poll::Pending => {
                if let Wait::Engine { commands, .. } = std::mem::take(&mut self.here.wait) {
                    lane.commands = commands;
                }
                None
            }
        }
    }

    async fn run_branch(&mut self, branch: Branch) -> Done<Grown> {
        let Branch { base, rendered, steps, last, message } = branch;
        if !self.restore(base).await? {
            return refused("Its kept state is not on disk any more.");
        }
        self.unstopped()?;
        let answer = last.map(|last| ToAnswer { last, message });
        let stats = self.run(&rendered, steps, answer, &mut ()).await?;
        Ok(Grown { path: self.slot().live.clone(), stats })
    }
}

impl State {
    /// A branch that answers a question on top of kept state without saving.
    pub fn question_after(&self, base: &Path, rendered: &Arc<Rendered>, sampling: Sampling) -> Done<Branch> {
        let steps = self.bounded(|halt| self.steps(rendered, base, halt))?;
        let total = base.position() + steps.iter().map(|step| step.prompt.len() as u64).sum::<u64>();
        if !self.fits(total + self.reserve()) {
            let (total, limit) = (grouped(total), grouped(self.firm_limit()));
            return Err(RuntimeError::TooLong(format!("{total} tokens with the question; the context holds {limit}")));
        }
        let last = Some(Last::Generate(self.generate(sampling, Begin::after_prompt(&rendered.text), 0)?));
        Ok(Branch { base: base.clone(), rendered: Arc::clone(rendered), steps, last, message: None })
    }

    pub fn greedy(&self) -> Sampling {
        Sampling { temperature: 0.0, ..self.here.settings.for_answer(|| 0) }
    }
}
