//! Words without case, typographic variants and hyphenation.

use std::hash::{DefaultHasher, Hash, Hasher};

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) folded: u64,
    /// Hash of the folded marks between the word before and this one.
    pub(super) gap: u32,
    /// A character of a script without spaces.
    pub(super) wide: bool,
}

/// Longer words that say nothing about what a text is about.
const COMMON: &str = "about does from have many much that their there they this what when where which with would your";

impl Word {
    /// Whether it may be a topic of the text.
    pub(super) fn is_topical(&self, text: &str) -> bool {
        let word = text.get(self.start as usize..self.end as usize).unwrap_or_default();
        word.len() > 3 && !COMMON.split(' ').any(|common| common.eq_ignore_ascii_case(word))
    }
}

pub(super) fn hash(of: impl Iterator<Item = impl Hash>) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.for_each(|part| part.hash(&mut hasher));
    hasher.finish()
}

fn is_wide(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Of a script with spaces between words.
pub(super) fn in_word(c: char) -> bool {
    c.is_alphanumeric() && !is_wide(c)
}

fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || is_combining_mark(c)
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
}

fn is_hyphen(c: char) -> bool {
    matches!(c, '-' | '\u{2010}'..='\u{2013}')
}

fn is_apostrophe(c: char) -> bool {
    matches!(c, '\'' | '’' | '‘' | 'ʼ')
}

/// Marks between words in one form, without white space and the emphasis of Markdown.
fn fold_mark(c: char, into: &mut String) {
    match c {
        _ if c.is_whitespace() || is_invisible(c) || matches!(c, '*' | '_' | '`') => {}
        '"' | '\'' | '‘'..='‟' | '«' | '»' | '‹' | '›' | '「'..='』' | '〝'..='〟' => into.push('"'),
        '-' | '\u{2010}'..='\u{2015}' | '\u{2212}' => into.push('-'),
        _ => into.extend(std::iter::once(c).nfkd()),
    }
}

pub(super) fn gap(text: &str) -> String {
    let mut marks = String::new();
    text.chars().for_each(|c| fold_mark(c, &mut marks));
    marks
}

pub(super) fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::with_capacity(text.len() / 6);
    let (mut word, mut marks, mut open) = (String::new(), String::new(), 0..0);
    let mut close = |word: &mut String, marks: &mut String, at: &std::ops::Range<usize>, wide: bool| {
        if !word.is_empty() {
            let (start, end) = (at.start as u32, at.end as u32);
            words.push(Word { start, end, folded: hash(word.bytes()), gap: hash(marks.bytes()) as u32, wide });
            word.clear();
            marks.clear();
        }
    };
    let mut rest = text.char_indices();
    while let Some((at, c)) = rest.next() {
        let end = at + c.len_utf8();
        let letter = is_letter(c);
        if letter && is_wide(c) {
            close(&mut word, &mut marks, &open, false);
            word.extend(std::iter::once(c).nfkd());
            close(&mut word, &mut marks, &(at..end), true);
        } else if letter {
            if word.is_empty() {
                open.start = at;
            }
            match c.is_ascii() {
                true => word.push(c.to_ascii_lowercase()),
                false => word.extend(c.to_lowercase().nfkd()),
            }
            open.end = end;
        } else if word.is_empty() || !joins(&word, c, &mut rest) {
            close(&mut word, &mut marks, &open, false);
            fold_mark(c, &mut marks);
        } else if is_hyphen(c)
            && (word.ends_with(char::is_numeric) || rest.clone().next().is_some_and(|(_, c)| c.is_numeric()))
        {
            // 3-4 is not 34.
            word.push('-');
        }
    }
    close(&mut word, &mut marks, &open, false);
    words
}

/// Whether a mark is within a word: a hyphen, also at the end of a line, an apostrophe, an invisible character.
fn joins(word: &str, mark: char, rest: &mut std::str::CharIndices<'_>) -> bool {
    if is_invisible(mark) {
        return true;
    }
    if !is_hyphen(mark) && !is_apostrophe(mark) {
        return false;
    }
    let mut ahead = rest.clone();
    let next = ahead.next().map(|(_, c)| c);
    if next.is_some_and(|c| is_letter(c) && !is_wide(c)) {
        return true;
    }
    if !is_hyphen(mark) || !next.is_some_and(char::is_whitespace) || word.ends_with(char::is_numeric) {
        return false;
    }
    // A word divided at the end of a line continues in lower case.
    let tail = rest.as_str();
    let line = tail.trim_start_matches([' ', '\t', '\r']);
    let continues = line.strip_prefix('\n').map(|line| line.trim_start_matches([' ', '\t']));
    match continues.filter(|line| line.starts_with(char::is_lowercase)) {
        Some(line) => {
            let skipped = tail.len() - line.len();
            // White space is one byte a character here.
            rest.nth(skipped - 1);
            true
        }
        None => false,
    }
}
