//! `library`: lists, adds and removes documents with kept state. `ask-all` asks them.

use serde_json::{Value, json};

use super::args::{AskAllArgs, LibraryCommand};
use super::columns::Side::{Left, Right};
use super::columns::{line_cells, table, when};
use super::notices::{self, ProgressLine};
use super::oneshot::{looked_at, reason};
use super::{Context, Exit, Failure, open};
use crate::core::{bytes, counted, grouped};
use crate::runtime::protocol::{FanOut, FanOutRow, LibraryAction, Notice, Request, SaveState};
use crate::runtime::{self, Attendance};
use crate::store::{DocumentRecord, Store};
use crate::text::near::no_document;
use crate::tui::fan_out::sentences;

pub(super) fn library(context: &Context, action: &LibraryCommand) -> Result<Exit, Failure> {
    match action {
        LibraryCommand::Ls => library_ls(context),
        LibraryCommand::Rm { names, .. } => {
            let store = open::store_to_change(context)?;
            // All of them or none.
            let there = store.documents()?;
            if let Some(name) = names.iter().find(|name| there.iter().all(|d| d.document.name != **name)) {
                let names = there.iter().map(|d| d.document.name.as_str());
                let sentence = no_document(name, "the library", names, "sala-chat library ls");
                return Err(Failure::of_chat(Exit::Failure, &sentence));
            }
            let used = there.iter().any(|d| d.in_use && names.contains(&d.document.name));
            remove(context, &store, names.iter().map(String::as_str), "document", used)
        }
        LibraryCommand::Prune => {
            let store = open::store_to_change(context)?;
            let unused = store.documents()?.into_iter().filter(|d| !d.in_use);
            let names: Vec<String> = unused.map(|d| d.document.name).collect();
            remove(context, &store, names.iter().map(String::as_str), "unused document", false)
        }
        LibraryCommand::Add { paths } => library_add(context, paths),
    }
}

fn remove<'a>(
    context: &Context,
    store: &Store,
    names: impl Iterator<Item = &'a str>,
    what: &str,
    used: bool,
) -> Result<Exit, Failure> {
    let mut removed = 0;
    for name in names {
        removed += store.remove_document(name)?;
    }
    let freed = store.collect()?;
    let text = || runtime::removed(&counted(removed, what), used, freed.bytes);
    context.result(|| json!({ "removed": removed, "bytes": freed.bytes }), text)
}

fn library_ls(context: &Context) -> Result<Exit, Failure> {
    let documents = open::store_to_read(context)?.documents()?;
    let object = |d: &DocumentRecord| {
        json!({
            "name": d.document.name, "path": d.document.path, "hash": d.document.hash, "tokens": d.document.tokens,
            "lines": d.document.lines, "kept": d.kept, "bytes": d.bytes, "used_ms": d.used_ms, "in_use": d.in_use
        })
    };
    let text = || {
        if documents.is_empty() {
            return "The library is empty. /load in a chat fills it, or sala-chat library add FILE.".to_owned();
        }
        let columns = [("name", Left), ("tokens", Right), ("state", Left), ("size", Right), ("used", Left)];
        let row = |d: &DocumentRecord| {
            let state = if d.kept { "kept" } else { "text only" };
            let (tokens, size) = (grouped(d.document.tokens), bytes(d.bytes));
            [d.document.name.clone(), tokens, state.to_owned(), size, when(d.used_ms)]
        };
        table(columns, documents.iter().map(row), line_cells()).join("\n")
    };
    context.result(|| documents.iter().map(object).collect(), text)
}

fn library_add(context: &Context, paths: &[String]) -> Result<Exit, Failure> {
    let (mut without_state, mut notes) = (None, Vec::new());
    let requests = paths.iter().map(|path| Request::Library(LibraryAction::Add(path.clone())));
    let (signal, failed) = notices::serve_requests(context, requests, |notice| {
        if !matches!(notice, Notice::Save(_)) {
            notes.extend(notices::remark(&notice).map(|(_, text)| text));
        }
        match notice {
            Notice::Save(SaveState::TextOnly(why)) => without_state = Some(why),
            Notice::Bye { farewell, .. } => notes.extend(farewell),
            _ => {}
        }
    })?;
    if let Some(signal) = signal {
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

/// The object that `ask-all` prints.
pub(super) fn answers_object(answers: &FanOut) -> Value {
    let row = |r: &FanOutRow| {
        json!({
            "document": r.document,
            "tokens": r.tokens,
            "text": r.finish.map(|_| &r.text),
            "finish_reason": r.finish.map(|f| reason(Some(f))),
            "error": r.failed,
            "looked_at": looked_at(&r.passages),
            "mean_log_probability": r.log_probability,
            "completion_tokens": r.answer_tokens,
        })
    };
    json!({ "question": answers.question, "answers": answers.rows.iter().map(row).collect::<Value>() })
}

/// `ask-all`: one question to every document of the library, as a table.
pub(super) fn ask_all(context: &Context, args: &AskAllArgs) -> Result<Exit, Failure> {
    if args.question.trim().is_empty() {
        return Err(Failure::new(Exit::Usage, "there is no question: ask-all needs a text")
            .hint("For example: sala-chat ask-all \"What is the code?\""));
    }
    // Does not create a data folder only to report that it is empty.
    if !context.dirs.data.exists() {
        return Err(Failure::of_chat(
            Exit::Failure,
            &runtime::no_document(args.library.as_deref(), Attendance::Absent),
        ));
    }
    let request = Request::AskAll { question: args.question.clone(), library: args.library.clone(), read: args.read };
    let (mut progress, mut answers) = (ProgressLine::new(context.shows_progress()), None);
    let (signal, failed) = notices::serve_requests(context, [request], |notice| {
        if let Some((level, text)) = notices::remark(&notice) {
            progress.clear();
            notices::print_remark(context, level, &text);
        }
        match notice {
            Notice::FanOut(found) => answers = Some(found),
            Notice::Activity(activity) => progress.show(&activity),
            _ => {}
        }
    })?;
    progress.clear();
    let answered = |s: &FanOut| s.rows.iter().filter(|r| r.finish.is_some()).count();
    if let Some(answers) = answers.filter(|s| failed.is_none() || answered(s) > 0) {
        context.result(|| answers_object(&answers), || sentences(&answers).join("\n"))?;
        return Ok(match (signal, answered(&answers)) {
            (Some(signal), _) => Exit::Signal(signal),
            (None, 0) => Exit::Failure,
            (None, _) => Exit::Ok,
        });
    }
    Err(match signal {
        Some(signal) => Failure::new(Exit::Signal(signal), "stopped before there was an answer"),
        None => failed.unwrap_or_else(|| Failure::new(Exit::Failure, "no document answered")),
    })
}
