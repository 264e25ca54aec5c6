//! Palettes: the look of every role. One table lists roles, their names and the built-in looks in the syntax of theme
//! files; [`mod@file`] reads such files.

pub mod file;

use ratatui::style::{Color, Modifier, Style};

use super::rows::Role;
use crate::config::settings::Theme as ThemeName;

/// The terminal's 16 colours: their names, and usual values to map other colours to the nearest one. Only the terminal
/// knows the values.
pub(super) const ANSI: [(&str, Color, (u8, u8, u8)); 16] = [
    ("black", Color::Black, (0, 0, 0)),
    ("red", Color::Red, (205, 0, 0)),
    ("green", Color::Green, (0, 205, 0)),
    ("yellow", Color::Yellow, (205, 205, 0)),
    ("blue", Color::Blue, (0, 0, 238)),
    ("magenta", Color::Magenta, (205, 0, 205)),
    ("cyan", Color::Cyan, (0, 205, 205)),
    ("white", Color::Gray, (229, 229, 229)),
    ("bright-black", Color::DarkGray, (127, 127, 127)),
    ("bright-red", Color::LightRed, (255, 0, 0)),
    ("bright-green", Color::LightGreen, (0, 255, 0)),
    ("bright-yellow", Color::LightYellow, (255, 255, 0)),
    ("bright-blue", Color::LightBlue, (92, 92, 255)),
    ("bright-magenta", Color::LightMagenta, (255, 0, 255)),
    ("bright-cyan", Color::LightCyan, (0, 255, 255)),
    ("bright-white", Color::White, (255, 255, 255)),
];

const MARKS: [(&str, Modifier); 5] = [
    ("bold", Modifier::BOLD),
    ("dim", Modifier::DIM),
    ("italic", Modifier::ITALIC),
    ("underlined", Modifier::UNDERLINED),
    ("reversed", Modifier::REVERSED),
];

/// A name, a number or `#rrggbb`.
fn colour(word: &str) -> Option<Color> {
    if word == "default" {
        return Some(Color::Reset);
    }
    if let Some(hex) = word.strip_prefix('#') {
        let value = u32::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 6 && !hex.starts_with('+'))?;
        let [_, r, g, b] = value.to_be_bytes();
        return Some(Color::Rgb(r, g, b));
    }
    let number: Option<u8> = word.parse().ok();
    let basic = ANSI.iter().zip(0..).find(|((name, ..), n)| *name == word || Some(*n) == number);
    basic.map(|((_, colour, _), _)| *colour).or(number.map(Color::Indexed))
}

/// `None` if it depends on the terminal.
pub(super) fn rgb(colour: Color) -> Option<(u8, u8, u8)> {
    match colour {
        Color::Rgb(r, g, b) => Some((r, g, b)),
        // The fixed greys and cube of 256-colour terminals.
        Color::Indexed(n @ 232..) => Some([8 + 10 * (n - 232); 3].into()),
        Color::Indexed(n) => {
            let level = |i: u8| if i == 0 { 0 } else { 55 + 40 * i };
            let n = n.saturating_sub(16);
            Some((level(n / 36), level(n / 6 % 6), level(n % 6)))
        }
        _ => None,
    }
}

/// Accepts `green bold`, `#1d2021 on #fabd2f`.
///
/// # Errors
/// The unknown word, with the valid ones.
pub(super) fn look(text: &str) -> Result<Style, String> {
    let mut look = Style::new();
    let mut after_on = false;
    for word in text.split_whitespace() {
        let word = word.to_lowercase();
        if word == "on" && !after_on {
            after_on = true;
        } else if let Some(colour) = colour(&word) {
            let place = if std::mem::take(&mut after_on) { &mut look.bg } else { &mut look.fg };
            if place.replace(colour).is_some() {
                return Err(format!("{word} is one colour too many; the background follows \"on\""));
            }
        } else if let Some((_, mark)) = MARKS.iter().find(|(name, _)| *name == word && !after_on) {
            look = look.add_modifier(*mark);
        } else {
            return Err(format!(
                "{word} is not a colour: a colour is #rrggbb, 0 to 255, default, or one of {}; marks are bold, dim, \
                 italic, underlined, reversed",
                ANSI[..8].iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ")
            ));
        }
    }
    if after_on { Err("a colour is missing after \"on\"".into()) } else { Ok(look) }
}

pub struct RoleRow {
    pub role: Role,
    pub name: &'static str,
    pub help: &'static str,
    plain: &'static str,
    dark: &'static str,
    light: &'static str,
}

macro_rules! roles {
    ($( $Role:ident $name:literal $help:literal: $plain:literal $dark:literal $light:literal; )+) => {
        pub const ROLES: &[RoleRow] = &[$(
            RoleRow { role: Role::$Role, name: $name, help: $help, plain: $plain, dark: $dark, light: $light },
        )+];
    };
}

