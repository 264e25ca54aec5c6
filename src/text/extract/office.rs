//! Text documents that are zip files of XML: Word (`.docx`), OpenDocument (`.odt`), and EPUB.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use percent_encoding::percent_decode_str;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use zip::ZipArchive;

use super::blocks::Blocks;
use super::html;
use crate::text::encoding;

/// Largest part of a document, unpacked.
const PART_BYTES: u64 = 256 << 20;
const MOST_SPACES: usize = 200;
/// Elements without text for a reader: repetitions of the choice in front of them, text that was moved or changed, comments, and
/// readings of characters.
const HIDDEN: [&str; 6] = ["Fallback", "moveFrom", "tracked-changes", "annotation", "rt", "ruby-text"];

type Archive = ZipArchive<Cursor<Vec<u8>>>;

pub(super) fn text(bytes: Vec<u8>) -> Result<String, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| format!("the zip file is damaged ({e})"))?;
    if let Some(container) = part(&mut archive, "META-INF/container.xml")? {
        return epub(&mut archive, &container);
    }
    let mut out = Blocks::default();
    // Some programs number it.
    let number = |name: &String| Some(name.strip_prefix("word/document")?.strip_suffix(".xml")?.to_owned());
    let is_main = |name: &String| number(name).is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()));
    let main = archive.file_names().flatten().map(String::from).filter(is_main).min().unwrap_or_default();
    if let Some(text) = part(&mut archive, &main)? {
        let styles = part(&mut archive, "word/styles.xml").ok().flatten().and_then(|xml| headings(&xml).ok());
        let styles = styles.unwrap_or_default();
        document(&text, Some(&styles), &mut out)?;
        for notes in ["word/footnotes.xml", "word/endnotes.xml"] {
            out.block();
            match part(&mut archive, notes) {
                Ok(Some(notes)) => document(&notes, Some(&styles), &mut out)?,
                Ok(None) => {}
                Err(why) => out.text(&format!("[{why}]")),
            }
        }
    } else if let Some(content) = part(&mut archive, "content.xml")? {
        document(&content, None, &mut out)?;
    } else {
        return Err("the zip file holds no text document".to_owned());
    }
    Ok(out.finish())
}

/// A part of the archive as text; `None` if there is none of the name.
fn part(archive: &mut Archive, name: &str) -> Result<Option<String>, String> {
    let entry = match archive.by_name(name) {
        Ok(entry) => entry,
        Err(zip::result::ZipError::FileNotFound) => return Ok(None),
        Err(e) => return Err(format!("{name} in it cannot be read ({e})")),
    };
    let mut bytes = Vec::new();
    entry.take(PART_BYTES + 1).read_to_end(&mut bytes).map_err(|e| format!("{name} in it is damaged ({e})"))?;
    if bytes.len() as u64 > PART_BYTES {
        return Err(format!("{name} in it is larger than {} MiB", PART_BYTES >> 20));
    }
    let decoded = encoding::decode(bytes, false).map_err(|_| format!("{name} in it is not text, or encrypted"))?;
    Ok(Some(decoded.text))
}

