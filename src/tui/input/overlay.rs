//! Keys of pages and lists.

use super::super::acts::{HINT_MS, hint, send, stop, why_not_now};
use super::super::keys::{Code, Key};
use super::super::overlay::{HelpRow, Item, Kind, Order, Overlay, Picked};
use super::super::{App, Effect, files, late, perform, sessions};
use super::write;
use crate::config::commands::{Outcome, escaped};
use crate::runtime::protocol::{GotoTarget, Request};

pub(super) fn close_overlay(app: &mut App, effects: &mut Vec<Effect>) {
    match app.overlay.take() {
        Some(Overlay::Aside { done: None, .. }) => {
            app.aside_dismissed = true;
            match std::mem::take(&mut app.aside_apart) {
                true => send(app, Request::StopAside, effects),
                false => stop(app, effects),
            }
        }
        Some(Overlay::List(view)) if view.open => {
            app.overlay = Some(Overlay::List(view));
            stop(app, effects);
        }
        _ => {}
    }
}

fn may_lead(app: &mut App, now: u64) -> bool {
    let why = why_not_now(app);
    if let Some(why) = why {
        hint(app, why, now + HINT_MS);
    }
    why.is_none()
}

pub(super) fn overlay_key(app: &mut App, key: Key, now: u64, effects: &mut Vec<Effect>) {
    let page = app.open.transcript.page();
    let vim = app.config.ui.vim_keys;
    if session_key(app, key, now, effects) {
        return;
    }
    let Some(overlay) = &mut app.overlay else { return };
    // In lists with a filter, letters move only while the filter is empty. The timeline has its own `g`.
    let own = kind(overlay) == Some(Kind::Timeline) && key.code == Code::Char('g');
    let free = overlay.query().is_none_or(str::is_empty) && !own;
    let plain = !key.ctrl && !key.alt;
    let key = if vim && free && plain { key.as_arrow() } else { key };
    let code = match (&*overlay, key.code) {
        (Overlay::Page(_) | Overlay::Aside { .. } | Overlay::Map(_), Code::Char('q')) if plain => Code::Esc,
        (Overlay::Page(_) | Overlay::Aside { .. }, Code::Char(' ')) if plain => Code::PageDown,
        (Overlay::Map(_), Code::Char('h')) if plain => Code::Left,
        (Overlay::Map(_), Code::Char('l')) if plain => Code::Right,
        (open, Code::Char('k')) if plain && open.query().is_none() => Code::Up,
        (open, Code::Char('j')) if plain && open.query().is_none() => Code::Down,
        (_, code) => code,
    };
    match code {
        Code::Esc => close_overlay(app, effects),
        Code::Left | Code::Right => match overlay {
            Overlay::Map(view) => view.step(if code == Code::Right { 1 } else { -1 }),
            Overlay::List(view) if view.kind == Kind::Files && code == Code::Left => {
                files::open(&files::parent(&view.folder), effects);
            }
            _ => {
                if let Some(request) = overlay.other_sentence(code == Code::Right) {
                    send(app, request, effects);
                }
            }
        },
        Code::Up => overlay.step(-1),
        Code::Down => overlay.step(1),
        Code::PageUp => overlay.step(-page),
        Code::PageDown => overlay.step(page),
        Code::Home => overlay.step(isize::MIN / 2),
        Code::End => overlay.step(isize::MAX / 2),
        Code::Char('p') if key.ctrl => overlay.step(-1),
        Code::Char('n' | 'r') if key.ctrl => overlay.step(1),
        // During the tour, Enter closes a page.
        Code::Enter
            if app.tour.is_some()
                && (matches!(overlay, Overlay::Page(_)) || kind(overlay) == Some(Kind::Help) && free) =>
        {
            close_overlay(app, effects);
        }
        Code::Enter | Code::Tab => take_from_overlay(app, now, effects),
        Code::Backspace => {
            if let Some(query) = overlay.query() {
                let mut query = query.to_string();
                query.pop();
                overlay.set_query(query);
            }
        }
        Code::Char('u') if key.ctrl => overlay.set_query(String::new()),
        Code::Char(c @ '1'..='9') if plain && overlay.looked().is_some() => {
            let request = Request::Look { at: overlay.looked(), passage: c.to_digit(10).map(u64::from) };
            send(app, request, effects);
        }
        Code::Char(c) if plain => match overlay {
            // The first one opened the help; more of them are a message.
            Overlay::List(view)
                if c == '?'
                    && view.kind == Kind::Help
                    && view.list.query().is_empty()
                    && app.open.composer.is_empty() =>
            {
                app.overlay = None;
                "??".chars().for_each(|c| write(app, c, effects));
            }
            Overlay::List(view) if view.kind.has_filter() => {
                let query = format!("{}{c}", view.list.query());
                overlay.set_query(query);
            }
            Overlay::List(view) => match (c, view.list.selected().cloned()) {
                ('g', Some(Item::Turn(_))) => take_from_overlay(app, now, effects),
                ('f', Some(Item::Turn(row))) => {
                    if may_lead(app, now) {
                        app.overlay = None;
                        send(app, Request::ForkFrom(row.message), effects);
                    }
                }
                (c, _) => write_below(app, c, now, effects),
            },
            _ => write_below(app, c, now, effects),
        },
        _ => {}
    }
}

