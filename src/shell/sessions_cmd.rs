//! Sessions from the shell, without loading a model: `ls show rm search export import prune`.

use std::collections::HashSet;
use std::io::{BufRead, IsTerminal};

use serde_json::{Value, json};

use super::cli::{ExportArgs, FormatArg, ImportArgs, LsArgs, NameArgs, PruneArgs, RmArgs, SearchArgs};
use super::columns::{line_cells, name_cells};
use super::failure::Failure;
use super::signals::Ending;
use super::{Context, open, out};
use crate::app::cells::{ellipsis, fit, width as cells};
use crate::app::entry::grouped;
use crate::base::Exit;
use crate::base::{bytes, counted};
use crate::desk::export::imported_line;
use crate::desk::session_rows;
use crate::model::quantize::{Stage, kept_folders, remove_kept};
use crate::protocol::desk::{ExportFormat, SessionRow};
use crate::protocol::engine::Cancel;
use crate::session::{
    Extent, Freed, LAST, Overwrite, Scope, SegmentId, SessionFilter, SessionRecord, Store, StoreError, Watch,
};
use crate::text::sanitize::{Clean, shell_word};

/// Sessions listed at most.
pub(super) const LISTED: usize = 100_000;
/// Cells of the columns of the list behind the names.
const COLUMNS: usize = 54;
/// Hits listed at most.
const HITS: usize = 200;

fn named(store: &Store, name: &str) -> Result<SessionRecord, Failure> {
    if name == LAST {
        let none = || Failure::new(Exit::Failure, "there is no session yet");
        return store.last_session()?.ok_or_else(none);
    }
    match store.session_named(name) {
        Err(StoreError::NoSession { .. }) if store.trashed_session(name)?.is_some() => {
            let failure = Failure::new(Exit::Failure, format!("\"{name}\" is in the trash"));
            Err(failure.hint(format!("Back with: sala-chat -r {}", shell_word(name))))
        }
        found => Ok(found?),
    }
}

pub(super) fn when(ms: i64) -> String {
    let Ok(at) = jiff::Timestamp::from_millisecond(ms) else {
        return String::new();
    };
    at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string()
}

/// One line of a terminal: what the program shows of texts it did not write.
fn one_line(text: &str, width: usize) -> String {
    crate::desk::conversation::first_words(text, width)
}

/// The list of `ls`: headings, and titles as far as a line of so many cells has room for them. Long names take the place of counts.
fn listed(rows: &[SessionRow], width: Option<usize>) -> Vec<String> {
    let names: Vec<String> = rows.iter().map(|r| Clean::line(&r.name).to_string()).collect();
    let column = name_cells(names.iter().map(String::as_str), width);
    let counts = width.is_none_or(|width| column + COLUMNS <= width);
    let line = |name: &str, [messages, tokens, state, size, changed]: [&str; 5], title: &str| {
        let counts = if counts { format!(" {messages:>8} {tokens:>9}") } else { String::new() };
        let front = format!("{}{counts}  {state:<5} {size:>9}  {changed:<16}", fit(name, column));
        let room = width.map_or(usize::MAX, |width| width.saturating_sub(cells(&front) + 2).min(60));
        let title = if room < 12 { String::new() } else { format!("  {}", ellipsis(title, room)) };
        format!("{front}{title}").trim_end().to_string()
    };
    let mut lines = vec![line("name", ["messages", "tokens", "state", "size", "changed"], "title")];
    lines.extend(rows.iter().zip(&names).map(|(r, name)| {
        let (messages, tokens) = (r.messages.to_string(), grouped(r.tokens));
        let size = r.bytes.map_or(String::new(), bytes);
        let columns = [messages.as_str(), &tokens, &r.state, &size, &when(r.updated_ms)];
        line(name, columns, Clean::line(&r.title).as_str())
    }));
    lines
}

/// `ls`.
pub(super) fn ls(context: &Context, args: &LsArgs) -> Result<Exit, Failure> {
    let store = open::store_to_read(context)?;
    let records = store.sessions(SessionFilter::Live, LISTED)?;
    // The list matters more than its sizes.
    let sizes = store.sizes().ok();
    let rows = session_rows(records, None, sizes.as_ref());
    let json = || json!(rows);
    let text = || {
        if rows.is_empty() {
            return "No sessions yet. sala-chat starts one.".to_owned();
        }
        let mut lines = listed(&rows, line_cells());
        if let Some(sizes) = sizes.as_ref().filter(|_| args.sizes) {
            lines.push(format!("State {}, texts {}.", bytes(sizes.state_bytes), bytes(sizes.database_bytes)));
        }
        lines.join("\n")
    };
    context.result(json, text)?;
    Ok(Exit::Ok)
}

