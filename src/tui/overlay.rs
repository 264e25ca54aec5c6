//! Pages and lists over the transcript: at most one is open; Esc closes it.
//!
//! One that arrives while the user types waits for [`TAKE_UP`], because it would swallow letters. An open page gives
//! way when the user types a letter that it does not use.

use super::acts::{LONG_HINT_MS, hint, may_lead, send, stop};
use super::cells::width;
use super::keys::{Code, Key, TAKE_UP};
use super::lists::{HelpRow, Item, Kind, ListView, sessions};
use super::map::MapView;
use super::options::Glyphs;
use super::page::{About, Page};
use super::paint::Painter;
use super::rows::Role;
use super::{App, files, input, perform, themes};
use crate::config::commands::Outcome;
use crate::runtime::protocol::{GotoTarget, Request};
use ratatui::layout::Rect;

#[derive(Clone, Debug)]
pub enum Overlay {
    Page(Page),
    Map(MapView),
    List(ListView),
}

impl Overlay {
    pub fn set_size(&mut self, width: usize, height: usize, glyphs: Glyphs) {
        match self {
            Overlay::Page(page) => page.set_size(width, height, glyphs),
            // Margins on both sides; heading, blank row, description and keys take five rows.
            Overlay::Map(view) => view.set_size(width.saturating_sub(4), height.saturating_sub(5)),
            Overlay::List(_) => {}
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Overlay::Page(page) => page.name(),
            Overlay::Map(_) => "the map",
            Overlay::List(view) => view.name(),
        }
    }

    /// Whether it shows work of the session on screen, and closes with that session.
    pub(super) fn belongs_to_session(&self) -> bool {
        match self {
            Overlay::Page(page) => page.is_written(),
            Overlay::List(view) => view.kind == Kind::Answers,
            Overlay::Map(_) => false,
        }
    }

    pub fn step(&mut self, by: isize) {
        match self {
            Overlay::Page(page) => page.scroll(by),
            Overlay::List(view) => view.step(by),
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

    /// Letters that are keys of the open page or list.
    fn shortcut(&self, key: Key, vim: bool) -> Code {
        let own = matches!(self, Overlay::List(view) if view.kind == Kind::Timeline) && key.code == Code::Char('g');
        let free = self.query().is_none_or(str::is_empty) && !own;
        let key = if vim && free { key.as_arrow() } else { key };
        match (self, key.code) {
            (Overlay::Page(_) | Overlay::Map(_), Code::Char('q')) => Code::Esc,
            (Overlay::Page(_), Code::Char(' ')) => Code::PageDown,
            (Overlay::Map(_), Code::Char('h')) => Code::Left,
            (Overlay::Map(_), Code::Char('l')) => Code::Right,
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
            Overlay::Map(view) => {
                view.draw(painter, area);
                "arrows move   Enter opens   Esc closes".to_owned()
            }
            Overlay::List(view) => {
                view.draw(app, painter, area);
                view.footer(cells).to_owned()
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
        (Code::Left | Code::Right, Overlay::Map(view)) => view.step(if code == Code::Right { 1 } else { -1 }),
        (Code::Left, Overlay::List(view)) if view.kind == Kind::Files => {
            let above = files::parent(&view.folder);
            files::open(app, &above);
        }
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
        (Code::Backspace, overlay) => overlay.edit_query(|query| {
            query.pop();
        }),
        (Code::Char('u'), overlay) if key.ctrl => overlay.edit_query(String::clear),
        (Code::Char(c), Overlay::List(view)) if plain => match (c, view.selected()) {
            // The first one opened the help; more of them are a message.
            ('?', _) if view.kind == Kind::Help && view.is_unfiltered() && app.open.composer.is_empty() => {
                app.overlay = None;
                "??".chars().for_each(|c| input::write(app, c));
            }
            _ if view.query().is_some() => view.edit_query(|query| query.push(c)),
            ('g', Some(Item::Turn(_))) => enter(app),
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
        (Code::Char(c), _) if plain => write_below(app, c),
        _ => {}
    }
}

fn write_below(app: &mut App, c: char) {
    if give_way(app) {
        input::write(app, c);
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
        Some(Overlay::Map(view)) => {
            let request = view.opens();
            let number = view.stretch().map(|s| s.number).filter(|_| request.is_none());
            if let Some(id) = number.and_then(|n| app.open.transcript.numbered(n)).map(|m| m.id) {
                app.open.transcript.show(id);
            }
            request
        }
        Some(Overlay::List(view)) => match (view.searched(), view.selected().cloned()) {
            (Some(""), _) | (None, None | Some(Item::Heading(_))) => return,
            (Some(words), _) => Some(Request::Search(words.to_owned())),
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
            (_, Some(Item::Theme(row))) => return themes::take(app, row),
            (_, Some(Item::Answer(at, row))) if !view.open && row.finish.is_some() => Some(Request::OpenAnswer(at)),
            (_, Some(Item::Answer(..))) => return,
            (_, Some(Item::Setting(row))) => return write_line(app, &row.line),
            (_, Some(Item::Help(HelpRow { line: Some(line), .. }))) => return write_line(app, &line),
            (_, Some(Item::Help(_))) => None,
            (_, Some(Item::File(row))) => {
                let folder = view.folder.clone();
                if let Some(line) = files::take(app, &folder, &row) {
                    write_line(app, &line);
                    perform::submit(app);
                }
                return;
            }
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
