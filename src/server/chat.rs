//! `POST /v1/chat/completions`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::chunks::{MOST_CHOICES, likely_chat};
use super::params::params;
use super::turns::messages;
use super::{
    Call, Choice, Collected, Conversation, Event, Fields, Form, Head, LikelyToken, MOST_ALTERNATIVES, Received, Result,
    Shared, Thinking, Tools, Turn, Whole, custom_input, model_of, most_tokens, reason, response_format,
};
use crate::text::{ChatRole, Tokenizer};

const IGNORED: [&str; 10] = [
    "user",
    "cache_prompt",
    "metadata",
    "store",
    "service_tier",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "verbosity",
];
const CHUNK: &str = "chat.completion.chunk";

pub(super) struct Chat {
    tokenizer: Arc<Tokenizer>,
    head: Head,
    tools: Tools,
    likely: bool,
}

impl Chat {
    fn likely(&self, tokens: &[LikelyToken]) -> Option<Value> {
        self.likely.then(|| likely_chat(&self.tokenizer, tokens))
    }

    /// Arguments are JSON in a string.
    fn call(&self, call: &Call) -> Value {
        let (of, function) = match self.tools.is_custom(&call.name) {
            true => ("custom", json!({ "name": call.name, "input": custom_input(call) })),
            false => ("function", json!({ "name": call.name, "arguments": call.text() })),
        };
        json!({ "id": call.id, "type": of, (of): function })
    }

    fn reason(&self, whole: &Whole) -> &'static str {
        match reason(whole) {
            "tool_calls" if self.tools.legacy => "function_call",
            other => other,
        }
    }

    fn choice(&self, index: usize, choice: &Choice) -> Value {
        let (thinking, answer) = (choice.thinking(), choice.answer());
        let mut calls: Vec<Value> = choice.calls().map(|call| self.call(call)).collect();
        let mut message = json!({ "role": "assistant", "content": answer, "refusal": null });
        if !calls.is_empty() {
            if answer.is_empty() {
                message["content"] = Value::Null;
            }
            match self.tools.legacy {
                true => message["function_call"] = calls.swap_remove(0)["function"].take(),
                false => message["tool_calls"] = calls.into(),
            }
        }
        if !thinking.is_empty() {
            message["reasoning_content"] = thinking.into();
        }
        let finish = choice.whole.as_ref().map(|whole| self.reason(whole));
        let likely = self.likely(&choice.tokens);
        json!({ "index": index, "message": message, "logprobs": likely, "finish_reason": finish })
    }

    /// Part of the call `at` in a stream.
    fn call_delta(&self, at: usize, mut part: Value) -> Value {
        if self.tools.legacy {
            return json!({ "function_call": part["function"].take() });
        }
        part["index"] = at.into();
        json!({ "tool_calls": [part] })
    }
}

impl Form for Chat {
    fn whole(&mut self, all: Collected) -> Value {
        let choices = all.choices.iter().enumerate().map(|(index, choice)| self.choice(index, choice)).collect();
        self.head.whole("chat.completion", choices, &all.usage)
    }

    fn event(&mut self, index: usize, event: &Event, all: &mut Collected, out: &mut String) {
        let (mut likely, mut finish) = (None, None);
        let Some(of) = all.choices.get(index) else { return };
        let (ended_calls, is_custom) = (of.calls().count(), self.tools.is_custom(&of.calling));
        let delta = match event {
            // A call that must be made has no text before it.
            Event::Begun(_) if self.tools.choice.must => json!({ "role": "assistant", "content": null }),
            Event::Begun(_) => json!({ "role": "assistant", "content": "" }),
            Event::Thoughts(text) => json!({ "reasoning_content": text }),
            Event::Text(text, tokens) if text.is_empty() && tokens.iter().all(|t| t.thought) => return,
            Event::Text(text, tokens) => {
                likely = self.likely(tokens);
                json!({ "content": text })
            }
            // A custom call is sent whole: its text is inside the arguments.
            Event::Calling { .. } | Event::Arguments(_) if is_custom => return,
            Event::Calling { id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                self.call_delta(ended_calls, json!({ "id": id, "type": "function", "function": function }))
            }
            Event::Arguments(more) => self.call_delta(ended_calls, json!({ "function": { "arguments": more } })),
            Event::Call(call) if is_custom => self.call_delta(ended_calls.saturating_sub(1), self.call(call)),
            Event::Call(_) => return,
            Event::Ended(whole) => {
                finish = Some(self.reason(whole));
                json!({})
            }
        };
        let choice = json!({ "index": index, "delta": delta, "logprobs": likely, "finish_reason": finish });
        self.head.event(CHUNK, choice, all, out);
    }
}

