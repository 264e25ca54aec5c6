//! A decision that is asked of the user, and whether keys are for it.
//!
//! What was typed before a question could be seen is no answer to it. So it takes keys once it was drawn while nobody wrote:
//! somebody who writes goes on writing beside it, until the input is empty or [`super::keys::TAKE_UP`] is pressed. A letter that is none of
//! its choices begins to write, and so does a paste.

use super::cells::{ellipsis, fit, width};
use super::keys::TAKE_UP;
use super::overlay::Overlay;
use super::pick::FilePick;
use super::rows::{Face, Role, Row, Span};
use super::wrap::wrap_text;
use super::{App, Find};
use crate::runtime::protocol::Choice;

/// Least cells of a choice that stands beside others.
const CHOICE_CELLS: usize = 12;

/// Who asks a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The runtime, with its id.
    Runtime(u64),
    /// The interface: quit although the model is busy?
    Quit,
    /// The interface: load the paths that were pasted?
    Pasted,
}

/// What keys mean to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was not on the screen yet: keys were typed before it.
    Unseen,
    /// Somebody writes: keys go where they went.
    Beside,
    /// Keys are for it.
    Asks,
}

/// A decision the user has to take before anything else.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Who asks.
    pub asker: Asker,
    /// One or two lines.
    pub text: String,
    /// Choices; Esc takes the last one, which loses nothing.
    pub choices: Vec<Choice>,
    /// Of a load: its files, which can be chosen from.
    pub pick: Option<FilePick>,
    /// Whether keys are for it.
    pub standing: Standing,
}

impl Question {
    /// Of the runtime, which asks when it comes to it.
    pub(super) fn of_desk(id: u64, text: String, choices: Vec<Choice>, pick: Option<FilePick>) -> Question {
        Question { asker: Asker::Runtime(id), text, choices, pick, standing: Standing::Unseen }
    }

    /// Whether to quit, about the key that was just pressed: the next one is the answer.
    pub(super) fn of_quitting(text: String, choices: Vec<Choice>) -> Question {
        Question { asker: Asker::Quit, text, choices, pick: None, standing: Standing::Asks }
    }

    /// About a paste, once it is known that files were: keys may have been typed since.
    pub(super) fn of_pasted(text: String, choices: Vec<Choice>) -> Question {
        Question { asker: Asker::Pasted, text, choices, pick: None, standing: Standing::Unseen }
    }

    /// The same without what its numbers mean.
    pub(super) fn without_labels(&self) -> Question {
        let mut question = self.clone();
        question.choices.iter_mut().filter(|c| c.key.is_ascii_digit()).for_each(|c| c.label.clear());
        question
    }

    /// What is to be pressed, and what that means.
    pub fn keys(&self) -> impl Iterator<Item = (String, &str)> {
        let name = |key: char| match key {
            '\n' => "Enter".to_string(),
            '\x1b' => "Esc".to_string(),
            k => k.to_string(),
        };
        self.choices.iter().map(move |c| (name(c.key), c.label.as_str()))
    }

    /// Whether its choices stand in the input's place, of so many cells.
    pub fn is_in_the_input(&self, cells: usize) -> bool {
        let wanted: usize = self.keys().map(|(key, what)| width(&key) + width(what) + 4).sum();
        self.standing == Standing::Asks && wanted <= cells
    }

    /// Its rows above the input, in a body of so many cells and rows.
    pub fn rows(&self, cells: usize, height: usize) -> Vec<Row> {
        let mut rows = wrap_text(&self.text, Face::from(Role::Warn).bold(), cells.saturating_sub(4));
        if !self.is_in_the_input(cells) {
            let others = rows.len() + 1 + usize::from(self.standing != Standing::Asks);
            rows.append(&mut self.choice_rows(cells, height, others));
        }
        if self.standing != Standing::Asks {
            let hint = format!("{TAKE_UP} answers, or an empty input");
            rows.push(Row { spans: vec![Span::new(hint, Role::Dim)], ..Row::default() });
        }
        rows
    }

    /// A row for each choice; where they are too many for that, several in a row, below so many `others`.
    fn choice_rows(&self, cells: usize, height: usize, others: usize) -> Vec<Row> {
        let keys: Vec<(String, &str)> = self.keys().collect();
        if keys.len() + others <= height {
            let room = cells.saturating_sub(12);
            let row = |(key, what): &(String, &str)| Row {
                spans: vec![
                    Span::new(format!("{key:>5}  "), Face::from(Role::Key).bold()),
                    Span::new(ellipsis(what, room), Role::Text),
                ],
                ..Row::default()
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

    /// Whether the runtime asks: work stands until that is decided.
    pub(super) fn is_the_desks(&self) -> bool {
        matches!(self.asker, Asker::Runtime(_))
    }
}

/// Whether something is being written: in the input, or into a search.
fn writes(app: &App) -> bool {
    let searches = app.overlay.as_ref().and_then(Overlay::query).is_some_and(|query| !query.is_empty());
    !app.composer.is_empty() || searches || app.find.as_ref().is_some_and(Find::typing)
}

/// The question at the front is about to be seen.
pub(super) fn seen(app: &mut App) {
    let standing = if writes(app) { Standing::Beside } else { Standing::Asks };
    if let Some(question) = app.questions.front_mut().filter(|q| q.standing == Standing::Unseen) {
        question.standing = standing;
    }
}

/// Somebody begins to write, or goes on: the question at the front does not ask any more. False where there is no place to write:
/// in the list of a load's files, on a page.
pub(super) fn give_way(app: &mut App) -> bool {
    let page = app.overlay.as_ref().is_some_and(|overlay| overlay.query().is_none());
    match app.questions.front_mut() {
        Some(question) if page || question.pick.as_ref().is_some_and(|pick| pick.open) => false,
        Some(question) => {
            question.standing = Standing::Beside;
            true
        }
        None => true,
    }
}

/// A key that went elsewhere: with nothing left to be written, the question asks as soon as that is seen.
pub(super) fn passed_by(app: &mut App) {
    let writes = writes(app);
    if let Some(question) = app.questions.front_mut().filter(|q| q.standing == Standing::Beside && !writes) {
        question.standing = Standing::Unseen;
    }
}
