//! What the user sends: messages, commands, the queue, and the commands the interface does itself.

use super::acts::{asking, note, open_page, remember, send};
use super::keys::ACTIONS;
use super::markdown::{Colours, Style, render};
use super::mention;
use super::options::ThinkShow;
use super::quit::quit_or_ask;
use super::themes;
use super::{App, Effect, Queued, verbatim};
use crate::config::commands::{self, CopyWhat, Local, Outcome, WhileBusy, help};
use crate::config::settings::{Row, page};
use crate::core::transcript::{MessageId, Role};
use crate::runtime::protocol::{Level, PresetAction, Request, SessionView};

/// Sends what is in the input, or queues it while the model is busy.
pub(super) fn submit(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    (app.offered, app.wrote) = (None, false);
    // A command on a line of its own below a recalled question is a command; the question stays in the input.
    if app.editing.is_none()
        && let Some(line) = app.composer.behind_recalled().filter(|l| l.starts_with('\n')).map(str::trim)
        && commands::is_command(line)
        && let Ok(parsed) = commands::parse(line, app.config.home.as_deref())
        && let Some(line) = app.composer.take_behind_recalled()
    {
        app.history.push(line.trim());
        app.transcript.follow();
        return match waits(app, &parsed.outcome) {
            true => app.queue.lines.push_back(Queued { line: line.trim().to_string(), edits: None }),
            false => run(app, parsed.outcome, effects),
        };
    }
    let line = app.composer.expanded();
    let parsed = commands::is_command(&line).then(|| commands::parse(line.trim(), app.config.home.as_deref()));
    // What a stop held back was meant for where this conversation stood: no command that is done now sends it, wherever it leads.
    let sends = match &parsed {
        None => true,
        Some(Ok(parsed)) => waits(app, &parsed.outcome),
        Some(Err(_)) => false,
    };
    app.queue.held &= !sends;
    if line.trim().is_empty() {
        // Somebody who cleared the input on the tour wants the step's line back.
        app.tour = app.tour.take().map(super::tour::Tour::restarted);
        return;
    }
    // What is not understood stays in the input, below the step of the tour.
    let understood = parsed.as_ref().is_none_or(Result::is_ok);
    if let Some(tour) = app.tour.as_mut().filter(|_| understood) {
        tour.entered(&line);
    }
    match parsed {
        Some(Err(why)) => {
            app.transcript.follow();
            return note(app, Level::Error, &why);
        }
        Some(Ok(parsed)) => {
            if parsed.outcome.leaves_an_edit() {
                app.editing = None;
            }
            if waits(app, &parsed.outcome) {
                queue(app, effects);
            } else {
                app.history.push(line.trim());
                app.composer.take();
                run(app, parsed.outcome, effects);
            }
        }
        None if must_wait(app) || goes_behind(app) => queue(app, effects),
        None => {
            app.history.push(&line);
            app.composer.take();
            let edits = app.editing.take();
            ask(app, &line, edits, effects);
        }
    }
    app.popup = None;
    app.transcript.deselect();
    app.transcript.follow();
    pump_queue(app, now, effects);
}

/// Whether what is typed waits for something: work that goes on, or a decision that comes first.
fn must_wait(app: &App) -> bool {
    app.busy() || !app.questions.is_empty()
}

/// Whether a question goes behind those that a stop held back: they were typed first. One that was taken out of the queue was, too.
fn goes_behind(app: &App) -> bool {
    app.editing.is_none() && !app.took_out && !app.queue.lines.is_empty()
}

/// Whether a command waits. Where the engine holds one conversation, the next one comes after what is queued for this one.
fn waits(app: &App, outcome: &Outcome) -> bool {
    let alone = app.model.is_some() && !app.answers_beside();
    must_wait(app)
        && match outcome.while_busy() {
            WhileBusy::Waits => true,
            WhileBusy::Leaves => alone && !app.queue.held && !app.queue.lines.is_empty(),
            WhileBusy::Runs | WhileBusy::Apart => false,
        }
}

fn queue(app: &mut App, effects: &mut Vec<Effect>) {
    let line = app.composer.take();
    app.history.push(&line);
    // Now: where the program is killed it is not lost.
    remember(app, &line, effects);
    app.queue.lines.push_back(Queued { line, edits: app.editing.take() });
}

