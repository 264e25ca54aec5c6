//! Adapts the looks of a palette to a terminal. Background and foreground are the terminal's own unless a theme sets
//! them. No meaning depends on colour alone.

use ratatui::style::{Color, Modifier, Style};

use crate::tui::options::{Depth, Glyphs, ThemeName, UiConfig};
use crate::tui::palette::{ANSI, Palette, rgb};
use crate::tui::rows::Face;
#[cfg(test)]
use crate::tui::rows::Role;

#[derive(Clone, Debug)]
pub struct Theme {
    palette: Palette,
    depth: Depth,
    glyphs: Glyphs,
}

impl Theme {
    pub fn new(config: &UiConfig, palette: &Palette) -> Theme {
        let coloured = config.depth != Depth::None;
        let palette = if coloured { palette.clone() } else { Palette::built_in(ThemeName::Plain, false) };
        Theme { palette, depth: config.depth, glyphs: config.glyphs }
    }

    pub fn style(&self, face: Face) -> Style {
        let mut style = drawn(self.palette.look(face.role), self.depth);
        if face.strong {
            style = style.add_modifier(Modifier::BOLD);
        }
        if face.emphasis {
            style = style.add_modifier(Modifier::ITALIC);
        }
        if face.struck {
            style = style.add_modifier(Modifier::CROSSED_OUT);
        }
        style
    }

    fn pick(&self, unicode: &'static str, ascii: &'static str) -> &'static str {
        match self.glyphs {
            Glyphs::Unicode => unicode,
            Glyphs::Ascii => ascii,
        }
    }

    pub fn dash(&self) -> &'static str {
        self.pick("─", "-")
    }
    pub fn bar(&self) -> &'static str {
        self.pick("│", "|")
    }
    /// Corners of frames: top left, top right, bottom left, bottom right, left joint, right joint.
    pub fn corners(&self) -> [&'static str; 6] {
        match self.glyphs {
            Glyphs::Unicode => ["┌", "┐", "└", "┘", "├", "┤"],
            Glyphs::Ascii => ["+"; 6],
        }
    }
    pub fn sparks(&self) -> &'static [&'static str] {
        match self.glyphs {
            Glyphs::Unicode => &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
            Glyphs::Ascii => &["_", ".", "-", "=", "^"],
        }
    }
    pub fn meter(&self) -> (&'static str, &'static str) {
        (self.pick("█", "#"), self.pick("░", "."))
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
        let drawn = Theme::new(&config, &config.theme);
        for role in crate::tui::palette::ROLES.iter().map(|r| r.role).chain([Role::Ansi(3), Role::Rgb(1, 2, 3)]) {
            let style = drawn.style(role.into());
            assert_eq!((style.fg, style.bg), (None, None), "{role:?}");
        }
        let config = UiConfig { depth: Depth::Rgb, ..config };
        assert_eq!(Theme::new(&config, &config.theme).style(Role::Text.into()).fg, Some(Color::Red));
    }
}
