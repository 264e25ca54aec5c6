//! `sala-chat bench sessions`: what resume, undo, fork and saving cost, as a user feels it. docs/performance.md
//! has the method.

mod engine;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::clients::{RuntimeClient, failed};
use super::report::{Samples, ms};
use super::scratch::{MadeUp, all_saved, at_most, contexts, ledger, longest, message, scratch, write};
use crate::cli::args::{BenchArgs, FillArg};
use crate::cli::{Context, Exit, Failure, open};
use crate::config::settings::Device;
use crate::core::transcript::Role;
use crate::engine::protocol::BUILT_IN;
use crate::runtime::protocol::{LoadOptions, Request};
use crate::runtime::session_rows;
use crate::store::{Change, Limits, NewSession, RealDisk, Save, SegmentId, SessionFilter, Store, Writer};

const REPEATS: usize = 5;
const TOKENS: u64 = 100_000;
const TOKENS_GPU: u64 = 262_144;
/// The model reads two of these pieces of a document with made-up state.
const PIECE: u64 = 8_192;
const ANSWER: u64 = 24;
const DOCUMENT: &str = "ledger.txt";
const NAME: &str = "measured";
const QUESTIONS: [&str; 3] =
    ["Who wrote the first entry?", "What was counted in entry 12?", "Where was entry 20 written?"];

pub(super) fn measure(context: &Context, args: &BenchArgs) -> Result<Value, Failure> {
    let cpu = context.config().model.device == Device::Cpu || open::model(context)?.name == BUILT_IN;
    at_most(args, 1, "one length here, the session's")?;
    let tokens = contexts(args, &[if cpu { TOKENS } else { TOKENS_GPU }], 1..=longest(context), "")?[0];
    let (folder, mut own) = scratch(context, tokens)?;
    let config = &mut own.loaded.config;
    config.sampling.max_tokens = ANSWER;
    if args.fill == FillArg::Random {
        config.sessions.checkpoint_every = config.sessions.checkpoint_every.min(PIECE);
    }
    let (context, folder) = (&own, folder.path());
    let document = folder.join(DOCUMENT);
    let (text, _) = open::text(&open::model(context)?.name)?;
    let body = ledger(&text, tokens)?;
    write(&document, &body)?;
    let made_up = match args.fill {
        FillArg::Read => None,
        FillArg::Random => {
            context.note(&format!("putting {tokens} tokens on disk"));
            let store = open::store(context)?;
            let mut made_up = MadeUp::start(context, &store, &text)?;
            made_up.document(&store, DOCUMENT, &body)?;
            Some(made_up.end()?)
        }
    };
    let (client, info) = RuntimeClient::start(context, true)?;
    client.timed(Request::New(Some(NAME.into())))?;
    context.note(&format!("reading {tokens} tokens"));
    let paths = vec![document.display().to_string()];
    let (reading_ms, _) = client.timed(Request::Load { paths, options: LoadOptions::default() })?;
    for question in QUESTIONS {
        client.timed(Request::Ask(question.into()))?;
    }
    context.note("going back and forth");
    let mut samples = Samples::default();
    for _ in 0..REPEATS {
        samples.add("undo", client.back(Request::Undo(1))?);
        client.timed(Request::Redo(1))?;
    }
    for _ in 0..REPEATS {
        // #1 is the document, #2 the question. Undo and redo wait for rows in flight, which are not part of a fork.
        client.timed(Request::Undo(1))?;
        client.timed(Request::Redo(1))?;
        samples.add("fork", client.back(Request::Fork { at: Some(2), name: None })?);
        client.resumed(NAME)?;
    }
    let store = open::store(context)?;
    let (tip, bytes) = tip(&store)?;
    let files = engine::files_of_path(&store, &tip, folder)?;
    for n in 0..REPEATS {
        for (resume, first_token, cold) in [("resume", "first", false), ("resume, cold", "first, cold", true)] {
            let away = |client: &RuntimeClient| -> Result<(), Failure> {
                client.timed(Request::New(None))?;
                client.timed(Request::Ask(format!("What is {n} + 2?")))?;
                if cold { engine::drop_from_cache(&files) } else { engine::read(&files).map(drop) }
            };
            away(&client)?;
            samples.add(resume, client.resumed(NAME)?);
            away(&client)?;
            samples.add(first_token, client.first_token(NAME, QUESTIONS[0])?);
        }
    }
    let position = store.load_path(&tip)?.last().map_or(0, |segment| segment.end_position());
    if position < tokens {
        let line = format!("only {position} of {tokens} tokens were loaded; is the context of this model long enough?");
        return Err(failed(line));
    }
    client.quit()?;
    context.note("times between tokens");
    let (inter_token, equal_bits) = engine::measure(context, &store, &tip, args.decode, &files, &mut samples)?;
    context.note("listing sessions");
    let session_list = list(&folder.join("list"), args.sessions)?;
    let all_rows = |ms: &str, read_ms: &str| {
        let (ms, read_ms) = (samples.median(ms), samples.median(read_ms));
        let rate = |ms: f64| bytes as f64 / 1e6 / ms.max(1e-6);
        json!({
            "ms": ms, "read_ms": read_ms, "beyond_read_ms": ms - read_ms, "gb_per_s": rate(ms),
            "read_gb_per_s": rate(read_ms), "share_of_read_rate": read_ms / ms.max(1e-6),
        })
    };
    Ok(json!({
        "machine": {"device": info.device},
        "tokens": position,
        "state_bytes": bytes,
        "made_up_tokens": made_up.map_or(0, |(tokens, _)| tokens),
        "save_gb_per_s": made_up.map(|(_, rate)| rate),
        "read_tokens_per_s": made_up.is_none().then(|| position as f64 / reading_ms.max(1e-6) * 1e3),
        "resume_ms": samples.median("resume"),
        "resume_cold_ms": samples.median("resume, cold"),
        "first_token_ms": samples.median("first"),
        "first_token_cold_ms": samples.median("first, cold"),
        "all_rows": all_rows("all rows", "read"),
        "all_rows_cold": all_rows("all rows, cold", "read, cold"),
        "undo_ms": samples.median("undo"),
        "fork_ms": samples.median("fork"),
        "equal_bits": equal_bits,
        "session_list": session_list,
        "inter_token": inter_token,
    }))
}

