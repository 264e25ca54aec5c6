//! A response as an object.

use serde_json::{Value, json};

use crate::server::prompt::Call;
use crate::server::reply::{Choice, Usage};
use crate::transcript::Finish;

/// How a response is sent: what the request said, repeated.
#[derive(Clone, Debug)]
pub(in crate::server) struct Sent {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub asked: Value,
    pub thoughts_id: String,
    pub message_id: String,
}

impl Sent {
    pub(super) fn thoughts(&self, text: &str, status: &str) -> Value {
        json!({
            "type": "reasoning",
            "id": self.thoughts_id,
            "status": status,
            "summary": [],
            "content": [{ "type": "reasoning_text", "text": text }],
        })
    }

    pub(super) fn message(&self, text: Option<&str>, status: &str) -> Value {
        let content = text.map(part);
        json!({
            "type": "message",
            "id": self.message_id,
            "status": status,
            "role": "assistant",
            "content": content.into_iter().collect::<Value>(),
        })
    }

    /// The object.
    pub(in crate::server) fn response(&self, status: &str, choice: Option<&Choice>, usage: Option<&Usage>) -> Value {
        let mut output = Vec::new();
        let mut incomplete = Value::Null;
        if let Some(choice) = choice {
            if !choice.thinking.is_empty() {
                output.push(self.thoughts(&choice.thinking, "completed"));
            }
            if !choice.answer.is_empty() || choice.calls.is_empty() {
                output.push(self.message(Some(&choice.answer), status));
            }
            output.extend(choice.calls.iter().map(|c| function_call(c, "completed")));
            if status == "incomplete" {
                incomplete = json!({ "reason": "max_output_tokens" });
            }
        }
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": incomplete,
            "model": self.model,
            "output": output,
            "usage": usage.map(|u| json!({
                "input_tokens": u.prompt_tokens,
                "input_tokens_details": { "cached_tokens": u.cached_tokens },
                "output_tokens": u.completion_tokens,
                "output_tokens_details": { "reasoning_tokens": u.thought_tokens },
                "total_tokens": u.prompt_tokens + u.completion_tokens,
            })),
        });
        if let (Some(map), Some(asked)) = (response.as_object_mut(), self.asked.as_object()) {
            map.extend(asked.clone());
        }
        response
    }
}

/// A call as an item.
pub(super) fn function_call(call: &Call, status: &str) -> Value {
    json!({
        "type": "function_call",
        "id": format!("fc_{}", call.id),
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments.to_string(),
        "status": status,
    })
}

/// A text of a message.
pub(super) fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// How it ended, in a word.
pub(in crate::server) fn status(finish: Finish) -> &'static str {
    match finish {
        Finish::Length | Finish::Context => "incomplete",
        Finish::Stop | Finish::Repeats => "completed",
        Finish::Stopped | Finish::Failed => "failed",
    }
}
