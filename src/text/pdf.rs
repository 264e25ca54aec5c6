//! Text of PDF files. PDF readers crash and hang on hostile files, so reading happens in a child process: this program
//! again, as `sala-chat __pdf-text FILE`, with limits on memory and time. Only [`child`] runs in the child.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::child::{self, Failed, Limits};
use super::sources::{SourceError, SourceOptions};
use crate::base::caught::caught;
use crate::protocol::engine::Cancel;

/// First argument of the child.
pub const CHILD: &str = "__pdf-text";
/// Address space of the child.
const MEMORY_BYTES: u64 = 4 << 30;

/// What the child writes to standard output.
#[derive(Debug, Serialize, Deserialize)]
struct Pages {
    pages: Vec<String>,
}

/// Text of the chosen pages, separated by form feeds.
pub(super) fn read(name: &str, path: &Path, options: &SourceOptions, cancel: &Cancel) -> Result<String, SourceError> {
    let failed = |reason: String| SourceError::Pdf { name: name.to_owned(), reason };
    let (program, arguments) = options.pdf_reader.split_first().ok_or_else(|| failed("no reader".to_owned()))?;
    let mut command = Command::new(program);
    command.args(arguments).arg(CHILD).arg(path).env("RUST_BACKTRACE", "0");
    let limits = Limits { time: options.convert_time, output_bytes: options.max_file_bytes };
    let output = child::run(command, limits, cancel).map_err(|e| match e {
        Failed::Start(e) => failed(format!("the reader did not start ({e})")),
        Failed::TimedOut => failed(format!("reading took over {} s", limits.time.as_secs())),
        Failed::TooLong => failed("its text is larger than load.max_file_mib".to_owned()),
        Failed::Cancelled => SourceError::Cancelled,
    })?;
    if !output.status.success() {
        return Err(failed(match (output.status.signal(), output.complaint.as_str()) {
            // An allocation beyond the limit aborts the child; the system's own guard kills it.
            (Some(_), _) => format!(
                "reading it needs more than {} GiB of memory, or breaks the reader: it is damaged or made to do so",
                MEMORY_BYTES >> 30
            ),
            (None, "") => format!("the reader ended with {}", output.status),
            (None, complaint) => complaint.to_owned(),
        }));
    }
    let Pages { pages } = serde_json::from_slice(&output.stdout).map_err(|e| failed(e.to_string()))?;
    let count = pages.len();
    if pages.iter().all(|p| p.trim().is_empty()) {
        return Err(SourceError::NoTextLayer { name: name.to_owned(), pages: count });
    }
    match options.pages {
        None => Ok(pages.join("\n\u{0C}\n")),
        Some((first, last)) => {
            let chosen = (first as usize).checked_sub(1).and_then(|from| pages.get(from..count.min(last as usize)));
            match chosen {
                Some(chosen) if !chosen.is_empty() => Ok(chosen.join("\n\u{0C}\n")),
                _ => Err(SourceError::NoSuchPages { name: name.to_owned(), first, last, pages: count }),
            }
        }
    }
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
