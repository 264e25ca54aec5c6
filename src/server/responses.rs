//! `POST /v1/responses`: OpenAI's responses. An id names the state after an answer: a request that names an older one
//! forks there. `named` handles later requests about an id.

mod events;
pub(super) mod named;
mod repeated;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::ask::Params;
use super::body::{self, object};
use super::collected::{Choice, collect};
use super::content::{REFUSAL, content, question};
use super::context::{blocking, leave_out, own_data};
use super::fields::{Fields, kind};
use super::ids::fresh_id;
use super::plain::encode;
use super::prompt::Conversation;
use super::ready::model_named;
use super::records::{Record, Records};
use super::refusal::Refusal;
use super::reply::{ask, render, submit};
use super::response::{Sent, Status, usage};
use super::sampling::{effort, format_of, most_tokens, params, stops};
use super::stream::stream;
use super::tools::{Tools, called};
use super::turns::{Call, Turn, arguments};
use super::{Shared, now_s};
use crate::core::transcript::{Finish, MessageId};
use crate::engine::protocol::ModelInfo;
use crate::runtime::protocol::ThinkMode;
use crate::text::ChatRole;
use crate::text::grammar::Grammar;
use events::Events;
use repeated::Repeated;

/// Types of text parts in messages.
const TEXTS: [&str; 3] = ["input_text", "output_text", "text"];
/// Types of text parts in earlier answers.
const OWN_TEXTS: [&str; 4] = ["input_text", "output_text", "text", REFUSAL];

/// The start of the summary of a compacted conversation; the summary is not encrypted.
const SUMMARY: &str = "Summary of the conversation so far:\n";

fn add_call(call: Call, turns: &mut Vec<Turn>) {
    match turns.last_mut().filter(|t| t.role == ChatRole::Assistant) {
        Some(turn) => turn.calls.push(call),
        None => turns.push(Turn { calls: vec![call], ..Turn::new(ChatRole::Assistant, "") }),
    }
}

fn item(records: &Records, value: Value, at: &str, turns: &mut Vec<Turn>) -> Result<(), Refusal> {
    let mut fields = Fields::of(value, at)?;
    let id = fields.text("id")?.unwrap_or_default();
    fields.ignore(&["status"]);
    match fields.text("type")?.as_deref() {
        // The type of a reference may be left out.
        of @ (Some("item_reference") | None) if of.is_some() || !(fields.has("role") || id.is_empty()) => {
            fields.done()?;
            return item(records, records.item(&id, &format!("{at}.id"))?, at, turns);
        }
        None | Some("message") => {
            let role = match fields.text("role")?.as_deref() {
                Some("system" | "developer") => ChatRole::System,
                Some("user") => ChatRole::User,
                Some("assistant") => ChatRole::Assistant,
                other => {
                    let what = other.unwrap_or("nothing");
                    return Err(
                        fields.wrong("role", format!("must be system, developer, user or assistant, it is {what}"))
                    );
                }
            };
            let place = fields.name("content");
            let value = fields.need("content")?;
            turns.push(match role {
                ChatRole::User => question(Some(value), &place, &TEXTS)?,
                ChatRole::Assistant => Turn::new(role, content(Some(value), &place, &OWN_TEXTS)?),
                _ => Turn::new(role, content(Some(value), &place, &TEXTS)?),
            });
            fields.ignore(&["phase"]);
        }
        Some("function_call") => {
            let id = fields.text("call_id")?.unwrap_or_default();
            let name = called(&mut fields)?.unwrap_or_default();
            add_call(Call::new(id, name, arguments(&fields.text("arguments")?.unwrap_or_default())), turns);
        }
        Some("custom_tool_call") => {
            let id = fields.text("call_id")?.unwrap_or_default();
            let name = called(&mut fields)?.unwrap_or_default();
            let input = fields.text("input")?.unwrap_or_default();
            add_call(Call::new(id, name, json!({ "input": input })), turns);
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let place = fields.name("output");
            let text = content(fields.take("output"), &place, &TEXTS)?;
            turns.push(Turn { call_id: fields.text("call_id")?, ..Turn::new(ChatRole::Tool, text) });
        }
        // Thoughts of an earlier answer: the template drops them.
        Some("reasoning") => fields.ignore(&["summary", "content", "encrypted_content"]),
        Some("compaction" | "compaction_summary") => {
            turns.push(Turn::new(ChatRole::User, fields.text("encrypted_content")?.unwrap_or_default()));
            fields.ignore(&["created_by"]);
        }
        // Results of another server's tools.
        Some(other) if leave_out(&format!("{at}.{other}")) => return Ok(()),
        Some(other) => return Err(fields.wrong("type", format!("is {other:?}, which is not supported"))),
    }
    fields.done()
}

