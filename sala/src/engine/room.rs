//! Memory of sequences: a job reserves memory before it begins, idle sequences are evicted least recently used first,
//! and a sequence without memory waits for others to end.
//!
//! A reservation covers the whole context of a job, prompt and longest answer. Unused reservations of running jobs are
//! not available to others. So no job runs out of memory half-way, unless another program takes it.

use std::time::Duration;

use super::sequence::{Slot, Task};
use super::speculate::DecodeError;
use super::worker::Worker;
use crate::backend::draft::DraftOps;
use crate::backend::{BackendError, MAX_VERIFY_ROWS};
use crate::core::{bytes, counted, grouped};
use crate::engine::protocol::{EngineEvent, Job, SequenceId};
use crate::model::ModelError;

/// Time for the owner of a sequence to release it after a job has ended.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

pub(super) enum Grant {
    Go,
    Wait,
    Never(DecodeError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub all: u64,
    pub least: u64,
    pub left: u64,
    pub total: u64,
    pub evictable: bool,
    pub others: usize,
    /// A job has just ended, and its owner may release the memory.
    pub hope: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    All,
    Evict,
    Wait,
    /// No other sequence will free memory: begin with the available part.
    Some,
    Nothing,
}

pub fn answer(ask: Ask) -> Answer {
    // Too large: evicting or waiting would not help.
    let hopeless = ask.least > ask.total;
    match ask {
        _ if ask.all <= ask.left => Answer::All,
        _ if hopeless => Answer::Nothing,
        _ if ask.evictable => Answer::Evict,
        _ if ask.others > 0 || ask.hope => Answer::Wait,
        _ if ask.least <= ask.left => Answer::Some,
        _ => Answer::Nothing,
    }
}

fn is_memory(error: &ModelError) -> bool {
    matches!(error, ModelError::Backend(BackendError::Memory { .. }))
}

fn reach(job: &Job, position: usize, limit: usize) -> [usize; 2] {
    let most = job.generate.as_ref().map_or(0, |request| usize::try_from(request.max_tokens).unwrap_or(usize::MAX));
    let scored = job.score.as_ref().map_or(0, |scoring| scoring.tokens.len());
    let read = position.saturating_add(job.prompt.len());
    // Drafts are verified beyond the last token.
    let rows = if most > 0 { MAX_VERIFY_ROWS } else { 0 };
    [read.saturating_add(rows), read.saturating_add(most.max(scored)).saturating_add(rows)].map(|n| n.min(limit))
}

impl<B: DraftOps> Worker<'_, B> {
    /// Bytes that a context of `length` tokens needs beyond the sequence's present memory.
    fn wants(&self, sequence: SequenceId, length: usize) -> u64 {
        self.wants_anew(sequence, self.live.limit(), length)
    }

    /// The same if only the first `keep` tokens of its state stay.
    fn wants_anew(&self, sequence: SequenceId, keep: usize, length: usize) -> u64 {
        self.state(sequence).map_or(self.sequence_bytes, |state| state.wants_anew(&self.backend, keep, length))
    }

    /// The context length of a job, on which its reservation is based: as requested, or as memory allows.
    pub(super) fn promise(&self, job: &Job) -> Result<usize, DecodeError> {
        let [_, all] = reach(job, self.live.position(), self.live.limit());
        Ok(match self.backend.room().map_err(ModelError::from)? {
            Some(free) => {
                let left = free.saturating_sub(self.promised(job.sequence));
                self.live.sequence().longest(&self.backend, all, left)
            }
            None => all,
        })
    }

    /// Unused reservations of all sequences but `sequence`, in bytes.
    fn promised(&self, sequence: SequenceId) -> u64 {
        let running = self.slots.iter().filter_map(|(id, slot)| slot.run.as_ref().map(|run| (*id, run.goal)));
        running.filter(|(id, _)| *id != sequence).map(|(id, goal)| self.wants(id, goal)).sum()
    }

