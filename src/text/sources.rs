//! Documents from disk: paths, folders and globs to named texts.
//!
//! [`find`] says which files are meant, [`read`] turns one into text, [`gather`] does both. A file the user named that
//! cannot be read is an error with the next thing to do; one met inside a folder is skipped and listed. Reads only; the
//! only programs started are configured converters and our own PDF reader. Order and names depend on the paths alone.

mod error;
mod pattern;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child::{self, Failed, Limits};
use super::encoding::{self, NotText};
use super::near::nearest;
use super::{files, pdf};
use crate::protocol::engine::Cancel;
use crate::settings::LoadConfig;
pub use error::{OddByte, Skipped, SourceError};
use pattern::Unusable;

/// Extensions that hold text only after conversion.
const NEED_CONVERTER: &[(&str, &str)] = &[
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
/// Files of one load, more than a context of a million tokens can hold in any useful way.
const FILES: usize = 100_000;
/// All texts of one load together, in times of what one file may have.
const TOTAL_FILES: u64 = 4;
/// Files looked at when a name was not found.
const SIMILAR_LIMIT: usize = 4000;

/// How documents are read.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    /// What relative paths are relative to.
    pub base: PathBuf,
    /// Larger files are refused.
    pub max_file_bytes: u64,
    /// Follow links inside folders. A named link is always followed.
    pub follow_symlinks: bool,
    /// Extension to command line.
    pub converters: BTreeMap<String, String>,
    /// What is no text is read as Latin-1.
    pub force: bool,
    /// What whoever names a file that is no text can do: a sentence. Not every asker has a word for [`SourceOptions::force`].
    pub not_text: &'static str,
    /// Pages of a PDF, from 1, inclusive.
    pub pages: Option<(u32, u32)>,
    /// Program and first arguments that accept `__pdf-text FILE`; normally this program.
    pub pdf_reader: Vec<OsString>,
    /// Time for a converter or the PDF reader, per file.
    pub convert_time: Duration,
}

impl SourceOptions {
    /// By the settings, relative to the current folder.
    pub fn new(config: &LoadConfig) -> SourceOptions {
        SourceOptions {
            base: std::env::current_dir().unwrap_or_default(),
            max_file_bytes: config.max_file_mib.saturating_mul(1 << 20),
            follow_symlinks: config.follow_symlinks,
            // `.docx` and `DOCX` are meant as `docx` is.
            converters: config.converters.iter().map(|(of, line)| (extension(of), line.clone())).collect(),
            force: false,
            not_text: "Convert it to text first.",
            pages: None,
            pdf_reader: super::this_program(),
            convert_time: Duration::from_secs(120),
        }
    }
}

/// A file that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name the model sees: the file name, with the folder if a folder was given.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// What it is called where it cannot be read: as it was given, or the same name where it is in a folder.
    pub shown: String,
    /// Its size.
    pub bytes: u64,
    /// The user named this very file, or it was found in what was named.
    pub chosen: Chosen,
}

/// How a file came to be meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Named: a failure is an error.
    Named,
    /// Inside a folder or glob: a failure is a note.
    Within,
}

/// A document, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The name the model sees.
    pub name: String,
    /// Where it was read from; `None` for standard input.
    pub path: Option<PathBuf>,
    /// Its text, never empty.
    pub text: String,
    /// Something to tell: a converter.
    pub note: Option<String>,
    /// Encoding that had to be guessed, so that the text may be another one.
    pub guessed: Option<&'static str>,
}

/// Documents, and what was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// In the order they were given; folders and globs sorted by path.
    pub documents: Vec<Document>,
    /// From folders and globs.
    pub skipped: Vec<Skipped>,
}

impl Document {
    /// Text that is no file.
    ///
    /// # Errors
    /// [`SourceError::Empty`], [`SourceError::WhiteSpace`].
    pub fn inline(name: &str, text: &str) -> Result<Document, SourceError> {
        refuse_nothing(name, text)?;
        Ok(Document { name: clean_name(name), path: None, text: text.to_owned(), note: None, guessed: None })
    }
}

