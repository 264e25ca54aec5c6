//! `sala-chat bench beside`: what concurrent conversations cost one another, seen from the engine's client.
//!
//! # Method
//!
//! A separate engine receives commands as from the runtime; times are the host's clock from a command to its event.
//! The state of a long conversation is made up: the engine reads two pieces of [`PIECE`] tokens, and the benchmark
//! repeats the rows of the second (meaningless values of the right sizes). For each `--context`, cut to whole pieces:
//!
//! - *fork*: of the live conversation, to the first token of a short question in the fork; [`FORKS`] of them, one
//!   after the other, all kept: `bytes` is their sum beyond the one conversation, a question and a token each.
//! - *read*: `--sample` tokens after the context, alone and during a conversation that writes without drafts;
//!   `chat_tokens_per_s` is the speed of that conversation during the read, `share` the read's rate over that alone.
//!   `first_token_ms` is of short questions in a third conversation while the document is read alone, at no
//!   particular moment of a chunk.
//! - *crowd*: the engine restores [`CROWD`] conversations of this length from memory and they answer concurrently;
//!   each may be evicted after its answer, least recently used first. `waited` counts those that had to wait.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::bench::{describe, median};
use super::sessions::direct::Direct;
use super::sessions::made_up::again;
use crate::backend::MAX_POSITIONS;
use crate::cli::args::BenchArgs;
use crate::cli::{Context, Exit, Failure, open};
use crate::engine::protocol::{
    Cancel, CheckpointImage, Command, EngineEvent, Generate, Job, Look, MAIN, RowSource, Sampling, SequenceId,
    SpecMode, StateImage, Token,
};

