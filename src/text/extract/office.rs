//! Text documents that are zip files of XML: Word (`.docx`), OpenDocument (`.odt`), and EPUB.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use percent_encoding::percent_decode_str;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use zip::ZipArchive;

use super::blocks::Blocks;
use super::{html, mail};
use crate::text::encoding;

/// Largest part of a document, unpacked.
const PART_BYTES: u64 = 256 << 20;
const MOST_SPACES: usize = 200;
/// Elements without text for a reader: repetitions of the choice in front of them, text that was moved or changed, and comments.
const HIDDEN: [&str; 5] = ["Fallback", "moveFrom", "pPrChange", "tracked-changes", "annotation"];
/// In the names of parts: those that hold text or may, and of them relations, repetitions, and building blocks for other documents.
const TEXTS: [&str; 6] = [".xml", ".htm", ".mht", ".txt", "embeddings/", "chunk"];
const NO_TEXTS: [&str; 3] = [".rels", "diagrams/drawing", "glossary/"];
/// The font Symbol from its character 0x20. Source: Adobe's `symbol.txt`.
const SYMBOL: &str = " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼���������������������������������\
    €ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪�〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭";

type Archive = ZipArchive<Cursor<Vec<u8>>>;

pub(super) fn text(bytes: Vec<u8>) -> Result<String, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| format!("the zip file is damaged ({e})"))?;
    if let Some(container) = part(&mut archive, "META-INF/container.xml")? {
        return epub(&mut archive, &container);
    }
    let mut main = "word/document.xml".to_owned();
    let is_main = |tag: &BytesStart<'_>| attribute(tag, "Type").is_some_and(|kind| kind.ends_with("/officeDocument"));
    walk(&part(&mut archive, "_rels/.rels").ok().flatten().unwrap_or_default(), |node| match node {
        Node::Start("Relationship", tag) if is_main(tag) => main = attribute(tag, "Target").unwrap_or_default(),
        _ => {}
    })?;
    let main = inside("", &main);
    let is_word = !main.starts_with("xl/") && !main.starts_with("ppt/") && part(&mut archive, &main)?.is_some();
    let main = if is_word { main } else { "content.xml".to_owned() };
    let content = part(&mut archive, &main)?.ok_or("the zip file holds no text document")?;
    let styles = part(&mut archive, "word/styles.xml").ok().flatten().and_then(|xml| headings(&xml).ok());
    let styles = is_word.then(|| styles.unwrap_or_default());
    let mut out = Blocks::default();
    document(&content, styles.as_ref(), &mut out)?;
    for name in archive.file_names().flatten().map(String::from).collect::<Vec<_>>() {
        let path = name.replace('\\', "/").to_lowercase();
        let has = |marks: &[&str]| marks.iter().any(|mark| path.contains(mark));
        if path == main.to_lowercase() || !has(&TEXTS) || has(&NO_TEXTS) {
            continue;
        }
        let text = part(&mut archive, &name).map(|text| other(&path, text.unwrap_or_default(), styles.as_ref()));
        let text = text.unwrap_or_else(|why| format!("[{why}]"));
        if !text.trim().is_empty() {
            out.block();
            out.verbatim(&format!("[{name}]\n{}", text.trim()));
        }
    }
    Ok(out.finish())
}

/// Text of a part that is not the main one.
fn other(path: &str, text: String, styles: Option<&HashMap<String, usize>>) -> String {
    match path.rsplit('.').next().unwrap_or_default() {
        "htm" | "html" => html::text(&text, html::Form::Html),
        "mht" | "mhtml" => mail::text(text.into_bytes(), 0).unwrap_or_default().text,
        "xml" if text.contains("<math") => html::text(&text, html::Form::Xhtml),
        "xml" => {
            let mut out = Blocks::default();
            let read = document(&text, styles, &mut out);
            out.finish() + &read.map_or_else(|why| format!("[{why}]"), |()| String::new())
        }
        _ => text,
    }
}

