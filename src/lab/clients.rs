//! An engine of its own that receives commands as from the runtime, and a runtime with one request at a time. An error
//! of either ends the measurement.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;

use super::report::ms;
use crate::cli::args::SessionChoice;
use crate::cli::{Context, Exit, Failure, open};
use crate::engine::protocol::{
    Cancel, CheckpointImage, Command, EngineEvent, EngineFault, Generate, Job, JobDone, Look, ModelInfo, RowSource,
    Sampling, SequenceId, SpecMode, Token,
};
use crate::engine::{self, Engine};
use crate::runtime::protocol::{Activity, Level, Notice, Request};
use crate::runtime::{Attendance, Input};

/// Longest time between two events: loading weights, or reading a long prompt.
pub(super) const PATIENCE: Duration = Duration::from_secs(1800);

pub(super) fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failure, what.to_string())
}

pub(super) fn greedy(max_tokens: u64, spec: SpecMode) -> Generate {
    Generate {
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_tokens,
        stop: Vec::new(),
        spec,
        steering: None,
        constraint: None,
        likely: None,
        look: Look::default(),
    }
}

/// What happened until some commands were done.
#[derive(Default)]
pub(super) struct Events {
    pub(super) tokens: Vec<(Instant, u64, Vec<Token>)>,
    pub(super) done: BTreeMap<u64, JobDone>,
}

pub(super) struct EngineClient {
    engine: Engine,
    device: String,
    last: u64,
}

impl EngineClient {
    pub(super) fn start(context: &Context) -> Result<EngineClient, Failure> {
        let engine = engine::spawn(open::engine_options(context)?)?;
        let mut client = EngineClient { engine, device: String::new(), last: 0 };
        loop {
            if let EngineEvent::Ready(info) = client.next()? {
                client.device = info.device;
                return Ok(client);
            }
        }
    }

    fn next(&self) -> Result<EngineEvent, Failure> {
        match self.engine.events.recv_timeout(PATIENCE) {
            Ok(EngineEvent::Failed { fault: EngineFault::Fatal { why, exit }, .. }) => Err(Failure::new(exit, why)),
            Ok(EngineEvent::Failed { fault, .. }) => Err(failed(fault)),
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => Err(failed("the engine does not answer")),
            Err(RecvTimeoutError::Disconnected) => Err(failed("the engine ended unexpectedly")),
        }
    }

    /// Waits until all of these commands are done.
    pub(super) fn all(&self, commands: &[u64]) -> Result<Events, Failure> {
        let (mut events, mut left) = (Events::default(), commands.to_vec());
        while !left.is_empty() {
            match self.next()? {
                EngineEvent::Tokens { id, tokens, .. } => events.tokens.push((Instant::now(), id, tokens)),
                EngineEvent::Restored { id, .. } => left.retain(|n| *n != id),
                EngineEvent::Done { id, done } => {
                    left.retain(|n| *n != id);
                    events.done.insert(id, *done);
                }
                _ => {}
            }
        }
        Ok(events)
    }

    fn command(&self, command: Command) -> Result<(), Failure> {
        self.engine.commands.send(command).map_err(|_| failed("the engine ended unexpectedly"))
    }

    fn new_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Reads `prompt` and then generates; with `export` the job ends with the state after it.
    pub(super) fn run(
        &mut self,
        sequence: SequenceId,
        prompt: Vec<Token>,
        generate: Generate,
        export: bool,
    ) -> Result<u64, Failure> {
        let (id, generate) = (self.new_id(), Some(generate));
        let job = Job { id, sequence, prompt, generate, score: None, export, cancel: Cancel::default() };
        self.command(Command::Run(job))?;
        Ok(id)
    }

    /// Restores a sequence from `rows` and `end`, some of which may be in flight then; without rows it is empty.
    pub(super) fn restore(
        &mut self,
        sequence: SequenceId,
        rows: Vec<Arc<dyn RowSource>>,
        end: Option<CheckpointImage>,
        history: Vec<Token>,
    ) -> Result<(), Failure> {
        let id = self.new_id();
        self.command(Command::Restore { id, sequence, keep: 0, rows, end, history: history.into() })?;
        self.all(&[id]).map(drop)
    }

