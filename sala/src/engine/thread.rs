//! The handle of the engine thread.
//!
//! The thread never touches files of a session, never handles text, and never waits for the receiver of its events. A
//! panic in it is reported as a fatal [`EngineEvent::Failed`].

use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::{bounded, unbounded};

use super::failure::{Failure, panic_text};
use super::open;
use super::park::{self, Left, Parking};
use crate::backend::BackendError;
use crate::backend::draft::DraftOps;
use crate::core::Exit;
use crate::engine::protocol::{Engine, EngineEvent, EngineFault, EngineOptions};

/// Limit of unreceived commands; the engine receives them between two turns.
const COMMANDS: usize = 64;

/// The new thread loads the model.
pub fn spawn(options: EngineOptions) -> std::io::Result<Engine> {
    start(move |parking| open::run(&options, parking))
}

/// Opens a device at each load, and ignores [`EngineOptions::device`].
pub fn spawn_on<B: DraftOps>(
    mut device: impl FnMut() -> Result<B, BackendError> + Send + 'static,
    options: EngineOptions,
) -> std::io::Result<Engine> {
    start(move |parking| open::run_on(device()?, &options, parking))
}

fn start(load: impl FnMut(&mut Parking<'_>) -> Result<Left, Failure> + Send + 'static) -> std::io::Result<Engine> {
    let (commands, inbox) = bounded(COMMANDS);
    let (outbox, events) = unbounded();
    let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
        let run = AssertUnwindSafe(|| park::run(&inbox, &outbox, load));
        let failure = match catch_unwind(run) {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure,
            Err(panic) => {
                let words = panic_text(panic.as_ref());
                let error = format!(
                    "the engine stopped unexpectedly ({words}); the conversation is saved; start again to continue"
                );
                Failure { error, exit: Exit::Failure }
            }
        };
        let Failure { error: why, exit } = failure;
        // The receiver closes when the program ends.
        let _ = outbox.send(EngineEvent::Failed { id: 0, fault: EngineFault::Fatal { why, exit } });
    })?;
    Ok(Engine { commands, events, thread })
}
