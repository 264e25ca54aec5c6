//! Documents of the terminal's library, by id: lists them, and puts them in front of a question that names them, in
//! the terminal's form. So the search by text finds their kept state, and they need no prefill.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::{Conversation, Fields, Refusal, Result, Shared, Turn, blocking, model, object, own_data};
use crate::runtime::render::safe_name;
use crate::runtime::{text_decoded, text_of_a_session};
use crate::store::{DocumentRecord, StoreError};
use crate::text::{ChatMessage, ChatRole};

const ID_CHARACTERS: usize = 32;

fn id_of(record: &DocumentRecord) -> String {
    let hex = record.document.segment.hex();
    format!("file-{}", hex.get(..ID_CHARACTERS).unwrap_or(&hex))
}

fn unknown(id: &str, field: &str) -> Refusal {
    let message = format!("there is no document {id} in the library; GET /v1/files lists them");
    Refusal::new(404, "file_not_found", message).about(field)
}

fn internal(e: StoreError) -> Refusal {
    Refusal::internal(format!("the library cannot be read: {e}"))
}

/// The documents of the library with state of this model.
fn documents(shared: &Shared) -> Result<Vec<DocumentRecord>> {
    let fingerprint = model(shared)?.fingerprint;
    let Some(library) = shared.options.library.as_deref() else { return Ok(Vec::new()) };
    let mut records = library.documents().map_err(internal)?;
    records.retain(|r| r.fingerprint == fingerprint);
    Ok(records)
}

fn describe(record: &DocumentRecord) -> Value {
    json!({
        "id": id_of(record),
        "object": "file",
        "purpose": "user_data",
        "status": "processed",
        "filename": record.document.name,
        // The store does not record the time of the first prefill.
        "created_at": null,
        "bytes": record.text_bytes,
        "state_bytes": record.bytes,
        "used_at": record.used_ms / 1_000,
        "tokens": record.document.tokens,
        "kept": record.kept,
    })
}

pub(super) async fn listed(State(shared): State<Arc<Shared>>) -> Result<Response> {
    blocking(move || {
        own_data()?;
        let data: Value = documents(&shared)?.iter().map(describe).collect();
        Ok(object(&json!({ "object": "list", "data": data, "has_more": false })))
    })
    .await
}

pub(super) fn described(shared: &Shared, id: &str, _: Fields) -> Result<Value> {
    own_data()?;
    let records = documents(shared)?;
    records.iter().find(|r| id_of(r) == id).map(describe).ok_or_else(|| unknown(id, "file_id"))
}

/// The two turns that show a document to the model.
fn turns(shared: &Shared, record: &DocumentRecord, field: &str) -> Result<[Turn; 2]> {
    let name = &record.document.name;
    let read = |library| match text_of_a_session(library, record)? {
        Some(text) => Ok(Some(text)),
        None => text_decoded(library, &shared.renderer, record),
    };
    let text = shared.options.library.as_deref().map(read).transpose().map_err(internal)?;
    let Some(text) = text.flatten() else {
        let message = format!("what was read of {name} is not kept any more; load it again");
        return Err(Refusal::new(404, "file_not_found", message).about(field));
    };
    let [body, read] = ChatMessage::document(&safe_name(name), text.trim_matches(['\n', '\r']));
    Ok([Turn::new(ChatRole::User, body.content), Turn::new(ChatRole::Assistant, read.content)])
}

/// Puts the documents in front of the turns that name them. A conversation that begins with a document has the
/// terminal's system text, as the document's state has.
pub(super) fn put_in(shared: &Shared, conversation: &mut Conversation) -> Result<()> {
    let records = documents(shared)?;
    let begins = conversation.turns.first().is_some_and(|turn| !turn.files.is_empty());
    let system = shared.options.system.iter().filter(|_| begins);
    let mut all: Vec<Turn> = system.map(|system| Turn::new(ChatRole::System, system)).collect();
    for mut turn in std::mem::take(&mut conversation.turns) {
        for id in std::mem::take(&mut turn.files) {
            let record = records.iter().find(|r| id_of(r) == id).ok_or_else(|| unknown(&id, conversation.field))?;
            all.extend(turns(shared, record, conversation.field)?);
        }
        // A turn of documents alone is a question too.
        all.push(turn);
    }
    conversation.turns = all;
    Ok(())
}
