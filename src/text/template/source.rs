//! A template's source, checked and rewritten. The template engine differs from Jinja2 in line ends, `{% generation %}`, slices
//! with a step, `%` between strings, and defaults of macros that refer to earlier parameters. Its parser and compiler recurse as
//! deep as blocks are nested and expressions are long.

use crate::text::TextError;

/// The method in place of `[start:stop:step]`.
pub(super) const SLICE: &str = "__slice";
/// The filter in place of `%`.
pub(super) const PERCENT: &str = "__percent";
/// A name that no template defines: the placeholder for a default that is evaluated later.
const UNSET: &str = "__unset";

/// Longest source. Published templates have up to 20 KB.
const SOURCE_BYTES: usize = 1 << 20;
/// Longest tag, in words and signs.
const TAG_WORDS: usize = 4_000;
/// Bytes of a tag without an end, which the engine refuses.
const OPEN_TAG_BYTES: usize = 1_000;
/// Deepest nesting of blocks. A branch of an `if` nests in the one before it.
const BLOCK_DEPTH: usize = 200;

/// The source as the template engine is given it. Lines keep their numbers.
pub(super) fn rewritten(source: &str) -> Result<String, TextError> {
    if source.len() > SOURCE_BYTES {
        let what = format!("its source has {} bytes, more than {SOURCE_BYTES}", source.len());
        return Err(TextError::Template(what));
    }
    // Jinja2 does so before it reads anything, string literals included.
    let source = crate::text::with_newlines(source);
    let (mut out, mut rest) = (String::with_capacity(source.len()), source.as_str());
    // Branches of each open block.
    let mut blocks: Vec<usize> = Vec::new();
    while let Some(at) = next_tag(rest) {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let refused = |what: String| {
            let above = source.get(..source.len() - tag.len()).unwrap_or_default();
            Err(TextError::Template(format!("{what} (line {})", 1 + above.matches('\n').count())))
        };
        if tag.starts_with("{#") {
            let (comment, after) = tag.split_at(tag.find("#}").map_or(tag.len(), |end| end + 2));
            out.push_str(comment);
            rest = after;
            continue;
        }
        let Some((mut tokens, after)) = tokens(tag) else {
            rest = tag.get(..tag.floor_char_boundary(OPEN_TAG_BYTES)).unwrap_or(tag);
            break;
        };
        rest = after;
        if tokens.iter().filter(|token| token.kind != Kind::Space).count() > TAG_WORDS {
            return refused(format!("a tag has more than {TAG_WORDS} words"));
        }
        slices(&mut tokens);
        percents(&mut tokens);
        let word = match tokens.iter_mut().find(|token| token.kind == Kind::Word).filter(|_| tag.starts_with("{%")) {
            Some(token) => {
                // It marks text for training and renders what it holds.
                match token.text {
                    "generation" => token.text = "if true",
                    "endgeneration" => token.text = "endif",
                    _ => {}
                }
                token.text
            }
            None => "",
        };
        match word {
            "if" | "if true" | "for" | "macro" | "call" | "filter" | "block" | "with" | "autoescape" => blocks.push(1),
            "set" if !tokens.iter().any(|token| token.is("=")) => blocks.push(1),
            "elif" => blocks.iter_mut().last().into_iter().for_each(|branches| *branches += 1),
            end if end.starts_with("end") && end != "endraw" => drop(blocks.pop()),
            _ => {}
        }
        if blocks.iter().sum::<usize>() > BLOCK_DEPTH {
            return refused(format!("blocks are nested more than {BLOCK_DEPTH} deep"));
        }
        out.push_str(&if word == "macro" { macro_tag(tokens) } else { joined(&tokens) });
        if word == "raw" {
            let end = rest.find("endraw").unwrap_or(rest.len());
            let (raw, after) = rest.split_at(rest.get(..end).and_then(|raw| raw.rfind("{%")).unwrap_or(end));
            out.push_str(raw);
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn next_tag(source: &str) -> Option<usize> {
    let opens = |at: &usize| source.get(at + 1..).is_some_and(|rest| rest.starts_with(['{', '%', '#']));
    source.match_indices('{').map(|(at, _)| at).find(opens)
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
    let (mut tokens, mut rest) = (Vec::new(), tag);
    let mut braces = 0usize;
    loop {
        let first = rest.chars().next()?;
        let run = |is: &dyn Fn(char) -> bool| rest.find(|c: char| !is(c)).unwrap_or(rest.len());
        let trims = usize::from(matches!(first, '-' | '+'));
        let ends = rest.get(trims..)?.starts_with(close) && (close == "%}" || braces == 0);
        let (kind, length) = match first {
            // A sign here only controls the white space in front.
            _ if tokens.is_empty() => (Kind::Space, 2 + usize::from(tag.get(2..)?.starts_with(['-', '+']))),
            _ if ends => (Kind::Space, trims + 2),
            c if c.is_whitespace() => (Kind::Space, run(&char::is_whitespace)),
            c if c.is_ascii_digit() => (Kind::Number, run(&|c| c.is_ascii_alphanumeric() || c == '_')),
            c if c.is_alphabetic() || c == '_' => (Kind::Word, run(&|c| c.is_alphanumeric() || c == '_')),
            '\'' | '"' => (Kind::Text, literal(rest, first)?),
            '(' | '[' | '{' => (Kind::Open, 1),
            ')' | ']' | '}' => (Kind::Close, 1),
            _ if ["**", "//", "==", "!=", "<=", ">="].iter().any(|sign| rest.starts_with(sign)) => (Kind::Sign, 2),
            c => (Kind::Sign, c.len_utf8()),
        };
        let (text, after) = rest.split_at(length);
        tokens.push(Token { kind, text });
        match text {
            "{" => braces += 1,
            "}" => braces = braces.saturating_sub(1),
            _ => {}
        }
        rest = after;
        if ends {
            return Some((tokens, rest));
        }
    }
}

/// Length of a string literal with its quotes.
fn literal(source: &str, quote: char) -> Option<usize> {
    let mut chars = source.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()?),
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
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

/// Writes `value[start:stop:step]` as a call of [`SLICE`].
fn slices(tokens: &mut Vec<Token<'_>>) {
    for open in (0..tokens.len()).rev() {
        let bracket = tokens.get(open).filter(|token| token.is("["));
        let Some(close) = bracket.and_then(|_| closing(tokens, open)) else { continue };
        let [start, stop, step] = split(tokens.get(open + 1..close).unwrap_or_default(), ":")[..] else { continue };
        // The space keeps a number in front from becoming a fraction.
        let mut call = vec![Token { kind: Kind::Sign, text: " ." }, Token { kind: Kind::Word, text: SLICE }];
        for (bound, sign) in [(start, "("), (stop, ","), (step, ",")] {
            call.push(Token { kind: if sign == "(" { Kind::Open } else { Kind::Sign }, text: sign });
            match bound.iter().all(|token| token.kind == Kind::Space) {
                true => call.push(Token { kind: Kind::Word, text: "none" }),
                false => call.extend_from_slice(bound),
            }
        }
        call.push(Token { kind: Kind::Close, text: ")" });
        tokens.splice(open..=close, call);
    }
}

/// Writes `left % right` as the filter [`PERCENT`], except where it is arithmetic.
fn percents(tokens: &mut Vec<Token<'_>>) {
    for at in (0..tokens.len()).rev() {
        let sign = tokens.get(at).filter(|token| token.is("%") && !is_arithmetic(tokens.get(..at).unwrap_or_default()));
        let Some(end) = sign.and_then(|_| operand_end(tokens, at + 1)) else { continue };
        tokens.insert(end + 1, Token { kind: Kind::Close, text: ")" });
        let filter = [(Kind::Sign, "|"), (Kind::Word, PERCENT), (Kind::Open, "(")];
        tokens.splice(at..=at, filter.map(|(kind, text)| Token { kind, text }));
    }
}

/// Whether the operand at the end of these tokens belongs to an operator that binds as `%` does, or more.
fn is_arithmetic(tokens: &[Token<'_>]) -> bool {
    let mut depth = 0usize;
    for token in tokens.iter().rev() {
        match (token.kind, token.text) {
            (Kind::Close, _) => depth += 1,
            (Kind::Open, _) if depth == 0 => return false,
            (Kind::Open, _) => depth -= 1,
            (Kind::Sign, sign) if depth == 0 && !matches!(sign.trim(), "." | "|") => {
                return matches!(sign, "*" | "/" | "//" | "%" | "**");
            }
            _ => {}
        }
    }
    false
}

/// Where the operand ends that begins at `start`, with its attributes, calls, subscripts and filters; `None` for a base of `**`.
fn operand_end(tokens: &[Token<'_>], start: usize) -> Option<usize> {
    let from = |at: usize| tokens.iter().enumerate().skip(at).find(|(_, token)| token.kind != Kind::Space);
    let (mut at, mut token) = from(start)?;
    while token.is("-") || token.is("+") {
        (at, token) = from(at + 1)?;
    }
    match token.kind {
        Kind::Open => at = closing(tokens, at)?,
        Kind::Word | Kind::Number | Kind::Text => {}
        Kind::Close | Kind::Sign | Kind::Space => return None,
    }
    while let Some((next, token)) = from(at + 1) {
        match token.text.trim() {
            _ if token.kind == Kind::Text => break,
            "." | "|" => at = from(next + 1)?.0,
            "(" | "[" => at = closing(tokens, next)?,
            "**" => return None,
            _ => break,
        }
    }
    Some(at)
}

/// The tag of a macro. The engine evaluates defaults before it knows earlier parameters: those that refer to one follow the tag.
fn macro_tag(mut tokens: Vec<Token<'_>>) -> String {
    let open = tokens.iter().position(|token| token.kind == Kind::Open);
    let Some((open, close)) = open.and_then(|open| Some((open, closing(&tokens, open)?))) else {
        return joined(&tokens);
    };
    let (mut names, mut parameters, mut later) = (Vec::new(), Vec::new(), String::new());
    for parameter in split(tokens.get(open + 1..close).unwrap_or_default(), ",") {
        let equals = parameter.iter().position(|token| token.is("=")).unwrap_or(parameter.len());
        let (name, value) = parameter.split_at(equals);
        let name = joined(name).trim().to_owned();
        if value.iter().any(|token| token.kind == Kind::Word && names.iter().any(|name| name == token.text)) {
            let value = joined(value);
            later.push_str(&format!("{{% if {name} is undefined %}}{{% set {name} {value} %}}{{% endif %}}"));
            parameters.push(format!("{name}={UNSET}"));
        } else {
            parameters.push(joined(parameter));
        }
        names.push(name);
    }
    let Some(later) = later.strip_suffix("%}") else { return joined(&tokens) };
    // The end of the tag controls the white space after it, which now follows the last default.
    let end = tokens.pop().map_or("", |token| token.text);
    let (before, after) =
        (joined(tokens.get(..=open).unwrap_or_default()), joined(tokens.get(close..).unwrap_or_default()));
    format!("{before}{}{after}%}}{later}{end}", parameters.join(","))
}
