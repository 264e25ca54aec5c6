//! Turns of a conversation, whatever API they came by, and the calls of functions in them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::text::ChatRole;

/// A call of a function that the model made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    pub id: String,
    pub name: String,
    /// An object; the text as it is where it is none.
    pub arguments: Value,
    /// The same as a model wrote it, if one did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    written: String,
}

impl Call {
    /// One that a client tells of.
    pub(super) fn new(id: String, name: String, arguments: Value) -> Call {
        Call { id, name, arguments, written: String::new() }
    }

    /// One that a model wrote.
    pub(super) fn written(id: String, name: String, written: String) -> Call {
        let arguments = serde_json::from_str(&written).unwrap_or_else(|_| Value::String(written.clone()));
        Call { id, name, arguments, written }
    }

    /// Its arguments as text.
    pub(super) fn text(&self) -> String {
        match (self.written.is_empty(), self.is_cut()) {
            (true, false) => self.arguments.to_string(),
            (false, _) | (true, true) => self.written.clone(),
        }
    }

    /// It broke off before its arguments were complete.
    pub(super) fn is_cut(&self) -> bool {
        self.arguments.as_str().is_some_and(|text| text == self.written)
    }
}

/// Arguments of a call: JSON in a string. What is no JSON was written by a model and is handed back as it was.
pub(super) fn arguments(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    pub role: ChatRole,
    pub text: String,
    /// Thoughts before the text, of an answer.
    #[serde(default)]
    pub thinking: String,
    /// Calls after it.
    #[serde(default)]
    pub calls: Vec<Call>,
    /// Which call this is the result of.
    #[serde(default)]
    pub call_id: Option<String>,
    /// Documents of the library that are put in front of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

impl Turn {
    pub(super) fn new(role: ChatRole, text: impl Into<String>) -> Turn {
        Turn { role, text: text.into(), thinking: String::new(), calls: Vec::new(), call_id: None, files: Vec::new() }
    }
}