fn write_line(app: &mut App, line: &str) {
    app.overlay = None;
    app.open.composer.clear_to_cut();
    app.open.composer.set(line);
}

fn enter_line(app: &mut App, line: &str, now: u64, effects: &mut Vec<Effect>) {
    write_line(app, line);
    perform::submit(app, now, effects);
}

fn write_below(app: &mut App, c: char, now: u64, effects: &mut Vec<Effect>) {
    if late::give_way(app, now) {
        write(app, c, effects);
    }
}

fn take_from_overlay(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    app.wrote = false;
    let Some(overlay) = &app.overlay else { return };
    let mut found = None;
    let request = match overlay {
        Overlay::Page(_) | Overlay::Aside { .. } => return,
        Overlay::Map(view) => {
            let request = view.opens();
            let number = view.stretch().map(|s| s.number).filter(|_| request.is_none());
            if let Some(id) = number.and_then(|n| app.open.transcript.numbered(n)).map(|m| m.id) {
                app.open.transcript.show(id);
            }
            request
        }
        Overlay::List(view) => match (view.list.query().strip_prefix('/'), view.list.selected().cloned()) {
            (Some(words), _) if view.kind == Kind::Sessions && words.trim().is_empty() => return,
            (Some(words), _) if view.kind == Kind::Sessions => Some(Request::Search(words.trim().to_owned())),
            (_, None) => return,
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
            (_, Some(Item::Document(row))) => Some(Request::Open(row.name)),
            (_, Some(Item::Theme(row))) => return super::super::themes::take(app, row),
            (_, Some(Item::Answer(at, row))) if !view.open && row.finish.is_some() => Some(Request::OpenAnswer(at)),
            (_, Some(Item::Answer(..))) => return,
            (_, Some(Item::Setting(row))) => return write_line(app, &row.line),
            (_, Some(Item::Help(HelpRow { line: Some(line), .. }))) => return write_line(app, &line),
            (_, Some(Item::Help(_))) => None,
            (_, Some(Item::Heading(_))) => return,
            (_, Some(Item::File(row))) => {
                let folder = view.folder.clone();
                if let Some(line) = files::take(&folder, &row, effects) {
                    enter_line(app, &line, now, effects);
                }
                return;
            }
            (_, Some(Item::Prompt(prompt))) => {
                app.open.composer.set(&prompt);
                None
            }
        },
    };
    if matches!(request, Some(Request::Goto(_))) && !may_lead(app, now) {
        return;
    }
    app.overlay = None;
    if let Some(request) = request {
        perform::run(app, Outcome::Runtime(request), effects);
        app.show_after_open = found;
    }
}

fn kind(overlay: &Overlay) -> Option<Kind> {
    if let Overlay::List(view) = overlay { Some(view.kind) } else { None }
}

/// Keys of the list of sessions; false for all others.
fn session_key(app: &mut App, key: Key, now: u64, effects: &mut Vec<Effect>) -> bool {
    let Some(Overlay::List(view)) = &mut app.overlay else { return false };
    let picked = view.picked;
    let name = sessions::chosen(view).map(|row| row.name.clone());
    match (key.code, name) {
        _ if view.kind != Kind::Sessions || key.alt => return false,
        (Code::Char('s'), _) if key.ctrl => {
            let order = match picked.order {
                Order::Date => Order::Name,
                Order::Name => Order::Tokens,
                Order::Tokens => Order::Date,
            };
            sessions::show(view, Picked { order, ..picked }, &app.sessions);
        }
        (Code::Char('f'), _) if key.ctrl => {
            sessions::show(view, Picked { this_folder: !picked.this_folder, ..picked }, &app.sessions);
        }
        (Code::F(2), Some(name)) => write_line(app, &format!("/rename {} ", escaped(&name))),
        (Code::Delete, Some(name)) => enter_line(app, &format!("/delete {}", escaped(&name)), now, effects),
        (Code::F(3), Some(name)) => {
            send(app, Request::Pin(Some(name)), effects);
            send(app, Request::Sessions, effects);
        }
        _ => return false,
    }
    true
}