    /// Whether there is memory for the next task of a sequence. Earlier requests have precedence.
    pub(super) fn grant(&mut self, sequence: SequenceId) -> Result<Grant, DecodeError> {
        loop {
            let Some(slot) = self.slots.get(&sequence) else { return Ok(Grant::Go) };
            let (position, limit) = (self.position(sequence), self.live.limit());
            let (keep, [least, all]) = match slot.queue.front() {
                None | Some(Task::Lost { .. } | Task::Release | Task::MayEvict) => return Ok(Grant::Go),
                // A cancelled job ends at once.
                Some(Task::Run(job)) if job.cancel.is_cancelled() => return Ok(Grant::Go),
                Some(Task::Run(job)) => (limit, reach(job, position, limit)),
                // Shared memory costs nothing.
                Some(Task::Fork { .. }) => (0, [0; 2]),
                Some(Task::Restore { keep, rows, .. }) => {
                    let tokens = keep + rows.iter().map(|rows| rows.rows()).sum::<u64>();
                    // As in a fork.
                    let lent = self.lender(sequence, *keep, rows).map_or(0, |(_, tokens)| tokens);
                    let keep = if lent > 0 { 0 } else { usize::try_from(*keep).unwrap_or(usize::MAX) };
                    (keep, [usize::try_from(tokens).unwrap_or(usize::MAX).min(limit).saturating_sub(lent); 2])
                }
            };
            let since_then = slot.waits.unwrap_or(u64::MAX);
            let wants = self.wants_anew(sequence, keep, all);
            if wants == 0 {
                // No memory check: going back a few turns needs none.
                return Ok(Grant::Go);
            }
            let Some(free) = self.backend.room().map_err(ModelError::from)? else { return Ok(Grant::Go) };
            let left = free.saturating_sub(self.promised(sequence));
            let others_first = self.slots.values().any(|slot| slot.waits.is_some_and(|since| since < since_then));
            let ask = Ask {
                all: wants,
                least: self.wants_anew(sequence, keep, least),
                left,
                total: free + self.backend.memory().state,
                evictable: self.victim(sequence).is_some(),
                others: self.others(),
                hope: self.hope(sequence),
            };
            match answer(ask) {
                Answer::All | Answer::Evict if others_first && (ask.others > 0 || ask.hope) => {
                    return Ok(self.wait(sequence, all, ask));
                }
                Answer::All if self.has_state(sequence) => return Ok(Grant::Go),
                Answer::All => self.make(sequence)?,
                Answer::Evict => self.evict_for(sequence)?,
                Answer::Wait => return Ok(self.wait(sequence, all, ask)),
                // Preferable to a shorter answer or a refusal.
                Answer::Some | Answer::Nothing if self.page_out()? => {}
                Answer::Some if self.has_state(sequence) => return Ok(Grant::Go),
                Answer::Some => self.make(sequence)?,
                Answer::Nothing => return Ok(Grant::Never(self.no_room(sequence, least, left))),
            }
        }
    }

    fn no_room(&self, sequence: SequenceId, length: usize, free: u64) -> DecodeError {
        let what = format!("memory for a context of {} tokens", grouped(length as u64));
        let needed = self.wants(sequence, length);
        let advice = "close a conversation, or choose a shorter context with --ctx".to_owned();
        ModelError::from(BackendError::Memory { what, needed, free, advice }).into()
    }

    fn wait(&mut self, sequence: SequenceId, length: usize, ask: Ask) -> Grant {
        self.clock += 1;
        let since = self.clock;
        let Some(slot) = self.slots.get_mut(&sequence) else { return Grant::Go };
        if slot.waits.is_none() {
            slot.waits = Some(since);
            if let Some(id) = slot.queue.front().and_then(Task::id) {
                self.report_waiting(id, length, ask.all, ask.left, ask.others);
            }
        }
        Grant::Wait
    }

    fn report_waiting(&self, id: u64, length: usize, wants: u64, left: u64, others: usize) {
        let what = format!(
            "waiting for memory: {} tokens need {}, {} are free; {} still at work",
            grouped(length as u64),
            bytes(wants),
            bytes(left),
            counted(others as u64, "other")
        );
        self.send(EngineEvent::Waiting { id, what });
    }

    /// Whether an idle sequence has memory that its holder may still release, within [`PATIENCE`] of a job's end.
    fn hope(&self, asker: SequenceId) -> bool {
        let idle = |(id, slot): (&SequenceId, &Slot<B>)| *id != asker && slot.run.is_none() && self.has_state(*id);
        self.ended.is_some_and(|at| at.elapsed() < PATIENCE) && self.slots.iter().any(idle)
    }

