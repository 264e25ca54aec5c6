//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::body::{self, object};
use super::chunks::{Ending, Head, MOST_CHOICES, add_usage, include_usage, reason};
use super::collected::{Collected, collect};
use super::content::turns;
use super::fields::Fields;
use super::ids::fresh_id;
use super::likely::{self, MOST_LIKELY};
use super::notice::{LikelyToken, Notice, Whole};
use super::prompt::Conversation;
use super::ready::model_named;
use super::refusal::{Family, Refusal};
use super::reply::ask;
use super::sampling::{Thinking, format_of, most_tokens, other_formats, params, stops};
use super::stream::{Form, data, stream};
use super::tools::{Tools, custom_input};
use super::turns::{Call, Turn};
use super::{Shared, now_s};
use crate::text::ChatRole;

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

struct Sent {
    shared: Arc<Shared>,
    head: Head,
    /// The request asks for log-probabilities.
    likely: bool,
    tools: Tools,
}

impl Sent {
    fn likely(&self, tokens: &[LikelyToken]) -> Value {
        match self.likely {
            true => likely::chat(&self.shared.renderer.model().tokenizer, tokens),
            false => Value::Null,
        }
    }

    /// Arguments are JSON in a string.
    fn call(&self, call: &Call) -> Value {
        match self.tools.named(&call.name) {
            named if named.custom => json!({
                "id": call.id,
                "type": "custom",
                "custom": { "name": named.name, "input": custom_input(call) },
            }),
            _ => json!({
                "id": call.id,
                "type": "function",
                "function": { "name": call.name, "arguments": call.text() },
            }),
        }
    }

    fn reason(&self, whole: &Whole) -> &'static str {
        match reason(whole) {
            "tool_calls" if self.tools.legacy() => "function_call",
            other => other,
        }
    }

    fn whole(&self, all: &Collected) -> Value {
        let choices = all.choices.iter().enumerate().map(|(index, choice)| {
            let (thinking, answer) = (choice.thinking(), choice.answer());
            let mut calls: Vec<Value> = choice.calls().map(|call| self.call(call)).collect();
            let mut message = json!({ "role": "assistant", "content": answer });
            if !calls.is_empty() {
                if answer.is_empty() {
                    message["content"] = Value::Null;
                }
                match self.tools.legacy() {
                    true => message["function_call"] = calls.swap_remove(0)["function"].take(),
                    false => message["tool_calls"] = calls.into(),
                }
            }
            if !thinking.is_empty() {
                message["reasoning_content"] = thinking.into();
            }
            let finish = choice.whole.as_ref().map(|whole| self.reason(whole));
            json!({
                "index": index,
                "message": message,
                "logprobs": self.likely(&choice.tokens),
                "finish_reason": finish,
            })
        });
        let mut whole = self.head.object("chat.completion", choices.collect());
        add_usage(&mut whole, &all.usage);
        whole
    }

    fn chunk(&self, choices: Value) -> Value {
        self.head.event("chat.completion.chunk", choices)
    }

    fn choice(&self, index: usize, delta: Value, finish: Option<&str>) -> Value {
        self.chunk(json!([{ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish }]))
    }
}

struct Chunks {
    sent: Sent,
    ending: Ending,
    calls: Vec<usize>,
    custom: bool,
}

impl Chunks {
    fn call(&self, index: usize, mut part: Value, out: &mut String) {
        if self.sent.tools.legacy() {
            let delta = json!({ "function_call": part["function"].take() });
            return data(out, &self.sent.choice(index, delta, None));
        }
        let mut call = json!({ "index": self.calls.get(index).copied().unwrap_or(0) });
        if let (Some(call), Value::Object(part)) = (call.as_object_mut(), part) {
            call.extend(part);
        }
        data(out, &self.sent.choice(index, json!({ "tool_calls": [call] }), None));
    }
}

