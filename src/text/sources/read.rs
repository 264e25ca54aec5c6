//! One file to text: directly, from a named pipe, by our reader of documents, or by a configured converter.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use super::super::child;
use super::super::encoding::{self, NotText};
use super::super::extract::{HEAD_BYTES, Kind};
use super::super::pipe::{self, PipeError};
use super::extracted::{self, extension, run};
use super::{Chosen, Document, Found, OddByte, Remark, SourceError, SourceOptions, refuse_nothing};
use crate::core::{files, plain_words};
use crate::engine::protocol::Cancel;

/// Formats with an external converter, and its command line. Some are read here as well, when undamaged.
const CONVERTERS: &[(&str, &str)] = &[
    ("pdf", "pdftotext -layout {in} -"),
    ("docx", "pandoc --to plain {in}"),
    ("odt", "pandoc --to plain {in}"),
    ("epub", "pandoc --to plain {in}"),
    ("rtf", "pandoc --to plain {in}"),
    ("doc", "antiword {in}"),
    ("xlsx", "xlsx2csv {in}"),
    ("pptx", "pptx2md {in}"),
    ("djvu", "djvutxt {in}"),
    ("ps", "ps2ascii {in}"),
    ("mobi", "ebook-convert {in} /dev/stdout"),
];
/// Folder of a shell's pipes, with numbers as names.
const NUMBERED: &str = "/dev/fd";
/// Formats that consist of printable characters, by how they begin.
const MARKUP: [(&[u8], &str); 2] = [(b"{\\rtf", "rtf"), (b"%!PS", "ps")];

pub(super) fn suggested(extension: &str) -> Option<&'static str> {
    CONVERTERS.iter().find(|(of, _)| *of == extension).map(|(_, line)| *line)
}

pub fn read(found: &Found, options: &SourceOptions, cancel: &Cancel) -> Result<Document, SourceError> {
    let name = || found.shown.clone();
    let io = |e: std::io::Error| SourceError::Io { name: name(), reason: plain_words(&e) };
    if cancel.is_cancelled() {
        return Err(SourceError::Cancelled);
    }
    // Checked again: opening a pipe would wait for its writer.
    let meta = std::fs::metadata(&found.path).map_err(io)?;
    if is_pipe(found, &meta) {
        return read_pipe(found, options, cancel);
    }
    if !meta.is_file() {
        return Err(SourceError::NotAFile(name()));
    }
    let too_large = |bytes| SourceError::TooLarge { name: name(), bytes, limit_mib: options.max_file_bytes >> 20 };
    if meta.len() > options.max_file_bytes {
        return Err(too_large(meta.len()));
    }
    let extension = found.path.extension().map(|e| extension(&e.to_string_lossy())).unwrap_or_default();
    let mut head = Vec::new();
    let (file, size) = files::open(&found.path).map_err(io)?;
    (&file).take(HEAD_BYTES).read_to_end(&mut head).map_err(io)?;
    let kind = Kind::of(&extension, &head);
    if options.pages.is_some() && kind != Some(Kind::Pdf) {
        return Err(SourceError::NoPages(name()));
    }
    let needs_converter = |extension: &str| {
        let (extension, example) = (extension.to_owned(), suggested(extension)?);
        Some(SourceError::NeedsConverter { name: name(), extension, example })
    };
    let mut guessed = None;
    let (text, note) = if let Some(command) = options.converters.get(&extension) {
        let bytes = convert(found, command, options, cancel)?;
        (
            encoding::decode(bytes, true).map(|d| d.text).unwrap_or_default(),
            Some(Remark::Way(format!("converted by `{command}`"))),
        )
    } else if let Some(kind) = kind {
        extracted::read(found, kind, options, cancel)?
    } else if let Some(refused) = MARKUP
        .iter()
        .find(|(begin, of)| *of == extension && head.starts_with(begin))
        .and_then(|(_, extension)| needs_converter(extension))
    {
        return Err(refused);
    } else {
        let mut bytes = head;
        let room = bytes.try_reserve(usize::try_from(size).unwrap_or(usize::MAX));
        room.map_err(|_| io(std::io::ErrorKind::OutOfMemory.into()))?;
        let most = options.max_file_bytes.saturating_add(1) - bytes.len() as u64;
        file.take(most).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > options.max_file_bytes {
            return Err(too_large(bytes.len() as u64));
        }
        match encoding::decode(bytes, options.force) {
            Ok(d) => {
                guessed = d.guessed;
                (d.text, None)
            }
            Err(NotText::Control { byte, offset }) => {
                let binary = SourceError::Binary { name: name(), offset, byte: OddByte(byte), next: options.not_text };
                return Err(needs_converter(&extension).unwrap_or(binary));
            }
        }
    };
    refuse_nothing(&found.shown, &text)?;
    Ok(Document { name: found.name.clone(), path: Some(found.path.clone()), text, note, guessed })
}

pub fn converter(line: &str) -> Result<Vec<String>, &'static str> {
    let words = child::words(line).ok_or("a quote is not closed")?;
    match words.iter().any(|word| word.contains("{in}")) {
        true => Ok(words),
        false => Err("it has no {in} for the path"),
    }
}

fn convert(found: &Found, line: &str, options: &SourceOptions, cancel: &Cancel) -> Result<Vec<u8>, SourceError> {
    let failed =
        |reason: String| SourceError::Converter { name: found.shown.clone(), command: line.to_owned(), reason };
    let words = converter(line).map_err(|why| failed(why.to_owned()))?;
    // A full path cannot be mistaken for an option.
    let path = std::path::absolute(&found.path).map_err(|e| failed(plain_words(&e)))?;
    let Some((program, arguments)) = words.split_first() else {
        return Err(failed("it is empty".to_owned()));
    };
    let mut command = Command::new(program);
    for argument in arguments {
        let mut parts = argument.split("{in}");
        let mut word = OsString::from(parts.next().unwrap_or_default());
        for part in parts {
            word.push(&path);
            word.push(part);
        }
        command.arg(word);
    }
    let output = run(command, program, options, cancel, failed)?;
    if output.status.success() {
        return if output.stdout.trim_ascii().is_empty() {
            Err(failed("it gave no text".to_owned()))
        } else {
            Ok(output.stdout)
        };
    }
    Err(failed(if output.complaint.is_empty() { output.status.to_string() } else { output.complaint }))
}

/// Whether the file is a named pipe, such as a shell's `<(COMMAND)`. Standard input is read elsewhere.
fn is_pipe(found: &Found, meta: &Metadata) -> bool {
    let is_stdin = std::fs::metadata("/dev/stdin").is_ok_and(|own| (own.dev(), own.ino()) == (meta.dev(), meta.ino()));
    found.chosen == Chosen::Named && meta.file_type().is_fifo() && !is_stdin
}

/// Reads a pipe to its end. A pipe without a writer counts as empty.
fn read_pipe(found: &Found, options: &SourceOptions, cancel: &Cancel) -> Result<Document, SourceError> {
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
#[path = "pipe_tests.rs"]
mod tests;
