//! Palettes: the look of every role. One table lists roles, their names and the built-in looks in the syntax of theme
//! files; [`mod@file`] reads such files.

mod contrast;
pub mod file;

use super::rows::Role;
use crate::config::settings::Theme as ThemeName;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Terminal,
    /// One of the terminal's 16 colours; only the terminal knows its value.
    Ansi(u8),
    /// 16 to 255: the fixed cube and greys of 256-colour terminals.
    Fixed(u8),
    Rgb(u8, u8, u8),
}

pub const ANSI: [&str; 16] = [
    "black",
    "red",
    "green",
    "yellow",
    "blue",
    "magenta",
    "cyan",
    "white",
    "bright-black",
    "bright-red",
    "bright-green",
    "bright-yellow",
    "bright-blue",
    "bright-magenta",
    "bright-cyan",
    "bright-white",
];

impl Colour {
    /// Accepts a name, a number or `#rrggbb`.
    fn parse(word: &str) -> Option<Colour> {
        if word == "default" {
            return Some(Colour::Terminal);
        }
        if let Some(hex) = word.strip_prefix('#') {
            let value = u32::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 6 && !hex.starts_with('+'))?;
            let [_, r, g, b] = value.to_be_bytes();
            return Some(Colour::Rgb(r, g, b));
        }
        let named = ANSI.iter().position(|name| *name == word).and_then(|n| u8::try_from(n).ok());
        named.or_else(|| word.parse().ok()).map(|n| if n < 16 { Colour::Ansi(n) } else { Colour::Fixed(n) })
    }

    /// `None` if it depends on the terminal.
    pub fn rgb(self) -> Option<(u8, u8, u8)> {
        match self {
            Colour::Terminal | Colour::Ansi(_) => None,
            Colour::Rgb(r, g, b) => Some((r, g, b)),
            Colour::Fixed(n @ 232..) => Some([8 + 10 * (n - 232); 3].into()),
            Colour::Fixed(n) => {
                let level = |i: u8| if i == 0 { 0 } else { 55 + 40 * i };
                let n = n.saturating_sub(16);
                Some((level(n / 36), level(n / 6 % 6), level(n % 6)))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Bold,
    Dim,
    Italic,
    Underlined,
    Reversed,
}

impl Mark {
    pub const ALL: [(&'static str, Mark); 5] = [
        ("bold", Mark::Bold),
        ("dim", Mark::Dim),
        ("italic", Mark::Italic),
        ("underlined", Mark::Underlined),
        ("reversed", Mark::Reversed),
    ];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    pub fg: Option<Colour>,
    pub bg: Option<Colour>,
    marks: u8,
}

impl Look {
    /// Accepts `green bold`, `#1d2021 on #fabd2f`.
    ///
    /// # Errors
    /// The unknown word, with the valid ones.
    pub fn parse(text: &str) -> Result<Look, String> {
        let mut look = Look::default();
        let mut after_on = false;
        for word in text.split_whitespace() {
            let word = word.to_lowercase();
            if word == "on" && !after_on {
                after_on = true;
            } else if let Some(colour) = Colour::parse(&word) {
                let place = if std::mem::take(&mut after_on) { &mut look.bg } else { &mut look.fg };
                if place.replace(colour).is_some() {
                    return Err(format!("{word} is one colour too many; the background follows \"on\""));
                }
            } else if let Some((_, mark)) = Mark::ALL.iter().find(|(name, _)| *name == word && !after_on) {
                look.marks |= mark.bit();
            } else {
                return Err(format!(
                    "{word} is not a colour: a colour is #rrggbb, 0 to 255, default, or one of {}; marks are bold, dim, \
                     italic, underlined, reversed",
                    ANSI[..8].join(", ")
                ));
            }
        }
        if after_on { Err("a colour is missing after \"on\"".into()) } else { Ok(look) }
    }

    pub fn has(self, mark: Mark) -> bool {
        self.marks & mark.bit() != 0
    }
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

        enum Place { $($Role),+ }

        /// `None` for code colours, which the code theme defines.
        const fn place(role: Role) -> Option<usize> {
            match role {
                $( Role::$Role => Some(Place::$Role as usize), )+
                Role::Ansi(_) | Role::Rgb(..) => None,
            }
        }
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

#[derive(Clone, Debug, PartialEq)]
pub struct Palette {
    pub name: String,
    looks: [Look; ROLES.len()],
    code: bool,
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
        let mut looks = [Look::default(); ROLES.len()];
        for (look, row) in looks.iter_mut().zip(ROLES) {
            // A test parses every row.
            *look = Look::parse(words(row)).unwrap_or_default();
        }
        Palette { name: theme.word().to_owned(), looks, code: theme != ThemeName::Plain }
    }

    pub fn look(&self, role: Role) -> Look {
        let code = |colour| Look { fg: Some(colour).filter(|_| self.code), ..Look::default() };
        match role {
            Role::Ansi(0 | 7 | 15..) => Look::default(),
            Role::Ansi(n) => code(Colour::Ansi(n)),
            Role::Rgb(r, g, b) => code(Colour::Rgb(r, g, b)),
            role => place(role).and_then(|i| self.looks.get(i)).copied().unwrap_or_default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ThemeRow {
    pub name: String,
    pub origin: String,
    pub palette: Result<Palette, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_looks_can_be_read_and_plain_has_no_colour() {
        for row in ROLES {
            for words in [row.plain, row.dark, row.light] {
                assert!(Look::parse(words).is_ok(), "{}: {words}", row.name);
            }
            assert_eq!(ROLES[place(row.role).unwrap()].name, row.name);
            let look = Palette::built_in(ThemeName::Plain, true).look(row.role);
            assert_eq!((look.fg, look.bg), (None, None), "{}", row.name);
        }
        let plain = Palette::built_in(ThemeName::Plain, false);
        assert_eq!(plain.look(Role::Rgb(1, 2, 3)), Look::default());
        let auto = |light| Palette::built_in(ThemeName::Auto, light).look(Role::Sala).fg;
        assert_eq!((auto(false), auto(true)), (Some(Colour::Ansi(6)), Some(Colour::Ansi(4))));
    }

    #[test]
    fn looks_are_words() {
        let look = Look::parse("#fabd2f on 236 Bold").unwrap();
        assert_eq!((look.fg, look.bg), (Some(Colour::Rgb(0xfa, 0xbd, 0x2f)), Some(Colour::Fixed(236))));
        assert!(look.has(Mark::Bold) && !look.has(Mark::Dim));
        assert_eq!(Look::parse("bright-red").unwrap().fg, Some(Colour::Ansi(9)));
        for (bad, why) in [
            ("pink", "pink is not a colour"),
            ("#12345", "#12345 is not a colour"),
            ("#+12345", "not a colour"),
            ("256", "256 is not a colour"),
            ("red blue", "one colour too many"),
            ("red on", "missing after"),
            ("on bold", "bold is not a colour"),
        ] {
            let error = Look::parse(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn fixed_colours_are_the_cube_and_the_greys() {
        assert_eq!(Colour::Fixed(16).rgb(), Some((0, 0, 0)));
        assert_eq!(Colour::Fixed(231).rgb(), Some((255, 255, 255)));
        assert_eq!(Colour::Fixed(196).rgb(), Some((255, 0, 0)));
        assert_eq!(Colour::Fixed(255).rgb(), Some((238, 238, 238)));
        assert_eq!(Colour::Ansi(1).rgb(), None);
    }
}
