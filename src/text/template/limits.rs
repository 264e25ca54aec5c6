//! Limits of chat templates: source, instructions and output.

use std::time::Duration;

use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State};

use crate::text::TextError;

/// Longest source. Published templates have up to 20 KB.
const SOURCE_BYTES: usize = 1 << 20;
/// Longest tag, in words and signs: parser and compiler recurse as deep as an expression is long.
const TAG_WORDS: usize = 4_000;
/// Deepest nesting of blocks. A branch of an `if` nests in the one before it.
const BLOCK_DEPTH: usize = 200;
/// Widest padding or indentation.
const WIDTH: usize = 1_000;
/// Bytes that indenting may add.
const INDENT_BYTES: usize = 64 << 20;
/// Depth of macro calls and recursive loops.
pub(super) const RECURSION: usize = 200;
/// Rendering takes milliseconds, or a second for a million tokens.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Instructions of a rendering: thousands for each message, and more for templates that compare all messages.
pub(super) fn fuel(messages: usize) -> u64 {
    let n = messages as u64;
    5_000_000 + 20_000 * n + 100 * n.saturating_mul(n).min(10_000_000)
}

/// Whether a rendering ended at one of these limits.
pub(super) fn are_exceeded(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfFuel | ErrorKind::WriteFailure)
        || error.detail().is_some_and(|detail| detail.contains("recursion limit"))
}

/// Bytes of a rendering.
pub(super) fn output(message_bytes: usize) -> usize {
    message_bytes.saturating_mul(4).saturating_add(16 << 20)
}

fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// Refuses a source that is too long or too deep for the parser.
pub(super) fn check_source(source: &str) -> Result<(), TextError> {
    let refused = |what: String| Err(TextError::Template(what));
    if source.len() > SOURCE_BYTES {
        return refused(format!("its source has {} bytes, more than {SOURCE_BYTES}", source.len()));
    }
    // Branches of each open block: each nests in the one before.
    let mut open: Vec<usize> = Vec::new();
    let mut line = 1;
    let mut rest = source;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{{")).min() {
        let (before, tag) = rest.split_at(at);
        line += before.matches('\n').count();
        let close = if tag.starts_with("{%") { "%}" } else { "}}" };
        let end = tag.find(close).map_or(tag.len(), |e| e + 2);
        let (tag, after) = tag.split_at(end);
        if words(tag) > TAG_WORDS {
            return refused(format!("a tag has more than {TAG_WORDS} words (line {line})"));
        }
        let first = tag.trim_start_matches(['{', '%', '-', '+']).split_whitespace().next().unwrap_or("");
        let first = first.trim_end_matches(['%', '}', '-', '+']);
        match first {
            "if" | "for" | "macro" | "call" | "filter" | "block" | "with" | "autoescape" if close == "%}" => {
                open.push(1)
            }
            "set" if close == "%}" && !tag.contains('=') => open.push(1),
            "elif" => open.iter_mut().last().into_iter().for_each(|branches| *branches += 1),
            end if end.starts_with("end") => drop(open.pop()),
            _ => {}
        }
        if open.iter().sum::<usize>() > BLOCK_DEPTH {
            return refused(format!("blocks are nested more than {BLOCK_DEPTH} deep (line {line})"));
        }
        line += tag.matches('\n').count();
        rest = after;
    }
    Ok(())
}

fn words(tag: &str) -> usize {
    let mut inside = false;
    let mut count = 0;
    for c in tag.chars() {
        let word = c.is_alphanumeric() || c == '_';
        count += usize::from(!(c.is_whitespace() || word && inside));
        inside = word;
    }
    count
}

/// Refuses a width that would fill the memory.
pub(super) fn check_width(width: usize) -> Result<(), Error> {
    if width <= WIDTH { Ok(()) } else { Err(refused(format!("a width of {width} is more than {WIDTH}"))) }
}

/// Refuses a format string with a width beyond [`WIDTH`] or a width taken from the values.
pub(super) fn check_format(format: &str) -> Result<(), Error> {
    let widest = format.split(|c: char| !c.is_ascii_digit()).filter(|d| !d.is_empty());
    for digits in widest {
        check_width(digits.parse().unwrap_or(usize::MAX))?;
    }
    if format.contains('*') && format.contains('%') {
        return Err(refused("a width taken from the values is not supported"));
    }
    Ok(())
}

pub(super) fn indent(
    value: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let columns = match width {
        Some(width) => width,
        None => kwargs.get::<Option<usize>>("width")?.unwrap_or(4),
    };
    check_width(columns)?;
    if value.as_str().matches('\n').count().saturating_mul(columns) > INDENT_BYTES {
        return Err(refused("indenting would add more than 64 MB"));
    }
    minijinja::filters::indent(value, width, first, blank, kwargs)
}

pub(super) fn format(state: &mut State, format: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    check_format(format.as_str().unwrap_or(""))?;
    minijinja::filters::format(state, format, args)
}

/// A writer with a limit.
pub(super) struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Bounded {
    pub(super) fn new(limit: usize) -> Bounded {
        Bounded { bytes: Vec::new(), limit }
    }

    pub(super) fn into_text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl std::io::Write for Bounded {
    fn write(&mut self, more: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len().saturating_add(more.len()) > self.limit {
            return Err(std::io::Error::other(format!("the template writes more than {} MB", self.limit >> 20)));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
