//! Draws the state into cells. Reads only.
//!
//! `tui::layout` supplies places, `tui` rows of text, and the palette colours, which [`theme`] adapts to the terminal.
//! The terminal's cursor is at the caret, or hidden when typing is impossible.

mod chrome;
pub mod clusters;
pub mod highlight;
mod list;
mod map;
mod overlay;
mod paint;
mod panel;
mod pick;
mod reading;
mod several;
pub mod theme;
mod themes;
mod transcript;

use ratatui::Frame;
use ratatui::layout::Rect;

use crate::tui::layout::{Area, MIN_SIZE, question_rows, regions, shown_question};
use crate::tui::rows::Role;
use crate::tui::wrap::wrap_text;
use crate::tui::{App, Question, Standing};
use paint::Painter;
use theme::Theme;

fn rect(area: Area) -> Rect {
    Rect { x: area.x, y: area.y, width: area.width, height: area.height }
}

pub fn draw(app: &App, frame: &mut Frame<'_>) {
    let theme = Theme::new(&app.config, app.palette());
    let area = frame.area();
    let mut painter = Painter::new(frame.buffer_mut(), theme);
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        let text = format!("Window too small ({}x{}). Needs {}x{}.", area.width, area.height, MIN_SIZE.0, MIN_SIZE.1);
        for (line, row) in (0..).zip(&wrap_text(&text, Role::Text, usize::from(area.width).max(1))) {
            painter.row(area, line, 0, row);
        }
        return;
    }
    let regions = regions(app);
    chrome::header(app, &mut painter, rect(regions.header));
    painter.rule(rect(regions.rule_top));
    painter.rule(rect(regions.rule_bottom));
    match (&app.overlay, &app.several) {
        (Some(open), _) => overlay::draw(app, open, &mut painter, rect(regions.overlay)),
        (None, Some(answers)) => {
            several::draw(answers, &mut painter, rect(regions.several));
            chrome::banner(app, &mut painter, rect(regions.banner));
            chrome::note(app, &mut painter, rect(regions.note));
            chrome::queue(app, &mut painter, rect(regions.queue));
        }
        (None, None) => {
            if app.activity.is_loading() {
                reading::draw(app, &mut painter, rect(regions.transcript));
            } else {
                transcript::draw(app, &mut painter, rect(regions.transcript));
            }
            chrome::sides(app, &mut painter, &regions);
            if let Some((.., text)) = app.tabs.other(app.size.0) {
                transcript::rows(text, None, &mut painter, rect(regions.other), 0);
            }
            if regions.panel.width > 0 {
                panel::draw(app, &mut painter, rect(regions.panel));
            }
            transcript::marker(app, &mut painter, rect(regions.marker));
            chrome::banner(app, &mut painter, rect(regions.banner));
            chrome::note(app, &mut painter, rect(regions.note));
            chrome::queue(app, &mut painter, rect(regions.queue));
        }
    }
    let caret = chrome::composer(app, &mut painter, rect(regions.composer));
    chrome::status(app, &mut painter, rect(regions.status));
    let caret = match &app.find {
        Some(find) => chrome::find(app, find, &mut painter, rect(regions.hint)).or(caret.filter(|_| !find.typing())),
        None => {
            chrome::hint(app, &mut painter, rect(regions.hint));
            caret
        }
    };
    let mut caret = if app.overlay.is_some() { overlay::caret(app, rect(regions.overlay)) } else { caret };
    let question = app.questions.front();
    let shown = question.map(|q| shown_question(app, q, regions.overlay.height, regions.below_question));
    let (passive, asks): (Option<&Question>, Option<&Question>) = match shown.as_deref() {
        Some(question) if question.standing == Standing::Asks => (None, Some(question)),
        passive => (passive, None),
    };
    let below = if app.overlay.is_some() { 0 } else { regions.below_question };
    let rows = |question: &Question| question_rows(app, question, regions.overlay.height);
    if let Some(question) = passive {
        overlay::question_text(&rows(question), &mut painter, rect(regions.overlay), below);
    }
    if let Some(popup) = &app.popup {
        overlay::popup(popup, &mut painter, rect(regions.overlay));
    }
    if let Some(question) = asks {
        let (body, keys) = (rect(regions.overlay), rect(regions.composer));
        match question.pick.as_ref().filter(|p| p.open) {
            Some(pick) => pick::draw(pick, &mut painter, body, keys),
            None => {
                overlay::question_text(&rows(question), &mut painter, body, below);
                overlay::question_keys(question, &mut painter, keys);
            }
        }
        caret = None;
    }
    if let Some(at) = caret {
        frame.set_cursor_position(at);
    }
}
