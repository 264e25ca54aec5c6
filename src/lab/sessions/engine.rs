//! The engine without a runtime: times between tokens with and without a writer at work, the time to restore all rows and
//! to read the same files without the store, and bits after a resume.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde_json::{Value, json};

use super::super::clients::{EngineClient, Events, PATIENCE, failed, greedy};
use super::super::report::{Samples, ms, quantiles};
use super::super::scratch::{SAVING, all_saved, message};
use super::REPEATS;
use crate::cli::{Context, Exit, Failure, open};
use crate::core::transcript::Role;
use crate::engine::protocol::{Constraint, ImageTensor, MAIN, RowSource, SpecMode, StateImage, Token};
use crate::store::{
    Change, NewSegment, NewSession, Save, SegmentId, SegmentKind, Store, StoredRows, TextBoundary, Writer,
};
use crate::text::quotes;

const ANSWERS: u32 = 8;
/// Tokens from one save of the text to the next.
const TEXT_EVERY: usize = 32;
const POLL: Duration = Duration::from_micros(200);

/// Measures the session in `files` that ends in `tip`: times between tokens, and whether a resume keeps its bits.
pub(super) fn measure(
    context: &Context,
    store: &Arc<Store>,
    tip: &SegmentId,
    decode: u64,
    files: &[PathBuf],
    samples: &mut Samples,
) -> Result<(Value, bool), Failure> {
    let (text, stop) = open::text(&open::model(context)?.name)?;
    let constraint = text.recommended.quoting().map(|quoting| quotes::constraint(quoting, &text.tokenizer, &stop));
    let mut session = Session { client: EngineClient::start(context)?, store, tip, constraint };
    let equal_bits = session.equal_bits()?;
    for _ in 0..REPEATS {
        drop_from_cache(files)?;
        samples.add("read, cold", read(files)?);
        drop_from_cache(files)?;
        samples.add("all rows, cold", session.all_rows()?);
        read(files)?;
        samples.add("read", read(files)?);
        samples.add("all rows", session.all_rows()?);
    }
    let inter_token = session.inter_token(decode)?;
    session.client.end();
    Ok((inter_token, equal_bits))
}

struct Session<'a> {
    client: EngineClient,
    store: &'a Arc<Store>,
    tip: &'a SegmentId,
    constraint: Option<Constraint>,
}

struct Answer {
    image: StateImage,
    generated: Vec<Token>,
    gaps: Vec<f64>,
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
        let id = self.client.restore(MAIN, 0, rows, saved.end, history)?;
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

    /// Reads `prompt` and decodes `tokens` tokens, one a round; calls `during` with the number of tokens so far.
    fn answer(&mut self, prompt: Vec<Token>, tokens: u64, mut during: impl FnMut(usize)) -> Result<Answer, Failure> {
        let mut generate = greedy(tokens, SpecMode::Off);
        generate.constraint = self.constraint.clone();
        let (id, _) = self.client.run(MAIN, prompt, Some(generate), true)?;
        let count = |events: &Events| events.tokens.iter().map(|(.., tokens)| tokens.len()).sum();
        let events = self.client.all_with(&[id], |events| during(count(events)))?;
        let gap = |pair: &[(Instant, u64, Vec<Token>)]| pair[1].0.duration_since(pair[0].0).as_secs_f64() * 1e3;
        let gaps = events.tokens.windows(2).map(gap).collect();
        let image = events.image.ok_or_else(|| failed("the engine exported no state"))?;
        let mut generated: Vec<Token> = events.tokens.into_iter().flat_map(|(.., tokens)| tokens).collect();
        generated.truncate(usize::try_from(events.generated_in_state).unwrap_or(usize::MAX));
        Ok(Answer { image, generated, gaps })
    }

    /// Whether the last segment, computed again on top of the restored state before it, equals the one on disk.
    fn equal_bits(&mut self) -> Result<bool, Failure> {
        let Some(last) = self.store.segment(self.tip)? else { return Ok(false) };
        let Some(parent) = last.content.parent else { return Ok(false) };
        self.restore(&parent)?;
        let generated = &last.content.completion;
        // The last drawn token does not enter the state.
        let answer = self.answer(last.content.prompt.clone(), generated.len() as u64 + 1, |_| {})?;
        let (rows, end) = (self.store.read_rows(self.tip)?, self.store.read_end(self.tip)?);
        let found_end = answer.image.end.map(|e| e.tensors).unwrap_or_default();
        Ok(answer.generated == *generated
            && same(&answer.image.rows.tensors, &rows.tensors)
            && same(&found_end, &end.tensors))
    }

