//! Why a document cannot be had: one line each, with the next thing to do.

/// Why a document cannot be had. One line: what, where, what to do next.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Nothing there.
    #[error("No such file: {path}.{}", .similar.as_ref().map(|s| format!(" Similar: {s}")).unwrap_or_default())]
    NotFound {
        /// As given.
        path: String,
        /// A file with nearly that name.
        similar: Option<String>,
    },
    /// A path without a name: it would mean the current folder.
    #[error("a file name is empty. Write the path of a file or folder; . is the current one")]
    Blank,
    /// A glob without matches.
    #[error("No file matches {0}")]
    NoMatch(String),
    /// Not text.
    #[error("{name}: not text ({} at byte {offset}). {next}", .byte.name())]
    Binary {
        /// Which file.
        name: String,
        /// Of the first byte that no text holds.
        offset: usize,
        /// That byte.
        byte: OddByte,
        /// [`super::SourceOptions::not_text`].
        next: &'static str,
    },
    /// Text only after conversion.
    #[error("{name}: needs a converter. Set load.converters.{extension}, for example \"{example}\"")]
    NeedsConverter {
        /// Which file.
        name: String,
        /// Its extension.
        extension: String,
        /// A command line.
        example: &'static str,
    },
    /// A converter did not deliver.
    #[error("{name}: the converter `{command}` failed: {reason}. See load.converters in the config")]
    Converter {
        /// Which file.
        name: String,
        /// The configured command.
        command: String,
        /// What it said.
        reason: String,
    },
    /// The PDF reader did not deliver.
    #[error("{name}: {reason}. Nothing loaded. Another reader: load.converters.pdf = \"pdftotext -layout {{in}} -\"")]
    Pdf {
        /// Which file.
        name: String,
        /// What it said.
        reason: String,
    },
    /// A PDF of pictures.
    #[error("{name}: {}, no text layer (probably scanned). Nothing loaded.", pages_word(.pages))]
    NoTextLayer {
        /// Which file.
        name: String,
        /// Its pages.
        pages: usize,
    },
    /// `--pages` outside the file.
    #[error("{name} has {}, none of {first}-{last}. Nothing loaded.", pages_word(.pages))]
    NoSuchPages {
        /// Which file.
        name: String,
        /// Asked for.
        first: u32,
        /// Asked for.
        last: u32,
        /// There are.
        pages: usize,
    },
    /// `--pages` for something without pages.
    #[error("{0}: --pages works for PDF files only. Use --head or --tail")]
    NoPages(String),
    /// Nothing in it.
    #[error("{0}: the file is empty. Nothing loaded.")]
    Empty(String),
    /// Only spaces and line ends in it.
    #[error("{0}: nothing but white space in it. Nothing loaded.")]
    WhiteSpace(String),
    /// A folder without text.
    #[error("{name}: no text files in it{}. Nothing loaded.", skipped_note(.skipped))]
    EmptyFolder {
        /// Which folder.
        name: String,
        /// What was in it.
        skipped: Vec<Skipped>,
    },
    /// Over `load.max_file_mib`.
    #[error("{name}: {} MiB, the limit is {limit_mib}. Raise load.max_file_mib or split it", .bytes.div_ceil(1 << 20))]
    TooLarge {
        /// Which file.
        name: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit_mib: u64,
    },
    /// All files together have more text than a load may have.
    #[error(
        "the files have together more than {limit_mib} MiB of text, the limit of one load (4 times load.max_file_mib). Load fewer of them. Nothing loaded."
    )]
    TotalTooLarge {
        /// The limit.
        limit_mib: u64,
    },
    /// A folder or glob with more files than one load may have.
    #[error(
        "more than {limit} files, the limit of one load. Name a smaller folder or a narrower pattern. Nothing loaded."
    )]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// A device, a socket, or a pipe that was not named.
    #[error("{0}: not a regular file. Copy it to a file first, or pipe it in: COMMAND | sala-chat -p TEXT")]
    NotAFile(String),
    /// The system refused.
    #[error("{name}: {reason}. Nothing loaded.")]
    Io {
        /// Which file.
        name: String,
        /// Why.
        reason: String,
    },
    /// The user stopped it.
    #[error("stopped")]
    Cancelled,
}

/// A byte that shows that a file is no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OddByte(pub u8);

impl OddByte {
    /// What it is called.
    pub fn name(self) -> String {
        if self.0 == 0 { "NUL".to_owned() } else { format!("control byte 0x{:02X}", self.0) }
    }
}

/// A file in a folder that was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// As it would have been named.
    pub name: String,
    /// Why not, in a few words.
    pub reason: String,
}

fn skipped_note(skipped: &[Skipped]) -> String {
    match skipped {
        [] => String::new(),
        [first, rest @ ..] => {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            // What can be done about it is for whoever names the file.
            let why = first.reason.split(". ").next().unwrap_or_default().trim_end_matches('.');
            format!(" (skipped {}: {why}{more})", first.name)
        }
    }
}

/// `1 page`, `2 pages`.
fn pages_word(pages: &usize) -> String {
    format!("{pages} page{}", if *pages == 1 { "" } else { "s" })
}