roles! {
    //                                                               plain              dark                    light
    Text "text" "ordinary text":                                     ""                 ""                      "";
    Dim "dim" "labels, folded thoughts, decoration":                 "dim"              "dim"                   "dim";
    Heading "heading" "headings":                                    "bold"             "cyan bold"             "blue bold";
    Code "code" "code, where the code theme has no colour":          ""                 "yellow"                "magenta";
    Math "math" "equations":                                         ""                 "italic"                "italic";
    Link "link" "links":                                             "underlined"       "cyan underlined"       "blue underlined";
    Quote "quote" "quotations":                                      ""                 "green"                 "green";
    You "you" "your name and what is yours":                         "bold"             "green"                 "green";
    Sala "sala" "the model's name":                                  "bold"             "cyan"                  "blue";
    Document "document" "documents":                                 "bold"             "magenta"               "magenta";
    Info "info" "notes of the program":                              ""                 "dim"                   "dim";
    Warn "warn" "something to know":                                 "bold"             "yellow"                "magenta";
    Error "error" "something failed":                                "reversed"         "red bold"              "red bold";
    Alert "alert" "needs attention now":                               "reversed"         "red bold reversed"     "red bold reversed";
    Selected "selected" "the selected row of a list":                "reversed"         "reversed"              "reversed";
    Match "match" "what a search found":                             "bold underlined"  "yellow bold underlined" "magenta bold underlined";
    Rule "rule" "frames and lines":                                  "dim"              "dim"                   "dim";
    Key "key" "keys named in hints":                                 "bold"             "cyan"                  "blue";
}

/// `None` for code colours, which the code theme defines.
fn place(role: Role) -> Option<usize> {
    ROLES.iter().position(|row| row.role == role)
}

#[derive(Clone, Debug, PartialEq)]
pub struct Palette {
    pub name: String,
    looks: [Style; ROLES.len()],
    code: bool,
}

impl Default for Palette {
    fn default() -> Palette {
        Palette::built_in(ThemeName::Auto, false)
    }
}

impl Palette {
    /// `light`: the terminal reports a light background, which `auto` follows. Without a report `auto` is dark, which
    /// is readable on both.
    pub fn built_in(theme: ThemeName, light: bool) -> Palette {
        let words = |row: &RoleRow| match theme {
            ThemeName::Plain => row.plain,
            ThemeName::Light => row.light,
            ThemeName::Auto if light => row.light,
            ThemeName::Auto | ThemeName::Dark => row.dark,
        };
        let mut looks = [Style::new(); ROLES.len()];
        for (place, row) in looks.iter_mut().zip(ROLES) {
            // A test parses every row.
            *place = look(words(row)).unwrap_or_default();
        }
        Palette { name: theme.word().to_owned(), looks, code: theme != ThemeName::Plain }
    }

    pub fn look(&self, role: Role) -> Style {
        match role {
            Role::Ansi(0 | 7 | 15..) => Style::new(),
            Role::Ansi(n) => self.code(ANSI.get(usize::from(n)).map(|(_, colour, _)| *colour)),
            Role::Rgb(r, g, b) => self.code(Some(Color::Rgb(r, g, b))),
            role => place(role).and_then(|i| self.looks.get(i)).copied().unwrap_or_default(),
        }
    }

    fn code(&self, colour: Option<Color>) -> Style {
        Style { fg: colour.filter(|_| self.code), ..Style::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_looks_can_be_read_and_plain_has_no_colour() {
        for row in ROLES {
            for words in [row.plain, row.dark, row.light] {
                assert!(look(words).is_ok(), "{}: {words}", row.name);
            }
            assert_eq!(ROLES[place(row.role).unwrap()].name, row.name);
            let plain = Palette::built_in(ThemeName::Plain, true).look(row.role);
            assert_eq!((plain.fg, plain.bg), (None, None), "{}", row.name);
        }
        let plain = Palette::built_in(ThemeName::Plain, false);
        assert_eq!(plain.look(Role::Rgb(1, 2, 3)), Style::new());
        let auto = |light| Palette::built_in(ThemeName::Auto, light).look(Role::Sala).fg;
        assert_eq!((auto(false), auto(true)), (Some(Color::Cyan), Some(Color::Blue)));
    }

    #[test]
    fn looks_are_words() {
        let both = look("#fabd2f on 236 Bold").unwrap();
        assert_eq!((both.fg, both.bg), (Some(Color::Rgb(0xfa, 0xbd, 0x2f)), Some(Color::Indexed(236))));
        assert_eq!(both.add_modifier, Modifier::BOLD);
        assert_eq!(
            (look("bright-red").unwrap().fg, look("9").unwrap().fg),
            (Some(Color::LightRed), Some(Color::LightRed))
        );
        for (bad, why) in [
            ("pink", "pink is not a colour"),
            ("#12345", "#12345 is not a colour"),
            ("#+12345", "not a colour"),
            ("256", "256 is not a colour"),
            ("red blue", "one colour too many"),
            ("red on", "missing after"),
            ("on bold", "bold is not a colour"),
        ] {
            let error = look(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn fixed_colours_are_the_cube_and_the_greys() {
        assert_eq!(rgb(Color::Indexed(16)), Some((0, 0, 0)));
        assert_eq!(rgb(Color::Indexed(231)), Some((255, 255, 255)));
        assert_eq!(rgb(Color::Indexed(196)), Some((255, 0, 0)));
        assert_eq!(rgb(Color::Indexed(255)), Some((238, 238, 238)));
        assert_eq!(rgb(Color::Red), None);
    }
}
