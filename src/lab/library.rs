//! `sala-chat bench library`: what `/ask-all` and `/when` cost, as a user feels it.
//!
//! # Method
//!
//! The benchmark puts `--documents` documents of `--context` tokens, and one of the second `--context` tokens for
//! `/when`, into the library of its own data directory on the same disk. Most of their rows are made up
//! ([`super::sessions::made_up`]: meaningless values of the right sizes); the runtime loads each document, which reads
//! its last piece and keeps it. Then the benchmark sends each request [`REPEATS`] times, with answers of `--decode`
//! tokens; freshly written files are in the system's cache if it has room for them.
//!
//! - *ask-all*: from sending the request until every document has its answer and the answer is scored. The first time
//!   of all is reported separately: it loads kernels and records CUDA graphs.
//! - *when*: from sending the request until its page, with as many kept states as the document has, 32 at most.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::bench::{describe, median};
use super::sessions::made_up::{Ends, MadeUp, Maker};
use super::sessions::talk::Talk;
use super::sessions::{apart, ledger, scratch};
use crate::backend::MAX_POSITIONS;
use crate::cli::args::{BenchArgs, SessionChoice};
use crate::cli::{Context, Exit, Failure, open};
use crate::runtime::Attendance;
use crate::runtime::protocol::{FanOut, LoadOptions, Notice, Request};

const REPEATS: usize = 3;
const CONTEXTS: [u64; 2] = [8_192, 32_768];
/// Most tokens between two kept states of a document; the settings' default.
const PIECE: u64 = 32_768;
const ROOM: u64 = 8_192;
/// A shorter ledger lacks the entries that the questions name.
const SHORTEST: u64 = 512;
const QUESTION: &str = "Who counted the most lamps?";

#[derive(Clone, Debug, Serialize)]
struct AskAll {
    documents: usize,
    answered: usize,
    tokens_each: u64,
    first_ms: f64,
    ms: f64,
}

#[derive(Clone, Debug, Serialize)]
struct When {
    tokens: u64,
    /// The last line of the page, with the number of states that answered.
    said: String,
    first_ms: f64,
    ms: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    answer_tokens: u64,
    made_up_tokens: u64,
    save_gb_per_s: f64,
    ask_all: AskAll,
    when: Option<When>,
}

pub(super) fn run(context: &Context, args: &BenchArgs) -> Result<Exit, Failure> {
    let (each, long) = match args.context.as_slice() {
        [] => (CONTEXTS[0], Some(CONTEXTS[1])),
        [each] => (*each, None),
        [each, long] => (*each, Some(*long)),
        more => {
            let more = more.len();
            let what = "--context takes two lengths here at most, of a document for /ask-all and of that for /when";
            return Err(Failure::usage(format!("{what} (got {more})")));
        }
    };
    let longest = each.max(long.unwrap_or(0));
    let most = match context.config().model.max_context {
        0 => MAX_POSITIONS as u64 - ROOM,
        set => set.min(MAX_POSITIONS as u64 - ROOM),
    };
    if let Some(tokens) = [each].into_iter().chain(long).find(|tokens| !(SHORTEST..=most).contains(tokens)) {
        return Err(Failure::usage(format!("--context must be {SHORTEST} to {most} here (got {tokens})")));
    }
    let scratch = scratch(context)?;
    let mut quiet = apart(context, scratch.path(), longest);
    let config = &mut quiet.loaded.config;
    config.model.max_context = config.model.max_context.min(MAX_POSITIONS as u64);
    config.sampling.max_tokens = args.decode;
    // Whole kilotokens, so that every piece has as many compressed keys as the piece it copies.
    config.sessions.checkpoint_every = (each / 3 / 1024 * 1024).clamp(1024, PIECE);

    let (report, device) = measure(&quiet, args, (each, long), scratch.path())?;
    let mut machine = json!({ "device": device });
    describe(&mut machine, args);
    let mut object = json!({ "bench": "library", "model": open::model(context)?.name, "machine": machine });
    if let (Value::Object(object), Ok(Value::Object(figures))) = (&mut object, serde_json::to_value(&report)) {
        object.extend(figures);
    }
    context.result(|| object.clone(), || table(&report, &device))?;
    Ok(Exit::Ok)
}

struct Book {
    name: String,
    path: String,
    body: String,
    ends: Ends,
}

