//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's form.

use serde_json::{Value, json};

use super::params::params;
use super::refusal::THREAD;
use super::stream::event;
use super::tools;
use super::turns::messages;
use super::{
    Choice, Collected, Conversation, Event, Family, Fields, Form, Format, Item, Received, Refusal, Result, Shared,
    Thinking, Tools, Usage, Whole, content, count, format_of, fresh_id, model_of, most_tokens,
};
use crate::core::transcript::Finish;
use crate::text::ChatRole;

/// Contains every field of the clients' types.
fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation": { "ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0 },
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "fallback_credit": null,
        "inference_geo": null,
        "iterations": null,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "thinking_tokens": usage.thought_tokens },
        "server_tool_use": null,
        "service_tier": "standard",
        "speed": null,
    })
}

fn tool_use(id: &str, name: &str, arguments: &Value) -> Value {
    // A call that broke off has no arguments object.
    let input = if arguments.is_object() { arguments.clone() } else { json!({}) };
    json!({ "type": "tool_use", "id": id, "name": name, "input": input, "caller": { "type": "direct" } })
}

/// Why an answer ended, and the stop text that ended it.
fn reason(whole: &Whole) -> (&'static str, Option<&str>) {
    match (whole.finish, &whole.stopped_by) {
        (Finish::Stop | Finish::Repeats, None) if whole.calls > 0 => ("tool_use", None),
        (_, Some(stop)) => ("stop_sequence", Some(stop)),
        (Finish::Length, None) => ("max_tokens", None),
        (Finish::Context, None) => ("model_context_window_exceeded", None),
        (Finish::Stop | Finish::Repeats | Finish::Stopped | Finish::Failed, None) => ("end_turn", None),
    }
}

/// The form of the answer. As a stream: a block for each item.
pub(super) struct Message {
    id: String,
    model: String,
    /// The type of the last block, if it is not complete.
    open: Option<&'static str>,
    blocks: usize,
}

impl Message {
    fn object(&self, choice: &Choice, all: &Usage) -> Value {
        let block = |item: &Item| match item {
            Item::Thoughts(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
            Item::Text(text) => json!({ "type": "text", "text": text, "citations": null }),
            Item::Call(call) => tool_use(&call.id, &call.name, &call.arguments),
        };
        let (reason, stop) = choice.whole.as_ref().map(reason).unzip();
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": choice.items.iter().map(block).collect::<Value>(),
            "container": null,
            "context_management": null,
            "diagnostics": null,
            "stop_details": null,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage(all),
        })
    }

    fn close(&mut self, out: &mut String) {
        if let Some(block) = self.open.take() {
            let index = self.blocks - 1;
            if block == "thinking" {
                let delta = json!({ "type": "signature_delta", "signature": "" });
                event(out, "content_block_delta", json!({ "index": index, "delta": delta }));
            }
            event(out, "content_block_stop", json!({ "index": index }));
        }
    }

    fn begin(&mut self, of: &'static str, block: Value, out: &mut String) {
        self.close(out);
        event(out, "content_block_start", json!({ "index": self.blocks, "content_block": block }));
        self.open = Some(of);
        self.blocks += 1;
    }

    /// More of the open block, or of a new one.
    fn delta(&mut self, of: &'static str, begun: Value, delta: Value, out: &mut String) {
        if self.open != Some(of) {
            self.begin(of, begun, out);
        }
        event(out, "content_block_delta", json!({ "index": self.blocks - 1, "delta": delta }));
    }
}

impl Form for Message {
    fn whole(&mut self, all: Collected) -> Value {
        self.object(&all.choices.into_iter().next().unwrap_or_default(), &all.usage)
    }

    fn event(&mut self, _: usize, notice: &Event, all: &mut Collected, out: &mut String) {
        match notice {
            Event::Begun(_) => {
                let message = self.object(&Choice::default(), &all.usage);
                event(out, "message_start", json!({ "message": message }));
            }
            Event::Thoughts(text) => {
                let begun = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.delta("thinking", begun, json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Event::Text(text, _) => {
                let begun = json!({ "type": "text", "text": "", "citations": null });
                self.delta("text", begun, json!({ "type": "text_delta", "text": text }), out);
            }
            Event::Calling { id, name } => {
                self.begin("tool_use", tool_use(id, name, &json!({})), out);
            }
            Event::Arguments(more) => {
                let delta = json!({ "type": "input_json_delta", "partial_json": more });
                self.delta("tool_use", Value::Null, delta, out);
            }
            Event::Call(_) => self.close(out),
            Event::Ended(whole) => {
                self.close(out);
                let (reason, stop) = reason(whole);
                let delta =
                    json!({ "container": null, "stop_details": null, "stop_reason": reason, "stop_sequence": stop });
                let usage = usage(&all.usage);
                event(out, "message_delta", json!({ "context_management": null, "delta": delta, "usage": usage }));
                event(out, "message_stop", json!({}));
            }
        }
    }

    fn failed(&mut self, refusal: &Refusal, _: &Collected, out: &mut String) {
        event(out, "error", refusal.to_json(Family::Anthropic));
    }
}

/// Reads the fields that both paths share.
fn conversation(shared: &Shared, fields: &mut Fields) -> Result<Conversation> {
    let system = content(fields, "system", ChatRole::System)?;
    let mut turns = messages(fields)?;
    if !system.text.is_empty() {
        turns.insert(0, system);
    }
    // Allows a server to drop earlier results; this server drops none.
    fields.ignore(&["context_management", "cache_control"]);
    let thinking = Thinking::of_field(shared, fields, "thinking")?;
    let tools = Tools::read(fields, tools::ANTHROPIC, &mut turns)?;
    let open = turns.last().is_some_and(|t| t.role == ChatRole::Assistant);
    Ok(Conversation { field: "messages", turns, tools, thinking, open, closed: false })
}

fn output_config(fields: &mut Fields) -> Result<Format> {
    // The name of the field while it was in beta.
    let earlier = fields.object("output_format")?;
    let mut output = fields.object("output_config")?.unwrap_or_default();
    let format = output.object("format")?.or(earlier);
    output.ignore(&["effort"]);
    output.done()?;
    format_of(format, "output_config", "schema")
}

pub(super) fn read(shared: &Shared, mut fields: Fields) -> Result<(Received, Message)> {
    let model = model_of(shared, &mut fields)?.name;
    let conversation = conversation(shared, &mut fields)?;
    fields.require("max_tokens")?;
    let most = most_tokens(&mut fields, &["max_tokens"], 0)?;
    let thread = fields.refuse_because("thread", "is not supported: send all messages", |_| false);
    thread.map_err(|refusal| Refusal { code: THREAD, ..refusal })?;
    let params = params(shared, &mut fields, "stop_sequences", most)?;
    let format = output_config(&mut fields)?;
    fields.ignore(&["metadata", "service_tier", "inference_geo"]);
    fields.done_for_answer()?;
    let form = Message { id: fresh_id("msg_"), model, open: None, blocks: 0 };
    Ok((Received { conversation, params, format, record: None }, form))
}

pub(super) fn count_tokens(shared: &Shared, mut fields: Fields) -> Result<Value> {
    model_of(shared, &mut fields)?;
    let conversation = conversation(shared, &mut fields)?;
    fields.ignore(&["output_config", "output_format"]);
    fields.done()?;
    Ok(json!({ "input_tokens": count(shared, conversation)? }))
}