/// Sends what waits, as soon as the model is free and the runtime has no more to say of what it was sent: it may have something to ask.
/// Not while another session is on its way to the screen, which it would be asked in.
pub(super) fn pump_queue(app: &mut App, _now: u64, effects: &mut Vec<Effect>) {
    while !app.queue.held && is_free(app) {
        let Some(Queued { line, edits }) = app.queue.lines.pop_front() else {
            return;
        };
        if commands::is_command(&line) {
            match commands::parse(line.trim(), app.config.home.as_deref()) {
                Err(why) => note(app, Level::Error, &why),
                Ok(parsed) => {
                    let waits = matches!(parsed.outcome.while_busy(), WhileBusy::Waits | WhileBusy::Leaves);
                    app.leads = leads_elsewhere(&parsed.outcome);
                    run(app, parsed.outcome, effects);
                    // Those behind it stay in sight, and can be held, until it is their turn.
                    app.waiting |= waits;
                }
            }
        } else {
            ask(app, &line, edits, effects);
        }
    }
}

fn is_free(app: &App) -> bool {
    !app.busy() && app.served >= app.sent && app.questions.is_empty() && !app.tabs.is_leaving()
}

/// Whether a command leads to another place or session: what is typed behind it is meant for there.
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

/// The runtime warns. If that is of a command that was to lead elsewhere, it did not: what is queued behind it waits for a decision.
pub(super) fn not_led(app: &mut App) {
    let queued = app.queue.lines.len();
    if std::mem::take(&mut app.leads) || app.tabs.has_for_another(queued) {
        app.queue.held = queued > 0;
    }
}

/// Whether an answer to a question leads to another session, or back in this one: what was typed beside it was meant for what is left.
pub(super) fn led_away(app: &App, view: &SessionView) -> bool {
    let elsewhere = view.serial != app.tabs.serial() || view.messages.len() < app.transcript.messages().count();
    app.answered && !app.tabs.is_leaving() && elsewhere
}

fn ask(app: &mut App, line: &str, edits: Option<MessageId>, effects: &mut Vec<Effect>) {
    let text = commands::message_text(line);
    let looked_up = match edits {
        None => super::offers::load_first(app, &text, effects) || mention::look_up(app, &text, None, effects),
        // In an answer, and in a system text, `@` is a letter like others.
        Some(message) => {
            app.transcript.messages().any(|m| m.id == message && m.role == Role::User)
                && mention::look_up(app, &text, edits, effects)
        }
    };
    if !looked_up {
        ask_now(app, text, edits, effects);
    }
}

/// Asks a question whose mentions are read.
pub(super) fn ask_now(app: &mut App, text: String, edits: Option<MessageId>, effects: &mut Vec<Effect>) {
    occupy(app, asking(text, edits), effects);
}

/// Sends a request that the model will be busy with. It may have waited in the queue: whoever reads further up is left there.
fn occupy(app: &mut App, request: Request, effects: &mut Vec<Effect>) {
    app.waiting = true;
    send(app, request, effects);
}

/// Runs a command that was understood.
pub(super) fn run(app: &mut App, outcome: Outcome, effects: &mut Vec<Effect>) {
    match outcome {
        Outcome::Local(local) => run_local(app, local, effects),
        Outcome::Runtime(request) => match request {
            Request::Aside(_) => {
                app.aside_dismissed = false;
                // Beside what goes on it keeps nothing waiting.
                app.aside_apart = app.has_work();
                match app.aside_apart {
                    true => send(app, request, effects),
                    false => occupy(app, request, effects),
                }
            }
            Request::New(_) | Request::Resume(_) | Request::OpenAsked(_) => super::tabs::leave(app, request, effects),
            Request::Preset(PresetAction::Save { name, .. }) => {
                let display = app.config.display();
                let save = PresetAction::Save { name, display };
                send(app, Request::Preset(save), effects);
            }
            Request::Regen { .. } | Request::Continue(_) | Request::AskAll { .. } | Request::When(_) => {
                occupy(app, request, effects)
            }
            other => send(app, other, effects),
        },
    }
}