    fn others(&self) -> usize {
        let runs = self.slots.values().filter_map(|slot| slot.run.as_ref());
        runs.filter(|run| !run.stalled).count() + self.in_pass
    }

    /// Memory for `rows` more positions of the active sequence, in case another program took the reserved memory;
    /// `false` if it has to wait until another job ends.
    pub(super) fn room_for_rows(&mut self, id: u64, rows: usize) -> Result<bool, DecodeError> {
        let rows = rows.min(self.live.limit() - self.live.position());
        loop {
            let error = match self.live.make_room(&mut self.backend, rows) {
                Ok(()) => return Ok(true),
                Err(error) if is_memory(&error) => error,
                Err(error) => return Err(error.into()),
            };
            let sequence = self.in_hand;
            if self.victim(sequence).is_some() {
                self.evict_for(sequence)?;
                continue;
            }
            let others = self.others();
            if others == 0 {
                if self.page_out()? {
                    continue;
                }
                return Err(error.into());
            }
            let length = self.live.position() + rows;
            let left = self.backend.room().map_err(ModelError::from)?.unwrap_or_default();
            self.report_waiting(id, length, self.live.sequence().wants(&self.backend, length), left, others);
            return Ok(false);
        }
    }

    /// Moves keys and values of all sequences to host memory, on devices that support it. `false` if no memory was
    /// gained; then there is no retry before some memory is freed.
    fn page_out(&mut self) -> Result<bool, DecodeError> {
        if self.stays_resident {
            return Ok(false);
        }
        let mut others: Vec<_> =
            self.slots.values_mut().filter_map(Slot::aside).map(|aside| &mut aside.sequence).collect();
        let gained = match self.live.page_out(&mut self.backend, &self.model, &mut others) {
            Ok(Some(how)) => {
                self.send(EngineEvent::Note(format!("Keys and values move to this machine's memory. {how}.")));
                self.go_on();
                true
            }
            Ok(None) => false,
            // Everything stays as before.
            Err(ModelError::Backend(BackendError::Unsupported(why))) => {
                self.send(EngineEvent::Note(format!("Too little GPU memory, and {why}.")));
                false
            }
            Err(error) => return Err(error.into()),
        };
        self.stays_resident = !gained;
        Ok(gained)
    }

    /// Memory was freed: stalled jobs check again.
    pub(super) fn go_on(&mut self) {
        (self.moved, self.stays_resident) = (true, false);
        for run in self.slots.values_mut().filter_map(|slot| slot.run.as_mut()) {
            run.stalled = false;
        }
    }
}

pub(super) fn for_want_of_memory(error: &DecodeError) -> bool {
    matches!(error, DecodeError::Model(error) if is_memory(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: Ask = Ask { all: 10, least: 4, left: 0, total: 100, evictable: false, others: 0, hope: false };

    #[test]
    fn what_fits_is_given_and_no_sequence_loses_for_it() {
        for evictable in [false, true] {
            assert_eq!(answer(Ask { left: 10, evictable, others: 3, ..ASK }), Answer::All);
        }
    }

    #[test]
    fn idle_sequences_make_room_before_anybody_waits() {
        assert_eq!(answer(Ask { left: 9, evictable: true, others: 3, ..ASK }), Answer::Evict);
        assert_eq!(answer(Ask { left: 9, others: 3, ..ASK }), Answer::Wait);
        assert_eq!(answer(Ask { left: 0, others: 1, ..ASK }), Answer::Wait);
        assert_eq!(answer(Ask { left: 9, hope: true, ..ASK }), Answer::Wait);
    }

    #[test]
    fn where_no_sequence_gives_back_less_will_do_or_it_is_refused() {
        assert_eq!(answer(Ask { left: 9, ..ASK }), Answer::Some);
        assert_eq!(answer(Ask { left: 4, ..ASK }), Answer::Some);
        assert_eq!(answer(Ask { left: 3, ..ASK }), Answer::Nothing);
    }

    #[test]
    fn no_sequence_is_evicted_or_waited_for_in_vain() {
        let ask = Ask { all: 200, least: 101, left: 10, evictable: true, others: 5, ..ASK };
        assert_eq!(answer(ask), Answer::Nothing);
        assert_eq!(answer(Ask { least: 100, ..ask }), Answer::Evict);
    }
}
