//! A decision for the user, and whether it receives keys.
//!
//! Keys typed before a question was visible do not answer it. It receives keys once it was drawn while the user did
//! not type; otherwise the input keeps them until it is empty or [`super::keys::TAKE_UP`] is pressed. A letter that is
//! not a choice starts typing, and so does a paste.

use ratatui::layout::Rect;

use super::App;
use super::cells::width;
use super::keys::TAKE_UP;
use super::overlay::Overlay;
use super::paint::Painter;
use super::pick::FilePick;
use super::rows::{Face, Role, Row};
use super::wrap::wrap_text;
use crate::runtime::protocol::Choice;

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

    pub fn rows(&self, cells: usize) -> Vec<Row> {
        let mut rows = wrap_text(&self.text, Face::from(Role::Warn).bold(), cells.saturating_sub(4));
        if !self.is_in_the_input(cells) {
            let all: Vec<String> = self.keys().map(|(key, what)| format!("{key} {what}")).collect();
            rows.append(&mut wrap_text(&all.join("   "), Face::from(Role::Key).bold(), cells.saturating_sub(4)));
        }
        if self.standing != Standing::Asks {
            rows.push(Row::of(format!("{TAKE_UP} answers, or an empty input"), Role::Dim));
        }
        rows
    }

    /// With the line above.
    pub(super) fn height(&self, cells: u16) -> u16 {
        u16::try_from(self.rows(usize::from(cells)).len() + 1).unwrap_or(u16::MAX)
    }

    pub(super) fn draw(&self, painter: &mut Painter<'_>, area: Rect) {
        painter.clear(area);
        painter.rule(Rect { height: 1, ..area });
        painter.rows(area, 1, 2, &self.rows(usize::from(area.width)));
    }

    pub(super) fn is_of_runtime(&self) -> bool {
        matches!(self.asker, Asker::Runtime(_))
    }
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