fn run_local(app: &mut App, local: Local, effects: &mut Vec<Effect>) {
    match local {
        Local::Copy(what) => match copy_text(app, what) {
            Ok(text) => effects.push(Effect::Copy(text)),
            Err(why) => note(app, Level::Error, &why),
        },
        Local::Show(display) => {
            themes::display(app, &display, effects);
            if display.iter().any(|(key, _)| *key == "thinking.show") {
                let how = match app.config.think_show {
                    ThinkShow::Open => "always open",
                    ThinkShow::Fold => "folded once the answer starts",
                    ThinkShow::Hide => "hidden",
                };
                note(app, Level::Info, &format!("Thoughts are {how}."));
            }
        }
        Local::Themes => effects.push(Effect::ListThemes),
        Local::Names(row) => {
            let display = app.config.display();
            let now = display.iter().find(|(key, _)| *key == row.name).map_or("", |(_, value)| value.as_str());
            open_page(app, row.name, page::names(row, now));
        }
        Local::Save { key, value, now } => {
            if let Some(outcome) = now {
                run(app, *outcome, effects);
            }
            effects.push(Effect::Keep { key, value });
        }
        Local::Settings(word) => {
            let display = app.config.display();
            let of = |list: &[(&'static str, String)], name: &str| {
                list.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
            };
            let now = |row: &Row| {
                let of_session = || of(&app.meters.settings, row.session?.name);
                of(&display, row.name).or_else(of_session)
            };
            let text = page::page(&app.config.settings, word.as_deref(), now);
            open_page(app, "Settings", text);
        }
        Local::Split => {
            if let Err(why) = super::tabs::split(app) {
                note(app, Level::Warn, &why);
            }
        }
        Local::Keys => open_page(app, "Keys", keys_text(app)),
        Local::Help(None) => open_page(app, "Help", help_text(app)),
        Local::Help(Some(word)) => match help::about(&word, &keys_text(app)) {
            Ok((title, text)) => open_page(app, &title, text),
            Err(why) => note(app, Level::Error, &why),
        },
        Local::Quit => quit_or_ask(app, effects),
    }
}

/// The text `/copy` means.
pub(super) fn copy_text(app: &App, what: CopyWhat) -> Result<String, String> {
    let nothing = || "/copy: there is no answer yet".to_string();
    match what {
        CopyWhat::Last => app.last_answer().map(|m| m.text.clone()).ok_or_else(nothing),
        CopyWhat::Message(n) => {
            app.transcript.numbered(n).map(|m| m.text.clone()).ok_or(format!("/copy: there is no message #{n} here"))
        }
        CopyWhat::Block(n) => {
            let selected = app.transcript.selected_message().map(|(_, m)| m);
            let message = selected.or_else(|| app.last_answer()).ok_or_else(nothing)?;
            let colours = Colours::default();
            let style = Style { cells: 80, glyphs: app.config.glyphs, colours: &colours };
            // The blocks as they are numbered on the screen.
            let rendered = match message.role {
                Role::System | Role::User => verbatim::render(&message.text, style),
                Role::Assistant | Role::Document => render(&message.text, style),
            };
            let count = rendered.code().len();
            let block = n.checked_sub(1).and_then(|i| rendered.code().get(i));
            block.map(|b| b.text.clone()).ok_or(format!("/copy: there is no block b{n}; the answer has {count}"))
        }
        CopyWhat::Look(n) => {
            let selected = app.transcript.selected_message().map(|(_, m)| m);
            let message = selected.or_else(|| app.last_answer()).ok_or_else(nothing)?;
            let passages = message.meta.looked.as_ref().map_or(&[][..], |l| &l.passages);
            let passage = n.checked_sub(1).and_then(|i| passages.get(i));
            let passage =
                passage.ok_or(format!("/copy: there is no passage [{n}]; the answer looked at {}", passages.len()))?;
            let holds = app.transcript.numbered(passage.number);
            let holds = holds.ok_or(format!("/copy: message #{} is not here", passage.number))?;
            Ok(passage.lines(&holds.text).map(|(_, line)| line).collect::<Vec<_>>().join("\n"))
        }
        CopyWhat::All => {
            let all: Vec<String> =
                app.transcript.messages().map(|m| format!("{}: {}", m.role.speaker(), m.text)).collect();
            if all.is_empty() { Err(nothing()) } else { Ok(all.join("\n\n")) }
        }
    }
}

/// The page of `/help`.
pub fn help_text(app: &App) -> String {
    help::page(app.is_demo(), &keys_text(app))
}

fn keys_text(app: &App) -> String {
    let mut text = String::from("- **Ctrl-C** stop; clear the input; twice on empty input: quit\n");
    for (action, name, _, help) in ACTIONS {
        let keys = app.config.keys.keys(*action);
        if !keys.is_empty() {
            let keys = in_runs(keys).join(", ");
            text.push_str(&format!("- **{keys}** {help} (`{name}`)\n"));
        }
    }
    text.push_str("\nChange them in the configuration, for example:\n\n```toml\n[keys]\n\"f2\" = \"panel\"\n```\n");
    text
}

/// `Alt-1`, `Alt-2`, `Alt-3` as `Alt-1 to Alt-3`.
fn in_runs(keys: Vec<String>) -> Vec<String> {
    let number = |key: &str| {
        let (before, digit) = key.rsplit_once('-')?;
        Some((before.to_owned(), digit.parse::<u32>().ok()?))
    };
    let mut runs: Vec<(String, String)> = Vec::new();
    for key in keys {
        let follows = |last: &str| match (number(last), number(&key)) {
            (Some((a, m)), Some((b, n))) => a == b && n == m + 1,
            _ => false,
        };
        match runs.last_mut().filter(|(_, last)| follows(last)) {
            Some((_, last)) => *last = key,
            None => runs.push((key.clone(), key)),
        }
    }
    runs.into_iter()
        .map(|(first, last)| match first == last {
            true => first,
            false => format!("{first} to {last}"),
        })
        .collect()
}
