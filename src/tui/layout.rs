//! Where things are on the screen. Shared by `update` (heights for scrolling) and `ui` (painting), so that both agree.

use std::borrow::Cow;

use super::options::{PANEL_FROM, Panel};
use super::rows::{Role, Row};
use super::tabs::Side;
use super::tour::Tour;
use super::transcript::Scroll;
use super::{App, Question};
use crate::runtime::protocol::SaveState;

/// Smallest usable terminal.
pub const MIN_SIZE: (u16, u16) = (60, 15);
/// Cells of the panel.
pub const PANEL_CELLS: u16 = 46;

/// Rows of a note outside of the transcript at most.
const NOTE_ROWS: usize = 3;

/// A rectangle of cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Left column.
    pub x: u16,
    /// Top row.
    pub y: u16,
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// The screen, from top to bottom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// Title and meters, one row.
    pub header: Area,
    /// Below it.
    pub rule_top: Area,
    /// Text column.
    pub transcript: Area,
    /// Above it, while another session is shown beside it; else empty.
    pub heading: Area,
    /// The session beside it, the row above that and the line between them; empty without one.
    pub other: Area,
    /// See [`Regions::other`].
    pub other_heading: Area,
    /// See [`Regions::other`].
    pub between: Area,
    /// Side panel, empty if hidden.
    pub panel: Area,
    /// Says that the view does not follow the end, empty while it does.
    pub marker: Area,
    /// What cannot be overlooked, empty if all is well.
    pub banner: Area,
    /// The last note, while something else stands in the transcript's place; else empty.
    pub note: Area,
    /// Messages that wait.
    pub queue: Area,
    /// Above the input.
    pub rule_bottom: Area,
    /// Input, with its `> `.
    pub composer: Area,
    /// Status line.
    pub status: Area,
    /// Hints.
    pub hint: Area,
    /// Room for answers that are written side by side: transcript and panel, above a question.
    pub several: Area,
    /// Rows of banner, note and queue, above which a question stands.
    pub below_question: u16,
    /// Room for pages and lists: transcript, panel, banner and queue.
    pub overlay: Area,
    /// Cells of the text column.
    pub column_cells: usize,
}

/// Whether the panel is on screen.
pub fn panel_shown(app: &App) -> bool {
    app.size.0 >= PANEL_FROM
        && app.tabs.side(app.size.0).is_none()
        && app.panel.unwrap_or(app.config.panel != Panel::Off)
}

/// Rows the input takes.
fn composer_rows(app: &App) -> u16 {
    let cells = usize::from(app.size.0).saturating_sub(2);
    let limit = (app.size.1 / 3).clamp(3, 12);
    u16::try_from(app.composer.rows(cells).len()).unwrap_or(u16::MAX).clamp(1, limit)
}

/// The text of the banner and how it is drawn: what is wrong, else the step of the tour.
pub fn banner_text(app: &App) -> Option<(String, Role)> {
    let step = || app.tour.as_ref().and_then(Tour::text).map(|text| (text, Role::Key));
    alarm(app).map(|text| (text, Role::Alert)).or_else(step)
}

fn alarm(app: &App) -> Option<String> {
    match &app.save {
        SaveState::NotSaved(why) => {
            let colon = if why.starts_with("since") { "" } else { ":" };
            Some(format!("NOT SAVED{colon} {why}"))
        }
        SaveState::Empty | SaveState::Saved(_) | SaveState::Saving | SaveState::TextOnly(_) | SaveState::Off => app
            .session
            .view_only
            .then(|| "VIEW ONLY: nothing can be added here; /fork makes a copy you can write in".to_string()),
    }
}

/// Rows that a greeting takes above the transcript's own: a blank row before and behind it.
pub fn greeting_height(greeting: &[Row]) -> usize {
    if greeting.is_empty() { 0 } else { greeting.len() + 2 }
}

/// The last note about what was entered last, where the transcript that holds it is not on the screen.
pub fn note_rows(app: &App, cells: usize) -> Vec<Row> {
    let hidden = app.activity.is_loading() || app.several.is_some();
    let rows = if hidden { app.transcript.last_note(app.requests, cells) } else { Vec::new() };
    rows.into_iter().take(NOTE_ROWS).collect()
}

/// The rows of a question above the input, in a body of so many rows. Answers side by side are what it is about: choices that would
/// take half of their room stand several in a row.
pub fn question_rows(app: &App, question: &Question, body: u16) -> Vec<Row> {
    let height = if app.several.is_some() { body / 2 } else { body };
    question.rows(usize::from(app.size.0), usize::from(height))
}

