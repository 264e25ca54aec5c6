//! Foreign text made harmless: what a model, a document or a file name contains never reaches the terminal raw.
//!
//! Control characters, escape sequences, C1 codes and bidirectional overrides are spelled out (`\x1b`, `U+202E`)
//! instead of being obeyed. The mapping works on single characters, so cutting a text anywhere and cleaning the
//! pieces gives the same result as cleaning the whole. Nothing is dropped: what was there stays visible.
//!
//! [`Clean`] is the proof that this was done: the writers of standard output and standard error take nothing else, and
//! `tests/outputs.rs` sees to it that nobody else has those two.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Text that a terminal shows and does not obey. There is no way around the check: the constructors are it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clean<'a>(Cow<'a, str>);

impl<'a> Clean<'a> {
    /// A text of several lines, as [`sanitize`].
    pub fn text(text: &'a str) -> Clean<'a> {
        Clean(sanitize(text))
    }

    /// A text of one line, as [`sanitize_line`].
    pub fn line(text: &'a str) -> Clean<'a> {
        Clean(sanitize_line(text))
    }

    /// JSON in lines, as [`Clean::json`].
    pub fn json_text(text: &'a str) -> Clean<'a> {
        let hostile = |c: char| is_hostile(c) && c != '\n';
        if !text.chars().any(hostile) {
            return Clean(Cow::Borrowed(text));
        }
        let mut out = String::with_capacity(text.len() + 64);
        for c in text.chars() {
            if hostile(c) {
                // Outside of strings JSON is plain ASCII, so this is inside of one.
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing into a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            } else {
                out.push(c);
            }
        }
        Clean(Cow::Owned(out))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Clean<'static> {
    /// An object as one line of JSON: what a terminal would obey is escaped (`\u202e`), so that whoever parses it gets
    /// the very characters.
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

/// Whether `c` must not reach a terminal. Newline and tab are layout and judged by the caller.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' // direction
            | '\u{2028}' | '\u{2029}' // line and paragraph separators: some terminals break lines there
            | '\u{fff9}'..='\u{fffb}' // interlinear annotation
            | '\u{e0000}'..='\u{e007f}') // tags: invisible text
}

/// Characters that nobody sees: what [`sanitize`] spells out, and what has neither shape nor width nor a part in how others look. No
/// name is made with them, for nobody could type it.
pub fn is_unseen(c: char) -> bool {
    is_hostile(c) || matches!(c, '\u{ad}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
}

fn spell(out: &mut String, c: char) {
    let code = c as u32;
    // Writing into a String cannot fail.
    let _ = if code < 0x100 { write!(out, "\\x{code:02x}") } else { write!(out, "U+{code:04X}") };
}

/// Cleans a text of several lines: `\n` and `\t` stay, everything else that a terminal would obey is spelled out.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_hostile(c) && c != '\n' && c != '\t') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hostile(c) && c != '\n' && c != '\t' {
            spell(&mut out, c);
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// What became of `old` where it was shown as [`sanitize`] shows it and edited there to `edited`: before and behind what was changed
/// the characters are those of `old`, not their spellings.
pub fn edited(old: &str, edited: &str) -> String {
    let spelled = |c: char| sanitize(c.encode_utf8(&mut [0; 4])).into_owned();
    let (mut before, mut middle) = (0, edited);
    for c in old.chars() {
        let Some(rest) = middle.strip_prefix(&spelled(c)) else { break };
        (before, middle) = (before + c.len_utf8(), rest);
    }
    let (before, old) = old.split_at(before);
    let mut behind = old.len();
    for c in old.chars().rev() {
        let Some(rest) = middle.strip_suffix(&spelled(c)) else { break };
        (behind, middle) = (behind - c.len_utf8(), rest);
    }
    format!("{before}{middle}{}", old.get(behind..).unwrap_or_default())
}

/// Cleans a text for one line: newlines and tabs become spaces, the rest as [`sanitize`].
pub fn sanitize_line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(' '),
            c if is_hostile(c) => spell(&mut out, c),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// A word of a command line that is offered for typing: quoted so that a shell takes it as it is and runs nothing in it.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '+' | '@');
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", sanitize_line(text).replace('\'', "'\\''"))
}

/// A word of a command of the program (`/resume NAME`) that is offered for typing: in quotes where it would be read as another one.
pub fn command_word(text: &str) -> String {
    let text = sanitize_line(text);
    // Within a word an apostrophe is one, and a backslash as long as it protects nothing.
    let means_more = |(at, c): (usize, char)| c.is_whitespace() || c == '"' || at == 0 && matches!(c, '\'' | '~');
    let protects = ["\\\\", "\\'"].into_iter().any(|pair| text.contains(pair));
    if !text.is_empty() && !protects && !text.char_indices().any(means_more) {
        return text.into_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Words of others as they are within Markdown of ours: a table's cell, a heading.
pub fn in_markdown(text: &str) -> String {
    let written = |c: char| c.is_ascii_punctuation().then_some('\\').into_iter().chain([c]);
    text.chars().flat_map(written).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_of_others_are_none_of_ours() {
        assert_eq!(in_markdown("a|b *c* __d__ é"), "a\\|b \\*c\\* \\_\\_d\\_\\_ é");
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