/// The last segment of the measured session, and the bytes of its state on disk.
fn tip(store: &Store) -> Result<(SegmentId, u64), Failure> {
    let nothing = || Failure::new(Exit::Unreadable, "the state of the measured session was not kept");
    let record = store.session_named(NAME)?;
    let (head, fingerprint) = record.head.zip(record.state_of).ok_or_else(nothing)?;
    let (_, tip) = store.tip_segment(head, &fingerprint)?.ok_or_else(nothing)?;
    let plan = store.plan_restore(&tip)?;
    if plan.usable == plan.path.len() { Ok((tip, plan.bytes())) } else { Err(nothing()) }
}

/// The picker's list of a store with many sessions.
fn list(folder: &Path, sessions: usize) -> Result<Value, Failure> {
    let limits = Limits { min_free_bytes: 0, ..Limits::default() };
    let open = || Store::open(folder, Arc::new(RealDisk), limits.clone());
    fill(Arc::new(open()?), sessions)?;
    let (mut samples, mut found) = (Samples::default(), 0);
    for _ in 0..REPEATS {
        let begun = Instant::now();
        let store = open()?;
        samples.add("open", ms(begun));
        let begun = Instant::now();
        let rows = session_rows(&store, store.sessions(SessionFilter::Live, sessions)?, None, None);
        samples.add("list", ms(begun));
        found = rows.len();
    }
    Ok(json!({ "sessions": found, "open_store_ms": samples.median("open"), "ms": samples.median("list") }))
}

/// Saves all sessions in one transaction and waits until it is on disk.
fn fill(store: Arc<Store>, sessions: usize) -> Result<(), Failure> {
    let mut changes = Vec::with_capacity(4 * sessions);
    for n in 0..sessions {
        let id = store.new_session_id();
        let question = message(&store, None, Role::User, format!("What is written in entry {n}?"));
        let answer = message(&store, Some(question.id), Role::Assistant, format!("Entry {n} was written by Anna."));
        let head = Some(answer.id);
        let (name, settings) = (format!("session {n}"), "{}".to_owned());
        changes.push(Change::CreateSession(NewSession { id, name, settings, head: None, forked_from: None }));
        changes.extend([question, answer].map(|m| Change::PutMessage { session: id, message: Box::new(m) }));
        changes.push(Change::MoveHead { session: id, head });
    }
    let (events, outcome) = crossbeam_channel::unbounded();
    let writer = Writer::start(store, events)?;
    writer.save(Save { changes, images: Vec::new() });
    all_saved(writer, &outcome)
}
