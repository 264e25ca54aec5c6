//! Pages of a PDF. A page that cannot be read leaves the others as they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use encoding_rs::{UTF_16BE, WINDOWS_1252};
use hayro_interpret::hayro_syntax::object::{Array, Dict, Name, Object};
use hayro_interpret::hayro_syntax::page::Page as Source;
use hayro_interpret::hayro_syntax::{DecryptionError, LoadPdfError, Pdf};
use hayro_interpret::kurbo::{Affine, Rect};
use hayro_interpret::{Context, InterpreterCache, InterpreterSettings, InterpreterWarning, interpret_page};

use super::Page;
use super::layout::Layout;
use crate::core::caught::caught;

/// Fields above a form field that may hold its value.
const PARENTS: usize = 16;

pub(super) fn pages(bytes: Vec<u8>) -> Result<Vec<Page>, String> {
    let pdf = Pdf::new(bytes).map_err(|e| match e {
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
    Ok(pdf.pages().iter().map(|source| page(source, &cache)).collect())
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
            ..InterpreterSettings::default()
        };
        // Neither the place nor the size on a screen matters.
        let mut context = Context::new(Affine::IDENTITY, Rect::new(0.0, 0.0, 1.0, 1.0), cache, source.xref(), settings);
        let mut layout = Layout::default();
        interpret_page(source, &mut context, &mut layout);
        let values = annotations(source);
        let (mut text, unknown) = layout.finish();
        for (name, value) in values {
            // Most values are drawn as well.
            if !squeezed(&text).contains(&squeezed(&value)) {
                text.push_str(&name.map_or_else(String::new, |name| format!("{name}: ")));
                text.push_str(&value);
                text.push('\n');
            }
        }
        (text, unknown)
    });
    match read {
        Some((text, unknown)) => Page { text, failed: false, partial: unknown || lost_font.load(Ordering::Relaxed) },
        None => Page { failed: true, ..Page::default() },
    }
}

fn squeezed(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Form fields with their values, and texts of notes.
fn annotations(source: &Source<'_>) -> Vec<(Option<String>, String)> {
    let mut found = Vec::new();
    for annotation in source.raw().get::<Array<'_>>("Annots").iter().flat_map(|all| all.iter::<Dict<'_>>()) {
        let is_field = annotation.get::<Name<'_>>("Subtype").is_some_and(|name| name.as_str() == "Widget");
        if !is_field {
            found.extend(annotation.get::<Object<'_>>("Contents").and_then(|contents| Some((None, words(&contents)?))));
            continue;
        }
        let (mut name, mut value) = (None, None);
        let mut field = Some(annotation);
        for _ in 0..PARENTS {
            let Some(dict) = field else { break };
            name = name.or_else(|| words(&dict.get::<Object<'_>>("T")?));
            value = value.or_else(|| words(&dict.get::<Object<'_>>("V")?));
            field = dict.get::<Dict<'_>>("Parent");
        }
        if let Some(value) = value.filter(|value| value != "Off") {
            found.push((name, value));
        }
    }
    found
}

/// A value as text, if there is any in it.
fn words(value: &Object<'_>) -> Option<String> {
    let text = match value {
        Object::String(text) => {
            let bytes = text.as_bytes();
            match (bytes.strip_prefix(b"\xFE\xFF"), bytes.strip_prefix(b"\xEF\xBB\xBF")) {
                (Some(wide), _) => UTF_16BE.decode_without_bom_handling(wide).0.into_owned(),
                (None, Some(utf8)) => String::from_utf8_lossy(utf8).into_owned(),
                (None, None) => WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned(),
            }
        }
        Object::Name(name) => name.as_str().to_owned(),
        Object::Array(list) => list.iter::<Object<'_>>().filter_map(|one| words(&one)).collect::<Vec<_>>().join(", "),
        _ => return None,
    };
    let text = crate::text::with_newlines(&text);
    (!text.trim().is_empty()).then_some(text)
}
