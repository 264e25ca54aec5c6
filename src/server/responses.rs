//! `POST /v1/responses`: OpenAI's responses. An id names the state after an answer: a request that names an older one
//! forks there. `named` handles later requests about an id.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::ask::{Received, count, render, submit};
use super::context::{leave_out, own_data};
use super::fields::{Fields, kind};
use super::notice::{Choice, collect};
use super::prompt::Conversation;
use super::records::{Record, Records};
use super::refusal::Refusal;
use super::request::{self, fresh_id, model_of, object};
use super::response::{Events, Sent, given, repeated, usage};
use super::sampling::{Format, effort, format_of, most_tokens, params};
use super::tools::{Tools, called};
use super::turns::{Call, Turn, arguments, content, message};
use super::{Shared, now_s};
use crate::runtime::protocol::ThinkMode;
use crate::text::ChatRole;

/// The start of the summary of a compacted conversation; the summary is not encrypted.
const SUMMARY: &str = "Summary of the conversation so far:\n";

fn item(records: &Records, mut fields: Fields, turns: &mut Vec<Turn>) -> Result<(), Refusal> {
    let id = fields.text("id")?.unwrap_or_default();
    fields.ignore(&["status"]);
    match fields.text("type")?.as_deref() {
        // The type of a reference may be left out.
        of @ (Some("item_reference") | None) if of.is_some() || !(fields.has("role") || id.is_empty()) => {
            let named = Fields::of(records.item(&id, &fields.name("id"))?, fields.name("").trim_end_matches('.'))?;
            return fields.done().and_then(|()| item(records, named, turns));
        }
        None | Some("message") => return message(fields, turns),
        Some(of @ ("function_call" | "custom_tool_call")) => {
            let id = fields.text("call_id")?.unwrap_or_default();
            let name = called(&mut fields)?.unwrap_or_default();
            let arguments = match of {
                "function_call" => arguments(&fields.text("arguments")?.unwrap_or_default()),
                _ => json!({ "input": fields.text("input")?.unwrap_or_default() }),
            };
            if turns.last().is_none_or(|turn| turn.role != ChatRole::Assistant) {
                turns.push(Turn::new(ChatRole::Assistant, ""));
            }
            if let Some(turn) = turns.last_mut() {
                turn.calls.push(Call::new(id, name, arguments));
            }
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let output = content(&mut fields, "output", ChatRole::Tool)?;
            turns.push(Turn { call_id: fields.text("call_id")?, ..output });
        }
        // Thoughts of an earlier answer: the template drops them.
        Some("reasoning") => fields.ignore(&["summary", "content", "encrypted_content"]),
        Some("compaction" | "compaction_summary") => {
            turns.push(Turn::new(ChatRole::User, fields.text("encrypted_content")?.unwrap_or_default()));
            fields.ignore(&["created_by"]);
        }
        // Results of another server's tools.
        Some(other) if leave_out(&fields.name(other)) => return Ok(()),
        Some(other) => return Err(fields.wrong("type", format!("is {other:?}, which is not supported"))),
    }
    fields.done()
}

fn input(records: &Records, fields: &mut Fields) -> Result<Vec<Turn>, Refusal> {
    let mut turns = Vec::new();
    match fields.need("input")? {
        Value::String(text) => turns.push(Turn::new(ChatRole::User, text)),
        Value::Array(items) => {
            fields.objects_of("input", items)?.into_iter().try_for_each(|fields| item(records, fields, &mut turns))?;
        }
        other => return Err(fields.wrong("input", format!("must be a string or an array, it is {}", kind(&other)))),
    }
    if turns.is_empty() {
        return Err(fields.wrong("input", "is empty: there is nothing to answer"));
    }
    Ok(turns)
}

/// Reads `text`: the format of the answer.
fn text(fields: &mut Fields) -> Result<Format, Refusal> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let grammar = text.object("format")?.map_or(Ok(None), |format| format_of(format, "schema"))?;
    text.ignore(&["verbosity"]);
    text.done().map(|()| grammar.map(|grammar| (grammar, "text")))
}

fn reasoning(shared: &Shared, fields: &mut Fields) -> Result<ThinkMode, Refusal> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(shared.options.settings.think) };
    let think = effort(&mut reasoning, "effort", shared.options.settings.think)?;
    reasoning.ignore(&["summary", "generate_summary"]);
    reasoning.done().map(|()| think)
}

/// Reads `include`: thoughts are always included, in plain text, and no other extra output exists.
fn include(fields: &mut Fields) -> Result<(), Refusal> {
    for other in fields.list("include")?.into_iter().flatten().filter(|of| of != "reasoning.encrypted_content") {
        let other = other.as_str().unwrap_or("what is no text").to_owned();
        if !leave_out(&format!("include.{other}")) {
            let refusal = fields.wrong("include", format!("names {other}, which is not available here"));
            return Err(Refusal { code: "unsupported_parameter", ..refusal });
        }
    }
    Ok(())
}

