//! The engine thread of a remote engine. The state of a sequence is its token list. Commands to one sequence run in
//! order, jobs of different sequences in parallel. A stop drops the request and keeps the text received so far. A
//! server that is down at the start is no failure: each question tries again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use crossbeam_channel::{bounded, unbounded};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::{LocalSet, spawn_local};

use super::RemoteOptions;
use super::asking::{Asking, NAMED};
use super::client::{Client, Fault, line_of, sentence};
use super::codec::Codec;
use crate::client::about;
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
    let (happens, happened) = mpsc::unbounded_channel();
    let (reported, tokenizer) = (happens.clone(), text.tokenizer.clone());
    let thread = std::thread::Builder::new().name("remote engine".into()).spawn(move || {
        let asking = Codec::new(tokenizer).and_then(|codec| Asking::new(options, codec, outbox.clone()));
        match asking.and_then(|asking| Ok((asking, runtime()?))) {
            Ok((asking, runtime)) => {
                let (states, busy, waiting) = (HashMap::new(), HashSet::new(), VecDeque::new());
                let worker = Worker { asking: Rc::new(asking), happens, states, busy, waiting };
                LocalSet::new().block_on(&runtime, worker.serve(happened));
            }
            Err(why) => {
                let _ =
                    outbox.send(EngineEvent::Failed { id: 0, fault: EngineFault::Fatal { why, exit: Exit::Usage } });
            }
        }
    })?;
    // Ends with the runtime's channel, or with the thread that listens to it.
    std::thread::Builder::new().name("remote commands".into()).spawn(move || {
        let passed = inbox.into_iter().all(|command| reported.send(Happened::Received(command)).is_ok());
        if passed {
            let _ = reported.send(Happened::Received(Command::Shutdown));
        }
    })?;
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

enum Happened {
    Received(Command),
    /// A finished job: the sequence's tokens and the event, or the fault.
    Over(Job, Result<(Vec<Token>, EngineEvent), Fault>),
}

struct Worker {
    asking: Rc<Asking>,
    happens: UnboundedSender<Happened>,
    states: HashMap<SequenceId, Vec<Token>>,
    busy: HashSet<SequenceId>,
    waiting: VecDeque<Command>,
}

impl Worker {
    async fn serve(mut self, mut happened: mpsc::UnboundedReceiver<Happened>) {
        let asking = Rc::clone(&self.asking);
        asking.send(EngineEvent::Loading { what: format!("asking {}", asking.client.shown), done: 0.0 });
        let first = Cancel::default();
        let mut finding = std::pin::pin!(asking.find_model(&first));
        // Quitting must not wait for a server that does not answer.
        let found = loop {
            tokio::select! {
                found = &mut finding => break found,
                what = happened.recv() => if !self.take(what) { return },
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
        self.begin_all();
        while self.take(happened.recv().await) {
            self.begin_all();
        }
    }

    /// False at the end.
    fn take(&mut self, happened: Option<Happened>) -> bool {
        match happened {
            None | Some(Happened::Received(Command::Shutdown)) => return false,
            Some(Happened::Received(command)) => self.waiting.push_back(command),
            Some(Happened::Over(job, end)) => self.over(&job, end),
        }
        true
    }

    fn begin_all(&mut self) {
        let mut held = self.busy.clone();
        for command in std::mem::take(&mut self.waiting) {
            let (changed, _, base) = about(&command);
            let touched = changed.into_iter().chain(base);
            let free = !touched.clone().any(|sequence| held.contains(&sequence));
            if free {
                self.begin(command);
                held.extend(touched.filter(|sequence| self.busy.contains(sequence)));
            } else {
                held.extend(touched);
                self.waiting.push_back(command);
            }
        }
    }

    fn begin(&mut self, command: Command) {
        match command {
            Command::Restore { id, sequence, history, .. } => {
                self.states.insert(sequence, history.to_vec());
                self.asking.send(EngineEvent::Restored { id, ms: 0.0 });
            }
            Command::Fork { id, from, to } => {
                let state = self.states.get(&from).cloned().unwrap_or_default();
                self.states.insert(to, state);
                self.asking.send(EngineEvent::Restored { id, ms: 0.0 });
            }
            Command::Release { sequence } => drop(self.states.remove(&sequence)),
            Command::Run(job) => {
                self.busy.insert(job.sequence);
                let mut state = self.states.remove(&job.sequence).unwrap_or_default();
                let (asking, happens) = (Rc::clone(&self.asking), self.happens.clone());
                spawn_local(async move {
                    let end = asking.run(&job, &mut state).await.map(|event| (state, event));
                    // An ending thread has dropped the receiver; that is fine.
                    let _ = happens.send(Happened::Over(job, end));
                });
            }
            // Texts take little memory, and the loop has handled a shutdown already.
            Command::MayEvict { .. } | Command::Park | Command::Unpark | Command::Shutdown => {}
        }
    }

    fn over(&mut self, job: &Job, end: Result<(Vec<Token>, EngineEvent), Fault>) {
        self.busy.remove(&job.sequence);
        match end {
            Ok((state, event)) => {
                self.states.insert(job.sequence, state);
                self.asking.send(event);
            }
            Err(fault) => {
                let fault = match fault {
                    Fault::Stopped => EngineFault::Stopped,
                    Fault::TooLong(line) => EngineFault::TooLong(line),
                    Fault::Refused { line, .. } | Fault::Failed(line) => EngineFault::Device(line),
                };
                self.asking.send(EngineEvent::Failed { id: job.id, fault: fault.clone() });
                self.drop_lost(job.sequence, &fault);
            }
        }
    }

    /// After a failure: jobs that wait for the lost state fail too, up to the next command that replaces the state.
    fn drop_lost(&mut self, lost: SequenceId, fault: &EngineFault) {
        let mut is_lost = true;
        for command in std::mem::take(&mut self.waiting) {
            let (changed, id, base) = about(&command);
            // Each request contains its whole conversation, so a restored sequence needs nothing of the lost one.
            let replaces = matches!(command, Command::Restore { .. } | Command::Release { .. } | Command::Fork { .. });
            is_lost &= !(replaces && changed == Some(lost));
            match id {
                // A fork of the lost state would be an empty conversation.
                Some(id) if is_lost && base == Some(lost) => {
                    self.asking.send(EngineEvent::Failed { id, fault: fault.clone() });
                }
                _ => self.waiting.push_back(command),
            }
        }
    }
}
