//! Results of tools: an object, and the same as text for clients that show no objects.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::library::Found;
use crate::cli::library_cmd::answers_object;
use crate::cli::oneshot::{looked_at, reason};
use crate::core::transcript::{Finish, Match, Message, Role};
use crate::runtime::protocol::SearchRow;
use crate::runtime::protocol::{Level, Notice};
use crate::store::DocumentRecord;
use crate::tui::fan_out::sentences;

const SHOWN: usize = 5;

pub(super) type Answered = Result<CallToolResult, String>;

pub(super) fn result(text: String, object: Value) -> CallToolResult {
    let mut result = CallToolResult::structured(object);
    result.content = vec![ContentBlock::text(text)];
    result
}

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
    match documents {
        [] => Err(format!("Nothing was added. {}", notes.join(" "))),
        documents => {
            let object = json!({ "documents": documents.iter().map(row).collect::<Value>(), "notes": notes });
            Ok(result(notes.join("\n"), object))
        }
    }
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
    let object = json!({
        "answer": message.text,
        "finish_reason": reason(meta.finish),
        "quotes": meta.quotes,
        "looked_at": looked_at(passages),
        "usage": {
            "read": meta.prefilled_tokens, "reused": meta.reused_tokens, "generated": meta.completion_tokens
        },
        "notes": warnings,
    });
    Ok(result(text(message), object))
}

fn text(message: &Message) -> String {
    let meta = &message.meta;
    let mut text = message.text.trim().to_owned();
    let quotes: Vec<String> = (1..).zip(&meta.quotes).map(|(k, quote)| format!("[{k}] {}", quote.place())).collect();
    if !quotes.is_empty() {
        text.push_str(&format!("\n\nquotes: {}", quotes.join(", ")));
    }
    let passages = meta.looked.iter().flat_map(|l| &l.passages).filter(|p| p.document.is_some()).take(SHOWN);
    let passages: Vec<String> = passages.map(|p| format!("{} ({:.0}%)", p.place(), p.share * 100.0)).collect();
    if !passages.is_empty() {
        text.push_str(&format!("\n\nlooked at: {}", passages.join(", ")));
    }
    let (read, reused, generated) = (meta.prefilled_tokens, meta.reused_tokens, meta.completion_tokens);
    format!("{text}\n\ntokens: {read} read, {reused} reused, {generated} generated")
}

pub(super) fn answers(notices: &[Notice]) -> Answered {
    let answers =
        notices.iter().find_map(|notice| if let Notice::FanOut(answers) = notice { Some(answers) } else { None });
    let answers = answers.ok_or("No document answered.")?;
    Ok(result(sentences(answers).join("\n"), answers_object(answers)))
}

/// The answer of `when`: the lines from which on each answer holds.
pub(super) fn when(notices: &[Notice]) -> Answered {
    let text =
        notices.iter().find_map(|notice| if let Notice::Page { text, .. } = notice { Some(text.trim()) } else { None });
    let text = text.ok_or("There was no answer.")?;
    Ok(result(text.to_owned(), json!({ "text": text })))
}

pub(super) fn found(name: &str, found: &Found) -> CallToolResult {
    let quote = &found.quote;
    let text = match (quote.matched, found.nearest) {
        (Match::None, None) => format!("not in {name}"),
        (Match::None, Some(line)) => format!("not in {name}; line {line} shares most words with it"),
        _ => format!("{}\n{}", quote.place(), found.lines.join("\n")),
    };
    let object = json!({
        "match": quote.matched, "document": name, "first_line": quote.first_line, "last_line": quote.last_line,
        "page": quote.page, "lines": found.lines, "differences": found.differences, "nearest_line": found.nearest,
    });
    result(text, object)
}

pub(super) fn hits(hits: &[SearchRow]) -> CallToolResult {
    let row = |h: &SearchRow| json!({ "session": h.session, "message": h.number, "snippet": h.snippet });
    CallToolResult::structured(json!({ "hits": hits.iter().map(row).collect::<Value>() }))
}
