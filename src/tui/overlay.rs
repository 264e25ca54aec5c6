//! Pages and lists over the transcript. At most one is open; Esc closes it.
//!
//! One that arrives while the user types waits for [`TAKE_UP`], because it would swallow letters. An open page gives
//! way when the user types a letter that it does not use.

use super::App;
use super::acts::{LONG_HINT_MS, hint};
use super::cells::width;
use super::keys::{Code, Key, TAKE_UP};
use super::lists::{Kind, ListView};
use super::map::MapView;
use super::markdown::{Colours, Style, render};
use super::options::Glyphs;
use super::paint::Painter;
use super::rows::{Role, Row};
use crate::core::transcript::Finish;
use crate::runtime::protocol::Request;
use ratatui::layout::Rect;

#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: String,
    pub text: String,
    pub rows: Vec<Row>,
    pub top: usize,
    /// The answer that the passages belong to; digits open them.
    pub looked: Option<u64>,
    pub passages: usize,
    /// Shown sentence of that answer (0: all of it), and the number of sentences.
    pub sentence: (u64, u64),
    pub height: usize,
    pub width: usize,
}

impl Page {
    /// [`Overlay::set_size`] computes the rows.
    pub fn new(title: impl Into<String>, text: impl Into<String>) -> Page {
        Page { title: title.into(), text: text.into(), ..Page::default() }
    }

    pub fn set_text(&mut self, text: String, glyphs: Glyphs) {
        if self.text != text {
            self.text = text;
            if self.width > 0 {
                self.layout(glyphs);
            }
        }
    }

    fn set_size(&mut self, width: usize, height: usize, glyphs: Glyphs) {
        self.height = height;
        if self.width != width || self.rows.is_empty() {
            self.width = width;
            self.layout(glyphs);
        }
        self.scroll(0);
    }

    fn layout(&mut self, glyphs: Glyphs) {
        let colours = Colours::default();
        let cells = self.width.saturating_sub(4).clamp(8, 110);
        self.rows = render(&self.text, Style { cells, glyphs, colours: &colours }).rows().to_vec();
        self.scroll(0);
    }

    /// Title and footer take two rows.
    fn body_height(&self) -> usize {
        self.height.saturating_sub(2).max(1)
    }

    fn scroll(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(self.body_height());
        self.top = self.top.saturating_add_signed(by).min(last);
    }

    pub(super) fn other_sentence(&self, forward: bool) -> Option<Request> {
        let ((shown, all), at) = (self.sentence, self.looked);
        match (forward, shown) {
            (true, shown) if shown < all => Some(Request::LookSentence { at, sentence: shown + 1 }),
            (false, 1) => Some(Request::Look { at, passage: None }),
            (false, shown @ 2..) => Some(Request::LookSentence { at, sentence: shown - 1 }),
            _ => None,
        }
    }

    fn footer(&self) -> &'static str {
        match (self.sentence.0, self.passages, self.sentence.1) {
            (1.., ..) => "Left/Right other sentences   Up/Down scroll   Esc closes",
            (0, 0, 0) => "Up/Down PgUp/PgDn scroll   Esc closes",
            (0, 0, _) => "Right by sentence   Up/Down scroll   Esc closes",
            (0, 1, 0) => "1 opens the passage   Up/Down scroll   Esc closes",
            (0, 1, _) => "1 opens the passage   Right by sentence   Up/Down scroll   Esc closes",
            (0, _, 0) => "1-9 opens a passage   Up/Down scroll   Esc closes",
            (0, _, _) => "1-9 opens a passage   Right by sentence   Up/Down scroll   Esc closes",
        }
    }

    fn draw(&self, painter: &mut Painter<'_>, area: Rect) {
        painter.text(area, 0, &format!(" {}", self.title), Role::Heading);
        let body = self.body_height();
        painter.rows(area, 1, 2, self.rows.iter().skip(self.top).take(body));
        if self.rows.len() > body {
            let last = (self.top + body).min(self.rows.len());
            painter.right(area, 0, 1, &format!("{}-{last} of {}", self.top + 1, self.rows.len()), Role::Dim);
        }
    }
}

