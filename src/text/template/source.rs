//! A template's source, rewritten where the template engine differs from Jinja2: line ends, `{% generation %}`, `%` between
//! strings, and defaults of macros that refer to earlier parameters.

/// What [`rewritten`] calls in place of `left % right`.
pub(super) const PERCENT: &str = "__percent";

/// A name that no template defines: the placeholder for a default that is evaluated later.
const UNSET: &str = "__unset";

/// The source as the template engine is given it. Lines keep their numbers.
pub(super) fn rewritten(source: &str) -> String {
    // Jinja2 does so before it reads anything, string literals included.
    let source = crate::text::with_newlines(source);
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        if tag.starts_with("{#") {
            let end = tag.find("#}").map_or(tag.len(), |end| end + 2);
            let (comment, after) = tag.split_at(end);
            out.push_str(comment);
            rest = after;
            continue;
        }
        let (open, inside) = tag.split_at(2);
        let Some((mut tokens, after)) = tokens(inside, if open == "{{" { "}}" } else { "%}" }) else {
            rest = tag;
            break;
        };
        let first = tokens.iter_mut().find(|token| token.kind == Kind::Word);
        let word = first.as_ref().map(|token| token.text.clone()).unwrap_or_default();
        // It marks text for training and renders what it holds.
        if let (Some(token), true) = (first, open == "{%") {
            match word.as_str() {
                "generation" => token.text = "if true".to_owned(),
                "endgeneration" => token.text = "endif".to_owned(),
                _ => {}
            }
        }
        let defaults = if open == "{%" && word == "macro" { defaults(&mut tokens) } else { Vec::new() };
        while percent(&mut tokens) {}
        out.push_str(open);
        out.push_str(&joined(&tokens));
        rest = after;
        if !defaults.is_empty() {
            // The sign that trims white space moves to the last tag.
            let trims = if out.ends_with("-%}") { "-" } else { "" };
            out.truncate(out.len() - trims.len() - "%}".len());
            out.push_str("%}");
            for (name, value) in defaults {
                out.push_str(&format!("{{% if {name} is undefined %}}{{% set {name} = {value} %}}{{% endif %}}"));
            }
            out.truncate(out.len() - "%}".len());
            out.push_str(&format!("{trims}%}}"));
        }
        if open == "{%" && word == "raw" {
            let end = rest.find("endraw").unwrap_or(rest.len());
            let (raw, after) = rest.split_at(rest[..end].rfind("{%").unwrap_or(end));
            out.push_str(raw);
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Number,
    Text,
    Open,
    Close,
    Sign,
    Space,
}

#[derive(Clone)]
struct Token {
    kind: Kind,
    text: String,
}

/// The tokens of a tag with the sign that ends it, and the rest after it; `None` if it has no end.
fn tokens<'a>(source: &'a str, close: &str) -> Option<(Vec<Token>, &'a str)> {
    let mut tokens = Vec::new();
    let mut rest = source;
    let mut braces = 0usize;
    // A sign that only controls the white space before it.
    if let Some(after) = rest.strip_prefix(['-', '+']) {
        let (sign, _) = rest.split_at(1);
        tokens.push(Token { kind: Kind::Space, text: sign.to_owned() });
        rest = after;
    }
    loop {
        let first = rest.chars().next()?;
        if rest.starts_with(close) && (close == "%}" || braces == 0) {
            let (end, after) = rest.split_at(2);
            tokens.push(Token { kind: Kind::Space, text: end.to_owned() });
            return Some((tokens, after));
        }
        let run = |is: &dyn Fn(char) -> bool| rest.find(|c: char| !is(c)).unwrap_or(rest.len());
        let (kind, length) = match first {
            c if c.is_whitespace() => (Kind::Space, run(&char::is_whitespace)),
            c if c.is_ascii_digit() => (Kind::Number, run(&|c| c.is_ascii_alphanumeric() || c == '_')),
            c if c.is_alphabetic() || c == '_' => (Kind::Word, run(&|c| c.is_alphanumeric() || c == '_')),
            '\'' | '"' => (Kind::Text, literal(rest, first)?),
            '(' | '[' | '{' => (Kind::Open, 1),
            ')' | ']' | '}' => (Kind::Close, 1),
            _ if ["**", "//", "==", "!=", "<=", ">="].iter().any(|sign| rest.starts_with(sign)) => (Kind::Sign, 2),
            c => (Kind::Sign, c.len_utf8()),
        };
        match first {
            '{' => braces += 1,
            '}' => braces = braces.saturating_sub(1),
            _ => {}
        }
        let (text, after) = rest.split_at(length);
        tokens.push(Token { kind, text: text.to_owned() });
        rest = after;
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

/// Words that stand between operands.
const KEYWORDS: [&str; 16] = [
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "elif",
    "else",
    "for",
    "set",
    "return",
    "call",
    "filter",
    "with",
    "recursive",
    "include",
];

fn ends_operand(token: &Token) -> bool {
    match token.kind {
        Kind::Word => !KEYWORDS.contains(&token.text.as_str()),
        Kind::Number | Kind::Text | Kind::Close => true,
        Kind::Open | Kind::Sign | Kind::Space => false,
    }
}

/// The nearest token before `at` that is no space.
fn before(tokens: &[Token], at: usize) -> Option<usize> {
    tokens.get(..at)?.iter().rposition(|token| token.kind != Kind::Space)
}

/// The nearest token from `at` on that is no space.
fn from(tokens: &[Token], at: usize) -> Option<usize> {
    tokens.get(at..)?.iter().position(|token| token.kind != Kind::Space).map(|found| at + found)
}

fn is(tokens: &[Token], at: Option<usize>, text: &str) -> bool {
    at.and_then(|at| tokens.get(at)).is_some_and(|token| token.text == text && token.kind != Kind::Text)
}

/// The bracket that opens the one at `close`.
fn opening(tokens: &[Token], close: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().take(close + 1).rev() {
        match token.kind {
            Kind::Close => depth += 1,
            Kind::Open if depth == 1 => return Some(at),
            Kind::Open => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The bracket that closes the one at `open`.
fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close if depth == 1 => return Some(at),
            Kind::Close => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// Where the operand that ends at `end` begins: a name, literal or bracket with its attributes, calls and subscripts.
fn operand_start(tokens: &[Token], end: usize) -> Option<usize> {
    let mut at = end;
    loop {
        if !ends_operand(tokens.get(at)?) {
            return None;
        }
        let closes = tokens.get(at)?.kind == Kind::Close;
        if closes {
            at = opening(tokens, at)?;
        }
        match before(tokens, at) {
            Some(dot) if is(tokens, Some(dot), ".") => at = before(tokens, dot)?,
            Some(callee) if closes && !is(tokens, Some(at), "{") && ends_operand(tokens.get(callee)?) => at = callee,
            _ => return Some(at),
        }
    }
}

/// Where the operand that begins at `start` ends, with its filters.
fn operand_end(tokens: &[Token], start: usize) -> Option<usize> {
    let mut at = start;
    while is(tokens, Some(at), "-") || is(tokens, Some(at), "+") {
        at = from(tokens, at + 1)?;
    }
    if tokens.get(at)?.kind == Kind::Open {
        at = closing(tokens, at)?;
    } else if !ends_operand(tokens.get(at)?) {
        return None;
    }
    while let Some(next) = from(tokens, at + 1) {
        if is(tokens, Some(next), ".") || is(tokens, Some(next), "|") {
            at = from(tokens, next + 1)?;
        } else if is(tokens, Some(next), "(") || is(tokens, Some(next), "[") {
            at = closing(tokens, next)?;
        } else {
            break;
        }
    }
    Some(at)
}

fn joined(tokens: &[Token]) -> String {
    tokens.iter().map(|token| token.text.as_str()).collect()
}

/// Takes the defaults out of a macro's parameters that refer to earlier ones, which the engine does not know there yet.
fn defaults(tokens: &mut Vec<Token>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let Some(open) = tokens.iter().position(|token| token.kind == Kind::Open) else { return found };
    let Some(close) = closing(tokens, open) else { return found };
    let (mut names, mut kept) = (Vec::new(), tokens.get(..=open).unwrap_or_default().to_vec());
    let mut depth = 0usize;
    let parameters = tokens.get(open + 1..close).unwrap_or_default().split(|token| {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && token.kind == Kind::Sign && token.text == ","
    });
    for (i, parameter) in parameters.enumerate() {
        if i > 0 {
            kept.push(Token { kind: Kind::Sign, text: ",".to_owned() });
        }
        let equals = parameter.iter().position(|token| token.kind == Kind::Sign && token.text == "=");
        let (name, value) = parameter.split_at(equals.unwrap_or(parameter.len()));
        let name = joined(name).trim().to_owned();
        let refers = |token: &Token| token.kind == Kind::Word && names.contains(&token.text);
        if value.iter().any(refers) {
            found.push((name.clone(), joined(value.get(1..).unwrap_or_default())));
            kept.push(Token { kind: Kind::Word, text: format!(" {name}={UNSET}") });
        } else {
            kept.extend_from_slice(parameter);
        }
        names.push(name);
    }
    kept.extend_from_slice(tokens.get(close..).unwrap_or_default());
    *tokens = kept;
    found
}

/// Rewrites the last `%` with one operand on its left; the rest is arithmetic.
fn percent(tokens: &mut Vec<Token>) -> bool {
    let found = (0..tokens.len()).rev().find_map(|at| {
        let mut start = operand_start(tokens, before(tokens, at).filter(|_| is(tokens, Some(at), "%"))?)?;
        while let Some(bar) = before(tokens, start).filter(|bar| is(tokens, Some(*bar), "|")) {
            start = operand_start(tokens, before(tokens, bar)?)?;
        }
        // Signs that bind as `%` does, or more.
        let outer = before(tokens, start);
        let binds = |sign| is(tokens, outer, sign);
        if ["*", "/", "//", "%", "**", "-", "+"].into_iter().any(binds) {
            return None;
        }
        let end = operand_end(tokens, from(tokens, at + 1)?)?;
        let next = from(tokens, end + 1);
        if is(tokens, next, "is") || is(tokens, next, "**") {
            return None;
        }
        let (left, right) = (joined(tokens.get(start..at)?), joined(tokens.get(at + 1..=end)?));
        Some((start..=end, format!("{left}, {right}")))
    });
    let Some((range, arguments)) = found else { return false };
    let token = |kind, text: &str| Token { kind, text: text.to_owned() };
    let call =
        [token(Kind::Word, PERCENT), token(Kind::Open, "("), token(Kind::Text, &arguments), token(Kind::Close, ")")];
    tokens.splice(range, call);
    true
}
