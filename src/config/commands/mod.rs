//! Slash commands. Parsing never touches the disk; every error says what would have been right.
//!
//! [`table`] has everything about each command, [`request`] what the runtime can be requested and when. The popup,
//! `/help`, line mode and the tests read them. `args` splits and reads arguments, `help` writes the pages.

mod args;
pub mod help;
pub mod request;
pub mod table;
mod words;

use crate::text::near;
use args::{Args, split_words};
pub use args::{escaped, is_escapable, unescaped};
pub(crate) use request::requests;
pub use request::{Request, WhileBusy};
pub use table::{COMMANDS, GROUPS};
pub use words::{BranchTarget, CopyWhat, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction, Sibling};

use crate::config::settings::preset::Display;

/// Answers to one question that can be made at once: each can be chosen with a key.
pub const MOST_ANSWERS: u64 = 9;

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Runtime(Request),
    Local(Local),
}

impl From<Request> for Outcome {
    fn from(request: Request) -> Outcome {
        Outcome::Runtime(request)
    }
}

impl From<Local> for Outcome {
    fn from(what: Local) -> Outcome {
        Outcome::Local(what)
    }
}

impl Outcome {
    pub fn while_busy(&self) -> WhileBusy {
        match self {
            Outcome::Runtime(request) => request.while_busy(),
            Outcome::Local(_) => WhileBusy::Runs,
        }
    }

    /// Whether it ends the editing of a message, because it changes or leaves the conversation.
    pub fn leaves_an_edit(&self) -> bool {
        matches!(self.while_busy(), WhileBusy::Waits | WhileBusy::Leaves)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Local {
    Copy(CopyWhat),
    Show(Display),
    // Writes to the settings file; `now` changes it in the session, too, if that can be done.
    Save { key: &'static str, value: String, now: Option<Box<Outcome>> },
    Settings(Option<String>),
    // Puts a command into the input and completes its argument.
    Complete(String),
    Split,
    Keys,
    Help(Option<String>),
    Quit,
}

/// What Tab completes after the command. Options are completed wherever `--` is typed.
#[derive(Clone, Copy, Debug)]
pub enum Completes {
    Nothing,
    Paths,
    Sessions,
    Documents,
    Themes,
    Commands,
    Words(&'static [&'static str]),
    After(fn(&[&str]) -> Vec<&'static str>),
}

#[derive(Clone, Copy)]
pub struct Command {
    pub name: &'static str,
    /// Other names, also those that other programs use.
    pub aliases: &'static [&'static str],
    pub usage: &'static str,
    pub help: &'static str,
    pub options: &'static [(&'static str, &'static str)],
    /// Empty for a command that is its own example.
    example: &'static str,
    example_of: fn(&Args<'_>) -> Option<String>,
    pub completes: Completes,
    parse: fn(&Args<'_>) -> Result<Outcome, String>,
}

impl Command {
    pub fn form(&self) -> String {
        format!("/{} {}", self.name, self.usage).trim_end().to_owned()
    }

    pub fn example(&self) -> String {
        if self.example.is_empty() { format!("/{}", self.name) } else { self.example.to_owned() }
    }

    /// Whether it says something without arguments, so that a highlighted name can be run at once.
    pub fn runs_alone(&self) -> bool {
        parse(&format!("/{}", self.name), None).is_ok()
    }
}

pub struct Parsed {
    pub command: &'static Command,
    pub outcome: Outcome,
}

/// Whether a line is a command. A space in front or `//` makes it a message.
pub fn is_command(line: &str) -> bool {
    line.starts_with('/') && !line.starts_with("//") && line.len() > 1
}

/// The message of a line that is not a command: `//x` is `/x`.
pub fn message_text(line: &str) -> String {
    match line.strip_prefix("//") {
        Some(rest) => format!("/{rest}"),
        None => line.to_string(),
    }
}

/// The line for a message; a leading slash is doubled.
pub fn line_of(text: &str) -> String {
    if text.starts_with('/') { format!("/{text}") } else { text.to_string() }
}

pub fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|c| c.name == name || c.aliases.contains(&name))
}

pub fn parse(line: &str, home: Option<&std::path::Path>) -> Result<Parsed, String> {
    let body = line.trim_start_matches('/').trim();
    let (name, rest) = body.split_once(char::is_whitespace).unwrap_or((body, ""));
    let lower = name.to_lowercase();
    let Some(command) = find(&lower) else { return Err(unknown(name)) };
    let args = Args { raw: rest.trim(), split: split_words(rest, home) };
    let outcome = (command.parse)(&args).map_err(|e| {
        let example = (command.example_of)(&args).unwrap_or_else(|| command.example());
        format!("/{}: {e}. Example: {example}", command.name)
    })?;
    Ok(Parsed { command, outcome })
}

/// What a name that other programs have for a command is called here.
fn instead_of(name: &str) -> Option<&'static str> {
    let lower = name.trim().trim_start_matches('/').to_lowercase();
    table::HABITS.iter().find(|(words, _)| words.contains(&lower.as_str())).map(|(_, instead)| *instead)
}

/// Error for an unknown command: its name here if other programs have it, or the nearest name.
pub fn unknown(name: &str) -> String {
    if let Some(instead) = instead_of(name) {
        return format!("No command /{name}. {instead}");
    }
    let near = nearest(&name.to_lowercase()).map_or(String::new(), |n| format!("Did you mean /{n}? "));
    format!("No command /{name}. {near}(/help lists all)")
}

pub fn nearest(name: &str) -> Option<&'static str> {
    near::nearest(name, COMMANDS.iter().flat_map(|c| std::iter::once(c.name).chain(c.aliases.iter().copied())))
}

#[cfg(test)]
mod tests;
