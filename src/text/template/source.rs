//! A template's source, checked and rewritten. The template engine differs from Jinja2 in line ends, `{% generation %}`,
//! `%` between strings, and defaults of macros that refer to earlier parameters. Its compiler recurses as
//! deep as branches are nested and expressions are long.

use std::sync::LazyLock;

use fancy_regex::Regex;

use crate::text::TextError;

/// The filter in place of `%`.
pub(super) const PERCENT: &str = "__percent";
const FILLED: &str = ")|__percent(";
const KEYWORDS: [&str; 5] = ["and", "or", "if", "elif", "else"];
/// A name that no template defines: the placeholder for a default that is evaluated later.
const UNSET: &str = "__unset";

/// Longest source. Published templates have up to 20 KB.
const SOURCE_BYTES: usize = 1 << 20;
/// Longest tag, in words and signs.
const TAG_WORDS: usize = 4_000;
/// Bytes of a tag without an end, which the engine refuses.
const OPEN_TAG_BYTES: usize = 1_000;
/// Most tags: a branch of an `if` nests in the one before it.
const TAGS: usize = 4_000;

/// A comment, a block of raw text, or the beginning of a tag.
static OUTSIDE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let patterns = r"(?s)\{#.*?(?:#\}|\z)|\{%[-+]?\s*raw\b.*?(?:\{%[-+]?\s*endraw\b|\z)|\{[{%]";
    Regex::new(patterns).ok()
});
/// White space, a text, a number, a word, or a sign.
static TOKEN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let text = r#"'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*""#;
    let number = r"\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?\w*";
    Regex::new(&format!(r"(?s)\A(?:\s+|{text}|{number}|\w+|\*\*|//|[=!<>]=|[^'\x22])")).ok()
});

/// The source as the template engine is given it. Lines keep their numbers.
pub(super) fn rewritten(source: &str) -> Result<String, TextError> {
    if source.len() > SOURCE_BYTES {
        let what = format!("its source has {} bytes, more than {SOURCE_BYTES}", source.len());
        return Err(TextError::Template(what));
    }
    // Jinja2 does so before it reads anything, string literals included.
    let source = crate::text::with_newlines(source);
    let (mut out, mut rest, mut tags) = (String::with_capacity(source.len()), source.as_str(), 0);
    while let Some(found) = OUTSIDE.as_ref().and_then(|outside| outside.find(rest).ok().flatten()) {
        let (before, tag) = rest.split_at(found.start());
        out.push_str(before);
        let refused = |what: String| {
            let above = source.get(..source.len() - tag.len()).unwrap_or_default();
            Err(TextError::Template(format!("{what} (line {})", 1 + above.matches('\n').count())))
        };
        if found.as_str().len() > 2 {
            out.push_str(found.as_str());
            rest = rest.get(found.end()..).unwrap_or_default();
            continue;
        }
        let Some((mut tokens, after)) = tokens(tag) else {
            rest = tag.get(..tag.floor_char_boundary(OPEN_TAG_BYTES)).unwrap_or(tag);
            break;
        };
        rest = after;
        tags += 1;
        if tags > TAGS {
            return refused(format!("it has more than {TAGS} tags, which may be nested"));
        }
        if tokens.iter().filter(|token| token.kind != Kind::Space).count() > TAG_WORDS {
            return refused(format!("a tag has more than {TAG_WORDS} words"));
        }
        operators(&mut tokens);
        let first = tokens.iter_mut().find(|token| token.kind == Kind::Word).filter(|_| tag.starts_with("{%"));
        let is_macro = first.as_ref().is_some_and(|word| word.text == "macro");
        // It marks text for training and renders what it holds.
        match first {
            Some(word) if word.text == "generation" => word.text = "if true",
            Some(word) if word.text == "endgeneration" => word.text = "endif",
            _ => {}
        }
        out.push_str(&if is_macro { macro_tag(tokens) } else { joined(&tokens) });
    }
    out.push_str(rest);
    Ok(out)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Number,
    Text,
    Open,
    Close,
    Sign,
    /// White space, and the signs around a tag.
    Space,
}

#[derive(Clone, Copy)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
}

impl Token<'_> {
    fn is(&self, text: &str) -> bool {
        self.text == text && self.kind != Kind::Text
    }
}

/// The tokens of a tag with the signs around it, and the rest after it; `None` if it has no end.
fn tokens(tag: &str) -> Option<(Vec<Token<'_>>, &str)> {
    let close = if tag.starts_with("{{") { "}}" } else { "%}" };
    let (mut tokens, mut rest, mut braces) = (Vec::new(), tag, 0usize);
    loop {
        let first = rest.chars().next()?;
        let ends = braces == 0 && rest.strip_prefix(['-', '+']).unwrap_or(rest).starts_with(close);
        let (kind, length) = match first {
            // A sign here only controls the white space in front.
            _ if tokens.is_empty() => (Kind::Space, 2 + usize::from(tag.get(2..)?.starts_with(['-', '+']))),
            _ if ends => (Kind::Space, 2 + usize::from(!rest.starts_with(close))),
            c => {
                let kind = match c {
                    c if c.is_whitespace() => Kind::Space,
                    c if c.is_ascii_digit() => Kind::Number,
                    c if c.is_alphabetic() || c == '_' => Kind::Word,
                    '\'' | '"' => Kind::Text,
                    '(' | '[' | '{' => Kind::Open,
                    ')' | ']' | '}' => Kind::Close,
                    _ => Kind::Sign,
                };
                (kind, TOKEN.as_ref()?.find(rest).ok()??.end())
            }
        };
        let (text, after) = rest.split_at(length);
        match text {
            "{" => braces += 1,
            "}" => braces = braces.saturating_sub(1),
            _ => {}
        }
        let is_end = ends && !tokens.is_empty();
        tokens.push(Token { kind, text });
        rest = after;
        if is_end {
            return Some((tokens, rest));
        }
    }
}