    /// Ends the engine; the name of its device.
    pub(super) fn end(self) -> String {
        // The engine may have ended already.
        let _ = self.engine.commands.send(Command::Shutdown);
        let _ = self.engine.thread.join();
        self.device
    }
}

const REST: Duration = Duration::from_millis(300);

pub(super) struct RuntimeClient {
    opened: open::Opened,
    sent: Cell<u64>,
}

impl RuntimeClient {
    pub(super) fn start(context: &Context, save: bool) -> Result<(RuntimeClient, ModelInfo), Failure> {
        let opened = open::runtime(context, &SessionChoice::New, save, Attendance::Present, Input::Lines)?;
        let client = RuntimeClient { opened, sent: Cell::default() };
        let info = client.wait(|notice| match notice {
            Notice::Ready(info) => Some(info),
            _ => None,
        })?;
        Ok((client, info))
    }

    pub(super) fn wait<T>(&self, mut pick: impl FnMut(Notice) -> Option<T>) -> Result<T, Failure> {
        loop {
            match self.opened.runtime.notices.recv_timeout(2 * PATIENCE) {
                Ok(Notice::Fatal { error, exit }) => return Err(Failure::new(exit, error)),
                Ok(Notice::Note(Level::Error, error)) => return Err(failed(error)),
                Ok(Notice::Question { text, .. }) => return Err(failed(format!("the runtime asks: {text}"))),
                Ok(notice) => {
                    if let Some(found) = pick(notice) {
                        return Ok(found);
                    }
                }
                Err(e) => return Err(failed(format!("the runtime: {e}"))),
            }
        }
    }

    pub(super) fn send(&self, request: Request) -> Result<(), Failure> {
        self.sent.update(|sent| sent + 1);
        self.opened.runtime.requests.send(request).map_err(|_| failed("the runtime ended unexpectedly"))
    }

    /// Milliseconds until the runtime has done this and takes the next request, and what it noted.
    pub(super) fn timed(&self, request: Request) -> Result<(f64, Vec<String>), Failure> {
        let begun = Instant::now();
        self.send(request)?;
        let mut notes = Vec::new();
        self.wait(|notice| match notice {
            Notice::Acknowledged(count) => (count >= self.sent.get()).then_some(()),
            Notice::Note(_, text) => {
                notes.push(text);
                None
            }
            _ => None,
        })?;
        Ok((ms(begun), notes))
    }

    /// Milliseconds until a session is open and its state live. The runtime may take requests before that.
    pub(super) fn resumed(&self, name: &str) -> Result<f64, Failure> {
        let begun = Instant::now();
        self.send(Request::Resume(name.into()))?;
        let note = self.wait(|notice| match notice {
            Notice::Note(_, text) if text.starts_with("Resumed ") => Some(text),
            _ => None,
        })?;
        let kept = (!note.starts_with("Resumed 0 ")).then(|| ms(begun));
        kept.ok_or_else(|| failed("the state of the measured session was not kept"))
    }

    /// Milliseconds from a request for a session, and a question in it, to the first token of the answer. Undoes the
    /// exchange.
    pub(super) fn first_token(&self, name: &str, question: &str) -> Result<f64, Failure> {
        let begun = Instant::now();
        self.send(Request::Resume(name.into()))?;
        self.send(Request::Ask(question.into()))?;
        self.wait(|notice| {
            matches!(notice, Notice::Activity(Activity::Answering { .. } | Activity::Thinking { .. })).then_some(())
        })?;
        let first_ms = ms(begun);
        self.timed(Request::Undo(1))?;
        Ok(first_ms)
    }

    /// Like [`RuntimeClient::timed`], for a step to kept state, once the disk is idle.
    pub(super) fn back(&self, request: Request) -> Result<f64, Failure> {
        std::thread::sleep(REST);
        let (took_ms, notes) = self.timed(request)?;
        match notes.iter().any(|note| note.contains(", 0 read again")) {
            true => Ok(took_ms),
            false => Err(failed(format!("state that should have been kept was read again: {}", notes.join(" ")))),
        }
    }

    pub(super) fn quit(self) -> Result<(), Failure> {
        self.opened.close()
    }
}
