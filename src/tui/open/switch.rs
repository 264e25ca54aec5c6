//! Going from one session to another. Queued lines stay in their session and are sent once it is on screen again.

use super::super::acts::{HINT_MS, LONG_HINT_MS, hint, may_lead, note, offer, send};
use super::super::composer::Composer;
use super::super::keys::Action;
use super::super::{App, drafts};
use super::{Mark, SPLIT_FROM, Session, Sessions, called};
use crate::core::counted;
use crate::runtime::protocol::{Activity, Level, OpenSession, Request};

const ALONE: &str = "No other session is open: /new or /resume NAME";

/// A session at work is being left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    request: u64,
    /// So many queued lines stay with it.
    stay: usize,
}

impl Sessions {
    pub(in super::super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether lines were queued for the session that is being opened.
    pub(in super::super) fn has_for_another(&self) -> bool {
        self.leaving.is_some_and(|leaving| self.queue.lines.len() > leaving.stay)
    }

    pub(in super::super) fn served(&mut self, count: u64) {
        self.leaving.take_if(|leaving| leaving.request <= count);
    }

    fn show(&mut self, serial: u64) {
        self.at = self.place_of(serial).unwrap_or_else(|| {
            self.list.push(Session { serial, ..Session::default() });
            self.list.len() - 1
        });
    }
}

pub(in super::super) fn go(app: &mut App, number: Option<u32>) {
    let count = app.open.list.len();
    let place = match number {
        Some(n) => usize::try_from(n).unwrap_or(usize::MAX).saturating_sub(1),
        None => (app.open.at + 1) % count,
    };
    let Some(serial) = app.open.list.get(place).map(|s| s.serial) else {
        let text = match count {
            1 => ALONE.to_string(),
            n => format!("There is no session {}: {n} are open", place + 1),
        };
        return hint(app, text, HINT_MS);
    };
    if place == app.open.at {
        return;
    }
    let starts = matches!(app.activity, Activity::Starting { .. });
    if app.has_work() && (starts || !app.answers_elsewhere()) && !may_lead(app) {
        return;
    }
    app.popup = None;
    leave(app, Request::Switch(serial));
    app.open.wanted = Some(serial);
}

pub(in super::super) fn split(app: &mut App) -> Result<(), String> {
    if app.open.second.take().is_some() {
        return Ok(());
    }
    if app.size.0 < SPLIT_FROM {
        return Err(format!("Two sessions side by side need {SPLIT_FROM} columns"));
    }
    app.open.second = Some(*app.open.left.last().ok_or(ALONE)?);
    Ok(())
}

pub(in super::super) fn switch_side(app: &mut App) {
    let place = app.open.other(app.size.0).map(|(number, ..)| number);
    match place.and_then(|number| u32::try_from(number).ok()) {
        Some(number) => go(app, Some(number)),
        None => {
            let text = "There is one session on the screen";
            offer(app, text, Action::Split, "shows a second one beside it", HINT_MS);
        }
    }
}

pub(in super::super) fn leave(app: &mut App, request: Request) {
    let at_work = app.busy() || !app.questions.is_empty();
    let stay = app.open.queue.lines.len();
    send(app, request);
    app.open.leaving = at_work.then_some(Leaving { request: app.sent, stay });
}

pub(in super::super) fn arrived(app: &mut App, serial: u64, opened: Vec<OpenSession>) {
    let by_key = app.open.wanted.take() == Some(serial);
    let old = app.open.serial;
    if old != serial {
        app.drafts.due = Some(app.now + drafts::REST_MS);
    }
    if old == 0 {
        app.open.serial = serial;
    }
    if old == serial || old == 0 {
        return app.open.set_list(opened);
    }
    // Notes are about the session that is left.
    (app.hint, app.refusal) = (None, None);
    let leaving = app.open.leaving.take();
    let question = app.questions.iter().find(|q| q.is_of_runtime()).map(|q| q.text.clone());
    app.questions.retain(|q| !q.is_of_runtime());
    for page in [&mut app.overlay, &mut app.set_aside] {
        page.take_if(|page| page.belongs_to_session());
    }

    let mark = match leaving {
        Some(_) if question.is_some() => Mark::Asks,
        Some(_) if app.busy() => Mark::Working,
        _ => Mark::Quiet,
    };
    let left = &mut *app.open;
    left.mark = mark;
    let clipboard = left.composer.clipboard.clone();
    // Text typed after a command moves to the new session; text typed before a key stays.
    let typed = if by_key { Composer::default() } else { std::mem::take(&mut left.composer) };
    left.editing.take_if(|_| !by_key);
    let draft = left.unkept();
    // Queued lines move along, except those held by a stop and those queued before leaving work.
    let stay = match leaving {
        _ if left.queue.held => usize::MAX,
        Some(Leaving { stay, .. }) => stay,
        None => 0,
    };
    let queued = left.queue.lines.split_off(stay.min(left.queue.lines.len()));
    let kind = if left.queue.held { "held message" } else { "queued message" };
    let stay = left.queue.lines.len();
    let notes = left.transcript.put_away(app.requests);

    app.took_out = false;
    if leaving.is_some() {
        (app.waiting, app.answered) = (false, false);
    }
    app.open.left.retain(|left| *left != old && *left != serial);
    app.open.left.push(old);
    if app.open.second == Some(serial) {
        app.open.second = Some(old);
    }
    app.open.show(serial);
    app.open.set_list(opened);

    let here = &mut *app.open;
    // Nothing is sent until the runtime reports the session's activity.
    app.waiting |= here.mark.at_work();
    here.since = here.since.filter(|_| here.mark.at_work());
    (here.mark, here.news) = (Mark::Quiet, false);
    here.queue.lines.extend(queued);
    match here.composer.is_empty() {
        true => here.composer = typed,
        false => here.composer.insert(typed.text()),
    }
    here.composer.clipboard = clipboard;
    here.transcript.entries.extend(notes);
    if let Some(refused) = here.refused.take() {
        here.composer.clipboard.cut = refused;
        offer(app, "A question was not asked here", Action::Yank, "brings it back", LONG_HINT_MS);
    }
    app.history.rest();
    if let Some(text) = draft {
        drafts::send(app, old, text);
    }
    let place = app.open.place_of(old).map(|at| (at + 1, called(&app.open.list[at].name).to_owned()));
    if let Some((number, name)) = place.as_ref().filter(|_| stay > 0) {
        let lines = counted(stay as u64, kind);
        note(app, Level::Info, &format!("{lines} left in \"{name}\"; Alt-{number} goes back."));
    }
    if let Some(question) = question {
        let text = match place {
            Some((number, name)) => format!("\"{name}\" still asks: {question} Alt-{number} goes back."),
            None => format!("Closed without an answer: {question}"),
        };
        note(app, Level::Info, &text);
    }
}
