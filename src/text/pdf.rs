//! Pages of PDF files. PDF readers crash and hang on hostile files, so reading happens in a child process: this program
//! again, as `sala-chat __pdf-text FILE`, with limits on memory and time. [`child()`] is what runs there; the sources start it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::child;
use crate::core::caught::caught;

/// First argument of the child.
pub const CHILD: &str = "__pdf-text";
/// Address space of the child.
pub(super) const MEMORY_BYTES: u64 = 4 << 30;

/// What the child writes to standard output.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Pages {
    pub(super) pages: Vec<String>,
}

/// In the child: limits itself, reads the file, and returns its pages as JSON for standard output.
///
/// # Errors
/// Why the file cannot be read, in one line for standard error.
pub fn child(path: &Path) -> Result<Vec<u8>, String> {
    child::confine(MEMORY_BYTES)?;
    // A panic of the reader is an ordinary failure here.
    let read = caught(|| pdf_extract::extract_text_by_pages(path));
    let pages = match read {
        Some(Ok(pages)) => pages,
        Some(Err(e)) => return Err(e.to_string().lines().next().unwrap_or("unreadable").to_owned()),
        None => return Err("the file is damaged or uses features the built-in reader lacks".to_owned()),
    };
    serde_json::to_vec(&Pages { pages }).map_err(|e| e.to_string())
}
