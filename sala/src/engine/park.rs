//! The engine between two loads: it holds no weights, no state and no device, and still receives commands.
//!
//! A parked engine reports [`ModelInfo::parked`]. Every sequence that had a state counts as evicted: its owner restores
//! it from disk. The first command that needs the model loads it again, in the same form and on the same kind of
//! device; while its memory is missing, a command fails and [`Command::Unpark`] tries again.

use std::collections::BTreeSet;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use super::failure::Failure;
use crate::core::Exit;
use crate::engine::protocol::{
    Command, DeviceChoice, EngineEvent, EngineFault, EngineOptions, MemoryInfo, ModelInfo, SequenceId,
};
use crate::model::Recipe;

/// Pause between two attempts to load while the memory is missing.
const AGAIN: Duration = Duration::from_secs(2);

pub(super) enum Left {
    Ended,
    Parked,
}

pub(super) struct Parking<'c> {
    pub(super) commands: &'c Receiver<Command>,
    pub(super) events: &'c Sender<EngineEvent>,
    /// The model as it was loaded, and the form of its weights; `None` before the first load.
    pub(super) loaded: Option<(ModelInfo, Recipe)>,
    pub(super) evicted: BTreeSet<SequenceId>,
    /// Commands that wait for the model.
    pub(super) held: Vec<Command>,
    /// [`Command::Unpark`] was received.
    wanted: bool,
}

/// The next command; without a limit it waits until there is one.
pub(super) fn receive(commands: &Receiver<Command>, limit: Option<Duration>) -> Result<Command, TryRecvError> {
    let Some(limit) = limit else { return commands.recv().map_err(|_| TryRecvError::Disconnected) };
    commands.recv_timeout(limit).map_err(|e| match e {
        RecvTimeoutError::Timeout => TryRecvError::Empty,
        RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
    })
}

/// Runs the engine until the program ends. `load` loads the model and serves commands until it is parked.
pub(super) fn run(
    commands: &Receiver<Command>,
    events: &Sender<EngineEvent>,
    mut load: impl FnMut(&mut Parking<'_>) -> Result<Left, Failure>,
) -> Result<(), Failure> {
    let (evicted, held) = (BTreeSet::new(), Vec::new());
    let mut parking = Parking { commands, events, loaded: None, evicted, held, wanted: false };
    loop {
        match load(&mut parking) {
            Ok(Left::Ended) => return Ok(()),
            Ok(Left::Parked) => {
                parking.wanted = false;
                parking.report();
            }
            Err(failure) if parking.loaded.is_some() && failure.exit == Exit::NoDevice => parking.wait(&failure.error),
            Err(failure) => return Err(failure),
        }
        if !parking.rest() {
            return Ok(());
        }
    }
}

impl Parking<'_> {
    /// The options for a load: a later one uses the same kind of device as the first.
    pub(super) fn options(&self, options: &EngineOptions) -> EngineOptions {
        let device = match &self.loaded {
            None => options.device,
            Some((info, _)) if info.device_kind == "cuda" => DeviceChoice::Cuda,
            Some(_) => DeviceChoice::Cpu,
        };
        EngineOptions { device, ..options.clone() }
    }

    fn send(&self, event: EngineEvent) {
        // The receiver closes when the program ends.
        let _ = self.events.send(event);
    }

    fn report(&self) {
        if let Some((info, _)) = &self.loaded {
            let (memory, notes) = (MemoryInfo::default(), Vec::new());
            self.send(EngineEvent::Ready(ModelInfo { parked: true, memory, notes, ..info.clone() }));
        }
    }

    /// The memory is missing: commands fail, and a request to return stays.
    fn wait(&mut self, why: &str) {
        let why = format!("the model is parked and cannot return yet: {why}");
        for mut command in std::mem::take(&mut self.held) {
            if let Some(id) = command.id_mut() {
                self.send(EngineEvent::Failed { id: *id, fault: EngineFault::Parked(why.clone()) });
            }
        }
        self.send(EngineEvent::Loading { what: format!("waiting: {why}"), done: 0.0 });
    }

    /// Waits until the model is needed; `false` at the end of the program.
    fn rest(&mut self) -> bool {
        loop {
            match receive(self.commands, self.wanted.then_some(AGAIN)) {
                Err(TryRecvError::Disconnected) | Ok(Command::Shutdown) => return false,
                Err(TryRecvError::Empty) => return true,
                Ok(Command::Unpark) => {
                    self.wanted = true;
                    return true;
                }
                Ok(Command::Park) => {
                    self.wanted = false;
                    self.report();
                }
                Ok(Command::Release { sequence }) => drop(self.evicted.remove(&sequence)),
                Ok(Command::MayEvict { .. }) => {}
                Ok(command) => {
                    self.held.push(command);
                    return true;
                }
            }
        }
    }
}
