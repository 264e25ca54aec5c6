//! The list of sessions: its order, its filter by folder, and its keys.

use std::cmp::Reverse;

use super::App;
use super::Effect;
use super::acts::send;
use super::cleaned::session_row;
use super::input::{enter_line, write_line};
use super::keys::{Code, Key};
use super::overlay::{Item, Kind, ListView, Order, Overlay, Picked};
use crate::config::commands::escaped;
use crate::runtime::protocol::{Request, SessionRow};

fn view(picked: Picked, sessions: &[SessionRow]) -> ListView {
    let shown = sessions.iter().filter(|row| row.here || !picked.this_folder);
    let mut rows: Vec<SessionRow> = shown.cloned().map(session_row).collect();
    let order = match picked.order {
        Order::Date => "",
        Order::Name => {
            rows.sort_by_cached_key(|row| row.name.to_lowercase());
            " by name"
        }
        Order::Tokens => {
            rows.sort_by_key(|row| Reverse(row.tokens));
            " by tokens"
        }
    };
    let title = format!("{}{order}", if picked.this_folder { "This folder" } else { "Sessions" });
    ListView { picked, ..ListView::new(Kind::Sessions, title, rows.into_iter().map(Item::Session)) }
}

/// Takes a list from the runtime. An open one keeps its order, filters and selected row; otherwise returns a new one.
pub(super) fn arrived(app: &mut App, rows: Vec<SessionRow>) -> Option<ListView> {
    app.sessions = rows;
    match &mut app.overlay {
        Some(Overlay::List(view)) if view.kind == Kind::Sessions => {
            show(view, view.picked, &app.sessions);
            None
        }
        _ => Some(self::view(Picked::default(), &app.sessions)),
    }
}

fn show(view: &mut ListView, picked: Picked, sessions: &[SessionRow]) {
    let (before, query) = (chosen(view).map(|row| row.name.clone()), view.list.query().to_owned());
    *view = self::view(picked, sessions);
    match query.starts_with('/') {
        true => view.list.set_query_text(query),
        false => view.list.set_query(query),
    }
    let at =
        view.list.shown().position(|item| matches!(item, Item::Session(row) if Some(&row.name) == before.as_ref()));
    view.list.select(at.unwrap_or(0));
}

fn chosen(view: &ListView) -> Option<&SessionRow> {
    match view.list.selected() {
        Some(Item::Session(row)) => Some(row),
        _ => None,
    }
}

/// The list's own keys; false for all others.
pub(super) fn key(app: &mut App, key: Key, now: u64, effects: &mut Vec<Effect>) -> bool {
    let Some(Overlay::List(view)) = &mut app.overlay else { return false };
    let picked = view.picked;
    let name = chosen(view).map(|row| row.name.clone());
    match (key.code, name) {
        _ if view.kind != Kind::Sessions || key.alt => return false,
        (Code::Char('s'), _) if key.ctrl => {
            let order = match picked.order {
                Order::Date => Order::Name,
                Order::Name => Order::Tokens,
                Order::Tokens => Order::Date,
            };
            show(view, Picked { order, ..picked }, &app.sessions);
        }
        (Code::Char('f'), _) if key.ctrl => {
            show(view, Picked { this_folder: !picked.this_folder, ..picked }, &app.sessions);
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
