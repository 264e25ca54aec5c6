//! Rows of the list of themes.

use ratatui::layout::Rect;

use crate::tui::cells::{ellipsis, fit, width};
use crate::tui::list::List;
use crate::tui::overlay::Item;
use crate::tui::palette::{ROLES, ThemeRow};
use crate::tui::rows::{Role, Row, Span};
use crate::tui::wrap::wrap_text;

pub(super) fn below(themes: &List<Item>, area: Rect) -> Vec<Row> {
    match themes.selected() {
        Some(Item::Theme(ThemeRow { palette: Err(why), .. })) => {
            wrap_text(why, Role::Error, usize::from(area.width).saturating_sub(4))
        }
        _ => sample(area),
    }
}

pub(super) fn row(row: &ThemeRow, cells: usize) -> Row {
    let (text, role) = match &row.palette {
        Ok(_) => (row.origin.as_str(), Role::Dim),
        Err(why) => (
            why.strip_prefix(&row.origin).map_or(why.as_str(), |rest| rest.trim_start_matches([',', ':', ' '])),
            Role::Error,
        ),
    };
    let name = fit(&row.name, 20.min(cells));
    let left = cells.saturating_sub(width(&name) + 2);
    Row::from(vec![Span::new(name, Role::Text), Span::new("  ", Role::Text), Span::new(ellipsis(text, left), role)])
}

fn sample(area: Rect) -> Vec<Row> {
    let mut sample = vec![Row::default()];
    let mut used = 0;
    for row in ROLES {
        let cells = width(row.name) + 2;
        if used + cells > usize::from(area.width).saturating_sub(4) {
            sample.push(Row::default());
            used = 0;
        }
        used += cells;
        if let Some(line) = sample.last_mut() {
            line.spans.extend([Span::new(row.name, row.role), Span::new("  ", Role::Text)]);
        }
    }
    sample
}
