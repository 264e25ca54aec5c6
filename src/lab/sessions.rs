//! `sala-chat bench sessions`: what resume, undo, fork and saving cost, as a user feels it.
//!
//! # Method
//!
//! The benchmark loads a made-up document of `--context` tokens into a new session and asks three questions about it,
//! through the runtime, in a data directory of its own on the same disk that is removed at the end. State is real: the
//! model reads and decodes it. With `--fill random`, most of the document's rows are written to disk without being
//! computed ([`super::scratch`]), and `save_gb_per_s` is the speed at which the store writes them. Every time is the
//! host's clock from sending a request to the runtime's answer to the next one, so it includes all work for the
//! request; figures are medians of [`REPEATS`].
//!
//! - `undo_ms`: `/undo` of the last exchange; the `/redo` in between does not count.
//! - `fork_ms`: `/fork` at an earlier exchange: restores its state and makes a session.
//! - `resume_ms`: another conversation is opened, then `/resume`, until the runtime reports it and takes a question.
//!   *cold* is the same after a request to the system to drop the files from its cache: there the disk counts. Where
//!   the system keeps them (some file systems), both figures are alike.
//! - `first_token_ms`: `/resume` and a question, until the first token of the answer.
//! - `all_rows`: on a GPU keys and values follow while the session is in use already. A separate engine receives the
//!   session's files, until the last byte has been read, checked and copied to the device. `read_ms` is the time of
//!   plain reads of the same files on all threads, taken in turns with it, since disks change from minute to minute;
//!   `share_of_read_rate` is the ratio of the two.
//! - `session_list`: opens a store of `--sessions` sessions and lists it as the picker does. Neither figure includes
//!   the search for damage that another thread runs at every start.
//! - `inter_token`: a separate engine continues the saved session with plain decoding, `--decode` tokens an answer.
//!   During every other answer the store's writer saves the whole state of the answer before, and the text every 32
//!   tokens.
//! - `equal_bits`: the last exchange is decoded once more from the resumed state; rows and state must equal those on
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

mod engine;
mod files;
mod list;

use std::path::Path;

use serde_json::{Value, json};

use super::engine_client::failed;
use super::report::{self, Samples};
use super::runtime_client::RuntimeClient;
use super::scratch::{Ends, MadeUp, ledger, longest, scratch, write};
use crate::cli::args::{BenchArgs, FillArg};
use crate::cli::{Context, Exit, Failure, open};
use crate::config::settings::Device;
use crate::engine::protocol::BUILT_IN;
use crate::runtime::protocol::{LoadOptions, Request};
use crate::store::{SegmentId, Store};

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

pub(super) fn run(context: &Context, args: &BenchArgs) -> Result<Exit, Failure> {
    let cpu = context.config().model.device == Device::Cpu || open::model(context)?.name == BUILT_IN;
    let tokens = match args.context.as_slice() {
        [] if cpu => TOKENS,
        [] => TOKENS_GPU,
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
    let (folder, mut own) = scratch(context, tokens)?;
    let config = &mut own.loaded.config;
    config.sampling.max_tokens = ANSWER;
    if args.fill == FillArg::Random {
        config.sessions.checkpoint_every = config.sessions.checkpoint_every.min(PIECE);
    }
    let (figures, device) = measure(&own, args, tokens, folder.path())?;
    report::print(context, args, "sessions", json!({ "device": device }), figures)
}

fn measure(context: &Context, args: &BenchArgs, tokens: u64, folder: &Path) -> Result<(Value, String), Failure> {
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
            made_up.document(&store, DOCUMENT, &body, Ends::Last)?;
            Some(made_up.end()?)
        }
    };
    let (mut client, info) = RuntimeClient::start(context, true)?;
    client.timed(Request::New(Some(NAME.into())))?;
    context.note(&format!("reading {tokens} tokens"));
    let paths = vec![document.display().to_string()];
    let reading_ms = client.timed(Request::Load { paths, options: LoadOptions::default() })?;
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
    let files = files::of_path(&store, &tip, folder)?;
    for n in 0..REPEATS {
        for (resume, first_token, cold) in [("resume", "first", false), ("resume, cold", "first, cold", true)] {
            let away = |client: &mut RuntimeClient| -> Result<(), Failure> {
                client.timed(Request::New(None))?;
                client.timed(Request::Ask(format!("What is {n} + 2?")))?;
                if cold { files::drop_from_cache(&files) } else { files::read(&files).map(drop) }
            };
            away(&mut client)?;
            samples.add(resume, client.resumed(NAME)?);
            away(&mut client)?;
            samples.add(first_token, client.first_token(NAME, QUESTIONS[0])?);
        }
    }
    let position = store.load_path(&tip)?.last().map_or(0, |segment| segment.end_position());
    if position < tokens {
        return Err(failed(format!(
            "only {position} of {tokens} tokens were loaded; is the context of this model long enough?"
        )));
    }
    client.quit()?;
    context.note("times between tokens");
    let engine = engine::measure(context, &store, &tip, args.decode, &files, &mut samples)?;
    context.note("listing sessions");
    let session_list = list::measure(&folder.join("list"), args.sessions)?;
    let all_rows = |ms: &str, read_ms: &str| {
        let (ms, read_ms) = (samples.median(ms), samples.median(read_ms));
        let rate = |ms: f64| bytes as f64 / 1e6 / ms.max(1e-6);
        json!({
            "ms": ms, "read_ms": read_ms, "beyond_read_ms": ms - read_ms, "gb_per_s": rate(ms),
            "read_gb_per_s": rate(read_ms), "share_of_read_rate": read_ms / ms.max(1e-6),
        })
    };
    let figures = json!({
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
        "equal_bits": engine.equal_bits,
        "session_list": session_list,
        "inter_token": engine.inter_token,
    });
    Ok((figures, info.device))
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
