//! A response, as an object or as a stream of events, with every field that its schema requires, whatever the request
//! contained: what happened, and what it repeats of the request.

use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use super::stream::{data_done, event};
use super::{Call, Choice, Collected, Event, Fields, Form, Item, Refusal, Tools, Usage, custom_input, now_s};
use crate::core::transcript::Finish;
use crate::engine::protocol::Sampling;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
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

    pub(super) fn last_item(self) -> &'static str {
        if self == Status::Completed { "completed" } else { "incomplete" }
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
    /// Part of the ids of thoughts and messages.
    pub unique: String,
    pub tools: Arc<Tools>,
}

/// The fields that a response repeats as they were sent; the others are those of [`repeated`].
pub(super) fn given(fields: &Fields) -> Value {
    let mut given = json!({
        "instructions": null,
        "max_tool_calls": null,
        "metadata": {},
        "previous_response_id": null,
        "prompt_cache_key": null,
        "reasoning": { "effort": null, "summary": null },
        "safety_identifier": null,
        "store": true,
        "text": { "format": { "type": "text" } },
        "truncation": "disabled",
        "user": null,
    });
    for (name, value) in given.as_object_mut().into_iter().flatten() {
        let Some(sent) = fields.peek(name) else { continue };
        match name.as_str() {
            "reasoning" => value["effort"] = sent["effort"].clone(),
            "text" => {
                if !sent["format"].is_null() {
                    value["format"] = text_format(&sent["format"]);
                }
                if !sent["verbosity"].is_null() {
                    value["verbosity"] = sent["verbosity"].clone();
                }
            }
            _ => *value = sent,
        }
    }
    given
}

fn text_format(format: &Value) -> Value {
    if format["type"] != "json_schema" {
        return json!({ "type": format["type"] });
    }
    let of = format.get("json_schema").unwrap_or(format);
    json!({
        "type": "json_schema",
        "name": of.get("name").cloned().unwrap_or_else(|| "answer".into()),
        "description": of.get("description"),
        "schema": of.get("schema"),
        "strict": of.get("strict").is_some_and(|strict| strict == true),
    })
}

/// All fields of a request that every object of its response repeats.
pub(super) fn repeated(mut given: Value, most: Option<u64>, sampling: &Sampling, tools: &Tools) -> Value {
    (given["tools"], given["tool_choice"]) = tools.shown();
    given["max_output_tokens"] = most.into();
    given["parallel_tool_calls"] = (!tools.one_call).into();
    given["top_logprobs"] = 0.into();
    given["temperature"] = number(sampling.temperature);
    given["top_p"] = number(sampling.top_p);
    given["presence_penalty"] = number(sampling.presence_penalty);
    given["frequency_penalty"] = number(sampling.frequency_penalty);
    given
}

impl Sent {
    fn item(&self, items: &[Item], at: usize, status: &str) -> Value {
        let same = |other: &&Item| std::mem::discriminant(*other) == std::mem::discriminant(&items[at]);
        let nth = items[..at].iter().filter(same).count();
        let again = if nth == 0 { String::new() } else { format!("_{nth}") };
        let id = |of: &str| format!("{of}_{}{again}", self.unique);
        match &items[at] {
            Item::Thoughts(text) => {
                let content = json!([{ "type": "reasoning_text", "text": text }]);
                json!({ "type": "reasoning", "id": id("rs"), "status": status, "summary": [], "content": content })
            }
            Item::Text(text) => {
                let content = json!([{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }]);
                json!({ "type": "message", "id": id("msg"), "status": status, "role": "assistant", "content": content })
            }
            Item::Call(call) => call_item(call, &self.tools, status),
        }
    }

    /// All items of a choice; at least a message.
    fn output(&self, choice: &Choice, status: Status) -> Vec<Value> {
        let empty = [Item::Text(String::new())];
        let only_thoughts = choice.items.iter().all(|item| matches!(item, Item::Thoughts(_)));
        let items: Vec<Item> = choice.items.iter().chain(empty.iter().filter(|_| only_thoughts)).cloned().collect();
        let word = |at: usize| if at + 1 == items.len() { status.last_item() } else { "completed" };
        (0..items.len()).map(|at| self.item(&items, at, word(at))).collect()
    }

    pub(super) fn response(&self, status: Status, choice: Option<&Choice>, usage: Option<&Usage>) -> Value {
        let output = choice.map(|choice| self.output(choice, status)).unwrap_or_default();
        let completed = (status == Status::Completed).then(|| *self.completed.get_or_init(now_s));
        let incomplete =
            if let Status::Incomplete(reason) = status { json!({ "reason": reason }) } else { Value::Null };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": completed,
            "status": status.word(),
            "background": false,
            "error": null,
            "incomplete_details": incomplete,
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

pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens, "cache_write_tokens": 0 },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.thought_tokens },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

