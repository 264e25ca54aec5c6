//! A response as an object, with every field that its schema requires, whatever the request contained.

use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use super::collected::{Choice, Item};
use super::notice::Usage;
use super::now_s;
use super::tools::{Tools, custom_input};
use super::turns::Call;
use crate::core::transcript::Finish;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// The reason.
    Incomplete(&'static str),
    Failed,
}

impl Status {
    /// An answer is incomplete if its last call broke off, for any finish.
    pub(super) fn of(finish: Finish, choice: &Choice) -> Status {
        match finish {
            Finish::Length | Finish::Context => Status::Incomplete("max_output_tokens"),
            Finish::Stop | Finish::Repeats if choice.calls().any(Call::is_cut) => Status::Incomplete("stopped"),
            Finish::Stop | Finish::Repeats => Status::Completed,
            Finish::Stopped | Finish::Failed => Status::Failed,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete(_) => "incomplete",
            Status::Failed => "failed",
        }
    }

    /// Status of the last item; earlier items are complete.
    fn last_item(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete(_) | Status::Failed => "incomplete",
        }
    }
}

/// The form of a response, with the fields that repeat the request.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub id: String,
    pub created: u64,
    /// The time of completion, the same in every event.
    pub completed: Arc<OnceLock<u64>>,
    pub model: String,
    pub repeated: Value,
    pub thoughts_id: String,
    pub message_id: String,
    pub tools: Arc<Tools>,
}

impl Sent {
    pub(super) fn item(&self, items: &[Item], at: usize, status: &str) -> Option<Value> {
        let item = items.get(at)?;
        let same = |other: &&Item| std::mem::discriminant(*other) == std::mem::discriminant(item);
        let nth = items.get(..at)?.iter().filter(same).count();
        let id = |of: &str| if nth == 0 { of.to_owned() } else { format!("{of}_{nth}") };
        Some(match item {
            Item::Thoughts(text) => thoughts(&id(&self.thoughts_id), Some(text), status),
            Item::Text(text) => message(&id(&self.message_id), Some(text), status),
            Item::Call(call) => call_item(call, &self.tools, status),
        })
    }

    /// All items of a choice; at least a message.
    fn output(&self, choice: &Choice, status: Status) -> Vec<Value> {
        let empty = [Item::Text(String::new())];
        let items = match choice.items.iter().any(|item| !matches!(item, Item::Thoughts(_))) {
            true => choice.items.clone(),
            false => choice.items.iter().chain(&empty).cloned().collect(),
        };
        let last = items.len().saturating_sub(1);
        let word = |at: usize| if at == last { status.last_item() } else { "completed" };
        (0..items.len()).filter_map(|at| self.item(&items, at, word(at))).collect()
    }

    pub(super) fn response(&self, status: Status, choice: Option<&Choice>, usage: Option<&Usage>) -> Value {
        let output = choice.map(|choice| self.output(choice, status)).unwrap_or_default();
        let completed = (status == Status::Completed).then(|| *self.completed.get_or_init(now_s));
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": completed,
            "status": status.word(),
            "background": false,
            "error": null,
            "incomplete_details": match status {
                Status::Incomplete(reason) => json!({ "reason": reason }),
                Status::InProgress | Status::Completed | Status::Failed => Value::Null,
            },
            "model": self.model,
            "output": output,
            "service_tier": "default",
            "usage": usage.map(self::usage),
        });
        if let (Some(map), Some(repeated)) = (response.as_object_mut(), self.repeated.as_object()) {
            map.extend(repeated.clone());
        }
        response
    }
}

/// An item of thoughts; without a text it has just begun.
pub(super) fn thoughts(id: &str, text: Option<&str>, status: &str) -> Value {
    let content: Value = text.map(thought).into_iter().collect();
    json!({ "type": "reasoning", "id": id, "status": status, "summary": [], "content": content })
}

/// A message item; without a text it has just begun.
pub(super) fn message(id: &str, text: Option<&str>, status: &str) -> Value {
    let content: Value = text.map(part).into_iter().collect();
    json!({ "type": "message", "id": id, "status": status, "role": "assistant", "content": content })
}

pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens, "cache_write_tokens": 0 },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.thought_tokens },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

pub(super) fn call_item(call: &Call, tools: &Tools, status: &str) -> Value {
    let status = if call.is_cut() { "incomplete" } else { status };
    let named = tools.named(&call.name);
    let mut item = match named.custom {
        true => json!({ "type": "custom_tool_call", "input": custom_input(call) }),
        false => json!({ "type": "function_call", "arguments": call.text() }),
    };
    item["id"] = call_item_id(&call.id).into();
    item["call_id"] = call.id.as_str().into();
    item["name"] = named.name.into();
    item["status"] = status.into();
    if let Some(namespace) = named.namespace {
        item["namespace"] = namespace.into();
    }
    item
}

pub(super) fn call_item_id(call_id: &str) -> String {
    format!("fc_{call_id}")
}

pub(super) fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

pub(super) fn thought(text: &str) -> Value {
    json!({ "type": "reasoning_text", "text": text })
}

/// Keeps the decimal form of a 32-bit number: a plain cast to 64 bits adds digits.
pub(super) fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_order_and_ids_and_only_the_last_one_breaks_off() {
        let sent = Sent {
            id: "resp_1".into(),
            created: 7,
            completed: Arc::default(),
            model: "m".into(),
            repeated: json!({}),
            thoughts_id: "rs".into(),
            message_id: "msg".into(),
            tools: Arc::default(),
        };
        let mut choice = Choice::default();
        choice.add("Hm.", "One.");
        choice.items.push(Item::Call(Call::written("c".into(), "look".into(), "{}".into())));
        choice.add("", "Two.");
        let response = sent.response(Status::of(Finish::Length, &choice), Some(&choice), None);
        let shown = |field: &str| -> Vec<Value> {
            response["output"].as_array().unwrap().iter().map(|item| item[field].clone()).collect()
        };
        assert_eq!(shown("type"), ["reasoning", "message", "function_call", "message"]);
        assert_eq!(shown("id"), ["rs", "msg", "fc_c", "msg_1"]);
        assert_eq!(shown("status"), ["completed", "completed", "completed", "incomplete"]);
        assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
        assert!(response["completed_at"].is_null());
        choice.items.push(Item::Call(Call::written("d".into(), "look".into(), "{\"a\": ".into())));
        let cut = sent.response(Status::of(Finish::Stop, &choice), Some(&choice), None);
        assert_eq!((&cut["status"], &cut["output"][4]["status"]), (&json!("incomplete"), &json!("incomplete")));
        assert_eq!(cut["output"][4]["arguments"], "{\"a\": ");
        // Thoughts without an answer are incomplete.
        let mut thinking = Choice::default();
        thinking.add("Hm.", "");
        let done = sent.response(Status::Completed, Some(&thinking), None);
        assert_eq!((done["output"].as_array().unwrap().len(), &done["output"][1]["type"]), (2, &json!("message")));
        assert_eq!(sent.response(Status::Completed, None, None)["completed_at"], done["completed_at"]);
    }

    #[test]
    fn numbers_keep_their_decimal_form() {
        assert_eq!((number(0.7), number(1.0), number(0.95)), (json!(0.7), json!(1.0), json!(0.95)));
    }
}
