//! Sending: messages, commands, the queue, and commands that the interface executes itself.

use super::acts::{Attempt, asking, hold, note, refuse, remember, send};
use super::markdown::{Colours, Style, render, verbatim};
use super::mention;
use super::options::ThinkShow;
use super::overlay::{open_list, open_page};
use super::quit::quit_or_ask;
use super::{App, Effect, Queued};
use super::{complete, themes};
use crate::config::commands::{self, CopyWhat, Local, Outcome, WhileBusy, help};
use crate::core::transcript::{MessageId, Role};
use crate::runtime::protocol::{Activity, Level, PresetAction, Request, SessionView};

pub(super) fn submit(app: &mut App) {
    app.wrote = false;
    app.popup = None;
    let line = app.open.composer.expanded();
    let parsed = commands::is_command(&line).then(|| commands::parse(line.trim(), app.config.home.as_deref()));
    // A stop holds queued lines; only a question or a waiting command releases them.
    let sends = match &parsed {
        None => true,
        Some(Ok(parsed)) => waits(app, &parsed.outcome),
        Some(Err(_)) => false,
    };
    app.open.queue.held &= !sends;
    if line.trim().is_empty() {
        app.tour = app.tour.take().map(super::tour::Tour::restarted);
        if let Some(row) = super::greeting::offered(app) {
            let command = format!("/resume {}", commands::escaped(&row.name));
            app.open.composer.set(&command);
            submit(app);
        }
        return;
    }
    app.config.offer = None;
    let understood = parsed.as_ref().is_none_or(Result::is_ok);
    if let Some(tour) = app.tour.as_mut().filter(|_| understood) {
        tour.entered(&line);
    }
    match parsed {
        Some(Err(why)) => return refuse(app, why),
        Some(Ok(parsed)) => {
            if parsed.outcome.leaves_an_edit() {
                app.open.editing = None;
            }
            if waits(app, &parsed.outcome) {
                queue(app);
            } else {
                app.history.push(line.trim());
                app.open.composer.take();
                let asks = matches!(parsed.outcome, Outcome::Runtime(_));
                run(app, parsed.outcome);
                let outside = |e: &Effect| matches!(e, Effect::Theme(_) | Effect::CodeTheme(_) | Effect::Keep { .. });
                let asks = asks || app.effects.iter().any(outside);
                app.attempt = asks.then(|| Attempt { line: line.clone(), warning: None });
                if app.refusal.is_some() && app.open.composer.is_empty() {
                    app.open.composer.set(&line);
                }
            }
        }
        None if must_wait(app) || queues_after(app) => queue(app),
        None => {
            app.history.push(&line);
            app.open.composer.take();
            let edits = app.open.editing.take();
            ask(app, &line, edits);
        }
    }
    app.open.transcript.deselect();
    app.open.transcript.follow();
    pump_queue(app);
}

fn must_wait(app: &App) -> bool {
    app.busy() || !app.questions.is_empty()
}

/// Held questions were typed first, so a new one is queued after them, except one taken out of the queue.
fn queues_after(app: &App) -> bool {
    app.open.editing.is_none() && !app.took_out && !app.open.queue.lines.is_empty()
}

/// With a single engine slot, a command that leaves the session waits for the session's queued lines.
fn waits(app: &App, outcome: &Outcome) -> bool {
    let alone = app.model.is_some() && !app.answers_elsewhere();
    let needs_no_model = matches!(outcome, Outcome::Runtime(Request::Search(_) | Request::Export { .. }));
    if needs_no_model && matches!(app.activity, Activity::Starting { .. }) && !queues_after(app) {
        return false;
    }
    must_wait(app)
        && match outcome.while_busy() {
            WhileBusy::Waits => true,
            WhileBusy::Leaves => alone && !app.open.queue.held && !app.open.queue.lines.is_empty(),
            WhileBusy::Runs | WhileBusy::Apart => false,
        }
}

