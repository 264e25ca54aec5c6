//! What stands in the input and was not sent. Once typing rests the runtime keeps it, so that it stands there again whatever ends the
//! program; what was sent or cleared is forgotten at once. A moment is waited for after an edit and at no other time.

use super::acts::{offer, remember};
use super::cleaned::clean;
use super::composer::Composer;
use super::keys::Action;
use super::{App, Effect};
use crate::core::transcript::LONGEST_PROMPT;
use crate::runtime::protocol::Request;

/// How long typing rests before what is typed is kept, in milliseconds.
const REST_MS: u64 = 1_000;
/// How long it is said that an earlier draft was set aside.
const ASIDE_MS: u64 = 8_000;

/// The input of the session on screen, as the runtime knows it.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    /// What the runtime keeps.
    kept: String,
    /// The input when it was looked at last.
    seen: String,
    /// When typing has rested.
    due: Option<u64>,
}

impl Drafts {
    /// When the input is to be looked at without any event.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.due
    }

    /// Another session comes to the screen. What is kept of the one that is left is its own.
    pub(super) fn leave(&mut self, now: u64) -> String {
        self.due = Some(now + REST_MS);
        std::mem::take(&mut self.kept)
    }

    /// This is kept of the session that has come to the screen.
    pub(super) fn come_back(&mut self, kept: String) {
        self.kept = kept;
    }
}

/// What stands in an input, if the runtime keeps something else; from now on it keeps this. What is too long is not kept: what stood
/// there before it is.
pub(super) fn unkept(composer: &Composer, kept: &mut String) -> Option<String> {
    let text = composer.expanded();
    let text = if text.trim().is_empty() { String::new() } else { text };
    if text == *kept || text.len() > LONGEST_PROMPT {
        return None;
    }
    kept.clone_from(&text);
    Some(text)
}

/// Has the runtime keep what stands in the input of a session.
pub(super) fn tell(app: &mut App, serial: u64, text: String, effects: &mut Vec<Effect>) {
    app.sent += 1;
    effects.push(Effect::Send(Request::Draft { serial, text }));
}

/// After each event: whether something was written.
pub(super) fn look(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    if app.drafts.seen != app.composer.text() {
        app.drafts.seen = app.composer.text().to_owned();
        app.drafts.due = Some(now + REST_MS);
    }
    if app.composer.is_empty() {
        keep(app, effects);
    }
}

/// A moment has come.
pub(super) fn rested(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    if app.drafts.due.is_some_and(|at| at <= now) {
        keep(app, effects);
    }
}

fn keep(app: &mut App, effects: &mut Vec<Effect>) {
    app.drafts.due = None;
    let serial = app.tabs.serial();
    // Before the first session is open there is nowhere to keep it: its opening looks again.
    if serial != 0
        && let Some(text) = unkept(&app.composer, &mut app.drafts.kept)
    {
        tell(app, serial, text, effects);
    }
}

/// The program ends: what stands in any input is kept now.
pub(super) fn keep_all(app: &mut App, effects: &mut Vec<Effect>) {
    for (serial, text) in app.tabs.unkept() {
        tell(app, serial, text, effects);
    }
    if app.tabs.serial() == 0 {
        let text = app.composer.expanded();
        remember(app, &text, effects);
    }
    keep(app, effects);
}

/// This is kept of the session that was just opened: since an earlier run, or by another terminal that had the session meanwhile. What
/// is typed by now stays where it is.
pub(super) fn brought_back(app: &mut App, text: &str, now: u64) {
    if clean(&app.drafts.kept) == text {
        return;
    }
    let before = std::mem::replace(&mut app.drafts.kept, text.to_owned());
    let typed = app.composer.expanded();
    if typed == text {
        return;
    }
    let said = if typed.is_empty() || typed != before {
        if text.is_empty() || app.composer.recall(text) {
            return;
        }
        "What stood here before is set aside"
    } else {
        // Nothing was typed since it was kept: what the other terminal made of it goes on here.
        app.composer.clear_to_cut();
        if text.is_empty() {
            "Another terminal sent or cleared this"
        } else {
            app.composer.recall(text);
            "Another terminal changed this"
        }
    };
    offer(app, said, Action::Yank, "brings it back", now + ASIDE_MS);
}