fn joined(tokens: &[Token<'_>]) -> String {
    tokens.iter().map(|token| token.text).collect()
}

/// The tokens between signs that stand in no bracket.
fn split<'t, 'a>(tokens: &'t [Token<'a>], sign: &str) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0usize;
    let splits = tokens.split(|token| {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && token.is(sign)
    });
    splits.collect()
}

/// The bracket that closes the one at `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close if depth <= 1 => return Some(at),
            Kind::Close => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Writes `left % right` as the filter [`PERCENT`], and spells the operands of `~` as Python does.
fn operators(tokens: &mut Vec<Token<'_>>) {
    let sign = |kind, text| Token { kind, text };
    // In each bracket: where the operand of `~` begins, whether one is in front of it, and whether that of `%` is open.
    let (mut signs, mut levels) = (Vec::new(), vec![(0, false, false)]);
    for (at, token) in tokens.iter().enumerate() {
        let Some((from, is_second, is_open)) = levels.last_mut().filter(|_| token.kind != Kind::Open) else {
            levels.push((at + 1, false, false));
            continue;
        };
        let ends = !is_tighter(tokens, at);
        let closes = ends || is_product(token) && !token.is("**");
        if *is_open && closes {
            signs.push((at, sign(Kind::Close, ")")));
        }
        *is_open = token.is("%") || *is_open && !closes;
        if token.is("%") {
            signs.push((*from, sign(Kind::Open, "(")));
        } else if ends {
            // The engine refuses a missing operand.
            let is_empty = tokens.get(*from..at).unwrap_or_default().iter().all(|token| token.kind == Kind::Space);
            if (*is_second || token.is("~")) && !is_empty {
                signs.extend([(*from, sign(Kind::Open, "(")), (at, sign(Kind::Close, ")|string "))]);
            }
            levels.pop();
            levels.extend((token.kind != Kind::Close).then_some((at + 1, token.is("~"), false)));
        }
    }
    tokens.iter_mut().filter(|token| token.is("%")).for_each(|token| token.text = FILLED);
    signs.sort_by_key(|(at, _)| *at);
    signs.into_iter().rev().for_each(|(at, token)| tokens.insert(at, token));
}

/// Whether a token outside of brackets belongs to an operand of `~`.
fn is_tighter(tokens: &[Token<'_>], at: usize) -> bool {
    let Some((before, [token, after @ ..])) = tokens.split_at_checked(at) else { return false };
    let mut before = before.iter().rev().filter(|token| token.kind != Kind::Space);
    let is_attribute = before.clone().next().is_some_and(|token| token.text.trim() == ".");
    match (token.kind, token.text.trim()) {
        (Kind::Close, _) => false,
        (Kind::Space, text) => text.is_empty(),
        (Kind::Word, _) if is_attribute => true,
        // A sign of a number, or the arithmetic of weaker binding.
        (Kind::Sign, "-" | "+") => before.next().is_none_or(|last| {
            let is_keyword = KEYWORDS.contains(&last.text) || last.is("not") || last.is("in");
            let is_name = before.next().is_some_and(|token| token.text.trim() == ".");
            matches!(last.kind, Kind::Sign | Kind::Open) || last.kind == Kind::Word && is_keyword && !is_name
        }),
        (Kind::Sign, text) => is_product(token) || matches!(text, "." | "|"),
        // The tests `is in` and `is not in` bind tighter than the operators.
        (Kind::Word, "not" | "in") => before.find(|token| !token.is("not")).is_some_and(|token| token.is("is")),
        // The end of a loop's tag.
        (Kind::Word, "recursive") => after.iter().any(|token| token.kind != Kind::Space),
        (Kind::Word, text) => !KEYWORDS.contains(&text),
        _ => true,
    }
}

fn is_product(token: &Token<'_>) -> bool {
    token.kind == Kind::Sign && matches!(token.text, "*" | "/" | "//" | "%" | "**")
}

/// The tag of a macro. The engine evaluates defaults before it knows earlier parameters: those that refer to one follow the tag.
fn macro_tag(mut tokens: Vec<Token<'_>>) -> String {
    let open = tokens.iter().position(|token| token.kind == Kind::Open);
    let Some((open, close)) = open.and_then(|open| Some((open, closing(&tokens, open)?))) else {
        return joined(&tokens);
    };
    let (mut names, mut written, mut later) = (Vec::new(), Vec::new(), String::new());
    for parameter in split(tokens.get(open + 1..close).unwrap_or_default(), ",") {
        let equals = parameter.iter().position(|token| token.is("=")).unwrap_or(parameter.len());
        let (name, value) = parameter.split_at(equals);
        let name = joined(name).trim().to_owned();
        if value.iter().any(|token| token.kind == Kind::Word && names.iter().any(|name| name == token.text)) {
            let value = joined(value);
            later.push_str(&format!("{{% if {name} is undefined %}}{{% set {name} {value} %}}{{% endif %}}"));
            written.push(format!("{name}={UNSET}"));
        } else {
            written.push(joined(parameter));
        }
        names.push(name);
    }
    let Some(later) = later.strip_suffix("%}") else { return joined(&tokens) };
    // The end of the tag controls the white space after it, which now follows the last default.
    let end = tokens.pop().map_or("", |token| token.text);
    let (before, after) =
        (joined(tokens.get(..=open).unwrap_or_default()), joined(tokens.get(close..).unwrap_or_default()));
    format!("{before}{}{after}%}}{later}{end}", written.join(","))
}
