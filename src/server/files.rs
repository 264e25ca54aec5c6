//! Documents of requests. Those of the terminal's library have ids: the server lists them, and puts them in front of a
//! question that names them, in the terminal's form. So the search by text finds their kept state, and they need no
//! prefill. Others are part of the request, in base64.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::context::program;
use super::{Conversation, Refusal, Result, Shared, Turn, blocking, model, object, own_data};
use crate::config::settings::LoadConfig;
use crate::core::counted;
use crate::engine::protocol::Cancel;
use crate::runtime::path::Path;
use crate::runtime::render::safe_name;
use crate::runtime::segments::document_text;
use crate::store::{DocumentRecord, StoreError};
use crate::text::sources::{self, Remark, SourceError, SourceOptions};
use crate::text::{ChatMessage, ChatRole, decode};

const ID_CHARACTERS: usize = 32;
const PDF: &str = "application/pdf";
/// Time to read a PDF; its request waits.
const PDF_TIME: Duration = Duration::from_secs(60);

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

/// The list, or the one document of an id, looked up on a thread of its own.
pub(super) async fn described(shared: Arc<Shared>, id: Option<String>) -> Result<Response> {
    let look = move || {
        own_data()?;
        let records = documents(&shared)?;
        match id {
            None => {
                let data: Value = records.iter().map(describe).collect();
                Ok(json!({ "object": "list", "data": data, "has_more": false }))
            }
            Some(id) => records.iter().find(|r| id_of(r) == id).map(describe).ok_or_else(|| unknown(&id, "file_id")),
        }
    };
    blocking(look).await.map(|value| object(&value))
}

/// The two turns that show a document to the model, and the path of its state.
fn turns(shared: &Shared, record: &DocumentRecord, field: &str) -> Result<([Turn; 2], Path)> {
    let document = &record.document;
    let gone = || {
        let message = format!("what was read of {} is not kept any more; load it again", document.name);
        Refusal::new(404, "file_not_found", message).about(field)
    };
    let path = match shared.options.library.as_ref().map(|library| library.load_path(&document.segment)) {
        Some(Ok(segments)) => Path::new(segments),
        None | Some(Err(StoreError::NoSegment { .. })) => return Err(gone()),
        Some(Err(e)) => return Err(internal(e)),
    };
    let text = document_text(&shared.renderer, &path, document.prefix, &document.name).ok_or_else(gone)?;
    let [body, read] = ChatMessage::document(&safe_name(&document.name), text.trim_matches(['\n', '\r']));
    Ok(([Turn::new(ChatRole::User, body.content), Turn::new(ChatRole::Assistant, read.content)], path))
}

/// Puts the documents in front of the turns that name them. A conversation that begins with a document and has no
/// system text gets the document's system text.
pub(super) fn put_in(shared: &Shared, conversation: &mut Conversation) -> Result<()> {
    let field = conversation.field;
    let records = documents(shared)?;
    let mut all = Vec::new();
    for mut turn in std::mem::take(&mut conversation.turns) {
        for id in std::mem::take(&mut turn.files) {
            let record = records.iter().find(|r| id_of(r) == id).ok_or_else(|| unknown(&id, field))?;
            let (document, path) = turns(shared, record, field)?;
            if all.is_empty()
                && let Some(system) = &shared.options.system
            {
                let mut begun = vec![Turn::new(ChatRole::System, system)];
                begun.extend(document.clone());
                let requested = Turn::new(ChatRole::User, "?");
                let turns = begun.iter().cloned().chain([requested]).collect();
                let after = Conversation { turns, field, thinking: conversation.thinking, ..Conversation::default() };
                let text = after.render(&shared.renderer)?.text;
                if path.unchanged(&text).segments().len() == path.segments().len() {
                    all = begun;
                    continue;
                }
            }
            all.extend(document);
        }
        // A turn of documents alone is a question too.
        all.push(turn);
    }
    conversation.turns = all;
    Ok(())
}

/// The text of a file in base64, by its media type: text, or a PDF. `field` holds it.
pub(super) fn sent(name: &str, media: &str, data: &str, field: &str) -> Result<String> {
    if media != PDF && !media.starts_with("text/") {
        let what = "only text and PDF can be sent. Add the file to the library (sala-chat library add FILE) and name it as in docs/serve.md";
        return Err(Refusal::field(field, format!("{field} is {media}: {what}")));
    }
    let wrong = |what: String| Refusal::field(field, format!("{field}: {name} {what}"));
    let bytes = STANDARD.decode(data.replace(char::is_whitespace, "")).ok();
    if media == PDF {
        return pdf(name, &bytes.ok_or_else(|| wrong("is not base64".into()))?).map_err(wrong);
    }
    let decoded = bytes.and_then(|bytes| decode(bytes, false).ok());
    decoded.map(|decoded| decoded.text).ok_or_else(|| wrong("is not text in base64".into()))
}

/// The text of a PDF, by the reader of `/load`. Unreadable pages are named in the log. The error is a phrase.
fn pdf(name: &str, bytes: &[u8]) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|e| format!("cannot be read: {e}"))?;
    let file = folder.path().join("document.pdf");
    std::fs::write(&file, bytes).map_err(|e| format!("cannot be read: {e}"))?;
    let options =
        SourceOptions { reader: program(), convert_time: PDF_TIME, ..SourceOptions::new(&LoadConfig::default()) };
    let read = sources::gather(&[file.display().to_string()], &options, &Cancel::default());
    let document = read.map(|mut read| read.documents.pop()).map_err(|e| match e {
        SourceError::NoTextLayer { pages, .. } => {
            format!("has {}, and no text on them (perhaps a scan)", counted(pages as u64, "page"))
        }
        SourceError::Document { reason, .. } => format!("cannot be read: {reason}"),
        other => format!("cannot be read: {}", other.to_string().replace(&file.display().to_string(), name)),
    })?;
    let document = document.ok_or("is empty")?;
    if let Some(Remark::Missing(what)) = document.note {
        tracing::warn!("{name}, sent as a PDF: {what}");
    }
    Ok(document.text)
}
