//! Actions shared by several parts of the interface: notes, hints, pages, requests, stopping.

use super::keys::Action;
use super::status::duration;
use super::{App, Effect};
use crate::config::commands::{is_command, message_text};
use crate::core::transcript::MessageId;
use crate::runtime::protocol::{Activity, Level, Notice, Request};

const NOTIFY_AFTER_MS: u64 = 10_000;

/// How long an ordinary hint is shown, and one about lost or waiting text.
pub(super) const HINT_MS: u64 = 4_000;
pub(super) const LONG_HINT_MS: u64 = 8_000;

pub(super) fn note(app: &mut App, level: Level, text: &str) {
    app.open.transcript.note(level, text, app.requests);
}

pub(super) fn hint(app: &mut App, text: impl Into<String>, ms: u64) {
    app.hint = Some((text.into(), Some(app.now + ms)));
}

/// Ends a hint that is shown until `by` at most; whether there was one.
pub(super) fn end_hint(app: &mut App, by: u64) -> bool {
    app.hint.take_if(|(_, until)| until.is_some_and(|until| until <= by)).is_some()
}

/// A key takes the note away. One about lost or waiting text, which may arrive during typing, stays for a second.
pub(super) fn note_read(app: &mut App) {
    end_hint(app, app.now + LONG_HINT_MS - 1_000);
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) line: String,
    pub(super) warning: Option<String>,
}

pub(super) fn refuse(app: &mut App, why: impl AsRef<str>) {
    app.refusal = Some(sentence(why.as_ref()));
}

/// With a full stop, unless the reason ends with a command to type.
fn sentence(why: &str) -> String {
    let ended = why.ends_with(['.', '?', '!', ')']) || why.contains(": /");
    if ended { why.to_owned() } else { format!("{why}.") }
}

/// The input receives the refused line again.
pub(super) fn refuse_line(app: &mut App, line: &str, why: &str) {
    refuse(app, why);
    if app.open.composer.is_empty() {
        app.open.composer.set(line);
    }
}

/// A command of the interface failed outside it. Without one, the reason is a note.
pub(super) fn failed(app: &mut App, why: &str) {
    match app.attempt.take() {
        Some(Attempt { line, .. }) => refuse_line(app, &line, why),
        None if app.refusal.as_deref() == Some(sentence(why).as_str()) => {}
        None => note(app, Level::Error, why),
    }
}

pub(super) fn offer(app: &mut App, text: &str, action: Action, what: &str, ms: u64) {
    let text = app.config.keys.offer(text, action, what);
    hint(app, text, ms);
}

pub(super) fn send(app: &mut App, request: Request) {
    app.requests += 1;
    app.sent += 1;
    // The answer belongs to the request that raised the question.
    if matches!(request, Request::Choose { .. } | Request::ChooseFiles { .. }) {
        (app.waiting, app.answered) = (true, true);
    } else {
        app.open.wanted = None;
        app.show_after_open = None;
    }
    app.effects.push(Effect::Send(request));
}

pub(super) fn asking(text: String, edits: Option<MessageId>) -> Request {
    match edits {
        Some(message) => Request::EditDone { message, text },
        None => Request::Ask(text),
    }
}

pub(super) fn why_not_now(app: &App) -> Option<&'static str> {
    if matches!(app.activity, Activity::Starting { .. }) {
        return Some("The model is still loading; try again when it is ready");
    }
    if app.busy() || app.open.is_leaving() {
        return Some("Busy: stop first (Esc), or wait until the answer is complete");
    }
    (!app.questions.is_empty()).then_some("Answer the question first")
}

/// Whether a request that leads elsewhere may be sent; a hint gives the reason against it.
pub(super) fn may_lead(app: &mut App) -> bool {
    let why = why_not_now(app);
    if let Some(why) = why {
        hint(app, why, HINT_MS);
    }
    why.is_none()
}

pub(super) fn hold(app: &mut App) {
    app.open.queue.held = !app.open.queue.lines.is_empty();
}

pub(super) fn stop(app: &mut App) {
    if app.busy() && app.activity != Activity::Stopping {
        // A question that the runtime has not started yet needs no waiting.
        if app.activity != Activity::Idle {
            app.activity = Activity::Stopping;
        }
        app.waiting = false;
        hold(app);
        // Not counted as a new request: notes of the stopped one still belong to it.
        app.sent += 1;
        app.effects.push(Effect::Send(Request::Stop));
    }
}

/// Calls a user who is elsewhere when work that took long ends.
pub(super) fn notify(app: &mut App, name: &str, what: &str, took: u64) {
    if took >= NOTIFY_AFTER_MS && !app.focused {
        app.unseen = true;
        let after = duration(took as f64 / 1e3);
        app.effects.push(Effect::Notify(format!("{name}: {what} after {after}")));
    }
}

pub(super) fn is_remembered(line: &str) -> bool {
    !is_command(line) && !line.trim().is_empty()
}

pub(super) fn remember(app: &mut App, line: &str) {
    if !is_remembered(line) {
        return;
    }
    app.sent += 1;
    app.effects.push(Effect::Send(Request::Remember(message_text(line))));
}

pub(super) fn answers_nothing(notice: &Notice) -> bool {
    match notice {
        Notice::Activity(activity) => *activity == Activity::Idle,
        Notice::Acknowledged(_)
        | Notice::Background { .. }
        | Notice::Tree(_)
        | Notice::Meters(_)
        | Notice::Save(_)
        | Notice::Damage(_)
        | Notice::Prompts(_)
        | Notice::Draft(_)
        | Notice::Library(_)
        | Notice::Named { .. }
        | Notice::Titled(_) => true,
        _ => false,
    }
}
