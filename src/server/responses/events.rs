//! A response as a stream of events.

use serde_json::{Value, json};

use super::sent::{Sent, function_call, part, status};
use crate::server::ask::Said;
use crate::server::refusal::Refusal;
use crate::server::reply::{self, Choice, Form, Usage, event};
use crate::transcript::Finish;

/// The stream of a response.
pub(super) struct Events {
    sent: Sent,
    choice: Choice,
    usage: Usage,
    number: u64,
    /// The output item that is open: of thoughts or of text.
    open: Option<bool>,
    items: u64,
}

impl Events {
    pub(super) fn new(sent: Sent) -> Events {
        Events { sent, choice: Choice::default(), usage: Usage::default(), number: 0, open: None, items: 0 }
    }

    fn tell(&mut self, out: &mut String, name: &str, mut value: Value) {
        value["sequence_number"] = self.number.into();
        self.number += 1;
        event(out, name, value);
    }

    fn begin(&mut self, thoughts: bool, out: &mut String) {
        let index = self.items;
        self.items += 1;
        self.open = Some(thoughts);
        if thoughts {
            let mut item = self.sent.thoughts("", "in_progress");
            item["content"] = json!([]);
            self.tell(out, "response.output_item.added", json!({ "output_index": index, "item": item }));
            return;
        }
        let item = self.sent.message(None, "in_progress");
        let id = self.sent.message_id.clone();
        self.tell(out, "response.output_item.added", json!({ "output_index": index, "item": item }));
        let added = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part("") });
        self.tell(out, "response.content_part.added", added);
    }

    fn end(&mut self, status: &str, out: &mut String) {
        let Some(thoughts) = self.open.take() else { return };
        let index = self.items - 1;
        let (id, text) = match thoughts {
            true => (self.sent.thoughts_id.clone(), self.choice.thinking.clone()),
            false => (self.sent.message_id.clone(), self.choice.answer.clone()),
        };
        let place = |extra: Value| {
            let mut value = json!({ "item_id": id, "output_index": index, "content_index": 0 });
            if let (Some(map), Some(extra)) = (value.as_object_mut(), extra.as_object()) {
                map.extend(extra.clone());
            }
            value
        };
        let item = if thoughts {
            self.tell(out, "response.reasoning_text.done", place(json!({ "text": text })));
            self.sent.thoughts(&text, "completed")
        } else {
            self.tell(out, "response.output_text.done", place(json!({ "text": text, "logprobs": [] })));
            self.tell(out, "response.content_part.done", place(json!({ "part": part(&text) })));
            self.sent.message(Some(&text), status)
        };
        self.tell(out, "response.output_item.done", json!({ "output_index": index, "item": item }));
    }

    fn text(&mut self, thoughts: bool, text: &str, out: &mut String) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(thoughts) {
            self.end("completed", out);
            self.begin(thoughts, out);
        }
        let (name, id, extra) = match thoughts {
            true => ("response.reasoning_text.delta", &self.sent.thoughts_id, Value::Null),
            false => ("response.output_text.delta", &self.sent.message_id, json!([])),
        };
        let mut delta = json!({ "item_id": id, "output_index": self.items - 1, "content_index": 0, "delta": text });
        if !extra.is_null() {
            delta["logprobs"] = extra;
        }
        let whole = if thoughts { &mut self.choice.thinking } else { &mut self.choice.answer };
        whole.push_str(text);
        self.tell(out, name, delta);
    }
}

impl Form for Events {
    fn said(&mut self, said: &Said, out: &mut String) -> bool {
        self.usage.take(said);
        match said {
            Said::Begun { .. } => {
                let begun = self.sent.response("in_progress", None, None);
                self.tell(out, "response.created", json!({ "response": begun }));
                self.tell(out, "response.in_progress", json!({ "response": begun }));
            }
            Said::Text { thinking, answer, .. } => {
                self.text(true, thinking, out);
                self.text(false, answer, out);
            }
            Said::Call { call, .. } => {
                self.end("completed", out);
                let index = self.items;
                self.items += 1;
                let mut item = function_call(call, "in_progress");
                item["arguments"] = "".into();
                let id = item["id"].clone();
                self.tell(out, "response.output_item.added", json!({ "output_index": index, "item": item }));
                let written = call.arguments.to_string();
                let delta = json!({ "item_id": id, "output_index": index, "delta": written });
                self.tell(out, "response.function_call_arguments.delta", delta);
                let done = json!({ "item_id": id, "output_index": index, "arguments": written, "name": call.name });
                self.tell(out, "response.function_call_arguments.done", done);
                let item = function_call(call, "completed");
                self.tell(out, "response.output_item.done", json!({ "output_index": index, "item": item }));
                self.choice.calls.push(call.clone());
            }
            Said::Ended { whole, .. } if whole.finish == Finish::Stopped => {
                self.failed(&Refusal::new(503, "shutting_down", reply::BROKE_OFF), out);
                return true;
            }
            Said::Ended { whole, .. } => {
                let status = status(whole.finish);
                if self.open != Some(false) && self.choice.calls.is_empty() {
                    self.end("completed", out);
                    self.begin(false, out);
                }
                self.end(status, out);
                let response = self.sent.response(status, Some(&self.choice), Some(&self.usage));
                self.tell(out, &format!("response.{status}"), json!({ "response": response }));
                return true;
            }
            Said::Scored { .. } | Said::Reading { .. } | Said::Failed(_) => {}
        }
        false
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        let mut response = self.sent.response("failed", None, None);
        response["error"] = json!({ "code": refusal.code, "message": refusal.message });
        self.tell(out, "response.failed", json!({ "response": response }));
    }
}
