//! How a command fails: errors with an exit code for scripts and a hint for people.
//!
//! A message follows `sala-chat: ` and begins with a small letter, unless its first word is a name as it is written
//! elsewhere. A hint is a sentence of its own. The chat has whole sentences: [`Failure::of_chat`] makes messages of them.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use crate::config::settings::ConfigError;
use crate::core::Exit;
use crate::core::plain_words;
use crate::model::ModelError;
use crate::runtime::protocol::Unsaved;
use crate::text::TextError;
use crate::text::sources::SourceError;

/// First words of the chat's sentences that are no names.
const FIRST_WORDS: [&str; 9] = ["A ", "More ", "No ", "Not ", "Nothing ", "Saved ", "The ", "There ", "Web "];

pub(super) const RUNTIME_ENDED: &str =
    "the runtime ended unexpectedly. The conversation is saved; continue it with: sala-chat -c";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    /// One line: what, where. Empty for a closed pipe.
    pub message: String,
    /// What to do next, if the message does not say it.
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: plain_words(&message.into()), hint: None }
    }

    pub fn of_chat(exit: Exit, sentence: &str) -> Failure {
        let is_ordinary = FIRST_WORDS.iter().any(|word| sentence.starts_with(word));
        let (first, rest) = sentence.split_at(usize::from(is_ordinary));
        Failure::new(exit, first.to_lowercase() + rest.trim_end_matches('.'))
    }

    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message).hint("sala-chat --help lists all options")
    }

    /// The answer was printed but is not on disk, so the command fails.
    pub fn not_saved(unsaved: &Unsaved) -> Failure {
        Failure::new(unsaved.exit, format!("not saved: {}", unsaved.reason))
    }

    pub fn input(path: &Path, e: &std::io::Error) -> Failure {
        let exit = if e.kind() == ErrorKind::NotFound { Exit::NoInput } else { Exit::Failure };
        Failure::new(exit, format!("{}: {e}", path.display()))
    }

    /// What the parser of the command line found, as one line: with the names of missing arguments, the words that are
    /// allowed, and the nearest option. Below a command its usage is the next thing to see.
    pub fn command_line(error: &clap::Error) -> Failure {
        let text = error.render().to_string();
        let failure = Failure::usage(usage_line(&text));
        let usage = text.lines().find_map(|l| l.strip_prefix("Usage: sala-chat "));
        match usage.filter(|u| u.starts_with(|c: char| c.is_ascii_lowercase())) {
            Some(usage) => failure.hint(format!("Usage: sala-chat {}", usage.trim_end())),
            None => failure,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    pub fn suggest(self, question: &str, command: Option<String>) -> Failure {
        match command {
            Some(command) => self.hint(format!("{question}: sala-chat {command}")),
            None => self,
        }
    }

    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "code": self.exit.word(), "message": self.message, "hint": self.hint })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) if self.message.ends_with(['.', '?', '!']) => write!(f, " {hint}"),
            Some(hint) => write!(f, ". {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// The first paragraph of clap's text as one line, and its tip.
fn usage_line(text: &str) -> String {
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let mut lines = first.lines().map(str::trim);
    let mut line = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let more: Vec<&str> = lines.filter(|l| !l.is_empty()).collect();
    if !more.is_empty() {
        line.push_str(&format!(" {}", more.join(", ")));
    }
    if let Some(tip) = paragraphs.find_map(|p| p.trim().strip_prefix("tip: ")) {
        line.push_str(&format!("; {}", tip.lines().next().unwrap_or_default()));
    }
    line
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        match e.kind() {
            // The reader closed the pipe: end silently.
            ErrorKind::BrokenPipe => Failure::new(Exit::Ok, ""),
            // Of the system: a file of ours that is too large to be read says so itself.
            ErrorKind::FileTooLarge if e.raw_os_error().is_none() => Failure::new(Exit::Failure, e.to_string()),
            ErrorKind::StorageFull
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge => Failure::new(Exit::Disk, format!("standard output: {e}")),
            _ => Failure::new(Exit::Failure, e.to_string()),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(e: ConfigError) -> Failure {
        Failure::new(Exit::Usage, e.to_string())
    }
}

impl From<SourceError> for Failure {
    fn from(e: SourceError) -> Failure {
        let text = e.to_string();
        match e {
            SourceError::Cancelled => Failure::new(Exit::Stopped, text),
            SourceError::Blank => Failure::of_chat(Exit::Usage, &text),
            SourceError::NotFound { .. } | SourceError::NoMatch(_) | SourceError::WebAddress => {
                Failure::of_chat(Exit::NoInput, &text)
            }
            SourceError::TotalTooLarge { .. } | SourceError::TooMany { .. } => Failure::of_chat(Exit::Failure, &text),
            // Others begin with the name of a document.
            _ => Failure::new(Exit::Failure, text),
        }
    }
}

impl From<TextError> for Failure {
    fn from(e: TextError) -> Failure {
        Failure::new(e.exit(), e.to_string())
    }
}

impl From<ModelError> for Failure {
    fn from(e: ModelError) -> Failure {
        Failure::new(e.exit(), e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_numbers_are_left_out_of_every_failure() {
        let failure = Failure::input(Path::new("x"), &std::io::Error::from_raw_os_error(2));
        assert_eq!(failure.message, "x: not found");
        let both = Failure::new(Exit::Failure, "a: Permission denied (os error 13); b: Is a directory (os error 21)");
        assert_eq!(both.message, "a: Permission denied; b: Is a directory");
    }

    #[test]
    fn the_usage_of_a_command_is_shown_under_any_name_of_the_program() {
        for name in ["sala-chat", "foo", "./build/sala"] {
            let words = [name, "show"].map(std::ffi::OsString::from);
            let message = Failure::command_line(&crate::cli::args::Cli::read(words).unwrap_err()).to_string();
            assert!(message.ends_with("not provided: <NAME>. Usage: sala-chat show <NAME>"), "{message}");
        }
    }

    #[test]
    fn a_failure_reads_as_one_sentence_after_the_other() {
        let failure = Failure::new(Exit::NoModel, "not installed").hint("Type this");
        assert_eq!(failure.to_string(), "not installed. Type this");
        assert_eq!(failure.to_json()["code"], "no_model");
        let asks = Failure::usage("unknown key ui.tehme: did you mean ui.theme?").hint("Type this");
        assert_eq!(asks.to_string(), "unknown key ui.tehme: did you mean ui.theme? Type this");
        let of_chat = |sentence| Failure::of_chat(Exit::Failure, sentence).message;
        assert_eq!(of_chat("No such file: The book.txt."), "no such file: The book.txt");
        assert_eq!([of_chat("Nothing answers."), of_chat("NVIDIA is gone.")], ["nothing answers", "NVIDIA is gone"]);
    }

    #[test]
    fn a_mistake_on_the_command_line_names_what_is_missing() {
        let says = |line: &str| {
            let words = line.split_whitespace().map(std::ffi::OsString::from);
            let error = crate::cli::args::Cli::read(words).unwrap_err();
            Failure::command_line(&error).to_string()
        };
        let message = says("sala-chat show");
        assert!(message.contains("not provided: <NAME>. Usage: sala-chat show <NAME>"), "{message}");
        let message = says("sala-chat export talk");
        assert!(message.contains("<FILE>") && !message.contains('\n'), "{message}");
        let message = says("sala-chat library");
        assert!(
            message.contains("[subcommands: ls, list, add, rm, prune, help]. Usage: sala-chat library"),
            "{message}"
        );
        let message = says("sala-chat --modl x");
        assert!(message.contains("'--modl'") && message.contains("'--model'"), "{message}");
        assert!(
            says("sala-chat --temp 7").starts_with("--temp must be 0 to 2 (got 7)"),
            "{}",
            says("sala-chat --temp 7")
        );
        let message = says("sala-chat --think blue");
        assert!(message.starts_with("--think must be one of auto, on, off (got blue)"), "{message}");
        assert!(says("sala-chat --device gpu").contains("one of auto, cpu, cuda"));
        assert!(says("sala-chat -p x -n 99").contains("'99' for '--answers <N>': a whole number from 1 to 9"));
    }
}
