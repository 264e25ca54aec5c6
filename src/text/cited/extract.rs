//! The passages of an answer that are quotes.

use std::ops::Range;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use super::RUN;
use super::fold::{in_word, words};

/// A quote: its text without marks, and its place in the answer with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) text: String,
    pub(super) range: Range<usize>,
}

/// What opens a quote, and what closes it.
const PAIRS: [(char, &[char]); 14] = [
    ('"', &['"']),
    ('“', &['”', '"']),
    ('„', &['“', '”', '"']),
    ('”', &['”']),
    ('‟', &['”']),
    ('«', &['»']),
    ('»', &['«', '»']),
    ('‹', &['›']),
    ('›', &['‹', '›']),
    ('‘', &['’']),
    ('‚', &['‘', '’']),
    ('\'', &['\'']),
    ('「', &['」']),
    ('『', &['』']),
];

/// Marks that end the reach of a line number.
pub(super) const MARKS: [char; 8] = ['"', '“', '”', '„', '«', '»', '「', '」'];

pub(super) fn quoted(answer: &str) -> Vec<Cut> {
    let [mut blocks, mut code, mut spans]: [Vec<Range<usize>>; 3] = Default::default();
    let mut depth = 0;
    for (event, range) in Parser::new(answer).into_offset_iter() {
        match event {
            Event::Start(Tag::BlockQuote(_)) => {
                if depth == 0 {
                    blocks.push(range);
                }
                depth += 1;
            }
            Event::End(TagEnd::BlockQuote(_)) => depth -= 1,
            Event::Start(Tag::CodeBlock(_)) if depth == 0 => code.push(range),
            Event::Code(_) => spans.push(range),
            _ => {}
        }
    }
    let mut cuts: Vec<Cut> = blocks.iter().flat_map(|block| block_quotes(answer, block)).collect();
    let mut apart: Vec<Range<usize>> = blocks.into_iter().chain(code).collect();
    apart.sort_unstable_by_key(|range| range.start);
    let mut at = 0;
    for skip in apart.into_iter().chain(std::iter::once(answer.len()..answer.len())) {
        in_marks(answer, at..skip.start, &spans, &mut cuts);
        at = at.max(skip.end);
    }
    cuts.retain(|cut| is_long_enough(&cut.text));
    cuts.sort_unstable_by_key(|cut| cut.range.start);
    cuts
}

/// Two characters of a script without spaces count as a word.
fn is_long_enough(text: &str) -> bool {
    let words = words(text);
    let wide = words.iter().filter(|word| word.wide).count();
    words.len() - wide + wide / 2 >= RUN
}

/// The paragraphs of a block quote, without a last line that names the source.
fn block_quotes(answer: &str, block: &Range<usize>) -> Vec<Cut> {
    let text = answer.get(block.clone()).unwrap_or_default();
    let own = text.lines().map(|line| line.trim_start().trim_start_matches(['>', ' ']).trim_end());
    let own: Vec<&str> = own.filter(|line| !line.starts_with(['—', '–']) && !line.starts_with("--")).collect();
    let whole = |lines: &[&str]| {
        let text = lines.join("\n");
        let inner = PAIRS.iter().find_map(|(open, close)| text.strip_prefix(*open)?.strip_suffix(*close));
        Cut { text: inner.unwrap_or(&text).to_owned(), range: block.clone() }
    };
    own.split(|line| line.is_empty()).map(whole).collect()
}

/// Passages in quotation marks within `range`. Marks in `code` are part of it, as in `print("x")`.
fn in_marks(answer: &str, range: Range<usize>, code: &[Range<usize>], cuts: &mut Vec<Cut>) {
    let mut at = range.start;
    let code_at = |place: usize| {
        let next = code.get(code.partition_point(|span| span.end <= place));
        next.filter(|span| span.start <= place)
    };
    while let Some(rest) = answer.get(at..range.end).filter(|rest| !rest.is_empty()) {
        let Some((skip, open)) = rest.char_indices().find(|(_, c)| PAIRS.iter().any(|(open, _)| open == c)) else {
            return;
        };
        if let Some(span) = code_at(at + skip) {
            at = span.end.min(range.end);
            continue;
        }
        let start = at + skip + open.len_utf8();
        let before = answer.get(..at + skip).and_then(|text| text.chars().next_back());
        let closed = answer.get(start..range.end).filter(|_| !before.is_some_and(in_word));
        match closed.and_then(|rest| closing(open, rest, |place| code_at(start + place).is_some())) {
            Some((text, end)) => {
                cuts.push(Cut { text: text.trim().to_owned(), range: at + skip..start + end });
                at = start + end;
            }
            None => at = start,
        }
    }
}

/// The text up to the mark that closes a quote, and the end of that mark.
fn closing(open: char, rest: &str, is_code: impl Fn(usize) -> bool) -> Option<(&str, usize)> {
    let closes = PAIRS.iter().find(|(mark, _)| *mark == open)?.1;
    let (mut depth, mut before) = (0_usize, None);
    let mut chars = rest.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, c)| *c);
        if c == '\n' && next == Some('\n') {
            return None;
        }
        let straight = matches!(c, '"' | '\'' | '’');
        let opens = straight && before.is_none_or(char::is_whitespace);
        let ends = !opens && !next.is_some_and(in_word) && !is_code(at);
        if closes.contains(&c) && ends && (depth == 0 || c == open) {
            // The last of several: the text ends with a quote of its own.
            let twice = if next == Some(c) { c.len_utf8() } else { 0 };
            return Some((rest.get(..at + twice)?, at + twice + c.len_utf8()));
        }
        depth = match c {
            _ if c == open && !closes.contains(&c) => depth + 1,
            _ if closes.contains(&c) && ends => depth - 1,
            _ => depth,
        };
        before = Some(c);
    }
    None
}
