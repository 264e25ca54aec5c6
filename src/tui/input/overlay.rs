//! Keys while a page or a list lies over the transcript.

use super::super::acts::{hint, send, stop, why_not_now};
use super::super::keys::{Code, Key};
use super::super::overlay::Overlay;
use super::super::{App, Effect, late, perform};
use super::write;
use crate::config::commands::Outcome;
use crate::runtime::protocol::{GotoTarget, Request};

/// How long it is said why a key does nothing now, in milliseconds.
const HINT_MS: u64 = 4_000;

pub(super) fn close_overlay(app: &mut App, effects: &mut Vec<Effect>) {
    match app.overlay.take() {
        Some(Overlay::Aside { done: None, .. }) => {
            app.aside_dismissed = true;
            match std::mem::take(&mut app.aside_apart) {
                true => send(app, Request::StopAside, effects),
                false => stop(app, effects),
            }
        }
        Some(Overlay::FanOut(shelf)) if !shelf.over => {
            app.overlay = Some(Overlay::FanOut(shelf));
            stop(app, effects);
        }
        _ => {}
    }
}

/// Whether the conversation can be led elsewhere now; if not, that is said below the list, which stays.
fn may_lead(app: &mut App, now: u64) -> bool {
    let why = why_not_now(app);
    if let Some(why) = why {
        hint(app, why, now + HINT_MS);
    }
    why.is_none()
}

pub(super) fn overlay_key(app: &mut App, key: Key, now: u64, effects: &mut Vec<Effect>) {
    let page = app.transcript.page();
    let vim = app.config.vim_keys;
    let Some(overlay) = &mut app.overlay else {
        return;
    };
    // Where letters search, they move as long as nothing is looked for. The timeline has a `g` of its own.
    let own = matches!(overlay, Overlay::Timeline(_)) && key.code == Code::Char('g');
    let free = overlay.query().is_none_or(str::is_empty) && !own;
    let key = if vim && free && !key.ctrl && !key.alt { key.as_arrow() } else { key };
    match key.code {
        Code::Esc => close_overlay(app, effects),
        Code::Left if matches!(overlay, Overlay::Map(_)) => move_in_map(overlay, -1),
        Code::Right if matches!(overlay, Overlay::Map(_)) => move_in_map(overlay, 1),
        Code::Left | Code::Right => {
            if let Some(request) = overlay.other_sentence(key.code == Code::Right) {
                send(app, request, effects);
            }
        }
        Code::Up => overlay.step(-1),
        Code::Down => overlay.step(1),
        Code::PageUp => overlay.step(-page),
        Code::PageDown => overlay.step(page),
        Code::Home => overlay.step(isize::MIN / 2),
        Code::End => overlay.step(isize::MAX / 2),
        Code::Char('p') if key.ctrl => overlay.step(-1),
        Code::Char('n' | 'r') if key.ctrl => overlay.step(1),
        // Enter goes on, says the tour: a page does not hold whoever presses it.
        Code::Enter if app.tour.is_some() && matches!(overlay, Overlay::Page(_)) => close_overlay(app, effects),
        Code::Enter | Code::Tab => take_from_overlay(app, now, effects),
        Code::Backspace => {
            if let Some(query) = overlay.query() {
                let mut query = query.to_string();
                query.pop();
                overlay.set_query(query);
            }
        }
        Code::Char(c @ '1'..='9') if !key.ctrl && !key.alt && overlay.looked().is_some() => {
            let request = Request::Look { at: overlay.looked(), passage: c.to_digit(10).map(u64::from) };
            send(app, request, effects);
        }
        Code::Char(c) if !key.ctrl && !key.alt => match overlay {
            Overlay::Page(_) | Overlay::Aside { .. } => match c {
                'q' => close_overlay(app, effects),
                ' ' => overlay.step(page),
                'j' => overlay.step(1),
                'k' => overlay.step(-1),
                c => write_beside(app, c, effects),
            },
            Overlay::Timeline(list) => match (c, list.selected().cloned()) {
                ('g', Some(_)) => take_from_overlay(app, now, effects),
                ('f', Some(row)) => {
                    if may_lead(app, now) {
                        app.overlay = None;
                        send(app, Request::ForkFrom(row.message), effects);
                    }
                }
                ('k', _) => list.step(-1),
                ('j', _) => list.step(1),
                (c, _) => write_beside(app, c, effects),
            },
            Overlay::Map(_) => match c {
                'q' => close_overlay(app, effects),
                'h' => move_in_map(overlay, -1),
                'l' => move_in_map(overlay, 1),
                'k' => overlay.step(-1),
                'j' => overlay.step(1),
                c => write_beside(app, c, effects),
            },
            Overlay::Found { list, .. } => match c {
                'k' => list.step(-1),
                'j' => list.step(1),
                c => write_beside(app, c, effects),
            },
            Overlay::Sessions(_)
            | Overlay::Documents { .. }
            | Overlay::Prompts(_)
            | Overlay::Themes(_)
            | Overlay::FanOut(_) => {
                let query = format!("{}{c}", overlay.query().unwrap_or(""));
                overlay.set_query(query);
            }
        },
        _ => {}
    }
}

