//! `sala-chat bench sessions`: what resume, undo, fork and saving cost, as a user feels it.
//!
//! # Method
//!
//! The benchmark loads a made-up document of `--context` tokens into a new session and asks three questions about it,
//! through the runtime, in a data directory of its own on the same disk that is removed at the end. State is real: the
//! model reads and decodes it. With `--fill random`, most of the document's rows are written to disk without being
//! computed (meaningless values of the right sizes), and *save* is the speed at which the store writes them. Every
//! time is the host's clock from sending a request to the runtime's answer to the next one, so it includes all work
//! for the request; figures are medians of [`REPEATS`].
//!
//! - *undo*: `/undo` of the last exchange; the `/redo` in between does not count.
//! - *fork*: `/fork` at an earlier exchange: restores its state and makes a session.
//! - *resume*: another conversation is opened, then `/resume`, until the runtime reports it and takes a question.
//!   *cold* is the same after a request to the system to drop the files from its cache: there the disk counts. Where
//!   the system keeps them (some file systems), both figures are alike.
//! - *first token*: `/resume` and a question, until the first token of the answer; with the files in the system's
//!   cache, and *cold*.
//! - *all rows*: on a GPU keys and values follow while the session is in use already. A separate engine receives the
//!   session's files, until the last byte has been read, checked and copied to the device. `read_ms` is the time of
//!   plain reads of the same files on all threads, taken in turns with it, since disks change from minute to minute;
//!   `share_of_read_rate` is the ratio of the two. If a resume ends before all is read, its time beyond reading is
//!   negative.
//! - *session list*: opens a store of `--sessions` sessions and lists it as the picker does. Neither figure includes
//!   the search for damage that another thread runs at every start.
//! - *inter-token*: a separate engine continues the saved session with plain decoding, `--decode` tokens an answer.
//!   During every other answer the store's writer saves the whole state of the answer before, and the text every 32
//!   tokens. The figures are the 99th percentiles of the times between tokens.
//! - *equal bits*: the last exchange is decoded once more from the resumed state; rows and state must equal those on
//!   disk, bit for bit.
//!
//! # How to read it
//!
//! A fork waits for the disk once, for the transaction that makes its session; an undo does not. Both requests are
//! sent when the store's writer is idle. The runtime reports the shortened transcript and the undone question before
//! it restores state, so an undo delays only a question that follows at once. With `-vv` the log gives for each the
//! time to open kept state (`open_ms`: its path in the database, and reading and checking the recurrent states) and
//! the engine's time (`restore_ms`); the rest is rendering and planning. On a GPU `resume` includes the transfer over
//! PCIe. No figure includes loading the model.

pub(super) mod direct;
mod list;
pub(super) mod made_up;
mod plain;
pub(super) mod talk;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::bench::{describe, median};
use crate::backend::MAX_POSITIONS;
use crate::cli::args::{BenchArgs, FillArg, SessionChoice};
use crate::cli::{Context, Exit, Failure, open};
use crate::config::settings::{Device, Origin, SaveStates};
use crate::core::transcript::{Message, MessageId, MessageMeta, Role};
use crate::engine::protocol::BUILT_IN;
use crate::runtime::Attendance;
use crate::runtime::protocol::{LoadOptions, Request};
use crate::store::{SegmentId, Store};
use direct::Gaps;
use list::{List, list};
use talk::Talk;

const REPEATS: usize = 5;
const TOKENS: u64 = 100_000;
const TOKENS_GPU: u64 = 262_144;
const ROOM: u64 = 8_192;
const PIECE: u64 = 8_192;
const ANSWER: u64 = 24;
const DOCUMENT: &str = "ledger.txt";
const NAME: &str = "measured";
const PATIENCE: Duration = Duration::from_secs(120);
/// Entries of the shortest ledger: the questions name the 20th.
const LEAST_ENTRIES: u64 = 24;
const QUESTIONS: [&str; 3] =
    ["Who wrote the first entry?", "What was counted in entry 12?", "Where was entry 20 written?"];

#[derive(Clone, Copy, Debug, Serialize)]
struct AllRows {
    ms: f64,
    read_ms: f64,
    beyond_read_ms: f64,
    gb_per_s: f64,
    read_gb_per_s: f64,
    share_of_read_rate: f64,
}