/// A part of the archive as text; `None` if there is none of the name, also decoded, in another case or with other slashes.
fn part(archive: &mut Archive, name: &str) -> Result<Option<String>, String> {
    let decoded = percent_decode_str(name).decode_utf8_lossy();
    let forms = [&*decoded, name];
    let alike = |entry: &str| forms.iter().any(|form| form.eq_ignore_ascii_case(&entry.replace('\\', "/")));
    let exact = forms.into_iter().find_map(|form| archive.index_for_name(form));
    let like = || archive.file_names().position(|entry| entry.is_ok_and(|entry| alike(&entry)));
    let Some(index) = exact.or_else(like) else { return Ok(None) };
    let entry = archive.by_index(index).map_err(|e| format!("{name} in it cannot be read ({e})"))?;
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

fn number(tag: &BytesStart<'_>, name: &str) -> Option<usize> {
    attribute(tag, name)?.parse().ok()
}

/// Levels of the paragraph styles that are headings, by their ids, which are words of the author's language.
fn headings(styles: &str) -> Result<HashMap<String, usize>, String> {
    let (mut levels, mut id) = (HashMap::new(), None);
    walk(styles, |node| match node {
        Node::Start("style", tag) => id = attribute(tag, "styleId"),
        Node::Start("outlineLvl", tag) => {
            if let (Some(id), Some(level @ 0..9)) = (id.take(), number(tag, "val")) {
                levels.insert(id, level + 1);
            }
        }
        _ => {}
    })?;
    Ok(levels)
}

/// Reads a document of either format, which share most of their structure. `styles`: the headings of Word, in which only
/// `t` has text, with all its white space, and in a chart `v`.
fn document(xml: &str, styles: Option<&HashMap<String, usize>>, out: &mut Blocks) -> Result<(), String> {
    let (mut hidden, mut inside, mut paragraphs, mut in_run, mut in_text) = (0usize, 0usize, 0usize, false, false);
    let (mut reading, mut in_reading, mut entries, mut sign) = (String::new(), false, 0usize, String::new());
    let is_word = styles.is_some();
    walk(xml, |node| match node {
        Node::Start(name, _) if HIDDEN.contains(&name) => hidden += 1,
        Node::End(name) if HIDDEN.contains(&name) => hidden = hidden.saturating_sub(1),
        _ if hidden > 0 => {}
        // A handle of a shape.
        Node::Start("h", _) | Node::End("h") if is_word => {}
        Node::Start("h", tag) => {
            out.heading(number(tag, "outline-level").unwrap_or(1));
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
        Node::Start("numPr", _) => out.item("-"),
        Node::Start("list-item", _) => {
            out.item("-");
            inside += 1;
        }
        Node::Start("tr" | "table-row", _) | Node::End("tr" | "table-row") => out.row(),
        Node::Start("tc" | "table-cell", _) => {
            out.cell();
            inside += 1;
        }
        Node::End("list-item" | "tc" | "table-cell") => {
            out.end_mark();
            inside = inside.saturating_sub(1);
        }
        Node::Start("r", _) => in_run = true,
        Node::End("r") => in_run = false,
        // Tab stops of Word have the same name outside of runs.
        Node::Start("tab" | "ptab", _) if in_run || !is_word => out.verbatim("\t"),
        Node::Start("sym", tag) => {
            let [font, code] = ["font", "char"].map(|key| attribute(tag, key).unwrap_or_default());
            let value = usize::from_str_radix(&code, 16).unwrap_or_default() & 0xFF;
            let known = SYMBOL.chars().nth(value.saturating_sub(0x20)).filter(|_| font == "Symbol");
            out.verbatim(&known.map_or_else(|| format!("\u{FFFD}[{font} {code}]"), String::from));
        }
        Node::Start("br" | "cr" | "line-break", _) => out.line_break(),
        // Of a fraction.
        Node::Start("den", _) => out.verbatim("/"),
        // Of a root.
        Node::End("deg") => out.verbatim("√("),
        Node::End("rad") => out.verbatim(")"),
        Node::Start("naryPr", _) => sign = "∫".to_owned(),
        Node::Start("chr", tag) => sign = attribute(tag, "val").unwrap_or_default(),
        Node::End("naryPr") => out.verbatim(&sign),
        Node::Start("ddList" | "result", tag) => entries = number(tag, "val").unwrap_or(0),
        Node::Start("listEntry", tag) => {
            let chosen = attribute(tag, "val").filter(|_| entries == 0);
            out.verbatim(&chosen.unwrap_or_default());
            entries = entries.wrapping_sub(1);
        }
        Node::Start("noBreakHyphen", _) => out.verbatim("-"),
        Node::Start("s", tag) if !is_word => {
            out.verbatim(&" ".repeat(number(tag, "c").unwrap_or(1).min(MOST_SPACES)));
        }
        // In the place of an object: the name of its part.
        Node::Start("object", tag) => out.text(&attribute(tag, "href").map_or(String::new(), |at| format!("[{at}]"))),
        Node::Start("strCache" | "numCache" | "strLit" | "numLit", _) => out.row(),
        Node::Start("v", _) if is_word => {
            out.cell();
            in_text = true;
        }
        Node::Start("t", _) => in_text = true,
        Node::End("t" | "v") => in_text = false,
        Node::Start("rt" | "ruby-text", _) => in_reading = true,
        Node::End("rt" | "ruby-text") => in_reading = false,
        Node::End("ruby") => out.verbatim(&format!("({})", std::mem::take(&mut reading))),
        Node::Text(text) if in_reading => reading.push_str(text.trim()),
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
        let source = part(archive, &inside(folder, href));
        let source = source.and_then(|source| source.ok_or_else(|| format!("{href} is missing in the book")));
        failed += usize::from(source.is_err());
        texts.push(match source {
            Ok(source) => html::text(&source, html::Form::Xhtml),
            Err(why) => format!("[{why}]\n"),
        });
    }
    if failed > 0 && failed == texts.len() {
        return Err("no chapter of the book can be read: it is damaged or encrypted".to_owned());
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.join("\n"))
}

/// Path of an entry, from a reference that is relative to `folder`; with a slash in front, to the root.
fn inside(folder: &str, href: &str) -> String {
    let href = href.split('#').next().unwrap_or(href).replace('\\', "/");
    let folder = if href.starts_with('/') { "" } else { folder };
    let mut path: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in href.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.join("/")
}
