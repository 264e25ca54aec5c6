//! Paths with the id of a response: get it, list its input, delete it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde_json::{Value, json};

use super::Shared;
use super::context::{blocking, own_data};
use super::fields::Fields;
use super::notice::{Choice, Item};
use super::records::{Named, Records};
use super::refusal::Refusal;
use super::request::{Id, model, object};
use super::response::{Sent, Status, call_item, given, repeated};
use super::tools::Tools;
use super::turns::Turn;
use crate::core::transcript::Finish;
use crate::engine::protocol::Sampling;
use crate::text::ChatRole;

/// Default and maximum items of a page.
const PAGE: u64 = 20;
const MOST: u64 = 100;

/// Uses the records on a thread of its own, since they may read the disk.
async fn with_records<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Records) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    own_data()?;
    let shared = Arc::clone(shared);
    blocking(move || work(&shared.records)).await
}

/// The object of an answer from an earlier version's store, with the fields that are known.
fn from_turns(shared: &Shared, id: String, named: &Named) -> Result<Value, Refusal> {
    let answer = named.turns.last().cloned().unwrap_or_else(|| Turn::new(ChatRole::Assistant, ""));
    let mut items = vec![Item::Thoughts(answer.thinking), Item::Text(answer.text)];
    items.retain(|item| !matches!(item, Item::Thoughts(text) | Item::Text(text) if text.is_empty()));
    items.extend(answer.calls.into_iter().map(Item::Call));
    let choice = Choice { items, ..Choice::default() };
    let sent = Sent {
        unique: format!("{:016x}", named.message.0),
        created: named.created,
        completed: Arc::new(named.created.into()),
        model: model(shared)?.name,
        repeated: repeated(given(&Fields::default()), None, &Sampling::default(), &Tools::default()),
        tools: Arc::default(),
        id,
    };
    Ok(sent.response(Status::of(Finish::Stop, &choice), Some(&choice), None))
}

/// The query string: words and numbers without escapes.
fn query(uri: &Uri) -> Result<Fields, Refusal> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    Fields::body(pairs.map(|(name, value)| (name.to_owned(), Value::from(value))).collect())
}

pub(super) async fn get(State(shared): State<Arc<Shared>>, Id(id): Id, uri: Uri) -> Result<Response, Refusal> {
    let what = "is for an answer that is being written: of one that is kept there is the whole object, without stream";
    query(&uri)?.refuse_because("stream", what, |word| word == "false")?;
    let wanted = id.clone();
    let named = with_records(&shared, move |records| records.get(&wanted)).await?;
    let response = if named.response.is_null() { from_turns(&shared, id, &named)? } else { named.response };
    Ok(object(&response))
}

pub(super) async fn delete(State(shared): State<Arc<Shared>>, Id(id): Id) -> Result<Response, Refusal> {
    let gone = id.clone();
    with_records(&shared, move |records| records.delete(&gone)).await?;
    Ok(object(&json!({ "id": id, "object": "response", "deleted": true })))
}

fn items(turn: &Turn, id: &str) -> Vec<Value> {
    if let Some(call) = &turn.call_id {
        return vec![json!({
            "type": "function_call_output", "id": id, "call_id": call, "output": turn.text, "status": "completed",
        })];
    }
    let (role, part) = match turn.role {
        ChatRole::System => ("system", "input_text"),
        ChatRole::Assistant => ("assistant", "output_text"),
        ChatRole::User | ChatRole::Tool => ("user", "input_text"),
    };
    let mut items = Vec::new();
    let mut content: Vec<Value> =
        turn.files.iter().map(|file| json!({ "type": "input_file", "file_id": file })).collect();
    if !turn.text.is_empty() || (turn.calls.is_empty() && content.is_empty()) {
        content.push(json!({ "type": part, "text": turn.text }));
    }
    if !content.is_empty() {
        items.push(json!({
            "type": "message", "id": id, "role": role, "status": "completed", "content": content,
        }));
    }
    items.extend(turn.calls.iter().map(|call| call_item(call, &Tools::default(), "completed")));
    items
}

fn input(named: &Named, mut fields: Fields) -> Result<Value, Refusal> {
    let order = fields.text("order")?;
    let after = fields.text("after")?;
    let limit = match fields.text("limit")?.map(|n| n.parse::<u64>()) {
        None => PAGE,
        Some(Ok(n)) if (1..=MOST).contains(&n) => n,
        Some(_) => return Err(fields.wrong("limit", format!("must be a whole number from 1 to {MOST}"))),
    };
    fields.ignore(&["include", "include[]", "include%5B%5D"]);
    let newest_first = match order.as_deref() {
        None | Some("desc") => true,
        Some("asc") => false,
        Some(_) => return Err(fields.wrong("order", "must be asc or desc")),
    };
    let requested = named.turns.split_last().map_or(&[][..], |(_, requested)| requested);
    let id = |i: usize| format!("msg_{:016x}_{i}", named.message.0);
    let mut all: Vec<Value> = requested.iter().enumerate().flat_map(|(i, turn)| items(turn, &id(i))).collect();
    if newest_first {
        all.reverse();
    }
    if let Some(after) = after {
        let at = all.iter().position(|item| item["id"] == after.as_str());
        let at = at.ok_or_else(|| fields.wrong("after", format!("{after} is not among the items")))?;
        all.drain(..=at);
    }
    fields.done()?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = all.len() > limit;
    all.truncate(limit);
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first_id, last_id) = (id(all.first()), id(all.last()));
    Ok(json!({ "object": "list", "data": all, "first_id": first_id, "last_id": last_id, "has_more": has_more }))
}

pub(super) async fn input_items(State(shared): State<Arc<Shared>>, Id(id): Id, uri: Uri) -> Result<Response, Refusal> {
    let named = with_records(&shared, move |records| records.get(&id)).await?;
    Ok(object(&input(&named, query(&uri)?)?))
}
