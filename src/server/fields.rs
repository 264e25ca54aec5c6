//! Reads JSON objects field by field. Each error names the field. Unread fields are left out and named
//! ([`super::request`]), or refused if `serve.unknown_fields` says so.

use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Refusal, Result, leave_out};
use crate::text::near::nearest;

/// Fields of any API that end, limit or shape an answer, or draw it: an API that does not read one refuses it.
const PROMISES: [&str; 5] = [
    "stop stop_sequence stop_sequences stop_words stop_token stop_regex stopping_strings bad_words allowed_token_ids",
    "max_tokens max_completion_tokens max_output_tokens max_new_tokens num_predict max_length min_length ignore_eos",
    "response_format output_format format output_config structured_outputs json_schema json_mode response_schema",
    "guided_json guided_regex guided_choice guided_grammar regex grammar ebnf random_seed t_max_predict_ms",
    "text.format options.num_predict options.stop options.seed",
];

#[derive(Debug, Default)]
pub(super) struct Fields {
    map: Map<String, Value>,
    /// The object's place: `messages[2].`; empty for the body.
    at: String,
    /// Names of the fields that the reader knows, for suggestions in errors.
    known: Vec<&'static str>,
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

impl Fields {
    /// `at`: the place of an object; empty for the body.
    pub(super) fn of(value: Value, at: &str) -> Result<Fields> {
        match value {
            Value::Object(map) => {
                let at = if at.is_empty() { String::new() } else { format!("{at}.") };
                Ok(Fields { map, at, known: Vec::new() })
            }
            other if at.is_empty() => {
                let message = format!("the body must be a JSON object, it is {}", kind(&other));
                Err(Refusal::new(400, "invalid_json", message))
            }
            other => Err(Refusal::field(at, format!("{at} must be an object, it is {}", kind(&other)))),
        }
    }

