//! A list over the transcript: its title, its filter, its rows with the chosen one marked.

use ratatui::layout::Rect;

use super::paint::Painter;
use crate::tui::list::List;
use crate::tui::rows::{Face, Role, Row, Span};

/// What an empty list says.
pub(super) const NOTHING: &str = "   Nothing here yet.";

/// Whether letters filter a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// They do: what is typed stands above it.
    Typed,
    /// They mean something else.
    Without,
}

pub(super) fn list<T>(
    painter: &mut Painter<'_>,
    area: Rect,
    (title, filter): (&str, Filter),
    list: &List<T>,
    columns: &[&str],
    nothing: &str,
    show: impl Fn(&T, usize) -> Row,
) {
    painter.text(area, 0, &format!(" {title}"), Role::Heading);
    let count = list.shown().len();
    let total = list.items().len();
    let word = if count == total { format!("{total}") } else { format!("{count} of {total}") };
    painter.right(area, 0, 1, &word, Role::Dim);
    let mut top = 1;
    if filter == Filter::Typed {
        painter.spans(area, top, 1, &[Span::new("> ", Role::Key), Span::new(list.query(), Role::Text)]);
        top += 1;
    }
    if let [left, right] = columns {
        painter.text(area, top, left, Role::Dim);
        painter.right(area, top, 1, right, Role::Dim);
        top += 1;
    }
    if count == 0 {
        let text = if total == 0 { nothing } else { "   Nothing matches. Backspace widens the filter." };
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