/// A made-up context is a multiple of this many tokens.
const PIECE: u64 = 8_192;
/// Default and least context: it contains both pieces that the engine reads.
const CONTEXT: u64 = 2 * PIECE;
const FORKS: u32 = 8;
const CROWD: u32 = 15;
const QUESTION: u64 = 24;
const CHAT: u64 = 4_096;
const LONGEST: u64 = 8_192;
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, Serialize)]
struct Forked {
    first_token_ms: f64,
    slowest_ms: f64,
    forks: u32,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Read {
    tokens: u64,
    alone_tokens_per_s: f64,
    beside_tokens_per_s: f64,
    share: f64,
    chat_alone_tokens_per_s: f64,
    chat_tokens_per_s: f64,
    questions: usize,
    first_token_ms: f64,
    slowest_first_token_ms: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Crowd {
    conversations: u32,
    ms: f64,
    evicted: usize,
    waited: usize,
    state_bytes: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    context: u64,
    fork: Forked,
    read: Read,
    crowd: Crowd,
}

pub(super) fn run(context: &Context, args: &BenchArgs) -> Result<Exit, Failure> {
    if !args.sequences.is_empty() {
        let what = format!("{FORKS} forks and {CROWD} conversations");
        return Err(Failure::usage(format!("--sequences cannot be chosen here: {what} are measured, leave it out")));
    }
    if args.sample == 0 {
        return Err(Failure::usage("--sample must be at least 1 here, the document that is read (got 0)"));
    }
    let beside = args.sample + CHAT + LONGEST.max(args.decode) + QUESTION;
    let most = MAX_POSITIONS as u64 - beside;
    if let Some(tokens) = args.context.iter().copied().find(|tokens| !(CONTEXT..=most).contains(tokens)) {
        let range = format!("{CONTEXT} to {most} here, with this --sample");
        return Err(Failure::usage(format!("--context must be {range} (got {tokens})")));
    }
    let mut contexts = Vec::new();
    for asked in &args.context {
        let tokens = asked / PIECE * PIECE;
        if tokens != *asked {
            context.note(&format!("--context {asked}: {tokens} are measured, a multiple of {PIECE}"));
        }
        contexts.push(tokens);
    }
    if contexts.is_empty() {
        contexts.push(CONTEXT);
    }
    let longest = contexts.iter().copied().max().unwrap_or(CONTEXT);
    let mut measured = context.clone();
    measured.loaded.config.model.max_context = longest + beside;
    let mut bench = Beside::start(&measured, args)?;
    let mut rows = Vec::new();
    for tokens in contexts {
        context.note(&format!("{tokens} tokens"));
        bench.restore(MAIN, tokens)?;
        let fork = bench.forks(tokens)?;
        let read = bench.read(tokens)?;
        let crowd = bench.crowd(tokens)?;
        rows.push(Row { context: tokens, fork, read, crowd });
    }
    let mut machine = json!({ "device": bench.direct.info().device });
    describe(&mut machine, args);
    let model = open::model(context)?.name;
    bench.direct.end();
    let report = json!({ "bench": "beside", "model": model, "machine": machine, "results": rows });
    context.result(|| report.clone(), || table(&report, &rows))?;
    Ok(Exit::Ok)
}

fn table(report: &Value, rows: &[Row]) -> String {
    let mut out = format!("{} on {}\n", report["model"], report["machine"]["device"].as_str().unwrap_or_default());
    for Row { context, fork, read, crowd } in rows {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let _ = writeln!(
            out,
            "{context} tokens\n  fork   {:.1} ms to its first token, slowest {:.1}; {} take {:.2} GB",
            fork.first_token_ms,
            fork.slowest_ms,
            fork.forks,
            gb(fork.bytes)
        );
        let _ = writeln!(
            out,
            "  read   {:.0} t/s of {:.0} alone ({:.2}) beside a chat of {:.1} t/s of {:.1} alone; first token of {} questions {:.0} ms, slowest {:.0}",
            read.beside_tokens_per_s,
            read.alone_tokens_per_s,
            read.share,
            read.chat_tokens_per_s,
            read.chat_alone_tokens_per_s,
            read.questions,
            read.first_token_ms,
            read.slowest_first_token_ms
        );
        let _ = writeln!(
            out,
            "  crowd  {} restored and asked in {:.0} ms: {} evicted, {} waited; {:.2} GB of state",
            crowd.conversations,
            crowd.ms,
            crowd.evicted,
            crowd.waited,
            gb(crowd.state_bytes)
        );
    }
    out
}

struct Beside<'a> {
    direct: Direct,
    args: &'a BenchArgs,
    /// The first two pieces of every context.
    pieces: [StateImage; 2],
}

#[derive(Default)]
struct Heard {
    /// (time, job, new tokens)
    written: Vec<(Instant, u64, usize)>,
    evicted: usize,
    waited: usize,
    state_bytes: u64,
}

impl Heard {
    fn first(&self, job: u64) -> Option<Instant> {
        self.written.iter().find(|(_, id, _)| *id == job).map(|(at, ..)| *at)
    }

