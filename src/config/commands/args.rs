//! Arguments of slash commands: splitting into words, numbers, message numbers.

use super::Outcome;

pub(super) struct Args<'a> {
    pub raw: &'a str,
    /// Split as a shell does, or why that failed. Commands that take free text never look at it.
    pub split: Result<Vec<String>, String>,
}

impl Args<'_> {
    pub fn words(&self) -> Result<Vec<&str>, String> {
        let words = self.split.as_ref().map_err(Clone::clone)?;
        Ok(words.iter().map(String::as_str).collect())
    }

    /// What a command without arguments means.
    pub fn alone(&self, outcome: impl Into<Outcome>) -> Result<Outcome, String> {
        if self.words()?.is_empty() { Ok(outcome.into()) } else { Err("takes no arguments".into()) }
    }

    pub fn one(&self, what: &str) -> Result<String, String> {
        match self.words()?[..] {
            [word] => Ok(word.to_owned()),
            [] => Err(format!("needs {what}")),
            _ => Err(format!("takes one argument, {what}; put quotes around spaces")),
        }
    }

    pub fn at_most_one(&self) -> Result<Option<String>, String> {
        match self.words()?[..] {
            [] => Ok(None),
            [word] => Ok(Some(word.to_owned())),
            _ => Err("takes one argument; put quotes around spaces".into()),
        }
    }

    pub fn text(&self, what: &str) -> Result<String, String> {
        self.rest().ok_or(format!("needs {what}"))
    }

    pub fn rest(&self) -> Option<String> {
        (!self.raw.is_empty()).then(|| self.raw.to_string())
    }

    pub fn count(&self) -> Result<u64, String> {
        let Some(word) = self.at_most_one()? else { return Ok(1) };
        word.parse().ok().filter(|n| *n > 0).ok_or(format!("needs a number of 1 or more (got {word})"))
    }

    pub fn message(&self) -> Result<Option<u64>, String> {
        let Some(word) = self.at_most_one()? else { return Ok(None) };
        let number = word.trim_start_matches('#').parse().map(Some);
        number.map_err(|_| format!("{word} is not a message number; write for example #3"))
    }
}

/// The number of a message if a word begins as one: `#3`.
pub(super) fn message_number(word: &str) -> Result<Option<u64>, String> {
    let number = word.strip_prefix('#').map(str::parse).transpose();
    number.map_err(|_| format!("{word} is not a message number"))
}

/// A number of tokens: `4096`, `4,096`, `64k`, `1.5M`.
pub(super) fn tokens(text: &str) -> Result<u64, String> {
    let plain = text.replace([',', '_'], "").to_lowercase();
    let units = [("k", 1e3), ("m", 1e6), ("", 1.0)];
    let number = units.iter().find_map(|(unit, factor)| Some(plain.strip_suffix(unit)?.parse::<f64>().ok()? * factor));
    let whole = number.filter(|n| (1.0..1e12).contains(n)).map(|n| n as u64);
    whole.ok_or_else(|| format!("{text} is not a number of tokens; write for example 4096 or 64k"))
}

/// Whether a backslash makes a character part of a word: a quote, itself, or a blank.
pub fn is_escapable(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || (c.is_whitespace() && !c.is_control())
}

/// A word as it must be typed to be read as it is.
pub fn escaped(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    for (at, c) in word.char_indices() {
        // Within a word a quote is an apostrophe.
        if is_escapable(c) && (at == 0 || !matches!(c, '"' | '\'')) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

pub fn unescaped(typed: &str) -> String {
    let mut out = String::with_capacity(typed.len());
    let mut chars = typed.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some(next)) if is_escapable(*next) => out.extend(chars.next()),
            (c, _) => out.push(c),
        }
    }
    out
}

/// Splits as a shell does: blanks separate, quotes and backslash protect, `~` at the start of a word is home.
pub(super) fn split_words(line: &str, home: Option<&std::path::Path>) -> Result<Vec<String>, String> {
    let (mut words, mut rest) = (Vec::new(), line);
    while let Some((word, after)) = next_word(rest, home)? {
        words.push(word);
        rest = after;
    }
    Ok(words)
}

/// The first word of a line, and the rest as typed.
pub(super) fn next_word<'t>(
    line: &'t str,
    home: Option<&std::path::Path>,
) -> Result<Option<(String, &'t str)>, String> {
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('"') | None, '\\') if chars.peek().is_some_and(|(_, n)| is_escapable(*n)) => {
                word.get_or_insert_default().extend(chars.next().map(|(_, c)| c));
            }
            (Some(_), c) => word.get_or_insert_default().push(c),
            // A quote inside a word is an apostrophe: what's, l'an.
            (None, '"' | '\'') if word.is_none() => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => {
                if let Some(word) = word {
                    return Ok(Some((word, line.get(at..).unwrap_or_default())));
                }
            }
            (None, '~') if word.is_none() && chars.peek().is_none_or(|(_, n)| *n == '/') && home.is_some() => {
                word = home.map(|h| h.to_string_lossy().into_owned());
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    match quote {
        Some(q) => Err(format!("a {q} quote is not closed")),
        None => Ok(word.map(|word| (word, ""))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_first_word_everything_stays_as_typed() {
        let first = |line| next_word(line, None);
        assert_eq!(first("  \"a b\".txt  what's \"this\"?"), Ok(Some(("a b.txt".into(), "  what's \"this\"?"))));
        assert_eq!(first("x"), Ok(Some(("x".into(), ""))));
        assert_eq!(first("  "), Ok(None));
        assert!(first("'a b").is_err());
        assert_eq!(split_words("a  'b c' d", None), Ok(vec!["a".into(), "b c".into(), "d".into()]));
    }

    #[test]
    fn a_word_that_is_offered_is_read_as_it_is() {
        for word in ["a b.txt", "it's.md", "'a'.txt", "\"b\".txt", "c\\d", "e\\ f", "g\u{a0}h", "\u{3000}i", "plain"] {
            let typed = escaped(word);
            assert_eq!(split_words(&typed, None).unwrap(), [word], "{typed}");
            assert_eq!(unescaped(&typed), word, "{typed}");
        }
        assert_eq!((escaped("a b"), escaped("it's")), ("a\\ b".into(), "it's".into()));
    }
}
