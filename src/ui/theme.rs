//! Colours: what a role looks like. ANSI colours and attributes only; the background and the ordinary foreground are
//! the terminal's own. No colour carries meaning alone: words and marks say the same.

use ratatui::style::{Color, Modifier, Style};

use crate::app::options::{Glyphs, ThemeName, UiConfig};
use crate::app::rows::{Face, Role};

/// A palette and a set of characters.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    palette: ThemeName,
    glyphs: Glyphs,
}

impl Theme {
    /// From the options.
    pub fn new(config: &UiConfig) -> Theme {
        let palette = if config.colour { config.theme } else { ThemeName::Plain };
        Theme { palette, glyphs: config.glyphs }
    }

    /// How a piece of text looks.
    pub fn style(&self, face: Face) -> Style {
        let mut style = match self.palette {
            ThemeName::Plain => plain(face.role),
            // Without an answer from the terminal, dark: its colours are readable on both.
            ThemeName::Auto | ThemeName::Dark => coloured(face.role, Color::Cyan, Color::Yellow, Color::Green),
            ThemeName::Light => coloured(face.role, Color::Blue, Color::Magenta, Color::Green),
        };
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

    /// Horizontal line.
    pub fn dash(&self) -> &'static str {
        self.pick("─", "-")
    }
    /// Vertical line before messages.
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
    /// Columns of a sparkline, lowest first.
    pub fn sparks(&self) -> &'static [&'static str] {
        match self.glyphs {
            Glyphs::Unicode => &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
            Glyphs::Ascii => &["_", ".", "-", "=", "^"],
        }
    }
    /// Full and empty cell of a meter.
    pub fn meter(&self) -> (&'static str, &'static str) {
        (self.pick("█", "#"), self.pick("░", "."))
    }
}

fn plain(role: Role) -> Style {
    let style = Style::new();
    match role {
        Role::Text | Role::Info | Role::Code | Role::Math | Role::Ansi(_) | Role::Quote => style,
        Role::Dim | Role::Rule => style.add_modifier(Modifier::DIM),
        Role::Heading | Role::You | Role::Sala | Role::Document | Role::Warn | Role::Key => {
            style.add_modifier(Modifier::BOLD)
        }
        Role::Link => style.add_modifier(Modifier::UNDERLINED),
        Role::Match => style.add_modifier(Modifier::UNDERLINED | Modifier::BOLD),
        Role::Error | Role::Alert | Role::Selected => style.add_modifier(Modifier::REVERSED),
    }
}

fn coloured(role: Role, accent: Color, warn: Color, good: Color) -> Style {
    let style = Style::new();
    match role {
        Role::Text => style,
        Role::Dim | Role::Rule => style.add_modifier(Modifier::DIM),
        Role::Heading => style.fg(accent).add_modifier(Modifier::BOLD),
        Role::Code => style.fg(warn),
        Role::Math => style.add_modifier(Modifier::ITALIC),
        Role::Link => style.fg(accent).add_modifier(Modifier::UNDERLINED),
        Role::Match => style.fg(warn).add_modifier(Modifier::UNDERLINED | Modifier::BOLD),
        Role::Quote => style.fg(good),
        Role::You => style.fg(good),
        Role::Sala => style.fg(accent),
        Role::Document => style.fg(Color::Magenta),
        Role::Info => style.add_modifier(Modifier::DIM),
        Role::Warn => style.fg(warn),
        Role::Error => style.fg(Color::Red).add_modifier(Modifier::BOLD),
        Role::Alert => style.fg(Color::Red).add_modifier(Modifier::REVERSED | Modifier::BOLD),
        Role::Selected => style.add_modifier(Modifier::REVERSED),
        Role::Key => style.fg(accent),
        Role::Ansi(n) => style.fg(ansi(n)),
    }
}

fn ansi(n: u8) -> Color {
    const NAMES: [Color; 16] = [
        Color::Reset, // black on black cannot be read
        Color::Red,
        Color::Green,
        Color::Yellow,
        Color::Blue,
        Color::Magenta,
        Color::Cyan,
        Color::Reset, // white on white neither
        Color::DarkGray,
        Color::LightRed,
        Color::LightGreen,
        Color::LightYellow,
        Color::LightBlue,
        Color::LightMagenta,
        Color::LightCyan,
        Color::Reset,
    ];
    NAMES.get(usize::from(n)).copied().unwrap_or(Color::Reset)
}
