//! Sessions from the shell, without loading a model: `ls show rm search export import`.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::args::{ExportArgs, LsArgs};
use super::columns::Side::{Left, Right};
use super::columns::{line_cells, table, when};
use super::oneshot::means_stdin;
use super::signals::Ending;
use super::{Context, Exit, Failure, open, out};
use crate::core::files::{IMPORT_BYTES, open_at_once};
use crate::core::sanitize::{Clean, shell_word};
use crate::core::{bytes, counted, grouped};
use crate::engine::protocol::Cancel;
use crate::runtime::export::imported_line;
use crate::runtime::protocol::{ExportFormat, SearchRow, SessionRow};
use crate::runtime::session_rows;
use crate::runtime::tree::first_words;
use crate::store::{LAST, Overwrite, Scope, Scratch, SessionFilter, SessionRecord, Store, StoreError, Watch};
use crate::text::pipe::{self, PipeError};
use crate::tui::cells::ellipsis;

const HITS: usize = 200;

fn named(store: &Store, name: &str) -> Result<SessionRecord, Failure> {
    if name == LAST {
        let none = || Failure::new(Exit::Failure, "there are no sessions yet");
        return store.last_session()?.ok_or_else(none);
    }
    match store.session_named(name) {
        Err(StoreError::NoSession { .. }) if store.trashed_session(name)?.is_some() => {
            let failure = Failure::new(Exit::Failure, format!("\"{name}\" is in the trash"));
            Err(failure.hint(format!("Back with: sala-chat -r {}", shell_word(name))))
        }
        Err(StoreError::NoSession { .. }) => Err(open::no_session(store, name)),
        found => Ok(found?),
    }
}

/// Rows of `ls`; the columns on the right are the first to be left out.
fn listed(rows: &[SessionRow], line: Option<usize>) -> Vec<String> {
    let row = |r: &SessionRow| {
        let name = if r.pinned { format!("{} (pinned)", r.name) } else { r.name.clone() };
        let size = r.bytes.map_or(String::new(), bytes);
        [name, r.state.clone(), size, when(r.updated_ms), r.counted(), r.read(), r.title.clone()]
    };
    let columns = [
        ("name", Left),
        ("state", Left),
        ("size", Right),
        ("changed", Left),
        ("messages", Right),
        ("tokens", Right),
        ("title", Left),
    ];
    table(columns, rows.iter().map(row), line)
}

/// The list of `ls --sizes`: for each session bytes of kept state, of text, and of all state ever written.
fn sized(rows: &[SessionRow], line: Option<usize>) -> Vec<String> {
    let columns = [("name", Left), ("state", Right), ("not shared", Right), ("text", Right), ("written", Right)];
    let row = |r: &SessionRow| {
        let disk = r.disk.unwrap_or_default();
        [r.name.clone(), bytes(disk.state), bytes(disk.own), bytes(disk.text), bytes(disk.written)]
    };
    table(columns, rows.iter().map(row), line)
}

pub(super) fn ls(context: &Context, args: &LsArgs) -> Result<Exit, Failure> {
    let store = open::store_to_read(context)?;
    if args.trash {
        let records = store.sessions(SessionFilter::Trashed, open::LISTED)?;
        let row = |r: &SessionRecord| {
            json!({
                "id": r.id.0, "name": r.name, "title": r.title, "messages": r.messages, "tokens": r.tokens,
                "trashed_ms": r.trashed_ms, "goes_ms": store.leaves_trash_ms(r)
            })
        };
        return context.result(|| records.iter().map(row).collect(), || trashed(&store, &records));
    }
    let records = store.sessions(SessionFilter::Live, open::LISTED)?;
    // Without sizes the list is still useful; texts are counted only if shown.
    let sizes = if args.sizes || context.json { store.sizes(None) } else { store.state_sizes() }.ok();
    let rows = session_rows(&store, records, None, sizes.as_ref());
    let json = || json!(rows);
    let text = || {
        let (once, shown): (Vec<SessionRow>, _) = rows.iter().cloned().partition(|row| row.once && !args.all);
        let mut lines = match (rows.len(), shown.len()) {
            (0, _) => vec!["No sessions yet. sala-chat starts one.".to_owned()],
            (_, 0) => Vec::new(),
            _ if args.sizes => sized(&shown, line_cells()),
            _ => listed(&shown, line_cells()),
        };
        if let Some(sizes) = sizes.as_ref().filter(|_| args.sizes) {
            lines.push(format!("State {}, texts {}.", bytes(sizes.state_bytes), bytes(sizes.database_bytes)));
        }
        if !once.is_empty() {
            let hidden = counted(once.len() as u64, "session");
            lines.push(format!("{hidden} of a single -p question not shown: sala-chat ls --all"));
        }
        lines.join("\n")
    };
    context.result(json, text)
}

