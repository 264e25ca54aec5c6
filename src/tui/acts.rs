//! What several places of the interface do: say something, open a page, send a request, stop.

use super::keys::Action;
use super::options::Notify;
use super::overlay::{Overlay, Page};
use super::{App, Effect};
use crate::config::commands::{is_command, message_text};
use crate::core::transcript::MessageId;
use crate::runtime::protocol::{Activity, Level, Request};

/// A line of the program in the transcript.
pub(super) fn note(app: &mut App, level: Level, text: &str) {
    app.transcript.note(level, text, app.requests);
}

/// A word below the input, for a while.
pub(super) fn hint(app: &mut App, text: impl Into<String>, until: u64) {
    app.hint = Some((text.into(), Some(until)));
}

/// [`hint`] of something that a key can do something about.
pub(super) fn offer(app: &mut App, said: &str, action: Action, what: &str, until: u64) {
    let text = app.config.keys.offer(said, action, what);
    hint(app, text, until);
}

/// Opens a page.
pub(super) fn open_page(app: &mut App, title: &str, text: String) {
    app.popup = None;
    app.overlay = Some(Overlay::Page(Page::new(title, text)));
}

/// Sends a request to the runtime.
pub(super) fn send(app: &mut App, request: Request, effects: &mut Vec<Effect>) {
    app.requests += 1;
    app.sent += 1;
    // An answer to a question belongs to what asked it, and what is queued waits for what comes of it.
    if matches!(request, Request::Choose { .. } | Request::ChooseFiles { .. }) {
        (app.waiting, app.answered) = (true, true);
    } else {
        app.tabs.forget_wish();
        app.show_after_open = None;
    }
    effects.push(Effect::Send(request));
}

/// The request that asks, or puts an edited text in its place.
pub(super) fn asking(text: String, edits: Option<MessageId>) -> Request {
    match edits {
        Some(message) => Request::EditDone { message, text },
        None => Request::Ask(text),
    }
}

/// Why a key cannot lead the conversation elsewhere now, or make something of it: what goes on, and what is queued behind it, was
/// meant for where it stands.
pub(super) fn why_not_now(app: &App) -> Option<&'static str> {
    if matches!(app.activity, Activity::Starting { .. }) {
        return Some("The model is being loaded; that can be done after it");
    }
    if app.busy() || app.tabs.is_leaving() {
        return Some("Busy: stop first (Esc), or wait until the answer is complete");
    }
    (!app.questions.is_empty()).then_some("A question stands: answer it first")
}

/// What is queued waits for somebody who sends it.
pub(super) fn hold(app: &mut App) {
    app.queue.held = !app.queue.lines.is_empty();
}

/// Asks the model to stop, once.
pub(super) fn stop(app: &mut App, effects: &mut Vec<Effect>) {
    if app.goes_on() && app.activity != Activity::Stopping {
        // A question the runtime has not taken up yet leaves nothing to wait for; of what goes on beside the runtime says that it is stopped.
        if !app.activity.rests() {
            app.activity = Activity::Stopping;
        }
        app.waiting = false;
        hold(app);
        // Not counted as a request of its own: notes of the stopped one still belong to it.
        app.sent += 1;
        effects.push(Effect::Send(Request::Stop));
    }
}

/// Tells somebody who looks away of the end of what took so long.
pub(super) fn notify(app: &mut App, took: u64, text: String, effects: &mut Vec<Effect>) {
    if took < app.config.notify_after_ms {
        return;
    }
    app.unseen |= !app.focused;
    let wanted = match app.config.notify {
        Notify::Never => false,
        Notify::Unfocused => !app.focused,
        Notify::Always => true,
    };
    if wanted {
        effects.push(Effect::Notify(text));
    }
}

/// Whether a line is one for the history of the next start: commands are not.
pub(super) fn is_remembered(line: &str) -> bool {
    !is_command(line) && !line.trim().is_empty()
}

/// Has what was entered and is not asked yet found in the history of the next start.
pub(super) fn remember(app: &mut App, line: &str, effects: &mut Vec<Effect>) {
    if !is_remembered(line) {
        return;
    }
    app.sent += 1;
    effects.push(Effect::Send(Request::Remember(message_text(line))));
}
