//! Keys: selects the receiver (question, overlay, popup, selected message, input) and handles those of the input.

mod overlay;
mod question;

use super::acts::{hint, offer, refuse, send, stop, why_not_now};
use super::complete::{Popped, complete, popup_key};
use super::help;
use super::keys::{Action, Code, Key, TAKE_UP};
use super::lists::{Item, Kind, ListView};
use super::options::PANEL_FROM;
use super::overlay::open_list;
use super::perform::{copy_text, submit};
use super::quit::{is_unsaved, quit, quit_or_ask};
use super::{App, Armed, Effect, Phase, Queued};
use crate::config::commands::{CopyWhat, WhileBusy};
use crate::core::Exit;
use crate::runtime::protocol::{Activity, Request};

const ESC_MS: u64 = 800;
const QUIT_MS: u64 = 2_000;
const IGNORE_MS: u64 = 500;

pub(super) fn key(app: &mut App, key: Key) {
    if key == Key::ctrl('c') {
        return ctrl_c(app);
    }
    if app.phase != Phase::Running {
        return;
    }
    if !question::key(app, key) {
        place_key(app, key);
    }
}

fn place_key(app: &mut App, key: Key) {
    if app.overlay.is_some() {
        return overlay::key(app, key);
    }
    if app.open.find.is_some() && super::find::key(app, key) {
        return;
    }
    match popup_key(app, key) {
        Popped::Nothing => {}
        Popped::Changed => return,
        Popped::Submits => return submit(app),
    }
    if key == TAKE_UP && super::overlay::take_up(app) {
        return;
    }
    let action = app.config.keys.action(key);
    if app.activity.is_loading() && action.is_some_and(is_about_the_transcript) {
        return;
    }
    if app.open.transcript.selected().is_some() && app.open.composer.is_empty() && selected_key(app, key) {
        return;
    }
    match action {
        Some(Action::Session) => {
            let number = match key.code {
                Code::Char(c) => c.to_digit(10),
                _ => None,
            };
            super::open::go(app, number);
        }
        Some(action) => perform(app, action),
        None => {
            if let Code::Char(c) = key.code
                && !key.ctrl
                && !key.alt
            {
                typed(app, c);
            }
        }
    }
}

fn typed(app: &mut App, c: char) {
    if c == '?' && app.open.composer.is_empty() {
        return open_list(app, help::all);
    }
    // A command typed after `/undo` must not extend the question that `/undo` recalled.
    let at_end = app.open.composer.cursor() == app.open.composer.text().len();
    if c == '/' && at_end && app.open.editing.is_none() && app.open.composer.is_recalled() {
        app.open.composer.clear_to_cut();
        offer(app, "The question is set aside", Action::Yank, "brings it back", QUIT_MS);
    }
    write(app, c);
}

fn write(app: &mut App, c: char) {
    edit(app, |composer| composer.insert(c.encode_utf8(&mut [0; 4])));
    super::complete::mention(app);
}

pub(super) fn insert_pasted(app: &mut App, text: &str) {
    app.popup = None;
    app.wrote = true;
    app.open.transcript.deselect();
    app.history.rest();
    let (chars, lines) = (app.config.ui.paste_fold_chars, app.config.ui.paste_fold_lines);
    app.open.composer.paste(text, chars, lines);
}

fn edit(app: &mut App, change: impl FnOnce(&mut super::composer::Composer)) {
    change(&mut app.open.composer);
    app.wrote = true;
    app.history.rest();
    app.open.transcript.deselect();
    app.armed.take_if(|(armed, _)| matches!(armed, Armed::Escape | Armed::Quit));
    // Command names pop up while they are typed; arguments only on Tab.
    let before = app.open.composer.text()[..app.open.composer.cursor()].to_string();
    let naming = before.starts_with('/')
        && !before.contains(char::is_whitespace)
        && before.len() == app.open.composer.text().len();
    app.popup = if naming { super::complete::popup(app, &before) } else { None };
}