    fn rate(&self, job: u64, from: Instant, until: Instant) -> f64 {
        let within = self.written.iter().filter(|(at, id, _)| *id == job && (from..=until).contains(at));
        let tokens: usize = within.map(|(.., tokens)| tokens).sum();
        tokens as f64 / until.duration_since(from).as_secs_f64().max(1e-9)
    }
}

/// Arbitrary tokens, different for every `number`.
fn tokens(number: u64, count: u64) -> Vec<Token> {
    let token = |i: u64| 3 + ((i + (number << 24)).wrapping_mul(crate::core::GOLDEN) >> 33) % 200;
    (0..count).map(|i| token(i) as Token).collect()
}

impl<'a> Beside<'a> {
    fn start(context: &Context, args: &'a BenchArgs) -> Result<Beside<'a>, Failure> {
        let mut direct = Direct::start(context)?;
        let document = tokens(0, 2 * PIECE);
        let (first, second) = document.split_at(PIECE as usize);
        let pieces = [direct.read(first.to_vec())?, direct.read(second.to_vec())?];
        Ok(Beside { direct, args, pieces })
    }

    fn wait(&mut self, commands: &[u64]) -> Result<Heard, Failure> {
        let (mut heard, mut left) = (Heard::default(), commands.to_vec());
        while !left.is_empty() {
            match self.direct.next(PATIENCE)? {
                EngineEvent::Tokens { id, tokens, .. } => heard.written.push((Instant::now(), id, tokens.len())),
                EngineEvent::Restored { id, .. } => left.retain(|n| *n != id),
                EngineEvent::Done { id, done } => {
                    left.retain(|n| *n != id);
                    heard.state_bytes = done.memory.state;
                }
                EngineEvent::Evicted { .. } => heard.evicted += 1,
                EngineEvent::Waiting { .. } => heard.waited += 1,
                _ => {}
            }
        }
        Ok(heard)
    }

    fn state(&self, context: u64) -> (Vec<Arc<dyn RowSource>>, CheckpointImage, Arc<Vec<Token>>) {
        let [first, second] = &self.pieces;
        let image = |start: u64| if start == 0 { first.clone() } else { again(second, start, false) };
        let starts = (0..context / PIECE).map(|i| i * PIECE);
        let rows = starts.map(|start| Arc::new(image(start).rows) as Arc<dyn RowSource>).collect();
        let end = CheckpointImage { position: context, ..second.end.clone().unwrap_or_default() };
        (rows, end, Arc::new(tokens(0, context)))
    }

    fn send_restore(&mut self, sequence: SequenceId, context: u64) -> Result<u64, Failure> {
        let id = self.direct.number();
        let (rows, end, history) = self.state(context);
        self.direct.command(Command::Restore { id, sequence, keep: 0, rows, end: Some(end), history })?;
        Ok(id)
    }

    fn restore(&mut self, sequence: SequenceId, context: u64) -> Result<(), Failure> {
        let id = self.send_restore(sequence, context)?;
        self.wait(&[id]).map(drop)
    }

    fn back(&mut self, context: u64) -> Result<(), Failure> {
        let id = self.direct.number();
        let (_, end, history) = self.state(context);
        let (rows, end) = (Vec::new(), Some(end));
        self.direct.command(Command::Restore { id, sequence: MAIN, keep: context, rows, end, history })?;
        self.wait(&[id]).map(drop)
    }

    /// Reads `prompt`, then writes `max_tokens` tokens, one a round.
    fn job(&mut self, sequence: SequenceId, prompt: Vec<Token>, max_tokens: u64) -> Result<(u64, Cancel), Failure> {
        let id = self.direct.number();
        let cancel = Cancel::default();
        let generate = Generate {
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_tokens,
            stop: Vec::new(),
            spec: SpecMode::Off,
            steering: None,
            constraint: None,
            likely: None,
            look: Look::default(),
        };
        let generate = (max_tokens > 0).then_some(generate);
        let job = Job { id, sequence, prompt, generate, score: None, export: false, cancel: cancel.clone() };
        self.direct.command(Command::Run(job))?;
        Ok((id, cancel))
    }

    fn question(&mut self, sequence: SequenceId, max_tokens: u64) -> Result<u64, Failure> {
        let number = self.direct.number();
        Ok(self.job(sequence, tokens(number, QUESTION), max_tokens)?.0)
    }

    fn forks(&mut self, context: u64) -> Result<Forked, Failure> {
        // The first question waits for rows in flight and loads kernels.
        let id = self.question(MAIN, 4)?;
        let before = self.wait(&[id])?.state_bytes;
        self.back(context)?;
        let mut times = Vec::new();
        let mut bytes = 0;
        for n in 0..=FORKS {
            let to = SequenceId(n.max(1));
            let id = self.direct.number();
            let begun = Instant::now();
            self.direct.command(Command::Fork { id, from: MAIN, to })?;
            let question = self.question(to, 1)?;
            let heard = self.wait(&[id, question])?;
            let first = heard.first(question).unwrap_or_else(Instant::now);
            if n > 0 {
                times.push(first.duration_since(begun).as_secs_f64() * 1e3);
            }
            bytes = heard.state_bytes.saturating_sub(before);
            if n == 0 {
                self.direct.command(Command::Release { sequence: to })?;
            }
        }
        for n in 1..=FORKS {
            self.direct.command(Command::Release { sequence: SequenceId(n) })?;
        }
        let slowest_ms = times.iter().copied().fold(0.0, f64::max);
        Ok(Forked { first_token_ms: median(times), slowest_ms, forks: FORKS, bytes })
    }

    fn begin_reading(&mut self, context: u64) -> Result<(u64, Instant), Failure> {
        self.back(context)?;
        let begun = Instant::now();
        Ok((self.job(MAIN, tokens(1, self.args.sample), 0)?.0, begun))
    }

    fn read(&mut self, context: u64) -> Result<Read, Failure> {
        let amount = self.args.sample;
        let rate = |begun: Instant| amount as f64 / begun.elapsed().as_secs_f64().max(1e-9);
        // The first run chooses algorithms.
        let (id, _) = self.begin_reading(context)?;
        self.wait(&[id])?;
        let (id, begun) = self.begin_reading(context)?;
        self.wait(&[id])?;
        let alone = rate(begun);
        let chat = SequenceId(1);
        let (id, _) = self.job(chat, tokens(2, CHAT), self.args.decode)?;
        let heard = self.wait(&[id])?;
        let last = heard.written.last().map_or_else(Instant::now, |(at, ..)| *at);
        let chat_alone = heard.first(id).map_or(0.0, |first| heard.rate(id, first, last));
        let (writes, cancel) = self.job(chat, tokens(3, QUESTION), LONGEST)?;
        while !matches!(self.direct.next(PATIENCE)?, EngineEvent::Tokens { id, .. } if id == writes) {}
        let (id, begun) = self.begin_reading(context)?;
        let heard = self.wait(&[id])?;
        let (beside, chat_beside) = (rate(begun), heard.rate(writes, begun, Instant::now()));
        cancel.cancel();
        self.wait(&[writes])?;
        let mut times = self.questions(context)?;
        times.sort_by(f64::total_cmp);
        Ok(Read {
            tokens: amount,
            alone_tokens_per_s: alone,
            beside_tokens_per_s: beside,
            share: beside / alone,
            chat_alone_tokens_per_s: chat_alone,
            chat_tokens_per_s: chat_beside,
            questions: times.len(),
            slowest_first_token_ms: times.last().copied().unwrap_or_default(),
            first_token_ms: median(times),
        })
    }

    fn questions(&mut self, context: u64) -> Result<Vec<f64>, Failure> {
        let (reads, _) = self.begin_reading(context)?;
        let (mut times, mut reading) = (Vec::new(), true);
        while reading {
            std::thread::sleep(Duration::from_millis(50 + times.len() as u64 * 61 % 240));
            let sequence = SequenceId(2);
            self.direct.command(Command::Release { sequence })?;
            let begun = Instant::now();
            let question = self.question(sequence, 1)?;
            loop {
                match self.direct.next(PATIENCE)? {
                    EngineEvent::Tokens { id, .. } if id == question && reading => {
                        times.push(begun.elapsed().as_secs_f64() * 1e3);
                    }
                    EngineEvent::Done { id, .. } if id == reads => reading = false,
                    EngineEvent::Done { id, .. } if id == question => break,
                    _ => {}
                }
            }
        }
        self.direct.command(Command::Release { sequence: SequenceId(2) })?;
        Ok(times)
    }

    fn crowd(&mut self, context: u64) -> Result<Crowd, Failure> {
        for n in 1..=CROWD {
            self.direct.command(Command::Release { sequence: SequenceId(n) })?;
        }
        self.direct.command(Command::MayEvict { sequence: MAIN })?;
        let begun = Instant::now();
        let mut all = Vec::new();
        for n in 1..=CROWD {
            let sequence = SequenceId(n);
            all.push(self.send_restore(sequence, context)?);
            all.push(self.question(sequence, 8)?);
            self.direct.command(Command::MayEvict { sequence })?;
        }
        let heard = self.wait(&all)?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        for n in 0..=CROWD {
            self.direct.command(Command::Release { sequence: SequenceId(n) })?;
        }
        let Heard { evicted, waited, state_bytes, .. } = heard;
        Ok(Crowd { conversations: CROWD, ms, evicted, waited, state_bytes })
    }
}
