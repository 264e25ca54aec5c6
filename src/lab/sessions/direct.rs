//! The engine without a runtime: times between tokens with and without a writer at work, and bits after a resume.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use serde::Serialize;

use super::{PATIENCE, REPEATS, median, message, plain};
use crate::cli::{Context, Exit, Failure, open};
use crate::core::transcript::Role;
use crate::engine::protocol::{
    Cancel, Command, Constraint, EngineEvent, EngineFault, Generate, ImageTensor, Job, Look, MAIN, ModelInfo,
    RowSource, Sampling, SpecMode, StateImage, Token,
};
use crate::engine::{self, Engine};
use crate::store::{
    Change, NewSegment, NewSession, Save, SegmentId, SegmentKind, Store, StoredRows, TextBoundary, Writer,
};

const ANSWERS: u32 = 8;
const TEXT_EVERY: usize = 32;
const LOADING: Duration = Duration::from_secs(1800);
const GLANCE: Duration = Duration::from_micros(200);

/// Times between tokens, milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Gaps {
    pub(super) tokens: usize,
    pub(super) off_p50_ms: f64,
    pub(super) off_p99_ms: f64,
    pub(super) on_p50_ms: f64,
    pub(super) on_p99_ms: f64,
    pub(super) p99_on_over_off: f64,
}

fn failed(what: impl Into<String>) -> Failure {
    Failure::new(Exit::Failure, what)
}

struct Answer {
    image: StateImage,
    generated: Vec<Token>,
    gaps: Vec<f64>,
}

pub(in crate::lab) struct Direct {
    engine: Engine,
    info: ModelInfo,
    constraint: Option<Constraint>,
    last: u64,
}

impl Direct {
    pub(in crate::lab) fn start(context: &Context) -> Result<Direct, Failure> {
        let (text, stop) = open::text(&open::model(context)?.name)?;
        let constraint = text.recommended.quoting().map(|quoting| quoting.clone().constraint(&text.tokenizer, &stop));
        let engine = engine::spawn(open::engine_options(context)?)?;
        let mut direct = Direct { engine, info: ModelInfo::default(), constraint, last: 0 };
        loop {
            if let EngineEvent::Ready(info) = direct.next(LOADING)? {
                direct.info = info;
                return Ok(direct);
            }
        }
    }

    pub(in crate::lab) fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub(in crate::lab) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(in crate::lab) fn next(&self, patience: Duration) -> Result<EngineEvent, Failure> {
        match self.engine.events.recv_timeout(patience) {
            Ok(EngineEvent::Failed { fault, .. }) => Err(match fault {
                EngineFault::Fatal { why, exit } => Failure::new(exit, why),
                fault => failed(fault.to_string()),
            }),
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => Err(failed("the engine does not answer")),
            Err(RecvTimeoutError::Disconnected) => Err(failed("the engine ended unexpectedly")),
        }
    }

    pub(in crate::lab) fn command(&self, command: Command) -> Result<(), Failure> {
        self.engine.commands.send(command).map_err(|_| failed("the engine ended unexpectedly"))
    }

    /// Makes a saved path live. The returned rows may still be in flight.
    fn restore(&mut self, store: &Store, tip: &SegmentId) -> Result<Vec<Arc<StoredRows>>, Failure> {
        let saved = store.open_path(tip, 0)?;
        if saved.plan.usable != saved.plan.path.len() {
            return Err(failed("the state of the measured session was not kept"));
        }
        let segments = saved.plan.path.iter().map(|s| &s.content);
        let history: Vec<Token> = segments.flat_map(|s| s.prompt.iter().chain(&s.completion)).copied().collect();
        let id = self.number();
        let feeds = saved.rows.iter().cloned();
        let rows = feeds.map(|rows| rows as Arc<dyn RowSource>).collect();
        let (end, history) = (saved.end, Arc::new(history));
        self.command(Command::Restore { id, sequence: MAIN, keep: 0, rows, end, history })?;
        while !matches!(self.next(LOADING)?, EngineEvent::Restored { .. }) {}
        Ok(saved.rows)
    }