    fn inter_token(&mut self, decode: u64) -> Result<Value, Failure> {
        let Some(base) = self.store.segment(self.tip)? else { return Err(failed("the measured session is gone")) };
        let (events, outcome) = crossbeam_channel::unbounded();
        let writer = Writer::start(Arc::clone(self.store), events)?;
        let session = self.store.new_session_id();
        let name = "inter-token".to_owned();
        let new = NewSession { id: session, name, settings: "{}".into(), head: None, forked_from: None };
        let mut growing = message(self.store, None, Role::Assistant, String::new());
        writer.save(Save { changes: vec![Change::CreateSession(new)], images: Vec::new() });
        self.all_rows()?;
        // Each answer continues the one before; saved answers are siblings below the session.
        let question = base.content.prompt.clone();
        let (mut on, mut off) = (Vec::new(), Vec::new());
        self.answer(question.clone(), decode, |_| {})?;
        for round in 0..ANSWERS {
            // Waits until the writer has saved the earlier round.
            writer.flush(Instant::now() + SAVING);
            self.all_rows()?;
            let mut prompt = question.clone();
            // Another name for each segment.
            prompt.rotate_left(round as usize % question.len().max(1));
            let quiet = self.answer(prompt.clone(), decode, |_| {})?;
            off.extend(quiet.gaps);
            self.all_rows()?;
            let segment = NewSegment {
                fingerprint: base.content.fingerprint.clone(),
                parent: Some(*self.tip),
                start: base.end_position(),
                prompt: prompt.clone(),
                completion: quiet.generated,
                boundary: TextBoundary::of(""),
                kind: SegmentKind::Turn,
            };
            let images = vec![(segment.id(), quiet.image)];
            writer.save(Save { changes: vec![Change::AddSegment(Box::new(segment))], images });
            let saving = self.answer(prompt, decode, |tokens| {
                if tokens % TEXT_EVERY == 0 {
                    growing.text.push_str("And so on, and so forth, for some more words of an answer. ");
                    let message = Box::new(growing.clone());
                    writer.save(Save { changes: vec![Change::PutMessage { session, message }], images: Vec::new() });
                }
            })?;
            on.extend(saving.gaps);
        }
        all_saved(writer, &outcome)?;
        let tokens = on.len();
        let ([on_p50, on_p99], [off_p50, off_p99]) = (quantiles(on, [0.5, 0.99]), quantiles(off, [0.5, 0.99]));
        Ok(json!({
            "tokens": tokens, "off_p50_ms": off_p50, "off_p99_ms": off_p99, "on_p50_ms": on_p50, "on_p99_ms": on_p99,
            "p99_on_over_off": on_p99 / off_p99.max(1e-9),
        }))
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

const PIECE: usize = 8 << 20;

fn disk(file: &Path, e: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Disk, format!("{}: {e}", file.display()))
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
            .map_err(|e| disk(file, e))?;
    }
    Ok(())
}

/// Milliseconds to read the files on all threads, into memory that is allocated already.
pub(super) fn read(files: &[PathBuf]) -> Result<f64, Failure> {
    let mut pieces = Vec::new();
    for file in files {
        let bytes = std::fs::metadata(file).map_err(|e| disk(file, e))?.len();
        pieces.extend((0..bytes).step_by(PIECE).map(|at| (file, at, (bytes - at).min(PIECE as u64) as usize)));
    }
    let begun = Instant::now();
    pieces.par_iter().try_for_each_init(
        || vec![0u8; PIECE],
        |buffer, (file, at, bytes)| {
            let wanted = buffer.get_mut(..*bytes).unwrap_or_default();
            File::open(file).and_then(|f| f.read_exact_at(wanted, *at)).map_err(|e| disk(file, e))
        },
    )?;
    Ok(ms(begun))
}
