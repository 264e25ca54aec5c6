//! What arguments of commands mean.

use crate::config::settings::preset::Display;
use crate::core::transcript::MessageId;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    pub name: Option<String>,
    pub head: Option<u64>,
    pub tail: Option<u64>,
    pub pages: Option<(u32, u32)>,
    pub once: bool,
    /// `--force`: bytes that are no text are read as Latin-1.
    pub force: bool,
    /// Text of the path `-`: what a single question has of standard input. Nothing else has any.
    pub inline: Option<String>,
    /// `@NAME`: documents of the library by name, read after the files.
    pub library: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BranchTarget {
    Sibling(Sibling),
    Name(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sibling {
    Number(u64),
    Next,
    Prev,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportFormat {
    /// Markdown
    #[value(name = "md")]
    Markdown,
    /// JSON that can be imported
    Json,
    /// Plain text
    #[value(name = "txt")]
    Text,
}

impl ExportFormat {
    /// The format that a file's ending asks for; Markdown for a name without one.
    pub fn of_path(path: &std::path::Path) -> Result<ExportFormat, String> {
        let ending = path.extension().and_then(|e| e.to_str()).map(str::to_lowercase);
        match ending.as_deref() {
            Some("json") => Ok(ExportFormat::Json),
            Some("txt" | "text") => Ok(ExportFormat::Text),
            Some("md" | "markdown") | None => Ok(ExportFormat::Markdown),
            Some(other) => Err(format!("{} is not supported. Use .md, .json or .txt", other.to_uppercase())),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibraryAction {
    List,
    Add(String),
    Remove(String),
    Prune,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresetAction {
    List,
    Take(String),
    Save { name: String, display: Display },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GotoTarget {
    Mark(String),
    Message(MessageId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWhat {
    Last,
    Message(u64),
    Block(usize),
    Look(usize),
    All,
}