/// Reads the fields that are repeated but have no effect.
fn noted(fields: &mut Fields) -> Result<(), Refusal> {
    match fields.take("metadata") {
        None => {}
        Some(Value::Object(map)) if map.values().all(Value::is_string) => {}
        Some(Value::Object(_)) => return Err(fields.wrong("metadata", "must hold strings")),
        Some(other) => return Err(fields.wrong("metadata", format!("must be an object, it is {}", kind(&other)))),
    }
    // A prompt that is too long is refused, which both values allow.
    if !matches!(fields.text("truncation")?.as_deref(), None | Some("auto" | "disabled")) {
        return Err(fields.wrong("truncation", "must be auto or disabled"));
    }
    // Limits tools that the server runs: it runs none.
    fields.whole("max_tool_calls", 1..=u64::from(u32::MAX))?;
    ["safety_identifier", "prompt_cache_key", "user"].into_iter().try_for_each(|name| fields.text(name).map(drop))
}

/// Reads a request together with the conversation that it continues.
pub(super) fn read(shared: &Shared, mut fields: Fields) -> Result<(Received, Events), Refusal> {
    let given = given(&fields);
    let model = model_of(shared, &mut fields)?.name;
    let input = input(&shared.records, &mut fields)?;
    let instructions = fields.text("instructions")?.map(|text| Turn::new(ChatRole::System, text));
    let most = most_tokens(&mut fields, &["max_output_tokens", "max_completion_tokens", "max_tokens"], 1)?;
    let params = params(shared, &mut fields, "stop", most)?;
    let think = reasoning(shared, &mut fields)?;
    let tools = Tools::read(&mut fields, "parameters")?;
    let format = text(&mut fields)?;
    let store = fields.truth("store")?.unwrap_or(true);
    let streamed = fields.truth("stream")?.unwrap_or(false);
    let previous = fields.text("previous_response_id")?;
    noted(&mut fields)?;
    include(&mut fields)?;
    fields.refuse("background", |v| v == false)?;
    fields.refuse("top_logprobs", |v| v == 0)?;
    fields.ignore(&["service_tier", "stream_options", "prompt_cache_retention", "client_metadata"]);
    fields.done_for_answer()?;
    let (parent, earlier) = match previous {
        None => (None, Vec::new()),
        Some(id) => {
            own_data()?;
            let (at, turns) = shared.records.find(&id, "previous_response_id")?;
            (Some(at), turns)
        }
    };
    let turns = instructions.into_iter().chain(earlier).chain(input.iter().cloned()).collect();
    let message = shared.records.fresh();
    let sent = Sent {
        id: Records::id(message),
        created: now_s(),
        completed: Arc::default(),
        model,
        repeated: repeated(given, most, &params.sampling, &tools),
        unique: fresh_id(""),
        tools: tools.clone().into(),
    };
    let record = store.then(|| Record::new(message, parent, input, sent.clone()));
    let conversation = Conversation { turns, tools, think, ..Conversation::default() };
    Ok((Received { conversation, field: "input", params, format, wanted: 1, streamed, record }, Events::new(sent)))
}

pub(super) async fn input_tokens(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let (received, _) = request::read(&shared, request, read).await?;
    let tokens = count(&shared, received.conversation, received.field).await?;
    Ok(object(&json!({ "object": "response.input_tokens", "input_tokens": tokens })))
}

/// Has the model summarize a conversation. The output is the user's messages and the summary; the client sends it in
/// place of all items.
pub(super) async fn compact(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    const TASK: &str = "Sum up this conversation for someone who continues it: what is wanted, what was found and decided, \
                        what is still to do. Keep names, numbers and paths. Write nothing else.";
    let (Received { conversation, params, .. }, _) = request::read(&shared, request, read).await?;
    let mut turns = conversation.turns;
    let users = turns.iter().filter(|turn| turn.role == ChatRole::User && !turn.text.is_empty());
    let mut output: Vec<Value> = users
        .map(|turn| {
            let content = json!([{ "type": "input_text", "text": turn.text }]);
            let id = fresh_id("msg_");
            json!({ "type": "message", "id": id, "role": "user", "status": "completed", "content": content })
        })
        .collect();
    turns.push(Turn::new(ChatRole::User, TASK));
    let conversation = Conversation { turns, think: ThinkMode::Off, ..Conversation::default() };
    let prompt = render(&shared, conversation, "input").await?;
    let all = collect(submit(&shared, prompt, params, 1, None, shared.options.queue)?, 1).await?;
    let summary = all.choices.first().map(Choice::answer).unwrap_or_default();
    let content = format!("{SUMMARY}{}", summary.trim());
    output.push(json!({ "type": "compaction", "id": fresh_id("cmp_"), "encrypted_content": content }));
    Ok(object(&json!({
        "id": fresh_id("resp_"),
        "object": "response.compaction",
        "created_at": now_s(),
        "output": output,
        "usage": usage(&all.usage),
    })))
}
