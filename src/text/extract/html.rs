//! Text of a web page: headings, lists and tables are marked, script and style are left out.

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};
use html5gum::{DefaultEmitter, Token, Tokenizer};
use quick_xml::escape::partial_escape;

use super::blocks::Blocks;
use crate::text::encoding::{self, Decoded};

/// Elements without text for a reader.
const LEFT_OUT: &str = "script style noscript template symbol metadata annotation annotation-xml iframe noembed object";
/// Those of them that hold no markup.
const RAW: &str = "script style noscript iframe noembed";
const BLOCKS: &str = "p blockquote ul ol dl table figure section article header footer nav aside main \
    form fieldset hr details title body pre textarea";
const LINES: &str = "div dt dd option address figcaption summary caption legend center label text desc";
/// Bytes that may hold a declaration of the encoding.
const DECLARATION_BYTES: usize = 2048;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Html,
    /// `<script/>` is closed.
    Xhtml,
}

/// Elements without an end for which all of the rest is searched.
const MOST_UNCLOSED: usize = 100;

pub(super) fn page(bytes: Vec<u8>) -> Decoded {
    let Decoded { text: source, guessed } = decoded(bytes);
    let form = if source.trim_start().starts_with("<?xml") { Form::Xhtml } else { Form::Html };
    Decoded { text: text(&source, form), guessed }
}

/// In the encoding that the page declares; without one, as any text.
pub(super) fn decoded(bytes: Vec<u8>) -> Decoded {
    let head = String::from_utf8_lossy(bytes.get(..bytes.len().min(DECLARATION_BYTES)).unwrap_or(&[]));
    match declared(&head) {
        // A declaration that is readable byte by byte excludes UTF-16.
        Some(encoding) if Encoding::for_bom(&bytes).is_none() && ![UTF_8, UTF_16LE, UTF_16BE].contains(&encoding) => {
            Decoded { text: encoding.decode_without_bom_handling(&bytes).0.into_owned(), guessed: None }
        }
        _ => encoding::decode(bytes, true).unwrap_or_default(),
    }
}

/// The encoding in the XML declaration or in an element `meta`.
fn declared(head: &str) -> Option<&'static Encoding> {
    let named = |text: &str, key: &str| {
        let mut words = text.split_once(key)?.1.split(|c: char| !(c.is_ascii_alphanumeric() || "-_:.".contains(c)));
        Encoding::for_label(words.find(|word| !word.is_empty())?.as_bytes())
    };
    let xml = head.trim_start().strip_prefix("<?xml").and_then(|xml| named(xml.split_once("?>")?.0, "encoding="));
    let meta = |token: Token| {
        let Token::StartTag(tag) = token else { return None };
        let value = |name: &str| Some(String::from_utf8_lossy(tag.attributes.get(name.as_bytes())?).to_lowercase());
        let content = value("http-equiv").and_then(|_| value("content"));
        let charset = value("charset").map(|charset| format!("charset={charset}"));
        named(&charset.or(content).filter(|_| tag.name.as_slice() == b"meta")?, "charset=")
    };
    xml.or_else(|| tokens(head, Form::Html).find_map(meta))
}

fn tokens(source: &str, form: Form) -> impl Iterator<Item = Token> {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(form == Form::Html);
    Tokenizer::new_with_emitter(source, emitter).flatten()
}

