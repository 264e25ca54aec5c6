//! `sala-chat bench sessions`: what resume, undo and fork cost, as a user feels it. docs/performance.md
//! has the method.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::clients::{EngineClient, PATIENCE, RuntimeClient, failed, greedy};
use super::report::{joined, median, ms};
use super::scratch::{book, longest, scratch};
use crate::cli::args::BenchArgs;
use crate::cli::{Context, Exit, Failure, open};
use crate::config::settings::Device;
use crate::engine::protocol::{BUILT_IN, ImageTensor, MAIN, RowSource, SpecMode, Token};
use crate::runtime::protocol::{LoadOptions, Request};
use crate::store::{SegmentId, Store, StoredRows};
use crate::text::quotes;

const POLL: Duration = Duration::from_micros(200);
const REPEATS: usize = 5;
const TOKENS: u64 = 100_000;
const TOKENS_GPU: u64 = 262_144;
const ANSWER: u64 = 24;
const DOCUMENT: &str = "book.txt";
const NAME: &str = "measured";
const QUESTIONS: [&str; 3] =
    ["What does the bridge do?", "Which garden is quiet?", "What do we learn about the first winter?"];

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
    std::fs::write(&document, book(&text, tokens)?)
        .map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", document.display())))?;
    let (client, info) = RuntimeClient::start(context, true)?;
    client.timed(Request::New(Some(NAME.into())))?;
    context.note(&format!("reading {tokens} tokens"));
    let paths = vec![document.display().to_string()];
    let (reading_ms, _) = client.timed(Request::Load { paths, options: LoadOptions::default() })?;
    for question in QUESTIONS {
        client.timed(Request::Ask(question.into()))?;
    }
    context.note("going back and forth");
    let mut samples: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut add = |figure, ms| samples.entry(figure).or_default().push(ms);
    for _ in 0..REPEATS {
        add("undo_ms", client.back(Request::Undo(1))?);
        client.timed(Request::Redo(1))?;
    }
    for _ in 0..REPEATS {
        // #1 is the document, #2 the question. Undo and redo wait for rows in flight, which are not part of a fork.
        client.timed(Request::Undo(1))?;
        client.timed(Request::Redo(1))?;
        add("fork_ms", client.back(Request::Fork { at: Some(2), name: None })?);
        client.resumed(NAME)?;
    }
    let store = open::store(context)?;
    let (tip, bytes) = tip(&store)?;
    let segments = folder.join("data/segments");
    for n in 0..REPEATS {
        for (resume, first_token, cold) in
            [("resume_ms", "first_token_ms", false), ("resume_cold_ms", "first_token_cold_ms", true)]
        {
            let away = |client: &RuntimeClient| -> Result<(), Failure> {
                client.timed(Request::New(None))?;
                client.timed(Request::Ask(format!("What is {n} + 2?")))?;
                if cold { drop_from_cache(&segments) } else { Ok(()) }
            };
            away(&client)?;
            add(resume, client.resumed(NAME)?);
            away(&client)?;
            add(first_token, client.first_token(NAME, QUESTIONS[0])?);
        }
    }
    let position = store.load_path(&tip)?.last().map_or(0, |segment| segment.end_position());
    if position < tokens {
        let line = format!("only {position} of {tokens} tokens were loaded; is the context of this model long enough?");
        return Err(failed(line));
    }
    client.quit()?;
    context.note("restoring all rows");
    let mut client = EngineClient::start(context)?;
    let equal_bits = equal_bits(context, &mut client, &store, &tip)?;
    let (mut rows, mut rows_cold) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        drop_from_cache(&segments)?;
        rows_cold.push(all_rows(&mut client, &store, &tip)?);
        rows.push(all_rows(&mut client, &store, &tip)?);
    }
    client.end();
    let restored = |times: Vec<f64>| {
        let ms = median(times);
        json!({"ms": ms, "gb_per_s": bytes as f64 / 1e6 / ms.max(1e-6)})
    };
    let report = json!({
        "machine": {"device": info.device}, "tokens": position, "state_bytes": bytes,
        "read_tokens_per_s": position as f64 / reading_ms.max(1e-6) * 1e3, "all_rows": restored(rows),
        "all_rows_cold": restored(rows_cold), "equal_bits": equal_bits,
    });
    Ok(joined(report, samples.into_iter().map(|(figure, times)| (figure, median(times))).collect()))
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

