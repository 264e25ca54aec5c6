//! Draws the state into cells. Reads only.
//!
//! `tui::layout` supplies places, `tui` rows of text, and the palette colours, which `paint` adapts to the terminal.
//! The terminal's cursor is at the caret, or hidden when typing is impossible.

mod chrome;
pub mod clusters;
pub mod highlight;
mod panel;
mod transcript;

use ratatui::Frame;

use crate::tui::layout::{MIN_SIZE, regions};
use crate::tui::overlay::Overlay;
use crate::tui::paint::Painter;
use crate::tui::rows::Role;
use crate::tui::wrap::wrap_text;
use crate::tui::{App, Question, Standing};

pub fn draw(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let mut painter = Painter::new(frame.buffer_mut(), &app.config);
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        let text = format!("Window too small ({}x{}). Needs {}x{}.", area.width, area.height, MIN_SIZE.0, MIN_SIZE.1);
        return painter.rows(area, 0, 0, &wrap_text(&text, Role::Text, usize::from(area.width).max(1)));
    }
    let regions = regions(app);
    chrome::header(app, &mut painter, regions.header);
    painter.rule(regions.rule_top);
    painter.rule(regions.rule_bottom);
    match &app.overlay {
        Some(open) => open.draw(app, &mut painter, regions.overlay),
        None => {
            match app.activity.is_loading() {
                true => transcript::reading(app, &mut painter, regions.transcript),
                false => transcript::draw(app, &mut painter, regions.transcript),
            }
            chrome::sides(app, &mut painter, &regions);
            if let Some((.., text)) = app.open.other(app.size.0) {
                transcript::rows(text, None, &mut painter, regions.other, 0);
            }
            if regions.panel.width > 0 {
                panel::draw(app, &mut painter, regions.panel);
            }
            transcript::marker(app, &mut painter, regions.marker);
            chrome::below(app, &mut painter, &regions);
        }
    }
    let caret = chrome::composer(app, &mut painter, regions.composer);
    chrome::status(app, &mut painter, regions.status);
    let caret = match &app.open.find {
        Some(find) => find.draw(app, &mut painter, regions.hint).or(caret.filter(|_| !find.typing)),
        None => {
            chrome::hint(app, &mut painter, regions.hint);
            caret
        }
    };
    let mut caret = match &app.overlay {
        Some(Overlay::List(view)) => view.caret(regions.overlay),
        Some(_) => None,
        None => caret,
    };
    let (passive, asks): (Option<&Question>, Option<&Question>) = match app.questions.front() {
        Some(question) if question.standing == Standing::Asks => (None, Some(question)),
        passive => (passive, None),
    };
    if let Some(question) = passive {
        question.draw(&mut painter, regions.question);
    }
    if let Some(popup) = &app.popup {
        popup.draw(&mut painter, regions.overlay);
    }
    if let Some(question) = asks {
        let (body, keys) = (regions.overlay, regions.composer);
        match question.pick.as_ref().filter(|p| p.open) {
            Some(pick) => pick.draw(&mut painter, body, keys),
            None => {
                question.draw(&mut painter, regions.question);
                let shown = question.is_in_the_input(usize::from(keys.width));
                painter.keys(keys, question.keys().filter(|_| shown));
            }
        }
        caret = None;
    }
    if let Some(at) = caret {
        frame.set_cursor_position(at);
    }
}