fn call_item(call: &Call, tools: &Tools, status: &str) -> Value {
    let status = if call.is_cut() { "incomplete" } else { status };
    let mut item = match tools.is_custom(&call.name) {
        true => json!({ "type": "custom_tool_call", "input": custom_input(call) }),
        false => json!({ "type": "function_call", "arguments": call.text() }),
    };
    item["id"] = format!("fc_{}", call.id).into();
    item["call_id"] = call.id.as_str().into();
    item["name"] = call.name.as_str().into();
    item["status"] = status.into();
    if let Some((namespace, name)) = tools.listed(&call.name) {
        (item["namespace"], item["name"]) = (namespace.as_str().into(), name.as_str().into());
    }
    item
}

/// Keeps the decimal form of a 32-bit number: a plain cast to 64 bits adds digits.
fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

pub(super) struct Events {
    sent: Sent,
    number: u64,
    /// Index and id of the last item.
    at: usize,
    id: Value,
    /// It is thoughts or a text, and incomplete.
    open: bool,
}

impl Events {
    pub(super) fn new(sent: Sent) -> Events {
        Events { sent, number: 0, at: 0, id: Value::Null, open: false }
    }

    fn report(&mut self, out: &mut String, name: &str, mut value: Value) {
        value["sequence_number"] = self.number.into();
        self.number += 1;
        event(out, name, value);
    }

    fn report_item(&mut self, out: &mut String, what: &str, item: Value) {
        self.id = item["id"].clone();
        self.report(out, &format!("response.output_item.{what}"), json!({ "output_index": self.at, "item": item }));
    }

    /// Writes an event about the last item.
    fn report_of_item(&mut self, out: &mut String, name: &str, mut value: Value) {
        (value["item_id"], value["output_index"]) = (self.id.clone(), self.at.into());
        self.report(out, &format!("response.{name}"), value);
    }

    /// Writes an event about its one part.
    fn report_part(&mut self, out: &mut String, name: &str, field: &str, value: Value) {
        let mut part = json!({ "content_index": 0, field: value });
        if name.starts_with("output_text") {
            part["logprobs"] = json!([]);
        }
        self.report_of_item(out, name, part);
    }

    /// The last item, thoughts or a text, begins.
    fn begin(&mut self, choice: &Choice, out: &mut String) {
        self.end(choice, "completed", out);
        self.at = choice.items.len() - 1;
        self.open = true;
        let mut item = self.sent.item(&choice.items, self.at, "in_progress");
        let mut part = item["content"][0].take();
        item["content"] = json!([]);
        part["text"] = "".into();
        self.report_item(out, "added", item);
        self.report_part(out, "content_part.added", "part", part);
    }

    fn end(&mut self, choice: &Choice, status: &str, out: &mut String) {
        if std::mem::take(&mut self.open) {
            let item = self.sent.item(&choice.items, self.at, status);
            let part = &item["content"][0];
            let done = if part["type"] == "output_text" { "output_text.done" } else { "reasoning_text.done" };
            self.report_part(out, done, "text", part["text"].clone());
            self.report_part(out, "content_part.done", "part", part.clone());
            self.report_item(out, "done", item);
        }
    }

    fn text(&mut self, choice: &Choice, name: &str, text: &str, out: &mut String) {
        if !self.open || self.at + 1 < choice.items.len() {
            self.begin(choice, out);
        }
        self.report_part(out, name, "delta", text.into());
    }

    fn calling(&mut self, choice: &Choice, id: &str, name: &str, out: &mut String) {
        self.end(choice, "completed", out);
        self.at = choice.items.len();
        let call = Call::new(id.to_owned(), name.to_owned(), json!({}));
        let mut item = call_item(&call, &self.sent.tools, "in_progress");
        item[if self.sent.tools.is_custom(name) { "input" } else { "arguments" }] = "".into();
        self.report_item(out, "added", item);
    }

    fn called(&mut self, call: &Call, out: &mut String) {
        let item = call_item(call, &self.sent.tools, "completed");
        if self.sent.tools.is_custom(&call.name) {
            // The text of a custom call is inside its arguments, so it is sent once they are complete.
            self.report_of_item(out, "custom_tool_call_input.delta", json!({ "delta": item["input"] }));
            self.report_of_item(out, "custom_tool_call_input.done", json!({ "input": item["input"] }));
        } else {
            let done = json!({ "name": item["name"], "arguments": item["arguments"] });
            self.report_of_item(out, "function_call_arguments.done", done);
        }
        self.report_item(out, "done", item);
    }
}

