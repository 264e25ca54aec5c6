//! What a template is given: messages, and what is rendered around them.

use serde::{Deserialize, Serialize};

use crate::runtime::protocol::ThinkMode;
use crate::text::thoughts;

/// Who speaks, in the template's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    /// The system text.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// One message as the template sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: ChatRole,
    /// The text. For an answer: as generated, with its `<think>` block, so that the template decides what stays of it.
    pub content: String,
}

impl ChatMessage {
    /// A message.
    pub fn new(role: ChatRole, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role, content: content.into() }
    }

    /// An answer put together from the parts that a transcript keeps.
    pub fn answer(thinking: &str, text: &str) -> ChatMessage {
        if thinking.is_empty() {
            ChatMessage::new(ChatRole::Assistant, text)
        } else {
            ChatMessage::new(ChatRole::Assistant, thoughts::whole(thinking, text))
        }
    }

    /// How the turn of a document begins, and how it ends.
    pub(in crate::text) const DOCUMENT: [&str; 2] = ["<document name=\"", "</document>"];

    /// The two turns that put a document into the context (docs/architecture.md §5): the document, and the answer that it was read.
    pub fn document(name: &str, text: &str) -> [ChatMessage; 2] {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let [opens, closes] = ChatMessage::DOCUMENT;
        [
            ChatMessage::new(ChatRole::User, format!("{opens}{name}\">\n{text}{end}{closes}")),
            ChatMessage::new(ChatRole::Assistant, format!("I have read {name}. What would you like to know?")),
        ]
    }
}

/// What is rendered around the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderOptions {
    /// End with the opening of the model's turn.
    pub add_generation_prompt: bool,
    /// Sets `enable_thinking`; `Auto` leaves it undefined.
    pub thinking: ThinkMode,
    /// Function descriptions, in the OpenAI form; none if empty.
    pub tools: Vec<serde_json::Value>,
}

impl RenderOptions {
    /// A prompt that the model shall answer.
    pub fn prompt(thinking: ThinkMode) -> RenderOptions {
        RenderOptions { add_generation_prompt: true, thinking, tools: Vec::new() }
    }
}

/// Whether a template lets thinking be switched: whether the text that the model reads is another one then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThinkingSwitch {
    /// `enable_thinking` set changes it.
    pub on: bool,
    /// `enable_thinking` unset changes it.
    pub off: bool,
}

impl ThinkingSwitch {
    /// What to say where asking for `mode` cannot be done; `None` where it can, or is how it is anyway.
    pub fn refusal(self, mode: ThinkMode) -> Option<&'static str> {
        match mode {
            ThinkMode::Off if self.off => None,
            // A template that can only be told not to think has it on by itself.
            ThinkMode::On if self.on || self.off => None,
            ThinkMode::Off | ThinkMode::On => Some(
                "This model's template has no switch for thinking: it thinks when it likes. A budget ends thoughts: \
                 set thinking.budget, to 1024 say",
            ),
            ThinkMode::Auto => None,
        }
    }
}
