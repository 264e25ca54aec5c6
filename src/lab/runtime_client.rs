//! A runtime with one request at a time. An error of the runtime ends the measurement.

use std::time::{Duration, Instant};

use super::engine_client::failed;
use super::report::ms;
use crate::cli::args::SessionChoice;
use crate::cli::{Context, Failure, open};
use crate::engine::protocol::ModelInfo;
use crate::runtime::protocol::{Activity, Level, Notice, Request};
use crate::runtime::{Attendance, Input};

const PATIENCE: Duration = Duration::from_secs(3600);
const REST: Duration = Duration::from_millis(300);
/// The runtime's reply to a message number that never exists: it shows that all earlier requests are done.
const BARRIER: &str = "No message #0";

pub(super) struct RuntimeClient {
    opened: open::Opened,
    notes: Vec<String>,
}

impl RuntimeClient {
    pub(super) fn start(context: &Context, save: bool) -> Result<(RuntimeClient, ModelInfo), Failure> {
        let opened = open::runtime(context, &SessionChoice::New, save, Attendance::Present, Input::Lines)?;
        let client = RuntimeClient { opened, notes: Vec::new() };
        let info = client.wait(|notice| match notice {
            Notice::Ready(info) => Some(info),
            _ => None,
        })?;
        Ok((client, info))
    }

    pub(super) fn wait<T>(&self, mut pick: impl FnMut(Notice) -> Option<T>) -> Result<T, Failure> {
        loop {
            match self.opened.runtime.notices.recv_timeout(PATIENCE) {
                Ok(Notice::Fatal { error, exit }) => return Err(Failure::new(exit, error)),
                Ok(Notice::Note(Level::Error, error)) => return Err(failed(error)),
                Ok(Notice::Question { text, .. } | Notice::Plan { text, .. }) => {
                    return Err(failed(format!("the runtime asks: {text}")));
                }
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
        self.opened.runtime.requests.send(request).map_err(|_| failed("the runtime ended unexpectedly"))
    }

    /// Milliseconds until the runtime has done this and takes the next request.
    pub(super) fn timed(&mut self, request: Request) -> Result<f64, Failure> {
        let begun = Instant::now();
        self.send(request)?;
        self.send(Request::EditOpen(Some(0)))?;
        let mut notes = Vec::new();
        self.wait(|notice| match notice {
            Notice::Note(_, text) if text.starts_with(BARRIER) => Some(()),
            Notice::Note(_, text) => {
                notes.push(text);
                None
            }
            _ => None,
        })?;
        self.notes = notes;
        Ok(ms(begun))
    }

    /// Milliseconds until the wanted notice, and its content. A warning from the runtime ends the wait with an error.
    pub(super) fn until<T>(&self, request: Request, wanted: impl Fn(Notice) -> Option<T>) -> Result<(f64, T), Failure> {
        let begun = Instant::now();
        self.send(request)?;
        let found = self.wait(|notice| match notice {
            Notice::Note(Level::Warn, text) => Some(Err(failed(text))),
            notice => wanted(notice).map(Ok),
        })??;
        Ok((ms(begun), found))
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
    pub(super) fn first_token(&mut self, name: &str, question: &str) -> Result<f64, Failure> {
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
    pub(super) fn back(&mut self, request: Request) -> Result<f64, Failure> {
        std::thread::sleep(REST);
        let took_ms = self.timed(request)?;
        match self.notes.iter().any(|note| note.contains(", 0 read again")) {
            true => Ok(took_ms),
            false => Err(failed(format!("state that should have been kept was read again: {}", self.notes.join(" ")))),
        }
    }

    pub(super) fn quit(self) -> Result<(), Failure> {
        self.send(Request::Quit)?;
        self.wait(|notice| matches!(notice, Notice::Bye { .. }).then_some(()))?;
        // A panic of a thread after its last notice does not matter.
        self.opened.ended();
        Ok(())
    }
}
