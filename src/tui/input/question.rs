//! Keys while a question is open.

use super::super::acts::{hold, send, stop};
use super::super::keys::{Action, Code, Key, TAKE_UP};
use super::super::question::{self, Asker, Standing};
use super::super::quit::{quit, quit_or_ask};
use super::super::{App, Armed, mention, pick};
use super::{insert_pasted, place_key, write};
use crate::runtime::protocol::Request;

/// Gives a key to the question; false if there is none.
pub(super) fn key(app: &mut App, key: Key) -> bool {
    let Some(question) = app.questions.front_mut() else { return false };
    match question.standing {
        Standing::Asks => asking_key(app, key),
        Standing::Waits if key == TAKE_UP => question.standing = Standing::Asks,
        Standing::Unseen if key == Key::plain(Code::Esc) => {}
        Standing::Unseen | Standing::Waits => {
            place_key(app, key);
            question::passed_by(app);
        }
    }
    true
}

/// False if the user is typing; Ctrl-C then clears the input.
pub(super) fn ctrl_c(app: &mut App) -> bool {
    match app.questions.front().map(|q| q.standing) {
        Some(Standing::Waits) | None => return false,
        Some(Standing::Unseen) => {}
        Some(Standing::Asks) if app.is_armed(Armed::Ignore) => {}
        Some(Standing::Asks) => asking_key(app, Key::plain(Code::Esc)),
    }
    true
}

fn begin_to_write(app: &mut App, key: Key) {
    let Code::Char(c) = key.code else { return };
    if !question::give_way(app) {
        return;
    }
    let searches = app.overlay.is_some() || app.searches();
    match app.open.composer.is_empty() && !searches {
        true => {
            app.open.find = None;
            write(app, c);
        }
        false => place_key(app, key),
    }
    question::passed_by(app);
}

fn asking_key(app: &mut App, key: Key) {
    // The second of two presses; the first one stopped the work.
    if key == Key::plain(Code::Esc) && app.is_armed(Armed::Swallow) {
        return;
    }
    let Some(question) = app.questions.front_mut() else { return };
    match &mut question.pick {
        Some(pick) if pick.open => return pick::key(app, key),
        Some(pick) if key == Key::plain(Code::Char('e')) => {
            pick.open = true;
            return;
        }
        Some(_) | None => {}
    }
    if app.overlay.is_none() && app.config.keys.action(key) == Some(Action::Unqueue) {
        place_key(app, key);
        if !app.open.composer.is_empty() {
            question::give_way(app);
        }
        return;
    }
    let leaves = matches!(question.asker, Asker::Runtime(_)) && app.config.keys.action(key) == Some(Action::Session);
    if app.overlay.is_none() && leaves {
        return place_key(app, key);
    }
    let pressed = match key.code {
        Code::Char(c) if !key.ctrl && !key.alt => c,
        Code::Enter => '\n',
        Code::Esc => '\x1b',
        _ if app.overlay.is_none() => {
            match app.config.keys.action(key) {
                Some(Action::Eof) if app.open.composer.is_empty() && question.asker != Asker::Quit => quit_or_ask(app),
                // Scrolls the text that the question refers to.
                Some(Action::PageUp | Action::PageDown | Action::Top | Action::Follow) => place_key(app, key),
                _ => {}
            }
            return;
        }
        _ => return,
    };
    let same = |k: char| k == pressed || k.to_lowercase().eq(pressed.to_lowercase());
    let last = question.choices.last().filter(|_| pressed == '\x1b');
    let chosen = question.choices.iter().find(|c| same(c.key)).or(last);
    let Some(choice) = chosen.map(|c| c.key) else { return begin_to_write(app, key) };
    let (asker, declined) = (question.asker, question.choices.last().is_some_and(|c| c.key == choice));
    app.questions.pop_front();
    match asker {
        Asker::Runtime(question) => {
            // Queued lines may depend on the declined step.
            if declined {
                hold(app);
            }
            send(app, Request::Choose { question, key: choice });
        }
        Asker::Quit if choice == 'y' => {
            stop(app);
            quit(app);
        }
        Asker::Quit => {}
        Asker::Pasted => pasted(app, choice),
    }
    if choice == '\x1b' {
        mention::not_read(app);
    }
}

/// The answer to the question whether pasted paths are loaded.
fn pasted(app: &mut App, key: char) {
    let Some(mention::Lookup::Pasted(text, paths)) = app.lookup.take() else { return };
    match key {
        '\n' => {
            app.open.transcript.follow();
            mention::load(app, paths, Vec::new());
        }
        't' => insert_pasted(app, &text),
        _ => {}
    }
}
