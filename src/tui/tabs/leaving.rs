//! A session is left while messages are queued in it: the runtime keeps its place there, and is given them one at a time. So what is not
//! asked yet is always here, where it is counted, and in sight as soon as its session is.

use super::super::acts::{asking, send};
use super::super::{App, Effect, Queued};
use super::{Away, Mark, Tabs};
use crate::config::commands::{self, Outcome, WhileBusy};
use crate::runtime::protocol::Request;

/// A session that is about to be left: the runtime may still say that there is no other to go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    /// The request that leads away, as the runtime counts them.
    request: u64,
    /// So many queued lines belong to the session that is left; what was entered later goes along.
    pub(super) stay: usize,
    /// The runtime is asked to keep its place there.
    pub(super) promised: bool,
}

impl Tabs {
    /// Whether another session may be on its way to the screen.
    pub(in super::super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether some of so many queued lines were entered for the session that may be on its way.
    pub(in super::super) fn has_for_another(&self, queued: usize) -> bool {
        self.leaving.is_some_and(|leaving| queued > leaving.stay)
    }

    /// So many requests are served: one that did not lead to another session by then does not any more.
    pub(in super::super) fn served(&mut self, count: u64) {
        self.leaving.take_if(|leaving| leaving.request <= count);
    }
}

/// Sends a request that leads to another session.
pub(in super::super) fn leave(app: &mut App, request: Request, effects: &mut Vec<Effect>) {
    let at_work = app.busy() || !app.questions.is_empty();
    let stay = app.queue.lines.len();
    let beside = app.answers_beside() && request.while_busy() == WhileBusy::Leaves;
    let promised = at_work && beside && stay > 0 && !app.queue.held;
    let request = if promised { Request::LeaveQueued(Box::new(request)) } else { request };
    send(app, request, effects);
    app.tabs.leaving = at_work.then_some(Leaving { request: app.sent, stay, promised });
}

/// A session that was left has done what it was asked: the runtime is given what is queued there next. False when nothing goes on there.
pub(super) fn go_on(app: &mut App, serial: u64, effects: &mut Vec<Effect>) -> bool {
    let Some(away) = app.tabs.away.iter_mut().find(|a| a.serial == serial) else { return false };
    if away.asked || !away.promised {
        return away.asked;
    }
    let request = away.next(app.config.home.as_deref());
    away.asked = request.is_some();
    away.promised = request.is_some();
    if request.is_some() {
        away.mark = Mark::Working;
    }
    // The rest waits for somebody who comes back.
    away.queue.held |= request.is_none() && !away.queue.lines.is_empty();
    app.sent += 1;
    effects.push(Effect::Send(Request::There { serial, request: request.map(Box::new) }));
    away.asked
}

impl Away {
    /// What the runtime can be given next. What only the interface does, and what mentions files, which are looked up here first, waits
    /// until the session is on screen; so does a question whose files were not read.
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
