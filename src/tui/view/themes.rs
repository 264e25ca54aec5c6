//! The list of themes.

use ratatui::layout::Rect;

use super::list::{Filter, NOTHING, list};
use super::paint::Painter;
use crate::tui::cells::{ellipsis, fit, width};
use crate::tui::list::List;
use crate::tui::palette::{ROLES, ThemeRow};
use crate::tui::rows::{Role, Row, Span};
use crate::tui::wrap::wrap_text;

/// The themes, with every role below them as the selected one colours it, or what is wrong with it.
pub(super) fn draw(themes: &List<ThemeRow>, painter: &mut Painter<'_>, area: Rect) {
    let wrong = themes.selected().and_then(|row| row.palette.as_ref().err());
    let sample = match wrong {
        // It is drawn with another one: what is wrong with it stands there in full.
        Some(why) => {
            let rows = wrap_text(why, Role::Error, usize::from(area.width).saturating_sub(4));
            rows.into_iter().map(|row| row.spans).collect()
        }
        None => sample(area),
    };
    let below = u16::try_from(sample.len() + 1).unwrap_or(area.height).min(area.height);
    let top = Rect { height: area.height - below, ..area };
    list(painter, top, ("Themes", Filter::Typed), themes, &[], NOTHING, |row, cells| {
        let (text, role) = match &row.palette {
            Ok(_) => (row.origin.as_str(), Role::Dim),
            // Its name stands before it.
            Err(why) => (
                why.strip_prefix(&row.origin).map_or(why.as_str(), |rest| rest.trim_start_matches([',', ':', ' '])),
                Role::Error,
            ),
        };
        let name = fit(&row.name, 20.min(cells));
        let left = cells.saturating_sub(width(&name) + 2);
        Row::from(vec![Span::new(name, Role::Text), Span::new("  ", Role::Text), Span::new(ellipsis(text, left), role)])
    });
    for (y, line) in (area.height.saturating_sub(below)..).zip(&sample) {
        painter.spans(area, y, 2, line);
    }
}

/// Every role in its colours, in rows.
fn sample(area: Rect) -> Vec<Vec<Span>> {
    let mut sample: Vec<Vec<Span>> = vec![Vec::new()];
    let mut used = 0;
    for row in ROLES {
        let cells = width(row.name) + 2;
        if used + cells > usize::from(area.width).saturating_sub(4) {
            sample.push(Vec::new());
            used = 0;
        }
        used += cells;
        if let Some(line) = sample.last_mut() {
            line.extend([Span::new(row.name, row.role), Span::new("  ", Role::Text)]);
        }
    }
    sample
}
