//! What a command line means, as plain structs. [`super::Cli`] makes them, the handlers take them.

use super::{Command, LibraryCommand};

/// Which session a chat or a question belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChoice {
    New,
    Last,
    /// By name or id.
    Named(String),
    /// The user chooses from a list.
    Pick,
}

/// Form of an answer on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The answer, markdown rendered if standard output is a terminal.
    Text,
    /// The answer as written.
    Raw,
    /// One object at the end.
    Json,
    /// One object per event.
    JsonLines,
}

/// `sala-chat -p`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub prompt: String,
    pub files: Vec<String>,
    pub session: SessionChoice,
    /// Keep question, answer and state.
    pub save: bool,
    pub format: Format,
    /// Number of answers, each with its own seed; `None`: one, without a list in the output.
    pub answers: Option<u64>,
}

/// `sala-chat [PATH…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat {
    pub paths: Vec<String>,
    /// Loaded and followed.
    pub follow: Vec<String>,
    pub session: SessionChoice,
    pub save: bool,
    pub plain: bool,
    /// A new session begins with the offer to continue one of this folder.
    pub offers: bool,
}

#[derive(Clone, Debug)]
pub enum Task {
    Ask(Ask),
    Chat(Chat),
    Command(Command),
}

impl Task {
    /// Whether it looks at what is kept, and has nothing to do where there is none.
    pub fn only_looks(&self) -> bool {
        match self {
            Task::Ask(_) | Task::Chat(_) => false,
            Task::Command(Command::Prune(args)) => args.dry_run,
            Task::Command(command) => matches!(
                command,
                Command::Ls(_)
                    | Command::Show { .. }
                    | Command::Search { .. }
                    | Command::Export(_)
                    | Command::AskAll(_)
                    | Command::Park
                    | Command::Library(LibraryCommand::Ls)
            ),
        }
    }
}
