//! Text of a web page: headings, lists and tables are marked, script and style are left out.

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};
use html5gum::{DefaultEmitter, Token, Tokenizer};

use super::blocks::Blocks;
use crate::text::encoding;

/// Elements without text for a reader.
const LEFT_OUT: &str = "script style noscript template svg iframe noembed object";
const BLOCKS: &str = "p blockquote ul ol dl table figure section article header footer nav aside main \
    form fieldset hr details title body pre textarea";
const LINES: &str = "div dt dd option address figcaption summary caption legend center label";
/// Bytes that may hold a declaration of the encoding.
const DECLARATION_BYTES: usize = 2048;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Html,
    /// `<script/>` is closed.
    Xhtml,
}

pub(super) fn page(bytes: Vec<u8>) -> String {
    let source = decoded(bytes);
    let form = if source.trim_start().starts_with("<?xml") { Form::Xhtml } else { Form::Html };
    text(&source, form)
}

/// In the encoding that the page declares; without one, as any text.
pub(super) fn decoded(bytes: Vec<u8>) -> String {
    let head = String::from_utf8_lossy(bytes.get(..bytes.len().min(DECLARATION_BYTES)).unwrap_or(&[])).to_lowercase();
    let label = ["charset=", "encoding="].iter().find_map(|key| {
        let (_, value) = head.split_once(key)?;
        let value = value.trim_start_matches(['"', '\'', ' ']);
        let end = value.find(|c: char| !(c.is_ascii_alphanumeric() || "-_:.".contains(c))).unwrap_or(value.len());
        Encoding::for_label(value.get(..end)?.as_bytes())
    });
    match label {
        // A declaration that is readable byte by byte excludes UTF-16.
        Some(encoding) if Encoding::for_bom(&bytes).is_none() && ![UTF_8, UTF_16LE, UTF_16BE].contains(&encoding) => {
            encoding.decode_without_bom_handling(&bytes).0.into_owned()
        }
        _ => encoding::decode(bytes, true).map(|decoded| decoded.text).unwrap_or_default(),
    }
}

pub(super) fn text(source: &str, form: Form) -> String {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(form == Form::Html);
    let mut out = Blocks::default();
    // The element that is left out now, and how many of its name are open.
    let mut left_out: Option<(Vec<u8>, usize)> = None;
    let mut verbatim = 0usize;
    for token in Tokenizer::new_with_emitter(source, emitter).flatten() {
        match token {
            Token::StartTag(tag) => {
                let name: &[u8] = &tag.name;
                if let Some((open, depth)) = &mut left_out {
                    *depth += usize::from(open.as_slice() == name && !tag.self_closing);
                    continue;
                }
                let closed = tag.self_closing && (form == Form::Xhtml || name == b"svg");
                if is_one_of(LEFT_OUT, name) && !closed {
                    left_out = Some((name.to_vec(), 1));
                    continue;
                }
                verbatim += usize::from(matches!(name, b"pre" | b"textarea") && !closed);
                begin(&mut out, name);
                if let (b"img", Some(alt)) = (name, tag.attributes.get(b"alt".as_slice())) {
                    out.text(&String::from_utf8_lossy(alt));
                }
            }
            Token::EndTag(tag) => {
                let name: &[u8] = &tag.name;
                if let Some((open, depth)) = &mut left_out {
                    *depth -= usize::from(open.as_slice() == name);
                    if *depth == 0 {
                        left_out = None;
                    }
                    continue;
                }
                if matches!(name, b"pre" | b"textarea") {
                    verbatim = verbatim.saturating_sub(1);
                }
                end(&mut out, name);
            }
            Token::String(text) if left_out.is_none() => {
                let text = String::from_utf8_lossy(&text);
                if verbatim > 0 { out.verbatim(&text) } else { out.text(&text) }
            }
            Token::String(_) | Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }
    out.finish()
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
        b"li" => out.item(),
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
    if matches!(name, b"tr" | b"table") {
        out.row();
    }
    if is_one_of(BLOCKS, name) || heading(name).is_some() {
        out.block();
    } else if is_one_of(LINES, name) || name == b"li" {
        out.line();
    }
}
