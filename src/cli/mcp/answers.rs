//! Results of tools: objects, which the protocol's library repeats as text.

use rmcp::model::CallToolResult;
use serde_json::{Value, json};

use crate::cli::library_cmd::answers_object;
use crate::cli::oneshot::{looked_at, reason};
use crate::core::transcript::{Finish, Role};
use crate::runtime::protocol::SearchRow;
use crate::runtime::protocol::{Level, Notice};
use crate::store::DocumentRecord;

pub(super) type Answered = Result<CallToolResult, String>;

fn notes(notices: &[Notice], wanted: impl Fn(Level) -> bool) -> Vec<&str> {
    let notes = notices.iter().filter_map(|notice| match notice {
        Notice::Note(level, text) if wanted(*level) => Some(text.as_str()),
        _ => None,
    });
    notes.collect()
}

fn row(d: &DocumentRecord) -> Value {
    json!({
        "name": d.document.name, "path": d.document.path, "tokens": d.document.tokens, "lines": d.document.lines,
        "kept": d.kept
    })
}

pub(super) fn documents(documents: &[DocumentRecord]) -> CallToolResult {
    CallToolResult::structured(json!({ "documents": documents.iter().map(row).collect::<Value>() }))
}

pub(super) fn added(notices: &[Notice], documents: &[DocumentRecord]) -> Answered {
    let notes = notes(notices, |_| true);
    if documents.is_empty() {
        return Err(format!("Nothing was added. {}", notes.join(" ")));
    }
    Ok(CallToolResult::structured(json!({ "documents": documents.iter().map(row).collect::<Value>(), "notes": notes })))
}

pub(super) fn answer(notices: &[Notice]) -> Answered {
    let finished = notices.iter().find_map(|notice| match notice {
        Notice::Finished(message) if message.role == Role::Assistant => Some(message),
        _ => None,
    });
    let warnings = notes(notices, |level| level != Level::Info);
    let Some(message) = finished.filter(|m| m.meta.finish != Some(Finish::Failed)) else {
        return Err(if warnings.is_empty() { "There was no answer.".to_owned() } else { warnings.join(" ") });
    };
    let meta = &message.meta;
    let passages = meta.looked.as_ref().map_or(&[][..], |l| &l.passages);
    Ok(CallToolResult::structured(json!({
        "answer": message.text,
        "finish_reason": reason(meta.finish),
        "quotes": meta.quotes,
        "looked_at": looked_at(passages),
        "usage": {
            "read": meta.prefilled_tokens, "reused": meta.reused_tokens, "generated": meta.completion_tokens
        },
        "notes": warnings,
    })))
}

pub(super) fn answers(notices: &[Notice]) -> Answered {
    let answers =
        notices.iter().find_map(|notice| if let Notice::FanOut(answers) = notice { Some(answers) } else { None });
    let answers = answers.ok_or("No document answered.")?;
    Ok(CallToolResult::structured(answers_object(answers)))
}

/// The answer of `when`: the lines from which on each answer holds.
pub(super) fn when(notices: &[Notice]) -> Answered {
    let text =
        notices.iter().find_map(|notice| if let Notice::Page { text, .. } = notice { Some(text.trim()) } else { None });
    let text = text.ok_or("There was no answer.")?;
    Ok(CallToolResult::structured(json!({ "text": text })))
}

pub(super) fn hits(hits: &[SearchRow]) -> CallToolResult {
    let row = |h: &SearchRow| json!({ "session": h.session, "message": h.number, "snippet": h.snippet });
    CallToolResult::structured(json!({ "hits": hits.iter().map(row).collect::<Value>() }))
}
