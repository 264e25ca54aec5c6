//! `ls --trash`: deleted sessions, when they are removed, and how to restore them.

use serde_json::{Value, json};

use super::columns::{line_cells, name_cells};
use super::failure::Failure;
use super::sessions_cmd::{LISTED, when};
use super::{Context, open};
use crate::core::Exit;
use crate::store::{SessionFilter, SessionRecord};
use crate::text::sanitize::Clean;
use crate::tui::cells::fit;

pub(super) fn ls(context: &Context) -> Result<Exit, Failure> {
    let store = open::store_to_read(context)?;
    let records = store.sessions(SessionFilter::Trashed, LISTED)?;
    let json = || {
        let one = |r: &SessionRecord| {
            json!({
                "id": r.id.0, "name": r.name, "title": r.title, "messages": r.messages, "tokens": r.tokens,
                "trashed_ms": r.trashed_ms, "goes_ms": store.leaves_trash_ms(r)
            })
        };
        Value::Array(records.iter().map(one).collect())
    };
    let text = || {
        if records.is_empty() {
            return "Nothing is in the trash.".to_owned();
        }
        let names: Vec<String> = records.iter().map(|r| Clean::line(&r.name).to_string()).collect();
        let column = name_cells(names.iter().map(String::as_str), line_cells());
        let line = |id: &str, name: &str, messages: &str, deleted: &str, leaves: &str| {
            format!("{id:>6}  {} {messages:>8}  {deleted:<16}  {leaves}", fit(name, column))
        };
        let mut lines = vec![line("id", "name", "messages", "deleted", "goes")];
        lines.extend(records.iter().zip(&names).map(|(r, name)| {
            let leaves = store.leaves_trash_ms(r).map_or_else(|| "when it is emptied".to_owned(), when);
            let deleted = r.trashed_ms.map(when).unwrap_or_default();
            line(&r.id.0.to_string(), name, &r.messages.to_string(), &deleted, &leaves)
        }));
        lines.push("Back with: sala-chat -r NAME, or -r ID where another session has the name.".to_owned());
        lines.join("\n")
    };
    context.result(json, text)?;
    Ok(Exit::Ok)
}
