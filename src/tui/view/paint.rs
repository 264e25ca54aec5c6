//! Writes text into cells: clipped at the right edge, never outside the area, wide characters whole.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::theme::Theme;
use crate::text::sanitize::sanitize_line;
use crate::tui::cells::width;
use crate::tui::rows::{Face, Role, Row, Span};

pub(super) struct Painter<'b> {
    buffer: &'b mut Buffer,
    pub(super) theme: Theme,
}

impl<'b> Painter<'b> {
    pub(super) fn new(buffer: &'b mut Buffer, theme: Theme) -> Self {
        Painter { buffer, theme }
    }

    /// Writes spans into row `line` of `area`, from column `x` on. Returns the column after them.
    pub(super) fn spans(&mut self, area: Rect, line: u16, x: u16, spans: &[Span]) -> u16 {
        let mut x = x;
        let screen = *self.buffer.area();
        let y = area.y.saturating_add(line);
        if line >= area.height || y >= screen.bottom() {
            return x;
        }
        let right = area.right().min(screen.right());
        for span in spans {
            let room = right.saturating_sub(area.x.saturating_add(x));
            if room == 0 {
                break;
            }
            let style = self.theme.style(span.face);
            // A last guard; text is sanitized on arrival.
            let text = sanitize_line(&span.text);
            let (end, _) = self.buffer.set_stringn(area.x + x, y, text, usize::from(room), style);
            x = end.saturating_sub(area.x);
        }
        x
    }

    pub(super) fn row(&mut self, area: Rect, line: u16, x: u16, row: &Row) -> u16 {
        self.spans(area, line, x, &row.spans)
    }

    pub(super) fn text(&mut self, area: Rect, line: u16, text: &str, face: impl Into<Face>) -> u16 {
        self.spans(area, line, 0, &[Span::new(text, face)])
    }

    pub(super) fn right(&mut self, area: Rect, line: u16, margin: u16, text: &str, face: impl Into<Face>) {
        let cells = u16::try_from(width(text)).unwrap_or(u16::MAX);
        let x = area.width.saturating_sub(cells.saturating_add(margin));
        self.spans(area, line, x, &[Span::new(text, face)]);
    }

    pub(super) fn mark(&mut self, area: Rect, line: u16, role: Role) {
        if line < area.height {
            let style = self.theme.style(role.into());
            self.buffer.set_style(Rect { y: area.y.saturating_add(line), height: 1, ..area }, style);
        }
    }

    pub(super) fn mark_cells(&mut self, area: Rect, line: u16, x: u16, cells: u16, role: Role) {
        let part = Rect { x: area.x.saturating_add(x), width: cells.min(area.width.saturating_sub(x)), ..area };
        self.mark(part, line, role);
    }

    pub(super) fn clear(&mut self, area: Rect) {
        for y in area.top()..area.bottom() {
            for x in area.left()..area.right() {
                if let Some(cell) = self.buffer.cell_mut((x, y)) {
                    cell.reset();
                }
            }
        }
    }

    pub(super) fn rule(&mut self, area: Rect) {
        let text = self.theme.dash().repeat(usize::from(area.width));
        self.text(area, 0, &text, Role::Rule);
    }

    pub(super) fn meter(&self, cells: usize, share: f64) -> String {
        let (full, empty) = self.theme.meter();
        let n = ((share.clamp(0.0, 1.0) * cells as f64).round() as usize).min(cells);
        format!("{}{}", full.repeat(n), empty.repeat(cells - n))
    }
}