fn perform(app: &mut App, action: Action) {
    let cells = usize::from(app.size.0).saturating_sub(2);
    match action {
        Action::Send => {
            let line = app.open.composer.text();
            if line.ends_with('\\') && app.open.composer.cursor() == line.len() {
                edit(app, |c| {
                    c.perform(Action::Backspace);
                    c.insert("\n");
                });
            } else {
                submit(app);
            }
        }
        Action::Newline => edit(app, |c| c.insert("\n")),
        Action::Escape => escape(app),
        Action::Eof if !app.open.composer.is_empty() => edit(app, |c| c.perform(Action::Delete)),
        Action::Eof => quit_or_ask(app),
        Action::Up | Action::Down => {
            let (up, composer) = (action == Action::Up, &mut app.open.composer);
            if !composer.vertical(cells, if up { -1 } else { 1 }) {
                let prompt = if up { app.history.up(composer.text()) } else { app.history.down() };
                prompt.into_iter().for_each(|prompt| composer.set(prompt));
            }
        }
        Action::LineEnd if app.open.composer.at_line_end() => app.open.transcript.follow(),
        Action::Left | Action::Right | Action::LineStart | Action::LineEnd | Action::WordLeft | Action::WordRight => {
            app.open.composer.perform(action);
        }
        Action::Backspace => {
            edit(app, |c| c.perform(action));
            super::complete::mention(app);
        }
        Action::Delete
        | Action::KillWord
        | Action::KillToEnd
        | Action::KillToStart
        | Action::Yank
        | Action::UndoEdit => edit(app, |c| c.perform(action)),
        Action::HistorySearch => {
            let prompts: Vec<Item> = app.history.prompts().iter().rev().cloned().map(Item::Prompt).collect();
            open_list(app, |_| ListView::new(Kind::Prompts, "Earlier prompts", prompts));
        }
        Action::Complete => match super::greeting::next(app) {
            Some(question) => app.open.composer.set(question),
            None => complete(app),
        },
        Action::PageUp => app.open.transcript.scroll_pages(-1),
        Action::PageDown => app.open.transcript.scroll_pages(1),
        Action::Top => app.open.transcript.scroll_top(),
        Action::Follow => app.open.transcript.follow(),
        Action::PrevMessage => app.open.transcript.select(-1),
        Action::NextMessage => app.open.transcript.select(1),
        Action::Palette => open_list(app, |_| help::commands()),
        Action::Find => super::find::open(app),
        Action::Thinking => app.open.transcript.toggle_thoughts(),
        Action::Panel if app.size.0 < PANEL_FROM => {
            app.panel = None;
            hint(app, format!("The panel needs {PANEL_FROM} columns; /stats and /ctx show the same"), QUIT_MS);
        }
        Action::Panel => app.panel = Some(!super::layout::panel_shown(app)),
        Action::Split => {
            if let Err(why) = super::open::split(app) {
                hint(app, why, QUIT_MS);
            }
        }
        Action::OtherSide => super::open::switch_side(app),
        Action::Editor => app.effects.push(Effect::Editor(app.open.composer.expanded())),
        Action::Unqueue => match app.open.queue.lines.pop_front() {
            Some(next) => {
                // The text in the input takes this place in the queue.
                let draft = Queued { line: app.open.composer.take(), edits: app.open.editing.take() };
                if !draft.line.trim().is_empty() {
                    app.open.queue.lines.push_front(draft);
                }
                app.open.composer.set(&next.line);
                app.open.editing = next.edits;
                app.took_out = true;
            }
            None => hint(app, "Nothing is queued", QUIT_MS),
        },
        Action::Redraw => app.effects.push(Effect::Repaint),
        Action::Suspend => app.effects.push(Effect::Suspend),
        Action::Help => open_list(app, help::all),
        Action::Session | Action::None => {}
    }
}

