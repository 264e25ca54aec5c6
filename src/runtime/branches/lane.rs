//! The sequences that branches run in: how a branch begins in one, and what comes of its commands.

use std::collections::VecDeque;

use super::super::link::JobEnd;
use super::super::path::Path;
use super::super::segments::Step;
use super::super::{Done, RuntimeError, State};
use super::{Branch, Branching, Grown, Written};
use crate::engine::protocol::{Ended, EngineEvent, EngineFault, JobDone, SequenceId, Token};
use crate::runtime::protocol::Level;

/// What a sequence does.
pub(super) struct Doing {
    which: usize,
    /// Of the command.
    pub(super) id: u64,
    branch: Branch,
    /// Steps that are not begun.
    left: VecDeque<Step>,
    /// The step that is read, with the tokens it has reported; `None` while the base is made.
    step: Option<(Step, Vec<Token>)>,
    grown: Grown,
}

/// A sequence beside the conversation's.
pub(super) struct Lane {
    pub(super) sequence: SequenceId,
    pub(super) path: Path,
    pub(super) doing: Option<Doing>,
}

/// The engine answers a command that no branch has given: nothing waits for it.
fn nobodys(runtime: &State, id: u64) {
    runtime.note(Level::Error, format!("internal error: an answer to command {id}, which is no branch's"));
}

impl Branching {
    /// Begins a branch in a sequence.
    pub(super) fn begin(&mut self, runtime: &mut State, at: usize, which: usize, branch: Branch) {
        let Some(lane) = self.lanes.get_mut(at) else {
            let e = RuntimeError::Failed("internal error: a branch for a sequence that is not there".into());
            return self.fan.ended(runtime, which, Err(e));
        };
        let grown = Grown { path: branch.base.clone(), ..Grown::default() };
        let begun = match lane.is_at(&branch.base) {
            true => {
                lane.path = branch.base.clone();
                Ok(None)
            }
            false => lane.make(runtime, &branch.base).map(Some),
        };
        let done = begun.and_then(|making| {
            let left = branch.steps.clone();
            let mut doing = Doing { which, id: 0, branch, left, step: None, grown };
            match making {
                Some(id) => doing.id = id,
                None => doing.go_on(runtime, lane.sequence)?,
            }
            lane.doing = Some(doing);
            Ok(())
        });
        if let Err(e) = done {
            // Nothing was sent: the sequence holds what it held.
            self.fan.ended(runtime, which, Err(e));
        }
    }

    /// An event; given back if it is about something else.
    pub(super) fn take(&mut self, runtime: &mut State, event: EngineEvent) -> Option<EngineEvent> {
        match event {
            EngineEvent::Restored { id, .. } if self.owns(id) => self.made(runtime, id),
            EngineEvent::Reading { id, .. } if self.owns(id) => {}
            EngineEvent::Tokens { id, tokens, tokens_per_s, looked, likely } if self.owns(id) => {
                let mut running = self.lanes.iter_mut().filter_map(|lane| lane.doing.as_mut());
                let Some(doing) = running.find(|doing| doing.id == id) else {
                    nobodys(runtime, id);
                    return None;
                };
                if let Some((_, generated)) = &mut doing.step {
                    generated.extend_from_slice(&tokens);
                }
                let which = doing.which;
                let written = Written { tokens: &tokens, looked: &looked, likely: &likely, tokens_per_s };
                self.fan.tokens(runtime, which, &written);
            }
            EngineEvent::Done { id, done } if self.owns(id) => self.job_done(runtime, id, done),
            EngineEvent::Failed { id, ref fault } if self.owns(id) => {
                let fault = fault.clone();
                self.failed(runtime, id, fault);
            }
            EngineEvent::Failed { id: _, fault: ref fault @ EngineFault::Fatal { .. } } => {
                let fault = fault.clone();
                runtime.engine_failed(&fault);
                self.lost(runtime, &fault);
            }
            event => return Some(event),
        }
        None
    }

    /// Where the command of this number runs, and what it is part of, which is taken out. Whoever asks has seen that there is one:
    /// if not, that is said here.
    fn taken(&mut self, runtime: &State, id: u64) -> Option<(usize, Doing)> {
        let mut lanes = self.lanes.iter_mut().enumerate();
        let taken = lanes.find_map(|(at, lane)| Some((at, lane.doing.take_if(|doing| doing.id == id)?)));
        if taken.is_none() {
            nobodys(runtime, id);
        }
        taken
    }

    /// The base of a branch is there.
    fn made(&mut self, runtime: &mut State, id: u64) {
        let Some((at, mut doing)) = self.taken(runtime, id) else { return };
        let lane = &mut self.lanes[at];
        lane.path = doing.branch.base.clone();
        let which = doing.which;
        let begun = match runtime.here.slot.stopped() {
            true => Err(RuntimeError::Stopped),
            false => doing.go_on(runtime, lane.sequence),
        };
        match begun {
            Ok(()) => lane.doing = Some(doing),
            Err(e) => self.fan.ended(runtime, which, Err(e)),
        }
    }

