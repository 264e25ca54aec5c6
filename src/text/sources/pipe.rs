//! Named pipes as documents, such as a shell's `<(COMMAND)`.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::{Chosen, Document, Found, OddByte, SourceError, SourceOptions, refuse_nothing};
use crate::engine::protocol::Cancel;
use crate::text::encoding::{self, NotText};
use crate::text::pipe::{self, PipeError};
use crate::text::{files, plain_words};

/// Folder of a shell's pipes, with numbers as names.
const NUMBERED: &str = "/dev/fd";

/// Whether the file is such a pipe. Standard input is read elsewhere.
pub(super) fn is_one(found: &Found, meta: &Metadata) -> bool {
    let is_stdin = std::fs::metadata("/dev/stdin").is_ok_and(|own| (own.dev(), own.ino()) == (meta.dev(), meta.ino()));
    found.chosen == Chosen::Named && meta.file_type().is_fifo() && !is_stdin
}

/// Reads a pipe to its end. A pipe without a writer counts as empty.
pub(super) fn read(found: &Found, options: &SourceOptions, cancel: &Cancel) -> Result<Document, SourceError> {
    let shown = || found.shown.clone();
    let io = |e: std::io::Error| SourceError::Io { name: shown(), reason: plain_words(&e) };
    if options.pages.is_some() {
        return Err(SourceError::NoPages(shown()));
    }
    let from = files::open_at_once(&found.path).map_err(io)?;
    let mut bytes = Vec::new();
    pipe::read(from.as_fd(), options.max_file_bytes, cancel, &mut bytes).map_err(|e| match e {
        PipeError::Stopped => SourceError::Cancelled,
        PipeError::TooLarge(bytes) => {
            SourceError::TooLarge { name: shown(), bytes, limit_mib: options.max_file_bytes >> 20 }
        }
        PipeError::Read(e) | PipeError::Write(e) => io(e),
    })?;
    let read = encoding::decode(bytes, options.force).map_err(|NotText::Control { byte, offset }| {
        SourceError::Binary { name: shown(), offset, byte: OddByte(byte), next: options.not_text }
    })?;
    refuse_nothing(&found.shown, &read.text)?;
    let is_numbered = found.path.parent() == Some(Path::new(NUMBERED));
    let name = if is_numbered { format!("pipe-{}", found.name) } else { found.name.clone() };
    Ok(Document { name, path: None, text: read.text, note: None, guessed: read.guessed })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::super::gather;
    use super::*;

    fn options() -> SourceOptions {
        SourceOptions::new(&crate::config::settings::Config::default().load)
    }

    #[test]
    fn a_pipe_that_is_named_is_read_to_its_end() {
        let (from, mut to) = std::io::pipe().unwrap();
        let number = from.as_raw_fd();
        let path = format!("/dev/fd/{number}");
        let writer = std::thread::spawn(move || {
            for piece in ["from a ", "pipe\n"] {
                std::thread::sleep(Duration::from_millis(150));
                to.write_all(piece.as_bytes()).unwrap();
            }
        });
        let read = gather(&[path], &options(), &Cancel::default()).unwrap().documents;
        writer.join().unwrap();
        let [one] = read.as_slice() else { panic!("{read:?}") };
        assert_eq!(
            (one.name.as_str(), &one.path, one.text.as_str()),
            (format!("pipe-{number}").as_str(), &None, "from a pipe\n")
        );
    }

    #[test]
    fn a_pipe_neither_holds_anybody_up_nor_fills_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe.txt");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = |path: &str, options: &SourceOptions, cancel: &Cancel| {
            gather(&[path.to_owned()], options, cancel).unwrap_err()
        };
        // A pipe without a writer.
        let unwritten = error(path.to_str().unwrap(), &options(), &Cancel::default());
        assert!(matches!(unwritten, SourceError::Empty(_)), "{unwritten}");
        // Somebody could, and does not.
        let (from, mut to) = std::io::pipe().unwrap();
        let path = format!("/dev/fd/{}", from.as_raw_fd());
        let cancel = Cancel::default();
        let stop = cancel.clone();
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150));
            stop.cancel();
        });
        assert!(matches!(error(&path, &options(), &cancel), SourceError::Cancelled));
        stopper.join().unwrap();
        to.write_all(b"some bytes..\0").unwrap();
        let small = SourceOptions { max_file_bytes: 2, ..options() };
        assert!(matches!(error(&path, &small, &Cancel::default()), SourceError::TooLarge { bytes: 13, .. }));
        to.write_all(b"some bytes..\0").unwrap();
        drop(to);
        assert!(matches!(error(&path, &options(), &Cancel::default()), SourceError::Binary { offset: 12, .. }));
    }
}
