//! The engine without a runtime: the time to restore all rows, and bits after a resume.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::clients::{EngineClient, PATIENCE, failed, greedy};
use super::super::report::{Samples, ms};
use super::REPEATS;
use crate::cli::{Context, Exit, Failure, open};
use crate::engine::protocol::{Constraint, ImageTensor, MAIN, RowSource, SpecMode, Token};
use crate::store::{SegmentId, Store, StoredRows};
use crate::text::quotes;

const POLL: Duration = Duration::from_micros(200);

/// Measures the session in `files` that ends in `tip`. True if a resume keeps its bits.
pub(super) fn measure(
    context: &Context,
    store: &Arc<Store>,
    tip: &SegmentId,
    files: &[PathBuf],
    samples: &mut Samples,
) -> Result<bool, Failure> {
    let (text, stop) = open::text(&open::model(context)?.name)?;
    let constraint = text.recommended.quoting().map(|quoting| quotes::constraint(quoting, &text.tokenizer, &stop));
    let mut session = Session { client: EngineClient::start(context)?, store, tip, constraint };
    let equal_bits = session.equal_bits()?;
    for _ in 0..REPEATS {
        drop_from_cache(files)?;
        samples.add("all rows, cold", session.all_rows()?);
        samples.add("all rows", session.all_rows()?);
    }
    session.client.end();
    Ok(equal_bits)
}

struct Session<'a> {
    client: EngineClient,
    store: &'a Arc<Store>,
    tip: &'a SegmentId,
    constraint: Option<Constraint>,
}

impl Session<'_> {
    /// Makes a saved path live. The returned rows may still be in flight.
    fn restore(&mut self, tip: &SegmentId) -> Result<Vec<Arc<StoredRows>>, Failure> {
        let saved = self.store.open_path(tip, 0)?;
        if saved.plan.usable != saved.plan.path.len() {
            return Err(failed("the state of the measured session was not kept"));
        }
        let segments = saved.plan.path.iter().map(|s| &s.content);
        let history: Vec<Token> = segments.flat_map(|s| s.prompt.iter().chain(&s.completion)).copied().collect();
        let rows = saved.rows.iter().cloned().map(|rows| rows as Arc<dyn RowSource>).collect();
        let id = self.client.restore(MAIN, rows, saved.end, history)?;
        self.client.all(&[id])?;
        Ok(saved.rows)
    }

    /// Milliseconds from opening the session's files until the last byte of its rows is on the device.
    fn all_rows(&mut self) -> Result<f64, Failure> {
        let begun = Instant::now();
        let rows = self.restore(self.tip)?;
        while rows.iter().any(|r| r.read_bytes() < r.bytes()) {
            if begun.elapsed() > PATIENCE {
                return Err(failed("the rows do not arrive"));
            }
            std::thread::sleep(POLL);
        }
        Ok(ms(begun))
    }

    /// Whether the last segment, computed again on top of the restored state before it, equals the one on disk.
    fn equal_bits(&mut self) -> Result<bool, Failure> {
        let Some(last) = self.store.segment(self.tip)? else { return Ok(false) };
        let Some(parent) = last.content.parent else { return Ok(false) };
        self.restore(&parent)?;
        let generated = &last.content.completion;
        // The last drawn token does not enter the state.
        let mut generate = greedy(generated.len() as u64 + 1, SpecMode::Off);
        generate.constraint = self.constraint.clone();
        let id = self.client.run(MAIN, last.content.prompt.clone(), generate, true)?;
        let mut events = self.client.all(&[id])?;
        let drawn: Vec<Token> = events.tokens.into_iter().flat_map(|(.., tokens)| tokens).collect();
        let done = events.done.remove(&id).unwrap_or_default();
        let image = done.image.ok_or_else(|| failed("the engine exported no state"))?;
        let (rows, end) = (self.store.read_rows(self.tip)?, self.store.read_end(self.tip)?);
        let found_end = image.end.map(|e| e.tensors).unwrap_or_default();
        Ok(done.generated_in_state == generated.len() as u64
            && drawn.starts_with(generated)
            && same(&image.rows.tensors, &rows.tensors)
            && same(&found_end, &end.tensors))
    }
}

/// Bit for bit, in any order. Ignores the draft head's window, which is not part of the model's state.
fn same(a: &[ImageTensor], b: &[ImageTensor]) -> bool {
    let model = |tensors: &[ImageTensor]| {
        let mut all: Vec<_> = tensors.iter().filter(|t| !t.name.starts_with("draft")).cloned().collect();
        all.sort_by(|x, y| x.name.cmp(&y.name));
        all
    };
    let (a, b) = (model(a), model(b));
    !a.is_empty()
        && a.len() == b.len()
        && a.iter().zip(&b).all(|(x, y)| (&x.name, x.dtype, &x.shape, &x.data) == (&y.name, y.dtype, &y.shape, &y.data))
}

/// The files that a restore of the path to `tip` reads.
pub(super) fn files_of_path(store: &Store, tip: &SegmentId, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let segments = folder.join("data").join("segments");
    let rows = store.load_path(tip)?.into_iter().map(|s| format!("{}.rows", s.id.hex()));
    Ok(rows.chain([format!("{}.end", tip.hex())]).map(|name| segments.join(name)).collect())
}

pub(super) fn drop_from_cache(files: &[PathBuf]) -> Result<(), Failure> {
    for file in files {
        #[cfg(target_os = "linux")]
        File::open(file)
            .and_then(|open| Ok(rustix::fs::fadvise(open, 0, None, rustix::fs::Advice::DontNeed)?))
            .map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", file.display())))?;
    }
    Ok(())
}