fn input(records: &Records, fields: &mut Fields) -> Result<Vec<Turn>, Refusal> {
    let mut turns = Vec::new();
    match fields.need("input")? {
        Value::String(text) => turns.push(Turn::new(ChatRole::User, text)),
        Value::Array(items) => {
            for (i, value) in items.into_iter().enumerate() {
                item(records, value, &format!("input[{i}]"), &mut turns)?;
            }
        }
        other => return Err(fields.wrong("input", format!("must be a string or an array, it is {}", kind(&other)))),
    }
    if turns.is_empty() {
        return Err(fields.wrong("input", "is empty: there is nothing to answer"));
    }
    Ok(turns)
}

/// Reads `text`: the value for the response, and its grammar.
fn text_format(fields: &mut Fields) -> Result<(Value, Option<Grammar>), Refusal> {
    let given = fields.take("text");
    let shown = repeated::text(given.as_ref());
    let Some(given) = given else { return Ok((shown, None)) };
    let mut text = Fields::of(given, "text")?;
    let grammar = match text.object("format")? {
        Some(format) => format_of(format, "schema")?,
        None => None,
    };
    text.ignore(&["verbosity"]);
    text.done().map(|()| (shown, grammar))
}

/// Reads `reasoning`: the requested effort, and its think mode.
fn reasoning(shared: &Shared, fields: &mut Fields) -> Result<(Option<String>, ThinkMode), Refusal> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok((None, shared.settings.think)) };
    let given = reasoning.peek("effort").and_then(|effort| effort.as_str().map(str::to_owned));
    let think = effort(&mut reasoning, "effort", shared.settings.think)?;
    reasoning.ignore(&["summary", "generate_summary"]);
    reasoning.done().map(|()| (given, think))
}

/// Reads `include`: thoughts are always included, in plain text, and no other extra output exists.
fn include(fields: &mut Fields) -> Result<(), Refusal> {
    for other in fields.list("include")?.into_iter().flatten().filter(|of| of != "reasoning.encrypted_content") {
        let other = other.as_str().unwrap_or("what is no text").to_owned();
        if !leave_out(&format!("include.{other}")) {
            let mut refusal = fields.wrong("include", format!("names {other}, which is not available here"));
            refusal.code = "unsupported_parameter";
            return Err(refusal);
        }
    }
    Ok(())
}

struct Received {
    repeated: Repeated,
    input: Vec<Turn>,
    params: Params,
    think: ThinkMode,
    streamed: bool,
    grammar: Option<Grammar>,
}

fn read(shared: &Shared, mut fields: Fields, input: Vec<Turn>) -> Result<Received, Refusal> {
    let instructions = fields.text("instructions")?;
    let previous = fields.text("previous_response_id")?;
    let mut max_output_tokens = None;
    for name in ["max_output_tokens", "max_completion_tokens", "max_tokens"] {
        max_output_tokens = max_output_tokens.or(most_tokens(&mut fields, name, 1)?);
    }
    let stop = stops(&mut fields, "stop")?;
    let params = params(shared, &mut fields, stop, max_output_tokens)?;
    let (effort, think) = reasoning(shared, &mut fields)?;
    let store = fields.truth("store")?.unwrap_or(true);
    let streamed = fields.truth("stream")?.unwrap_or(false);
    let tools = Tools::read(&mut fields, "parameters")?;
    let (text, grammar) = text_format(&mut fields)?;
    let noted = repeated::noted(&mut fields)?;
    fields.refuse("background", |v| v == false)?;
    fields.refuse("top_logprobs", |v| v == 0)?;
    include(&mut fields)?;
    fields.ignore(&["service_tier", "stream_options", "prompt_cache_retention", "client_metadata"]);
    fields.done_for_answer()?;
    let sampling = params.sampling;
    let repeated = Repeated { instructions, previous, max_output_tokens, store, effort, sampling, tools, text, noted };
    Ok(Received { repeated, input, params, think, streamed, grammar })
}

