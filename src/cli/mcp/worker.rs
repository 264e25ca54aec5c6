//! One runtime serves all calls, one at a time. It opens at the first call; model and last documents stay in memory.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, TryRecvError, never, select};
use tokio::sync::mpsc::UnboundedSender;

use crate::cli::Failure;
use crate::cli::open::Opened;
use crate::runtime::protocol::{Activity, Notice, Request};

const ENDED: &str = "The program that runs the model has ended.";

/// `9 of 40 tokens read`, or what the model waits for.
pub(super) type Progress = String;

pub(in crate::cli) struct Worker {
    open: Box<dyn Fn() -> Result<Opened, Failure> + Send + Sync>,
    running: Mutex<Option<Running>>,
}

impl Worker {
    pub(super) fn new(open: impl Fn() -> Result<Opened, Failure> + Send + Sync + 'static) -> Arc<Worker> {
        Arc::new(Worker { open: Box::new(open), running: Mutex::default() })
    }

    /// Waits for its turn and serves a request. `given_up` closes when the client gives the call up, which stops the work.
    pub(super) fn call(
        &self,
        request: Request,
        progress: &UnboundedSender<Progress>,
        given_up: Receiver<Infallible>,
    ) -> Result<Vec<Notice>, String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(given_up.try_recv(), Err(TryRecvError::Disconnected)) {
            return Err("cancelled".to_owned());
        }
        let mut ready = match running.take() {
            Some(ready) => ready,
            None => Running { opened: (self.open)().map_err(|failure| failure.to_string())?, sent: 0 },
        };
        match ready.execute(request, progress, given_up) {
            Ok(reply) => {
                *running = Some(ready);
                reply
            }
            // The next call opens another one.
            Err(over) => {
                let _ = ready.opened.close();
                Err(over)
            }
        }
    }

    /// Ends the runtime; an error reports text that could not be saved.
    pub(in crate::cli) fn close(&self) -> Result<(), Failure> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        running.map_or(Ok(()), |running| running.opened.close())
    }
}

struct Running {
    opened: Opened,
    sent: u64,
}

impl Running {
    fn send(&mut self, request: Request) {
        self.sent += 1;
        // A runtime that is gone closes its notices.
        let _ = self.opened.runtime.requests.send(request);
    }

    /// Sends the request and collects its notices until the runtime is idle. Fails when the runtime has ended.
    fn execute(
        &mut self,
        request: Request,
        progress: &UnboundedSender<Progress>,
        mut given_up: Receiver<Infallible>,
    ) -> Result<Result<Vec<Notice>, String>, String> {
        let notices = self.opened.runtime.notices.clone();
        let (mut collected, mut failed) = (Vec::new(), None);
        // The receiver may have been dropped; that is fine.
        let mut last = None;
        let mut report = |what: Progress| {
            if last.as_ref() != Some(&what) {
                last = Some(what.clone());
                drop(progress.send(what));
            }
        };
        self.send(request);
        loop {
            select! {
                recv(notices) -> notice => match notice {
                    Ok(Notice::Acknowledged(count)) if count >= self.sent => break,
                    Ok(Notice::Fatal { error, .. }) => failed = Some(error),
                    Ok(Notice::Bye { .. }) | Err(_) => return Err(failed.unwrap_or_else(|| ENDED.to_owned())),
                    Ok(Notice::Activity(Activity::Starting { what })) => report(what),
                    Ok(Notice::Activity(Activity::Reading(p))) => report(format!("{} of {} tokens read", p.done, p.total)),
                    Ok(Notice::FanOut(answers)) => {
                        let answered = answers.rows.iter().filter(|r| r.finish.is_some() || r.failed.is_some()).count();
                        report(format!("{answered} of {} documents answered", answers.rows.len()));
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
}