impl Form for Chunks {
    fn notice(&mut self, notice: &Notice, out: &mut String) -> bool {
        self.ending.count(notice);
        match notice {
            Notice::Begun { index, .. } => {
                data(out, &self.sent.choice(*index, json!({ "role": "assistant", "content": "" }), None));
            }
            Notice::Text { index, thinking, answer, tokens } => {
                if !thinking.is_empty() {
                    data(out, &self.sent.choice(*index, json!({ "reasoning_content": thinking }), None));
                }
                if !answer.is_empty() || tokens.iter().any(|t| !t.thought) {
                    let mut chunk = self.sent.choice(*index, json!({ "content": answer }), None);
                    chunk["choices"][0]["logprobs"] = self.sent.likely(tokens);
                    data(out, &chunk);
                }
            }
            // A custom call is sent whole: its text is inside the arguments.
            Notice::Calling { index, id, name } => {
                self.custom = self.sent.tools.named(name).custom;
                if self.custom {
                    return false;
                }
                let function = json!({ "name": name, "arguments": "" });
                self.call(*index, json!({ "id": id, "type": "function", "function": function }), out);
            }
            Notice::Arguments { .. } if self.custom => {}
            Notice::Arguments { index, more } => self.call(*index, json!({ "function": { "arguments": more } }), out),
            Notice::Call { index, call } => {
                if std::mem::take(&mut self.custom) {
                    self.call(*index, self.sent.call(call), out);
                }
                self.calls.get_mut(*index).into_iter().for_each(|n| *n += 1);
            }
            Notice::Ended { index, whole } => {
                let sent = &self.sent;
                let last = |_: &str| sent.choice(*index, json!({}), Some(sent.reason(whole)));
                return self.ending.ended(whole, last, || sent.chunk(json!([])), out);
            }
            Notice::Scored { .. } | Notice::Reading { .. } | Notice::Failed(_) => {}
        }
        false
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        data(out, &refusal.to_json(Family::OpenAi));
    }
}

/// Whether the model continues the last answer, and whether the prompt ends without the start of an answer.
pub(super) fn going_on(fields: &mut Fields, turns: &[Turn]) -> Result<(bool, bool), Refusal> {
    let open = fields.truth("continue_final_message")?.unwrap_or(false);
    let begins = fields.truth("add_generation_prompt")?;
    if open && begins == Some(true) {
        return Err(fields.wrong("add_generation_prompt", "cannot be true together with continue_final_message"));
    }
    if open && turns.last().is_none_or(|turn| turn.role != ChatRole::Assistant) {
        return Err(fields.wrong("continue_final_message", "needs a last message of the assistant"));
    }
    Ok((open, begins == Some(false) && !open))
}

pub(super) async fn completions(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let shared = &shared;
    let (mut fields, turns) = body::read(request, turns).await?;
    let info = model_named(shared, fields.text("model")?)?;
    let stop = stops(&mut fields, "stop")?;
    let mut most = None;
    for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
        most = most.or(most_tokens(&mut fields, name, 1)?);
    }
    let mut params = params(shared, &mut fields, stop, most)?;
    let Thinking { mode: think, budget } = Thinking::of_chat(shared, &mut fields)?;
    params.thinking_budget = budget.unwrap_or(params.thinking_budget);
    let (open, closed) = going_on(&mut fields, &turns)?;
    let wanted = usize::try_from(fields.whole("n", 1..=MOST_CHOICES)?.unwrap_or(1)).unwrap_or(1);
    let streamed = fields.truth("stream")?.unwrap_or(false);
    let include_usage = include_usage(&mut fields)?;
    let likely = fields.truth("logprobs")?.unwrap_or(false);
    let most_likely = fields.whole("top_logprobs", 0..=MOST_LIKELY)?;
    if most_likely.is_some_and(|n| n > 0) && !likely {
        return Err(fields.wrong("top_logprobs", "needs logprobs: true"));
    }
    params.likely = likely.then_some(most_likely.and_then(|n| u8::try_from(n).ok()).unwrap_or(0));
    let tools = Tools::read(&mut fields, "parameters")?;
    let grammar = match fields.object("response_format")? {
        Some(format) => format_of(format, "json_schema")?,
        None => None,
    };
    let grammar = grammar.map(|g| (g, "response_format")).or(other_formats(&mut fields)?);
    fields.refuse("modalities", |v| *v == json!(["text"]))?;
    fields.ignore(&IGNORED);
    fields.done_for_answer()?;
    let conversation = Conversation { turns, tools: tools.clone(), think, open, closed };
    let listener = ask(shared, conversation, "messages", params, grammar, wanted, None).await?;
    let fingerprint = Some(info.fingerprint.chars().take(12).collect());
    let head = Head { id: fresh_id("chatcmpl-"), model: info.name, fingerprint, created: now_s(), include_usage };
    let sent = Sent { shared: Arc::clone(shared), head, likely, tools };
    if streamed {
        let ending = Ending::of(wanted, include_usage);
        return stream(listener, Chunks { sent, ending, calls: vec![0; wanted], custom: false }).await;
    }
    Ok(object(&sent.whole(&collect(listener, wanted).await?)))
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
        let reads = include_str!("chat.rs")
            .split_once("async fn completions(")
            .unwrap()
            .1
            .split_once("fields.done_for_answer()")
            .unwrap()
            .0;
        let reads = [reads, include_str!("limited.rs")].concat();
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