fn trashed(store: &Store, records: &[SessionRecord]) -> String {
    if records.is_empty() {
        return "Nothing is in the trash.".to_owned();
    }
    let columns = [("name", Left), ("id", Right), ("messages", Right), ("deleted", Left), ("goes", Left)];
    let row = |r: &SessionRecord| {
        let leaves = store.leaves_trash_ms(r).map_or_else(|| "when it is emptied".to_owned(), when);
        let deleted = r.trashed_ms.map(when).unwrap_or_default();
        [r.name.clone(), r.id.0.to_string(), r.messages.to_string(), deleted, leaves]
    };
    let mut lines = table(columns, records.iter().map(row), line_cells());
    lines.push("Back with: sala-chat -r NAME, or -r ID where another session has the name.".to_owned());
    lines.join("\n")
}

pub(super) fn show(context: &Context, name: &str) -> Result<Exit, Failure> {
    let store = open::store_to_read(context)?;
    let record = named(&store, name)?;
    let messages = record.head.map_or(Ok(Vec::new()), |head| store.path(head))?;
    let undone = store.undone(record.id, record.head).unwrap_or(0);
    let json = || {
        json!({
            "name": record.name, "messages": messages, "undone": undone, "tokens": record.tokens,
            "updated_ms": record.updated_ms
        })
    };
    // Not within `result`: rendering can fail.
    let text =
        if context.json { String::new() } else { store.export(record.id, ExportFormat::Markdown, Scope::Branch)? };
    context.result(json, || text.trim_end().to_owned())?;
    if undone > 0 && !context.json {
        context.note("All messages of this session are undone; /redo in it brings them back");
    }
    Ok(Exit::Ok)
}

pub(super) fn confirmed(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(Exit::Usage, "not a terminal; add --yes to confirm"));
    }
    out::err_part(&Clean::line(&format!("{question} y/N ")));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(["y", "yes"].contains(&line.trim().to_lowercase().as_str()))
}

pub(super) fn rm(context: &Context, names: &[String], yes: bool) -> Result<Exit, Failure> {
    let store = open::store_to_change(context)?;
    let mut records = names.iter().map(|n| named(&store, n)).collect::<Result<Vec<_>, _>>()?;
    let mut met = HashSet::new();
    records.retain(|r| met.insert(r.id));
    let (days, time) = (store.limits.trash_days, store.limits.trash_time());
    let what = records.iter().map(|r| Ok(format!("\"{}\" ({})", Clean::line(&r.name), store.extent(r.id)?)));
    let what = what.collect::<Result<Vec<String>, Failure>>()?;
    if !yes && !confirmed(&format!("Move {} to the trash {time}?", what.join(", ")))? {
        return Err(Failure::new(Exit::Failure, "nothing was moved to the trash"));
    }
    for record in &records {
        // Held during the deletion, so that no other process writes the session.
        let _lock = store.lock_session(record.id, &record.name)?;
        store.delete(record.id)?;
    }
    let names: Vec<&str> = records.iter().map(|r| r.name.as_str()).collect();
    let text = || {
        let names: Vec<String> = names.iter().map(|n| Clean::line(n).to_string()).collect();
        format!("In the trash {time}: {}. Back with: sala-chat -r NAME (ls --trash lists them)", names.join(", "))
    };
    context.result(|| json!({ "trashed": names, "days": days }), text)
}

fn found(hits: &[SearchRow], line: Option<usize>) -> Vec<String> {
    let most = line.map_or(usize::MAX, |line| line / 2);
    let row = |h: &SearchRow| format!("{} #{}  {}", ellipsis(&h.session, most), h.number, first_words(&h.snippet, 100));
    hits.iter().map(row).collect()
}

pub(super) fn search(context: &Context, query: &str) -> Result<Exit, Failure> {
    if query.trim().is_empty() {
        return Err(Failure::usage("there is nothing to search for: give a word"));
    }
    let store = open::store_to_read(context)?;
    let mut hits = store.search(query, HITS + 1, &Watch::NONE)?;
    let more = hits.len() > HITS;
    hits.truncate(HITS);
    // Like grep: exit code 1 without output.
    if hits.is_empty() && !context.json {
        return Err(Failure::new(Exit::Failure, format!("nothing found for {query}")));
    }
    context.result(|| json!(hits), || found(&hits, line_cells()).join("\n"))?;
    if hits.is_empty() {
        return Ok(Exit::Failure);
    }
    if more {
        context.warn(&format!("more than {HITS} hits: the first {HITS} are shown; a longer query finds fewer"));
    }
    Ok(Exit::Ok)
}

