//! One file to text: directly, from a named pipe, by our reader of documents, or by a configured converter.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use super::super::encoding;
use super::super::extract::{HEAD_BYTES, Kind};
use super::super::pipe::{self, PipeError};
use super::extracted::{self, extension, run};
use super::{Document, Found, Problem, Remark, SourceOptions, refuse_nothing};
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
    ("ods", "odt2txt {in}"),
    ("odp", "odt2txt {in}"),
    ("msg", "extract_msg --dump-stdout {in}"),
    ("djvu", "djvutxt {in}"),
    ("ps", "ps2ascii {in}"),
    ("mobi", "ebook-convert {in} /dev/stdout"),
];
/// Folder of a shell's pipes, with numbers as names.
const NUMBERED: &str = "/dev/fd";
/// Formats that consist of printable characters, by how they begin, also under the name of another format.
const MARKUP: [(&[u8], &str); 2] = [(b"{\\rtf", "rtf"), (b"%!PS", "ps")];

pub(super) fn suggested(extension: &str) -> Option<&'static str> {
    CONVERTERS.iter().find(|(of, _)| *of == extension).map(|(_, line)| *line)
}

pub fn read(found: &Found, options: &SourceOptions, cancel: &Cancel) -> Result<Document, Problem> {
    let io = |e: std::io::Error| Problem::Io(plain_words(&e));
    if cancel.is_cancelled() {
        return Err(Problem::Cancelled);
    }
    let too_large = |bytes| Problem::TooLarge { bytes, limit_mib: options.max_file_bytes >> 20 };
    let binary = |what| Problem::Advised(format!("not text ({what}). {}", options.not_text));
    let mut document = Document {
        name: found.name.clone(),
        path: Some(found.path.clone()),
        text: String::new(),
        note: None,
        guessed: None,
    };
    // Checked again: opening a pipe would wait for its writer.
    let meta = std::fs::metadata(&found.path).map_err(io)?;
    let is_pipe = is_pipe(found, &meta);
    if !is_pipe && !meta.is_file() {
        const INSTEAD: &str = "Copy it to a file first, or pipe it in: COMMAND | sala-chat -p TEXT";
        return Err(Problem::Advised(format!("not a regular file. {INSTEAD}")));
    }
    if meta.len() > options.max_file_bytes {
        return Err(too_large(meta.len()));
    }
    let mut bytes = Vec::new();
    // What a pipe holds is plain text.
    let (file, extension) = match is_pipe {
        true => (files::open_at_once(&found.path).map_err(io)?, String::new()),
        false => {
            let (file, _) = files::open(&found.path).map_err(io)?;
            (&file).take(HEAD_BYTES).read_to_end(&mut bytes).map_err(io)?;
            (file, extension(&found.path.extension().unwrap_or_default().to_string_lossy()))
        }
    };
    let markup = MARKUP.iter().find(|(begin, _)| bytes.starts_with(begin)).filter(|_| suggested(&extension).is_some());
    let own = extension;
    let extension = markup.map_or(own.clone(), |(_, is)| (*is).to_owned());
    let kind = Kind::of(&extension, &bytes);
    if options.pages.is_some() && kind != Some(Kind::Pdf) {
        return Err(Problem::Advised("--pages works for PDF files only. Use --head or --tail".to_owned()));
    }
    let needs_converter = || {
        let example = suggested(&extension)?;
        Some(Problem::NeedsConverter { extension: extension.clone(), example })
    };
    if let Some(command) = options.converters.get(&own).or_else(|| options.converters.get(&extension)) {
        let converted = convert(found, command, options, cancel)?;
        document.text = encoding::decode(converted, true).map(|decoded| decoded.text).unwrap_or_default();
        document.note = Some(Remark::Way(format!("converted by `{command}`")));
    } else if let Some(kind) = kind {
        (document.text, document.note) = extracted::read(found, kind, options, cancel)?;
    } else {
        if let Some(refused) = needs_converter().filter(|_| markup.is_some()) {
            return Err(refused);
        }
        let room = bytes.try_reserve(usize::try_from(meta.len()).unwrap_or(usize::MAX));
        room.map_err(|_| io(std::io::ErrorKind::OutOfMemory.into()))?;
        let most = options.max_file_bytes.saturating_sub(bytes.len() as u64);
        pipe::read(file.as_fd(), most, cancel, &mut bytes).map_err(|e| match e {
            PipeError::Stopped => Problem::Cancelled,
            PipeError::TooLarge(bytes) => too_large(bytes),
            PipeError::Read(e) | PipeError::Write(e) => io(e),
        })?;
        let decoded =
            encoding::decode(bytes, options.force).map_err(|what| needs_converter().unwrap_or(binary(what)))?;
        (document.text, document.guessed) = (decoded.text, decoded.guessed);
    }
    if is_pipe {
        document.path = None;
        if found.path.parent() == Some(Path::new(NUMBERED)) {
            document.name = format!("pipe-{}", found.name);
        }
    }
    refuse_nothing(&document.text).map(|()| document)
}

pub fn converter(line: &str) -> Result<Vec<String>, &'static str> {
    let words = shlex::split(line).ok_or("a quote is not closed")?;
    if words.iter().any(|word| word.contains("{in}")) { Ok(words) } else { Err("it has no {in} for the path") }
}

fn convert(found: &Found, line: &str, options: &SourceOptions, cancel: &Cancel) -> Result<Vec<u8>, Problem> {
    let failed = |why: String| {
        Problem::Advised(format!("the converter `{line}` failed: {why}. See load.converters in the config"))
    };
    let words = converter(line).map_err(|why| failed(why.to_owned()))?;
    // A full path cannot be mistaken for an option.
    let path = std::path::absolute(&found.path).map_err(|e| failed(plain_words(&e)))?;
    let Some((program, arguments)) = words.split_first() else { return Err(failed("it is empty".to_owned())) };
    let mut command = Command::new(program);
    for argument in arguments {
        let parts: Vec<&OsStr> = argument.split("{in}").map(OsStr::new).collect();
        command.arg(parts.join(path.as_os_str()));
    }
    let text = run(Ok(command), program, options, cancel, |why, _| failed(why))?;
    if text.trim_ascii().is_empty() { Err(failed("it gave no text".to_owned())) } else { Ok(text) }
}

/// Whether the file is a named pipe, such as a shell's `<(COMMAND)`. Standard input is read elsewhere.
fn is_pipe(found: &Found, meta: &Metadata) -> bool {
    let is_stdin = std::fs::metadata("/dev/stdin").is_ok_and(|own| (own.dev(), own.ino()) == (meta.dev(), meta.ino()));
    found.named && meta.file_type().is_fifo() && !is_stdin
}

#[cfg(test)]
#[path = "pipe_tests.rs"]
mod tests;