    fn job_done(&mut self, runtime: &mut State, id: u64, mut done: Box<JobDone>) {
        let Some((at, mut doing)) = self.taken(runtime, id) else { return };
        let lane = &mut self.lanes[at];
        let Some((step, generated)) = doing.step.take() else {
            let e = RuntimeError::Failed("internal error: a job ended that was not begun".into());
            return self.fan.ended(runtime, doing.which, Err(e));
        };
        runtime.count_job(&done);
        doing.grown.read += done.prompt_in_state;
        doing.grown.prefill_ms += done.stats.prefill_ms;
        let image = done.image.take();
        let end = JobEnd { done, generated };
        let absorbed = runtime.absorb_in(&mut lane.path, &doing.branch.rendered, &step, &end);
        let which = doing.which;
        let grown = match absorbed {
            Err(e) => {
                // What it holds is not known any more: it is given back. Where the engine is gone the next command says so.
                let lane = self.lanes.remove(at);
                runtime.engine.release(lane.sequence);
                self.fan.ended(runtime, which, Err(e));
                return;
            }
            Ok(segment) => {
                doing.grown.segments.extend(segment.map(|(segment, whole)| (segment, image, whole)));
                let stopped = end.done.ended == Ended::Cancelled;
                doing.grown.end = Some(end);
                match doing.left.is_empty() || stopped {
                    true => {
                        doing.grown.path = lane.path.clone();
                        Ok(doing.grown)
                    }
                    false => match doing.go_on(runtime, lane.sequence) {
                        Ok(()) => {
                            lane.doing = Some(doing);
                            return;
                        }
                        Err(e) => Err(e),
                    },
                }
            }
        };
        self.fan.ended(runtime, which, grown);
    }

    /// A command to a sequence failed; its state is empty. One there is no room for waits until another has ended.
    fn failed(&mut self, runtime: &mut State, id: u64, fault: EngineFault) {
        if matches!(fault, EngineFault::Fatal { .. }) {
            runtime.engine_failed(&fault);
            return self.lost(runtime, &fault);
        }
        let Some((at, doing)) = self.taken(runtime, id) else { return };
        self.lanes[at].path = Path::default();
        let others = self.lanes.iter().any(|lane| lane.doing.is_some());
        let nothing = doing.step.as_ref().is_none_or(|(_, generated)| generated.is_empty());
        if nothing
            && others
            && matches!(fault, EngineFault::Device(_) | EngineFault::ReadAgain(_) | EngineFault::Gone(_))
        {
            tracing::debug!(%fault, "a sequence less");
            let lane = self.lanes.remove(at);
            self.most = self.lanes.len();
            self.waiting.push((doing.which, doing.branch));
            // Where the engine is gone the next command says so.
            runtime.engine.release(lane.sequence);
            return;
        }
        let e = runtime.disk.set_aside(fault.into());
        self.fan.ended(runtime, doing.which, Err(e));
    }

    /// The engine is gone.
    fn lost(&mut self, runtime: &mut State, fault: &EngineFault) {
        self.fatal = Some(fault.clone());
        let all: Vec<usize> = self.lanes.drain(..).filter_map(|lane| lane.doing.map(|doing| doing.which)).collect();
        for which in all {
            self.fan.ended(runtime, which, Err(fault.clone().into()));
        }
    }
}

impl Lane {
    fn is_at(&self, path: &Path) -> bool {
        let common = self.path.common(path);
        common == self.path.segments().len() && common == path.segments().len()
    }

    /// Begins to make a state in this sequence: a fork of the conversation's, or from the disk.
    fn make(&mut self, runtime: &mut State, base: &Path) -> Done<u64> {
        if runtime.here.slot.is_at(base) {
            return runtime.start_fork(runtime.here.slot.sequence, self.sequence);
        }
        let have = self.path.common(base);
        let keep = base.prefix(have).position();
        let (rows, end) = match base.head() {
            None => (Vec::new(), None),
            Some(tip) => {
                let opened = runtime.disk.store.open_what_can_be_read(&tip, have)?;
                if opened.plan.usable != base.segments().len() {
                    return Err(RuntimeError::Refused("Its kept state is not on disk any more.".into()));
                }
                (opened.rows, opened.end)
            }
        };
        runtime.start_restore_in(self.sequence, base, keep, rows, end)
    }
}

impl Doing {
    /// Starts the next step.
    fn go_on(&mut self, runtime: &mut State, sequence: SequenceId) -> Done {
        let Some(step) = self.left.pop_front() else {
            return Err(RuntimeError::Failed("internal error: a branch without steps".into()));
        };
        let last = self.left.is_empty().then(|| self.branch.last.clone());
        self.id = runtime.start_job_in(sequence, step.prompt.clone(), last, self.branch.export)?;
        self.step = Some((step, Vec::new()));
        Ok(())
    }
}
