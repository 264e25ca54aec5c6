//! `/v1/responses`: OpenAI's responses, and the paths with the id of one. An id names the state after an answer: a
//! request that names an older one forks there.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::choice::called;
use super::params::params;
use super::request;
use super::response::{Events, given, repeated, usage};
use super::turns::{Offer, arguments, message};
use super::{
    Call, Choice, Conversation, Fields, Format, Received, Record, Records, Result, Sent, Shared, Thinking, Tools, Turn,
    collect, content, count, format_of, fresh_id, kind, leave_out, model_of, most_tokens, now_s, object, own_data,
    render, submit,
};
use crate::runtime::protocol::ThinkMode;
use crate::text::ChatRole;

/// The start of the summary of a compacted conversation; the summary is not encrypted.
const SUMMARY: &str = "Summary of the conversation so far:\n";

fn item(records: &Records, mut fields: Fields, turns: &mut Vec<Turn>) -> Result<()> {
    let id = fields.text("id")?.unwrap_or_default();
    fields.ignore(&["status"]);
    match fields.text("type")?.as_deref() {
        // The type of a reference may be left out.
        of @ (Some("item_reference") | None) if of.is_some() || !(fields.has("role") || id.is_empty()) => {
            let named = Fields::of(records.item(&id, &fields.name("id"))?, fields.name("").trim_end_matches('.'))?;
            return fields.done().and_then(|()| item(records, named, turns));
        }
        None | Some("message") => return message(fields, turns),
        Some(of @ ("function_call" | "custom_tool_call" | "shell_call" | "local_shell_call" | "apply_patch_call")) => {
            let id = fields.text("call_id")?.unwrap_or_default();
            // The tools of clients have no name.
            let name = called(&mut fields)?.unwrap_or_else(|| of.trim_end_matches("_call").to_owned());
            let arguments = match of {
                "function_call" => arguments(&fields.text("arguments")?.unwrap_or_default()),
                "custom_tool_call" => json!({ "input": fields.text("input")?.unwrap_or_default() }),
                _ => fields.take("action").or(fields.take("operation")).unwrap_or_else(|| json!({})),
            };
            if turns.last().is_none_or(|turn| turn.role != ChatRole::Assistant) {
                turns.push(Turn::new(ChatRole::Assistant, ""));
            }
            if let Some(turn) = turns.last_mut() {
                turn.calls.push(Call::new(id, name, arguments));
            }
        }
        Some("shell_call_output") => {
            let output = fields.need("output")?.to_string();
            turns.push(Turn { call_id: fields.text("call_id")?, ..Turn::new(ChatRole::Tool, output) });
        }
        Some(
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" | "apply_patch_call_output",
        ) => {
            let output = content(&mut fields, "output", ChatRole::Tool)?;
            turns.push(Turn { call_id: fields.text("call_id")?.or(Some(id)), ..output });
        }
        Some("additional_tools" | "tool_search_output") => {
            let place = fields.name("tools");
            let tools = fields.list("tools")?.unwrap_or_default().into_iter();
            let tools = tools.map(|tool| json!({ "type": "tool_definition", "definition": tool }));
            let offers = tools.map(|tool| Offer { place: place.clone(), tool, removed: false }).collect();
            turns.push(Turn { offers, ..Turn::new(ChatRole::System, "") });
            fields.ignore(&["role", "call_id", "execution"]);
        }
        Some("compaction_trigger") => {
            let what = "is compaction_trigger: send the other items to POST /v1/responses/compact";
            return Err(fields.wrong("type", what).unsupported());
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

fn input(records: &Records, fields: &mut Fields) -> Result<Vec<Turn>> {
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

fn text(fields: &mut Fields) -> Result<Format> {
    let mut text = fields.object("text")?.unwrap_or_default();
    let format = format_of(text.object("format")?, "text", "schema")?;
    text.ignore(&["verbosity"]);
    text.done().map(|()| format)
}

/// Reads `include`: thoughts are always included, in plain text, and no other extra output exists.
fn include(fields: &mut Fields) -> Result<()> {
    for other in fields.list("include")?.into_iter().flatten().filter(|of| of != "reasoning.encrypted_content") {
        let other = other.as_str().unwrap_or("what is no text").to_owned();
        if !leave_out(&format!("include.{other}")) {
            let what = format!("names {other}, which is not available here");
            return Err(fields.wrong("include", what).unsupported());
        }
    }
    Ok(())
}

/// Reads the fields that are repeated but have no effect.
fn noted(fields: &mut Fields) -> Result<()> {
    fields.typed::<HashMap<String, String>>("metadata", "an object of strings")?;
    // A prompt that is too long is refused, which both values allow.
    if !matches!(fields.text("truncation")?.as_deref(), None | Some("auto" | "disabled")) {
        return Err(fields.wrong("truncation", "must be auto or disabled"));
    }
    // Limits tools that the server runs: it runs none.
    fields.whole::<u64>("max_tool_calls", 1..=u64::from(u32::MAX))?;
    ["safety_identifier", "prompt_cache_key", "user"].into_iter().try_for_each(|name| fields.text(name).map(drop))
}

/// Reads a request together with the conversation that it continues.
pub(super) fn read(shared: &Shared, mut fields: Fields) -> Result<(Received, Events)> {
    let given = given(&fields);
    let model = model_of(shared, &mut fields)?.name;
    let input = input(&shared.records, &mut fields)?;
    let instructions = fields.text("instructions")?.map(|text| Turn::new(ChatRole::System, text));
    let most = most_tokens(&mut fields, &["max_output_tokens", "max_completion_tokens", "max_tokens"], 1)?;
    let params = params(shared, &mut fields, "stop", most)?;
    let thinking = Thinking::of_field(shared, &mut fields, "reasoning")?;
    let (parent, earlier) = match fields.text("previous_response_id")? {
        None => (None, Vec::new()),
        Some(id) => {
            own_data()?;
            let (at, turns) = shared.records.find(&id, "previous_response_id")?;
            (Some(at), turns)
        }
    };
    let mut turns: Vec<Turn> = instructions.into_iter().chain(earlier).chain(input.iter().cloned()).collect();
    let tools = Tools::read(&mut fields, "parameters", &mut turns)?;
    let format = text(&mut fields)?;
    let store = fields.truth("store")?.unwrap_or(true);
    noted(&mut fields)?;
    include(&mut fields)?;
    fields.refuse("background", |v| v == false)?;
    fields.refuse("conversation", |_| false)?;
    fields.refuse("prompt", |_| false)?;
    fields.refuse("top_logprobs", |v| v == 0)?;
    fields.ignore(&["service_tier", "stream_options", "prompt_cache_retention", "client_metadata"]);
    fields.done_for_answer()?;
    let message = shared.options.store.new_message_id(None);
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
    let conversation = Conversation { field: "input", turns, tools, thinking, ..Conversation::default() };
    Ok((Received { conversation, params, format, record }, Events::new(sent)))
}

pub(super) fn input_tokens(shared: &Shared, fields: Fields) -> Result<Value> {
    let tokens = count(shared, read(shared, fields)?.0.conversation)?;
    Ok(json!({ "object": "response.input_tokens", "input_tokens": tokens }))
}

/// Has the model summarize a conversation: the output, the user's messages and the summary, replaces all items.
pub(super) async fn compact(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response> {
    const TASK: &str = "Sum up this conversation for someone who continues it: what is wanted, what was found and decided, \
                        what is still to do. Keep names, numbers and paths. Write nothing else.";
    let rendered = |shared: &Shared, fields: Fields| {
        let (Received { conversation, params, .. }, _) = read(shared, fields)?;
        let mut turns = conversation.turns;
        let users = turns.iter().filter(|turn| turn.role == ChatRole::User && !turn.text.is_empty());
        let output: Vec<Value> = users.map(message_item).collect();
        turns.push(Turn::new(ChatRole::User, TASK));
        let thinking = Thinking { mode: ThinkMode::Off, budget: None };
        let conversation = Conversation { field: "input", turns, thinking, ..Conversation::default() };
        Ok((render(shared, conversation)?, params, output))
    };
    let (prompt, params, mut output) = request::read(&shared, request, rendered).await?;
    let all = collect(submit(&shared, prompt, params, None, shared.options.serve.queue)?).await?;
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

fn message_item(turn: &Turn) -> Value {
    let files = turn.files.iter().map(|file| json!({ "type": "input_file", "file_id": file }));
    let content: Value = files.chain([json!({ "type": "input_text", "text": turn.text })]).collect();
    let id = fresh_id("msg_");
    json!({ "type": "message", "id": id, "role": "user", "status": "completed", "content": content })
}

pub(super) fn get(shared: &Shared, id: &str, mut query: Fields) -> Result<Value> {
    own_data()?;
    let what = "is for an answer that is being written: of one that is kept there is the whole object, without stream";
    query.refuse_because("stream", what, |word| word == "false")?;
    shared.records.get(id, "response_id").map(|record| record.response)
}

pub(super) fn delete(shared: &Shared, id: &str, _: Fields) -> Result<Value> {
    own_data()?;
    shared.records.delete(id)?;
    Ok(json!({ "id": id, "object": "response", "deleted": true }))
}
