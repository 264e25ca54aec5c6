//! The engine without a runtime: the time to restore all rows, and bits after a resume.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::clients::{EngineClient, PATIENCE, failed, greedy};
use super::super::report::{Samples, ms};
use super::REPEATS;
use crate::cli::{Context, Exit, Failure, open};
use crate::engine::protocol::{ImageTensor, MAIN, RowSource, SpecMode, Token};
use crate::store::{SegmentId, Store, StoredRows};
use crate::text::quotes;

const POLL: Duration = Duration::from_micros(200);

/// Measures the session that ends in `tip`, with its state in `segments`. True if a resume keeps its bits.
pub(super) fn measure(
    context: &Context,
    store: &Store,
    tip: &SegmentId,
    segments: &Path,
    samples: &mut Samples,
) -> Result<bool, Failure> {
    let mut client = EngineClient::start(context)?;
    let equal_bits = equal_bits(context, &mut client, store, tip)?;
    for _ in 0..REPEATS {
        drop_from_cache(segments)?;
        samples.add("all rows, cold", all_rows(&mut client, store, tip)?);
        samples.add("all rows", all_rows(&mut client, store, tip)?);
    }
    client.end();
    Ok(equal_bits)
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
    let id = client.restore(MAIN, rows, saved.end, history)?;
    client.all(&[id])?;
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
    let quoting = text.recommended.quoting();
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
pub(super) fn drop_from_cache(folder: &Path) -> Result<(), Failure> {
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