fn escape(app: &mut App) {
    if app.open.transcript.selected().is_some() {
        return app.open.transcript.deselect();
    }
    if !app.busy() && super::tour::leave(app) {
        return;
    }
    if app.open.editing.take().is_some() {
        app.open.composer.clear_to_cut();
        return offer(app, "Edit left", Action::Yank, "brings the text back", QUIT_MS);
    }
    if app.busy() {
        if app.can_be_stopped() {
            stop(app);
            app.arm(Armed::Swallow, ESC_MS);
        }
        return;
    }
    if app.is_armed(Armed::Escape) {
        app.armed = None;
        if app.open.composer.is_empty() { send(app, Request::Timeline) } else { app.open.composer.clear_to_cut() }
    } else if !app.is_armed(Armed::Swallow) {
        app.arm(Armed::Escape, ESC_MS);
        let text =
            if app.open.composer.is_empty() { "Esc again opens the timeline" } else { "Esc again clears the input" };
        hint(app, text, ESC_MS);
    }
}

fn ctrl_c(app: &mut App) {
    if app.phase != Phase::Running {
        return app.effects.push(Effect::Exit { exit: Exit::Stopped, farewell: None });
    }
    if question::ctrl_c(app) {
        return;
    }
    placed_ctrl_c(app);
    super::question::passed_by(app);
}

fn placed_ctrl_c(app: &mut App) {
    if app.overlay.is_some() {
        return overlay::close(app);
    }
    if app.popup.take().is_some() || app.open.find.take().is_some() {
        return;
    }
    if app.is_armed(Armed::Ignore) {
        return;
    }
    if app.can_be_stopped() || app.activity == Activity::Stopping {
        if app.can_be_stopped() {
            stop(app);
        }
        app.arm(Armed::Ignore, IGNORE_MS);
    } else if !app.open.composer.is_empty() {
        app.open.composer.clear_to_cut();
        app.open.editing = None;
        offer(app, "Cleared", Action::Yank, "brings it back", QUIT_MS);
    } else if app.is_armed(Armed::Quit) {
        quit(app);
    } else {
        app.arm(Armed::Quit, QUIT_MS);
        let warning = match is_unsaved(app) {
            true => "Not all is saved: Ctrl-C again quits and loses it",
            false => "Press Ctrl-C again to quit",
        };
        hint(app, warning, QUIT_MS);
    }
}

/// Actions on the transcript; ignored while it is hidden.
fn is_about_the_transcript(action: Action) -> bool {
    matches!(
        action,
        Action::PageUp
            | Action::PageDown
            | Action::Top
            | Action::Follow
            | Action::PrevMessage
            | Action::NextMessage
            | Action::Find
            | Action::Thinking
    )
}

fn selected_key(app: &mut App, key: Key) -> bool {
    let Some((number, message)) = app.open.transcript.selected_message() else { return false };
    let is_document = message.meta.document.is_some();
    if key.ctrl || key.alt {
        return false;
    }
    let key = if app.config.ui.vim_keys { key.as_arrow() } else { key };
    let pages = matches!(key.code, Code::PageUp | Code::PageDown);
    let ends = matches!(key.code, Code::Home | Code::End) && !app.config.ui.vim_keys;
    if let Some(by) = key.steps(1).filter(|_| !pages && !ends) {
        app.open.transcript.select(by);
        return true;
    }
    let request = match key.code {
        Code::Char('y') => {
            match copy_text(app, CopyWhat::Message(number)) {
                Ok(text) => app.effects.push(Effect::Copy(text)),
                Err(why) => refuse(app, why),
            }
            return true;
        }
        Code::Char(c @ ('i' | '1'..='9')) => {
            let passage = c.to_digit(10).map(u64::from);
            send(app, Request::Look { at: Some(number), passage });
            return true;
        }
        Code::Char('e') => Request::EditOpen(Some(number)),
        Code::Char('r') => Request::Regen { at: Some(number), count: 1, temperature: None, seed: None },
        Code::Char('f') => Request::Fork { at: Some(number), name: None },
        Code::Enter if is_document => Request::Open(format!("#{number}")),
        Code::Enter => {
            app.open.transcript.open_selected();
            return true;
        }
        _ => return false,
    };
    if request.while_busy() == WhileBusy::Waits
        && let Some(why) = why_not_now(app)
    {
        refuse(app, why);
        return true;
    }
    app.open.transcript.deselect();
    send(app, request);
    true
}
