//! Adapts the looks of a palette to a terminal. Background and foreground are the terminal's own unless a theme sets
//! them. No meaning depends on colour alone.

use ratatui::style::{Color, Modifier, Style};

use crate::tui::options::{Depth, Glyphs, ThemeName, UiConfig};
use crate::tui::palette::{Colour, Look, Mark, Palette};
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
        let palette = if config.colour { palette.clone() } else { Palette::built_in(ThemeName::Plain, false) };
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

/// Usual values of the 16 colours, to map other colours to the nearest one.
const USUAL: [(u8, u8, u8); 16] = [
    (0, 0, 0),
    (205, 0, 0),
    (0, 205, 0),
    (205, 205, 0),
    (0, 0, 238),
    (205, 0, 205),
    (0, 205, 205),
    (229, 229, 229),
    (127, 127, 127),
    (255, 0, 0),
    (0, 255, 0),
    (255, 255, 0),
    (92, 92, 255),
    (255, 0, 255),
    (0, 255, 255),
    (255, 255, 255),
];

fn drawn(look: Look, depth: Depth) -> Style {
    let mut style = Style::new();
    for (mark, modifier) in [
        (Mark::Bold, Modifier::BOLD),
        (Mark::Dim, Modifier::DIM),
        (Mark::Italic, Modifier::ITALIC),
        (Mark::Underlined, Modifier::UNDERLINED),
        (Mark::Reversed, Modifier::REVERSED),
    ] {
        if look.has(mark) {
            style = style.add_modifier(modifier);
        }
    }
    let (fg, bg) = (look.fg.map(|c| shown(c, depth)), look.bg.map(|c| shown(c, depth)));
    if fg.is_some() && fg == bg {
        return style.add_modifier(Modifier::REVERSED);
    }
    match fg {
        // The colour may equal the terminal's background: its own foreground is used.
        Some(Colour::Ansi(0 | 7 | 15)) if look.bg.is_none() && fg != look.fg => {}
        Some(colour) => style = style.fg(cell(colour)),
        None => {}
    }
    if let Some(colour) = bg {
        style = style.bg(cell(colour));
    }
    style
}

fn shown(colour: Colour, depth: Depth) -> Colour {
    let (Some(rgb), false) = (colour.rgb(), depth == Depth::Rgb) else { return colour };
    match (depth, colour) {
        (Depth::Fixed, Colour::Rgb(..)) => {
            nearest(rgb, (16..=255).filter_map(|n| Some((Colour::Fixed(n), Colour::Fixed(n).rgb()?))))
        }
        (Depth::Sixteen, _) => nearest(rgb, (0..).map(Colour::Ansi).zip(USUAL)),
        _ => colour,
    }
}

fn nearest(to: (u8, u8, u8), colours: impl Iterator<Item = (Colour, (u8, u8, u8))>) -> Colour {
    let apart = |a: u8, b: u8| (i32::from(a) - i32::from(b)).pow(2);
    let (r, g, b) = to;
    let best = colours.min_by_key(|(_, c)| apart(c.0, r) + apart(c.1, g) + apart(c.2, b));
    best.map_or(Colour::Terminal, |(colour, _)| colour)
}

fn cell(colour: Colour) -> Color {
    const NAMES: [Color; 16] = [
        Color::Black,
        Color::Red,
        Color::Green,
        Color::Yellow,
        Color::Blue,
        Color::Magenta,
        Color::Cyan,
        Color::Gray,
        Color::DarkGray,
        Color::LightRed,
        Color::LightGreen,
        Color::LightYellow,
        Color::LightBlue,
        Color::LightMagenta,
        Color::LightCyan,
        Color::White,
    ];
    match colour {
        Colour::Terminal => Color::Reset,
        Colour::Ansi(n) => NAMES.get(usize::from(n)).copied().unwrap_or(Color::Reset),
        Colour::Fixed(n) => Color::Indexed(n),
        Colour::Rgb(r, g, b) => Color::Rgb(r, g, b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_the_colours_it_has() {
        let look = |words| Look::parse(words).unwrap();
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
        let config = UiConfig { theme, colour: false, ..UiConfig::default() };
        let drawn = Theme::new(&config, &config.theme);
        for role in crate::tui::palette::ROLES.iter().map(|r| r.role).chain([Role::Ansi(3), Role::Rgb(1, 2, 3)]) {
            let style = drawn.style(role.into());
            assert_eq!((style.fg, style.bg), (None, None), "{role:?}");
        }
        let config = UiConfig { colour: true, ..config };
        assert_eq!(Theme::new(&config, &config.theme).style(Role::Text.into()).fg, Some(Color::Red));
    }
}
