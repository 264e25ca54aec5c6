//! The loop of the engine thread: commands are received between two turns of the jobs.

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};

use super::room::PATIENCE;
use super::worker::Worker;
use crate::backend::draft::DraftOps;
use crate::engine::protocol::{Command, EngineEvent};

impl<B: DraftOps> Worker<'_, B> {
    pub(super) fn serve(mut self, commands: &Receiver<Command>) {
        self.send(EngineEvent::Ready(self.info.clone()));
        let mut gone = false;
        loop {
            let idle = self.slots.values().all(|slot| slot.run.is_none());
            let waits = self.slots.values().any(|slot| slot.waits.is_some());
            let next = match (idle, gone, waits) {
                (true, true, _) => return,
                // No sequence has work, but one may still release memory: wait for a limited time.
                (true, false, true) => commands.recv_timeout(PATIENCE).map_err(|e| match e {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                }),
                (true, false, false) => commands.recv().map_err(|_| TryRecvError::Disconnected),
                (false, ..) => commands.try_recv(),
            };
            self.moved |= idle;
            match next {
                Ok(Command::Shutdown) => return,
                Ok(command) => {
                    self.take_in(command);
                    self.start();
                    // All waiting commands are received before the next turn.
                    continue;
                }
                Err(TryRecvError::Disconnected) => gone = true,
                Err(TryRecvError::Empty) => {}
            }
            self.turn();
            self.start();
        }
    }
}
