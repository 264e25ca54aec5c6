//! Messages and the tree they form. Owned text only; no model state.
//!
//! A conversation is a tree of messages. A session points at one message, its head; the path from the root to the head
//! is the model's context. Undoing, editing and regenerating move or add pointers and never remove a message.

mod looked;
mod quoted;

use serde::{Deserialize, Serialize};

pub use looked::{MOST_PASSAGES, Passage, Seen, Sentence, Sources};
pub use quoted::{Match, Quote};

/// Longest text in the input's history, bytes: a prompt with a pasted book stays in its session only, because each
/// start reads the whole history.
pub const LONGEST_PROMPT: usize = 20_000;

/// Row id of a message in the store. Unique over all sessions of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId(pub i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub i64);

/// Bytes on disk for one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionSizes {
    pub state: u64,
    /// The part of `state` that no other session and no document of the library needs.
    pub own: u64,
    /// Text of the messages written in it.
    pub text: u64,
    /// State written since it began, including what was removed since. Sessions of earlier versions begin at 0.
    pub written: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// At most one, first.
    System,
    User,
    Assistant,
    /// Rendered for the model as a user turn holding the document and an assistant turn that acknowledges it
    /// (docs/architecture.md §5).
    Document,
}

impl Role {
    const ALL: [Role; 4] = [Role::System, Role::User, Role::Assistant, Role::Document];

    /// The name on disk and in files.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Document => "document",
        }
    }

    pub fn named(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    pub fn speaker(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "you",
            Role::Assistant => "sala",
            Role::Document => "document",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    Stop,
    Length,
    Context,
    Repeats,
    Stopped,
    /// It ended in an error; its text up to then is kept.
    Failed,
}

impl Finish {
    /// Why the answer was cut off, in words; `None` if the model ended it.
    pub fn cut_off(self) -> Option<&'static str> {
        match self {
            Finish::Stop => None,
            Finish::Length => Some("length limit reached"),
            Finish::Context => Some("the context is full"),
            Finish::Repeats => Some("it began to repeat itself"),
            Finish::Stopped => Some("stopped"),
            Finish::Failed => Some("ended in an error"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentInfo {
    pub name: String,
    pub path: Option<String>,
    /// BLAKE3 of the text, hex.
    pub hash: String,
    pub tokens: u64,
    pub lines: u64,
    /// False when loading was stopped and the part read so far was kept.
    pub complete: bool,
    /// The user chose not to keep it in the library.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<Update>,
}

/// How a document brings an earlier one of the same path up to date.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Update {
    /// Its text is a unified diff.
    Diff,
    /// Its text follows the earlier one.
    Grown,
    /// Its text replaces the earlier one.
    Whole,
    /// The file has no text any more; the document is a sentence about that.
    Gone,
    /// The file had this path before; the document is a sentence about that.
    Moved { from: String },
}

pub fn text_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

impl DocumentInfo {
    pub fn new(name: &str, path: Option<String>, text: &str) -> DocumentInfo {
        DocumentInfo {
            name: name.to_owned(),
            path,
            hash: text_hash(text),
            lines: text.lines().count() as u64,
            ..DocumentInfo::default()
        }
    }

    pub fn is_whole(&self, text: &str) -> bool {
        self.hash == text_hash(text)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageMeta {
    /// `None` for a message that is not an answer.
    pub finish: Option<Finish>,
    /// `None` if nothing was sampled.
    pub seed: Option<u64>,
    /// Model that answered, for example `demo` or `MiniCPM-SALA`.
    pub model: Option<String>,
    pub completion_tokens: u64,
    pub prefilled_tokens: u64,
    /// Prefill time, in milliseconds.
    pub prefill_ms: f64,
    /// Tokens found in kept state instead of prefill.
    pub reused_tokens: u64,
    pub tokens_per_s: f64,
    /// The speed is estimated: a server wrote the answer and did not report its number of tokens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// From Enter to the first token, in milliseconds.
    pub ttft_ms: f64,
    pub thought_ms: f64,
    pub thought_tokens: u64,
    pub document: Option<DocumentInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked: Option<Sources>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotes: Vec<Quote>,
    /// The message does not match its checksum: its text begins with a line about the damage.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub id: MessageId,
    /// `None` for a root.
    pub parent: Option<MessageId>,
    pub role: Role,
    /// The text that is shown and rendered by the template. For a document, the document's text.
    pub text: String,
    /// Thoughts of an answer, without their tags. Empty if none.
    pub thinking: String,
    /// Milliseconds since the Unix epoch. Never used for ordering.
    pub created_ms: i64,
    pub meta: MessageMeta,
}

impl Message {
    /// The text without the line that marks a damaged message.
    pub fn known_text(&self) -> &str {
        if self.meta.damaged { self.text.split_once('\n').map_or("", |(_, rest)| rest) } else { &self.text }
    }

    /// Whether it is an unfinished answer: it is being written, or its process was killed. An imported answer of
    /// another program names no model and has no end.
    pub fn is_open(&self) -> bool {
        self.role == Role::Assistant && self.meta.model.is_some() && self.meta.finish.is_none()
    }

    /// Whether `/undo` returns to the state before it.
    pub fn begins_exchange(&self) -> bool {
        matches!(self.role, Role::User | Role::Document)
    }

    pub fn is_half_read(&self) -> bool {
        self.meta.document.as_ref().is_some_and(|d| !d.complete && d.is_whole(&self.text))
    }

    /// Why the answer is cut off, in words; `None` if it is complete.
    pub fn cut_off(&self) -> Option<&'static str> {
        match self.meta.finish {
            _ if self.is_open() => Some("not written to its end"),
            finish => finish.and_then(Finish::cut_off),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_roles_are_those_of_files_and_parse() {
        for role in Role::ALL {
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
            assert_eq!(Role::named(role.name()), Some(role));
        }
        assert_eq!(Role::named("tool"), None);
    }
}
