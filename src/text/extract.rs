//! Text of documents that are no plain text: PDF, HTML, Word, OpenDocument, EPUB, notebooks and mail.
//!
//! Readers of such formats can crash, hang or fill the memory on a hostile file. So reading happens in a child process: this
//! program again, as `sala-chat __document-text FILE`, with limits on memory and time. [`child()`] runs there; `sources` starts it.

mod blocks;
mod html;
mod layout;
mod mail;
mod notebook;
mod office;
mod pdf;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::child;
use super::encoding::Decoded;
use crate::core::caught::caught;
use crate::core::files;

pub const CHILD: &str = "__document-text";
pub(super) const MEMORY_BYTES: u64 = 4 << 30;
/// Bytes from the start of a file that decide what it is. Other PDF readers accept `%PDF-` anywhere in them.
pub(super) const HEAD_BYTES: u64 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pdf,
    /// A zip file: `.docx`, `.odt` or `.epub`.
    Archive,
    Html,
    Notebook,
    Mail,
}

impl Kind {
    /// The format of a file, by its content where that shows it, else by its extension (lower case, without the dot).
    pub(super) fn of(extension: &str, head: &[u8]) -> Option<Kind> {
        let has = |part: &[u8]| head.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part));
        let text = head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head).trim_ascii_start();
        if text.starts_with(b"%PDF-") || extension == "pdf" && has(b"%PDF-") {
            return Some(Kind::Pdf);
        }
        if head.starts_with(b"PK\x03\x04") {
            let named = matches!(extension, "docx" | "docm" | "dotx" | "odt" | "ott" | "epub" | "doc" | "pdf");
            let typed = has(b"mimetypeapplication/epub+zip")
                || has(b"mimetypeapplication/vnd.oasis.opendocument.text")
                || extension.is_empty() && has(b"[Content_Types].xml");
            return (named || typed).then_some(Kind::Archive);
        }
        let begins = |with: &str| text.get(..with.len()).is_some_and(|at| at.eq_ignore_ascii_case(with.as_bytes()));
        match extension {
            "html" | "htm" | "xhtml" => Some(Kind::Html),
            "ipynb" => Some(Kind::Notebook),
            "eml" | "mht" | "mhtml" => Some(Kind::Mail),
            "" | "txt" | "pdf" | "doc" | "docx" | "xls" if begins("<!doctype html") || begins("<html") => {
                Some(Kind::Html)
            }
            // Its reader finds pages without a head too, or names the fault.
            "pdf" => Some(Kind::Pdf),
            _ => None,
        }
    }

    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Kind::Pdf | Kind::Archive => None,
            Kind::Html => Some("HTML"),
            Kind::Notebook => Some("a notebook"),
            Kind::Mail => Some("mail"),
        }
    }
}

/// A page of a PDF; the whole of any other document.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Page {
    pub(super) text: String,
    pub(super) failed: bool,
    /// Its content ends in an error, or a part of it is missing or damaged.
    pub(super) cut: bool,
    /// Something on it could not be read: a font, or characters without a meaning.
    pub(super) partial: bool,
    /// Name of its encoding if it had to be guessed.
    pub(super) guessed: Option<String>,
}

/// In the child: limits itself, reads the file, returns its pages as JSON. The error is one line for standard error.
pub fn child(path: &Path) -> Result<Vec<u8>, String> {
    child::confine(MEMORY_BYTES)?;
    // A panic of the reader is an ordinary failure here.
    let pages =
        caught(|| pages(path)).unwrap_or_else(|| Err("the file is damaged: the reader fails on it".to_owned()))?;
    serde_json::to_vec(&pages).map_err(|e| e.to_string())
}

fn pages(path: &Path) -> Result<Vec<Page>, String> {
    let bytes = files::read(path, u64::MAX).map_err(|e| e.to_string())?;
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    let head = bytes.get(..bytes.len().min(HEAD_BYTES as usize)).unwrap_or_default();
    let sure = |text: String| Decoded { text, guessed: None };
    let Decoded { text, guessed } = match Kind::of(&extension, head) {
        Some(Kind::Pdf) => return pdf::pages(bytes),
        Some(Kind::Archive) => sure(office::text(bytes)?),
        Some(Kind::Html) => html::page(bytes),
        Some(Kind::Notebook) => sure(notebook::text(bytes)),
        Some(Kind::Mail) => mail::text(bytes, 0)?,
        None => return Err("its format is not known".to_owned()),
    };
    Ok(vec![Page { text, guessed: guessed.map(str::to_owned), ..Page::default() }])
}

#[cfg(test)]
#[path = "extract_tests.rs"]
mod tests;
