//! A runtime with one request at a time. An error of the runtime ends the benchmark.

use std::time::{Duration, Instant};

use crate::cli::{Exit, Failure};
use crate::engine::protocol::ModelInfo;
use crate::runtime::Runtime;
use crate::runtime::protocol::{Activity, Level, Notice, Request};

const PATIENCE: Duration = Duration::from_secs(3600);
const REST: Duration = Duration::from_millis(300);
/// The runtime's reply to a message number that never exists: it shows that all earlier requests are done.
const BARRIER: &str = "No message #0";

pub(in crate::lab) struct Talk {
    runtime: Runtime,
    notes: Vec<String>,
}

impl Talk {
    pub(in crate::lab) fn new(runtime: Runtime) -> Talk {
        Talk { runtime, notes: Vec::new() }
    }

    fn next(&self) -> Result<Notice, Failure> {
        match self.runtime.notices.recv_timeout(PATIENCE) {
            Ok(Notice::Fatal { error, exit }) => Err(Failure::new(exit, error)),
            Ok(Notice::Note(Level::Error, error)) => Err(Failure::new(Exit::Failure, error)),
            Ok(Notice::Question { text, .. } | Notice::Plan { text, .. }) => {
                Err(Failure::new(Exit::Failure, format!("the runtime asks: {text}")))
            }
            Ok(notice) => Ok(notice),
            Err(e) => Err(Failure::new(Exit::Failure, format!("the runtime: {e}"))),
        }
    }

    fn send(&self, request: Request) -> Result<(), Failure> {
        self.runtime.requests.send(request).map_err(|_| Failure::new(Exit::Failure, "the runtime ended unexpectedly"))
    }

    pub(in crate::lab) fn ready(&self) -> Result<ModelInfo, Failure> {
        loop {
            if let Notice::Ready(info) = self.next()? {
                return Ok(info);
            }
        }
    }

    /// Milliseconds until the runtime has done this and takes the next request.
    pub(in crate::lab) fn timed(&mut self, request: Request) -> Result<f64, Failure> {
        self.notes.clear();
        let begun = Instant::now();
        self.send(request)?;
        self.send(Request::EditOpen(Some(0)))?;
        loop {
            match self.next()? {
                Notice::Note(_, text) if text.starts_with(BARRIER) => {
                    return Ok(begun.elapsed().as_secs_f64() * 1e3);
                }
                Notice::Note(_, text) => self.notes.push(text),
                _ => {}
            }
        }
    }

    /// Milliseconds until the wanted notice, and its content. A warning from the runtime ends the wait with an error.
    pub(in crate::lab) fn told<T>(
        &mut self,
        request: Request,
        wanted: impl Fn(Notice) -> Option<T>,
    ) -> Result<(f64, T), Failure> {
        let begun = Instant::now();
        self.send(request)?;
        loop {
            match self.next()? {
                Notice::Note(Level::Warn, text) => return Err(Failure::new(Exit::Failure, text)),
                notice => {
                    if let Some(found) = wanted(notice) {
                        return Ok((begun.elapsed().as_secs_f64() * 1e3, found));
                    }
                }
            }
        }
    }

    /// Milliseconds until a session is open and its state live. The runtime may take requests before that.
    pub(in crate::lab) fn resumed(&mut self, name: &str) -> Result<f64, Failure> {
        let begun = Instant::now();
        self.send(Request::Resume(name.into()))?;
        loop {
            match self.next()? {
                Notice::Note(_, text) if text.starts_with("Resumed 0 ") => {
                    return Err(Failure::new(Exit::Failure, "the state of the measured session was not kept"));
                }
                Notice::Note(_, text) if text.starts_with("Resumed ") => {
                    return Ok(begun.elapsed().as_secs_f64() * 1e3);
                }
                _ => {}
            }
        }
    }

    /// Milliseconds from a request for a session, and a question in it, to the first token of the answer. Undoes the
    /// exchange.
    pub(in crate::lab) fn first_token(&mut self, name: &str, question: &str) -> Result<f64, Failure> {
        let begun = Instant::now();
        self.send(Request::Resume(name.into()))?;
        self.send(Request::Ask(question.into()))?;
        let ms = loop {
            if let Notice::Activity(Activity::Answering { .. } | Activity::Thinking { .. }) = self.next()? {
                break begun.elapsed().as_secs_f64() * 1e3;
            }
        };
        self.timed(Request::Undo(1))?;
        Ok(ms)
    }

    /// Like [`Talk::timed`], for a step to kept state, once the disk is idle.
    pub(in crate::lab) fn back(&mut self, request: Request) -> Result<f64, Failure> {
        std::thread::sleep(REST);
        let ms = self.timed(request)?;
        if self.notes.iter().any(|n| n.contains(", 0 read again")) {
            return Ok(ms);
        }
        Err(Failure::new(
            Exit::Failure,
            format!("state that should have been kept was read again: {}", self.notes.join(" ")),
        ))
    }

    pub(in crate::lab) fn quit(self) -> Result<(), Failure> {
        self.send(Request::Quit)?;
        while !matches!(self.next()?, Notice::Bye { .. }) {}
        // A panic of the thread after its last notice does not matter.
        let _ = self.runtime.thread.join();
        Ok(())
    }
}
