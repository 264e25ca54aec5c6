//! The list of sessions: its order, its filter by folder, and its keys.

use std::cmp::Reverse;

use super::App;
use super::cleaned::session_row;
use super::overlay::{Item, Kind, ListView, Order, Overlay, Picked};
use crate::runtime::protocol::SessionRow;

fn view(picked: Picked, sessions: &[SessionRow]) -> ListView {
    let shown = sessions.iter().filter(|row| row.here || !picked.this_folder);
    let mut rows: Vec<SessionRow> = shown.cloned().map(session_row).collect();
    let order = match picked.order {
        Order::Date => " by date",
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

pub(super) fn show(view: &mut ListView, picked: Picked, sessions: &[SessionRow]) {
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

pub(super) fn chosen(view: &ListView) -> Option<&SessionRow> {
    match view.list.selected() {
        Some(Item::Session(row)) => Some(row),
        _ => None,
    }
}