fn queue(app: &mut App) {
    let line = app.open.composer.take();
    app.history.push(&line);
    // Stored now, so that it survives a crash.
    remember(app, &line);
    let edits = app.open.editing.take();
    app.open.queue.lines.push_back(Queued { line, edits });
}

/// Searches all texts, after the work at hand.
pub(super) fn search(app: &mut App, words: String) {
    let outcome = Outcome::Runtime(Request::Search(words.clone()));
    match waits(app, &outcome) {
        true => app.open.queue.lines.push_back(Queued { line: format!("/search {words}"), edits: None }),
        false => run(app, outcome),
    }
}

/// Sends queued lines once the model is free and every request is acknowledged, but not while another session opens.
pub(super) fn pump_queue(app: &mut App) {
    while !app.open.queue.held && is_free(app) {
        let Some(Queued { line, edits }) = app.open.queue.lines.pop_front() else { return };
        if commands::is_command(&line) {
            match commands::parse(line.trim(), app.config.home.as_deref()) {
                Err(why) => note(app, Level::Error, &why),
                Ok(parsed) => {
                    let waits = matches!(parsed.outcome.while_busy(), WhileBusy::Waits | WhileBusy::Leaves);
                    app.leads = leads_elsewhere(&parsed.outcome);
                    run(app, parsed.outcome);
                    app.waiting |= waits;
                }
            }
        } else {
            ask(app, &line, edits);
        }
    }
}

fn is_free(app: &App) -> bool {
    !app.busy() && app.served >= app.sent && app.questions.is_empty() && !app.open.is_leaving()
}

fn leads_elsewhere(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Runtime(
            Request::New(_)
                | Request::Resume(_)
                | Request::Undo(_)
                | Request::Redo(_)
                | Request::Fork { .. }
                | Request::Branch(_)
                | Request::Goto(_)
        )
    )
}

/// A queued command failed to open another place, so the lines after it are held.
pub(super) fn not_led(app: &mut App) {
    if std::mem::take(&mut app.leads) || app.open.has_for_another() {
        hold(app);
    }
}

/// Whether an answer led to another session or back in this one; lines queued before belong to the old place.
pub(super) fn led_away(app: &App, view: &SessionView) -> bool {
    // One of several answers remains.
    let kept = app.open.transcript.entries().iter().filter(|e| e.as_message().is_some() && e.choice == 0);
    let elsewhere = view.serial != app.open.serial || view.messages.len() < kept.count();
    app.answered && !app.open.is_leaving() && elsewhere
}

fn ask(app: &mut App, line: &str, edits: Option<MessageId>) {
    let text = commands::message_text(line);
    let looked_up = match edits {
        None => super::greeting::load_first(app, &text) || mention::look_up(app, &text, None),
        // In an answer or a system text, `@` is an ordinary letter.
        Some(message) => {
            app.open.transcript.messages().any(|m| m.id == message && m.role == Role::User)
                && mention::look_up(app, &text, edits)
        }
    };
    if !looked_up {
        ask_now(app, text, edits);
    }
}

pub(super) fn ask_now(app: &mut App, text: String, edits: Option<MessageId>) {
    occupy(app, asking(text, edits));
}

fn occupy(app: &mut App, request: Request) {
    app.waiting = true;
    send(app, request);
}

pub(super) fn run(app: &mut App, outcome: Outcome) {
    match outcome {
        Outcome::Local(local) => run_local(app, local),
        Outcome::Runtime(request) => match request {
            Request::Aside(_) => {
                app.aside_dismissed = false;
                // Queued lines need not wait for it.
                app.aside_apart = app.has_work();
                if app.aside_apart { send(app, request) } else { occupy(app, request) }
            }
            Request::New(_) | Request::Resume(_) | Request::OpenAnswer(_) => super::open::leave(app, request),
            Request::Preset(PresetAction::Save { name, .. }) => {
                let display = app.config.display();
                let save = PresetAction::Save { name, display };
                send(app, Request::Preset(save));
            }
            Request::Regen { .. } | Request::Continue(_) | Request::AskAll { .. } | Request::When(_) => {
                occupy(app, request)
            }
            other => send(app, other),
        },
    }
}