pub(super) fn text(source: &str, form: Form) -> String {
    // In HTML the sections of XHTML are comments.
    let plain = (form == Form::Xhtml).then(|| without_sections(source));
    let tokens: Vec<Token> = tokens(plain.as_deref().unwrap_or(source), form).collect();
    let mut out = Blocks::default();
    let (mut at, mut verbatim, mut unclosed) = (0usize, 0usize, 0usize);
    // Elements that are open, and of each fraction without its slash how many were.
    let (mut depth, mut fractions) = (0isize, Vec::new());
    // The next numbers of the lists that are open.
    let mut lists: Vec<Option<i64>> = Vec::new();
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            Token::StartTag(tag) => {
                let name: &[u8] = &tag.name;
                let closed = tag.self_closing && (form == Form::Xhtml || name == b"symbol");
                let value = |key: &str| tag.attributes.get(key.as_bytes()).map(|value| String::from_utf8_lossy(value));
                if is_one_of(LEFT_OUT, name) && !closed && value("shadowrootmode").is_none() {
                    let rest = tokens.get(at..).filter(|_| unclosed < MOST_UNCLOSED).unwrap_or_default();
                    match length(rest, name) {
                        Some(length) => at += length,
                        // Its content is no markup.
                        None if is_one_of(RAW, name) => break,
                        None => unclosed += 1,
                    }
                    continue;
                }
                verbatim += usize::from(matches!(name, b"pre" | b"textarea") && !closed);
                begin(&mut out, name);
                depth += isize::from(!tag.self_closing);
                let number = |key: &str| value(key)?.trim().parse().ok();
                match (name, lists.last_mut()) {
                    (b"img", _) => out.text(&value("alt").unwrap_or_default()),
                    (b"mfrac", _) => fractions.push(depth),
                    // Brackets for programs that do not know readings.
                    (b"rp", _) if matches!(tokens.get(at), Some(Token::String(_))) => at += 1,
                    (b"ol", _) if value("reversed").is_none() => lists.push(number("start").or(Some(1))),
                    (b"ol" | b"ul", _) => lists.push(None),
                    (b"li", Some(Some(next))) => {
                        *next = number("value").unwrap_or(*next);
                        out.item(&format!("{next}."));
                        *next = next.saturating_add(1);
                    }
                    _ => {}
                }
            }
            Token::EndTag(tag) => {
                let name: &[u8] = &tag.name;
                if matches!(name, b"pre" | b"textarea") {
                    verbatim = verbatim.saturating_sub(1);
                }
                if matches!(name, b"ol" | b"ul") {
                    lists.pop();
                }
                end(&mut out, name);
                depth -= 1;
                if fractions.pop_if(|open| *open == depth).is_some() {
                    out.text("/");
                }
            }
            Token::String(text) => {
                let text = String::from_utf8_lossy(text);
                if verbatim > 0 { out.verbatim(&text) } else { out.text(&text) }
            }
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }
    out.finish()
}

/// XHTML with the text of its CDATA sections as ordinary text.
fn without_sections(source: &str) -> String {
    let mut sections = source.split("<![CDATA[");
    let mut plain = sections.next().unwrap_or_default().to_owned();
    for section in sections {
        let (text, rest) = section.split_once("]]>").unwrap_or(("", section));
        plain.extend([&partial_escape(text), rest]);
    }
    plain
}

/// How many tokens end an element that has just begun; `None` if it has no end.
fn length(tokens: &[Token], name: &[u8]) -> Option<usize> {
    let mut open = 1usize;
    let end = tokens.iter().position(|token| {
        match token {
            Token::StartTag(tag) if tag.name.as_slice() == name && !tag.self_closing => open += 1,
            Token::EndTag(tag) if tag.name.as_slice() == name => open -= 1,
            _ => {}
        }
        open == 0
    });
    end.map(|end| end + 1)
}

fn is_one_of(elements: &str, name: &[u8]) -> bool {
    elements.split(' ').any(|element| element.as_bytes() == name)
}

fn heading(name: &[u8]) -> Option<usize> {
    match name {
        [b'h', digit @ b'1'..=b'6'] => Some(usize::from(digit - b'0')),
        _ => None,
    }
}

fn begin(out: &mut Blocks, name: &[u8]) {
    match name {
        b"br" => out.line_break(),
        b"rt" => out.text("("),
        b"li" => out.item("-"),
        b"tr" => out.row(),
        b"td" | b"th" => out.cell(),
        _ => match heading(name) {
            Some(level) => out.heading(level),
            None => end(out, name),
        },
    }
}

fn end(out: &mut Blocks, name: &[u8]) {
    if name == b"li" || heading(name).is_some() {
        out.end_mark();
    }
    match name {
        b"rt" => out.text(")"),
        b"tr" | b"table" => out.row(),
        _ => {}
    }
    if is_one_of(BLOCKS, name) || heading(name).is_some() {
        out.block();
    } else if is_one_of(LINES, name) || name == b"li" {
        out.line();
    }
}
