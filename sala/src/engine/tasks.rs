//! The task queue of each sequence, and the next task of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::failure::guarded;
use super::room::Grant;
use super::sequence::{Held, Slot, Task};
use super::slots::MISSING;
use super::speculate::DecodeError;
use super::worker::Worker;
use crate::backend::draft::DraftOps;
use crate::engine::protocol::{
    CheckpointImage, Command, EngineEvent, EngineFault, MAX_SEQUENCES, RowSource, SequenceId, Token,
};
use crate::model::ModelError;

fn refused() -> EngineFault {
    EngineFault::Device("what it was to go on from failed; send it again after a restore".to_owned())
}

/// Runs `own` on a new thread and the other closure on this one. Returns the result of `own` unless the other failed.
fn in_parallel<T: Send, E>(own: impl FnOnce() -> T + Send, here: impl FnOnce() -> Result<(), E>) -> Result<T, E> {
    std::thread::scope(|scope| {
        let other = scope.spawn(own);
        let done = here();
        // It can only fail by a panic, which continues on this thread.
        let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.map(|()| other)
    })
}

impl<B: DraftOps> Worker<'_, B> {
    pub(super) fn take_in(&mut self, command: Command) {
        self.moved = true;
        match command {
            Command::Restore { id, sequence, keep: 1.., .. } if self.evicted.contains(&sequence) => {
                self.send(EngineEvent::Failed { id, fault: EngineFault::Evicted });
            }
            Command::Restore { id, sequence, keep, rows, end, history } => {
                self.evicted.remove(&sequence);
                self.queue(sequence, Task::Restore { id, keep, rows, end, history });
            }
            Command::Run(job) if self.evicted.contains(&job.sequence) => {
                self.send(EngineEvent::Failed { id: job.id, fault: EngineFault::Evicted });
            }
            Command::Run(job) => self.queue(job.sequence, Task::Run(job)),
            Command::Release { sequence } => {
                self.evicted.remove(&sequence);
                // Without a slot it is empty already.
                if self.slots.contains_key(&sequence) {
                    self.queue(sequence, Task::Release);
                }
            }
            Command::MayEvict { sequence } if self.slots.contains_key(&sequence) => {
                self.queue(sequence, Task::MayEvict);
            }
            Command::MayEvict { .. } | Command::Shutdown => {}
            Command::Park => {
                self.parks = true;
                if !self.slots.values().all(Slot::is_idle) {
                    self.send(EngineEvent::Note("The model is parked when the running work has ended.".to_owned()));
                }
            }
            Command::Unpark => {
                self.parks = false;
                self.send(EngineEvent::Ready(self.info.clone()));
            }
            Command::Fork { id, from, to } if from == to => {
                let why = "a sequence cannot be a fork of itself".to_owned();
                self.send(EngineEvent::Failed { id, fault: EngineFault::Device(why) });
            }
            Command::Fork { id, from, to } if self.evicted.contains(&from) => {
                self.evicted.remove(&to);
                self.queue(to, Task::Lost { id, fault: EngineFault::Evicted });
            }
            Command::Fork { id, from, to } => {
                if self.ensure_slot(from, id) && self.ensure_slot(to, id) {
                    self.evicted.remove(&to);
                    self.queue(from, Task::Fork { id, from, to });
                    self.queue(to, Task::Fork { id, from, to });
                }
            }
        }
    }

    pub(super) fn queue(&mut self, sequence: SequenceId, task: Task) {
        if self.ensure_slot(sequence, task.id().unwrap_or_default())
            && let Some(slot) = self.slots.get_mut(&sequence)
        {
            slot.queue.push_back(task);
        }
    }

    fn ensure_slot(&mut self, sequence: SequenceId, id: u64) -> bool {
        if self.slots.contains_key(&sequence) {
            return true;
        }
        if self.slots.len() >= MAX_SEQUENCES {
            let why = format!("{MAX_SEQUENCES} conversations are open at a time at most; close one");
            self.send(EngineEvent::Failed { id, fault: EngineFault::Device(why) });
            return false;
        }
        self.slots.insert(sequence, Slot::new(Held::Nothing));
        true
    }

    /// Runs the next tasks of the queues that are no jobs and have memory, and starts jobs.
    pub(super) fn start(&mut self) {
        // Waiting tasks are checked again once memory was freed.
        let waits = self.slots.iter().filter(|(_, slot)| slot.waits.is_some() && !self.moved);
        let mut without_room: BTreeSet<SequenceId> = waits.map(|(id, _)| *id).collect();
        self.moved = false;
        while let Some(sequence) = self.ready(&without_room) {
            match self.grant(sequence).unwrap_or_else(Grant::Never) {
                Grant::Go => self.next_task(sequence),
                Grant::Wait => {
                    without_room.insert(sequence);
                }
                Grant::Never(error) => {
                    let task = self.slots.get_mut(&sequence).and_then(|slot| slot.queue.pop_front());
                    if let Some(Task::Fork { id, from, to }) = &task {
                        self.leave_queues(*id, [*from, *to]);
                    }
                    self.fail(sequence, task.and_then(|task| task.id()).unwrap_or_default(), &error);
                }
            }
            if std::mem::take(&mut self.moved) {
                without_room.clear();
            }
        }
    }

    fn next_task(&mut self, sequence: SequenceId) {
        self.clock += 1;
        let Some(slot) = self.slots.get_mut(&sequence) else { return };
        let Some(task) = slot.queue.pop_front() else { return };
        let waited = slot.waits.take().is_some();
        (slot.used, slot.may_evict) = (self.clock, matches!(task, Task::MayEvict));
        let id = task.id().unwrap_or_default();
        let done = guarded(|| match task {
            Task::Restore { keep, rows, end, history, .. } => {
                self.take(sequence)?;
                self.restore(id, keep, &rows, end.as_ref(), &history)
            }
            // A cancelled job needs no memory.
            Task::Run(job) if waited && job.cancel.is_cancelled() => {
                self.never_begun(job.id);
                Ok(())
            }
            Task::Run(job) => self.begin(sequence, job),
            Task::Fork { from, to, .. } => {
                self.fork(id, from, to);
                Ok(())
            }
            Task::Lost { fault, .. } => {
                self.send(EngineEvent::Failed { id, fault });
                self.empty(sequence, None);
                self.cut(sequence);
                Ok(())
            }
            Task::Release => self.release(sequence),
            Task::MayEvict => {
                self.moved = true;
                Ok(())
            }
        });
        if let Err(error) = done {
            self.fail(sequence, id, &error);
        }
    }

    /// Fails the queued tasks of a failed sequence up to the first that does not depend on its state.
    pub(super) fn cut(&mut self, sequence: SequenceId) {
        let Some(slot) = self.slots.get_mut(&sequence) else { return };
        let (mut jobs, mut forks) = (Vec::new(), Vec::new());
        while let Some(task) = slot.queue.pop_front() {
            match task {
                Task::Run(job) => jobs.push(job.id),
                Task::Fork { id, from, to } if from == sequence => forks.push((id, to)),
                Task::MayEvict => {}
                Task::Fork { .. } | Task::Restore { .. } | Task::Release | Task::Lost { .. } => {
                    slot.queue.push_front(task);
                    break;
                }
            }
        }
        for id in jobs {
            self.send(EngineEvent::Failed { id, fault: refused() });
        }
        for (fork, to) in forks {
            let queue = self.slots.get_mut(&to).into_iter().flat_map(|slot| &mut slot.queue);
            for task in queue.filter(|task| task.is_fork(fork)) {
                *task = Task::Lost { id: fork, fault: refused() };
            }
        }
    }

    /// The longest-waiting sequence with a next task that can run now, if there is memory for it.
    fn ready(&self, except: &BTreeSet<SequenceId>) -> Option<SequenceId> {
        let next = |id: &SequenceId| self.slots.get(id).filter(|s| s.run.is_none()).and_then(|s| s.queue.front());
        let can = |id: &SequenceId| match next(id) {
            None => false,
            // The target of the fork requests memory for both.
            Some(Task::Fork { id: fork, from, to }) => {
                let both = [from, to].into_iter().all(|side| next(side).is_some_and(|task| task.is_fork(*fork)));
                both && id == to
            }
            Some(Task::Restore { .. } | Task::Run(_) | Task::Lost { .. } | Task::Release | Task::MayEvict) => true,
        };
        let stopped = |id: &SequenceId| matches!(next(id), Some(Task::Run(job)) if job.cancel.is_cancelled());
        let ready = self.slots.iter().filter(|(id, _)| can(id) && (!except.contains(id) || stopped(id)));
        ready.min_by_key(|(id, slot)| (slot.waits.unwrap_or(u64::MAX), **id)).map(|(id, _)| *id)
    }

    fn leave_queues(&mut self, fork: u64, sides: [SequenceId; 2]) {
        for side in sides {
            let front = self.slots.get_mut(&side).map(|slot| &mut slot.queue);
            if let Some(queue) = front
                && queue.front().is_some_and(|task| task.is_fork(fork))
            {
                queue.pop_front();
            }
        }
    }

    /// The task was at the head of both queues and was taken from one of them.
    fn fork(&mut self, id: u64, from: SequenceId, to: SequenceId) {
        self.leave_queues(id, [from, to]);
        let begun = Instant::now();
        match guarded(|| self.copy(from, to)) {
            Ok(()) => self.send(EngineEvent::Restored { id, ms: begun.elapsed().as_secs_f64() * 1e3 }),
            Err(error) => self.fail(to, id, &error),
        }
    }

    fn copy(&mut self, from: SequenceId, to: SequenceId) -> Result<(), DecodeError> {
        self.take(from)?;
        self.make(to)?;
        for side in [from, to] {
            if let Some(slot) = self.slots.get_mut(&side) {
                slot.used = self.clock;
            }
        }
        let aside = self.slots.get_mut(&to).and_then(Slot::aside).ok_or(MISSING)?;
        let (live, backend, decoder) = (&mut self.live, &mut self.backend, &mut self.decoder);
        let known = in_parallel(|| decoder.known(), || live.copy_to(backend, &mut aside.sequence))?;
        self.decoder.copy_to(&mut self.backend, &self.model, known, &mut aside.conversation)
    }

    fn restore(
        &mut self,
        id: u64,
        keep: u64,
        rows: &[Arc<dyn RowSource>],
        end: Option<&CheckpointImage>,
        history: &[Token],
    ) -> Result<(), DecodeError> {
        let begun = Instant::now();
        let lender = self.lender(self.in_hand, keep, rows);
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        if let Some((from, tokens)) = lender {
            tracing::debug!(?from, tokens, "rows are had from another sequence");
        }
        let lender = lender.and_then(|(from, _)| self.slots.get_mut(&from)).and_then(Slot::aside);
        let lender = lender.map(|aside| &mut aside.sequence);
        let (live, backend, decoder) = (&mut self.live, &mut self.backend, &mut self.decoder);
        // The index over a long history is built while its rows are copied.
        in_parallel(|| decoder.look_up_in(history), || live.restore_from(backend, keep, rows, end, lender))?;
        if history.len() != self.live.position() {
            let text = format!("{} tokens for a state of {}", history.len(), self.live.position());
            return Err(ModelError::Image(text).into());
        }
        self.decoder.restore(&mut self.backend, history, end)?;
        self.send(EngineEvent::Restored { id, ms: begun.elapsed().as_secs_f64() * 1e3 });
        Ok(())
    }
}
