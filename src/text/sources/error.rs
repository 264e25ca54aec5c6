//! Why a document cannot be read: one line each, with the next step.

use crate::core::counted;

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
    #[error("{name}: {problem}{}{}", .problem.outcome(), .problem.another_reader())]
    File { name: String, problem: Problem },
    #[error("{name}: no text files in it{}. Nothing was loaded.", skipped_note(.skipped))]
    EmptyFolder { name: String, skipped: Vec<Skipped> },
    #[error(
        "The files have together more than {limit_mib} MiB of text, the limit of one load (4 times load.max_file_mib). Load fewer of them. Nothing was loaded."
    )]
    TotalTooLarge { limit_mib: u64 },
    #[error("{} Nothing was loaded.", too_many(*.limit))]
    TooMany { limit: usize },
    #[error("stopped")]
    Cancelled,
}

impl SourceError {
    /// Why a path among others is skipped, without its name.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::File { problem, .. } => format!("{problem}{}", problem.another_reader()),
            Self::NotFound { similar, .. } => format!("No such file.{}", similar_note(similar)),
            Self::NoMatch(_) => "no file matches it".to_owned(),
            Self::TooMany { limit } => too_many(*limit),
            other => other.to_string(),
        }
    }
}

/// Why a file gives no text, without its name.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// With the next step.
    #[error("{0}")]
    Advised(String),
    #[error("needs a converter. Set load.converters.{extension}, for example \"{example}\"")]
    NeedsConverter { extension: String, example: &'static str },
    #[error("{reason}.")]
    Document { reason: String, extension: String, cause: Cause },
    #[error("{}, no text layer (probably scanned).", counted(*.pages as u64, "page"))]
    NoTextLayer { pages: usize },
    #[error("it has {}, none of {first}-{last}.", counted(*.pages as u64, "page"))]
    NoSuchPages { first: u32, last: u32, pages: usize },
    #[error("the file is empty.")]
    Empty,
    #[error("only white space.")]
    WhiteSpace,
    #[error("{} MiB, the limit is {limit_mib}. Raise load.max_file_mib or split it", .bytes.div_ceil(1 << 20))]
    TooLarge { bytes: u64, limit_mib: u64 },
    #[error("{0}.")]
    Io(String),
    #[error("stopped")]
    Cancelled,
}

impl Problem {
    pub(super) fn of(self, name: &str) -> SourceError {
        match self {
            Problem::Cancelled => SourceError::Cancelled,
            problem => SourceError::File { name: name.to_owned(), problem },
        }
    }

    /// " Nothing was loaded." where the problem names no next step.
    fn outcome(&self) -> &'static str {
        let advises = matches!(self, Problem::Advised(_) | Problem::NeedsConverter { .. } | Problem::TooLarge { .. });
        if advises { "" } else { " Nothing was loaded." }
    }

    /// A converter to use in place of the reader here, if one is known.
    fn another_reader(&self) -> String {
        let Problem::Document { extension, .. } = self else { return String::new() };
        let line = super::read::suggested(extension);
        line.map(|line| format!(" Another reader: load.converters.{extension} = \"{line}\"")).unwrap_or_default()
    }
}

fn too_many(limit: usize) -> String {
    format!("More than {limit} files, the limit of one load. Name a smaller folder or a narrower pattern.")
}

fn similar_note(similar: &Option<String>) -> String {
    similar.as_ref().map(|similar| format!(" Similar: {similar}")).unwrap_or_default()
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
