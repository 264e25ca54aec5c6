//! Documents of the terminal's library, by id: lists them, and puts them in front of a question that names them, in
//! the terminal's form. So the search by text finds their kept state, and they need no prefill. Reads files that a
//! request holds itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::request::current;
use super::{
    Conversation, Fields, Refusal, Result, Shared, Turn, VERSION, blocking, date, locked, model, object, own_data,
};
use crate::config::settings::LoadConfig;
use crate::core::{counted, plain_words};
use crate::runtime::render::safe_name;
use crate::runtime::{text_decoded, text_of_a_session};
use crate::store::{DocumentRecord, StoreError};
use crate::text::sources::{self, Cause, Problem, Remark, SourceError, SourceOptions};
use crate::text::{ChatMessage, ChatRole, decode};

const PDF: &str = "application/pdf";
/// Seconds and text for all PDFs of a request.
const PDFS_S: u64 = 120;
const PDFS_MIB: u64 = 32;
/// Those that are read at a time, in all requests.
static READERS: Semaphore = Semaphore::const_new(2);
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

/// The fields of OpenAI and Anthropic, which have different times.
fn describe(record: &DocumentRecord, of_anthropic: bool) -> Value {
    let used_s = record.used_ms / 1_000;
    // The store does not record the time of the first prefill.
    let created_at = if of_anthropic { json!(date(used_s)) } else { used_s.into() };
    json!({
        "id": id_of(record),
        "object": "file",
        "purpose": "user_data",
        "status": "processed",
        "filename": record.document.name,
        "created_at": created_at,
        "bytes": record.text_bytes,
        "type": "file",
        "mime_type": "text/plain",
        "size_bytes": record.text_bytes,
        "state_bytes": record.bytes,
        "used_at": used_s,
        "tokens": record.document.tokens,
        "kept": record.kept,
    })
}

pub(super) async fn listed(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<Response> {
    let of_anthropic = headers.contains_key(VERSION);
    blocking(move || {
        own_data()?;
        let data: Value = documents(&shared)?.iter().map(|record| describe(record, of_anthropic)).collect();
        Ok(object(&json!({ "object": "list", "data": data, "has_more": false })))
    })
    .await
}

pub(super) fn described(shared: &Shared, id: &str, query: Fields) -> Result<Value> {
    own_data()?;
    let records = documents(shared)?;
    let found = records.iter().find(|r| id_of(r) == id).map(|record| describe(record, query.has(VERSION)));
    found.ok_or_else(|| unknown(id, "file_id"))
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

/// The text of a file in base64, by its media type: text, or a PDF. `field` holds it.
pub(super) fn sent(name: &str, media: &str, data: &str, field: &str) -> Result<String> {
    if media != PDF && !media.starts_with("text/") {
        let what = "only text and PDF can be sent. Add the file to the library (sala-chat library add FILE) and name it as in docs/serve.md";
        return Err(Refusal::field(field, format!("{field} is {media}: {what}")));
    }
    let wrong = |what: String| Refusal::field(field, format!("{field}: {name} {what}"));
    let bytes = STANDARD.decode(data.replace(char::is_whitespace, "")).ok();
    if media == PDF {
        return pdf(name, &bytes.ok_or_else(|| wrong("is not base64".into()))?, wrong);
    }
    let decoded = bytes.and_then(|bytes| decode(bytes, false).ok());
    decoded.map(|decoded| decoded.text).ok_or_else(|| wrong("is not text in base64".into()))
}

/// The text of a PDF, by the reader of `/load`. Unreadable pages are named in the log. `wrong` refuses its content.
fn pdf(name: &str, bytes: &[u8], wrong: impl Fn(String) -> Refusal) -> Result<String> {
    let context = current();
    let mut left = locked(&context.pdfs);
    let (end, room) = left.get_or_insert_with(|| (Instant::now() + Duration::from_secs(PDFS_S), PDFS_MIB << 20));
    let time = || end.saturating_duration_since(Instant::now());
    let beyond = || wrong(format!("is too much: a request's PDFs may take {PDFS_S} s and have {PDFS_MIB} MiB of text"));
    let fault = |why: String| Refusal::internal(format!("{name} cannot be read here: {why}"));
    let _turn = loop {
        match READERS.try_acquire() {
            _ if time().is_zero() || context.ended.is_cancelled() => return Err(beyond()),
            Ok(turn) => break turn,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let folder = tempfile::tempdir().map_err(|e| fault(plain_words(&e)))?;
    let file = folder.path().join("document.pdf");
    std::fs::write(&file, bytes).map_err(|e| fault(plain_words(&e)))?;
    let (reader, all) = (context.program.clone(), SourceOptions::new(&LoadConfig::default()));
    let options = SourceOptions { reader, max_file_bytes: *room, convert_time: time(), ..all };
    let unread = |problem: Problem| match problem {
        Problem::NoTextLayer { pages } => {
            wrong(format!("has {}, and no text on them (perhaps a scan)", counted(pages as u64, "page")))
        }
        Problem::NeedsConverter { .. } => wrong("is no PDF".to_owned()),
        Problem::Io(reason) | Problem::Document { reason, cause: Cause::Start, .. } => fault(reason),
        Problem::TooLarge { .. } | Problem::Document { cause: Cause::Size, .. } => beyond(),
        Problem::Document { .. } if time().is_zero() => beyond(),
        Problem::Document { reason, .. } => wrong(format!("cannot be read: {reason}")),
        other => wrong(format!("cannot be read: {other}")),
    };
    let read = sources::gather(&[file.display().to_string()], &options, &context.ended).map_err(|e| match e {
        SourceError::File { problem, .. } => unread(problem),
        other => wrong(format!("cannot be read: {other}")),
    });
    let document = read?.documents.pop().ok_or_else(|| wrong("is empty".into()))?;
    *room = room.saturating_sub(document.text.len() as u64);
    if let Some(Remark::Missing(what)) = document.note {
        tracing::warn!("{name:?}, sent as a PDF: {what}");
    }
    Ok(document.text)
}
