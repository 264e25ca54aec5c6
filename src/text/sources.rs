//! Documents from disk: paths, folders and globs to named texts. `find` expands paths, `read` turns a file into text,
//! [`gather`] does both. A named file that cannot be read is an error with the next step; a file or folder inside a
//! named folder is skipped and listed. Starts no programs but configured converters and our own reader of documents.
//! Order and names depend on the paths alone.

mod error;
mod extracted;
pub mod follow;
mod pattern;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::near::nearest;
use super::sample;
use crate::config::settings::LoadConfig;
use crate::core::plain_words;
use crate::engine::protocol::Cancel;
pub use error::{Cause, Problem, Skipped, SourceError};
use extracted::extension;
pub use read::converter;
use read::read;

/// Files of one load; a context of a million tokens has no use for more.
const FILES: usize = 100_000;
/// All texts of one load together, as a multiple of the limit of one file.
const TOTAL_FILES: u64 = 4;
/// Files looked at when a name was not found.
const SIMILAR_LIMIT: usize = 4000;

#[derive(Clone, Debug)]
pub struct SourceOptions {
    pub base: PathBuf,
    pub max_file_bytes: u64,
    /// Follow links inside folders. A named link is always followed.
    pub follow_symlinks: bool,
    /// Command line by extension.
    pub converters: BTreeMap<String, String>,
    /// Reads binary files as Latin-1.
    pub force: bool,
    /// Advice for a named file that is not text; not every front end offers [`SourceOptions::force`].
    pub not_text: &'static str,
    /// Skips named files that cannot be read, as long as others can.
    pub partly: bool,
    /// Pages of a PDF, from 1, inclusive.
    pub pages: Option<(u32, u32)>,
    /// Program and first arguments that accept `__document-text FILE`; normally this program.
    pub reader: Vec<OsString>,
    /// Time for a converter or the reader, per file.
    pub convert_time: Duration,
}