/// A question as it is shown in a body of so many rows, above so many rows `below` it. Where leaving out what its numbers mean leaves
/// all the answers that it chooses from in sight, they are not told once more.
pub fn shown_question<'a>(app: &App, question: &'a Question, body: u16, below: u16) -> Cow<'a, Question> {
    let chooses = app.overlay.is_none() && question.is_the_desks() && question.pick.is_none();
    let Some(several) = app.several.as_ref().filter(|_| chooses) else {
        return Cow::Borrowed(question);
    };
    let short = question.without_labels();
    let rows = several_rows(body, below, question_height(app, &short, body));
    match several.is_in_sight(usize::from(app.size.0), usize::from(rows)) {
        true => Cow::Owned(short),
        false => Cow::Borrowed(question),
    }
}

/// The rows of a question and its rule.
fn question_height(app: &App, question: &Question, body: u16) -> u16 {
    u16::try_from(question_rows(app, question, body).len() + 1).unwrap_or(body).min(body)
}

/// What a body has left for answers side by side.
fn several_rows(body: u16, below: u16, question: u16) -> u16 {
    body.saturating_sub(below + question)
}

/// Computes all places for the current state.
pub fn regions(app: &App) -> Regions {
    let (width, height) = app.size;
    let row = |y: u16, rows: u16| Area { x: 0, y, width, height: rows };
    let panel_cells = if panel_shown(app) { PANEL_CELLS } else { 0 };
    let left = width.saturating_sub(panel_cells + u16::from(panel_cells > 0));
    let composer = composer_rows(app);
    let banner_cells = if app.tabs.side(width).is_some() { width.saturating_sub(1) / 2 } else { left };
    let note_cells = if app.tabs.side(width).is_some() { banner_cells.saturating_sub(1) } else { left };
    let note = u16::try_from(note_rows(app, usize::from(note_cells)).len()).unwrap_or(0);
    let banner = banner_text(app).map_or(0, |(text, role)| {
        super::wrap::wrap_text(&text, role, usize::from(banner_cells).saturating_sub(2)).len().min(3)
    });
    let banner = u16::try_from(banner).unwrap_or(0);
    let queue = u16::try_from(app.queue.lines.len().min(2)).unwrap_or(0);
    let below = composer + 3;
    let body = height.saturating_sub(2 + below);
    let top = 2;
    let below_question = banner + note + queue;
    let question = app.questions.front().filter(|_| app.several.is_some());
    let question = question.map_or(0, |q| question_height(app, &shown_question(app, q, body, below_question), body));
    let marker = u16::from(app.transcript.scroll() != Scroll::Follow && !app.activity.is_loading());
    let transcript_rows = body.saturating_sub(below_question + marker);
    let side = app.tabs.side(width);
    let half = width.saturating_sub(1) / 2;
    let (column, x, other_x, heading) = match side {
        None => (left.min(app.config.max_width).max(20), 0, 0, 0),
        Some(Side::Left) => (half.saturating_sub(1), 0, width - half, 1),
        Some(Side::Right) => (half.saturating_sub(1), width - half, 0, 1),
    };
    let cells = column.min(width);
    let text = |x: u16, rows: u16| Area { x, y: top + heading, width: cells, height: rows.saturating_sub(heading) };
    let above = |x: u16| Area { x, y: top, width: cells, height: heading };
    let (other, other_heading, between) = match side {
        None => Default::default(),
        Some(_) => (text(other_x, body), above(other_x), Area { x: half, y: top, width: 1, height: body }),
    };
    let beside = |alone: u16| if side.is_some() { cells } else { alone };
    Regions {
        header: row(0, 1),
        rule_top: row(1, 1),
        transcript: text(x, transcript_rows),
        heading: above(x),
        other,
        other_heading,
        between,
        panel: Area { x: width - panel_cells, y: top, width: panel_cells, height: body },
        marker: Area { x, y: top + transcript_rows, width: cells, height: marker },
        banner: Area { x, y: top + transcript_rows + marker, width: beside(left), height: banner },
        note: Area { x, y: top + transcript_rows + marker + banner, width: beside(left), height: note },
        queue: Area { x, y: top + transcript_rows + marker + banner + note, width: beside(left), height: queue },
        rule_bottom: row(top + body, 1),
        composer: row(top + body + 1, composer),
        status: row(top + body + 1 + composer, 1),
        hint: row(top + body + 2 + composer, 1),
        several: row(top, several_rows(body, below_question, question)),
        below_question,
        overlay: row(top, body),
        column_cells: usize::from(cells),
    }
}
