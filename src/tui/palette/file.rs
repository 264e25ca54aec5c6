//! Theme files: TOML with `base` and a table `colours` of roles.

use std::ops::Range;

use toml_edit::{Document, Item};

use super::{Palette, ROLES, look, place};
use crate::config::settings::Theme as ThemeName;
use crate::text::near::nearest;

/// `background` had a use in earlier versions.
const KEYS: [&str; 3] = ["base", "background", "colours"];

struct Fault {
    at: usize,
    what: String,
}

fn fault(span: Option<Range<usize>>, what: impl Into<String>) -> Fault {
    Fault { at: span.map_or(0, |s| s.start), what: what.into() }
}

impl Palette {
    /// Reads a theme file. Roles without an entry look as in the base, which is `dark` by default.
    ///
    /// # Errors
    /// The first error: one line with the file and its line.
    pub fn read(name: &str, path: &str, text: &str) -> Result<Palette, String> {
        read(name, text).map_err(|Fault { at, what }| {
            let line = text.bytes().take(at).filter(|b| *b == b'\n').count() + 1;
            format!("{path}, line {line}: {what}")
        })
    }
}

fn read(name: &str, text: &str) -> Result<Palette, Fault> {
    let document =
        Document::parse(text).map_err(|e| fault(e.span(), e.message().lines().collect::<Vec<_>>().join(", ")))?;
    let table = document.as_table();
    for (key, item) in table.iter() {
        if !KEYS.contains(&key) {
            let near = nearest(key, KEYS).map_or_else(|| KEYS.join(", "), |n| format!("did you mean {n}?"));
            let span = table.key(key).and_then(toml_edit::Key::span).or(item.span());
            return Err(fault(span, format!("unknown key {key}: {near}")));
        }
    }
    let base = match table.get("base") {
        None => ThemeName::Dark,
        Some(item) => item
            .as_str()
            .and_then(ThemeName::from_word)
            .filter(|t| *t != ThemeName::Auto)
            .ok_or_else(|| fault(item.span(), "base must be dark, light or plain"))?,
    };
    let mut palette = Palette { name: name.to_owned(), ..Palette::built_in(base, false) };
    if let Some(item) = table.get("colours") {
        let colours = item.as_table_like().ok_or_else(|| fault(item.span(), "colours must be a table: [colours]"))?;
        for (role, value) in colours.iter() {
            role_look(&mut palette, role, value)?;
        }
    }
    Ok(palette)
}

fn role_look(palette: &mut Palette, role: &str, value: &Item) -> Result<(), Fault> {
    let here = |what: String| fault(value.span(), what);
    let Some(row) = ROLES.iter().find(|r| r.name == role) else {
        let names = ROLES.iter().map(|r| r.name);
        let near = nearest(role, names.clone()).map_or_else(
            || format!("there are {}", names.collect::<Vec<_>>().join(", ")),
            |n| format!("did you mean {n}?"),
        );
        return Err(here(format!("unknown role {role}: {near}")));
    };
    let words =
        value.as_str().ok_or_else(|| here(format!("{role} must be text in quotes, for example \"green bold\"")))?;
    let look = look(words).map_err(|why| here(format!("{role}: {why}")))?;
    if look.fg.is_some() && look.fg == look.bg {
        return Err(here(format!("{role}: text and background have the same colour")));
    }
    if let Some(place) = place(row.role).and_then(|i| palette.looks.get_mut(i)) {
        *place = look;
    }
    Ok(())
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
            ("[colors]\nyou = \"red\"", 1, "unknown key colors: did you mean colours?"),
            ("[colours]\n\nyuo = \"red\"", 3, "unknown role yuo: did you mean you?"),
            ("[colours]\nyou = \"rred\"", 2, "you: rred is not a colour"),
            ("[colours]\nyou = 3", 2, "you must be text in quotes"),
            ("[colours]\nyou = \"red on red\"", 2, "the same colour"),
            ("colours = 3", 1, "colours must be a table"),
            ("a = = 2", 1, ""),
        ] {
            let error = Palette::read("t", "t.toml", text).unwrap_err();
            assert!(error.starts_with(&format!("t.toml, line {line}: ")) && error.contains(why), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