/// Writes the documents to files: those of the library, then the one for `/when`.
fn books(
    text: &crate::text::TextModel,
    count: usize,
    (each, long): (u64, Option<u64>),
    folder: &Path,
) -> Result<Vec<Book>, Failure> {
    let mut books = Vec::new();
    let all = (0..count).map(|n| (format!("book-{n:03}.txt"), each, Ends::Last));
    for (name, tokens, ends) in all.chain(long.map(|long| ("long.txt".to_owned(), long, Ends::All))) {
        let body = format!("This is {name}.\n{}", ledger_of(text, tokens)?);
        let path = folder.join(&name);
        std::fs::write(&path, &body).map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", path.display())))?;
        books.push(Book { name, path: path.display().to_string(), body, ends });
    }
    Ok(books)
}

/// A ledger of at most `tokens` tokens, and close to it.
fn ledger_of(text: &crate::text::TextModel, tokens: u64) -> Result<String, Failure> {
    let body = ledger(text, tokens)?;
    let found = text.tokenizer.encode_plain(&body)?.len() as u64;
    // Later entries have longer numbers than the estimate assumes.
    if found <= tokens { Ok(body) } else { ledger(text, tokens * tokens / found * 99 / 100) }
}

fn measure(
    context: &Context,
    args: &BenchArgs,
    (each, long): (u64, Option<u64>),
    scratch: &Path,
) -> Result<(Report, String), Failure> {
    let (text, _) = open::text(&open::model(context)?.name)?;
    let books = books(&text, args.documents, (each, long), scratch)?;
    context.note(&format!("putting {} documents on disk", books.len()));
    let store = open::store(context)?;
    let mut maker = Maker::start(context, &store, &text)?;
    for book in &books {
        maker.document(&store, &book.name, &book.body, book.ends)?;
    }
    let MadeUp { tokens, save_gb_per_s } = maker.end()?;
    drop(store);

    let opened = open::runtime(context, &SessionChoice::New, true, Attendance::Present)?;
    let mut talk = Talk::new(opened.runtime);
    let device = talk.ready()?.device;
    context.note("reading what is left of them");
    for book in &books {
        talk.timed(Request::New(Some(book.name.clone())))?;
        talk.timed(Request::Load { paths: vec![book.path.clone()], options: LoadOptions::default() })?;
    }
    context.note("asking");
    // The document for `/when` is the last one loaded, so it is open now.
    let when = long.map(|long| when(&mut talk, long)).transpose()?;
    let ask_all = ask_all(&mut talk, each)?;
    talk.quit()?;
    let _ = opened.engine.join();
    let report = Report { answer_tokens: args.decode, made_up_tokens: tokens, save_gb_per_s, ask_all, when };
    Ok((report, device))
}

fn when(talk: &mut Talk, tokens: u64) -> Result<When, Failure> {
    let page = |notice| match notice {
        Notice::Page { text, .. } => Some(text),
        _ => None,
    };
    let (first_ms, page_text) = talk.told(Request::When(QUESTION.into()), page)?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        times.push(talk.told(Request::When(QUESTION.into()), page)?.0);
    }
    let said = page_text.lines().last().unwrap_or_default().chars().take(120).collect();
    Ok(When { tokens, said, first_ms, ms: median(times) })
}

fn ask_all(talk: &mut Talk, tokens_each: u64) -> Result<AskAll, Failure> {
    let ask = || Request::AskAll { question: QUESTION.into(), library: Some("book-*".into()), read: false };
    let over = |notice| match notice {
        Notice::FanOut(shelf) if shelf.over => Some(shelf),
        _ => None,
    };
    let (first_ms, FanOut { rows, .. }) = talk.told(ask(), over)?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        times.push(talk.told(ask(), over)?.0);
    }
    let answered = rows.iter().filter(|row| row.finish.is_some()).count();
    if let Some(failed) = rows.iter().find_map(|row| row.failed.as_ref()) {
        return Err(Failure::new(Exit::Failure, format!("{answered} of {} answered: {failed}", rows.len())));
    }
    Ok(AskAll { documents: rows.len(), answered, tokens_each, first_ms, ms: median(times) })
}

fn table(r: &Report, device: &str) -> String {
    let mut out = format!(
        "answers of {} tokens on {device}; {} tokens were made up, saved at {:.2} GB/s\n",
        r.answer_tokens, r.made_up_tokens, r.save_gb_per_s
    );
    let a = &r.ask_all;
    let _ = writeln!(
        out,
        "ask-all  {:.0} ms for {} of {} documents of {} tokens; the first time {:.0} ms",
        a.ms, a.answered, a.documents, a.tokens_each, a.first_ms
    );
    if let Some(w) = &r.when {
        let _ = writeln!(
            out,
            "when     {:.0} ms along {} tokens; the first time {:.0} ms. {}",
            w.ms, w.tokens, w.first_ms, w.said
        );
    }
    out
}
