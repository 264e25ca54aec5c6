//! One runtime for all calls. Its thread serves them one at a time; the runtime opens at the first call and stays, so
//! that the model and the state of the last documents stay in memory.

use std::convert::Infallible;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError, never, select};
use tokio::sync::{mpsc, oneshot};

use crate::cli::Failure;
use crate::cli::notices::not_saved;
use crate::cli::open::Opened;
use crate::core::Exit;
use crate::runtime::protocol::{Activity, Notice, Request};

const ENDED: &str = "The program that runs the model has ended.";

/// Work done and its amount, if that is known: tokens read, or documents answered.
pub(super) struct Progress {
    pub(super) done: f64,
    pub(super) total: Option<f64>,
    pub(super) what: String,
}

struct Call {
    request: Request,
    progress: mpsc::UnboundedSender<Progress>,
    /// Closed when the client gave the call up.
    given_up: Receiver<Infallible>,
    reply: oneshot::Sender<Result<Vec<Notice>, String>>,
}

/// A running call. Dropping it stops the work.
pub(super) struct PendingCall {
    pub(super) progress: mpsc::UnboundedReceiver<Progress>,
    pub(super) reply: oneshot::Receiver<Result<Vec<Notice>, String>>,
    _held: Sender<Infallible>,
}

/// The worker thread; its result reports text that could not be saved.
pub(in crate::cli) type Ended = JoinHandle<Result<(), Failure>>;

/// Dropping the last one ends the runtime.
#[derive(Clone)]
pub(super) struct Worker(Sender<Call>);

impl Worker {
    pub(super) fn start(
        open: impl FnMut() -> Result<Opened, Failure> + Send + 'static,
    ) -> std::io::Result<(Worker, Ended)> {
        let (calls, inbox) = crossbeam_channel::unbounded();
        let thread = std::thread::Builder::new().name("mcp".into()).spawn(move || serve(&inbox, open))?;
        Ok((Worker(calls), thread))
    }

    pub(super) fn call(&self, request: Request) -> PendingCall {
        let (progress, updates) = mpsc::unbounded_channel();
        let (reply, replied) = oneshot::channel();
        let (held, given_up) = crossbeam_channel::bounded(0);
        // A worker that has ended closes the reply.
        let _ = self.0.send(Call { request, progress, given_up, reply });
        PendingCall { progress: updates, reply: replied, _held: held }
    }
}

fn serve(calls: &Receiver<Call>, mut open: impl FnMut() -> Result<Opened, Failure>) -> Result<(), Failure> {
    let mut running: Option<Running> = None;
    for call in calls {
        if matches!(call.given_up.try_recv(), Err(TryRecvError::Disconnected)) {
            continue;
        }
        let ready = running.take().map_or_else(|| open().map(|opened| Running { opened, sent: 0 }), Ok);
        let reply = match ready.map(|mut ready| (ready.execute(&call), ready)) {
            Err(failure) => Err(failure.to_string()),
            Ok((Ok(reply), ready)) => {
                running = Some(ready);
                reply
            }
            // The next call opens another one.
            Ok((Err(over), ready)) => {
                let _ = ready.close();
                Err(over)
            }
        };
        // The client may be gone; that is fine.
        let _ = call.reply.send(reply);
    }
    running.map_or(Ok(()), Running::close)
}

struct Running {
    opened: Opened,
    /// Requests sent, which the runtime acknowledges by number.
    sent: u64,
}

impl Running {
    fn send(&mut self, request: Request) {
        self.sent += 1;
        // A runtime that is gone closes its notices.
        let _ = self.opened.runtime.requests.send(request);
    }

    /// Sends the request and collects its notices until the runtime is idle.
    ///
    /// # Errors
    /// The runtime has ended: why.
    fn execute(&mut self, call: &Call) -> Result<Result<Vec<Notice>, String>, String> {
        let notices = self.opened.runtime.notices.clone();
        let mut given_up = call.given_up.clone();
        let (mut collected, mut failed) = (Vec::new(), None);
        let mut counter = Counter { to: &call.progress, before: 0.0, last: 0.0 };
        self.send(call.request.clone());
        loop {
            select! {
                recv(notices) -> notice => match notice {
                    Ok(Notice::Acknowledged(count)) if count >= self.sent => break,
                    Ok(Notice::Fatal { error, .. }) => failed = Some(error),
                    Ok(Notice::Bye { .. }) | Err(_) => return Err(failed.unwrap_or_else(|| ENDED.to_owned())),
                    Ok(Notice::Activity(activity)) => counter.activity(&activity),
                    Ok(Notice::FanOut(answers)) => {
                        let answered = answers.rows.iter().filter(|r| r.finish.is_some() || r.failed.is_some()).count();
                        counter.count(answered as f64, answers.rows.len() as f64, "documents answered");
                        collected.extend(answers.over.then_some(Notice::FanOut(answers)));
                    }
                    Ok(notice @ (Notice::Finished(_) | Notice::Page { .. } | Notice::Note(..))) => collected.push(notice),
                    Ok(_) => {}
                },
                recv(given_up) -> _ => {
                    given_up = never();
                    self.send(Request::Stop);
                }
            }
        }
        Ok(failed.map_or(Ok(collected), Err))
    }

    fn close(mut self) -> Result<(), Failure> {
        self.send(Request::Quit);
        let unsaved = self.opened.runtime.notices.iter().find_map(|notice| match notice {
            Notice::Bye { unsaved, .. } => Some(unsaved),
            _ => None,
        });
        match (self.opened.ended(), unsaved.flatten()) {
            (false, _) => Err(Failure::new(Exit::Failure, "the runtime ended unexpectedly")),
            (true, Some(unsaved)) => Err(not_saved(&unsaved)),
            (true, None) => Ok(()),
        }
    }
}

/// Progress that only grows, as the protocol demands: each document is counted from zero.
struct Counter<'a> {
    to: &'a mpsc::UnboundedSender<Progress>,
    /// Of the documents before this one.
    before: f64,
    last: f64,
}

impl Counter<'_> {
    fn activity(&mut self, activity: &Activity) {
        match activity {
            Activity::Reading(p) => self.count(p.done as f64, p.total as f64, "tokens read"),
            // A loading model counts as less than a token.
            Activity::Starting { what } if self.last < 0.9 => {
                self.last += 1e-3;
                self.report(self.last, None, what.clone());
            }
            _ => {}
        }
    }

    fn count(&mut self, done: f64, total: f64, what: &str) {
        if self.before + done < self.last.floor() {
            self.before = self.last;
        }
        let (now, total) = (self.before + done, self.before + total);
        if now > self.last {
            self.last = now;
            self.report(now, Some(total), format!("{now} of {total} {what}"));
        }
    }

    fn report(&self, done: f64, total: Option<f64>, what: String) {
        // The receiver may have been dropped; that is fine.
        let _ = self.to.send(Progress { done, total, what });
    }
}