    pub(super) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.at)
    }

    pub(super) fn wrong(&self, field: &str, what: impl std::fmt::Display) -> Refusal {
        let name = self.name(field);
        Refusal::field(&name, format!("{name} {what}"))
    }

    pub(super) fn take(&mut self, field: &'static str) -> Option<Value> {
        self.known.push(field);
        self.map.remove(field).filter(|v| !v.is_null())
    }

    /// Copies a value for a later reader.
    pub(super) fn peek(&self, field: &str) -> Option<Value> {
        self.map.get(field).filter(|v| !v.is_null()).cloned()
    }

    pub(super) fn has(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(|v| !v.is_null())
    }

    pub(super) fn need(&mut self, field: &'static str) -> Result<Value> {
        self.take(field).ok_or_else(|| self.missing(field))
    }

    /// Refuses a request without a field that a later reader takes.
    pub(super) fn require(&self, field: &str) -> Result<()> {
        if self.has(field) { Ok(()) } else { Err(self.missing(field)) }
    }

    fn missing(&self, field: &str) -> Refusal {
        Refusal { code: "missing_required_parameter", ..self.wrong(field, "is missing") }
    }

    pub(super) fn typed<T: DeserializeOwned>(&mut self, field: &'static str, what: &str) -> Result<Option<T>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let kind = kind(&value);
        let read = serde_json::from_value(value).map(Some);
        read.map_err(|_| self.wrong(field, format!("must be {what}, it is {kind}")))
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<Option<String>> {
        self.typed(field, "a string")
    }

    pub(super) fn truth(&mut self, field: &'static str) -> Result<Option<bool>> {
        self.typed(field, "true or false")
    }

    /// A switch that is off unless it is sent.
    pub(super) fn on(&mut self, field: &'static str) -> Result<bool> {
        Ok(self.truth(field)?.unwrap_or(false))
    }

    pub(super) fn list(&mut self, field: &'static str) -> Result<Option<Vec<Value>>> {
        self.typed(field, "an array")
    }

    pub(super) fn need_text(&mut self, field: &'static str) -> Result<String> {
        self.text(field)?.ok_or_else(|| self.missing(field))
    }

    pub(super) fn need_object(&mut self, field: &'static str) -> Result<Fields> {
        self.object(field)?.ok_or_else(|| self.missing(field))
    }

    pub(super) fn objects(&mut self, field: &'static str) -> Result<Vec<Fields>> {
        let list = self.list(field)?.unwrap_or_default();
        self.objects_of(field, list)
    }

    pub(super) fn objects_of(&self, field: &str, list: Vec<Value>) -> Result<Vec<Fields>> {
        let one = |(i, value)| Fields::of(value, &format!("{}[{i}]", self.name(field)));
        list.into_iter().enumerate().map(one).collect()
    }

    pub(super) fn whole<T: TryFrom<u64>>(
        &mut self,
        field: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<T>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let wrong = || format!("must be a whole number from {} to {}, it is {value}", range.start(), range.end());
        let number = value.as_u64().filter(|n| range.contains(n)).and_then(|n| T::try_from(n).ok());
        number.map(Some).ok_or_else(|| self.wrong(field, wrong()))
    }

    /// Reads a number, if it is sent, in place of a default.
    pub(super) fn set(&mut self, field: &'static str, range: RangeInclusive<f64>, to: &mut f32) -> Result<()> {
        let Some(value) = self.take(field) else { return Ok(()) };
        let wrong = || format!("must be a number from {} to {}, it is {value}", range.start(), range.end());
        let number = value.as_f64().filter(|n| range.contains(n));
        *to = number.ok_or_else(|| self.wrong(field, wrong()))? as f32;
        Ok(())
    }

    /// Takes -1, which means "no limit" in other servers of open models.
    pub(super) fn is_unlimited(&mut self, field: &'static str) -> bool {
        self.map.get(field).is_some_and(|value| value.as_i64() == Some(-1)) && self.take(field).is_some()
    }

    pub(super) fn object(&mut self, field: &'static str) -> Result<Option<Fields>> {
        let name = self.name(field);
        self.take(field).map(|value| Fields::of(value, &name)).transpose()
    }

    /// The object in a field, which must then be the only one; this object if the field is missing.
    pub(super) fn below(mut self, field: &'static str) -> Result<Fields> {
        match self.object(field)? {
            Some(below) => self.done().map(|()| below),
            None => Ok(self),
        }
    }

    /// Accepts fields that have no effect here.
    pub(super) fn ignore(&mut self, fields: &[&'static str]) {
        fields.iter().for_each(|field| drop(self.take(field)));
    }

    /// Refuses an unsupported field that would change the answer, unless its value asks for the default.
    pub(super) fn refuse(&mut self, field: &'static str, unless: impl Fn(&Value) -> bool) -> Result<()> {
        self.refuse_because(field, "is not supported by this server", unless)
    }

    pub(super) fn refuse_because(
        &mut self,
        field: &'static str,
        why: impl std::fmt::Display,
        unless: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        match self.take(field) {
            Some(value) if !unless(&value) => Err(self.wrong(field, why).unsupported()),
            _ => Ok(()),
        }
    }

    /// Like [`Fields::done`], for a request that is answered.
    pub(super) fn done_for_answer(self) -> Result<()> {
        let asks =
            |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && *value != "" && *value != json!([]);
        let sent = |field: &str| match field.split_once('.') {
            Some((outer, inner)) => self.map.get(outer).and_then(|outer| outer.get(inner)),
            None => self.map.get(field),
        };
        match PROMISES.iter().flat_map(|row| row.split(' ')).find(|field| sent(field).is_some_and(asks)) {
            Some(field) => Err(self.wrong(field, "changes an answer, and is not a field of this API").unsupported()),
            None => self.done(),
        }
    }

    /// Leaves out the unread fields, or refuses them; `null` counts as missing.
    pub(super) fn done(self) -> Result<()> {
        let mut unread = self.map.iter().filter(|(_, value)| !value.is_null());
        let Some((field, _)) = unread.find(|(field, _)| !leave_out(&self.name(field))) else { return Ok(()) };
        let near = nearest(field, self.known.iter().copied());
        let near = near.map_or(String::new(), |n| format!(". Did you mean {}{n}?", self.at));
        Err(Refusal { code: "unknown_parameter", ..self.wrong(field, format!("is not known here{near}")) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_field_and_unknown_ones_the_nearest() {
        let mut fields = Fields::of(json!({ "temperature": 3, "seed": null, "max_token": 5 }), "").unwrap();
        let wrong = fields.set("temperature", 0.0..=2.0, &mut 0.0).unwrap_err();
        assert_eq!(wrong.param.as_deref(), Some("temperature"));
        assert_eq!(wrong.message, "temperature must be a number from 0 to 2, it is 3");
        assert_eq!(fields.whole::<u64>("seed", 0..=9), Ok(None));
        assert_eq!(fields.whole::<u64>("max_tokens", 1..=9), Ok(None));
        let unknown = fields.done().unwrap_err();
        assert_eq!(unknown.message, "max_token is not known here. Did you mean max_tokens?");
        // Clients return received objects with every field of their own version.
        assert_eq!(Fields::of(json!({ "functions": null, "caller": null }), "").unwrap().done(), Ok(()));
        let known = Fields::of(json!({ "functions": null, "caller": false }), "").unwrap();
        assert_eq!(known.done().unwrap_err().param.as_deref(), Some("caller"));
        assert_eq!(Fields::of(json!([]), "").unwrap_err().status, 400);
        let mut inner = Fields::of(json!({ "text": 1 }), "messages[0]").unwrap();
        assert_eq!(inner.text("text").unwrap_err().param.as_deref(), Some("messages[0].text"));
    }
}
