//! Pages of a PDF. A page that cannot be read leaves the others as they are.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::read::ZlibDecoder;
use hayro_interpret::hayro_cmap::{CMap, CMapName, load_embedded};
use hayro_interpret::hayro_syntax::content::ops::TypedInstruction;
use hayro_interpret::hayro_syntax::content::{TypedIter, UntypedIter};
use hayro_interpret::hayro_syntax::object::{Array, Dict, MaybeRef, Name, Object, Stream};
use hayro_interpret::hayro_syntax::page::Page as Source;
use hayro_interpret::hayro_syntax::{DecryptionError, LoadPdfError, Pdf};
use hayro_interpret::kurbo::{Affine, Rect};
use hayro_interpret::{Context, InterpreterCache, InterpreterSettings, InterpreterWarning, interpret_page};

use super::layout::{Layout, decoded};
use super::{HEAD_BYTES, Page};
use crate::core::caught::caught;

/// Fields above a form field that may hold its value.
const PARENTS: usize = 16;
/// Flags of an annotation that the reader does not draw.
const HIDDEN: i32 = 1 << 1;
const NO_VIEW: i32 = 1 << 5;
/// An operator that no page has.
const END: &[u8] = b"sala_end";
/// Operators that show text.
const SHOW: [&[u8]; 4] = [b"Tj", b"TJ", b"'", b"\""];
/// Most pages that the head of a file may announce.
const MOST_PAGES: usize = 100_000;

pub(super) fn pages(bytes: Vec<u8>) -> Result<Vec<Page>, String> {
    let head = bytes.get(..bytes.len().min(HEAD_BYTES as usize)).unwrap_or_default();
    let announced = announced(&String::from_utf8_lossy(head), bytes.len()).unwrap_or(0);
    let is_pdf = bytes.windows(5).any(|part| part.eq_ignore_ascii_case(b"%PDF-"));
    let pdf = Pdf::new(bytes).map_err(|e| match e {
        LoadPdfError::Invalid if !is_pdf => "it is no PDF".to_owned(),
        LoadPdfError::Decryption(DecryptionError::PasswordProtected) => {
            "it needs a password: save a copy without one".to_owned()
        }
        LoadPdfError::Decryption(_) => "it is encrypted in a way that the reader does not know".to_owned(),
        LoadPdfError::Invalid => "it is damaged: no pages were found".to_owned(),
    })?;
    if pdf.pages().is_empty() {
        return Err("it is damaged: no pages were found".to_owned());
    }
    let cache = InterpreterCache::new();
    let mut pages: Vec<Page> = pdf.pages().iter().map(|source| page(source, &cache)).collect();
    let entries = entries(&pdf);
    if entries.iter().filter(|is_page| **is_page).count() == pages.len() {
        for (i, _) in entries.iter().enumerate().filter(|(_, is_page)| !**is_page) {
            pages.insert(i, Page { failed: true, ..Page::default() });
        }
    }
    pages.resize_with(pages.len().max(announced), || Page { failed: true, ..Page::default() });
    Ok(pages)
}

/// How many pages the head of a linearized file names. A file that is longer than its head says was changed afterwards.
fn announced(head: &str, bytes: usize) -> Option<usize> {
    let (_, entries) = head.split_once("/Linearized")?;
    let number = |key: &str| {
        let value = entries.split_once(key)?.1.trim_start();
        value.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()
    };
    (number("/L")? >= bytes).then_some(number("/N")?.min(MOST_PAGES))
}

/// The leaves of the page tree, in order: whether each is a page. The reader leaves out those that are none.
fn entries(pdf: &Pdf) -> Vec<bool> {
    let root = pdf.xref().get::<Dict<'_>>(pdf.xref().root_id()).unwrap_or_default();
    let mut seen: HashSet<_> = root.get_ref("Pages").into_iter().collect();
    let kids = root.get::<Dict<'_>>("Pages").and_then(|pages| pages.get::<Array<'_>>("Kids"));
    let mut stack: Vec<_> = kids.iter().map(Array::raw_iter).collect();
    let mut found = Vec::new();
    while let Some(level) = stack.last_mut() {
        let Some(kid) = level.next() else {
            stack.pop();
            continue;
        };
        let dict = match kid {
            MaybeRef::Ref(id) if seen.insert(id) => pdf.xref().get::<Dict<'_>>(id.into()),
            MaybeRef::Ref(_) => None,
            MaybeRef::NotRef(object) => object.into_dict(),
        };
        let is_node = |dict: &&Dict<'_>| dict.get::<Name<'_>>("Type").is_some_and(|name| name.as_str() == "Pages");
        match dict.as_ref().filter(is_node).map(|node| node.get::<Array<'_>>("Kids")) {
            Some(Some(kids)) => stack.push(kids.raw_iter()),
            Some(None) => found.push(false),
            None => found.push(dict.is_some()),
        }
    }
    found
}