impl Form for Events {
    fn whole(&mut self, all: Collected) -> Value {
        let choice = all.choices.into_iter().next().unwrap_or_default();
        let finish = choice.whole.as_ref().map_or(Finish::Failed, |w| w.finish);
        self.sent.response(Status::of(finish, &choice), Some(&choice), Some(&all.usage))
    }

    fn event(&mut self, _: usize, notice: &Event, all: &mut Collected, out: &mut String) {
        let usage = all.usage;
        let Some(choice) = all.choices.first_mut() else { return };
        match notice {
            Event::Begun(_) => {
                let begun = self.sent.response(Status::InProgress, None, None);
                self.report(out, "response.created", json!({ "response": begun }));
                self.report(out, "response.in_progress", json!({ "response": begun }));
            }
            Event::Thoughts(text) => self.text(choice, "reasoning_text.delta", text, out),
            Event::Text(text, _) => self.text(choice, "output_text.delta", text, out),
            Event::Calling { id, name } => self.calling(choice, id, name, out),
            Event::Arguments(_) if self.sent.tools.is_custom(&choice.calling) => {}
            Event::Arguments(more) => {
                self.report_of_item(out, "function_call_arguments.delta", json!({ "delta": more }));
            }
            Event::Call(call) => self.called(call, out),
            Event::Ended(whole) => {
                let status = Status::of(whole.finish, choice);
                if choice.items.iter().all(|item| matches!(item, Item::Thoughts(_))) {
                    choice.items.push(Item::Text(String::new()));
                    self.begin(choice, out);
                }
                self.end(choice, status.last_item(), out);
                let response = self.sent.response(status, Some(choice), Some(&usage));
                self.report(out, &format!("response.{}", status.word()), json!({ "response": response }));
                data_done(out);
            }
        }
    }

    fn failed(&mut self, refusal: &Refusal, all: &Collected, out: &mut String) {
        let choice = all.choices.first().filter(|choice| !choice.items.is_empty());
        if let Some(choice) = choice {
            self.end(choice, "incomplete", out);
        }
        let mut response = self.sent.response(Status::Failed, choice, None);
        response["error"] = json!({ "code": "server_error", "message": refusal.message });
        self.report(out, "response.failed", json!({ "response": response }));
        data_done(out);
    }
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
            unique: "1".into(),
            tools: Arc::default(),
        };
        let mut choice = Choice::default();
        choice.items.extend([Item::Thoughts("Hm.".into()), Item::Text("One.".into())]);
        choice.items.push(Item::Call(Call::written("c".into(), "look".into(), "{}".into())));
        choice.items.push(Item::Text("Two.".into()));
        let response = sent.response(Status::of(Finish::Length, &choice), Some(&choice), None);
        let shown = |field: &str| -> Vec<Value> {
            response["output"].as_array().unwrap().iter().map(|item| item[field].clone()).collect()
        };
        assert_eq!(shown("type"), ["reasoning", "message", "function_call", "message"]);
        assert_eq!(shown("id"), ["rs_1", "msg_1", "fc_c", "msg_1_1"]);
        assert_eq!(shown("status"), ["completed", "completed", "completed", "incomplete"]);
        assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
        assert!(response["completed_at"].is_null());
        choice.items.push(Item::Call(Call::written("d".into(), "look".into(), "{\"a\": ".into())));
        let cut = sent.response(Status::of(Finish::Stop, &choice), Some(&choice), None);
        assert_eq!((&cut["status"], &cut["output"][4]["status"]), (&json!("incomplete"), &json!("incomplete")));
        assert_eq!(cut["output"][4]["arguments"], "{\"a\": ");
        // Thoughts without an answer are incomplete.
        let thinking = Choice { items: vec![Item::Thoughts("Hm.".into())], ..Choice::default() };
        let done = sent.response(Status::Completed, Some(&thinking), None);
        assert_eq!((done["output"].as_array().unwrap().len(), &done["output"][1]["type"]), (2, &json!("message")));
        assert_eq!(sent.response(Status::Completed, None, None)["completed_at"], done["completed_at"]);
    }

    #[test]
    fn a_failed_response_has_a_published_code() {
        let sent = Sent {
            id: "resp_1".into(),
            created: 7,
            completed: Arc::default(),
            model: "m".into(),
            repeated: json!({}),
            unique: "1".into(),
            tools: Arc::default(),
        };
        let mut out = String::new();
        Events::new(sent).failed(&Refusal::broke_off(), &Collected::new(1), &mut out);
        assert!(out.contains("\"code\":\"server_error\""), "{out}");
    }

    #[test]
    fn numbers_keep_their_decimal_form() {
        assert_eq!((number(0.7), number(1.0), number(0.95)), (json!(0.7), json!(1.0), json!(0.95)));
    }
}
