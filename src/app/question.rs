//! A decision that is asked of the user, and whether keys are for it.
//!
//! What was typed before a question could be seen is no answer to it. So it takes keys once it was drawn while nobody wrote:
//! somebody who writes goes on writing beside it, until the input is empty or [`super::keys::TAKE_UP`] is pressed. A letter that is none of
//! its choices begins to write, and so does a paste.

use super::overlay::Overlay;
use super::pick::FilePick;
use super::{App, Find};
use crate::protocol::desk::Choice;

/// Who asks a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The desk, with its id.
    Desk(u64),
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
    /// Of the desk, which asks when it comes to it.
    pub(super) fn of_desk(id: u64, text: String, choices: Vec<Choice>, pick: Option<FilePick>) -> Question {
        Question { asker: Asker::Desk(id), text, choices, pick, standing: Standing::Unseen }
    }

    /// Whether to quit, about the key that was just pressed: the next one is the answer.
    pub(super) fn of_quitting(text: String, choices: Vec<Choice>) -> Question {
        Question { asker: Asker::Quit, text, choices, pick: None, standing: Standing::Asks }
    }

    /// About a paste, once it is known that files were: keys may have been typed since.
    pub(super) fn of_pasted(text: String, choices: Vec<Choice>) -> Question {
        Question { asker: Asker::Pasted, text, choices, pick: None, standing: Standing::Unseen }
    }

    /// Whether the desk asks: work stands until that is decided.
    pub(super) fn is_the_desks(&self) -> bool {
        matches!(self.asker, Asker::Desk(_))
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