fn page<'a>(source: &Source<'a>, cache: &InterpreterCache<'a>) -> Page {
    let lost_font = Arc::new(AtomicBool::new(false));
    let warned = Arc::clone(&lost_font);
    let read = caught(|| {
        let settings = InterpreterSettings {
            warning_sink: Arc::new(move |warning| {
                if matches!(warning, InterpreterWarning::UnsupportedFont) {
                    warned.store(true, Ordering::Relaxed);
                }
            }),
            cmap_resolver: Arc::new(code_table),
            ..InterpreterSettings::default()
        };
        // Neither the place nor the size on a screen matters.
        let mut context = Context::new(Affine::IDENTITY, Rect::new(0.0, 0.0, 1.0, 1.0), cache, source.xref(), settings);
        let mut layout = Layout::default();
        interpret_page(source, &mut context, &mut layout);
        let values = annotations(source);
        let (mut text, unknown, zero) = layout.finish();
        for (name, value) in values {
            text.push_str(&name.map_or_else(String::new, |name| format!("{name}: ")));
            text.push_str(&value);
            text.push('\n');
        }
        (text, unknown || zero && has_code_table(source), is_damaged(source))
    });
    match read {
        Some((text, _, true)) if text.trim().is_empty() => Page { failed: true, ..Page::default() },
        Some((text, unknown, cut)) => {
            Page { text, cut, partial: unknown || lost_font.load(Ordering::Relaxed), ..Page::default() }
        }
        None => Page { failed: true, ..Page::default() },
    }
}

/// Whether content is missing or cannot be decoded, or the reader stops before its end.
fn is_damaged(source: &Source<'_>) -> bool {
    if !source.raw().contains_key("Contents") {
        return false;
    }
    let is_decoded = match source.raw().get::<Object<'_>>("Contents") {
        Some(Object::Stream(stream)) => decodes(&stream),
        Some(Object::Array(parts)) => parts.iter::<Stream<'_>>().filter(decodes).count() == parts.raw_iter().count(),
        _ => false,
    };
    let content = [source.page_stream().unwrap_or_default(), b"\n", END].concat();
    let mut operations = TypedIter::new(&content);
    let (mut is_at_end, mut is_skipped) = (false, false);
    while let Some(operation) = operations.next() {
        let TypedInstruction::Fallback(operator) = operation else { continue };
        is_at_end = **operator == *END;
        // It lacks an operand.
        is_skipped |= SHOW.contains(&&**operator);
    }
    !is_decoded || !is_at_end || is_skipped
}

/// Whether all of a stream can be decoded. The reader skips unknown filters and keeps the bytes before a fault.
fn decodes(stream: &Stream<'_>) -> bool {
    let filters: Vec<Name<'_>> = match stream.dict().get::<Object<'_>>("Filter") {
        Some(Object::Array(filters)) => filters.iter().collect(),
        filter => filter.and_then(Object::into_name).into_iter().collect(),
    };
    let is_deflated = filters.first().is_some_and(|name| name.as_str() == "FlateDecode");
    let is_whole = || io::copy(&mut ZlibDecoder::new(&*stream.raw_data()), &mut io::sink()).is_ok();
    stream.filters().len() == filters.len() && (!is_deflated || is_whole()) && stream.decoded_data().is_ok()
}

/// The table from a font's codes to numbers of glyphs. The reader has those of UTF-16, which serve for the other forms of Unicode
/// too, without characters beyond the first 65,536. The number of such a glyph is the character, and the reader's tables from
/// glyphs to characters (`-UCS2`) are extended by these.
fn code_table(name: CMapName<'_>) -> Option<&'static [u8]> {
    static TABLES: Mutex<BTreeMap<String, Option<&'static [u8]>>> = Mutex::new(BTreeMap::new());
    let name = std::str::from_utf8(name.to_bytes()).ok()?;
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    *tables.entry(name.to_owned()).or_insert_with(|| new_code_table(name))
}

fn new_code_table(name: &str) -> Option<&'static [u8]> {
    let known = |name: &str| load_embedded(CMapName::from_bytes(name.as_bytes()));
    let code = |bits: &str, c: char| match bits {
        "8" => c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("{byte:02x}")).collect(),
        "16" => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("{unit:04x}")).collect(),
        _ => format!("{:08x}", c as u32),
    };
    // Characters that differ in six bits differ in the last byte alone in every form.
    let beyond = |line: &dyn Fn(char, char) -> String| -> String {
        let first = ('\u{10000}'..=char::MAX).step_by(64);
        first.map(|c| line(c, char::from_u32(c as u32 | 63).unwrap_or(c))).collect()
    };
    let table = if let Some(name) = name.strip_prefix("Known-") {
        return known(name);
    } else if name.ends_with("-UCS2") {
        let more = beyond(&|a, b| format!("<{}> <{}> <{}>\n", code("32", a), code("32", b), code("16", a)));
        format!("/Known-{name} usecmap beginbfrange {more} endbfrange")
    } else if let Some((set, (bits, mode))) =
        name.split_once("-UTF").and_then(|(set, form)| Some((set, form.split_once('-')?)))
    {
        let glyphs = CMap::parse(known(&format!("{}-UTF16-{mode}", set.trim_end_matches("2004")))?, load_embedded)?;
        let line = |c| Some(format!("<{0}> <{0}> {1}\n", code(bits, c), glyphs.lookup_cid_code(c as u32, 2)?));
        let lines: String = ('\0'..='\u{FFFF}').filter_map(line).collect();
        let more = beyond(&|a, b| format!("<{}> <{}> {}\n", code(bits, a), code(bits, b), a as u32));
        format!("/WMode {} begincidrange {lines}{more} endcidrange", u8::from(mode == "V"))
    } else {
        return known(name);
    };
    Some(table.leak().as_bytes())
}