impl AllRows {
    fn new(ms: f64, read_ms: f64, bytes: u64) -> AllRows {
        let rate = |ms: f64| bytes as f64 / 1e6 / ms.max(1e-6);
        AllRows {
            ms,
            read_ms,
            beyond_read_ms: ms - read_ms,
            gb_per_s: rate(ms),
            read_gb_per_s: rate(read_ms),
            share_of_read_rate: read_ms / ms.max(1e-6),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    tokens: u64,
    state_bytes: u64,
    /// Tokens with rows that were not computed.
    made_up_tokens: u64,
    save_gb_per_s: Option<f64>,
    read_tokens_per_s: Option<f64>,
    resume_ms: f64,
    resume_cold_ms: f64,
    first_token_ms: f64,
    first_token_cold_ms: f64,
    all_rows: AllRows,
    all_rows_cold: AllRows,
    undo_ms: f64,
    fork_ms: f64,
    equal_bits: bool,
    session_list: List,
    inter_token: Gaps,
}

pub(super) fn run(context: &Context, args: &BenchArgs) -> Result<Exit, Failure> {
    let cpu = context.config().model.device == Device::Cpu || open::model(context)?.name == BUILT_IN;
    let tokens = match args.context.as_slice() {
        [] => {
            if cpu {
                TOKENS
            } else {
                TOKENS_GPU
            }
        }
        [tokens] => *tokens,
        more => {
            let more = more.len();
            return Err(Failure::usage(format!("--context takes one length here, the session's (got {more})")));
        }
    };
    let most = longest(context);
    if tokens > most {
        return Err(Failure::usage(format!("--context must be 1 to {most} here (got {tokens})")));
    }
    let scratch = scratch(context)?;
    let mut quiet = apart(context, scratch.path(), tokens);
    let config = &mut quiet.loaded.config;
    config.sampling.max_tokens = ANSWER;
    if args.fill == FillArg::Random {
        // The model reads two of these pieces.
        config.sessions.checkpoint_every = config.sessions.checkpoint_every.min(PIECE);
    }

    let (report, device) = measure(&quiet, args, tokens, scratch.path())?;
    let mut machine = json!({ "device": device });
    describe(&mut machine, args);
    let mut object = json!({ "bench": "sessions", "model": open::model(context)?.name, "machine": machine });
    if let (Value::Object(object), Ok(Value::Object(figures))) = (&mut object, serde_json::to_value(&report)) {
        object.extend(figures);
    }
    context.result(|| object.clone(), || table(&report, &device))?;
    Ok(Exit::Ok)
}

/// A temporary folder on the disk of the sessions.
pub(super) fn scratch(context: &Context) -> Result<tempfile::TempDir, Failure> {
    let data = &context.dirs.data;
    let made = std::fs::create_dir_all(data).and_then(|()| tempfile::Builder::new().prefix("bench-").tempdir_in(data));
    made.map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", data.display())))
}

pub(super) fn longest(context: &Context) -> u64 {
    let all = MAX_POSITIONS as u64;
    match context.config().model.max_context {
        0 => (all - ROOM) / 9 * 8,
        set => set.min(all),
    }
}

/// A context with its own data directory, for documents of up to `tokens` tokens. It keeps all state and never asks
/// for confirmation.
pub(super) fn apart(context: &Context, scratch: &Path, tokens: u64) -> Context {
    let mut quiet = context.clone();
    quiet.dirs.data = scratch.join("data");
    // Changes from here on count as settings of its sessions.
    quiet.loaded.keep_all();
    let config = &mut quiet.loaded.config;
    if config.model.max_context == 0 {
        // Later entries of the ledger have longer numbers than the estimate assumes.
        config.model.max_context = tokens + tokens / 8 + ROOM;
    }
    config.model.reserve_answer = config.model.reserve_answer.min(ROOM / 4);
    config.sampling.temperature = 0.0;
    // Overrides the recommendation of the model's folder.
    quiet.loaded.origins.insert("sampling.temperature".into(), Origin::BuiltIn);
    let config = &mut quiet.loaded.config;
    (config.sessions.save_state, config.sessions.keep_turns) = (SaveStates::Turn, 64);
    (config.sessions.min_free_gib, config.sessions.max_state_gib) = (0.0, 1e6);
    (config.load.confirm_tokens, config.load.max_file_mib) = (u64::MAX, 1 << 20);
    quiet
}

fn measure(context: &Context, args: &BenchArgs, tokens: u64, scratch: &Path) -> Result<(Report, String), Failure> {
    let document = scratch.join(DOCUMENT);
    let model = open::model(context)?.name;
    let (text, _) = open::text(&model)?;
    let body = ledger(&text, tokens)?;
    std::fs::write(&document, &body).map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", document.display())))?;
    let made_up = match args.fill {
        FillArg::Read => None,
        FillArg::Random => {
            context.note(&format!("putting {tokens} tokens on disk"));
            let store = open::store(context)?;
            Some(made_up::make(context, &store, &text, DOCUMENT, &body)?)
        }
    };

    let opened = open::runtime(context, &SessionChoice::New, true, Attendance::Present)?;
    let mut talk = Talk::new(opened.runtime);
    let device = talk.ready()?.device;
    talk.timed(Request::New(Some(NAME.into())))?;
    context.note(&format!("reading {tokens} tokens"));
    let paths = vec![document.display().to_string()];
    let reading = talk.timed(Request::Load { paths, options: LoadOptions::default() })?;
    for question in QUESTIONS {
        talk.timed(Request::Ask(question.into()))?;
    }
    context.note("going back and forth");
    let mut undos = Vec::new();
    for _ in 0..REPEATS {
        undos.push(talk.back(Request::Undo(1))?);
        talk.timed(Request::Redo(1))?;
    }
    let mut forks = Vec::new();
    for _ in 0..REPEATS {
        // #1 is the document, #2 the question. Undo and redo wait for rows in flight, which are not part of a fork.
        talk.timed(Request::Undo(1))?;
        talk.timed(Request::Redo(1))?;
        forks.push(talk.back(Request::Fork { at: Some(2), name: None })?);
        talk.resumed(NAME)?;
    }
    let store = open::store(context)?;
    let (tip, bytes) = tip(&store)?;
    let away = |talk: &mut Talk, n: usize| {
        talk.timed(Request::New(None))?;
        talk.timed(Request::Ask(format!("What is {n} + 2?")))
    };
    let files = plain::files(&store, &tip, scratch)?;
    let (mut resumes, mut cold) = (Vec::new(), Vec::new());
    let (mut first, mut first_cold) = (Vec::new(), Vec::new());
    for n in 0..REPEATS {
        away(&mut talk, n)?;
        plain::read(&files)?;
        resumes.push(talk.resumed(NAME)?);
        away(&mut talk, n)?;
        plain::forget(&files)?;
        cold.push(talk.resumed(NAME)?);
        away(&mut talk, n)?;
        plain::read(&files)?;
        first.push(talk.first_token(NAME, QUESTIONS[0])?);
        away(&mut talk, n)?;
        plain::forget(&files)?;
        first_cold.push(talk.first_token(NAME, QUESTIONS[0])?);
    }
    let path = store.load_path(&tip)?;
    let position = path.last().map_or(0, |s| s.end_position());
    if position < tokens {
        let text = format!("only {position} of {tokens} tokens were loaded; is the context of this model long enough?");
        return Err(Failure::new(Exit::Failure, text));
    }
    talk.quit()?;
    // The next engine needs this one's memory.
    let _ = opened.engine.join();

    context.note("times between tokens");
    let direct = direct::measure(context, &store, &tip, args.decode, &files)?;
    context.note("listing sessions");
    let session_list = list(&scratch.join("list"), args.sessions)?;
    let report = Report {
        tokens: position,
        state_bytes: bytes,
        made_up_tokens: made_up.as_ref().map_or(0, |m| m.tokens),
        read_tokens_per_s: made_up.is_none().then(|| position as f64 / reading.max(1e-6) * 1e3),
        save_gb_per_s: made_up.map(|m| m.save_gb_per_s),
        resume_ms: median(resumes),
        resume_cold_ms: median(cold),
        first_token_ms: median(first),
        first_token_cold_ms: median(first_cold),
        all_rows: AllRows::new(direct.all_rows_ms, direct.read_ms, bytes),
        all_rows_cold: AllRows::new(direct.all_rows_cold_ms, direct.read_cold_ms, bytes),
        undo_ms: median(undos),
        fork_ms: median(forks),
        equal_bits: direct.equal_bits,
        session_list,
        inter_token: direct.gaps,
    };
    Ok((report, device))
}

/// A text of at least `tokens` tokens and at most one entry more, without two equal entries. Its length is measured,
/// since the tokens of an entry depend on the tokenizer and the number.
pub(super) fn ledger(text: &crate::text::TextModel, tokens: u64) -> Result<String, Failure> {
    const WHO: [&str; 7] = ["Anna", "Marta", "Tom", "Ivan", "Lena", "Omar", "Ruth"];
    const WHAT: [&str; 5] = ["boxes", "letters", "coins", "lamps", "ropes"];
    const WHERE: [&str; 6] = ["Oslo", "Rome", "Lima", "Kyoto", "Bern", "Cairo"];
    let pick =
        |words: &[&'static str], n: u64| words.get((n % words.len() as u64) as usize).copied().unwrap_or_default();
    let entry = |i: u64| {
        let n = i.wrapping_mul(crate::core::GOLDEN) >> 20;
        let (who, what, place) = (pick(&WHO, n), pick(&WHAT, n >> 8), pick(&WHERE, n >> 16));
        format!("Entry {i}: {who} counted {} {what} in {place}.\n", n % 9000 + 10)
    };
    let some: String = (1000..1200).map(entry).collect();
    let each = (text.tokenizer.encode_plain(&some)?.len() as u64 / 200).max(1);
    let mut entries = LEAST_ENTRIES;
    let mut body: String = (1..=entries).map(entry).collect();
    loop {
        let missing = tokens.saturating_sub(text.tokenizer.encode_plain(&body)?.len() as u64);
        if missing == 0 {
            return Ok(body);
        }
        // Short steps at the end: the text must not exceed the room.
        let more = (missing * 15 / 16 / each).max(1);
        body.extend((entries + 1..=entries + more).map(entry));
        entries += more;
    }
}

/// The last segment of the measured session, and the bytes of its state on disk.
fn tip(store: &Store) -> Result<(SegmentId, u64), Failure> {
    let nothing = || Failure::new(Exit::Unreadable, "the state of the measured session was not kept");
    let record = store.session_named(NAME)?;
    let (head, fingerprint) = record.head.zip(record.state_of).ok_or_else(nothing)?;
    let (_, tip) = store.tip_segment(head, &fingerprint)?.ok_or_else(nothing)?;
    let plan = store.plan_restore(&tip)?;
    if plan.usable != plan.path.len() {
        return Err(nothing());
    }
    Ok((tip, plan.bytes()))
}

fn message(store: &Store, parent: Option<MessageId>, role: Role, text: String) -> Message {
    let (thinking, meta) = (String::new(), MessageMeta::default());
    Message { id: store.new_message_id(parent), parent, role, text, thinking, created_ms: 0, meta }
}

fn table(r: &Report, device: &str) -> String {
    let mut out =
        format!("a session of {} tokens, {:.1} MB of state, on {device}\n", r.tokens, r.state_bytes as f64 / 1e6);
    let (list, gaps) = (&r.session_list, &r.inter_token);
    if let Some(rate) = r.save_gb_per_s {
        let tokens = r.made_up_tokens;
        let _ = writeln!(out, "save          {rate:.2} GB/s ({tokens} tokens were made up)");
    }
    for (name, ms, rows) in [("resume", r.resume_ms, &r.all_rows), ("resume, cold", r.resume_cold_ms, &r.all_rows_cold)]
    {
        let beyond = ms - rows.read_ms;
        let _ = writeln!(out, "{name:<12}  {ms:.0} ms until it can be asked, {beyond:.0} ms beyond reading its bytes");
    }
    for (name, resume) in [("all rows", &r.all_rows), ("all, cold", &r.all_rows_cold)] {
        let _ = writeln!(
            out,
            "{name:<12}  {:.0} ms, {:.0} ms beyond reading its bytes; {:.2} GB/s, {:.0} % of {:.2} GB/s read",
            resume.ms,
            resume.beyond_read_ms,
            resume.gb_per_s,
            100.0 * resume.share_of_read_rate,
            resume.read_gb_per_s
        );
    }
    let _ =
        writeln!(out, "first token   {:.0} ms after /resume, {:.0} ms cold", r.first_token_ms, r.first_token_cold_ms);
    let _ = writeln!(out, "equal bits    {}", r.equal_bits);
    let _ = writeln!(out, "undo          {:.1} ms", r.undo_ms);
    let _ = writeln!(out, "fork          {:.1} ms", r.fork_ms);
    let _ = writeln!(
        out,
        "session list  {:.1} ms for {} sessions, after {:.1} ms to open the store",
        list.ms, list.sessions, list.open_store_ms
    );
    let _ = write!(
        out,
        "inter-token   p99 {:.2} ms while saving, {:.2} ms without: {:.3}; p50 {:.2} and {:.2} ms",
        gaps.on_p99_ms, gaps.off_p99_ms, gaps.p99_on_over_off, gaps.on_p50_ms, gaps.off_p50_ms
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_has_the_tokens_that_were_asked_for() {
        let text = crate::client::remote::text_model().unwrap();
        for tokens in [1, 6_000, 8_192, 30_000] {
            let body = ledger(&text, tokens).unwrap();
            let has = text.tokenizer.encode_plain(&body).unwrap().len() as u64;
            let least = ledger(&text, 1).unwrap();
            let at_least_entries = body.starts_with(&least);
            assert!(at_least_entries && has >= tokens, "{has} of {tokens}");
            assert!(body == least || has < tokens + 40, "{has} of {tokens}");
        }
    }
}
