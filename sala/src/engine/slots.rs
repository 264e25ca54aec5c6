//! The sequences of an engine: one active, the others parked, and some still empty.

use std::sync::Arc;

use super::sequence::{Aside, Held};
use super::speculate::DecodeError;
use super::worker::Worker;
use crate::backend::draft::DraftOps;
use crate::engine::protocol::{EngineEvent, MAIN, RowSource, SequenceId};
use crate::model::{Live, Sequence};

/// Minimum number of tokens to share from another sequence: fewer are read sooner, and take almost no memory.
const WORTH_SHARING: usize = 1_024;

pub(super) const MISSING: DecodeError = DecodeError::Order("a sequence that is not there");

impl<B: DraftOps> Worker<'_, B> {
    /// The state of a sequence; `None` while it has no memory.
    pub(super) fn state(&self, sequence: SequenceId) -> Option<&Sequence<B>> {
        match &self.slots.get(&sequence)?.held {
            Held::InHand => Some(self.live.sequence()),
            Held::Aside(aside) => Some(&aside.sequence),
            Held::Nothing => None,
        }
    }

    pub(super) fn position(&self, sequence: SequenceId) -> usize {
        self.state(sequence).map_or(0, Sequence::position)
    }

    /// Another sequence with the longest common prefix, and its length, if that exceeds the `keep` tokens that stay.
    pub(super) fn lender(
        &self,
        asker: SequenceId,
        keep: u64,
        rows: &[Arc<dyn RowSource>],
    ) -> Option<(SequenceId, usize)> {
        let least = usize::try_from(keep).unwrap_or(usize::MAX).saturating_add(WORTH_SHARING);
        let others = self.slots.keys().filter(|id| **id != asker);
        let lends = others.map(|id| (*id, self.state(*id).map_or(0, |state| state.lends(&self.backend, rows))));
        lends.filter(|(_, tokens)| *tokens >= least).max_by_key(|(_, tokens)| *tokens)
    }

    pub(super) fn make(&mut self, sequence: SequenceId) -> Result<(), DecodeError> {
        if !matches!(self.slots.get(&sequence).ok_or(MISSING)?.held, Held::Nothing) {
            return Ok(());
        }
        let made = self.live.another(&mut self.backend, &self.model)?;
        let aside = match self.decoder.another(&mut self.backend) {
            Ok(conversation) => Aside { sequence: made, conversation },
            Err(error) => {
                Live::release(&mut self.backend, made);
                return Err(error);
            }
        };
        if let Some(slot) = self.slots.get_mut(&sequence) {
            slot.held = Held::Aside(Box::new(aside));
        }
        Ok(())
    }

    pub(super) fn take(&mut self, sequence: SequenceId) -> Result<(), DecodeError> {
        if sequence == self.in_hand {
            return Ok(());
        }
        self.make(sequence)?;
        let slot = self.slots.get_mut(&sequence).ok_or(MISSING)?;
        let Held::Aside(mut aside) = std::mem::replace(&mut slot.held, Held::InHand) else { return Err(MISSING) };
        self.live.swap(&mut self.backend, &mut aside.sequence)?;
        self.decoder.swap(&mut aside.conversation)?;
        if let Some(slot) = self.slots.get_mut(&self.in_hand) {
            slot.held = Held::Aside(aside);
        }
        self.in_hand = sequence;
        Ok(())
    }

    /// Drops a sequence. Tasks queued after the release belong to a new one.
    pub(super) fn release(&mut self, sequence: SequenceId) -> Result<(), DecodeError> {
        if sequence == MAIN {
            // The main sequence always exists; eviction frees its memory.
            self.empty(MAIN, None);
            return Ok(());
        }
        self.put_down(sequence)?;
        self.drop_state(sequence);
        if let Some(slot) = self.slots.remove(&sequence) {
            for task in slot.queue {
                self.queue(sequence, task);
            }
        }
        self.go_on();
        Ok(())
    }

    fn put_down(&mut self, sequence: SequenceId) -> Result<(), DecodeError> {
        if self.in_hand != sequence {
            return Ok(());
        }
        let made = self.slots.iter().find(|(_, slot)| matches!(slot.held, Held::Aside(_))).map(|(id, _)| *id);
        match made {
            Some(other) => self.take(other),
            None => self.hand_over(sequence, MAIN),
        }
    }

    fn hand_over(&mut self, from: SequenceId, to: SequenceId) -> Result<(), DecodeError> {
        let slot = self.slots.get_mut(&from).ok_or(MISSING)?;
        let held = std::mem::replace(&mut slot.held, Held::Nothing);
        if self.in_hand == from {
            self.in_hand = to;
        }
        self.slots.get_mut(&to).ok_or(MISSING)?.held = held;
        self.empty(to, None);
        Ok(())
    }

    fn drop_state(&mut self, sequence: SequenceId) {
        let slot = self.slots.get_mut(&sequence);
        if let Some(Held::Aside(aside)) = slot.map(|slot| std::mem::replace(&mut slot.held, Held::Nothing)) {
            Live::release(&mut self.backend, aside.sequence);
        }
    }

    /// The sequence to evict: an idle empty one, or else the least recently used evictable one.
    pub(super) fn victim(&self, asker: SequenceId) -> Option<SequenceId> {
        let idle = self
            .slots
            .iter()
            .filter(|(id, slot)| **id != asker && slot.is_idle() && !matches!(slot.held, Held::Nothing));
        let empty = |id: &SequenceId| self.position(*id) == 0;
        let can = idle.filter(|(id, slot)| slot.may_evict || empty(id));
        can.min_by_key(|(id, slot)| (!empty(id), slot.used)).map(|(id, _)| *id)
    }

    pub(super) fn has_state(&self, sequence: SequenceId) -> bool {
        self.state(sequence).is_some()
    }

    pub(super) fn evict_for(&mut self, asker: SequenceId) -> Result<(), DecodeError> {
        let Some(victim) = self.victim(asker) else { return Ok(()) };
        let lost = self.position(victim) > 0;
        if self.has_state(asker) {
            if self.in_hand == victim {
                self.take(asker)?;
            }
            self.drop_state(victim);
        } else {
            self.hand_over(victim, asker)?;
        }
        if lost {
            self.evicted.insert(victim);
            self.send(EngineEvent::Evicted { sequence: victim });
        }
        if victim == MAIN {
            if let Some(slot) = self.slots.get_mut(&MAIN) {
                slot.may_evict = false;
            }
        } else {
            // Its slot is free for another sequence, too.
            self.slots.remove(&victim);
        }
        self.go_on();
        Ok(())
    }
}