/// What the XML of a part consists of, for a reader of text.
enum Node<'a> {
    Start(&'a str, &'a BytesStart<'a>),
    End(&'a str),
    Text(&'a str),
}

/// Calls `on` with each node. Names are local ones: a prefix is the author's choice.
fn walk(xml: &str, mut on: impl FnMut(Node<'_>)) -> Result<(), String> {
    let mut reader = Reader::from_str(xml);
    let config = reader.config_mut();
    (config.check_end_names, config.allow_unmatched_ends, config.allow_dangling_amp) = (false, true, true);
    loop {
        match reader.read_event().map_err(|e| format!("its XML is damaged ({e})"))? {
            Event::Start(tag) => on(Node::Start(tag.local_name().as_ref(), &tag)),
            Event::Empty(tag) => {
                on(Node::Start(tag.local_name().as_ref(), &tag));
                on(Node::End(tag.local_name().as_ref()));
            }
            Event::End(tag) => on(Node::End(tag.local_name().as_ref())),
            Event::Text(text) => on(Node::Text(&text.xml10_content())),
            Event::CData(text) => on(Node::Text(&text.xml10_content())),
            Event::GeneralRef(entity) => match entity.resolve_char_ref() {
                Ok(Some(c)) => on(Node::Text(c.encode_utf8(&mut [0; 4]))),
                _ => on(Node::Text(resolve_predefined_entity(&entity.xml10_content()).unwrap_or_default())),
            },
            Event::Eof => return Ok(()),
            _ => {}
        }
    }
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let mut attributes = tag.html_attributes().flatten();
    let found = attributes.find(|attribute| attribute.key.local_name().as_ref() == name)?;
    found.normalized_value(XmlVersion::Implicit1_0).ok().map(|value| value.into_owned())
}

/// Levels of the paragraph styles that are headings, by their ids, which are words of the author's language.
fn headings(styles: &str) -> Result<HashMap<String, usize>, String> {
    let (mut levels, mut id) = (HashMap::new(), None);
    walk(styles, |node| match node {
        Node::Start("style", tag) => id = attribute(tag, "styleId"),
        Node::Start("outlineLvl", tag) => {
            let level = attribute(tag, "val").and_then(|level| level.parse::<usize>().ok());
            if let (Some(id), Some(level @ 0..9)) = (id.take(), level) {
                levels.insert(id, level + 1);
            }
        }
        _ => {}
    })?;
    Ok(levels)
}

/// Reads a document of either format, which share most of their structure. `styles`: the headings of Word, in which only
/// `t` has text, with all its white space.
fn document(xml: &str, styles: Option<&HashMap<String, usize>>, out: &mut Blocks) -> Result<(), String> {
    let (mut hidden, mut inside, mut paragraphs, mut in_run, mut in_text) = (0usize, 0usize, 0usize, false, false);
    let is_word = styles.is_some();
    walk(xml, |node| match node {
        Node::Start(name, _) if HIDDEN.contains(&name) => hidden += 1,
        Node::End(name) if HIDDEN.contains(&name) => hidden = hidden.saturating_sub(1),
        _ if hidden > 0 => {}
        // A handle of a shape.
        Node::Start("h", _) | Node::End("h") if is_word => {}
        Node::Start("h", tag) => {
            out.heading(attribute(tag, "outline-level").and_then(|level| level.parse().ok()).unwrap_or(1));
            paragraphs += 1;
        }
        Node::Start("p", _) => {
            if inside > 0 {
                out.line()
            } else {
                out.block()
            }
            paragraphs += 1;
        }
        Node::Start("pStyle", tag) => {
            let style = attribute(tag, "val").unwrap_or_default();
            let named = style.strip_prefix("Heading").and_then(|level| level.parse().ok());
            let level = styles.and_then(|styles| styles.get(&style).copied());
            if let Some(level) = level.or(named).or((style == "Title").then_some(1)) {
                out.heading(level);
            }
        }
        Node::End("h" | "p") => {
            out.end_mark();
            out.line();
            paragraphs = paragraphs.saturating_sub(1);
        }
        Node::Start("numPr", _) => out.item(),
        Node::Start("list-item", _) => {
            out.item();
            inside += 1;
        }
        Node::End("list-item") => {
            out.end_mark();
            inside = inside.saturating_sub(1);
        }
        Node::Start("tr" | "table-row", _) | Node::End("tr" | "table-row") => out.row(),
        Node::Start("tc" | "table-cell", _) => {
            out.cell();
            inside += 1;
        }
        Node::End("tc" | "table-cell") => inside = inside.saturating_sub(1),
        Node::Start("r", _) => in_run = true,
        Node::End("r") => in_run = false,
        // Tab stops of Word have the same name outside of runs.
        Node::Start("tab", _) if in_run || !is_word => out.verbatim("\t"),
        Node::Start("br" | "cr" | "line-break", _) => out.line_break(),
        // Of a fraction.
        Node::Start("den", _) => out.verbatim("/"),
        Node::Start("noBreakHyphen", _) => out.verbatim("-"),
        Node::Start("s", tag) if !is_word => {
            let count = attribute(tag, "c").and_then(|count| count.parse().ok()).unwrap_or(1);
            out.verbatim(&" ".repeat(usize::min(count, MOST_SPACES)));
        }
        Node::Start("t", _) => in_text = true,
        Node::End("t") => in_text = false,
        Node::Text(text) if in_text => out.verbatim(text),
        Node::Text(text) if !is_word && paragraphs > 0 => out.text(text),
        _ => {}
    })
}

/// Chapters in reading order. One that is missing or cannot be read is named in its place.
fn epub(archive: &mut Archive, container: &str) -> Result<String, String> {
    let mut package = None;
    walk(container, |node| {
        if let Node::Start("rootfile", tag) = node {
            package = package.take().or_else(|| attribute(tag, "full-path"));
        }
    })?;
    let package = package.ok_or("its container names no book")?;
    let folder = package.rsplit_once('/').map_or("", |(folder, _)| folder);
    let contents = part(archive, &package)?.ok_or_else(|| format!("{package} in it is missing"))?;
    let (mut files, mut chapters) = (HashMap::new(), Vec::new());
    walk(&contents, |node| match node {
        Node::Start("item", tag) => {
            if let (Some(id), Some(href)) = (attribute(tag, "id"), attribute(tag, "href")) {
                files.insert(id, href);
            }
        }
        Node::Start("itemref", tag) => chapters.extend(attribute(tag, "idref")),
        _ => {}
    })?;
    let (mut texts, mut failed) = (Vec::new(), 0);
    for chapter in chapters {
        let Some(href) = files.get(&chapter) else { continue };
        texts.push(match part(archive, &inside(folder, href)) {
            Ok(Some(source)) => html::text(&source, html::Form::Xhtml),
            Ok(None) => {
                failed += 1;
                format!("[{href} is missing in the book]\n")
            }
            Err(why) => {
                failed += 1;
                format!("[{why}]\n")
            }
        });
    }
    if failed > 0 && failed == texts.len() {
        return Err("no chapter of the book can be read: it is damaged or encrypted".to_owned());
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.join("\n"))
}

/// Path of an entry, from a reference that is relative to `folder`.
fn inside(folder: &str, href: &str) -> String {
    let href = href.split('#').next().unwrap_or(href);
    let mut path: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in href.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    percent_decode_str(&path.join("/")).decode_utf8_lossy().into_owned()
}