/// `show`.
pub(super) fn show(context: &Context, args: &NameArgs) -> Result<Exit, Failure> {
    let store = open::store_to_read(context)?;
    let record = named(&store, &args.name)?;
    let messages = match record.head {
        Some(head) => store.path(head)?,
        None => Vec::new(),
    };
    let json = || json!({ "name": record.name, "messages": messages, "tokens": record.tokens, "updated_ms": record.updated_ms });
    // Not within `result`: rendering can fail.
    let text =
        if context.json { String::new() } else { store.export(record.id, ExportFormat::Markdown, Scope::Branch)? };
    context.result(json, || text.trim_end().to_owned())?;
    Ok(Exit::Ok)
}

/// Asks on the terminal; without one the answer is no.
fn confirmed(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{question} Nobody can answer here: add --yes")));
    }
    out::tell_part(&Clean::line(&format!("{question} y/N ")));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim().eq_ignore_ascii_case("y"))
}

/// `rm`.
pub(super) fn rm(context: &Context, args: &RmArgs) -> Result<Exit, Failure> {
    let store = open::store_to_change(context)?;
    let mut records = args.names.iter().map(|n| named(&store, n)).collect::<Result<Vec<_>, _>>()?;
    // One that is named twice goes once.
    let mut met = HashSet::new();
    records.retain(|r| met.insert(r.id));
    let (days, time) = (store.limits().trash_days, store.limits().trash_time());
    let what = records.iter().map(|r| Ok(format!("\"{}\" ({})", Clean::line(&r.name), store.extent(r.id)?)));
    let what = what.collect::<Result<Vec<String>, Failure>>()?;
    if !args.yes && !confirmed(&format!("Move {} to the trash {time}?", what.join(", ")))? {
        return Ok(Exit::Stopped);
    }
    for record in &records {
        // Held while it goes, so that no other process is writing it.
        let _lock = store.lock_session(record.id, &record.name)?;
        store.delete(record.id)?;
    }
    let names: Vec<&str> = records.iter().map(|r| r.name.as_str()).collect();
    let text = || {
        let names: Vec<String> = names.iter().map(|n| Clean::line(n).to_string()).collect();
        format!("In the trash {time}: {}. Back with: sala-chat -r NAME (ls --trash lists them)", names.join(", "))
    };
    context.result(|| json!({ "trashed": names, "days": days }), text)?;
    Ok(Exit::Ok)
}

/// `search`.
pub(super) fn search(context: &Context, args: &SearchArgs) -> Result<Exit, Failure> {
    let query = args.text.join(" ");
    if query.trim().is_empty() {
        return Err(Failure::usage("there is nothing to search for: give a word"));
    }
    let store = open::store_to_read(context)?;
    let mut hits = store.search(&query, HITS + 1, &Watch::NOBODY)?;
    let more = hits.len() > HITS;
    hits.truncate(HITS);
    let json = || {
        let hit = |h: &crate::session::SearchHit| {
            json!({
                "session": h.name, "message": h.message.0, "number": h.number, "snippet": h.snippet, "created_ms": h.created_ms
            })
        };
        Value::Array(hits.iter().map(hit).collect())
    };
    let text = || match hits.as_slice() {
        [] => format!("Nothing found for {query}."),
        hits => {
            let line = |h: &crate::session::SearchHit| {
                format!("{} #{}  {}", Clean::line(&h.name), h.number, one_line(&h.snippet, 100))
            };
            hits.iter().map(line).collect::<Vec<_>>().join("\n")
        }
    };
    context.result(json, text)?;
    if more && !context.quiet {
        let first = format!("sala-chat: more than {HITS} hits: the first {HITS} are shown; a longer query finds fewer");
        out::tell(&Clean::line(&first));
    }
    Ok(Exit::Ok)
}

/// `export`.
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
        // The newest part may have none: what is kept goes along.
        let kept = match (&record.state_of, record.head) {
            (None, Some(head)) => store.state_on_branch(head)?,
            (of, _) => of.clone(),
        };
        let written = match kept.map(|of| store.export_bundle(record.id, &of, &args.file, overwrite, &Watch::NOBODY)) {
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
        let text =
            || format!("{file} written, {}, with the state of {} tokens.", bytes(written.bytes), written.state_tokens);
        context.result(json, text)?;
        return Ok(Exit::Ok);
    }
    let format = match args.format {
        Some(FormatArg::Md) => ExportFormat::Markdown,
        Some(FormatArg::Json) => ExportFormat::Json,
        Some(FormatArg::Txt) => ExportFormat::Text,
        None if context.json && standard_output => ExportFormat::Json,
        None => ExportFormat::of_path(&args.file)
            .map_err(|why| Failure::usage(format!("{why}; --format says it for any name")))?,
    };
    let scope = if args.tree { Scope::Tree } else { Scope::Branch };
    if standard_output {
        // A file gets what the program would write into it, a terminal gets it cleaned.
        let text = store.export(record.id, format, scope)?;
        match format {
            ExportFormat::Json => out::json(text.trim_end())?,
            ExportFormat::Markdown | ExportFormat::Text => out::data(text.trim_end().as_bytes())?,
        }
        out::part(&Clean::text("\n"))?;
        return Ok(Exit::Ok);
    }
    let size = store.export_to(record.id, format, scope, &args.file, overwrite, &Watch::NOBODY)?;
    context.result(|| json!({ "file": file, "bytes": size }), || format!("{file} written, {}.", bytes(size)))?;
    Ok(Exit::Ok)
}

