//! `sala-chat bench sessions`: what resume, undo and fork cost, as a user feels it. docs/performance.md
//! has the method.

mod engine;

use serde_json::{Value, json};

use super::clients::{RuntimeClient, failed};
use super::report::Samples;
use super::scratch::{ledger, longest, scratch, write};
use crate::cli::args::BenchArgs;
use crate::cli::{Context, Exit, Failure, open};
use crate::config::settings::Device;
use crate::engine::protocol::BUILT_IN;
use crate::runtime::protocol::{LoadOptions, Request};
use crate::store::{SegmentId, Store};

const REPEATS: usize = 5;
const TOKENS: u64 = 100_000;
const TOKENS_GPU: u64 = 262_144;
const ANSWER: u64 = 24;
const DOCUMENT: &str = "ledger.txt";
const NAME: &str = "measured";
const QUESTIONS: [&str; 3] =
    ["Who wrote the first entry?", "What was counted in entry 12?", "Where was entry 20 written?"];

pub(super) fn measure(context: &Context, args: &BenchArgs) -> Result<Value, Failure> {
    let cpu = context.config().model.device == Device::Cpu || open::model(context)?.name == BUILT_IN;
    let tokens = match args.context.as_slice() {
        [] if cpu => TOKENS,
        [] => TOKENS_GPU,
        [tokens] => *tokens,
        more => {
            let what = "--context takes one length here, the session's";
            return Err(Failure::usage(format!("{what} (got {})", more.len())));
        }
    };
    let longest = longest(context);
    if !(1..=longest).contains(&tokens) {
        return Err(Failure::usage(format!("--context must be 1 to {longest} here (got {tokens})")));
    }
    let (folder, mut own) = scratch(context, tokens)?;
    own.loaded.config.sampling.max_tokens = ANSWER;
    let (context, folder) = (&own, folder.path());
    let document = folder.join(DOCUMENT);
    let (text, _) = open::text(&open::model(context)?.name)?;
    let body = ledger(&text, tokens)?;
    write(&document, &body)?;
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
    let segments = folder.join("data/segments");
    for n in 0..REPEATS {
        for (resume, first_token, cold) in [("resume", "first", false), ("resume, cold", "first, cold", true)] {
            let away = |client: &RuntimeClient| -> Result<(), Failure> {
                client.timed(Request::New(None))?;
                client.timed(Request::Ask(format!("What is {n} + 2?")))?;
                if cold { engine::drop_from_cache(&segments) } else { Ok(()) }
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
    context.note("restoring all rows");
    let equal_bits = engine::measure(context, &store, &tip, &segments, &mut samples)?;
    let all_rows = |figure: &str| {
        let ms = samples.median(figure);
        json!({"ms": ms, "gb_per_s": bytes as f64 / 1e6 / ms.max(1e-6)})
    };
    Ok(json!({
        "machine": {"device": info.device},
        "tokens": position,
        "state_bytes": bytes,
        "read_tokens_per_s": position as f64 / reading_ms.max(1e-6) * 1e3,
        "resume_ms": samples.median("resume"),
        "resume_cold_ms": samples.median("resume, cold"),
        "first_token_ms": samples.median("first"),
        "first_token_cold_ms": samples.median("first, cold"),
        "all_rows": all_rows("all rows"),
        "all_rows_cold": all_rows("all rows, cold"),
        "undo_ms": samples.median("undo"),
        "fork_ms": samples.median("fork"),
        "equal_bits": equal_bits,
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
