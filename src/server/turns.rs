//! Turns of a conversation, from any API, and the calls of functions in them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::text::ChatRole;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    pub id: String,
    pub name: String,
    /// An object; a string with the unchanged text if it is no object.
    pub arguments: Value,
    /// The model's own text of the arguments, if the model made the call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    written: String,
}

impl Call {
    /// A call from a client's request.
    pub(super) fn new(id: String, name: String, arguments: Value) -> Call {
        Call { id, name, arguments, written: String::new() }
    }

    /// A call that the model made.
    pub(super) fn written(id: String, name: String, written: String) -> Call {
        Call { id, name, arguments: arguments(&written), written }
    }

    pub(super) fn text(&self) -> String {
        match (self.written.is_empty(), self.is_cut()) {
            (true, false) => self.arguments.to_string(),
            (false, _) | (true, true) => self.written.clone(),
        }
    }

    /// The call broke off before its arguments were complete.
    pub(super) fn is_cut(&self) -> bool {
        self.arguments.as_str().is_some_and(|text| text == self.written)
    }
}

/// Arguments of a call: JSON in a string. Invalid JSON was written by a model and stays unchanged.
pub(super) fn arguments(text: &str) -> Value {
    let Ok(mut value) = serde_json::from_str(text) else { return Value::String(text.to_owned()) };
    whole_zeros(&mut value);
    value
}

/// `-0` is a whole number in JSON, but is read as the float `-0.0`, which clients refuse for an integer.
fn whole_zeros(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_f64() == Some(0.0) => *value = 0.into(),
        Value::Array(list) => list.iter_mut().for_each(whole_zeros),
        Value::Object(map) => map.values_mut().for_each(whole_zeros),
        _ => {}
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    pub role: ChatRole,
    pub text: String,
    #[serde(default)]
    pub thinking: String,
    #[serde(default)]
    pub calls: Vec<Call>,
    /// The call that this turn is the result of.
    #[serde(default)]
    pub call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

impl Turn {
    pub(super) fn new(role: ChatRole, text: impl Into<String>) -> Turn {
        Turn { role, text: text.into(), thinking: String::new(), calls: Vec::new(), call_id: None, files: Vec::new() }
    }
}
