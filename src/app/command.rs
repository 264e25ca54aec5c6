//! Slash commands: one table that feeds the parser, the popup, `/help`, the documentation and the tests.
//!
//! A line is a command when it starts with a single `/`. Words are split as a shell does: quotes and `\ ` keep spaces,
//! `~` is the home directory. Parsing never touches the disk; every error says what would have been right.
//!
//! The rows are in `table`, what the arguments of single commands mean in `parsers`, words, numbers and settings in `args`.

mod args;
mod parsers;
mod table;

use super::options::{ThemeName, ThinkShow};
use crate::protocol::desk::Request;
use args::{Args, split_words};
pub use table::COMMANDS;

/// What a command does.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Ask the desk.
    Desk(Request),
    /// Done by the interface.
    Local(Local),
}

/// Commands the interface does itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Local {
    /// `/copy`.
    Copy(CopyWhat),
    /// `/theme NAME`.
    Theme(ThemeName),
    /// `/keys`.
    Keys,
    /// `/help [CMD]`.
    Help(Option<String>),
    /// `/think show|fold|hide`.
    ThinkShow(ThinkShow),
    /// `/quit`.
    Quit,
}

/// What `/copy` copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWhat {
    /// The last answer.
    Last,
    /// Message `#n`.
    Message(u64),
    /// Code block n of the selected or last answer.
    Block(usize),
    /// The whole branch.
    All,
}

/// What Tab completes after the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completes {
    /// Nothing.
    Nothing,
    /// Paths.
    Paths,
    /// Names of sessions.
    Sessions,
    /// Names of documents of this conversation.
    Documents,
    /// Names of commands.
    Commands,
    /// Fixed words.
    Words(&'static [&'static str]),
}

/// Whether a command can run while the model reads or answers; others wait in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileBusy {
    /// Runs at once.
    Runs,
    /// Is queued.
    Waits,
}

/// A row of the table.
pub struct Command {
    /// Without the slash.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// Arguments as shown in help.
    pub usage: &'static str,
    /// One line.
    pub help: &'static str,
    /// A line that parses.
    pub example: &'static str,
    /// A line that is refused; empty when everything is accepted.
    pub wrong: &'static str,
    /// While reading or answering.
    pub busy: WhileBusy,
    /// For Tab.
    pub completes: Completes,
    parse: fn(&Args<'_>) -> Result<Outcome, String>,
}

/// A line that was understood.
pub struct Parsed {
    /// Its row.
    pub command: &'static Command,
    /// What to do.
    pub outcome: Outcome,
}

/// Whether a line is a command. A space in front or `//` makes it a message.
pub fn is_command(line: &str) -> bool {
    line.starts_with('/') && !line.starts_with("//") && line.len() > 1
}

/// The message a line that is no command stands for: `//x` is `/x`.
pub fn message_text(line: &str) -> String {
    match line.strip_prefix("//") {
        Some(rest) => format!("/{rest}"),
        None => line.to_string(),
    }
}

/// A command by name or alias.
pub fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|c| c.name == name || c.aliases.contains(&name))
}

/// Parses a command line (with its slash).
///
/// # Errors
/// One line for the user: unknown command with the nearest name, or what the arguments should have been.
pub fn parse(line: &str, home: Option<&std::path::Path>) -> Result<Parsed, String> {
    let body = line.trim_start_matches('/').trim();
    let (name, rest) = body.split_once(char::is_whitespace).unwrap_or((body, ""));
    let lower = name.to_lowercase();
    let Some(command) = find(&lower) else {
        let near = nearest(&lower).map_or(String::new(), |n| format!("Did you mean /{n}? "));
        return Err(format!("No command /{name}. {near}(/help lists all)"));
    };
    let outcome = (command.parse)(&Args { raw: rest.trim(), split: split_words(rest, home) })
        .map_err(|e| format!("/{}: {e}. Example: {}", command.name, command.example))?;
    Ok(Parsed { command, outcome })
}

/// The command name nearest to a typo, if near enough to be meant.
pub fn nearest(name: &str) -> Option<&'static str> {
    COMMANDS
        .iter()
        .flat_map(|c| std::iter::once(&c.name).chain(c.aliases))
        .map(|n| (distance(name, n), *n))
        .filter(|(d, n)| *d <= 1 + n.len() / 4)
        .min()
        .map(|(_, n)| n)
}

/// Edits (insert, delete, replace, swap of neighbours) between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut table = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let same = usize::from(a[i - 1] != b[j - 1]);
                let mut best = (table[i - 1][j] + 1).min(table[i][j - 1] + 1).min(table[i - 1][j - 1] + same);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(table[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    table[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_command_names_the_nearest() {
        assert_eq!(parse("/lod", None).err().unwrap(), "No command /lod. Did you mean /load? (/help lists all)");
        assert_eq!(parse("/zzzzzz", None).err().unwrap(), "No command /zzzzzz. (/help lists all)");
        assert_eq!(nearest("resmue"), Some("resume"));
    }

    #[test]
    fn slash_messages_can_be_sent() {
        assert!(!is_command(" /etc") && !is_command("//etc") && !is_command("/") && is_command("/quit"));
        assert_eq!(message_text("//etc is a folder"), "/etc is a folder");
    }
}