/// Makes a saved path live. The returned rows may still be in flight.
fn restore(client: &mut EngineClient, store: &Store, tip: &SegmentId) -> Result<Vec<Arc<StoredRows>>, Failure> {
    let saved = store.open_path(tip, 0)?;
    if saved.plan.usable != saved.plan.path.len() {
        return Err(failed("the state of the measured session was not kept"));
    }
    let segments = saved.plan.path.iter().map(|s| &s.content);
    let history: Vec<Token> = segments.flat_map(|s| s.prompt.iter().chain(&s.completion)).copied().collect();
    let rows = saved.rows.iter().cloned().map(|rows| rows as Arc<dyn RowSource>).collect();
    client.restore(MAIN, rows, saved.end, history)?;
    Ok(saved.rows)
}

/// Milliseconds from opening the session's files until the last byte of its rows is on the device.
fn all_rows(client: &mut EngineClient, store: &Store, tip: &SegmentId) -> Result<f64, Failure> {
    let begun = Instant::now();
    let rows = restore(client, store, tip)?;
    while rows.iter().any(|r| r.read_bytes() < r.bytes()) {
        if begun.elapsed() > PATIENCE {
            return Err(failed("the rows do not arrive"));
        }
        std::thread::sleep(POLL);
    }
    Ok(ms(begun))
}

/// Whether the last segment, computed again on top of the restored state before it, equals the one on disk.
fn equal_bits(context: &Context, client: &mut EngineClient, store: &Store, tip: &SegmentId) -> Result<bool, Failure> {
    let (text, stop) = open::text(&open::model(context)?.name)?;
    let Some(last) = store.segment(tip)? else { return Ok(false) };
    let Some(parent) = last.content.parent else { return Ok(false) };
    restore(client, store, &parent)?;
    let generated = &last.content.completion;
    // The last drawn token does not enter the state.
    let mut generate = greedy(generated.len() as u64 + 1, SpecMode::Off);
    let quoting = text.recommended.quoting.as_ref();
    generate.constraint = quoting.map(|quoting| quotes::constraint(quoting, &text.tokenizer, &stop));
    let id = client.run(MAIN, last.content.prompt.clone(), generate, true)?;
    let mut events = client.all(&[id])?;
    let drawn: Vec<Token> = events.tokens.into_iter().flat_map(|(.., tokens)| tokens).collect();
    let done = events.done.remove(&id).unwrap_or_default();
    let image = done.image.ok_or_else(|| failed("the engine exported no state"))?;
    let (rows, end) = (store.read_rows(tip)?, store.read_end(tip)?);
    let found_end = image.end.map(|e| e.tensors).unwrap_or_default();
    Ok(done.generated_in_state == generated.len() as u64
        && drawn.starts_with(generated)
        && same(image.rows.tensors, rows.tensors)
        && same(found_end, end.tensors))
}

/// Bit for bit, in any order. Ignores the draft head's window, which is not part of the model's state.
fn same(mut a: Vec<ImageTensor>, mut b: Vec<ImageTensor>) -> bool {
    for tensors in [&mut a, &mut b] {
        tensors.retain(|t| !t.name.starts_with("draft"));
        tensors.sort_by(|x, y| x.name.cmp(&y.name));
    }
    let equal = |(x, y): (&ImageTensor, &ImageTensor)| {
        (&x.name, x.dtype, &x.shape, &x.data) == (&y.name, y.dtype, &y.shape, &y.data)
    };
    !a.is_empty() && a.len() == b.len() && a.iter().zip(&b).all(equal)
}

/// Asks the system to drop the files of a folder from its cache.
fn drop_from_cache(folder: &Path) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::new(Exit::Disk, format!("{}: {e}", folder.display()));
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        #[cfg(target_os = "linux")]
        File::open(entry.path())
            .and_then(|file| Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?))
            .map_err(failed)?;
    }
    Ok(())
}
