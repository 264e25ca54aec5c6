//! Writes text into cells: clipped at the right edge, never outside the area, wide characters whole. The looks of a
//! palette are adapted to the terminal. Background and foreground are the terminal's own unless a theme sets them. No
//! meaning depends on colour alone.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Clear, Widget};

use super::cells::width;
use super::options::{Depth, Glyphs, ThemeName, UiConfig};
use super::palette::{ANSI, Palette, rgb};
use super::rows::{Face, Role, Row, Span};
use crate::core::sanitize::sanitize_line;

pub struct Painter<'b> {
    buffer: &'b mut Buffer,
    palette: Palette,
    depth: Depth,
    glyphs: Glyphs,
}

impl<'b> Painter<'b> {
    pub fn new(buffer: &'b mut Buffer, config: &UiConfig) -> Self {
        let coloured = config.depth != Depth::None;
        let palette = if coloured { config.theme.clone() } else { Palette::built_in(ThemeName::Plain, false) };
        Painter { buffer, palette, depth: config.depth, glyphs: config.glyphs }
    }

    pub fn style(&self, face: Face) -> Style {
        let style = drawn(self.palette.look(face.role), self.depth);
        let marks =
            [(face.strong, Modifier::BOLD), (face.emphasis, Modifier::ITALIC), (face.struck, Modifier::CROSSED_OUT)];
        marks.into_iter().filter(|(on, _)| *on).fold(style, |style, (_, mark)| style.add_modifier(mark))
    }

    pub fn dash(&self) -> &'static str {
        self.glyphs.pick("─", "-")
    }
    pub fn bar(&self) -> &'static str {
        self.glyphs.pick("│", "|")
    }
    /// Corners of frames: top left, top right, bottom left, bottom right, left joint, right joint.
    pub fn corners(&self) -> [&'static str; 6] {
        self.glyphs.pick(["┌", "┐", "└", "┘", "├", "┤"], ["+"; 6])
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
            let style = self.style(span.face);
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

    /// A row of a list, marked if it is the selected one.
    pub fn choice(&mut self, area: Rect, line: u16, row: &Row, selected: bool) {
        self.row(area, line, 3, row);
        if selected {
            self.text(area, line, " > ", Face::from(Role::Key).bold());
            self.mark(area, line, Role::Selected);
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
            let style = self.style(role.into());
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
        let text = self.dash().repeat(usize::from(area.width));
        self.text(area, 0, &text, Role::Rule);
    }

    pub fn meter(&self, cells: usize, share: f64) -> String {
        let (full, empty) = (self.glyphs.pick("█", "#"), self.glyphs.pick("░", "."));
        let n = ((share.clamp(0.0, 1.0) * cells as f64).round() as usize).min(cells);
        format!("{}{}", full.repeat(n), empty.repeat(cells - n))
    }
}

fn drawn(look: Style, depth: Depth) -> Style {
    let (fg, bg) = (look.fg.map(|c| shown(c, depth)), look.bg.map(|c| shown(c, depth)));
    if fg.is_some() && fg == bg {
        return Style { fg: None, bg: None, ..look }.add_modifier(Modifier::REVERSED);
    }
    // The colour may equal the terminal's background: its own foreground is used.
    let unsafe_on_own = matches!(fg, Some(Color::Black | Color::Gray | Color::White)) && bg.is_none() && fg != look.fg;
    Style { fg: fg.filter(|_| !unsafe_on_own), bg, ..look }
}

fn shown(colour: Color, depth: Depth) -> Color {
    let Some(to) = rgb(colour) else { return colour };
    match (depth, colour) {
        (Depth::Fixed, Color::Rgb(..)) => {
            nearest(to, (16..=255).filter_map(|n| Some((Color::Indexed(n), rgb(Color::Indexed(n))?))))
        }
        (Depth::Sixteen, _) => nearest(to, ANSI.iter().map(|(_, colour, value)| (*colour, *value))),
        _ => colour,
    }
}

fn nearest((r, g, b): (u8, u8, u8), colours: impl Iterator<Item = (Color, (u8, u8, u8))>) -> Color {
    let apart = |a: u8, b: u8| (i32::from(a) - i32::from(b)).pow(2);
    let best = colours.min_by_key(|(_, c)| apart(c.0, r) + apart(c.1, g) + apart(c.2, b));
    best.map_or(Color::Reset, |(colour, _)| colour)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_the_colours_it_has() {
        let look = |words| crate::tui::palette::look(words).unwrap();
        let fg = |words, depth| drawn(look(words), depth).fg;
        assert_eq!(fg("#ff0505", Depth::Rgb), Some(Color::Rgb(255, 5, 5)));
        assert_eq!(fg("#ff0505", Depth::Fixed), Some(Color::Indexed(196)));
        assert_eq!(fg("#ff0505", Depth::Sixteen), Some(Color::LightRed));
        assert_eq!(fg("196", Depth::Fixed), Some(Color::Indexed(196)));
        assert_eq!(fg("green", Depth::Sixteen), Some(Color::Green));
        // A colour near the terminal's own background is replaced by its foreground.
        assert_eq!(fg("#101010", Depth::Sixteen), None);
        assert_eq!(fg("#f8f8f8", Depth::Sixteen), None);
        let same = drawn(look("#ff0505 on #ee0101"), Depth::Sixteen);
        assert!(same.add_modifier.contains(Modifier::REVERSED) && same.fg.is_none() && same.bg.is_none());
    }

    #[test]
    fn without_colour_there_is_none_whatever_the_theme() {
        let theme = Palette::read("t", "t", "[colours]\ntext = \"red on 236\"").unwrap();
        let config = UiConfig { theme, depth: Depth::None, ..UiConfig::default() };
        let mut buffer = Buffer::empty(Rect::new(0, 0, 1, 1));
        let drawn = Painter::new(&mut buffer, &config);
        for role in crate::tui::palette::ROLES.iter().map(|r| r.role).chain([Role::Ansi(3), Role::Rgb(1, 2, 3)]) {
            let style = drawn.style(role.into());
            assert_eq!((style.fg, style.bg), (None, None), "{role:?}");
        }
        let config = UiConfig { depth: Depth::Rgb, ..config };
        let mut buffer = Buffer::empty(Rect::new(0, 0, 1, 1));
        assert_eq!(Painter::new(&mut buffer, &config).style(Role::Text.into()).fg, Some(Color::Red));
    }
}
