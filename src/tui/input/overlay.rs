//! Keys of pages and lists.

use super::super::acts::{may_lead, send, stop};
use super::super::keys::{Code, Key};
use super::super::lists::{HelpRow, Item, Kind, sessions};
use super::super::overlay::{Overlay, give_way};
use super::super::{App, perform};
use super::write;
use crate::config::commands::Outcome;
use crate::runtime::protocol::{GotoTarget, Request};

pub(super) fn close(app: &mut App) {
    match app.overlay.take() {
        Some(Overlay::Page(page)) if page.is_written() => {
            app.aside_dismissed = true;
            match std::mem::take(&mut app.aside_apart) {
                true => send(app, Request::StopAside),
                false => stop(app),
            }
        }
        Some(Overlay::List(view)) if view.open => {
            app.overlay = Some(Overlay::List(view));
            stop(app);
        }
        _ => {}
    }
}

pub(super) fn key(app: &mut App, key: Key) {
    if sessions::key(app, key) {
        return;
    }
    let (page, vim) = (app.open.transcript.page(), app.config.ui.vim_keys);
    let Some(overlay) = &mut app.overlay else { return };
    let plain = !key.ctrl && !key.alt;
    let code = if plain { overlay.shortcut(key, vim) } else { key.code };
    if let Some(by) = (Key { code, ..key }).steps(page) {
        return overlay.step(by);
    }
    match (code, overlay) {
        (Code::Esc, _) => close(app),
        (Code::Left | Code::Right, Overlay::Page(page)) => {
            if let Some(request) = page.other_sentence(code == Code::Right) {
                send(app, request);
            }
        }
        (Code::Char('p'), overlay) if key.ctrl => overlay.step(-1),
        (Code::Char('n' | 'r'), overlay) if key.ctrl => overlay.step(1),
        // During the tour, Enter closes a page.
        (Code::Enter, Overlay::Page(_)) if app.tour.is_some() => close(app),
        (Code::Enter, Overlay::List(view)) if app.tour.is_some() && view.kind == Kind::Help && view.is_unfiltered() => {
            close(app);
        }
        (Code::Enter | Code::Tab, _) => enter(app),
        (Code::Backspace, overlay) => overlay.edit_query(|query| _ = key.edit(query)),
        (Code::Char('u'), overlay) if key.ctrl => overlay.edit_query(|query| _ = key.edit(query)),
        (Code::Char(c), Overlay::List(view)) if plain => match (c, view.selected()) {
            _ if view.query().is_some() => view.edit_query(|query| query.push(c)),
            ('f', Some(Item::Turn(row))) => {
                let fork = Request::ForkFrom(row.message);
                if may_lead(app) {
                    app.overlay = None;
                    send(app, fork);
                }
            }
            _ => write_below(app, c),
        },
        (Code::Char(c), Overlay::Page(page)) if plain => match page.passage(c) {
            Some(request) => send(app, request),
            None => write_below(app, c),
        },
        _ => {}
    }
}

fn write_below(app: &mut App, c: char) {
    if give_way(app) {
        write(app, c);
    }
}

fn write_line(app: &mut App, line: &str) {
    app.overlay = None;
    app.open.composer.clear_to_cut();
    app.open.composer.set(line);
}

/// Does with the selected row what the list is for.
fn enter(app: &mut App) {
    app.wrote = false;
    let mut found = None;
    let request = match &app.overlay {
        Some(Overlay::List(view)) => match (view.searched(), view.selected().cloned()) {
            (Some(""), _) | (None, None | Some(Item::Heading(_))) => return,
            (Some(words), _) => {
                let words = words.to_owned();
                app.overlay = None;
                return perform::search(app, words);
            }
            (_, Some(Item::Session(row))) => Some(Request::Resume(row.name)),
            (_, Some(Item::Hit(row))) => {
                let here = row.session == app.open.view.name;
                match here && app.open.transcript.show(row.message) {
                    true => None,
                    // The hit is on another branch of this session.
                    false if here => Some(Request::Goto(GotoTarget::Message(row.message))),
                    false => {
                        found = Some((row.session.clone(), row.message));
                        Some(Request::Resume(row.session))
                    }
                }
            }
            (_, Some(Item::Turn(row))) => Some(Request::Goto(GotoTarget::Message(row.message))),
            (_, Some(Item::Document(row))) => Some(Request::Open(row.place())),
            (_, Some(Item::Place(row))) => {
                let message = app.open.transcript.numbered(row.number).map(|m| m.id);
                if let Some(id) = message.filter(|_| row.opens.is_none()) {
                    app.open.transcript.show(id);
                }
                row.opens
            }
            (_, Some(Item::Answer(at, row))) if !view.open && row.finish.is_some() => Some(Request::OpenAnswer(at)),
            (_, Some(Item::Answer(..))) => return,
            (_, Some(Item::Setting(row))) => return write_line(app, &row.line),
            (_, Some(Item::Help(HelpRow { line: Some(line), .. }))) => return write_line(app, &line),
            (_, Some(Item::Help(_))) => None,
            (_, Some(Item::Prompt(prompt))) => {
                app.open.composer.set(&prompt);
                None
            }
        },
        Some(Overlay::Page(_)) | None => return,
    };
    if matches!(request, Some(Request::Goto(_))) && !may_lead(app) {
        return;
    }
    app.overlay = None;
    if let Some(request) = request {
        perform::run(app, Outcome::Runtime(request));
        app.show_after_open = found;
    }
}