pub(super) fn export(context: &Context, args: &ExportArgs) -> Result<Exit, Failure> {
    let standard_output = args.file.as_os_str() == "-";
    if args.with_state && standard_output {
        return Err(Failure::usage("--with-state writes a file: name one in place of -"));
    }
    let store = open::store_to_read(context)?;
    let record = named(&store, &args.name)?;
    let overwrite = if args.force { Overwrite::Yes } else { Overwrite::No };
    let file = args.file.display().to_string();
    if args.with_state {
        // The newest part may have no state: the longest kept prefix is exported.
        let kept = match (&record.state_of, record.head) {
            (None, Some(head)) => store.state_on_branch(head)?,
            (of, _) => of.clone(),
        };
        let written = match kept.map(|of| store.export_bundle(record.id, &of, &args.file, overwrite, &Watch::NONE)) {
            None | Some(Err(StoreError::NoState { .. })) => {
                return Err(Failure::new(Exit::Unreadable, format!("\"{}\" has no kept state", record.name))
                    .hint("Export the text without --with-state"));
            }
            Some(written) => written?,
        };
        let json = || {
            json!({
                "file": file, "bytes": written.bytes, "state_tokens": written.state_tokens,
                "replay_tokens": written.replay_tokens
            })
        };
        let (size, tokens) = (bytes(written.bytes), grouped(written.state_tokens));
        let text = || format!("{file} written, {size}, with the state of {tokens} tokens.");
        return context.result(json, text);
    }
    let format = match args.format {
        Some(format) => format,
        None if context.json && standard_output => ExportFormat::Json,
        None => ExportFormat::of_path(&args.file)
            .map_err(|why| Failure::usage(format!("{why}, or choose with --format")))?,
    };
    let scope = if args.tree { Scope::Tree } else { Scope::Branch };
    if standard_output {
        // A terminal gets the text cleaned.
        let text = store.export(record.id, format, scope)?;
        match format {
            ExportFormat::Json => out::json(text.trim_end())?,
            ExportFormat::Markdown | ExportFormat::Text => out::data(text.trim_end().as_bytes())?,
        }
        out::part(&Clean::text("\n"))?;
        return Ok(Exit::Ok);
    }
    let size = store.export_to(record.id, format, scope, &args.file, overwrite, &Watch::NONE)?;
    context.result(|| json!({ "file": file, "bytes": size }), || format!("{file} written, {}.", bytes(size)))
}

/// All of a pipe as a file in a temporary folder; `name` is that of the pipe in messages.
fn kept(from: BorrowedFd<'_>, name: &str, most: u64, stop: &Cancel) -> Result<(PathBuf, Scratch), Failure> {
    let failed = |e: PipeError| match e {
        PipeError::Stopped => stopped(),
        PipeError::Read(e) => Failure::new(Exit::Failure, format!("{name}: {e}")),
        PipeError::TooLarge(_) => Failure::new(Exit::Failure, format!("{name}: more than {}", bytes(most)))
            .hint("Write it into a file, and import that"),
        PipeError::Write(e) => Failure::new(Exit::Disk, format!("{name} cannot be kept until it is imported: {e}"))
            .hint("Write it into a file, and import that"),
    };
    let scratch = Scratch::new().map_err(|e| failed(PipeError::Write(e)))?;
    let path = scratch.path().join("import");
    let mut file = File::create_new(&path).map_err(|e| failed(PipeError::Write(e)))?;
    pipe::read(from, most, stop, &mut file).map_err(failed)?;
    Ok((path, scratch))
}

fn stopped() -> Failure {
    Failure::new(Exit::Stopped, "stopped: nothing was imported")
}