fn run_local(app: &mut App, local: Local) {
    match local {
        Local::Copy(what) => match copy_text(app, what) {
            Ok(text) => app.effects.push(Effect::Copy(text)),
            Err(why) => refuse(app, why),
        },
        Local::Show(display) => {
            themes::display(app, &display);
            if display.iter().any(|(key, _)| *key == "thinking.show") {
                let how = match app.config.think_show {
                    ThinkShow::Open => "always open",
                    ThinkShow::Fold => "folded once the answer starts",
                    ThinkShow::Hide => "hidden",
                };
                note(app, Level::Info, &format!("Thoughts are {how}."));
            }
        }
        Local::Save { key, value, now } => {
            if let Some(outcome) = now {
                run(app, *outcome);
            }
            app.effects.push(Effect::Keep { key, value });
        }
        Local::Settings(word) => open_list(app, |app| super::help::settings(app, word.as_deref())),
        Local::Complete(line) => {
            app.open.composer.set(&line);
            complete::complete(app);
        }
        Local::Split => {
            if let Err(why) = super::open::split(app) {
                refuse(app, why);
            }
        }
        Local::Keys => open_list(app, super::help::key_list),
        Local::Help(None) => open_list(app, super::help::all),
        Local::Help(Some(word)) => match (help::named(&word), super::help::about(app, &word)) {
            (Some(command), _) => open_page(app, &format!("/{}", command.name), help::of(command)),
            (None, Some(list)) => open_list(app, |_| list),
            (None, None) => refuse(app, help::unknown(&word)),
        },
        Local::Quit => quit_or_ask(app),
    }
}

pub(super) fn copy_text(app: &App, what: CopyWhat) -> Result<String, String> {
    let nothing = || "/copy: there is no answer yet".to_string();
    let selected =
        || app.open.transcript.selected_message().map(|(_, m)| m).or_else(|| app.last_answer()).ok_or_else(nothing);
    match what {
        CopyWhat::Last => app.last_answer().map(|m| m.text.clone()).ok_or_else(nothing),
        CopyWhat::Message(n) => app
            .open
            .transcript
            .numbered(n)
            .map(|m| m.text.clone())
            .ok_or(format!("/copy: there is no message #{n} here")),
        CopyWhat::Block(n) => {
            let message = selected()?;
            let colours = Colours::default();
            let style = Style { cells: 80, glyphs: app.config.glyphs, colours: &colours };
            let rendered = match message.role {
                Role::System | Role::User => verbatim(&message.text, style),
                Role::Assistant | Role::Document => render(&message.text, style),
            };
            let block = n.checked_sub(1).and_then(|i| rendered.code().get(i));
            block.map(|b| b.text.clone()).ok_or(format!("/copy: the answer has no code block b{n}"))
        }
        CopyWhat::Look(n) => {
            let message = selected()?;
            let passages = message.meta.looked.as_ref().map_or(&[][..], |l| &l.passages);
            let passage = n.checked_sub(1).and_then(|i| passages.get(i));
            let passage =
                passage.ok_or(format!("/copy: there is no passage [{n}]; the answer looked at {}", passages.len()))?;
            let holds = app.open.transcript.numbered(passage.number);
            let holds = holds.ok_or(format!("/copy: message #{} is not here", passage.number))?;
            Ok(passage.lines(&holds.text).map(|(_, line)| line).collect::<Vec<_>>().join("\n"))
        }
        CopyWhat::All => {
            let all: Vec<String> =
                app.open.transcript.messages().map(|m| format!("{}: {}", m.role.speaker(), m.text)).collect();
            if all.is_empty() { Err(nothing()) } else { Ok(all.join("\n\n")) }
        }
    }
}
