//! What several places of the interface do: say something, open a page, send a request, stop, quit.

use super::keys::Action;
use super::options::Notify;
use super::overlay::{Overlay, Page};
use super::{App, Asker, Effect, Phase, Question, drafts};
use crate::commands::{is_command, message_text};
use crate::protocol::desk::{Activity, Choice, Level, Request, SaveState};
use crate::transcript::{LONGEST_PROMPT, MessageId};

/// How long it is said that there is nothing left to stop, in milliseconds.
const OVER_MS: u64 = 4_000;

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

/// Sends a request to the desk.
pub(super) fn send(app: &mut App, request: Request, effects: &mut Vec<Effect>) {
    app.requests += 1;
    app.sent += 1;
    // An answer to a question belongs to what asked it.
    if !matches!(request, Request::Choose { .. } | Request::ChooseFiles { .. }) {
        app.tabs.forget_wish();
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

/// Asks the model to stop, once.
pub(super) fn stop(app: &mut App, effects: &mut Vec<Effect>) {
    if app.goes_on() && app.activity != Activity::Stopping {
        // A question the desk has not taken up yet leaves nothing to wait for; of what goes on beside the desk says that it is stopped.
        if !app.activity.rests() {
            app.activity = Activity::Stopping;
        }
        app.waiting = false;
        app.queue.held = !app.queue.lines.is_empty();
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
fn is_remembered(line: &str) -> bool {
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

/// Begins to end.
pub(super) fn quit(app: &mut App, effects: &mut Vec<Effect>) {
    if app.phase == Phase::Running {
        app.phase = Phase::Quitting;
        app.overlay = None;
        app.popup = None;
        app.questions.clear();
        // Whatever ends the program: a terminal that is closed asks nobody.
        let lines: Vec<String> = app.queue.lines.iter().map(|q| &q.line).chain(app.tabs.unsent()).cloned().collect();
        lines.iter().for_each(|line| remember(app, line, effects));
        drafts::keep_all(app, effects);
        send(app, Request::Quit, effects);
        app.hint = Some(("Saving. Ctrl-C again ends at once: text is safe, state may be read again".into(), None));
    }
}

/// Quits, after asking once when the model is busy or a message waits to be sent, here or in sessions that were left, or when not
/// all is on disk.
pub(super) fn quit_or_ask(app: &mut App, effects: &mut Vec<Effect>) {
    let Some(text) = lost_by_quitting(app) else { return quit(app, effects) };
    let choices = vec![Choice { key: 'y', label: "quit".into() }, Choice { key: 'n', label: "stay".into() }];
    app.questions.push_front(Question::of_quitting(text, choices));
}

/// Whether to quit is asked of what goes on now: of what has ended meanwhile nothing is said, and with nothing left the question
/// goes away.
pub(super) fn keep_quit_question_true(app: &mut App, now: u64) {
    if !app.questions.iter().any(|q| q.asker == Asker::Quit) {
        return;
    }
    match lost_by_quitting(app) {
        Some(text) => {
            app.questions.iter_mut().filter(|q| q.asker == Asker::Quit).for_each(|q| q.text.clone_from(&text))
        }
        None => {
            app.questions.retain(|q| q.asker != Asker::Quit);
            hint(app, "The work is done; quitting stops nothing now", now + OVER_MS);
        }
    }
}

/// Said where quitting loses what could not be saved.
const UNSAVED: &str =
    "Not all of this conversation is saved, and what is not is lost: /export FILE keeps it elsewhere.";

/// Whether something of the conversation is nowhere but here.
pub(super) fn is_unsaved(app: &App) -> bool {
    matches!(app.save, SaveState::NotSaved(_)) && app.transcript.messages().next().is_some()
}

/// Where a message that was not sent is found at the next start, and where several are.
const UNSENT: (&str, &str) = ("Up finds it at the next start", "Up finds them at the next start");
/// The same of drafts.
const DRAFTS: (&str, &str) = ("it is kept for the next start", "they are kept for the next start");

/// What becomes of texts of these lengths ([`quit`]).
fn fate(lengths: &[usize], remembers: bool, (it, they): (&str, &str)) -> String {
    let one = lengths.len() == 1;
    match lengths.iter().filter(|bytes| **bytes > LONGEST_PROMPT).count() {
        _ if !remembers && one => "it is not kept".into(),
        _ if !remembers => "they are not kept".into(),
        0 if one => it.into(),
        0 => they.into(),
        long if long == lengths.len() => format!("too long ({LONGEST_PROMPT} bytes at most), and not kept"),
        long => format!("{they}, but for {long} of more than {LONGEST_PROMPT} bytes"),
    }
}

/// The question whether to quit; none when nothing is at work or waits, and all is saved.
fn lost_by_quitting(app: &App) -> Option<String> {
    let here = app.goes_on() && !matches!(app.activity, Activity::Starting { .. });
    let others: Vec<String> = app.tabs.at_work().map(|name| format!("\"{name}\"")).collect();
    // Where nothing is saved there is no history either.
    let remembers = !matches!(app.save, SaveState::Off | SaveState::NotSaved(_));
    let queued = app.queue.lines.iter().map(|q| &q.line).chain(app.tabs.unsent());
    let (commands, messages): (Vec<&String>, Vec<&String>) = queued.partition(|line| is_command(line));
    let lengths: Vec<usize> = messages.into_iter().map(String::len).collect();
    let unsent = match lengths.len() {
        0 => String::new(),
        1 => format!("1 message was not sent: {}.", fate(&lengths, remembers, UNSENT)),
        n => format!("{n} messages were not sent: {}.", fate(&lengths, remembers, UNSENT)),
    };
    let undone = match commands.as_slice() {
        [] => String::new(),
        [one] => format!("{} was not done.", one.split_whitespace().next().unwrap_or(one.as_str())),
        more => format!("{} commands were not done.", more.len()),
    };
    let typed: Vec<(&str, String)> = app.tabs.drafts().filter(|(_, text)| is_remembered(text)).collect();
    let lengths: Vec<usize> = typed.iter().map(|(_, text)| text.len()).collect();
    let mut names: Vec<String> = typed.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    names.dedup();
    let drafts = match lengths.len() {
        0 => String::new(),
        1 => format!("A draft is in {}: {}.", names.join(", "), fate(&lengths, remembers, DRAFTS)),
        n => format!("{n} drafts are in {}: {}.", names.join(", "), fate(&lengths, remembers, DRAFTS)),
    };
    if here || !others.is_empty() {
        let place = match (here, others.is_empty()) {
            (_, true) => String::new(),
            (true, false) => format!(" here and in {}", others.join(", ")),
            (false, false) => format!(" in {}", others.join(", ")),
        };
        let kept = if is_unsaved(app) { UNSAVED } else { "What was written so far is kept." };
        let text = format!("Still working{place}. Stop and quit? {kept}");
        return Some(
            [text, unsent, undone, drafts].into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>().join(" "),
        );
    }
    let unsaved = if is_unsaved(app) { UNSAVED } else { "" };
    let lost: Vec<&str> = [unsaved, &unsent, &undone, &drafts].into_iter().filter(|what| !what.is_empty()).collect();
    (!lost.is_empty()).then(|| format!("{} Quit?", lost.join(" ")))
}
