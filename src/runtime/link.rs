//! The runtime's side of the engine thread: is it there, what runs, how it ended. Knows no text and no store.

use crossbeam_channel::{Receiver, Sender, never};

use crate::core::Exit;
use crate::engine::protocol::{Command, EngineEvent, JobDone, ModelInfo, Token};

/// Channels to an engine thread, as whoever started it hands them over.
#[derive(Debug)]
pub struct EngineChannels {
    /// To it.
    pub commands: Sender<Command>,
    /// From it; the first event is `Ready` or a fatal `Failed`.
    pub events: Receiver<EngineEvent>,
}

/// What the engine can do now.
#[derive(Clone, Debug)]
pub(super) enum EngineState {
    /// Loading the model.
    Starting,
    /// At work or waiting for it.
    Ready(Box<ModelInfo>),
    /// Of no more use: why, what to do, and how a run ends that needs it.
    Down { why: String, exit: Exit },
}

/// The engine as the runtime sees it.
#[derive(Debug)]
pub(super) struct Link {
    commands: Option<Sender<Command>>,
    pub(super) events: Receiver<EngineEvent>,
    pub(super) state: EngineState,
    next_id: u64,
}

impl Link {
    pub(super) fn new(channels: EngineChannels) -> Link {
        Link { commands: Some(channels.commands), events: channels.events, state: EngineState::Starting, next_id: 1 }
    }

    /// A number no job or restore had before.
    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Hands a command over. False when nobody is there.
    pub(super) fn send(&mut self, command: Command) -> bool {
        self.commands.as_ref().is_some_and(|c| c.send(command).is_ok())
    }

    /// The thread is gone or of no use: nothing more is expected from it.
    pub(super) fn down(&mut self, why: String, exit: Exit) {
        self.commands = None;
        self.events = never();
        self.state = EngineState::Down { why, exit };
    }

    /// Asks the thread to end.
    pub(super) fn shutdown(&mut self) {
        if let Some(c) = self.commands.take() {
            // Bounded channel: an engine that hangs must not keep the program from ending.
            let _ = c.send_timeout(Command::Shutdown, std::time::Duration::from_secs(2));
        }
    }
}

/// How a job ended, with all it reported.
#[derive(Debug)]
pub(super) struct JobEnd {
    pub(super) done: Box<JobDone>,
    /// All tokens reported.
    pub(super) generated: Vec<Token>,
}
