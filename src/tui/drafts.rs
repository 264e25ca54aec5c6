//! Saves the unsent input, so that it survives the end of the program: after a pause in typing, and at once when the
//! input is cleared.

use super::acts::{offer, remember};
use super::cleaned::clean;
use super::keys::Action;
use super::open::Session;
use super::{App, Effect};
use crate::core::transcript::LONGEST_PROMPT;
use crate::runtime::protocol::Request;

pub(super) const REST_MS: u64 = 1_000;
const ASIDE_MS: u64 = 8_000;

#[derive(Debug, Default)]
pub(super) struct Drafts {
    seen: String,
    pub(super) due: Option<u64>,
}

/// The draft to save if it differs from the runtime's. A draft above the size limit is not saved; the last one stays.
pub(super) fn unkept(session: &mut Session) -> Option<String> {
    let text = session.composer.expanded();
    let text = if text.trim().is_empty() { String::new() } else { text };
    if text == session.kept || text.len() > LONGEST_PROMPT {
        return None;
    }
    session.kept.clone_from(&text);
    Some(text)
}

pub(super) fn send(app: &mut App, serial: u64, text: String, effects: &mut Vec<Effect>) {
    app.sent += 1;
    effects.push(Effect::Send(Request::Draft { serial, text }));
}

pub(super) fn look(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    if app.drafts.seen != app.open.composer.text() {
        app.drafts.seen = app.open.composer.text().to_owned();
        app.drafts.due = Some(now + REST_MS);
    }
    if app.open.composer.is_empty() {
        keep(app, effects);
    }
}

pub(super) fn rested(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    if app.drafts.due.is_some_and(|at| at <= now) {
        keep(app, effects);
    }
}

fn keep(app: &mut App, effects: &mut Vec<Effect>) {
    app.drafts.due = None;
    let serial = app.open.serial();
    if serial != 0
        && let Some(text) = unkept(&mut app.open)
    {
        send(app, serial, text, effects);
    }
}

pub(super) fn keep_all(app: &mut App, effects: &mut Vec<Effect>) {
    app.drafts.due = None;
    if app.open.serial() == 0 {
        let text = app.open.composer.expanded();
        return remember(app, &text, effects);
    }
    let drafts: Vec<_> = app.open.all().filter_map(|s| Some((s.serial(), unkept(s)?))).collect();
    drafts.into_iter().for_each(|(serial, text)| send(app, serial, text, effects));
}

/// Applies the draft of the session that was just opened, from an earlier run or another terminal. Text typed
/// meanwhile stays.
pub(super) fn brought_back(app: &mut App, text: &str, now: u64) {
    if clean(&app.open.kept) == text {
        return;
    }
    let before = std::mem::replace(&mut app.open.kept, text.to_owned());
    let typed = app.open.composer.expanded();
    if typed == text {
        return;
    }
    let text = if typed.is_empty() || typed != before {
        if text.is_empty() || app.open.composer.recall(text) {
            return;
        }
        "The earlier input is set aside"
    } else {
        // Nothing was typed since the last save: the other terminal's version replaces the draft.
        app.open.composer.clear_to_cut();
        if text.is_empty() {
            "Another terminal sent or cleared this"
        } else {
            app.open.composer.recall(text);
            "Another terminal changed this"
        }
    };
    offer(app, text, Action::Yank, "brings it back", now + ASIDE_MS);
}
