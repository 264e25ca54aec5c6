//! A decision for the user, and whether it receives keys.
//!
//! Keys typed before a question was visible do not answer it. It receives keys once it was drawn while the user did
//! not type; otherwise the input keeps them until it is empty or [`super::keys::TAKE_UP`] is pressed. A letter that is
//! not a choice starts typing, and so does a paste.

use ratatui::layout::Rect;

use super::acts::{hold, send, stop};
use super::cells::{ellipsis, fit, width};
use super::keys::{Action, Code, Key, TAKE_UP};
use super::overlay::Overlay;
use super::paint::Painter;
use super::pick::{self, FilePick};
use super::quit::{quit, quit_or_ask};
use super::rows::{Face, Role, Row, Span};
use super::wrap::wrap_text;
use super::{App, Armed, input, mention, several};
use crate::runtime::protocol::{Choice, Request};

const CHOICE_CELLS: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Runtime(u64),
    Quit,
    Pasted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Unseen,
    /// The user types; the input receives keys.
    Waits,
    /// The question receives keys.
    Asks,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub asker: Asker,
    pub text: String,
    /// Esc takes the last one, which loses nothing.
    pub choices: Vec<Choice>,
    pub pick: Option<FilePick>,
    pub standing: Standing,
}

impl Question {
    pub(super) fn new(asker: Asker, text: String, choices: Vec<Choice>) -> Question {
        // The question before quitting answers a key; keys may have been typed before any other.
        let standing = if asker == Asker::Quit { Standing::Asks } else { Standing::Unseen };
        Question { asker, text, choices, pick: None, standing }
    }

    pub(super) fn without_labels(&self) -> Question {
        let mut question = self.clone();
        question.choices.iter_mut().filter(|c| c.key.is_ascii_digit()).for_each(|c| c.label.clear());
        question
    }

    pub fn keys(&self) -> impl Iterator<Item = (String, &str)> {
        let name = |key: char| match key {
            '\n' => "Enter".to_string(),
            '\x1b' => "Esc".to_string(),
            k => k.to_string(),
        };
        self.choices.iter().map(move |c| (name(c.key), c.label.as_str()))
    }

    pub fn is_in_the_input(&self, cells: usize) -> bool {
        let wanted: usize = self.keys().map(|(key, what)| width(&key) + width(what) + 4).sum();
        self.standing == Standing::Asks && wanted <= cells
    }

    pub fn rows(&self, cells: usize, height: usize) -> Vec<Row> {
        let mut rows = wrap_text(&self.text, Face::from(Role::Warn).bold(), cells.saturating_sub(4));
        if !self.is_in_the_input(cells) {
            let others = rows.len() + 1 + usize::from(self.standing != Standing::Asks);
            rows.append(&mut self.choice_rows(cells, height, others));
        }
        if self.standing != Standing::Asks {
            let hint = format!("{TAKE_UP} answers, or an empty input");
            rows.push(Row::from(vec![Span::new(hint, Role::Dim)]));
        }
        rows
    }

    fn choice_rows(&self, cells: usize, height: usize, others: usize) -> Vec<Row> {
        let keys: Vec<(String, &str)> = self.keys().collect();
        if keys.len() + others <= height {
            let room = cells.saturating_sub(12);
            let row = |(key, what): &(String, &str)| {
                Row::from(vec![
                    Span::new(format!("{key:>5}  "), Face::from(Role::Key).bold()),
                    Span::new(ellipsis(what, room), Role::Text),
                ])
            };
            return keys.iter().map(row).collect();
        }
        let cells = cells.saturating_sub(4);
        let rows = (height / 2).saturating_sub(others).max(1);
        let columns = keys.len().div_ceil(rows).clamp(1, (cells / CHOICE_CELLS).max(1));
        let choice = |(key, what): &(String, &str)| {
            let room = (cells / columns).saturating_sub(width(key) + 2);
            [
                Span::new(format!("{key} "), Face::from(Role::Key).bold()),
                Span::new(format!("{} ", fit(what, room)), Role::Text),
            ]
        };
        keys.chunks(columns).map(|row| Row { spans: row.iter().flat_map(choice).collect(), ..Row::default() }).collect()
    }

