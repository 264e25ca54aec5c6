//! Code colours: syntect, by default with a theme of the terminal's 16 colours. Slow (about 0.1 s for 1,000 lines),
//! so it runs on its own thread and the transcript keeps the results.

use syntect::easy::HighlightLines;
use syntect::highlighting::{Color, FontStyle, Theme, ThemeSet};
use syntect::parsing::SyntaxSet;
use two_face::theme::{EmbeddedLazyThemeSet, EmbeddedThemeName};

use crate::tui::rows::{Face, Role, Span};

/// Loading takes some milliseconds, so callers keep it.
pub struct Highlighter {
    syntaxes: SyntaxSet,
    theme: Theme,
}

impl Default for Highlighter {
    fn default() -> Self {
        Highlighter { syntaxes: two_face::syntax::extra_newlines(), theme: ansi() }
    }
}

fn ansi() -> Theme {
    two_face::theme::extra().get(EmbeddedThemeName::Ansi).clone()
}

/// A name as `/set code_theme` takes it: `Solarized (dark)` is `solarized-dark`.
fn slug(name: &str) -> String {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_lowercase()
}

pub fn embedded(name: &str) -> Option<Theme> {
    if name == "auto" {
        return Some(ansi());
    }
    let known = EmbeddedLazyThemeSet::theme_names().iter().find(|n| slug(n.as_name()) == name.to_lowercase())?;
    Some(two_face::theme::extra().get(*known).clone())
}

/// Reads a `.tmTheme` file.
///
/// # Errors
/// The text is not a theme.
pub fn parse(text: &[u8]) -> Result<Theme, String> {
    ThemeSet::load_from_reader(&mut std::io::Cursor::new(text)).map_err(|e| e.to_string())
}

/// Terminal themes put the colour number into the red channel with alpha 0; alpha 1 is the terminal's foreground.
fn role(color: Color) -> Role {
    match color.a {
        0 => Role::Ansi(color.r),
        1 => Role::Text,
        _ => Role::Rgb(color.r, color.g, color.b),
    }
}

impl Highlighter {
    pub fn set_theme(&mut self, theme: Theme) {
        self.theme = theme;
    }

    /// Coloured lines of a block; `None` for an unknown language. The text of the spans is exactly the code.
    pub fn lines(&self, lang: &str, code: &str) -> Option<Vec<Vec<Span>>> {
        let syntax = self.syntaxes.find_syntax_by_token(lang)?;
        let mut state = HighlightLines::new(syntax, &self.theme);
        let mut lines = Vec::new();
        for line in code.split('\n') {
            let whole = format!("{line}\n");
            let mut spans = Vec::new();
            for (style, text) in state.highlight_line(&whole, &self.syntaxes).ok()? {
                let text = text.trim_end_matches('\n');
                if !text.is_empty() {
                    let face =
                        Face { strong: style.font_style.contains(FontStyle::BOLD), ..role(style.foreground).into() };
                    spans.push(Span::new(text, face));
                }
            }
            lines.push(spans);
        }
        Some(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_ansi_and_the_text_stays() {
        let h = Highlighter::default();
        let code = "fn main() {\n    let s = \"日本\"; // note\n}";
        let lines = h.lines("rust", code).unwrap();
        let text: Vec<String> = lines.iter().map(|l| l.iter().map(|s| s.text.as_str()).collect()).collect();
        assert_eq!(text.join("\n"), code);
        let roles: Vec<Role> = lines.iter().flatten().map(|s| s.face.role).collect();
        assert!(roles.iter().all(|r| matches!(r, Role::Ansi(0..16) | Role::Text)));
        assert!(roles.iter().any(|r| matches!(r, Role::Ansi(_))));
        assert!(h.lines("no-such-language", code).is_none());
    }

    #[test]
    fn every_name_of_the_table_is_a_theme_and_every_theme_is_in_the_table() {
        let mut names: Vec<String> =
            EmbeddedLazyThemeSet::theme_names().iter().map(|name| slug(name.as_name())).collect();
        names.sort();
        names.insert(0, "auto".into());
        assert_eq!(names, crate::config::settings::CODE_THEMES);
        assert!(names.iter().all(|name| embedded(name).is_some()) && embedded("no-such").is_none());
        assert!(embedded("Nord").is_some());
    }

    #[test]
    fn a_theme_with_colours_of_its_own_gives_those() {
        let mut h = Highlighter::default();
        h.set_theme(embedded("solarized-dark").unwrap());
        let roles = |h: &Highlighter| -> Vec<Role> {
            h.lines("rust", "fn main() { 1 }").unwrap().iter().flatten().map(|s| s.face.role).collect()
        };
        assert!(roles(&h).iter().all(|r| matches!(r, Role::Rgb(..))), "{:?}", roles(&h));
        let file = include_bytes!("../../../tests/data/small.tmTheme");
        h.set_theme(parse(file).unwrap());
        assert!(roles(&h).contains(&Role::Rgb(0x12, 0x34, 0x56)), "{:?}", roles(&h));
        assert!(parse(b"not a theme").is_err() && parse(b"").is_err());
    }
}
