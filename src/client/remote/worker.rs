//! The engine thread of a remote engine. The state of a sequence is its token list, under a lock: each command is a
//! task that waits for the lock, so commands to one sequence run in order, jobs of different sequences in parallel. A
//! stop drops the request and keeps the text received so far. A server that is down at the start is no failure: each
//! question tries again.

use std::collections::HashMap;
use std::rc::Rc;

use crossbeam_channel::{bounded, unbounded};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

use super::RemoteOptions;
use super::asking::{Asking, NAMED};
use super::client::{Client, Fault, line_of, sentence};
use super::codec::Codec;
use crate::core::Exit;
use crate::engine::protocol::{Cancel, Command, Engine, EngineEvent, EngineFault, Job, SequenceId, Token};
use crate::text::TextModel;

const COMMANDS: usize = 4;

fn runtime() -> Result<Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| format!("no connections can be made: {e}"))
}

/// Starts the thread. `text` is [`super::text_model`]'s, which the runtime uses too.
pub fn spawn(options: RemoteOptions, text: &TextModel) -> std::io::Result<Engine> {
    let (commands, inbox) = bounded(COMMANDS);
    let (outbox, events) = unbounded();
    let (passed_on, received) = unbounded_channel();
    let tokenizer = text.tokenizer.clone();
    let thread = std::thread::Builder::new().name("remote engine".into()).spawn(move || {
        let asking = Codec::new(tokenizer).and_then(|codec| Asking::new(options, codec, outbox.clone()));
        match asking.and_then(|asking| Ok((asking, runtime()?))) {
            Ok((asking, runtime)) => {
                let worker = Worker { asking: Rc::new(asking), states: HashMap::new() };
                LocalSet::new().block_on(&runtime, worker.serve(received));
            }
            Err(why) => {
                let _ =
                    outbox.send(EngineEvent::Failed { id: 0, fault: EngineFault::Fatal { why, exit: Exit::Usage } });
            }
        }
    })?;
    // Ends with the runtime's channel, or with the thread that listens to it.
    std::thread::Builder::new()
        .name("remote commands".into())
        .spawn(move || inbox.into_iter().all(|command| passed_on.send(command).is_ok()))?;
    Ok(Engine { commands, events, thread })
}

/// The names of a server's models.
/// Fails with one line: no server at the address, or a server of another kind.
pub fn probe(options: &RemoteOptions) -> Result<String, String> {
    let client = Client::new(options)?;
    let models = runtime()?.block_on(client.models(&Cancel::default()));
    let models = models.map_err(|fault| line_of(fault).unwrap_or_default())?;
    let names: Vec<String> = models.iter().take(NAMED).map(|m| client.cleaned(&m.name)).collect();
    Ok(format!("{} answers; its models: {}.", client.shown, names.join(", ")))
}

/// Tokens, and the failure that has lost them.
#[derive(Clone, Default)]
struct State {
    tokens: Vec<Token>,
    lost: Option<EngineFault>,
}

struct Worker {
    asking: Rc<Asking>,
    states: HashMap<SequenceId, Rc<Mutex<State>>>,
}

impl Worker {
    async fn serve(mut self, mut commands: UnboundedReceiver<Command>) {
        let asking = Rc::clone(&self.asking);
        asking.send(EngineEvent::Loading { what: format!("asking {}", asking.client.shown), done: 0.0 });
        let (first, mut early) = (Cancel::default(), Vec::new());
        let mut finding = std::pin::pin!(asking.find_model(&first));
        // Quitting must not wait for a server that does not answer.
        let found = loop {
            tokio::select! {
                found = &mut finding => break found,
                command = commands.recv() => match command {
                    None | Some(Command::Shutdown) => return,
                    Some(command) => early.push(command),
                },
            }
        };
        let failed = found.err().and_then(line_of);
        asking.send(EngineEvent::Ready(asking.info()));
        let failed = failed
            .filter(|_| !asking.one_question)
            .map(|line| format!("{} Each question tries again.", sentence(&line)));
        for note in asking.client.exposed_key().into_iter().chain(failed) {
            asking.send(EngineEvent::Note(note));
        }
        early.into_iter().for_each(|command| self.begin(command));
        while let Some(command) = commands.recv().await.filter(|command| !matches!(command, Command::Shutdown)) {
            self.begin(command);
        }
    }

    fn begin(&mut self, command: Command) {
        let asking = Rc::clone(&self.asking);
        let mut state_of = |sequence| Rc::clone(self.states.entry(sequence).or_default());
        match command {
            Command::Restore { id, sequence, history, .. } => {
                let state = state_of(sequence);
                spawn_local(async move {
                    *state.lock().await = State { tokens: history.to_vec(), lost: None };
                    asking.send(EngineEvent::Restored { id, ms: 0.0 });
                });
            }
            Command::Fork { id, from, to } => {
                let (from, to) = (state_of(from), state_of(to));
                spawn_local(async move {
                    let (from, mut to) = tokio::join!(from.lock(), to.lock());
                    *to = from.clone();
                    // A fork of a lost state would be an empty conversation.
                    let failed = to.lost.clone().map(|fault| EngineEvent::Failed { id, fault });
                    asking.send(failed.unwrap_or(EngineEvent::Restored { id, ms: 0.0 }));
                });
            }
            Command::Release { sequence } => {
                let state = state_of(sequence);
                spawn_local(async move { *state.lock().await = State::default() });
            }
            Command::Run(job) => {
                let state = state_of(job.sequence);
                // Besides the table and this command, those in front of it have the state.
                let waits = Rc::strong_count(&state) > 2;
                spawn_local(async move { run(&asking, &job, &mut *state.lock().await, waits).await });
            }
            // Texts take little memory, and the loop handles a shutdown.
            Command::MayEvict { .. } | Command::Park | Command::Unpark | Command::Shutdown => {}
        }
    }
}

/// A failure loses the state, and fails the jobs that wait for it, up to the next command that replaces the state.
async fn run(asking: &Asking, job: &Job, state: &mut State, waits: bool) {
    let done = match state.lost.take().filter(|_| waits) {
        Some(fault) => Err(fault),
        None => asking.run(job, &mut state.tokens).await.map_err(|fault| match fault {
            Fault::Stopped => EngineFault::Stopped,
            Fault::TooLong(line) => EngineFault::TooLong(line),
            Fault::Refused { line, .. } | Fault::Failed(line) => EngineFault::Device(line),
        }),
    };
    asking.send(done.unwrap_or_else(|fault| {
        *state = State { tokens: Vec::new(), lost: Some(fault.clone()) };
        EngineEvent::Failed { id: job.id, fault }
    }));
}
