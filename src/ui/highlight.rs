//! Colours of code: syntect's parser with a theme that names the terminal's own 16 colours. Slow (about 0.1 s for
//! 1,000 lines), so it runs on its own thread and its results are kept by the transcript.

use syntect::easy::HighlightLines;
use syntect::highlighting::{Color, FontStyle, Theme};
use syntect::parsing::SyntaxSet;
use two_face::theme::EmbeddedThemeName;

use crate::app::rows::{Face, Role, Span};

/// Syntaxes and theme. Loading takes some milliseconds; make one and keep it.
pub struct Highlighter {
    syntaxes: SyntaxSet,
    theme: Theme,
}

impl Default for Highlighter {
    fn default() -> Self {
        let theme = two_face::theme::extra().get(EmbeddedThemeName::Ansi).clone();
        Highlighter { syntaxes: two_face::syntax::extra_newlines(), theme }
    }
}

/// The theme writes the number of a terminal colour into the red channel and marks that with alpha 0; alpha 1 means
/// the terminal's own foreground.
fn role(color: Color) -> Role {
    match color.a {
        0 => Role::Ansi(color.r),
        _ => Role::Text,
    }
}

impl Highlighter {
    /// Coloured lines of a block; `None` if the language is not known. The text of the spans is exactly the code.
    pub fn lines(&self, lang: &str, code: &str) -> Option<Vec<Vec<Span>>> {
        let syntax = self.syntaxes.find_syntax_by_token(lang)?;
        let mut state = HighlightLines::new(syntax, &self.theme);
        let mut lines = Vec::new();
        for line in code.split('\n') {
            // The parser wants the line end; it is taken off again.
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
}
