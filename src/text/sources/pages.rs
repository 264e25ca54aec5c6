//! Pages of a PDF as a text, read by a child process.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use super::super::child::{self, Failed, Limits};
use super::super::pdf::{CHILD, MEMORY_BYTES, Pages};
use super::{SourceError, SourceOptions};
use crate::engine::protocol::Cancel;

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
