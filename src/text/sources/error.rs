//! Why a document cannot be read: one line each, with the next step.

use crate::core::counted;
use crate::text::NotText;

/// Why a reader gave no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Content,
    Start,
    Size,
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("No such file: {path}.{}", similar_note(.similar))]
    NotFound { path: String, similar: Option<String> },
    #[error("Web addresses are not fetched; save the page and load the file.")]
    WebAddress,
    /// An empty path, which would mean the current folder.
    #[error("A file name is empty. Write the path of a file or folder; . is the current one")]
    Blank,
    #[error("No file matches {0}")]
    NoMatch(String),
    #[error("{name}: not text ({what}). {next}")]
    Binary { name: String, what: NotText, next: &'static str },
    #[error("{name}: needs a converter. Set load.converters.{extension}, for example \"{example}\"")]
    NeedsConverter { name: String, extension: String, example: &'static str },
    #[error("{name}: the converter `{command}` failed: {reason}. See load.converters in the config")]
    Converter { name: String, command: String, reason: String },
    #[error("{name}: {reason}. Nothing was loaded.{}", another_reader(.extension))]
    Document { name: String, reason: String, extension: String, cause: Cause },
    #[error("{name}: {}, no text layer (probably scanned). Nothing was loaded.", counted(*.pages as u64, "page"))]
    NoTextLayer { name: String, pages: usize },
    #[error("{name} has {}, none of {first}-{last}. Nothing was loaded.", counted(*.pages as u64, "page"))]
    NoSuchPages { name: String, first: u32, last: u32, pages: usize },
    #[error("{0}: --pages works for PDF files only. Use --head or --tail")]
    NoPages(String),
    #[error("{0}: the file is empty. Nothing was loaded.")]
    Empty(String),
    #[error("{0}: only white space. Nothing was loaded.")]
    WhiteSpace(String),
    #[error("{name}: no text files in it{}. Nothing was loaded.", skipped_note(.skipped))]
    EmptyFolder { name: String, skipped: Vec<Skipped> },
    #[error("{name}: {} MiB, the limit is {limit_mib}. Raise load.max_file_mib or split it", .bytes.div_ceil(1 << 20))]
    TooLarge { name: String, bytes: u64, limit_mib: u64 },
    #[error(
        "The files have together more than {limit_mib} MiB of text, the limit of one load (4 times load.max_file_mib). Load fewer of them. Nothing was loaded."
    )]
    TotalTooLarge { limit_mib: u64 },
    #[error(
        "More than {limit} files, the limit of one load. Name a smaller folder or a narrower pattern. Nothing was loaded."
    )]
    TooMany { limit: usize },
    /// A device, a socket, or a pipe inside a folder.
    #[error("{0}: not a regular file. Copy it to a file first, or pipe it in: COMMAND | sala-chat -p TEXT")]
    NotAFile(String),
    #[error("{name}: {reason}. Nothing was loaded.")]
    Io { name: String, reason: String },
    #[error("stopped")]
    Cancelled,
}

const OUTCOME: &str = " Nothing was loaded.";

impl SourceError {
    /// Why a file among others is skipped: without its name, and without the fate of a load of this file alone.
    pub(super) fn reason(&self, name: &str) -> String {
        match self {
            Self::NotFound { similar, .. } => format!("No such file.{}", similar_note(similar)),
            Self::NoMatch(_) => "no file matches it".to_owned(),
            _ => {
                let whole = self.to_string().replace(OUTCOME, "");
                whole.strip_prefix(&format!("{name}: ")).unwrap_or(&whole).to_owned()
            }
        }
    }
}

fn similar_note(similar: &Option<String>) -> String {
    similar.as_ref().map(|similar| format!(" Similar: {similar}")).unwrap_or_default()
}

/// A converter to use in place of the reader here, if one is known.
fn another_reader(extension: &str) -> String {
    let line = super::read::suggested(extension);
    line.map(|line| format!(" Another reader: load.converters.{extension} = \"{line}\"")).unwrap_or_default()
}

/// A file in a folder that was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// As it would have been named.
    pub name: String,
    pub reason: String,
}

fn skipped_note(skipped: &[Skipped]) -> String {
    let [first, rest @ ..] = skipped else { return String::new() };
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    // The next step concerns a file that is named.
    let why = first.reason.split(". ").next().unwrap_or_default().trim_end_matches('.');
    format!(" (skipped {}: {why}{more})", first.name)
}
