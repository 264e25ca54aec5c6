//! Where things are on the screen. Shared by `update` (heights for scrolling) and `ui` (painting), so that both agree.

use super::App;
use super::options::Panel;
use super::rows::Role;
use super::tour::Tour;
use super::transcript::Scroll;
use crate::protocol::desk::SaveState;

/// Smallest usable terminal.
pub const MIN_SIZE: (u16, u16) = (60, 15);
/// From here on there is room for the side panel.
pub const PANEL_FROM: u16 = 120;
/// Cells of the panel.
pub const PANEL_CELLS: u16 = 46;

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
    /// Side panel, empty if hidden.
    pub panel: Area,
    /// Says that the view does not follow the end, empty while it does.
    pub marker: Area,
    /// What cannot be overlooked, empty if all is well.
    pub banner: Area,
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
    /// Room for pages and lists: transcript, panel, banner and queue.
    pub overlay: Area,
    /// Cells of the text column.
    pub column_cells: usize,
}

/// Whether the panel is on screen.
pub fn panel_shown(app: &App) -> bool {
    app.size.0 >= PANEL_FROM && app.panel.unwrap_or(app.config.panel != Panel::Off)
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

/// Computes all places for the current state.
pub fn regions(app: &App) -> Regions {
    let (width, height) = app.size;
    let row = |y: u16, rows: u16| Area { x: 0, y, width, height: rows };
    let panel_cells = if panel_shown(app) { PANEL_CELLS } else { 0 };
    let left = width.saturating_sub(panel_cells + u16::from(panel_cells > 0));
    let composer = composer_rows(app);
    let banner = banner_text(app).map_or(0, |(text, role)| {
        super::wrap::wrap_text(&text, role, usize::from(left).saturating_sub(2)).len().min(3)
    });
    let banner = u16::try_from(banner).unwrap_or(0);
    let queue = u16::try_from(app.queue.lines.len().min(2)).unwrap_or(0);
    let below = composer + 3;
    let body = height.saturating_sub(2 + below);
    let top = 2;
    let marker = u16::from(app.transcript.scroll() != Scroll::Follow && !app.activity.is_loading());
    let transcript_rows = body.saturating_sub(banner + queue + marker);
    let column = left.min(app.config.max_width).max(20);
    Regions {
        header: row(0, 1),
        rule_top: row(1, 1),
        transcript: Area { x: 0, y: top, width: column.min(width), height: transcript_rows },
        panel: Area { x: width - panel_cells, y: top, width: panel_cells, height: body },
        marker: Area { x: 0, y: top + transcript_rows, width: column.min(width), height: marker },
        banner: Area { x: 0, y: top + transcript_rows + marker, width: left, height: banner },
        queue: Area { x: 0, y: top + transcript_rows + marker + banner, width: left, height: queue },
        rule_bottom: row(top + body, 1),
        composer: row(top + body + 1, composer),
        status: row(top + body + 1 + composer, 1),
        hint: row(top + body + 2 + composer, 1),
        overlay: row(top, body),
        column_cells: usize::from(column.min(width)),
    }
}