#[derive(Clone, Debug)]
pub enum Overlay {
    Page(Page),
    // A question and its answer, which are not saved; `done` is set when the answer is complete.
    Aside { page: Page, done: Option<Finish> },
    Map(MapView),
    List(ListView),
}

impl Overlay {
    pub fn set_size(&mut self, width: usize, height: usize, glyphs: Glyphs) {
        match self {
            Overlay::Page(page) | Overlay::Aside { page, .. } => page.set_size(width, height, glyphs),
            // Margins on both sides; heading, blank row, description and keys take five rows.
            Overlay::Map(view) => view.set_size(width.saturating_sub(4), height.saturating_sub(5)),
            Overlay::List(_) => {}
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Overlay::Page(page) => &page.title,
            Overlay::Aside { done: None, .. } => "the aside, which is being written",
            Overlay::Aside { done: Some(_), .. } => "the aside",
            Overlay::Map(_) => "the map",
            Overlay::List(view) => view.name(),
        }
    }

    /// Whether it shows work of the session on screen, and closes with that session.
    pub(super) fn belongs_to_session(&self) -> bool {
        match self {
            Overlay::Aside { done, .. } => done.is_none(),
            Overlay::List(view) => view.kind == Kind::Answers,
            Overlay::Page(_) | Overlay::Map(_) => false,
        }
    }

    pub fn step(&mut self, by: isize) {
        match self {
            Overlay::Page(page) | Overlay::Aside { page, .. } => page.scroll(by),
            Overlay::List(view) if view.is_renaming() => {}
            Overlay::List(view) => view.list.step(by),
            Overlay::Map(view) => view.scroll(by),
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

    /// Whether a question is about a change of the selected session, so that the filter receives no more letters.
    pub(super) fn is_changing(&self) -> bool {
        matches!(self, Overlay::List(view) if view.is_changing())
    }

    /// Letters that are keys of the open page or list.
    pub(super) fn shortcut(&self, key: Key, vim: bool) -> Code {
        let own = matches!(self, Overlay::List(view) if view.kind == Kind::Timeline) && key.code == Code::Char('g');
        let free = self.query().is_none_or(str::is_empty) && !own;
        let key = if vim && free { key.as_arrow() } else { key };
        match (self, key.code) {
            (Overlay::Page(_) | Overlay::Aside { .. } | Overlay::Map(_), Code::Char('q')) => Code::Esc,
            (Overlay::Page(_) | Overlay::Aside { .. }, Code::Char(' ')) => Code::PageDown,
            (Overlay::Map(_), Code::Char('h')) => Code::Left,
            (Overlay::Map(_), Code::Char('l')) => Code::Right,
            (open, Code::Char('k')) if open.query().is_none() => Code::Up,
            (open, Code::Char('j')) if open.query().is_none() => Code::Down,
            (_, code) => code,
        }
    }

    fn footer(&self, cells: usize) -> &'static str {
        match self {
            Overlay::Page(page) => page.footer(),
            Overlay::Aside { done: None, .. } => "answering; not kept   Esc stops and closes",
            Overlay::Aside { done: Some(_), .. } => "not kept   Up/Down scroll   Esc closes",
            Overlay::Map(_) => "arrows move   Enter opens   Esc closes",
            Overlay::List(view) => view.footer(cells),
        }
    }

    pub(super) fn draw(&self, app: &App, painter: &mut Painter<'_>, area: Rect) {
        painter.clear(area);
        match self {
            Overlay::Page(page) | Overlay::Aside { page, .. } => page.draw(painter, area),
            Overlay::Map(view) => view.draw(painter, area),
            Overlay::List(view) => view.draw(app, painter, area),
        }
        // The parts that fit whole; the last one, which closes, stays longest.
        let cells = usize::from(area.width);
        let mut parts: Vec<&str> = self.footer(cells).split("   ").collect();
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
    open(app, Overlay::Page(Page::new(title, text)));
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
    hint(app, format!("Ready: {}. {TAKE_UP} shows it", page.name()), LONG_HINT_MS);
    (app.set_aside, app.sent_since_set_aside) = (Some(page), false);
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

/// A page that still waits when the second line is sent is forgotten.
pub(super) fn line_sent(app: &mut App) {
    if app.set_aside.is_some() && std::mem::replace(&mut app.sent_since_set_aside, true) {
        app.set_aside = None;
    }
}