/// A letter that means nothing here begins to write.
fn write_beside(app: &mut App, c: char, effects: &mut Vec<Effect>) {
    if late::give_way(app) {
        write(app, c, effects);
    }
}

fn move_in_map(overlay: &mut Overlay, by: isize) {
    if let Overlay::Map(view) = overlay {
        view.step(by);
    }
}

fn take_from_overlay(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    app.wrote = false;
    let Some(overlay) = &app.overlay else { return };
    let mut found = None;
    let request = match overlay {
        Overlay::Page(_) | Overlay::Aside { .. } => return,
        Overlay::Map(view) => match (view.opens(), view.stretch().map(|s| s.number)) {
            (Some(request), _) => Some(request),
            (None, number) => {
                let id = number.and_then(|n| app.transcript.numbered(n)).map(|m| m.id);
                if let Some(id) = id {
                    app.transcript.show(id);
                }
                None
            }
        },
        Overlay::Sessions(list) => match list.query().strip_prefix('/') {
            Some(words) if words.trim().is_empty() => return,
            Some(words) => Some(Request::Search(words.trim().to_string())),
            None => list.selected().map(|r| Request::Resume(r.name.clone())),
        },
        Overlay::Found { list, .. } => {
            let Some(row) = list.selected().cloned() else { return };
            let here = row.session == app.session.name;
            match here && app.transcript.show(row.message) {
                true => None,
                // On another branch of this session.
                false if here => Some(Request::Goto(GotoTarget::Message(row.message))),
                false => {
                    found = Some((row.session.clone(), row.message));
                    Some(Request::Resume(row.session))
                }
            }
        }
        Overlay::Timeline(list) => list.selected().map(|r| Request::Goto(GotoTarget::Message(r.message))),
        Overlay::Documents { list, .. } => list.selected().map(|r| Request::Open(r.name.clone())),
        Overlay::Themes(list) => {
            let row = list.selected().cloned();
            return super::super::themes::take(app, row);
        }
        // Before all have answered the runtime has nothing to open.
        Overlay::FanOut(shelf) => match shelf.list.selected().filter(|(_, r)| shelf.over && r.finish.is_some()) {
            Some((at, _)) => Some(Request::OpenAsked(*at)),
            None => return,
        },
        Overlay::Prompts(list) => {
            if let Some(prompt) = list.selected().cloned() {
                app.composer.set(&prompt);
            }
            None
        }
    };
    if matches!(request, Some(Request::Goto(_))) && !may_lead(app, now) {
        return;
    }
    app.overlay = None;
    if let Some(request) = request {
        // As if it had been typed: what leads to another session leaves this one's queue here.
        perform::run(app, Outcome::Runtime(request), effects);
        app.show_after_open = found;
    }
}
