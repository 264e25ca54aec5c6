//! `library`: lists, adds and removes documents with kept state.

use serde_json::{Value, json};

use super::args::{LibraryCommand, SessionChoice};
use super::columns::{line_cells, name_cells};
use super::failure::Failure;
use super::sessions_cmd::when;
use super::signals::Ending;
use super::{Context, notices, open};
use crate::core::{Exit, bytes, counted};
use crate::runtime::protocol::{LibraryAction, Notice, Request, SaveState};
use crate::runtime::{Attendance, Input};
use crate::store::Store;
use crate::text::near::meant;
use crate::text::sanitize::Clean;
use crate::tui::cells::fit;

pub(super) fn library(context: &Context, action: &LibraryCommand) -> Result<Exit, Failure> {
    match action {
        LibraryCommand::Ls => library_ls(context),
        LibraryCommand::Rm { names } => {
            let store = open::store_to_change(context)?;
            // All of them or none.
            let there = store.documents()?;
            if let Some(name) = names.iter().find(|name| there.iter().all(|d| d.document.name != **name)) {
                let near = meant(name, there.iter().map(|d| d.document.name.as_str()));
                let failure = Failure::new(Exit::Failure, format!("no document {name} in the library.{near}"));
                return Err(failure.hint("sala-chat library ls lists them"));
            }
            remove(context, &store, names.iter().map(String::as_str), "document")
        }
        LibraryCommand::Prune => {
            let store = open::store_to_change(context)?;
            let unused = store.documents()?.into_iter().filter(|d| !d.in_use);
            let names: Vec<String> = unused.map(|d| d.document.name).collect();
            remove(context, &store, names.iter().map(String::as_str), "unused document")
        }
        LibraryCommand::Add { paths } => library_add(context, paths),
    }
}

fn remove<'a>(
    context: &Context,
    store: &Store,
    names: impl Iterator<Item = &'a str>,
    what: &str,
) -> Result<Exit, Failure> {
    let mut removed = 0;
    for name in names {
        removed += store.remove_document(name)?;
    }
    let freed = store.collect()?;
    let text = || format!("Removed {} ({}).", counted(removed, what), bytes(freed.bytes));
    context.result(|| json!({ "removed": removed, "bytes": freed.bytes }), text)?;
    Ok(Exit::Ok)
}

const COLUMNS: usize = 57;
/// Cells of a name at least, however narrow the terminal is.
const LEAST_NAME: usize = 12;

fn library_ls(context: &Context) -> Result<Exit, Failure> {
    let documents = open::store_to_read(context)?.documents()?;
    let json = || {
        let row = |d: &crate::store::DocumentRecord| {
            json!({
                "name": d.document.name, "path": d.document.path, "hash": d.document.hash, "tokens": d.document.tokens,
                "lines": d.document.lines, "kept": d.kept, "bytes": d.bytes, "used_ms": d.used_ms, "in_use": d.in_use
            })
        };
        Value::Array(documents.iter().map(row).collect())
    };
    let text = || match documents.as_slice() {
        [] => "The library is empty. /load in a chat fills it, or sala-chat library add FILE.".to_owned(),
        rows => {
            let names: Vec<String> = rows.iter().map(|d| Clean::line(&d.document.name).to_string()).collect();
            let line = line_cells();
            let room = line.map_or(usize::MAX, |line| line.saturating_sub(COLUMNS).max(LEAST_NAME));
            let column = name_cells(names.iter().map(String::as_str), line).min(room);
            let row = |(d, name): (&crate::store::DocumentRecord, &String)| {
                let state = if d.kept { "kept" } else { "text only" };
                let name = fit(name, column);
                let size = bytes(d.bytes);
                format!("{name} {:>9} tokens  {state:<9} {size:>10}  {}", d.document.tokens, when(d.used_ms))
            };
            rows.iter().zip(&names).map(row).collect::<Vec<_>>().join("\n")
        }
    };
    context.result(json, text)?;
    Ok(Exit::Ok)
}

/// The one command here that needs the model: it reads.
fn library_add(context: &Context, paths: &[String]) -> Result<Exit, Failure> {
    let opened = open::runtime(context, &SessionChoice::New, true, Attendance::Absent, Input::Lines)?;
    for path in paths {
        // A runtime that has failed says so in its last notice.
        let _ = opened.runtime.requests.send(Request::Library(LibraryAction::Add(path.clone())));
    }
    // Served after them.
    let _ = opened.runtime.requests.send(Request::Quit);
    let stop = opened.runtime.requests.clone();
    let ending = Ending::watch(move || drop(stop.send(Request::Stop)))?;
    let (mut failed, mut without_state) = (None, None);
    let mut notes = Vec::new();
    for notice in &opened.runtime.notices {
        if !matches!(notice, Notice::Save(_)) {
            notes.extend(notices::remark(&notice).map(|(_, text)| text));
        }
        match notice {
            Notice::Fatal { error, exit } => failed = Some(Failure::new(exit, error)),
            Notice::Save(SaveState::TextOnly(why)) => without_state = Some(why),
            Notice::Bye { farewell, unsaved } => {
                notes.extend(farewell);
                let unsaved = unsaved.map(|u| Failure::new(u.exit, format!("not saved: {}", u.reason)));
                failed = failed.or(unsaved);
                break;
            }
            _ => {}
        }
    }
    let _ = opened.runtime.thread.join();
    let _ = opened.engine.join();
    if let Some(signal) = ending.signal() {
        return Err(Failure::new(Exit::Signal(signal), "stopped before everything was read"));
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    context.result(|| json!({ "notes": notes }), || notes.join("\n"))?;
    match without_state {
        None => Ok(Exit::Ok),
        Some(why) => Err(Failure::new(Exit::Disk, format!("text is saved, state is not: {why}"))
            .hint("The model must read these documents again; sala-chat library ls lists what is kept")),
    }
}
