//! The sequences of an engine: one in hand, the others put aside, and some that have nothing yet.

use std::sync::Arc;

use super::sequence::{Aside, Held};
use super::speculate::DecodeError;
use super::worker::Worker;
use crate::backend::draft::DraftOps;
use crate::engine::protocol::{EngineEvent, MAIN, RowSource, SequenceId};
use crate::model::Live;

/// Tokens of which a sequence has the rows from another instead of reading them: fewer are read sooner, and take next to no memory.
const WORTH_SHARING: usize = 1_024;

const MISSING: DecodeError = DecodeError::Order("a sequence that is not there");

impl<B: DraftOps> Worker<'_, B> {
    pub(super) fn position(&self, sequence: SequenceId) -> usize {
        match self.seats.get(&sequence).map(|seat| &seat.held) {
            Some(Held::InHand) => self.live.position(),
            Some(Held::Aside(aside)) => aside.sequence.position(),
            Some(Held::Nothing) | None => 0,
        }
    }

    /// Another sequence that has the first rows of a path, and how many: the one that has most of them, where that is a gain on the `keep`
    /// tokens that stay.
    pub(super) fn lender(
        &self,
        asker: SequenceId,
        keep: u64,
        rows: &[Arc<dyn RowSource>],
    ) -> Option<(SequenceId, usize)> {
        let least = usize::try_from(keep).unwrap_or(usize::MAX).saturating_add(WORTH_SHARING);
        let others = self.seats.iter().filter(|(id, _)| **id != asker);
        let lends = others.map(|(id, seat)| {
            let tokens = match &seat.held {
                Held::InHand => self.live.lends(&self.backend, rows),
                Held::Aside(aside) => aside.sequence.lends(&self.backend, rows),
                Held::Nothing => 0,
            };
            (*id, tokens)
        });
        lends.filter(|(_, tokens)| *tokens >= least).max_by_key(|(_, tokens)| *tokens)
    }

    /// Gives a sequence what an empty one has, if it has nothing.
    pub(super) fn make(&mut self, sequence: SequenceId) -> Result<(), DecodeError> {
        if !matches!(self.seats.get(&sequence).ok_or(MISSING)?.held, Held::Nothing) {
            return Ok(());
        }
        let made = self.live.another(&mut self.backend, &self.model)?;
        let aside = match self.decoder.another(&mut self.backend) {
            Ok(talk) => Aside { sequence: made, talk },
            Err(error) => {
                Live::release(&mut self.backend, made);
                return Err(error);
            }
        };
        if let Some(seat) = self.seats.get_mut(&sequence) {
            seat.held = Held::Aside(Box::new(aside));
        }
        Ok(())
    }

    pub(super) fn take(&mut self, sequence: SequenceId) -> Result<(), DecodeError> {
        if sequence == self.in_hand {
            return Ok(());
        }
        self.make(sequence)?;
        let seat = self.seats.get_mut(&sequence).ok_or(MISSING)?;
        let Held::Aside(mut aside) = std::mem::replace(&mut seat.held, Held::InHand) else { return Err(MISSING) };
        self.live.swap(&mut self.backend, &mut aside.sequence)?;
        self.decoder.swap(&mut aside.talk)?;
        if let Some(seat) = self.seats.get_mut(&self.in_hand) {
            seat.held = Held::Aside(aside);
        }
        self.in_hand = sequence;
        Ok(())
    }

    /// Forgets a sequence; its place in the queue of what was asked behind it is that of a new one.
    pub(super) fn release(&mut self, sequence: SequenceId) -> Result<(), DecodeError> {
        if sequence == MAIN {
            // There always is one on screen. Its memory goes when another needs it.
            self.empty(MAIN, None);
            return Ok(());
        }
        self.put_down(sequence)?;
        self.drop_state(sequence);
        if let Some(seat) = self.seats.remove(&sequence) {
            for task in seat.queue {
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
        let made = self.seats.iter().find(|(_, seat)| matches!(seat.held, Held::Aside(_))).map(|(id, _)| *id);
        match made {
            Some(other) => self.take(other),
            None => self.hand_over(sequence, MAIN),
        }
    }

    /// What a sequence has is from now on another's that has nothing, and empty.
    fn hand_over(&mut self, from: SequenceId, to: SequenceId) -> Result<(), DecodeError> {
        let seat = self.seats.get_mut(&from).ok_or(MISSING)?;
        let held = std::mem::replace(&mut seat.held, Held::Nothing);
        if self.in_hand == from {
            self.in_hand = to;
        }
        self.seats.get_mut(&to).ok_or(MISSING)?.held = held;
        self.empty(to, None);
        Ok(())
    }

    /// Gives the memory of a sequence back that is not in hand.
    fn drop_state(&mut self, sequence: SequenceId) {
        let seat = self.seats.get_mut(&sequence);
        if let Some(Held::Aside(aside)) = seat.map(|seat| std::mem::replace(&mut seat.held, Held::Nothing)) {
            Live::release(&mut self.backend, aside.sequence);
        }
    }

    /// Whose memory may go to another: that of an idle sequence that is empty, or else the one that was used longest ago of those that
    /// may be evicted.
    pub(super) fn victim(&self, asker: SequenceId) -> Option<SequenceId> {
        let idle = self
            .seats
            .iter()
            .filter(|(id, seat)| **id != asker && seat.is_idle() && !matches!(seat.held, Held::Nothing));
        let empty = |id: &SequenceId| self.position(*id) == 0;
        let can = idle.filter(|(id, seat)| seat.may_evict || empty(id));
        can.min_by_key(|(id, seat)| (!empty(id), seat.used)).map(|(id, _)| *id)
    }

    pub(super) fn has_state(&self, sequence: SequenceId) -> bool {
        self.seats.get(&sequence).is_some_and(|seat| !matches!(seat.held, Held::Nothing))
    }

    /// Gives the memory of a [`Worker::victim`] to a sequence that needs some.
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
            if let Some(seat) = self.seats.get_mut(&MAIN) {
                seat.may_evict = false;
            }
        } else {
            // Its place is free for another one, too.
            self.seats.remove(&victim);
        }
        self.go_on();
        Ok(())
    }
}
