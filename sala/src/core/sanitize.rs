//! Untrusted text for a terminal. Control characters, escape sequences, C1 codes and bidirectional overrides are
//! spelled out (`\x1b`, `U+202E`) instead of being obeyed; nothing is dropped. The mapping works on single
//! characters, so cleaning the pieces of a text equals cleaning the whole. [`Clean`] proves that text was cleaned:
//! the writers of standard output and standard error accept nothing else, and `tests/house/outputs.rs` checks that no other
//! code writes there.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Text that is safe for a terminal. Only its constructors make one, and they clean it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clean<'a>(Cow<'a, str>);

impl<'a> Clean<'a> {
    pub fn text(text: &'a str) -> Clean<'a> {
        Clean(sanitize(text))
    }

    pub fn line(text: &'a str) -> Clean<'a> {
        Clean(sanitize_line(text))
    }

    /// JSON in lines, as [`Clean::json`].
    pub fn json_text(text: &'a str) -> Clean<'a> {
        // Outside of strings JSON is ASCII, so such a character is inside a string.
        let escape = |out: &mut String, c: char| {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        };
        Clean(mapped(text, |c| is_hostile(c) && c != '\n', escape))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Clean<'static> {
    /// One line of JSON. Characters that a terminal would obey are escaped (`\u202e`), so that a parser gets the
    /// original.
    pub fn json(value: &serde_json::Value) -> Clean<'static> {
        let compact = value.to_string();
        Clean(Cow::Owned(Clean::json_text(&compact).0.into_owned()))
    }
}

impl fmt::Display for Clean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Whether `c` must not reach a terminal. The caller decides about newline and tab.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' // direction
            | '\u{2028}' | '\u{2029}' // line and paragraph separators: some terminals break lines there
            | '\u{fff9}'..='\u{fffb}' // interlinear annotation
            | '\u{e0000}'..='\u{e007f}') // tags: invisible text
}

/// Invisible characters: those that [`sanitize`] spells out, and those without shape, width or effect on others.
/// Names are made without them, because they cannot be typed.
pub fn is_unseen(c: char) -> bool {
    is_hostile(c) || matches!(c, '\u{ad}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
}

fn spell(out: &mut String, c: char) {
    let code = c as u32;
    let _ = if code < 0x100 { write!(out, "\\x{code:02x}") } else { write!(out, "U+{code:04X}") };
}

/// A text with some characters written in another way; copied only if it has any.
fn mapped<'a>(text: &'a str, changes: impl Fn(char) -> bool, write: impl Fn(&mut String, char)) -> Cow<'a, str> {
    if !text.chars().any(&changes) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if changes(c) { write(&mut out, c) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Cleans a text of several lines: `\n` and `\t` stay, everything else that a terminal would obey is spelled out.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    mapped(text, |c| is_hostile(c) && c != '\n' && c != '\t', spell)
}

/// `old` after a user edited its sanitized form to `edited`: outside the change, the characters of `old` stay instead
/// of their spellings.
pub fn edited(old: &str, edited: &str) -> String {
    let spelled = |c: char| sanitize(c.encode_utf8(&mut [0; 4])).into_owned();
    let (mut before, mut middle) = (0, edited);
    for c in old.chars() {
        let Some(rest) = middle.strip_prefix(&spelled(c)) else { break };
        (before, middle) = (before + c.len_utf8(), rest);
    }
    let (before, old) = old.split_at(before);
    let mut suffix = old.len();
    for c in old.chars().rev() {
        let Some(rest) = middle.strip_suffix(&spelled(c)) else { break };
        (suffix, middle) = (suffix - c.len_utf8(), rest);
    }
    format!("{before}{middle}{}", old.get(suffix..).unwrap_or_default())
}

/// Cleans a text for one line: newlines and tabs become spaces, the rest as [`sanitize`].
pub fn sanitize_line(text: &str) -> Cow<'_, str> {
    mapped(text, is_hostile, |out, c| if matches!(c, '\n' | '\t') { out.push(' ') } else { spell(out, c) })
}

/// Quotes a word of a command line so that a shell takes it literally.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '+' | '@');
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", sanitize_line(text).replace('\'', "'\\''"))
}

