//! Leaving a session that has queued lines: the runtime keeps its slot and receives the lines one at a time, so that
//! unsent lines stay visible and counted.

use super::super::acts::{asking, send};
use super::super::{App, Effect, Queued};
use super::{Away, Mark, Tabs};
use crate::config::commands::{self, Outcome, WhileBusy};
use crate::runtime::protocol::Request;

#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    request: u64,
    pub(super) stay: usize,
    /// The interface has requested that the runtime keep the slot.
    pub(super) promised: bool,
}

impl Tabs {
    pub(in super::super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    pub(in super::super) fn has_for_another(&self, queued: usize) -> bool {
        self.leaving.is_some_and(|leaving| queued > leaving.stay)
    }

    pub(in super::super) fn served(&mut self, count: u64) {
        self.leaving.take_if(|leaving| leaving.request <= count);
    }
}

pub(in super::super) fn leave(app: &mut App, request: Request, effects: &mut Vec<Effect>) {
    let at_work = app.busy() || !app.questions.is_empty();
    let stay = app.queue.lines.len();
    let parallel = app.answers_elsewhere() && request.while_busy() == WhileBusy::Leaves;
    let promised = at_work && parallel && stay > 0 && !app.queue.held;
    let request = if promised { Request::LeaveQueued(Box::new(request)) } else { request };
    send(app, request, effects);
    app.tabs.leaving = at_work.then_some(Leaving { request: app.sent, stay, promised });
}

/// Sends the next queued line of a session that has finished its work. False if there is none.
pub(super) fn go_on(app: &mut App, serial: u64, effects: &mut Vec<Effect>) -> bool {
    let Some(away) = app.tabs.away.iter_mut().find(|a| a.serial == serial) else { return false };
    if away.sent || !away.promised {
        return away.sent;
    }
    let request = away.next(app.config.home.as_deref());
    away.sent = request.is_some();
    away.promised = request.is_some();
    if request.is_some() {
        away.mark = Mark::Working;
    }
    away.queue.held |= request.is_none() && !away.queue.lines.is_empty();
    app.sent += 1;
    effects.push(Effect::Send(Request::There { serial, request: request.map(Box::new) }));
    away.sent
}

impl Away {
    /// The next line for the runtime. Local commands, mentions, and questions with unread files wait until the session
    /// is on screen.
    fn next(&mut self, home: Option<&std::path::Path>) -> Option<Request> {
        let Queued { line, edits } = self.queue.lines.front().filter(|_| !self.queue.held && !self.reading)?;
        let outcome = match commands::is_command(line) {
            true => commands::parse(line.trim(), home).ok().map(|p| p.outcome),
            false if line.contains('@') => None,
            false => Some(Outcome::Runtime(asking(commands::message_text(line), *edits))),
        };
        match outcome {
            Some(Outcome::Runtime(request)) if request.while_busy() == WhileBusy::Waits => {
                self.queue.lines.pop_front();
                Some(request)
            }
            Some(_) | None => None,
        }
    }
}
