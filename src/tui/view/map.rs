//! The map of the context: over the transcript, and small in the panel.

use ratatui::layout::Rect;

use super::paint::Painter;
use crate::runtime::protocol::ContextMap;
use crate::tui::cells::ellipsis;
use crate::tui::map::{Cell, MapView};
use crate::tui::rows::{Face, Role, Span};

const LEGEND: &str = "S system  D document  T turn  1-3 the passages  bright: looked at";

fn face(cell: &Cell) -> Face {
    match (cell.passage.is_some(), cell.is_looked_at(), cell.stretch.is_some()) {
        (true, _, _) => Face::from(Role::Key).bold(),
        (false, true, _) => Face::from(Role::Text).bold(),
        (false, false, _) => Role::Dim.into(),
    }
}

pub(super) fn spans(map: &ContextMap, cells: &[Cell]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for cell in cells {
        let (letter, face) = (cell.letter(map), face(cell));
        match spans.last_mut().filter(|s| s.face == face) {
            Some(span) => span.text.push(letter),
            None => spans.push(Span::new(letter.to_string(), face)),
        }
    }
    spans
}

pub(super) fn draw(view: &MapView, painter: &mut Painter<'_>, area: Rect) {
    painter.text(area, 0, " Context", Face::from(Role::Heading).bold());
    painter.right(area, 0, 1, LEGEND, Role::Dim);
    let rows = view.cells.chunks(view.row().max(1));
    for (y, row) in (2..area.height.saturating_sub(2)).zip(rows) {
        painter.spans(area, y, 2, &spans(&view.map, row));
    }
    let (x, y) = (view.at % view.row().max(1), view.at / view.row().max(1));
    if let (Ok(x), Ok(y)) = (u16::try_from(x + 2), u16::try_from(y + 2))
        && !view.cells.is_empty()
    {
        painter.mark_cells(area, y, x, 1, Role::Selected);
    }
    let about = ellipsis(&view.about(), usize::from(area.width).saturating_sub(3));
    painter.text(area, area.height.saturating_sub(2), &format!("  {about}"), Role::Text);
}