/// `import`.
pub(super) fn import(context: &Context, args: &ImportArgs) -> Result<Exit, Failure> {
    let store = open::store_to_change(context)?;
    let stop = Cancel::default();
    let asked = stop.clone();
    let ending = Ending::watch(move || asked.cancel())?;
    let watch = Watch { stop: &|| stop.is_cancelled(), ..Watch::NOBODY };
    let imported = store.import(&args.file, &watch).map_err(|e| match e {
        StoreError::Stopped => ending.by_signal(Failure::new(Exit::Stopped, "stopped: nothing was imported")),
        e => e.into(),
    })?;
    let names: Vec<&str> = imported.sessions.iter().map(|(_, name)| name.as_str()).collect();
    let json = || {
        json!({
            "sessions": names, "messages": imported.messages, "state_tokens": imported.state_tokens,
            "without_place": imported.without_place, "left_out": imported.left_out
        })
    };
    context.result(json, || imported_line(&imported))?;
    Ok(Exit::Ok)
}

/// `prune`.
pub(super) fn prune(context: &Context, args: &PruneArgs) -> Result<Exit, Failure> {
    let store = if args.dry_run { open::store_to_read(context)? } else { open::store_to_free(context)? };
    let requests = open::store_of_requests_if_any(context)?;
    if args.dry_run {
        return prune_dry_run(context, args, &store, requests.as_deref());
    }
    let mut freed = prune_store(args, &store)?;
    if let Some(requests) = &requests {
        freed.append(&mut prune_store(args, requests)?);
    }
    let weights = remove_kept(&context.dirs.kept_weights())?;
    freed.push(Freed { files: weights.files, bytes: weights.bytes, ..Freed::default() });
    let total: Freed = freed.into_iter().fold(Freed::default(), |mut a, b| {
        a.add(b);
        a
    });
    let json = || {
        json!({
            "files": total.files, "bytes": total.bytes, "segments": total.segments, "sessions": total.sessions,
            "messages": total.messages
        })
    };
    let text = || {
        let (files, sessions) = (counted(total.files, "file"), counted(total.sessions, "session"));
        format!("{} freed in {files}; {sessions} of the trash deleted for good.", bytes(total.bytes))
    };
    context.result(json, text)?;
    Ok(Exit::Ok)
}

/// How long a session of the trash stays with these options; `None` for as long as it is configured.
fn days_in_trash(args: &PruneArgs) -> Option<u32> {
    (args.all && !args.state).then_some(0)
}

/// What goes of one store: the terminal's, or that of the server's requests.
fn prune_store(args: &PruneArgs, store: &Store) -> Result<Vec<Freed>, Failure> {
    let mut freed = vec![store.empty_trash(days_in_trash(args))?];
    if args.state {
        freed.push(store.drop_all_state(&spared(args, store)?)?);
    } else {
        freed.push(store.keep_budget(&[])?);
    }
    freed.push(store.collect()?);
    freed.push(Freed { files: store.remove_orphans(), ..Freed::default() });
    Ok(freed)
}

/// Ends of what `prune --state` leaves its state: documents of the library, but with `--all`.
fn spared(args: &PruneArgs, store: &Store) -> Result<Vec<SegmentId>, Failure> {
    let documents = if args.all { Vec::new() } else { store.documents()? };
    Ok(documents.iter().map(|d| d.document.segment).collect())
}

/// Bytes of state that `prune` with these options would drop of a store, and of all it has.
fn state_to_drop(args: &PruneArgs, store: &Store) -> Result<(u64, u64), Failure> {
    let all = store.state_bytes()?;
    let stays = match args.state {
        true => store.state_bytes_of(&spared(args, store)?)?,
        false => store.limits().max_state_bytes.max(store.state_bytes_of_marks()?),
    };
    let dropped = all.saturating_sub(stays);
    Ok((dropped, all))
}

