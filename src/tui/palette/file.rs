//! Theme files: TOML with `base` and a table `colours` of roles.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::{Palette, ROLES, look};
use crate::config::settings::Theme as ThemeName;
use crate::text::near::nearest;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    base: Option<Spanned<String>>,
    /// It had a use in earlier versions.
    #[serde(rename = "background")]
    _background: Option<IgnoredAny>,
    #[serde(default)]
    colours: BTreeMap<String, Spanned<String>>,
}

/// Where a file is wrong, and why.
type Fault = (Option<Range<usize>>, String);

impl Palette {
    /// Reads a theme file. Roles without an entry look as in the base, which is `dark` by default.
    ///
    /// # Errors
    /// One error, in one line with the file and its line.
    pub fn read(name: &str, path: &str, text: &str) -> Result<Palette, String> {
        read(name, text).map_err(|(span, what)| {
            let at = span.map_or(0, |span| span.start);
            let line = text.bytes().take(at).filter(|b| *b == b'\n').count() + 1;
            format!("{path}, line {line}: {}", what.lines().collect::<Vec<_>>().join(", "))
        })
    }
}

fn read(name: &str, text: &str) -> Result<Palette, Fault> {
    let file: File = toml::from_str(text).map_err(|e| (e.span(), e.message().to_owned()))?;
    let base = match &file.base {
        None => ThemeName::Dark,
        Some(word) => ThemeName::from_word(word.get_ref())
            .filter(|theme| *theme != ThemeName::Auto)
            .ok_or_else(|| (Some(word.span()), "base must be dark, light or plain".to_owned()))?,
    };
    let mut palette = Palette { name: name.to_owned(), ..Palette::built_in(base, false) };
    for (role, words) in &file.colours {
        let fault = |what: String| (Some(words.span()), what);
        let names = ROLES.iter().map(|row| row.name);
        let Some(place) = names.clone().position(|name| name == role) else {
            let near = nearest(role, names.clone()).map_or_else(
                || format!("there are {}", names.collect::<Vec<_>>().join(", ")),
                |near| format!("did you mean {near}?"),
            );
            return Err(fault(format!("unknown role {role}: {near}")));
        };
        let look = look(words.get_ref()).map_err(|why| fault(format!("{role}: {why}")))?;
        if look.fg.is_some() && look.fg == look.bg {
            return Err(fault(format!("{role}: text and background have the same colour")));
        }
        palette.looks[place] = look;
    }
    Ok(palette)
}

#[cfg(test)]
mod tests {
    use ratatui::style::Color;

    use super::*;
    use crate::tui::rows::Role;

    #[test]
    fn a_file_changes_the_roles_that_it_names() {
        let text = "base = \"light\"\n[colours]\nyou = \"#657b00 bold\"\nselected = \"white on blue\"\n";
        let palette = Palette::read("mine", "mine.toml", text).unwrap();
        assert_eq!(palette.name, "mine");
        assert_eq!(palette.look(Role::You).fg, Some(Color::Rgb(0x65, 0x7b, 0)));
        assert_eq!(palette.look(Role::Selected).bg, Some(Color::Blue));
        assert_eq!(palette.look(Role::Sala), Palette::built_in(ThemeName::Light, false).look(Role::Sala));
        assert_eq!(Palette::read("e", "e", "").unwrap().look(Role::Sala).fg, Some(Color::Cyan));
        assert_eq!(
            Palette::read("i", "i", "colours = { you = \"red\" }").unwrap().look(Role::You).fg,
            Some(Color::Red)
        );
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, line, why) in [
            ("\nbase = \"auto\"", 2, "base must be dark, light or plain"),
            ("[colors]\nyou = \"red\"", 1, "unknown field `colors`, expected one of `base`"),
            ("[colours]\n\nyuo = \"red\"", 3, "unknown role yuo: did you mean you?"),
            ("[colours]\nyou = \"rred\"", 2, "you: rred is not a colour"),
            ("[colours]\nyou = 3", 2, "expected a string"),
            ("[colours]\nyou = \"red on red\"", 2, "the same colour"),
            ("colours = 3", 1, "expected a map"),
            ("a = = 2", 1, ""),
        ] {
            let error = Palette::read("t", "t.toml", text).unwrap_err();
            assert!(error.starts_with(&format!("t.toml, line {line}: ")) && error.contains(why), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
