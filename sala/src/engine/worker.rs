//! The data of the engine thread: backend, model, the sequences and their decoders; and the handling of a sequence's
//! failure.
//!
//! After a job the state is exactly as [`EngineEvent::Done`] reports: its prompt tokens (all of them, or whole chunks
//! if it was stopped during prefill) and its generated tokens, except for the last one drawn.
//!
//! Each sequence has a queue of tasks. Jobs of different sequences alternate ([`super::schedule`]); one sequence at a
//! time is active, the others are parked. A failure of one does not affect the others, unless the device itself is
//! lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::failure::{fault_of, guarded};
use super::schedule::Pace;
use super::sequence::{Held, Slot};
use super::speculate::{DecodeError, Decoder};
use crate::backend::draft::DraftOps;
use crate::core::Exit;
use crate::engine::protocol::{EngineEvent, EngineFault, MAIN, ModelInfo, SequenceId};
use crate::model::{Live, Model};

pub(super) struct Worker<'c, B: DraftOps> {
    pub(super) backend: B,
    pub(super) model: Model<B>,
    pub(super) live: Live<B>,
    pub(super) decoder: Decoder<B>,
    pub(super) info: ModelInfo,
    pub(super) events: &'c Sender<EngineEvent>,
    pub(super) slots: BTreeMap<SequenceId, Slot<B>>,
    pub(super) in_hand: SequenceId,
    pub(super) evicted: BTreeSet<SequenceId>,
    /// Bytes of an empty sequence, including memory for its first token.
    pub(super) sequence_bytes: u64,
    /// Logical time of the last use.
    pub(super) clock: u64,
    /// Memory was freed, or a command arrived, since the last check of waiting tasks.
    pub(super) moved: bool,
    /// Keys and values could not leave the device, with the present memory.
    pub(super) stays_resident: bool,
    /// [`Command::Park`](crate::engine::protocol::Command::Park) waits for the end of all work.
    pub(super) parks: bool,
    pub(super) ended: Option<Instant>,
    pub(super) in_pass: usize,
    pub(super) pace: Pace,
    pub(super) rounds: usize,
}

fn unusable(why: &str) -> EngineFault {
    EngineFault::Fatal { why: why.to_owned(), exit: Exit::NoDevice }
}

impl<'c, B: DraftOps> Worker<'c, B> {
    pub(super) fn new(
        backend: B,
        model: Model<B>,
        live: Live<B>,
        decoder: Decoder<B>,
        info: ModelInfo,
        events: &'c Sender<EngineEvent>,
    ) -> Self {
        let slots = BTreeMap::from([(MAIN, Slot::new(Held::InHand))]);
        let sequence_bytes = backend.memory().state + live.sequence().wants(&backend, 1);
        Worker {
            backend,
            model,
            live,
            decoder,
            info,
            events,
            slots,
            in_hand: MAIN,
            evicted: BTreeSet::new(),
            sequence_bytes,
            clock: 0,
            moved: false,
            stays_resident: false,
            parks: false,
            ended: None,
            in_pass: 0,
            pace: Pace::default(),
            rounds: 0,
        }
    }

    pub(super) fn send(&self, event: EngineEvent) {
        // The runtime closes only when the program ends; the command channel closes with it.
        let _ = self.events.send(event);
    }

    pub(super) fn fail(&mut self, sequence: SequenceId, id: u64, error: &DecodeError) {
        if let Some(slot) = self.slots.get_mut(&sequence) {
            (slot.run, slot.waits) = (None, None);
        }
        self.empty(sequence, Some((id, error)));
        self.cut(sequence);
        self.ended = Some(Instant::now());
        self.go_on();
    }

    /// Empties a sequence; reports the reason if a command waits for it.
    pub(super) fn empty(&mut self, sequence: SequenceId, why: Option<(u64, &DecodeError)>) {
        let emptied = guarded(|| {
            if !self.has_state(sequence) {
                return Ok(());
            }
            self.take(sequence)?;
            self.live.reset(&mut self.backend)?;
            self.decoder.restore(&mut self.backend, &[], None)
        });
        match (emptied, why) {
            (Ok(()), None) => {}
            (Ok(()), Some((id, error))) => self.send(EngineEvent::Failed { id, fault: fault_of(error) }),
            (Err(second), None) => self.lost(&second.to_string()),
            (Err(second), Some((id, error))) => {
                let why = format!("{error}; and the device did not recover: {second}");
                self.send(EngineEvent::Failed { id, fault: unusable(&why) });
                self.lost(&why);
            }
        }
    }

    /// The device is unusable: every waiting command fails.
    fn lost(&mut self, why: &str) {
        let slots = self.slots.values_mut();
        let waiting = slots.flat_map(|slot| {
            let tasks = slot.queue.drain(..).filter_map(|task| task.id());
            slot.run.take().map(|run| run.id()).into_iter().chain(tasks.collect::<Vec<_>>())
        });
        let mut waiting: Vec<u64> = waiting.collect();
        waiting.sort_unstable();
        waiting.dedup();
        for id in waiting {
            self.send(EngineEvent::Failed { id, fault: unusable(why) });
        }
    }
}