/// A text that says nothing is no document.
fn refuse_nothing(name: &str, text: &str) -> Result<(), SourceError> {
    match text.trim() {
        "" if text.is_empty() => Err(SourceError::Empty(name.to_owned())),
        "" => Err(SourceError::WhiteSpace(name.to_owned())),
        _ => Ok(()),
    }
}

/// Finds and reads everything the paths mean.
///
/// # Errors
/// The first named path that is missing or cannot be read; nothing is returned then.
pub fn gather(paths: &[String], options: &SourceOptions, cancel: &Cancel) -> Result<Gathered, SourceError> {
    let mut gathered = Gathered::default();
    let mut seen = BTreeSet::new();
    let mut total = 0u64;
    for path in paths {
        if let Some(sample) = super::sample::document(path) {
            gathered.documents.push(sample);
            continue;
        }
        let before = gathered.documents.len();
        let from = gathered.skipped.len();
        let (new, known): (Vec<Found>, Vec<Found>) = find_until(std::slice::from_ref(path), options, cancel)?
            .into_iter()
            // However its path was written, and through whatever links, a file is read once.
            .partition(|f| seen.insert(std::fs::canonicalize(&f.path).unwrap_or_else(|_| f.path.clone())));
        for found in new {
            match read(&found, options, cancel) {
                Ok(document) => {
                    total = total.saturating_add(document.text.len() as u64);
                    if total > options.max_file_bytes.saturating_mul(TOTAL_FILES) {
                        let limit_mib = (options.max_file_bytes >> 20).saturating_mul(TOTAL_FILES);
                        return Err(SourceError::TotalTooLarge { limit_mib });
                    }
                    gathered.documents.push(document);
                }
                Err(SourceError::Cancelled) => return Err(SourceError::Cancelled),
                Err(error) if found.chosen == Chosen::Named => return Err(error),
                Err(error) => {
                    let reason = error.to_string();
                    let reason = reason.strip_prefix(&format!("{}: ", found.name)).unwrap_or(&reason).to_owned();
                    gathered.skipped.push(Skipped { name: found.name, reason });
                }
            }
        }
        if gathered.documents.len() == before && known.is_empty() {
            let skipped = gathered.skipped.split_off(from);
            return Err(SourceError::EmptyFolder { name: path.clone(), skipped });
        }
    }
    distinct_names(&mut gathered.documents);
    Ok(gathered)
}

/// The files that paths, folders and globs mean, without duplicates.
///
/// # Errors
/// A path that does not exist, a glob without matches.
pub fn find(paths: &[String], options: &SourceOptions) -> Result<Vec<Found>, SourceError> {
    find_until(paths, options, &Cancel::default())
}

fn find_until(paths: &[String], options: &SourceOptions, cancel: &Cancel) -> Result<Vec<Found>, SourceError> {
    let mut found = Vec::new();
    for given in paths {
        if given.trim().is_empty() {
            return Err(SourceError::Blank);
        }
        let path = resolve(given, &options.base);
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => walk(&path, options, &mut found, cancel)?,
            Ok(meta) => {
                let name = path.file_name().map_or(given.clone(), |n| n.to_string_lossy().into_owned());
                let (name, shown) = (clean_name(&name), given.clone());
                found.push(Found { name, path, shown, bytes: meta.len(), chosen: Chosen::Named });
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound || e.kind() == std::io::ErrorKind::NotADirectory => {
                if let Ok(target) = std::fs::read_link(&path) {
                    let reason = format!("a link to {}, which is not there", target.display());
                    return Err(SourceError::Io { name: given.clone(), reason });
                }
                if !pattern::is_pattern(given) {
                    let similar = similar(&path, &options.base);
                    return Err(SourceError::NotFound { path: given.clone(), similar });
                }
                expand(given, options, &mut found, cancel)?;
            }
            Err(e) => {
                return Err(SourceError::Io { name: given.clone(), reason: plain(&e) });
            }
        }
    }
    let mut seen = BTreeSet::new();
    found.retain(|f: &Found| seen.insert(f.path.clone()));
    Ok(found)
}

