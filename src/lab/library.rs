//! `sala-chat bench library`: what `/ask-all` and `/when` cost, as a user feels it. docs/performance.md has the
//! method.

use serde_json::{Value, json};

use super::clients::{RuntimeClient, failed};
use super::report::median;
use super::scratch::{MadeUp, ROOM, at_most, contexts, ledger, scratch, write};
use crate::backend::MAX_POSITIONS;
use crate::cli::args::BenchArgs;
use crate::cli::{Context, Failure, open};
use crate::runtime::protocol::{LoadOptions, Notice, Request};

const REPEATS: usize = 3;
const CONTEXTS: [u64; 2] = [8_192, 32_768];
/// Most tokens between two kept states of a document; the settings' default.
const PIECE: u64 = 32_768;
/// A shorter ledger lacks the entries that the questions name.
const SHORTEST: u64 = 512;
/// More tokens than an entry of a ledger has.
const ENTRY: u64 = 48;
const QUESTION: &str = "Who counted the most lamps?";

pub(super) fn measure(context: &Context, args: &BenchArgs) -> Result<Value, Failure> {
    at_most(args, 2, "two lengths here at most, of a document for /ask-all and of that for /when")?;
    let most = match context.config().model.max_context {
        0 => MAX_POSITIONS as u64 - ROOM,
        set => set.min(MAX_POSITIONS as u64 - ROOM),
    };
    let lengths = contexts(args, &CONTEXTS, SHORTEST..=most, "")?;
    let (each, long) = (lengths[0], lengths.get(1).copied());
    let (folder, mut own) = scratch(context, long.unwrap_or(0).max(each))?;
    let config = &mut own.loaded.config;
    config.model.max_context = config.model.max_context.min(MAX_POSITIONS as u64);
    config.sampling.max_tokens = args.decode;
    // Whole kilotokens, so that every piece has as many compressed keys as the piece it copies.
    config.sessions.checkpoint_every = (each / 3 / 1024 * 1024).clamp(1024, PIECE);
    let context = &own;
    let (text, _) = open::text(&open::model(context)?.name)?;
    context.note("putting documents on disk");
    let store = open::store(context)?;
    let mut made_up = MadeUp::start(context, &store, &text)?;
    let mut paths = Vec::new();
    let books = (0..args.documents).map(|n| (format!("book-{n:03}.txt"), each));
    for (name, tokens) in books.chain(long.map(|long| ("long.txt".to_owned(), long))) {
        // A ledger exceeds its length by one entry at most.
        let body = format!("This is {name}.\n{}", ledger(&text, tokens - ENTRY)?);
        let path = folder.path().join(&name);
        write(&path, &body)?;
        made_up.document(&store, &name, &body)?;
        paths.push((name, path.display().to_string()));
    }
    let (made_up_tokens, save_gb_per_s) = made_up.end()?;
    drop(store);

    let (client, info) = RuntimeClient::start(context, true)?;
    context.note("reading what is left of them");
    for (name, path) in paths {
        client.timed(Request::New(Some(name)))?;
        client.timed(Request::Load { paths: vec![path], options: LoadOptions::default() })?;
    }
    context.note("asking");
    // The document for `/when` is the last one loaded, so it is open now.
    let when = match long {
        None => None,
        Some(tokens) => {
            let (first_ms, ms, page) = repeated(&client, &Request::When(QUESTION.into()), |notice| match notice {
                Notice::Page { text, .. } => Some(text),
                _ => None,
            })?;
            // The last line has the number of states that answered.
            let last_line: String = page.lines().last().unwrap_or_default().chars().take(120).collect();
            Some(json!({"tokens": tokens, "said": last_line, "first_ms": first_ms, "ms": ms}))
        }
    };
    let request = Request::AskAll { question: QUESTION.into(), library: Some("book-*".into()), read: false };
    let (first_ms, ms, rows) = repeated(&client, &request, |notice| match notice {
        Notice::FanOut(fan_out) if fan_out.over => Some(fan_out.rows),
        _ => None,
    })?;
    let answered = rows.iter().filter(|row| row.finish.is_some()).count();
    if let Some(why) = rows.iter().find_map(|row| row.failed.as_ref()) {
        return Err(failed(format!("{answered} of {} answered: {why}", rows.len())));
    }
    client.quit()?;
    Ok(json!({
        "machine": {"device": info.device},
        "answer_tokens": args.decode,
        "made_up_tokens": made_up_tokens,
        "save_gb_per_s": save_gb_per_s,
        "ask_all": {
            "documents": rows.len(), "answered": answered, "tokens_each": each, "first_ms": first_ms, "ms": ms,
        },
        "when": when,
    }))
}

/// Milliseconds of the first request, the median of [`REPEATS`] more, and the first result.
fn repeated<T>(
    client: &RuntimeClient,
    request: &Request,
    wanted: impl Fn(Notice) -> Option<T>,
) -> Result<(f64, f64, T), Failure> {
    let (first_ms, found) = client.until(request.clone(), &wanted)?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        times.push(client.until(request.clone(), &wanted)?.0);
    }
    Ok((first_ms, median(times), found))
}
