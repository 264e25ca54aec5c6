//! Search in the open transcript (Ctrl-F).
//!
//! While the user types the query, the view moves to the nearest match. After Enter, `n` and `N` step through the
//! matches, `a` searches all branches, Esc closes the search.

use ratatui::layout::{Position, Rect};

use super::App;
use super::acts::{HINT_MS, hint, send};
use super::cells::width;
use super::keys::{Action, Code, Key};
use super::paint::Painter;
use super::rows::{Role, Span};
use super::transcript::Hit;
use crate::runtime::protocol::Request;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Find {
    pub(super) query: String,
    pub(super) typing: bool,
    hits: Vec<Hit>,
    at: usize,
}

impl Find {
    pub fn here(&self) -> Option<Hit> {
        self.hits.get(self.at).copied()
    }

    fn count(&self) -> String {
        match (self.hits.len(), self.query.is_empty()) {
            (_, true) => String::new(),
            (0, _) => "not found".into(),
            (n, _) => format!("{} of {n}", self.at + 1),
        }
    }

    /// Draws the search in the hint line; returns the caret.
    pub(super) fn draw(&self, app: &App, painter: &mut Painter<'_>, area: Rect) -> Option<Position> {
        let keys = match self.typing {
            true => [("Enter", "ends typing"), ("Up/Down", "steps"), ("Esc", "closes")].as_slice(),
            false => [("n", "next"), ("N", "back"), ("a", "all branches"), ("Esc", "closes")].as_slice(),
        };
        let mut right = vec![Span::new(format!("{}   ", self.count()), Role::Warn)];
        for (key, what) in keys {
            right.push(Span::new(*key, Role::Key));
            right.push(Span::new(format!(" {what}   "), Role::Dim));
        }
        if let Some((text, _)) = &app.hint {
            right = vec![Span::new(format!("{text} "), Role::Warn)];
        }
        let cells: usize = right.iter().map(|s| width(&s.text)).sum();
        let room = usize::from(area.width).saturating_sub(cells + 9);
        let mut query = self.query.as_str();
        while width(query) > room && !query.is_empty() {
            query = query.char_indices().nth(1).map_or("", |(at, _)| &query[at..]);
        }
        painter.spans(area, 0, 1, &[Span::new("find: ", Role::Key), Span::new(query, Role::Text)]);
        painter.right_spans(area, 0, 0, &right);
        let caret = area.x + 7 + u16::try_from(width(query)).ok()?;
        (self.typing && caret < area.right()).then_some(Position { x: caret, y: area.y })
    }
}

pub(super) fn open(app: &mut App) {
    app.popup = None;
    app.open.transcript.deselect();
    match &mut app.open.find {
        Some(find) => find.typing = true,
        None => app.open.find = Some(Find { typing: true, ..Find::default() }),
    }
}

/// Searches again and shows the nearest match, or the one `by` matches further.
fn look(app: &mut App, by: Option<isize>) {
    let open = &mut *app.open;
    let (Some(find), transcript) = (&mut open.find, &mut open.transcript) else { return };
    let last = find.here();
    find.hits = transcript.hits(&find.query);
    find.at = match by {
        None => transcript.nearest(&find.hits).unwrap_or(0),
        Some(by) => {
            let at = last.and_then(|hit| find.hits.binary_search(&hit).ok()).unwrap_or(find.at);
            let count = find.hits.len().max(1);
            (at % count + count).saturating_add_signed(by) % count
        }
    };
    if let Some(hit) = find.here() {
        transcript.show_hit(hit);
    }
}

pub(super) fn key(app: &mut App, key: Key) -> bool {
    let Some(find) = &mut app.open.find else { return false };
    if app.config.keys.action(key) == Some(Action::Find) {
        open(app);
        return true;
    }
    match (key.code, find.typing) {
        (Code::Esc, _) => app.open.find = None,
        (Code::Enter, true) if find.hits.is_empty() => hint(app, "Not found; Esc leaves the search", HINT_MS),
        (Code::Enter, true) => find.typing = false,
        (Code::Down, _) => look(app, Some(1)),
        (Code::Up, _) => look(app, Some(-1)),
        (Code::PageUp | Code::PageDown, _) => return false,
        (_, true) => {
            if key.edit(&mut find.query) {
                look(app, None);
            }
        }
        (Code::Char('n') | Code::Enter, false) if !key.ctrl && !key.alt && !key.shift => look(app, Some(1)),
        (Code::Char('N'), false) if !key.ctrl && !key.alt => look(app, Some(-1)),
        (Code::Enter, false) => look(app, Some(-1)),
        (Code::Char('/'), false) => find.typing = true,
        (Code::Char('a'), false) if !key.ctrl && !key.alt => {
            let words = find.query.clone();
            app.open.find = None;
            app.find_here = Some(words.clone());
            app.wrote = false;
            send(app, Request::Search(words));
        }
        _ => {
            app.open.find = None;
            return false;
        }
    }
    true
}

pub(super) fn paste(app: &mut App, text: &str) {
    if let Some(find) = &mut app.open.find {
        find.query.push_str(text.lines().next().unwrap_or(""));
        look(app, None);
    }
}