/// `~/x` and relative paths to full ones.
fn resolve(given: &str, base: &Path) -> PathBuf {
    let (start, rest) = started(given, base);
    if rest.is_empty() { start } else { start.join(rest) }
}

/// Where a path starts (root, home, or `base`), and its rest.
fn started<'a>(given: &'a str, base: &Path) -> (PathBuf, &'a str) {
    let home = || directories::BaseDirs::new().map(|d| d.home_dir().to_owned());
    let below_home = given.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match (below_home, below_home.and_then(|_| home())) {
        (Some(rest), Some(home)) => (home, rest.trim_start_matches('/')),
        _ if given.starts_with('/') => (PathBuf::from("/"), given.trim_start_matches('/')),
        _ => (base.to_owned(), given),
    }
}

fn walk(folder: &Path, options: &SourceOptions, found: &mut Vec<Found>, cancel: &Cancel) -> Result<(), SourceError> {
    let within = folder.file_name().map(|n| n.to_string_lossy().into_owned());
    let entries = ignore::WalkBuilder::new(folder)
        .hidden(true)
        .require_git(false)
        .follow_links(options.follow_symlinks)
        .sort_by_file_path(|a, b| a.cmp(b))
        .build();
    // Unreadable folders inside are like unreadable files: left out.
    for entry in entries.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if cancel.is_cancelled() {
            return Err(SourceError::Cancelled);
        }
        if !meta.is_file() {
            continue;
        }
        if found.len() >= FILES {
            return Err(SourceError::TooMany { limit: FILES });
        }
        let inside = entry.path().strip_prefix(folder).unwrap_or(entry.path()).to_string_lossy().into_owned();
        let name = match &within {
            Some(folder) => format!("{folder}/{inside}"),
            None => inside,
        };
        let name = clean_name(&name);
        found.push(Found {
            shown: name.clone(),
            name,
            path: entry.into_path(),
            bytes: meta.len(),
            chosen: Chosen::Within,
        });
    }
    Ok(())
}

fn expand(given: &str, options: &SourceOptions, found: &mut Vec<Found>, cancel: &Cancel) -> Result<(), SourceError> {
    let (start, rest) = started(given, &options.base);
    let paths = pattern::expand(&start, rest, FILES, cancel).map_err(|e| match e {
        // A name that was mistyped, not a pattern: with the file there it would have been loaded.
        Unusable::Syntax => {
            let similar = similar(&resolve(given, &options.base), &options.base);
            SourceError::NotFound { path: given.to_owned(), similar }
        }
        Unusable::TooMany => SourceError::TooMany { limit: FILES },
        Unusable::Cancelled => SourceError::Cancelled,
    })?;
    let before = found.len();
    for path in paths {
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => walk(&path, options, found, cancel)?,
            Ok(meta) => {
                let name = path.strip_prefix(&options.base).unwrap_or(&path).to_string_lossy().into_owned();
                let name = clean_name(name.rsplit_once("../").map_or(name.as_str(), |(_, n)| n));
                found.push(Found { shown: name.clone(), name, path, bytes: meta.len(), chosen: Chosen::Within });
            }
            Err(_) => {}
        }
    }
    if found.len() == before { Err(SourceError::NoMatch(given.to_owned())) } else { Ok(()) }
}

/// The name stands in an attribute of the text that the model reads: no quotes, no line ends, no markup.
fn clean_name(name: &str) -> String {
    let clean: String =
        name.chars().map(|c| if c.is_control() || matches!(c, '"' | '<' | '>') { '_' } else { c }).collect();
    if clean.is_empty() { "document".to_owned() } else { clean }
}

/// Two files of one name are told apart by their paths.
fn distinct_names(documents: &mut [Document]) {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for d in documents.iter() {
        *count.entry(d.name.clone()).or_default() += 1;
    }
    for d in documents {
        if count.get(&d.name).is_some_and(|n| *n > 1)
            && let Some(path) = &d.path
        {
            d.name = clean_name(&path.to_string_lossy());
        }
    }
}