    pub(super) fn is_of_runtime(&self) -> bool {
        matches!(self.asker, Asker::Runtime(_))
    }
}

/// Draws the rows of a question at the bottom of `body`. The rows `below` stay visible if there is room for both.
pub(super) fn draw(rows: &[Row], painter: &mut Painter<'_>, body: Rect, below: u16) {
    let height = u16::try_from(rows.len() + 1).unwrap_or(body.height).min(body.height);
    let bottom = body.bottom() - below.min(body.height - height);
    let area = Rect { y: bottom - height, height, ..body };
    painter.clear(area);
    painter.rule(Rect { height: 1, ..area });
    painter.rows(area, 1, 2, rows);
}

fn writes(app: &App) -> bool {
    let list = app.overlay.as_ref().filter(|list| !matches!(list, Overlay::List(view) if view.is_changing()));
    let searches = list.and_then(Overlay::query).is_some_and(|query| !query.is_empty());
    !app.open.composer.is_empty() || searches || app.searches()
}

pub(super) fn seen(app: &mut App) {
    let standing = if writes(app) { Standing::Waits } else { Standing::Asks };
    if let Some(question) = app.questions.front_mut().filter(|q| q.standing == Standing::Unseen) {
        question.standing = standing;
    }
}

/// The user types: the question releases the keys. False without a place to type.
pub(super) fn give_way(app: &mut App) -> bool {
    let page = app.overlay.as_ref().is_some_and(|overlay| overlay.query().is_none());
    match app.questions.front_mut() {
        Some(question) if page || question.pick.as_ref().is_some_and(|pick| pick.open) => false,
        Some(question) => {
            question.standing = Standing::Waits;
            true
        }
        None => true,
    }
}

/// After a key for another component: with an empty input, the question receives keys again once drawn.
pub(super) fn passed_by(app: &mut App) {
    let writes = writes(app);
    if let Some(question) = app.questions.front_mut().filter(|q| q.standing == Standing::Waits && !writes) {
        question.standing = Standing::Unseen;
    }
}

/// Gives a key to the question; false if there is none.
pub(super) fn key(app: &mut App, key: Key) -> bool {
    match app.questions.front().map(|q| q.standing) {
        Some(Standing::Asks) => asking_key(app, key),
        Some(standing) => waiting_key(app, standing, key),
        None => return false,
    }
    true
}

fn waiting_key(app: &mut App, standing: Standing, key: Key) {
    let esc = key == Key::plain(Code::Esc);
    match (standing, app.questions.front_mut()) {
        (Standing::Waits, Some(question)) if key == TAKE_UP => question.standing = Standing::Asks,
        (Standing::Unseen, _) if esc => {}
        (Standing::Unseen | Standing::Waits | Standing::Asks, _) => {
            input::place_key(app, key);
            passed_by(app);
        }
    }
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
    if !give_way(app) {
        return;
    }
    let searches = app.overlay.is_some() || app.searches();
    match app.open.composer.is_empty() && !searches {
        true => {
            app.open.find = None;
            input::write(app, c);
        }
        false => input::place_key(app, key),
    }
    passed_by(app);
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
        input::place_key(app, key);
        if !app.open.composer.is_empty() {
            give_way(app);
        }
        return;
    }
    let leaves = matches!(question.asker, Asker::Runtime(_)) && app.config.keys.action(key) == Some(Action::Session);
    if app.overlay.is_none() && leaves {
        return input::place_key(app, key);
    }
    let pressed = match key.code {
        Code::Char(c) if !key.ctrl && !key.alt => c,
        Code::Enter => '\n',
        Code::Esc => '\x1b',
        _ if app.overlay.is_none() => {
            let ends = app.open.composer.is_empty() && app.config.keys.action(key) == Some(Action::Eof);
            if ends && question.asker != Asker::Quit {
                return quit_or_ask(app);
            }
            // Scrolls the answers that the question refers to.
            several::key(app, key);
            return;
        }
        _ => return,
    };
    let same = |k: char| k == pressed || k.to_lowercase().eq(pressed.to_lowercase());
    let chosen = question.choices.iter().find(|c| same(c.key)).or(if pressed == '\x1b' {
        question.choices.last()
    } else {
        None
    });
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
        't' => input::insert_pasted(app, &text),
        _ => {}
    }
}
