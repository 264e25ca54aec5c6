//! Parallel answers.

use ratatui::layout::Rect;

use super::paint::Painter;
use crate::tui::rows::{Face, Role};
use crate::tui::several::{GAP, Several};

pub(super) fn draw(several: &Several, painter: &mut Painter<'_>, area: Rect) {
    painter.text(area, 0, " Answers side by side", Role::Heading);
    painter.text(area, area.height.saturating_sub(1), &format!(" {}", several.footer()), Role::Dim);
    let (cells, rows) = several.place();
    let number = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let bottom = area.bottom().saturating_sub(1);
    for (column, row, heading, shown) in several.shown() {
        let x = area.x.saturating_add(1).saturating_add(number(column * (cells + GAP)));
        let y = area.y.saturating_add(1).saturating_add(number(row * rows));
        if x >= area.right() || y >= bottom {
            continue;
        }
        let place = Rect { x, y, width: number(cells).min(area.right() - x), height: number(rows).min(bottom - y) };
        painter.text(place, 0, &heading, Face::from(Role::Key).bold());
        for (i, row) in shown.iter().enumerate() {
            painter.row(place, number(i + 1), 0, row);
        }
    }
}
