//! Input of a template: messages and options.

use serde::{Deserialize, Serialize};

use crate::runtime::protocol::ThinkMode;
use crate::text::thoughts;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    System,
    #[default]
    User,
    Assistant,
    Tool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    pub role: ChatRole,
    /// An answer has its `<think>` block, so that the template decides whether to keep it.
    pub content: String,
}

impl ChatMessage {
    pub fn new(role: ChatRole, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role, content: content.into() }
    }

    /// An answer from its parts in a transcript.
    pub fn answer(thinking: &str, text: &str) -> ChatMessage {
        let content = if thinking.is_empty() { text.to_owned() } else { thoughts::whole(thinking, text) };
        ChatMessage::new(ChatRole::Assistant, content)
    }

    pub(in crate::text) const DOCUMENT: [&str; 2] = ["<document name=\"", "</document>"];

    /// The two turns of a document: its text, and an answer that it was read.
    pub fn document(name: &str, text: &str) -> [ChatMessage; 2] {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let [opens, closes] = ChatMessage::DOCUMENT;
        [
            ChatMessage::new(ChatRole::User, format!("{opens}{name}\">\n{text}{end}{closes}")),
            ChatMessage::new(ChatRole::Assistant, format!("I have read {name}. What would you like to know?")),
        ]
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderOptions {
    /// Ends with the opening of the model's turn.
    pub add_generation_prompt: bool,
    /// Sets `enable_thinking`; `Auto` leaves it undefined.
    pub thinking: ThinkMode,
    /// Function descriptions, in the OpenAI form; none if empty.
    pub tools: Vec<serde_json::Value>,
}

impl RenderOptions {
    pub fn prompt(thinking: ThinkMode) -> RenderOptions {
        RenderOptions { add_generation_prompt: true, thinking, tools: Vec::new() }
    }
}

/// Whether `enable_thinking` changes the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThinkingSwitch {
    /// `enable_thinking` set changes it.
    pub on: bool,
    /// `enable_thinking` unset changes it.
    pub off: bool,
}

impl ThinkingSwitch {
    /// Why `mode` is not available; `None` if it is, or if it is the default.
    pub fn refusal(self, mode: ThinkMode) -> Option<&'static str> {
        match mode {
            ThinkMode::Off if self.off => None,
            // A template with a switch for off only thinks by default.
            ThinkMode::On if self.on || self.off => None,
            ThinkMode::Off | ThinkMode::On => Some(
                "This model's template cannot switch thinking on or off. To limit thoughts, set thinking.budget, for example \
                 to 1024",
            ),
            ThinkMode::Auto => None,
        }
    }
}