/// A file of nearly this name: in the same folder, or of this very name further down.
fn similar(path: &Path, base: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let folder = path.parent()?;
    let shown = |p: &Path| match p.strip_prefix(base) {
        Ok(inside) => format!("./{}", inside.display()),
        Err(_) => p.display().to_string(),
    };
    let here: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    if let Some(near) = nearest(&name, here.iter().map(String::as_str)) {
        return Some(shown(&folder.join(near)));
    }
    let start = if folder.is_dir() { folder } else { base };
    ignore::WalkBuilder::new(start)
        .require_git(false)
        .max_depth(Some(4))
        .build()
        .flatten()
        .take(SIMILAR_LIMIT)
        .find(|e| e.file_name().to_string_lossy().eq_ignore_ascii_case(&name))
        .map(|e| shown(e.path()))
}

/// Reads one file.
///
/// # Errors
/// See [`SourceError`].
pub fn read(found: &Found, options: &SourceOptions, cancel: &Cancel) -> Result<Document, SourceError> {
    let name = || found.shown.clone();
    let io = |e: std::io::Error| SourceError::Io { name: name(), reason: plain(&e) };
    if cancel.is_cancelled() {
        return Err(SourceError::Cancelled);
    }
    // Looked at again: opening a pipe would wait for its writer.
    let meta = std::fs::metadata(&found.path).map_err(io)?;
    if !meta.is_file() {
        return Err(SourceError::NotAFile(name()));
    }
    let too_large = |bytes| SourceError::TooLarge { name: name(), bytes, limit_mib: options.max_file_bytes >> 20 };
    if meta.len() > options.max_file_bytes {
        return Err(too_large(meta.len()));
    }
    let extension = found.path.extension().map(|e| extension(&e.to_string_lossy())).unwrap_or_default();
    let mut head = Vec::with_capacity(8);
    let (file, size) = files::open(&found.path).map_err(io)?;
    (&file).take(5).read_to_end(&mut head).map_err(io)?;
    let is_pdf = head == b"%PDF-";
    if options.pages.is_some() && !is_pdf {
        return Err(SourceError::NoPages(name()));
    }
    let mut guessed = None;
    let (text, note) = if let Some(command) = options.converters.get(&extension) {
        let bytes = convert(found, command, options, cancel)?;
        (encoding::decode(bytes, true).map(|d| d.text).unwrap_or_default(), Some(format!("converted by `{command}`")))
    } else if is_pdf {
        (pdf::read(&found.shown, &found.path, options, cancel)?, None)
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
                return Err(match NEED_CONVERTER.iter().find(|(e, _)| *e == extension) {
                    Some((_, example)) => SourceError::NeedsConverter { name: name(), extension, example },
                    None => SourceError::Binary { name: name(), offset, byte: OddByte(byte), next: options.not_text },
                });
            }
        }
    };
    refuse_nothing(&found.shown, &text)?;
    Ok(Document { name: found.name.clone(), path: Some(found.path.clone()), text, note, guessed })
}

/// An extension as converters are found by.
fn extension(written: &str) -> String {
    written.trim_start_matches('.').to_lowercase()
}

/// The words of a converter's command line.
///
/// # Errors
/// Why it cannot be used.
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
    // A full path cannot be taken for an option.
    let path = std::path::absolute(&found.path).map_err(|e| failed(plain(&e)))?;
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
    let limits = Limits { time: options.convert_time, output_bytes: options.max_file_bytes };
    let output = child::run(command, limits, cancel).map_err(|e| match e {
        Failed::Start(e) => failed(format!("{program} did not start ({})", plain(&e))),
        Failed::TimedOut => failed(format!("it took over {} s", limits.time.as_secs())),
        Failed::TooLong => failed("its text is larger than load.max_file_mib".to_owned()),
        Failed::Cancelled => SourceError::Cancelled,
    })?;
    if output.status.success() {
        return if output.stdout.trim_ascii().is_empty() {
            Err(failed("it gave no text".to_owned()))
        } else {
            Ok(output.stdout)
        };
    }
    Err(failed(if output.complaint.is_empty() { output.status.to_string() } else { output.complaint }))
}

/// An I/O error in the system's words, without the number.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests;
