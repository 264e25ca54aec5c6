//! Saves the unsent input, so that it survives the end of the program: after a pause in typing, and at once when the
//! input is cleared.

use super::acts::{LONG_HINT_MS, offer, remember};
use super::keys::Action;
use super::{App, Effect};
use crate::core::sanitize::sanitize;
use crate::runtime::protocol::Request;

pub(super) const REST_MS: u64 = 1_000;

#[derive(Debug, Default)]
pub(super) struct Drafts {
    seen: String,
    pub(super) due: Option<u64>,
}

pub(super) fn send(app: &mut App, serial: u64, text: String) {
    app.sent += 1;
    app.effects.push(Effect::Send(Request::Draft { serial, text }));
}

pub(super) fn look(app: &mut App) {
    if app.drafts.seen != app.open.composer.text() {
        app.drafts.seen = app.open.composer.text().to_owned();
        app.drafts.due = Some(app.now + REST_MS);
    }
    if app.open.composer.is_empty() {
        keep(app);
    }
}

pub(super) fn rested(app: &mut App) {
    if app.drafts.due.is_some_and(|at| at <= app.now) {
        keep(app);
    }
}

fn keep(app: &mut App) {
    app.drafts.due = None;
    let serial = app.open.serial;
    if serial != 0
        && let Some(text) = app.open.unkept()
    {
        send(app, serial, text);
    }
}

pub(super) fn keep_all(app: &mut App) {
    app.drafts.due = None;
    if app.open.serial == 0 {
        let text = app.open.composer.expanded();
        return remember(app, &text);
    }
    let drafts: Vec<_> = app.open.all().filter_map(|s| Some((s.serial, s.unkept()?))).collect();
    drafts.into_iter().for_each(|(serial, text)| send(app, serial, text));
}

/// Applies the draft of the session that was just opened, from an earlier run or another terminal. Text typed
/// meanwhile stays.
pub(super) fn brought_back(app: &mut App, text: &str) {
    let text = &*sanitize(text);
    if sanitize(&app.open.kept) == text {
        return;
    }
    let before = std::mem::replace(&mut app.open.kept, text.to_owned());
    let typed = app.open.composer.expanded();
    if typed == text {
        return;
    }
    // Nothing was typed since the last save: the other terminal's version replaces the draft.
    let untouched = typed == before;
    if untouched {
        app.open.composer.clear_to_cut();
    }
    if !text.is_empty() {
        app.open.composer.recall(text);
    }
    if !typed.is_empty() && (untouched || !text.is_empty()) {
        offer(app, "Another version of this is set aside", Action::Yank, "brings it back", LONG_HINT_MS);
    }
}
