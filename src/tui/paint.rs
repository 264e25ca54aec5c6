//! Writes text into cells: clipped at the right edge, never outside the area, wide characters whole.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::{Clear, Widget};

use super::theme::Theme;
use crate::core::sanitize::sanitize_line;
use crate::tui::cells::width;
use crate::tui::rows::{Face, Role, Row, Span};

pub struct Painter<'b> {
    buffer: &'b mut Buffer,
    pub theme: Theme,
}

impl<'b> Painter<'b> {
    pub fn new(buffer: &'b mut Buffer, theme: Theme) -> Self {
        Painter { buffer, theme }
    }

    /// Writes spans into row `line` of `area`, from column `x` on. Returns the column after them.
    pub fn spans(&mut self, area: Rect, line: u16, x: u16, spans: &[Span]) -> u16 {
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
            let text = sanitize_line(&span.text);
            let (end, _) = self.buffer.set_stringn(area.x + x, y, text, usize::from(room), style);
            x = end.saturating_sub(area.x);
        }
        x
    }

    pub fn row(&mut self, area: Rect, line: u16, x: u16, row: &Row) -> u16 {
        self.spans(area, line, x, &row.spans)
    }

    /// Rows one below the other, as many as fit.
    pub fn rows<'r>(&mut self, area: Rect, line: u16, x: u16, rows: impl IntoIterator<Item = &'r Row>) {
        for (line, row) in (line..area.height).zip(rows) {
            self.row(area, line, x, row);
        }
    }

    pub fn text(&mut self, area: Rect, line: u16, text: &str, face: impl Into<Face>) -> u16 {
        self.spans(area, line, 0, &[Span::new(text, face)])
    }

    pub fn right(&mut self, area: Rect, line: u16, margin: u16, text: &str, face: impl Into<Face>) {
        self.right_spans(area, line, margin, &[Span::new(text, face)]);
    }

    pub fn right_spans(&mut self, area: Rect, line: u16, margin: u16, spans: &[Span]) {
        let cells = u16::try_from(spans.iter().map(|s| width(&s.text)).sum::<usize>()).unwrap_or(u16::MAX);
        self.spans(area, line, area.width.saturating_sub(cells.saturating_add(margin)), spans);
    }

    /// Keys and what they do, in the place of the input.
    pub fn keys<'k>(&mut self, area: Rect, keys: impl IntoIterator<Item = (String, &'k str)>) {
        self.clear(area);
        let key =
            |(key, what)| [Span::new(key, Face::from(Role::Key).bold()), Span::new(format!(" {what}   "), Role::Text)];
        self.spans(area, 0, 2, &keys.into_iter().flat_map(key).collect::<Vec<_>>());
    }

    pub fn mark(&mut self, area: Rect, line: u16, role: Role) {
        if line < area.height {
            let style = self.theme.style(role.into());
            self.buffer.set_style(Rect { y: area.y.saturating_add(line), height: 1, ..area }, style);
        }
    }

    pub fn mark_cells(&mut self, area: Rect, line: u16, x: u16, cells: u16, role: Role) {
        let part = Rect { x: area.x.saturating_add(x), width: cells.min(area.width.saturating_sub(x)), ..area };
        self.mark(part, line, role);
    }

    pub fn clear(&mut self, area: Rect) {
        Clear.render(area, self.buffer);
    }

    pub fn rule(&mut self, area: Rect) {
        let text = self.theme.dash().repeat(usize::from(area.width));
        self.text(area, 0, &text, Role::Rule);
    }

    pub fn meter(&self, cells: usize, share: f64) -> String {
        let (full, empty) = self.theme.meter();
        let n = ((share.clamp(0.0, 1.0) * cells as f64).round() as usize).min(cells);
        format!("{}{}", full.repeat(n), empty.repeat(cells - n))
    }
}
