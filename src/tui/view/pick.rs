//! The list of a load's files with a mark on each, and the total of the marked ones.

use ratatui::layout::Rect;

use super::overlay::keys;
use super::paint::Painter;
use crate::tui::cells::{fit, width};
use crate::tui::entry::grouped;
use crate::tui::pick::FilePick;
use crate::tui::rows::{Role, Row, Span};

pub(super) fn draw(pick: &FilePick, painter: &mut Painter<'_>, body: Rect, composer: Rect) {
    painter.clear(body);
    painter.text(body, 0, " Files to load", Role::Heading);
    painter.text(body, 1, "       file", Role::Dim);
    painter.right(body, 1, 1, "    tokens              ", Role::Dim);
    let files = &pick.plan().files;
    // Title, header, a blank row and the total take four rows.
    let room = usize::from(body.height.saturating_sub(4)).max(1);
    let first = pick.selected().saturating_sub(room / 2).min(files.len().saturating_sub(room));
    let cells = usize::from(body.width).saturating_sub(4);
    for (i, file) in files.iter().enumerate().skip(first).take(room) {
        let Ok(line) = u16::try_from(i - first + 2) else {
            break;
        };
        let mark = if pick.is_chosen(i) { "[x] " } else { "[ ] " };
        let kept = if file.kept { "from library" } else { "" };
        let tail = format!("{:>10}  {kept:<12}", grouped(file.tokens));
        let role = if pick.is_chosen(i) { Role::Text } else { Role::Dim };
        let name = fit(&file.name, cells.saturating_sub(width(&tail) + 5));
        let row = Row {
            spans: vec![Span::new(mark, Role::Key), Span::new(format!("{name} "), role), Span::new(tail, Role::Dim)],
            ..Row::default()
        };
        if i == pick.selected() {
            painter.text(body, line, " > ", Role::Key);
        }
        painter.row(body, line, 3, &row);
        if i == pick.selected() {
            painter.mark(body, line, Role::Selected);
        }
    }
    let role = if pick.over() > 0 { Role::Warn } else { Role::Text };
    painter.text(body, body.height.saturating_sub(1), &format!(" {}", pick.summary()), role);
    let shown = [("Space", "in/out"), ("a", "all/none"), ("Enter", "load these"), ("Esc", "back")];
    keys(painter, composer, shown.into_iter().map(|(k, what)| (k.to_string(), what)));
}