    /// Milliseconds from opening a path's files until the last byte of its rows is on the device.
    fn all_rows(&mut self, store: &Store, tip: &SegmentId) -> Result<f64, Failure> {
        let begun = Instant::now();
        let rows = self.restore(store, tip)?;
        while rows.iter().any(|r| r.read_bytes() < r.bytes()) {
            if begun.elapsed() > LOADING {
                return Err(failed("the rows do not come"));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    /// Reads `prompt` and decodes `tokens` tokens, one a round; calls `during` with the number of tokens so far.
    fn answer(&mut self, prompt: Vec<Token>, tokens: u64, mut during: impl FnMut(usize)) -> Result<Answer, Failure> {
        let id = self.number();
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let (stop, spec, look) = (Vec::new(), SpecMode::Off, Look::default());
        let constraint = self.constraint.clone();
        let generate =
            Generate { sampling, max_tokens: tokens, stop, spec, steering: None, constraint, likely: None, look };
        let job = Job {
            id,
            sequence: MAIN,
            prompt,
            generate: Some(generate),
            score: None,
            export: true,
            cancel: Cancel::default(),
        };
        self.command(Command::Run(job))?;
        let (mut gaps, mut generated, mut before): (_, Vec<Token>, Option<Instant>) = (Vec::new(), Vec::new(), None);
        loop {
            match self.next(PATIENCE)? {
                EngineEvent::Tokens { tokens, .. } => {
                    let now = Instant::now();
                    gaps.extend(before.map(|b| now.duration_since(b).as_secs_f64() * 1e3));
                    before = Some(now);
                    generated.extend(tokens);
                    during(generated.len());
                }
                EngineEvent::Done { done, .. } => {
                    generated.truncate(usize::try_from(done.generated_in_state).unwrap_or(usize::MAX));
                    let image = done.image.ok_or_else(|| failed("the engine exported no state"))?;
                    return Ok(Answer { image, generated, gaps });
                }
                _ => {}
            }
        }
    }

    pub(in crate::lab) fn read(&mut self, prompt: Vec<Token>) -> Result<StateImage, Failure> {
        let id = self.number();
        self.command(Command::Run(Job {
            id,
            sequence: MAIN,
            prompt,
            generate: None,
            score: None,
            export: true,
            cancel: Cancel::default(),
        }))?;
        loop {
            if let EngineEvent::Done { done, .. } = self.next(LOADING)? {
                return done.image.ok_or_else(|| failed("the engine exported no state"));
            }
        }
    }

    pub(in crate::lab) fn end(self) {
        // The engine may have ended already.
        let _ = self.engine.commands.send(Command::Shutdown);
        let _ = self.engine.thread.join();
    }
}

pub(super) struct Measured {
    pub(super) gaps: Gaps,
    pub(super) equal_bits: bool,
    pub(super) read_ms: f64,
    pub(super) read_cold_ms: f64,
    pub(super) all_rows_ms: f64,
    pub(super) all_rows_cold_ms: f64,
}

/// Measures, from the session in `files` that ends in `tip`: times between tokens, equal bits of its last segment when
/// computed again, and the time to restore all rows.
pub(super) fn measure(
    context: &Context,
    store: &Arc<Store>,
    tip: &SegmentId,
    decode: u64,
    files: &[PathBuf],
) -> Result<Measured, Failure> {
    let mut direct = Direct::start(context)?;
    let equal_bits = equal_bits(&mut direct, store, tip)?;
    let (mut read, mut read_cold) = (Vec::new(), Vec::new());
    let (mut all_rows, mut all_rows_cold) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        plain::forget(files)?;
        read_cold.push(plain::read(files)?);
        plain::forget(files)?;
        all_rows_cold.push(direct.all_rows(store, tip)?);
        plain::read(files)?;
        read.push(plain::read(files)?);
        all_rows.push(direct.all_rows(store, tip)?);
    }
    let gaps = gaps(&mut direct, store, tip, decode)?;
    direct.end();
    Ok(Measured {
        gaps,
        equal_bits,
        read_ms: median(read),
        read_cold_ms: median(read_cold),
        all_rows_ms: median(all_rows),
        all_rows_cold_ms: median(all_rows_cold),
    })
}

/// Whether the last segment, computed again on top of the restored state before it, equals the one on disk.
fn equal_bits(direct: &mut Direct, store: &Store, tip: &SegmentId) -> Result<bool, Failure> {
    let Some(last) = store.segment(tip)? else {
        return Ok(false);
    };
    let Some(parent) = last.content.parent else {
        return Ok(false);
    };
    direct.restore(store, &parent)?;
    let generated = &last.content.completion;
    // The last drawn token does not enter the state.
    let answer = direct.answer(last.content.prompt.clone(), generated.len() as u64 + 1, |_| {})?;
    let rows = store.read_rows(tip)?;
    let end = store.read_end(tip)?;
    let here = answer.image.end.map(|e| e.tensors).unwrap_or_default();
    Ok(answer.generated == *generated && same(&answer.image.rows.tensors, &rows.tensors) && same(&here, &end.tensors))
}

/// Bit for bit, in any order. Ignores the draft head's window, which is not part of the model's state.
fn same(a: &[ImageTensor], b: &[ImageTensor]) -> bool {
    let model = |t: &[ImageTensor]| -> Vec<ImageTensor> {
        let mut all: Vec<_> = t.iter().filter(|t| !t.name.starts_with("draft")).cloned().collect();
        all.sort_by(|x, y| x.name.cmp(&y.name));
        all
    };
    let (a, b) = (model(a), model(b));
    !a.is_empty()
        && a.len() == b.len()
        && a.iter().zip(&b).all(|(x, y)| (&x.name, x.dtype, &x.shape, &x.data) == (&y.name, y.dtype, &y.shape, &y.data))
}

fn gaps(direct: &mut Direct, store: &Arc<Store>, tip: &SegmentId, decode: u64) -> Result<Gaps, Failure> {
    let Some(base) = store.segment(tip)? else {
        return Err(failed("the measured session is gone"));
    };
    let (events, _outcome) = crossbeam_channel::unbounded();
    let writer = Writer::start(Arc::clone(store), events)?;
    let session = store.new_session_id();
    let new =
        NewSession { id: session, name: "inter-token".into(), settings: "{}".into(), head: None, forked_from: None };
    let mut growing = message(store, None, Role::Assistant, String::new());
    writer.save(Save { changes: vec![Change::CreateSession(new)], images: Vec::new() });
    direct.all_rows(store, tip)?;
    // Each answer continues the one before; saved answers are siblings below the session.
    let question = base.content.prompt.clone();
    let (mut on, mut off) = (Vec::new(), Vec::new());
    direct.answer(question.clone(), decode, |_| {})?;
    for round in 0..ANSWERS {
        // Waits until the writer has saved the earlier round.
        writer.flush(Instant::now() + PATIENCE);
        direct.all_rows(store, tip)?;
        let unlike = round % question.len().max(1) as u32;
        let mut prompt = question.clone();
        prompt.rotate_left(unlike as usize);
        let quiet = direct.answer(prompt.clone(), decode, |_| {})?;
        off.extend(quiet.gaps);
        direct.all_rows(store, tip)?;
        let segment = NewSegment {
            fingerprint: base.content.fingerprint.clone(),
            parent: Some(*tip),
            start: base.end_position(),
            prompt: prompt.clone(),
            completion: quiet.generated,
            boundary: TextBoundary::of(""),
            kind: SegmentKind::Turn,
        };
        let images = vec![(segment.id(), quiet.image)];
        writer.save(Save { changes: vec![Change::AddSegment(Box::new(segment))], images });
        let saving = direct.answer(prompt, decode, |tokens| {
            if tokens % TEXT_EVERY == 0 {
                growing.text.push_str("And so on, and so forth, for some more words of an answer. ");
                let message = Box::new(growing.clone());
                writer.save(Save { changes: vec![Change::PutMessage { session, message }], images: Vec::new() });
            }
        })?;
        on.extend(saving.gaps);
    }
    if !matches!(writer.close(Instant::now() + PATIENCE), Ok(None)) {
        return Err(Failure::new(Exit::Disk, "state was not written in time"));
    }
    let tokens = on.len();
    let ((on_p50_ms, on_p99_ms), (off_p50_ms, off_p99_ms)) = (percentiles(on), percentiles(off));
    let p99_on_over_off = on_p99_ms / off_p99_ms.max(1e-9);
    Ok(Gaps { tokens, off_p50_ms, off_p99_ms, on_p50_ms, on_p99_ms, p99_on_over_off })
}

fn percentiles(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    let last = times.len().saturating_sub(1);
    let at = |q: f64| times.get(((times.len() as f64 * q) as usize).min(last)).copied().unwrap_or(0.0);
    (at(0.5), at(0.99))
}