/// Whether a font takes its characters from a named table of codes. Where the table lacks a code, such as those of characters
/// beyond the first 65,536, the reader shows the space of code 0 and continues with the next byte.
fn has_code_table(source: &Source<'_>) -> bool {
    let fonts = &source.resources().fonts;
    fonts.keys().filter_map(|name| fonts.get::<Dict<'_>>(name)).any(|font| {
        let encoding = font.get::<Name<'_>>("Encoding");
        font.contains_key("DescendantFonts")
            && !font.contains_key("ToUnicode")
            && encoding.is_some_and(|name| !name.as_str().starts_with("Identity"))
    })
}

/// Form fields with their values, and texts of notes, except those that an appearance shows, which is part of the page's text.
fn annotations(source: &Source<'_>) -> Vec<(Option<String>, String)> {
    let mut found = Vec::new();
    for annotation in source.raw().get::<Array<'_>>("Annots").iter().flat_map(|all| all.iter::<Dict<'_>>()) {
        let is_field = annotation.get::<Name<'_>>("Subtype").is_some_and(|name| name.as_str() == "Widget");
        let is_shown = shows_text(&annotation);
        if !is_field {
            let contents = annotation.get::<Object<'_>>("Contents").filter(|_| !is_shown);
            found.extend(contents.and_then(|contents| Some((None, words(&contents)?))));
            continue;
        }
        let (mut name, mut value, mut is_button) = (None, None, false);
        let mut field = Some(annotation);
        for _ in 0..PARENTS {
            let Some(dict) = field else { break };
            name = name.or_else(|| words(&dict.get::<Object<'_>>("T")?));
            value = value.or_else(|| words(&dict.get::<Object<'_>>("V")?));
            is_button |= dict.get::<Name<'_>>("FT").is_some_and(|kind| kind.as_str() == "Btn");
            field = dict.get::<Dict<'_>>("Parent");
        }
        // A button shows a mark instead of its value.
        if let Some(value) = value.filter(|value| value != "Off" && (is_button || !is_shown)) {
            found.push((name, value));
        }
    }
    found
}

/// Whether an annotation is drawn and its appearance writes anything.
fn shows_text(annotation: &Dict<'_>) -> bool {
    if annotation.get::<i32>("F").is_some_and(|flags| flags & (HIDDEN | NO_VIEW) != 0) {
        return false;
    }
    let appearance = match annotation.get::<Dict<'_>>("AP").and_then(|all| all.get::<Object<'_>>("N")) {
        Some(Object::Stream(stream)) => Some(stream),
        Some(Object::Dict(states)) => annotation.get::<Name<'_>>("AS").and_then(|name| states.get::<Stream<'_>>(name)),
        _ => None,
    };
    let Some(content) = appearance.and_then(|stream| Some(stream.decoded_data().ok()?.into_owned())) else {
        return false;
    };
    let mut operations = UntypedIter::new(&content);
    while let Some(operation) = operations.next() {
        if SHOW.contains(&&**operation.operator) {
            return true;
        }
    }
    false
}

/// A value as text, if there is any in it.
fn words(value: &Object<'_>) -> Option<String> {
    let text = match value {
        Object::String(text) => decoded(text.as_bytes()),
        Object::Name(name) => name.as_str().to_owned(),
        Object::Array(list) => list.iter::<Object<'_>>().filter_map(|one| words(&one)).collect::<Vec<_>>().join(", "),
        _ => return None,
    };
    let text = crate::text::with_newlines(&text);
    (!text.trim().is_empty()).then_some(text)
}