/// Names what `prune` with these options would remove, and what stays.
fn prune_dry_run(
    context: &Context,
    args: &PruneArgs,
    store: &Store,
    requests: Option<&Store>,
) -> Result<Exit, Failure> {
    let sizes = store.sizes()?;
    let trashed = store.sessions(SessionFilter::Trashed, LISTED)?;
    let old = store.old_in_trash(days_in_trash(args))?;
    let gone = trashed.iter().filter(|r| old.contains(&r.id)).map(|r| Ok((r, store.extent(r.id)?)));
    let gone = gone.collect::<Result<Vec<(&SessionRecord, Extent)>, Failure>>()?;
    let mut states: Vec<(String, u64)> = Vec::new();
    let mut documents = Vec::new();
    if args.state {
        for r in store.sessions(SessionFilter::Live, LISTED)? {
            let reached = sizes.sessions.get(&r.id).map_or(0, |b| b.0);
            states.extend((reached > 0).then_some((r.name, reached)));
        }
        if args.all {
            documents.extend(store.documents()?.into_iter().filter(|d| d.kept).map(|d| d.document.name));
        }
    }
    let (beyond, _) = state_to_drop(args, store)?;
    let (of_requests, all_requests) = requests.map_or(Ok((0, 0)), |store| state_to_drop(args, store))?;
    let kept = kept_folders(&context.dirs.kept_weights());
    let weights: u64 = kept.iter().filter(|kept| kept.stage != Stage::Going).map(|kept| kept.bytes).sum();
    let json = || {
        json!({
            "weights_bytes": weights,
            "state_bytes": sizes.state_bytes, "trashed_sessions": trashed.len(), "would_free_state_bytes": beyond,
            "sessions": gone.iter().map(|(r, _)| &r.name).collect::<Vec<_>>(),
            "states": states.iter().map(|(name, bytes)| json!({ "session": name, "bytes": bytes })).collect::<Vec<_>>(),
            "documents": documents,
            "requests": { "state_bytes": all_requests, "would_free_state_bytes": of_requests },
        })
    };
    let text = || {
        let mut lines = Vec::new();
        for (r, extent) in &gone {
            let since = r.trashed_ms.map(when).unwrap_or_default();
            lines.push(format!("session   {}, {extent}, in the trash since {since}", Clean::line(&r.name)));
        }
        // What it shares with a document of the library may stay.
        let most = if args.all { "" } else { "up to " };
        lines
            .extend(states.iter().map(|(name, all)| format!("state of  {}, {most}{}", Clean::line(name), bytes(*all))));
        lines
            .extend(documents.iter().map(|name| format!("state of  {}, a document of the library", Clean::line(name))));
        lines.extend((weights > 0).then(|| format!("weights   {} that were packed by earlier starts", bytes(weights))));
        if !args.state && beyond > 0 {
            lines.push(format!(
                "state     {} of what was used longest ago, above sessions.max_state_gib",
                bytes(beyond)
            ));
        }
        lines.extend((of_requests > 0).then(|| format!("requests  {} of state that serve kept", bytes(of_requests))));
        if lines.is_empty() {
            lines.push("Nothing would go.".to_owned());
        } else {
            lines.insert(0, "This would go:".to_owned());
        }
        let stays = match trashed.len() - gone.len() {
            0 if gone.is_empty() => "nothing is in the trash".to_owned(),
            0 => "nothing else is in the trash".to_owned(),
            1 => "1 session in the trash stays (--all takes it)".to_owned(),
            n => format!("{n} sessions in the trash stay (--all takes them)"),
        };
        let served = match all_requests {
            0 => String::new(),
            n => format!(", and {} of requests to serve", bytes(n)),
        };
        lines.push(format!("State now: {}{served}; {stays}. Nothing was removed.", bytes(sizes.state_bytes)));
        lines.join("\n")
    };
    context.result(json, text)?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_headings_and_fits_into_the_line() {
        let row = SessionRow {
            name: "a-name-that-is-rather-longer-than-its-column".into(),
            title: "What does annex C say about the notice period?".into(),
            messages: 41,
            tokens: 612_204,
            state: "stale".into(),
            bytes: Some(2_400 << 20),
            updated_ms: 0,
        };
        for width in [80, 100, 160] {
            let lines = listed(std::slice::from_ref(&row), Some(width));
            assert!(lines.iter().all(|l| l.len() <= width), "{lines:?}");
            assert!(lines[0].starts_with("name") && lines[1].contains("2.3 GiB"), "{lines:?}");
            assert_eq!([lines[1].contains(&row.name), lines[1].contains("41")], [width >= 100; 2], "{lines:?}");
            assert_eq!(lines[1].contains("What does"), width >= 160);
        }
        let title = "What does annex C say about the notice period? ".repeat(4);
        let long = SessionRow { name: "n".repeat(200), title: title.trim().into(), ..row };
        let lines = listed(std::slice::from_ref(&long), None);
        assert!(lines[1].starts_with(&long.name) && lines[1].ends_with(&long.title), "{lines:?}");
    }
}
