//! The list of sessions: its order, its filter by folder, and its keys. It stays open while sessions are renamed,
//! pinned and deleted in it.

use std::cmp::Reverse;

use super::super::acts::{LONG_HINT_MS, hint, may_lead, send};
use super::super::keys::{Code, Key};
use super::super::{App, Question};
use super::{Item, Kind, ListView};
use crate::runtime::protocol::{Level, Request, SessionRow};

/// The first one is the runtime's: pinned sessions first, then by date.
const ORDERS: [&str; 3] = ["by date", "by name", "by tokens"];

/// Which sessions the list shows, in which order, and what happens to the selected one.
#[derive(Clone, Debug, Default)]
pub(super) struct Picked {
    /// An index of [`ORDERS`].
    order: usize,
    this_folder: bool,
    /// A session and its new name, while that is typed.
    pub(super) rename: Option<(String, String)>,
    /// The list is requested again after this request; the session to select then.
    pub(super) changing: Option<(u64, String)>,
}

fn view(picked: Picked, sessions: &[SessionRow]) -> ListView {
    let shown = sessions.iter().filter(|row| row.here || !picked.this_folder);
    let mut rows: Vec<SessionRow> = shown.cloned().collect();
    match picked.order {
        1 => rows.sort_by_cached_key(|row| row.name.to_lowercase()),
        2 => rows.sort_by_key(|row| Reverse(row.tokens)),
        _ => {}
    }
    let order = ORDERS[picked.order % ORDERS.len()];
    let title = format!("{} {order}", if picked.this_folder { "This folder" } else { "Sessions" });
    ListView { picked, ..ListView::new(Kind::Sessions, title, rows.into_iter().map(Item::Session)) }
}

fn opened(app: &mut App) -> Option<&mut ListView> {
    app.overlay.as_mut()?.list_of(Kind::Sessions)
}

/// Takes a list from the runtime. An open one keeps its order, filters and selected row; else returns a new one.
pub(in super::super) fn arrived(app: &mut App, rows: Vec<SessionRow>) -> Option<ListView> {
    app.sessions = rows;
    let Some(picked) = opened(app).map(|view| view.picked.clone()) else {
        return Some(view(Picked::default(), &app.sessions));
    };
    show(app, picked);
    None
}

/// Shows the list again; a session that is gone leaves the selection in its row.
fn show(app: &mut App, mut picked: Picked) {
    let sessions = std::mem::take(&mut app.sessions);
    if let Some(view) = opened(app) {
        let changed = picked.changing.take_if(|(request, _)| *request == 0).map(|(_, name)| name);
        let name = changed.or_else(|| chosen(view).map(|row| row.name.clone()));
        let (at, query) = (view.selected, view.query.clone());
        let rename = picked.rename.take().filter(|(session, _)| sessions.iter().any(|row| row.name == *session));
        *view = self::view(picked, &sessions);
        view.filter(query);
        view.picked.rename = rename;
        let is_it = |item: &Item| matches!(item, Item::Session(row) if Some(&row.name) == name.as_ref());
        let at = view.shown().position(is_it).unwrap_or(at);
        view.select(at);
    }
    app.sessions = sessions;
}

fn chosen(view: &ListView) -> Option<&SessionRow> {
    match view.selected() {
        Some(Item::Session(row)) => Some(row),
        _ => None,
    }
}

/// The runtime has completed `count` requests: a list that one of them changed is requested again.
pub(in super::super) fn acknowledged(app: &mut App, count: u64) {
    let asks = app.questions.iter().any(Question::is_of_runtime);
    let Some(picked) = opened(app).map(|view| &mut view.picked) else { return };
    if let Some((request, _)) = picked.changing.as_mut().filter(|(r, _)| !asks && (1..=count).contains(r)) {
        *request = 0;
        picked.rename = None;
        send(app, Request::Sessions);
    }
}

/// A note below the open list, which hides the transcript. A new name that was refused stays to be changed.
pub(in super::super) fn noted(app: &mut App, level: Level, text: &str) {
    let Some(view) = opened(app) else { return };
    view.picked.changing.take_if(|_| level != Level::Info && view.picked.rename.is_some());
    hint(app, text, LONG_HINT_MS);
}

/// Sends a request that changes a session and selects the session `then` once it is done.
fn change(app: &mut App, request: Request, then: String) {
    if may_lead(app) {
        send(app, request);
        let sent = app.sent;
        if let Some(view) = opened(app) {
            view.picked.changing = Some((sent, then));
        }
    }
}

/// Keys of the list of sessions; false for all others.
pub(in super::super) fn key(app: &mut App, key: Key) -> bool {
    let Some(view) = opened(app) else { return false };
    let session = chosen(view).map(|row| row.name.clone());
    let picked = &mut view.picked;
    if let Some((renamed, name)) = &mut picked.rename {
        match key.code {
            Code::Esc => picked.rename = None,
            Code::Enter => {
                let (session, name) = (renamed.clone(), name.trim().to_owned());
                if name.is_empty() {
                    picked.rename = None;
                } else {
                    change(app, Request::RenameOther { session, name: name.clone() }, name);
                }
            }
            _ => _ = key.edit(name),
        }
        return true;
    }
    match (key.code, session) {
        _ if key.alt => return false,
        (Code::Char('s'), _) if key.ctrl => {
            let picked = Picked { order: (picked.order + 1) % ORDERS.len(), ..picked.clone() };
            show(app, picked);
        }
        (Code::Char('f'), _) if key.ctrl => {
            let picked = Picked { this_folder: !picked.this_folder, ..picked.clone() };
            show(app, picked);
        }
        (Code::F(2), Some(name)) => picked.rename = Some((name, String::new())),
        (Code::Delete, Some(name)) => change(app, Request::Delete(Some(name)), String::new()),
        (Code::F(3), Some(name)) => {
            send(app, Request::Pin(Some(name)));
            send(app, Request::Sessions);
        }
        _ => return false,
    }
    true
}