/// The earlier answer that a request continues, and the turns up to it.
async fn earlier(shared: &Arc<Shared>, id: Option<String>) -> Result<(Option<MessageId>, Vec<Turn>), Refusal> {
    let Some(id) = id else { return Ok((None, Vec::new())) };
    own_data()?;
    let shared = Arc::clone(shared);
    let found = blocking(move || shared.records.find(&id, "previous_response_id")).await;
    found.map(|(at, turns)| (Some(at), turns))
}

/// Reads a request together with the conversation that it continues.
async fn received(
    shared: &Arc<Shared>,
    request: Request,
) -> Result<(ModelInfo, Received, Option<MessageId>, Vec<Turn>), Refusal> {
    let (mut fields, ()) = body::read(request, |_| Ok(())).await?;
    let info = model_named(shared, fields.text("model")?)?;
    let of = Arc::clone(shared);
    let request = blocking(move || {
        let input = input(&of.records, &mut fields)?;
        read(&of, fields, input)
    });
    let request = request.await?;
    let (parent, earlier) = earlier(shared, request.repeated.previous.clone()).await?;
    let instructions = request.repeated.instructions.iter().map(|text| Turn::new(ChatRole::System, text));
    let turns = instructions.chain(earlier).chain(request.input.iter().cloned()).collect();
    Ok((info, request, parent, turns))
}

pub(super) async fn responses(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let shared = &shared;
    let (info, request, parent, turns) = received(shared, request).await?;
    let Received { repeated, input, params, think, streamed, grammar } = request;
    let message = shared.records.fresh();
    let tools = repeated.tools.clone();
    let conversation = Conversation { turns, tools: tools.clone(), think, ..Conversation::default() };
    let sent = Sent {
        id: Records::id(message),
        created: now_s(),
        completed: Arc::default(),
        model: info.name,
        repeated: repeated.shown(),
        thoughts_id: fresh_id("rs_"),
        message_id: fresh_id("msg_"),
        tools: tools.into(),
    };
    let record = repeated.store.then(|| Record::new(message, parent, input, sent.clone()));
    let listener = ask(shared, conversation, "input", params, grammar.map(|g| (g, "text")), 1, record).await?;
    if streamed {
        return stream(listener, Events::new(sent)).await;
    }
    let all = collect(listener, 1).await?;
    let choice = all.choices.into_iter().next().unwrap_or_default();
    let finish = choice.whole.as_ref().map_or(Finish::Failed, |w| w.finish);
    Ok(object(&sent.response(Status::of(finish, &choice), Some(&choice), Some(&all.usage))))
}

pub(super) async fn input_tokens(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let shared = &shared;
    let (_, request, _, turns) = received(shared, request).await?;
    let (tools, think) = (request.repeated.tools, request.think);
    let prompt = render(shared, Conversation { turns, tools, think, ..Conversation::default() }, "input").await?;
    let tokens = encode(shared, prompt.rendered.text.clone(), true).await?;
    Ok(object(&json!({ "object": "response.input_tokens", "input_tokens": tokens.len() })))
}

/// Has the model summarize a conversation. The output is the user's messages and the summary; the client sends it in
/// place of all items.
pub(super) async fn compact(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let shared = &shared;
    const TASK: &str = "Sum up this conversation for someone who continues it: what is wanted, what was found and decided, \
                        what is still to do. Keep names, numbers and paths. Write nothing else.";
    let (_, request, _, mut turns) = received(shared, request).await?;
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
    let prompt = render(shared, conversation, "input").await?;
    let all = collect(submit(shared, prompt, request.params, 1, None, shared.queue)?, 1).await?;
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
