//! Places on the screen, for `update` (heights for scrolling) and `view` (drawing).

use ratatui::layout::Rect;

use super::options::{PANEL_FROM, Panel};
use super::rows::{Role, Row, first_rows};
use super::tour::Tour;
use super::transcript::Scroll;
use super::{App, entry};
use crate::runtime::protocol::{Level, SaveState};

pub const MIN_SIZE: (u16, u16) = (30, 8);
/// Below this size header and status line leave their rows to the transcript.
const FULL_SIZE: (u16, u16) = (60, 15);
pub const PANEL_CELLS: u16 = 46;
const NOTE_ROWS: usize = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    pub header: Rect,
    pub rule_top: Rect,
    pub transcript: Rect,
    pub heading: Rect,
    /// The other session of a split screen, with its heading and the line between; empty without one.
    pub other: Rect,
    pub other_heading: Rect,
    pub between: Rect,
    pub panel: Rect,
    /// Shown while the view does not follow the end.
    pub marker: Rect,
    pub banner: Rect,
    /// Place of the last note while the transcript is hidden.
    pub note: Rect,
    pub queue: Rect,
    pub rule_bottom: Rect,
    pub composer: Rect,
    pub status: Rect,
    pub hint: Rect,
    /// Above banner, note and queue if there is room for all, else over them.
    pub question: Rect,
    pub overlay: Rect,
    pub column_cells: usize,
}

pub fn panel_shown(app: &App) -> bool {
    app.size.0 >= PANEL_FROM
        && app.open.is_left(app.size.0).is_none()
        && app.panel.unwrap_or(app.config.ui.panel != Panel::Off)
}

fn composer_rows(app: &App) -> u16 {
    let cells = usize::from(app.size.0).saturating_sub(2);
    let limit = (app.size.1 / 3).clamp(3, 12);
    u16::try_from(app.open.composer.rows(cells).len()).unwrap_or(u16::MAX).clamp(1, limit)
}

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
        _ if app.open.view.view_only => {
            Some("VIEW ONLY: nothing can be added here; /fork makes a copy you can write in".to_string())
        }
        _ => None,
    }
}

pub fn greeting_height(greeting: &[Row]) -> usize {
    if greeting.is_empty() { 0 } else { greeting.len() + 2 }
}

/// The reason of the last refusal; otherwise the last note while the transcript is hidden.
pub fn note_rows(app: &App, cells: usize) -> Vec<Row> {
    if let Some(why) = &app.refusal {
        let look = entry::Look { cells, ..app.open.transcript.look() };
        return first_rows(entry::note_rows(Level::Error, why, look), NOTE_ROWS, cells);
    }
    let rows = if app.activity.is_loading() { app.open.transcript.last_note(app.requests, cells) } else { Vec::new() };
    first_rows(rows, NOTE_ROWS, cells)
}

pub fn regions(app: &App) -> Regions {
    let (width, height) = app.size;
    let row = |y: u16, rows: u16| Rect { x: 0, y, width, height: rows };
    let panel_cells = if panel_shown(app) { PANEL_CELLS } else { 0 };
    let left = width.saturating_sub(panel_cells + u16::from(panel_cells > 0));
    let composer = composer_rows(app);
    let side = app.open.is_left(width);
    let half = width.saturating_sub(1) / 2;
    let banner_cells = if side.is_some() { half } else { left };
    let note_cells = banner_cells.saturating_sub(u16::from(side.is_some()));
    let note = u16::try_from(note_rows(app, usize::from(note_cells)).len()).unwrap_or(0);
    let banner = banner_text(app).map_or(0, |(text, role)| {
        super::wrap::wrap_text(&text, role, usize::from(banner_cells).saturating_sub(2)).len().min(3)
    });
    let banner = u16::try_from(banner).unwrap_or(0);
    let queue = u16::try_from(app.open.queue.lines.len().min(2)).unwrap_or(0);
    let full = width >= FULL_SIZE.0 && height >= FULL_SIZE.1;
    let (top, status) = if full { (2, 1) } else { (0, 0) };
    let below = composer + 2 + status;
    let body = height.saturating_sub(top + below);
    let question = app.questions.front().map_or(0, |question| question.height(width).min(body));
    let below_text = banner + note + queue;
    let under_question = if app.overlay.is_some() { 0 } else { below_text.min(body - question) };
    let marker = u16::from(app.open.transcript.scroll() != Scroll::Follow && !app.activity.is_loading());
    let transcript_rows = body.saturating_sub(below_text + question + marker);
    let (column, x, other_x, heading) = match side {
        None => (left.min(app.config.ui.max_width).max(20), 0, 0, 0),
        Some(true) => (half.saturating_sub(1), 0, width - half, 1),
        Some(false) => (half.saturating_sub(1), width - half, 0, 1),
    };
    let cells = column.min(width);
    let text = |x: u16, rows: u16| Rect { x, y: top + heading, width: cells, height: rows.saturating_sub(heading) };
    let above = |x: u16| Rect { x, y: top, width: cells, height: heading };
    let (other, other_heading, between) = match side {
        None => Default::default(),
        Some(_) => (text(other_x, body), above(other_x), Rect { x: half, y: top, width: 1, height: body }),
    };
    let lower = top + body.saturating_sub(below_text);
    let own_width = |alone: u16| if side.is_some() { cells } else { alone };
    Regions {
        header: row(0, status),
        rule_top: row(1, status),
        transcript: text(x, transcript_rows),
        heading: above(x),
        other,
        other_heading,
        between,
        panel: Rect { x: width - panel_cells, y: top, width: panel_cells, height: body },
        marker: Rect { x, y: top + transcript_rows, width: cells, height: marker },
        banner: Rect { x, y: lower, width: own_width(left), height: banner },
        note: Rect { x, y: lower + banner, width: own_width(left), height: note },
        queue: Rect { x, y: lower + banner + note, width: own_width(left), height: queue },
        rule_bottom: row(top + body, 1),
        composer: row(top + body + 1, composer),
        status: row(top + body + 1 + composer, status),
        hint: row(top + body + 1 + composer + status, 1),
        question: row(top + body - under_question - question, question),
        overlay: row(top, body),
        column_cells: usize::from(cells),
    }
}