/// Whether the model continues the last answer, and whether the prompt ends without the start of an answer.
fn going_on(fields: &mut Fields, turns: &[Turn]) -> Result<(bool, bool)> {
    let open = fields.on("continue_final_message")?;
    let begins = fields.truth("add_generation_prompt")?;
    if open && begins == Some(true) {
        return Err(fields.wrong("add_generation_prompt", "cannot be true together with continue_final_message"));
    }
    if open && turns.last().is_none_or(|turn| turn.role != ChatRole::Assistant) {
        return Err(fields.wrong("continue_final_message", "needs a last message of the assistant"));
    }
    Ok((open, begins == Some(false) && !open))
}

/// Reads the messages and everything else that the prompt depends on.
pub(super) fn conversation(shared: &Shared, fields: &mut Fields) -> Result<Conversation> {
    let mut turns = messages(fields)?;
    let thinking = Thinking::of_chat(shared, fields)?;
    let (open, closed) = going_on(fields, &turns)?;
    let tools = Tools::read(fields, "parameters", &mut turns)?;
    Ok(Conversation { field: "messages", turns, tools, thinking, open, closed })
}

pub(super) fn read(shared: &Shared, mut fields: Fields) -> Result<(Received, Chat)> {
    let info = model_of(shared, &mut fields)?;
    let conversation = conversation(shared, &mut fields)?;
    let most = most_tokens(&mut fields, &["max_completion_tokens", "max_tokens", "n_predict"], 1)?;
    let mut params = params(shared, &mut fields, "stop", most)?;
    params.wanted = fields.whole("n", 1..=MOST_CHOICES)?.unwrap_or(1);
    let mut head = Head::read(&mut fields, "chatcmpl-", info.name)?;
    head.fingerprint = Some(info.fingerprint.chars().take(12).collect());
    let likely = fields.on("logprobs")?;
    let most_likely = fields.whole("top_logprobs", 0..=MOST_ALTERNATIVES)?;
    if most_likely.is_some_and(|n: u8| n > 0) && !likely {
        return Err(fields.wrong("top_logprobs", "needs logprobs: true"));
    }
    params.likely = likely.then_some(most_likely.unwrap_or(0));
    let format = response_format(&mut fields)?;
    fields.refuse("modalities", |v| *v == json!(["text"]))?;
    fields.ignore(&IGNORED);
    fields.done_for_answer()?;
    let tokenizer = Arc::clone(&shared.renderer.model().tokenizer);
    let form = Chat { tokenizer, head, tools: conversation.tools.clone(), likely };
    Ok((Received { conversation, params, format, record: None }, form))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_is_read_is_in_the_table_of_fields() {
        let document = include_str!("../../docs/serve.md");
        let (_, table) = document.split_once("## Fields of a chat completion").unwrap();
        let table: Vec<&str> =
            table.lines().skip_while(|l| !l.starts_with('|')).take_while(|l| l.starts_with('|')).collect();
        let (_, own) = include_str!("chat.rs").split_once("fn going_on(").unwrap();
        let (own, _) = own.split_once("fields.done_for_answer()").unwrap();
        let reads = [own, include_str!("params.rs"), include_str!("prompt.rs"), include_str!("chunks.rs")].concat();
        let calls = reads.split("fields.").skip(1).filter_map(|call| call.split_once("(\"")?.1.split_once('"'));
        let mut fields: Vec<&str> =
            calls.map(|(field, _)| field).filter(|f| f.chars().all(|c| c == '_' || c.is_ascii_lowercase())).collect();
        assert!(fields.contains(&"logit_bias") && fields.contains(&"n"), "{fields:?}");
        fields.extend(IGNORED);
        fields.push("messages");
        // The document describes it above the table.
        for field in fields.into_iter().filter(|f| *f != "model") {
            assert!(table.iter().any(|line| line.contains(&format!("`{field}`"))), "{field}");
        }
    }
}