pub(super) fn import(context: &Context, file: &Path) -> Result<Exit, Failure> {
    if file.to_str().is_some_and(means_stdin) && std::io::stdin().is_terminal() {
        return Err(Failure::usage("import - reads standard input, and nothing is piped into it"));
    }
    let store = open::store_to_change(context)?;
    let stop = Cancel::default();
    let stopper = stop.clone();
    let ending = Ending::watch(move || stopper.cancel())?;
    let standard = file.to_str().is_some_and(means_stdin);
    // Of a pipe, such as a shell's `<(COMMAND)`: its name. The temporary file's would mean nothing to the user.
    let name = if standard { "standard input".to_owned() } else { file.display().to_string() };
    let is_pipe = !standard && file.metadata().is_ok_and(|meta| meta.file_type().is_fifo());
    let opened = is_pipe.then(|| open_at_once(file)).transpose().map_err(|e| Failure::input(file, &e))?;
    let pipe = if standard { Some(rustix::stdio::stdin()) } else { opened.as_ref().map(AsFd::as_fd) };
    let piped = pipe.map(|pipe| kept(pipe, &name, IMPORT_BYTES, &stop)).transpose();
    let piped = piped.map_err(|failure| ending.by_signal(failure))?;
    let watch = Watch { stop: &|| stop.is_cancelled(), ..Watch::NONE };
    let path = piped.as_ref().map_or(file, |(path, _)| path);
    let imported = store.import(path, &watch).map_err(|e| match e {
        StoreError::Stopped => ending.by_signal(stopped()),
        StoreError::Import { why, .. } => StoreError::Import { path: name.into(), why }.into(),
        e => e.into(),
    })?;
    let json = || {
        let names: Vec<&str> = imported.sessions.iter().map(|(_, name)| name.as_str()).collect();
        json!({
            "sessions": names, "messages": imported.messages, "state_tokens": imported.state_tokens,
            "without_place": imported.without_place, "left_out": imported.left_out,
            "skipped": imported.skipped
        })
    };
    context.result(json, || imported_line(&imported))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::core::transcript::MessageId;

    #[test]
    fn names_of_hits_are_cut_on_a_terminal_alone() {
        let hit = SearchRow {
            session: "n".repeat(200),
            message: MessageId(1),
            number: 3,
            snippet: "a [needle] in it".into(),
            created_ms: 0,
        };
        let hits = [SearchRow { session: "short".into(), ..hit.clone() }, hit];
        assert_eq!(
            found(&hits, Some(80)),
            ["short #3  a [needle] in it".to_owned(), format!("{}... #3  a [needle] in it", "n".repeat(37)),]
        );
        assert!(found(&hits, None)[1].starts_with(&format!("{} #3", "n".repeat(200))));
    }

    #[test]
    fn the_list_has_headings_and_fits_into_the_line() {
        let row = SessionRow {
            name: "a-name-that-is-rather-longer-than-its-column".into(),
            title: "What does annex C say about the notice period?".into(),
            messages: 41,
            undone: 0,
            tokens: 612_204,
            state: "stale".into(),
            bytes: Some(2_400 << 20),
            updated_ms: 0,
            ..SessionRow::default()
        };
        for width in [80, 100, 160] {
            let lines = listed(std::slice::from_ref(&row), Some(width));
            assert!(lines.iter().all(|l| l.len() <= width), "{lines:?}");
            assert!(lines[0].starts_with("name") && lines[1].contains("2.3 GiB"), "{lines:?}");
            assert_eq!([lines[1].contains(&row.name), lines[1].contains("41")], [width >= 100; 2], "{lines:?}");
            assert_eq!(lines[1].contains("What does"), width >= 160);
        }
        let imported = SessionRow { name: "notes".into(), tokens: 0, pinned: true, ..row.clone() };
        assert!(listed(&[imported], Some(80))[1].starts_with("notes (pinned)  stale  2.3 GiB  "));
        let none = SessionRow { messages: 0, undone: 4, ..row.clone() };
        assert!(listed(&[none], Some(160))[1].contains(" 0 of 4 "));
        let title = "What does annex C say about the notice period? ".repeat(4);
        let long = SessionRow { name: "n".repeat(200), title: title.trim().into(), ..row };
        let lines = listed(std::slice::from_ref(&long), None);
        assert!(lines[1].starts_with(&long.name) && lines[1].ends_with(&long.title), "{lines:?}");
    }

    #[test]
    fn what_a_pipe_cannot_give_is_reported_by_name() {
        let (read, mut write) = std::io::pipe().unwrap();
        write.write_all(b"one byte too many").unwrap();
        let taken = |stop: &Cancel| kept(read.as_fd(), "standard input", 16, stop).err().unwrap();
        let stop = Cancel::default();
        stop.cancel();
        assert_eq!(taken(&stop).exit, Exit::Stopped);
        let failure = taken(&Cancel::default());
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Failure, "standard input: more than 16 B"));
    }
}
