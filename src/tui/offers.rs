//! Questions about the sample document that the built-in model offers, by number or Tab.

use super::App;
use super::Effect;
use super::greeting;
use super::mention;
use crate::core::transcript::Role;
use crate::text::sample::{NAME, PATH, QUESTIONS};

pub(super) fn numbered(app: &App, c: char) -> Option<&'static str> {
    question(c).filter(|_| app.composer.is_empty() && greeting::offers_drawn(app))
}

pub(super) fn question(number: char) -> Option<&'static str> {
    let number = number.to_digit(10).and_then(|n| usize::try_from(n).ok())?;
    QUESTIONS.get(number.checked_sub(1)?).copied()
}

pub(super) fn next(app: &App) -> Option<&'static str> {
    let sample_only = app.session.documents.iter().all(|d| d.name == NAME) && !app.session.documents.is_empty();
    if !app.composer.is_empty() || !(greeting::offers_drawn(app) || app.is_demo() && app.tour.is_none() && sample_only)
    {
        return None;
    }
    let is_done = |q: &str| app.transcript.messages().any(|m| m.role == Role::User && m.text == q);
    QUESTIONS.into_iter().find(|q| !is_done(q))
}

pub(super) fn load_first(app: &mut App, text: &str, effects: &mut Vec<Effect>) -> bool {
    let ours = QUESTIONS.contains(&text) && greeting::may_offer(app);
    if ours {
        mention::load_for_question(app, text.to_owned(), vec![PATH.to_owned()], Vec::new(), effects);
    }
    ours
}