/// Quotes a word of a command (`/resume NAME`) if it would be read differently without.
pub fn command_word(text: &str) -> String {
    let text = sanitize_line(text);
    // Within a word an apostrophe is literal; so is a backslash that protects nothing.
    let means_more = |(at, c): (usize, char)| c.is_whitespace() || c == '"' || at == 0 && matches!(c, '\'' | '~');
    let protects = ["\\\\", "\\'"].into_iter().any(|pair| text.contains(pair));
    if !text.is_empty() && !protects && !text.char_indices().any(means_more) {
        return text.into_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Escapes foreign text for a place inside our Markdown, such as a table cell or a heading. `\(` would be mathematics.
pub fn in_markdown(text: &str) -> String {
    let is_mark = |c: char| c.is_ascii_punctuation() && !"?,;:'\"/%@".contains(c);
    let written = |c: char| is_mark(c).then_some('\\').into_iter().chain([c]);
    text.chars().flat_map(written).collect::<String>().replace("\\(", "&#40;").replace("\\[", "&#91;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_of_others_are_none_of_ours() {
        assert_eq!(in_markdown("a|b *c* __d__ é"), "a\\|b \\*c\\* \\_\\_d\\_\\_ é");
        assert_eq!(in_markdown("(a) [b]"), "&#40;a\\) &#91;b\\]");
        assert_eq!(in_markdown("Who's in \"a/b\": 5%, or c@d?"), "Who's in \"a/b\": 5%, or c@d?");
    }

    #[test]
    fn escape_sequences_are_spelled_out() {
        assert_eq!(sanitize("a\x1b[2Jb\u{9b}1m\u{7}"), "a\\x1b[2Jb\\x9b1m\\x07");
        assert_eq!(sanitize("user\u{202e}txt.exe"), "userU+202Etxt.exe");
        assert_eq!(sanitize("line\n\tnext"), "line\n\tnext");
        assert_eq!(sanitize_line("line\n\tnext"), "line  next");
    }

    #[test]
    fn clean_text_is_not_copied() {
        assert!(matches!(sanitize("plain — 日本語 👩‍👩‍👧"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_escapes_what_a_terminal_would_obey_and_parses_to_the_same() {
        let value = serde_json::json!({ "a\u{202e}": "\x1b]0;x\x07 \x7f \u{9b}1m \u{2028} \u{e0041} \n é", "n": 1 });
        let clean = Clean::json(&value);
        assert!(!clean.as_str().chars().any(is_hostile), "{clean}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(clean.as_str()).unwrap(), value);
        assert_eq!(Clean::json(&serde_json::json!({ "a": 1 })).as_str(), "{\"a\":1}");
        let lines = serde_json::to_string_pretty(&value).unwrap();
        let clean = Clean::json_text(&lines);
        assert!(!clean.as_str().chars().any(|c| is_hostile(c) && c != '\n'), "{clean}");
        assert_eq!(clean.as_str().lines().count(), lines.lines().count());
        assert_eq!(serde_json::from_str::<serde_json::Value>(clean.as_str()).unwrap(), value);
    }

    #[test]
    fn what_is_not_edited_keeps_its_characters() {
        let old = "a\x1b[1mb\u{202e}c\r\nd";
        let shown = sanitize(old).into_owned();
        assert_eq!(shown, "a\\x1b[1mbU+202Ec\\x0d\nd");
        assert_eq!(edited(old, &shown), old);
        assert_eq!(edited(old, &shown.replace("bU", "bbU")), "a\x1b[1mbb\u{202e}c\r\nd");
        assert_eq!(edited(old, &shown.replace("U+202E", "")), "a\x1b[1mbc\r\nd");
        assert_eq!(edited(old, "other"), "other");
        assert_eq!(edited(old, ""), "");
        assert_eq!(edited("aa", "a"), "a");
    }

    #[test]
    fn offered_words_run_nothing() {
        assert_eq!(shell_word("war-and-peace"), "war-and-peace");
        assert_eq!(shell_word("$(touch x) `y` \"z\""), "'$(touch x) `y` \"z\"'");
        assert_eq!(shell_word("it's\x1b"), "'it'\\''s\\x1b'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn words_of_commands_are_in_quotes_where_they_must_be() {
        for (name, word) in [
            ("war-and-peace", "war-and-peace"),
            ("it's", "it's"),
            ("c:\\d", "c:\\d"),
            ("two words", "\"two words\""),
            ("'tis", "\"'tis\""),
            ("a \"b\" \\", "\"a \\\"b\\\" \\\\\""),
        ] {
            assert_eq!(command_word(name), word);
        }
    }

    #[test]
    fn clean_text_can_be_set_in_columns() {
        assert_eq!(format!("{:<6}|{:>4}|", Clean::line("a\nb"), Clean::text("x")), "a b   |   x|");
    }

    proptest! {
        #[test]
        fn output_has_no_control_bytes_and_is_cut_independent(chars in proptest::collection::vec(any::<char>(), 0..60), at in 0usize..60) {
            let text: String = chars.iter().collect();
            let clean = sanitize(&text).into_owned();
            prop_assert!(!clean.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
            let line = sanitize_line(&text);
            prop_assert!(!line.chars().any(char::is_control));
            let cut = at.min(chars.len());
            let (a, b): (String, String) = (chars[..cut].iter().collect(), chars[cut..].iter().collect());
            prop_assert_eq!(format!("{}{}", sanitize(&a), sanitize(&b)), clean);
        }
    }
}
