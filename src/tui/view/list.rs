//! A list over the transcript: its title, its filter, its rows with the selected one marked.

use ratatui::layout::Rect;

use super::paint::Painter;
use crate::tui::overlay::{Item, Kind, ListView};
use crate::tui::rows::{Face, Role, Row, Span};

pub(super) fn list(
    painter: &mut Painter<'_>,
    area: Rect,
    view: &ListView,
    columns: [&str; 2],
    show: impl Fn(&Item, usize) -> Row,
) {
    let list = &view.list;
    painter.text(area, 0, &format!(" {}", view.title), Role::Heading);
    let (count, total) = (list.shown().len(), list.items().len());
    let word = if count == total { format!("{total}") } else { format!("{count} of {total}") };
    painter.right(area, 0, 1, &word, Role::Dim);
    let mut top = 1;
    if view.kind.has_filter() {
        painter.spans(area, top, 1, &[Span::new("> ", Role::Key), Span::new(list.query(), Role::Text)]);
        top += 1;
    }
    let [left, right] = columns;
    if !left.is_empty() {
        painter.text(area, top, left, Role::Dim);
        painter.right(area, top, 1, right, Role::Dim);
        top += 1;
    }
    if count == 0 {
        let text = match (total, view.kind) {
            (0, Kind::Found) => "   No message of any session contains these words.",
            (0, _) => "   Nothing here yet.",
            _ => "   Nothing matches. Backspace widens the filter.",
        };
        painter.text(area, top, text, Role::Dim);
    }
    let height = usize::from(area.height).saturating_sub(usize::from(top) + 1).max(1);
    let first = list.first_row(height);
    let cells = usize::from(area.width).saturating_sub(4);
    for (i, item) in list.shown().enumerate().skip(first).take(height) {
        let Ok(line) = u16::try_from(i - first) else {
            break;
        };
        let chosen = i == list.selected_index();
        painter.text(area, top + line, if chosen { " > " } else { "   " }, Face::from(Role::Key).bold());
        painter.row(area, top + line, 3, &show(item, cells));
        if chosen {
            painter.mark(area, top + line, Role::Selected);
        }
    }
}