impl SourceOptions {
    /// From the settings, relative to the current folder.
    pub fn new(config: &LoadConfig) -> SourceOptions {
        SourceOptions {
            base: std::env::current_dir().unwrap_or_default(),
            max_file_bytes: config.max_file_mib.saturating_mul(1 << 20),
            follow_symlinks: config.follow_symlinks,
            // `.docx` and `DOCX` mean `docx`.
            converters: config.converters.iter().map(|(of, line)| (extension(of), line.clone())).collect(),
            force: false,
            not_text: "Convert it to text first.",
            partly: false,
            pages: None,
            reader: super::this_program(),
            convert_time: Duration::from_secs(120),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name the model sees: the file name, with the folder if a folder was given.
    pub name: String,
    pub path: PathBuf,
    /// Its name in errors: as given, or as `name` inside a folder.
    pub shown: String,
    /// Its failure is an error; that of a file inside a folder or glob is a note.
    pub named: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub name: String,
    /// `None` for standard input and other pipes.
    pub path: Option<PathBuf>,
    pub text: String,
    pub note: Option<Remark>,
    pub guessed: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    Way(String),
    /// Parts of it are not in the text.
    Missing(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    pub documents: Vec<Document>,
    pub skipped: Vec<Skipped>,
}

impl Document {
    pub fn inline(name: &str, text: &str) -> Result<Document, SourceError> {
        refuse_nothing(text).map_err(|problem| problem.of(name))?;
        Ok(Document { name: clean_name(name), path: None, text: text.to_owned(), note: None, guessed: None })
    }
}

fn refuse_nothing(text: &str) -> Result<(), Problem> {
    match text.trim() {
        "" if text.is_empty() => Err(Problem::Empty),
        "" => Err(Problem::WhiteSpace),
        _ => Ok(()),
    }
}

/// Everything the paths mean, or nothing if a named file cannot be read; `partly`, without those that cannot.
pub fn gather(paths: &[String], options: &SourceOptions, cancel: &Cancel) -> Result<Gathered, SourceError> {
    let (mut gathered, mut seen) = (Gathered::default(), BTreeSet::new());
    let (mut total, mut empty, mut first) = (0u64, Vec::new(), None);
    let mut skip = |name: &str, error: SourceError, named: bool| {
        if named && !options.partly || matches!(error, SourceError::Cancelled | SourceError::Blank) {
            return Err(error);
        }
        let skipped = Skipped { name: name.to_owned(), reason: error.reason() };
        first = first.take().or(named.then_some(error));
        Ok(skipped)
    };
    for path in paths {
        if path == sample::PATH {
            gathered.documents.push(Document::inline(sample::NAME, sample::TEXT)?);
            continue;
        }
        let before = gathered.documents.len();
        let Files { found, skipped, .. } = match find(std::slice::from_ref(path), options, cancel) {
            Ok(files) => files,
            Err(error) => {
                gathered.skipped.push(skip(path, error, true)?);
                continue;
            }
        };
        gathered.skipped.extend(skipped);
        let mut accounted = found.iter().any(|found| found.named);
        for found in found {
            // A file is read once, however its path is written.
            if !seen.insert(std::fs::canonicalize(&found.path).unwrap_or_else(|_| found.path.clone())) {
                accounted = true;
                continue;
            }
            match read(&found, options, cancel) {
                Ok(document) => {
                    total = total.saturating_add(document.text.len() as u64);
                    if total > options.max_file_bytes.saturating_mul(TOTAL_FILES) {
                        let limit_mib = (options.max_file_bytes >> 20).saturating_mul(TOTAL_FILES);
                        return Err(SourceError::TotalTooLarge { limit_mib });
                    }
                    gathered.documents.push(document);
                }
                Err(problem) => gathered.skipped.push(skip(&found.shown, problem.of(&found.shown), found.named)?),
            }
        }
        if gathered.documents.len() == before && !accounted {
            empty.push(path.clone());
        }
    }
    if let Some(error) = first.filter(|_| gathered.documents.is_empty()) {
        return Err(error);
    }
    if gathered.documents.is_empty() && !empty.is_empty() {
        return Err(SourceError::EmptyFolder { name: empty.join(", "), skipped: gathered.skipped });
    }
    gathered.skipped.extend(empty.into_iter().map(|name| Skipped { name, reason: "no text files in it".to_owned() }));
    distinct_names(&mut gathered.documents);
    Ok(gathered)
}

/// Checks that paths exist, without reading files.
pub fn check(paths: &[String], options: &SourceOptions) -> Result<(), SourceError> {
    find(paths, options, &Cancel::default()).map(drop)
}

#[derive(Debug, Default)]
struct Files {
    found: Vec<Found>,
    /// Parts of folders and globs that could not be examined.
    skipped: Vec<Skipped>,
}

impl Files {
    fn skip(&mut self, name: &Path, reason: String) {
        self.skipped.push(Skipped { name: clean_name(&name.to_string_lossy()), reason });
    }
}

/// The files that paths, folders and globs mean, without duplicates.
fn find(paths: &[String], options: &SourceOptions, cancel: &Cancel) -> Result<Files, SourceError> {
    let mut files = Files::default();
    for given in paths {
        if given.trim().is_empty() {
            return Err(SourceError::Blank);
        }
        let path = resolve(given, &options.base);
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => walk(&path, options, &mut files, cancel)?,
            Ok(_) => {
                let name = path.file_name().map_or(given.clone(), |n| n.to_string_lossy().into_owned());
                let (name, shown) = (clean_name(&name), given.clone());
                files.found.push(Found { name, path, shown, named: true });
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound || e.kind() == std::io::ErrorKind::NotADirectory => {
                if let Ok(target) = std::fs::read_link(&path) {
                    let reason = format!("a link to {}, which is not there", target.display());
                    return Err(Problem::Io(reason).of(given));
                }
                if given.starts_with("http://") || given.starts_with("https://") {
                    return Err(SourceError::WebAddress);
                }
                if !pattern::is_pattern(given) {
                    return Err(not_found(given, &options.base));
                }
                expand(given, options, &mut files, cancel)?;
            }
            Err(e) => return Err(Problem::Io(plain_words(&e)).of(given)),
        }
    }
    let mut seen = BTreeSet::new();
    files.found.retain(|f| seen.insert(f.path.clone()));
    Ok(files)
}

/// Expands `~` and relative paths.
fn resolve(given: &str, base: &Path) -> PathBuf {
    let (start, rest) = started(given, base);
    if rest.is_empty() { start } else { start.join(rest) }
}

/// The start of a path (root, home, or `base`), and its rest.
fn started<'a>(given: &'a str, base: &Path) -> (PathBuf, &'a str) {
    let home = || directories::BaseDirs::new().map(|d| d.home_dir().to_owned());
    let below_home = given.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match (below_home, below_home.and_then(|_| home())) {
        (Some(rest), Some(home)) => (home, rest.trim_start_matches('/')),
        _ if given.starts_with('/') => (PathBuf::from("/"), given.trim_start_matches('/')),
        _ => (base.to_owned(), given),
    }
}

fn walk(folder: &Path, options: &SourceOptions, files: &mut Files, cancel: &Cancel) -> Result<(), SourceError> {
    let within = folder.file_name().map(PathBuf::from).unwrap_or_default();
    let named = |path: &Path| within.join(path.strip_prefix(folder).unwrap_or(path));
    let entries = ignore::WalkBuilder::new(folder)
        .hidden(true)
        .require_git(false)
        .follow_links(options.follow_symlinks)
        .sort_by_file_path(|a, b| a.cmp(b))
        .build();
    for entry in entries {
        if cancel.is_cancelled() {
            return Err(SourceError::Cancelled);
        }
        // An unreadable folder is treated like an unreadable file.
        let looked_at = entry.and_then(|entry| entry.metadata().map(|meta| (entry, meta)));
        let (entry, meta) = match looked_at {
            Ok(there) => there,
            Err(error) => {
                let (path, reason) = cause_of(error);
                files.skip(&named(path.as_deref().unwrap_or(folder)), reason);
                continue;
            }
        };
        if !meta.is_file() {
            continue;
        }
        if files.found.len() >= FILES {
            return Err(SourceError::TooMany { limit: FILES });
        }
        let name = clean_name(&named(entry.path()).to_string_lossy());
        files.found.push(Found { shown: name.clone(), name, path: entry.into_path(), named: false });
    }
    Ok(())
}

fn cause_of(error: ignore::Error) -> (Option<PathBuf>, String) {
    match error {
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => cause_of(*err),
        ignore::Error::WithPath { path, err } => (Some(path), cause_of(*err).1),
        ignore::Error::Loop { ancestor, child } => {
            (Some(child), format!("a link back to {}, which it is in", ancestor.display()))
        }
        ignore::Error::Io(e) => (None, plain_words(&e)),
        other => (None, other.to_string()),
    }
}

fn expand(given: &str, options: &SourceOptions, files: &mut Files, cancel: &Cancel) -> Result<(), SourceError> {
    let (start, rest) = started(given, &options.base);
    let Some(paths) = pattern::expand(&start, rest, FILES, cancel)? else {
        // A mistyped name, not a pattern: an existing file of this name is loaded.
        return Err(not_found(given, &options.base));
    };
    let before = files.found.len() + files.skipped.len();
    for path in paths {
        let inside = path.strip_prefix(&options.base).unwrap_or(&path).to_owned();
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => walk(&path, options, files, cancel)?,
            Ok(_) => {
                let name = inside.to_string_lossy();
                let name = clean_name(name.rsplit_once("../").map_or(&*name, |(_, n)| n));
                files.found.push(Found { shown: name.clone(), name, path, named: false });
            }
            Err(e) => files.skip(&inside, plain_words(&e)),
        }
    }
    match files.found.len() + files.skipped.len() == before {
        true => Err(SourceError::NoMatch(given.to_owned())),
        false => Ok(()),
    }
}

/// The name is part of an attribute in the prompt: no quotes, line ends or markup.
fn clean_name(name: &str) -> String {
    let clean: String =
        name.chars().map(|c| if c.is_control() || matches!(c, '"' | '<' | '>') { '_' } else { c }).collect();
    if clean.is_empty() { "document".to_owned() } else { clean }
}

/// Files of the same name are renamed to their paths.
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

fn not_found(given: &str, base: &Path) -> SourceError {
    SourceError::NotFound { path: given.to_owned(), similar: similar(&resolve(given, base), base) }
}

/// A file with a similar name in the same folder, or with the same name further down.
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

#[cfg(test)]
mod tests;
