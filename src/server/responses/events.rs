//! A response as a stream of events.

use serde_json::{Value, json};

use crate::core::transcript::Finish;
use crate::server::collected::{BROKE_OFF, Choice, Item};
use crate::server::notice::{Notice, Usage};
use crate::server::refusal::Refusal;
use crate::server::response::{Sent, Status, call_item, call_item_id, message, part, thought, thoughts};
use crate::server::stream::{Form, data_done, event};
use crate::server::turns::Call;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Thoughts,
    Text,
}

pub(super) struct Events {
    sent: Sent,
    choice: Choice,
    usage: Usage,
    number: u64,
    /// The incomplete last item, if it is thoughts or a text.
    open: Option<Open>,
    call_id: String,
    custom: bool,
}

impl Events {
    pub(super) fn new(sent: Sent) -> Events {
        let (choice, usage) = (Choice::default(), Usage::default());
        Events { sent, choice, usage, number: 0, open: None, call_id: String::new(), custom: false }
    }

    fn report(&mut self, out: &mut String, name: &str, mut value: Value) {
        value["sequence_number"] = self.number.into();
        self.number += 1;
        event(out, name, value);
    }

    /// The last item, after its number.
    fn last(&self, status: &str) -> (usize, Value) {
        let at = self.choice.items.len().saturating_sub(1);
        (at, self.sent.item(&self.choice.items, at, status).unwrap_or_default())
    }

    fn begin(&mut self, open: Open, out: &mut String) {
        self.open = Some(open);
        let (index, item) = self.last("in_progress");
        let id = item["id"].as_str().unwrap_or_default();
        let (begun, part) = match open {
            Open::Thoughts => (thoughts(id, None, "in_progress"), thought("")),
            Open::Text => (message(id, None, "in_progress"), part("")),
        };
        let added = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
        self.report(out, "response.output_item.added", json!({ "output_index": index, "item": begun }));
        self.report(out, "response.content_part.added", added);
    }

    fn end(&mut self, status: &str, out: &mut String) {
        let Some(open) = self.open.take() else { return };
        let (index, item) = self.last(status);
        let part = item["content"][0].clone();
        let place = json!({ "item_id": item["id"], "output_index": index, "content_index": 0 });
        let with = |name: &str, value: Value| {
            let mut place = place.clone();
            place[name] = value;
            place
        };
        let mut done = with("text", part["text"].clone());
        let name = match open {
            Open::Thoughts => "response.reasoning_text.done",
            Open::Text => {
                done["logprobs"] = json!([]);
                "response.output_text.done"
            }
        };
        self.report(out, name, done);
        self.report(out, "response.content_part.done", with("part", part));
        self.report(out, "response.output_item.done", json!({ "output_index": index, "item": item }));
    }

    fn text(&mut self, open: Open, text: &str, out: &mut String) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(open) {
            self.end("completed", out);
        }
        match open {
            Open::Thoughts => self.choice.add(text, ""),
            Open::Text => self.choice.add("", text),
        }
        if self.open.is_none() {
            self.begin(open, out);
        }
        let (index, item) = self.last("in_progress");
        let mut delta = json!({ "item_id": item["id"], "output_index": index, "content_index": 0, "delta": text });
        let name = match open {
            Open::Thoughts => "response.reasoning_text.delta",
            Open::Text => {
                delta["logprobs"] = json!([]);
                "response.output_text.delta"
            }
        };
        self.report(out, name, delta);
    }

    fn calling(&mut self, id: &str, name: &str, out: &mut String) {
        self.end("completed", out);
        id.clone_into(&mut self.call_id);
        self.custom = self.sent.tools.named(name).custom;
        let call = Call::new(id.to_owned(), name.to_owned(), json!({}));
        let mut item = call_item(&call, &self.sent.tools, "in_progress");
        item[if self.custom { "input" } else { "arguments" }] = "".into();
        let index = self.choice.items.len();
        self.report(out, "response.output_item.added", json!({ "output_index": index, "item": item }));
    }

    fn called(&mut self, call: &Call, out: &mut String) {
        let index = self.choice.items.len();
        let item = call_item(call, &self.sent.tools, "completed");
        let place = |field: &str, value: &Value| json!({ "item_id": item["id"], "output_index": index, field: value });
        if self.custom {
            // The text of a custom call is inside its arguments, so it is sent once they are complete.
            self.report(out, "response.custom_tool_call_input.delta", place("delta", &item["input"]));
            self.report(out, "response.custom_tool_call_input.done", place("input", &item["input"]));
        } else {
            let mut done = place("arguments", &item["arguments"]);
            done["name"] = item["name"].clone();
            self.report(out, "response.function_call_arguments.done", done);
        }
        self.report(out, "response.output_item.done", json!({ "output_index": index, "item": item }));
        self.choice.items.push(Item::Call(call.clone()));
    }

    fn ended(&mut self, finish: Finish, out: &mut String) {
        let status = Status::of(finish, &self.choice);
        if self.choice.items.iter().all(|item| matches!(item, Item::Thoughts(_))) {
            self.end("completed", out);
            self.choice.items.push(Item::Text(String::new()));
            self.begin(Open::Text, out);
        }
        self.end(if status == Status::Completed { "completed" } else { "incomplete" }, out);
        let response = self.sent.response(status, Some(&self.choice), Some(&self.usage));
        self.report(out, &format!("response.{}", status.word()), json!({ "response": response }));
        data_done(out);
    }
}

impl Form for Events {
    fn notice(&mut self, notice: &Notice, out: &mut String) -> bool {
        self.usage.take(notice);
        match notice {
            Notice::Begun { .. } => {
                let begun = self.sent.response(Status::InProgress, None, None);
                self.report(out, "response.created", json!({ "response": begun }));
                self.report(out, "response.in_progress", json!({ "response": begun }));
            }
            Notice::Text { thinking, answer, .. } => {
                self.text(Open::Thoughts, thinking, out);
                self.text(Open::Text, answer, out);
            }
            Notice::Calling { id, name, .. } => self.calling(id, name, out),
            Notice::Arguments { .. } if self.custom => {}
            Notice::Arguments { more, .. } => {
                let (index, id) = (self.choice.items.len(), call_item_id(&self.call_id));
                let delta = json!({ "item_id": id, "output_index": index, "delta": more });
                self.report(out, "response.function_call_arguments.delta", delta);
            }
            Notice::Call { call, .. } => self.called(call, out),
            Notice::Ended { whole, .. } if whole.finish == Finish::Stopped => {
                self.failed(&Refusal::new(503, "shutting_down", BROKE_OFF), out);
                return true;
            }
            Notice::Ended { whole, .. } => {
                self.ended(whole.finish, out);
                return true;
            }
            Notice::Scored { .. } | Notice::Reading { .. } | Notice::Failed(_) => {}
        }
        false
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        self.end("incomplete", out);
        let choice = Some(&self.choice).filter(|choice| !choice.items.is_empty());
        let mut response = self.sent.response(Status::Failed, choice, None);
        response["error"] = json!({ "code": refusal.code, "message": refusal.message });
        self.report(out, "response.failed", json!({ "response": response }));
        data_done(out);
    }
}
