//! Saves the unsent input, so that it survives the end of the program: after a pause in typing, and at once when the
//! input is cleared.

use super::acts::{offer, remember};
use super::cleaned::clean;
use super::composer::Composer;
use super::keys::Action;
use super::{App, Effect};
use crate::core::transcript::LONGEST_PROMPT;
use crate::runtime::protocol::Request;

pub(super) const REST_MS: u64 = 1_000;
const ASIDE_MS: u64 = 8_000;

#[derive(Debug, Default)]
pub(super) struct Drafts {
    /// The draft that the runtime has.
    pub(super) kept: String,
    seen: String,
    pub(super) due: Option<u64>,
}

/// The draft to save if it differs from the runtime's. A draft above the size limit is not saved; the last one stays.
pub(super) fn unkept(composer: &Composer, kept: &mut String) -> Option<String> {
    let text = composer.expanded();
    let text = if text.trim().is_empty() { String::new() } else { text };
    if text == *kept || text.len() > LONGEST_PROMPT {
        return None;
    }
    kept.clone_from(&text);
    Some(text)
}

pub(super) fn send(app: &mut App, serial: u64, text: String, effects: &mut Vec<Effect>) {
    app.sent += 1;
    effects.push(Effect::Send(Request::Draft { serial, text }));
}

pub(super) fn look(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    if app.drafts.seen != app.composer.text() {
        app.drafts.seen = app.composer.text().to_owned();
        app.drafts.due = Some(now + REST_MS);
    }
    if app.composer.is_empty() {
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
    let serial = app.tabs.serial();
    if serial != 0
        && let Some(text) = unkept(&app.composer, &mut app.drafts.kept)
    {
        send(app, serial, text, effects);
    }
}

pub(super) fn keep_all(app: &mut App, effects: &mut Vec<Effect>) {
    for (serial, text) in app.tabs.unkept() {
        send(app, serial, text, effects);
    }
    if app.tabs.serial() == 0 {
        let text = app.composer.expanded();
        remember(app, &text, effects);
    }
    keep(app, effects);
}

/// Applies the draft of the session that was just opened, from an earlier run or another terminal. Text typed
/// meanwhile stays.
pub(super) fn brought_back(app: &mut App, text: &str, now: u64) {
    if clean(&app.drafts.kept) == text {
        return;
    }
    let before = std::mem::replace(&mut app.drafts.kept, text.to_owned());
    let typed = app.composer.expanded();
    if typed == text {
        return;
    }
    let text = if typed.is_empty() || typed != before {
        if text.is_empty() || app.composer.recall(text) {
            return;
        }
        "The earlier input is set aside"
    } else {
        // Nothing was typed since the last save: the other terminal's version replaces the draft.
        app.composer.clear_to_cut();
        if text.is_empty() {
            "Another terminal sent or cleared this"
        } else {
            app.composer.recall(text);
            "Another terminal changed this"
        }
    };
    offer(app, text, Action::Yank, "brings it back", now + ASIDE_MS);
}
