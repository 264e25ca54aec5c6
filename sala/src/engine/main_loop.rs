//! The loop of the engine thread: commands are received between two turns of the jobs.

use std::time::Duration;

use crossbeam_channel::TryRecvError;

use super::park::{Left, Parking, receive};
use super::room::PATIENCE;
use super::worker::Worker;
use crate::backend::draft::DraftOps;
use crate::engine::protocol::{Command, EngineEvent};

/// How long a requested parking waits for the next command: the steps of one request follow each other within it.
const GRACE: Duration = Duration::from_millis(200);

impl<B: DraftOps> Worker<'_, B> {
    /// `park_after`: without work for this long, the engine parks by itself.
    pub(super) fn serve(mut self, parking: &mut Parking<'_>, park_after: Option<Duration>) -> Left {
        self.evicted = std::mem::take(&mut parking.evicted);
        self.send(EngineEvent::Ready(self.info.clone()));
        std::mem::take(&mut parking.held).into_iter().for_each(|command| self.take_in(command));
        self.start();
        let mut gone = false;
        loop {
            let idle = self.slots.values().all(|slot| slot.run.is_none());
            let waits = self.slots.values().any(|slot| slot.waits.is_some());
            let limit = match (waits, self.parks) {
                // No sequence has work, but one may still release memory.
                (true, _) => Some(PATIENCE),
                (false, true) => Some(GRACE),
                (false, false) => park_after,
            };
            let next = match (idle, gone) {
                (true, true) => return Left::Ended,
                (true, false) => receive(parking.commands, limit),
                (false, _) => parking.commands.try_recv(),
            };
            self.moved |= idle;
            match next {
                Ok(Command::Shutdown) => return Left::Ended,
                Ok(command) => {
                    self.take_in(command);
                    self.start();
                    // All waiting commands are received before the next turn.
                    continue;
                }
                Err(TryRecvError::Disconnected) => gone = true,
                Err(TryRecvError::Empty) if idle && !waits => {
                    self.evict_all();
                    parking.evicted = std::mem::take(&mut self.evicted);
                    return Left::Parked;
                }
                Err(TryRecvError::Empty) => {}
            }
            self.turn();
            self.start();
        }
    }

    /// Reports every state as evicted; all memory is freed with the worker.
    fn evict_all(&mut self) {
        for sequence in self.slots.keys().copied().filter(|id| self.position(*id) > 0).collect::<Vec<_>>() {
            self.evicted.insert(sequence);
            self.send(EngineEvent::Evicted { sequence });
        }
    }
}
