//! Pages and lists over the transcript: at most one is open; Esc closes it.
//!
//! One that arrives while the user types waits for [`TAKE_UP`], because it would swallow letters. An open page gives
//! way when the user types a letter that it does not use.

use super::App;
use super::acts::{LONG_HINT_MS, hint};
use super::cells::width;
use super::keys::{Code, Key, TAKE_UP};
use super::lists::{Kind, ListView};
use super::options::Glyphs;
use super::page::{About, Page};
use super::paint::Painter;
use super::rows::Role;
use ratatui::layout::Rect;

#[derive(Clone, Debug)]
pub enum Overlay {
    Page(Page),
    List(ListView),
}

impl Overlay {
    pub fn set_size(&mut self, width: usize, height: usize, glyphs: Glyphs) {
        if let Overlay::Page(page) = self {
            page.set_size(width, height, glyphs);
        }
    }

    pub fn title(&self) -> &str {
        match self {
            Overlay::Page(page) => &page.title,
            Overlay::List(view) => &view.title,
        }
    }

    /// Whether it shows work of the session on screen, and closes with that session.
    pub(super) fn belongs_to_session(&self) -> bool {
        match self {
            Overlay::Page(page) => page.is_written(),
            Overlay::List(view) => view.kind == Kind::Answers,
        }
    }

    pub fn step(&mut self, by: isize) {
        match self {
            Overlay::Page(page) => page.scroll(by),
            Overlay::List(view) => view.step(by),
        }
    }

    /// What is typed into it; `None` without a place to type.
    pub fn query(&self) -> Option<&str> {
        if let Overlay::List(view) = self { view.query() } else { None }
    }

    pub fn edit_query(&mut self, change: impl FnOnce(&mut String)) {
        if let Overlay::List(view) = self {
            view.edit_query(change);
        }
    }

    pub(super) fn list_of(&mut self, kind: Kind) -> Option<&mut ListView> {
        match self {
            Overlay::List(view) if view.kind == kind => Some(view),
            _ => None,
        }
    }

    /// Letters that are keys of the open page or list.
    pub(super) fn shortcut(&self, key: Key, vim: bool) -> Code {
        let free = self.query().is_none_or(str::is_empty);
        let key = if vim && free { key.as_arrow() } else { key };
        match (self, key.code) {
            (Overlay::Page(_), Code::Char('q')) => Code::Esc,
            (Overlay::Page(_), Code::Char(' ')) => Code::PageDown,
            (open, Code::Char('j' | 'k')) if open.query().is_none() => key.as_arrow().code,
            (_, code) => code,
        }
    }

    pub(super) fn draw(&self, app: &App, painter: &mut Painter<'_>, area: Rect) {
        painter.clear(area);
        let cells = usize::from(area.width);
        let footer = match self {
            Overlay::Page(page) => {
                page.draw(painter, area);
                page.footer()
            }
            Overlay::List(view) => {
                view.draw(app, painter, area);
                view.footer().to_owned()
            }
        };
        // The parts that fit whole; the last one, which closes, stays longest.
        let mut parts: Vec<&str> = footer.split("   ").collect();
        while parts.len() > 1 && width(&parts.join("   ")) > cells.saturating_sub(1) {
            parts.remove(parts.len() - 2);
        }
        painter.text(area, area.height.saturating_sub(1), &format!(" {}", parts.join("   ")), Role::Dim);
    }
}

pub(super) fn open(app: &mut App, page: Overlay) {
    app.popup = None;
    app.overlay = Some(page);
}

pub(super) fn open_page(app: &mut App, title: &str, text: String) {
    open(app, Overlay::Page(Page::new(title, text, About::Text)));
}

pub(super) fn open_list(app: &mut App, view: impl FnOnce(&App) -> ListView) {
    let view = view(app);
    open(app, Overlay::List(view));
}

pub(super) fn arrive(app: &mut App, page: Overlay) {
    match writes_on(app) {
        true => set_aside(app, page),
        false => open(app, page),
    }
}

fn set_aside(app: &mut App, page: Overlay) {
    // The keys take the place of the hint afterwards, among them the one that opens the page.
    hint(app, format!("{TAKE_UP} shows: {}", page.title()), LONG_HINT_MS);
    app.set_aside = Some(page);
}

/// Whether the user typed after the last request.
fn writes_on(app: &App) -> bool {
    // The tour needs its pages at once.
    if app.tour.is_some() {
        return false;
    }
    match &app.overlay {
        Some(open) => open.query().is_some_and(|query| !query.is_empty()),
        None => app.wrote && !app.open.composer.is_empty() || app.searches(),
    }
}

/// The open page or the one set aside, if it is of that kind.
pub(super) fn find(app: &mut App, is_it: impl Fn(&Overlay) -> bool) -> Option<&mut Overlay> {
    [&mut app.overlay, &mut app.set_aside].into_iter().flatten().find(|page| is_it(page))
}

pub(super) fn take_up(app: &mut App) -> bool {
    let Some(page) = app.set_aside.take() else { return false };
    app.hint = None;
    open(app, page);
    true
}

pub(super) fn give_way(app: &mut App) -> bool {
    if app.tour.is_some() || app.overlay.as_ref().is_some_and(|open| open.query().is_some()) {
        return false;
    }
    let page = app.overlay.take();
    page.map(|page| set_aside(app, page)).is_some()
}
