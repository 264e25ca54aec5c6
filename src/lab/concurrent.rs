//! `sala-chat bench beside`: what concurrent conversations cost one another, seen from the engine's client.
//! docs/performance.md has the method.
//!
//! The engine reads two pieces of [`PIECE`] tokens; the state of a longer conversation repeats the rows of the second.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::clients::{EngineClient, greedy};
use super::report::{median, ms};
use super::scratch::{contexts, moved};
use crate::backend::MAX_POSITIONS;
use crate::cli::args::BenchArgs;
use crate::cli::{Context, Failure};
use crate::engine::protocol::{
    Cancel, CheckpointImage, Command, EngineEvent, MAIN, RowSource, SequenceId, SpecMode, StateImage, Token,
};

/// A made-up context is a multiple of this many tokens.
const PIECE: u64 = 8_192;
/// Default and least context: it contains both pieces that the engine reads.
const CONTEXT: u64 = 2 * PIECE;
const FORKS: u32 = 8;
const CROWD: u32 = 15;
const QUESTION: u64 = 24;
const CHAT: u64 = 4_096;
/// Tokens of an answer that lasts longer than the read.
const LONGEST: u64 = 8_192;

pub(super) fn measure(context: &Context, args: &BenchArgs) -> Result<Value, Failure> {
    if !args.sequences.is_empty() {
        let what = format!("{FORKS} forks and {CROWD} conversations");
        return Err(Failure::usage(format!("--sequences cannot be chosen here: {what} are measured, leave it out")));
    }
    if args.sample == 0 {
        return Err(Failure::usage("--sample must be at least 1 here, the document that is read (got 0)"));
    }
    let room = args.sample + CHAT + LONGEST.max(args.decode) + QUESTION;
    let wanted = contexts(args, &[CONTEXT], CONTEXT..=MAX_POSITIONS as u64 - room, ", with this --sample")?;
    let contexts: Vec<u64> = wanted.iter().map(|wanted| wanted / PIECE * PIECE).collect();
    if contexts != wanted {
        context.note(&format!("--context: {contexts:?} are measured, multiples of {PIECE}"));
    }
    let mut own = context.clone();
    own.loaded.config.model.max_context = contexts.iter().copied().max().unwrap_or(CONTEXT) + room;
    let mut bench = Bench::start(&own, args)?;
    let mut rows = Vec::new();
    for tokens in contexts {
        context.note(&format!("{tokens} tokens"));
        let id = bench.restore(MAIN, tokens)?;
        bench.client.all(&[id])?;
        let (fork, read) = (bench.forks(tokens)?, bench.read(tokens)?);
        rows.push(json!({"context": tokens, "fork": fork, "read": read, "crowd": bench.crowd(tokens)?}));
    }
    Ok(json!({"machine": {"device": bench.client.end()}, "results": rows}))
}

struct Bench<'a> {
    client: EngineClient,
    args: &'a BenchArgs,
    /// The first two pieces of every context.
    pieces: [StateImage; 2],
}

/// Arbitrary tokens, different for every `number`.
fn tokens(number: u64, count: u64) -> Vec<Token> {
    let token = |i: u64| 3 + ((i + (number << 24)).wrapping_mul(crate::core::GOLDEN) >> 33) % 200;
    (0..count).map(|i| token(i) as Token).collect()
}

impl<'a> Bench<'a> {
    fn start(context: &Context, args: &'a BenchArgs) -> Result<Bench<'a>, Failure> {
        let mut client = EngineClient::start(context)?;
        let document = tokens(0, 2 * PIECE);
        let (first, second) = document.split_at(PIECE as usize);
        let pieces = [client.read(MAIN, first.to_vec())?, client.read(MAIN, second.to_vec())?];
        Ok(Bench { client, args, pieces })
    }

    fn end_at(&self, context: u64) -> Option<CheckpointImage> {
        let end = self.pieces[1].end.clone().unwrap_or_default();
        Some(CheckpointImage { position: context, ..end })
    }

    fn restore(&mut self, sequence: SequenceId, context: u64) -> Result<u64, Failure> {
        let [first, second] = &self.pieces;
        let image = |start: u64| if start == 0 { first.clone() } else { moved(second, start) };
        let starts = (0..context / PIECE).map(|i| i * PIECE);
        let rows = starts.map(|start| Arc::new(image(start).rows) as Arc<dyn RowSource>).collect();
        self.client.restore(sequence, 0, rows, self.end_at(context), tokens(0, context))
    }

    /// Cuts the main conversation back to its context.
    fn back(&mut self, context: u64) -> Result<(), Failure> {
        let id = self.client.restore(MAIN, context, Vec::new(), self.end_at(context), tokens(0, context))?;
        self.client.all(&[id]).map(drop)
    }

    fn release(&self, sequences: impl IntoIterator<Item = u32>) -> Result<(), Failure> {
        let release = |n| self.client.command(Command::Release { sequence: SequenceId(n) });
        sequences.into_iter().try_for_each(release)
    }

    /// Reads `prompt`, then writes `max_tokens` tokens, one a round.
    fn job(&mut self, sequence: SequenceId, prompt: Vec<Token>, max_tokens: u64) -> Result<(u64, Cancel), Failure> {
        let generate = (max_tokens > 0).then(|| greedy(max_tokens, SpecMode::Off));
        self.client.run(sequence, prompt, generate, false)
    }

    fn question(&mut self, sequence: SequenceId, max_tokens: u64) -> Result<u64, Failure> {
        let number = self.client.new_id();
        Ok(self.job(sequence, tokens(number, QUESTION), max_tokens)?.0)
    }

    fn forks(&mut self, context: u64) -> Result<Value, Failure> {
        // The first question waits for rows in flight and loads kernels.
        let id = self.question(MAIN, 4)?;
        let before = self.client.all(&[id])?.state_bytes;
        self.back(context)?;
        let (mut times, mut bytes) = (Vec::new(), 0);
        // The first fork does not count.
        for n in 0..=FORKS {
            let to = SequenceId(n.max(1));
            let id = self.client.new_id();
            let begun = Instant::now();
            self.client.command(Command::Fork { id, from: MAIN, to })?;
            let question = self.question(to, 1)?;
            let events = self.client.all(&[id, question])?;
            let first = events.tokens.first().map_or_else(Instant::now, |(at, ..)| *at);
            bytes = events.state_bytes.saturating_sub(before);
            match n {
                0 => self.release([1])?,
                _ => times.push(first.duration_since(begun).as_secs_f64() * 1e3),
            }
        }
        self.release(1..=FORKS)?;
        let slowest_ms = times.iter().copied().fold(0.0, f64::max);
        Ok(json!({"first_token_ms": median(times), "slowest_ms": slowest_ms, "forks": FORKS, "bytes": bytes}))
    }

    /// Tokens a second of a read, and of the other jobs during it.
    fn read_once(&mut self, context: u64) -> Result<[f64; 2], Failure> {
        self.back(context)?;
        let begun = Instant::now();
        let (id, _) = self.job(MAIN, tokens(1, self.args.sample), 0)?;
        let events = self.client.all(&[id])?;
        let written: usize = events.tokens.iter().map(|(.., tokens)| tokens.len()).sum();
        Ok([self.args.sample as f64, written as f64].map(|tokens| tokens / begun.elapsed().as_secs_f64().max(1e-9)))
    }

    fn read(&mut self, context: u64) -> Result<Value, Failure> {
        // The first run chooses algorithms.
        self.read_once(context)?;
        let [alone, _] = self.read_once(context)?;
        let chat = SequenceId(1);
        let (id, _) = self.job(chat, tokens(2, CHAT), self.args.decode)?;
        self.client.all(&[id])?;
        let (writes, cancel) = self.job(chat, tokens(3, QUESTION), LONGEST)?;
        self.client.wait(|event| matches!(event, EngineEvent::Tokens { id, .. } if id == writes).then_some(()))?;
        let [together, chat] = self.read_once(context)?;
        cancel.cancel();
        self.client.all(&[writes])?;
        Ok(json!({
            "tokens": self.args.sample, "alone_tokens_per_s": alone, "beside_tokens_per_s": together,
            "share": together / alone, "chat_tokens_per_s": chat,
        }))
    }

    fn crowd(&mut self, context: u64) -> Result<Value, Failure> {
        self.release(1..=CROWD)?;
        self.client.command(Command::MayEvict { sequence: MAIN })?;
        let begun = Instant::now();
        let mut all = Vec::new();
        for sequence in (1..=CROWD).map(SequenceId) {
            all.push(self.restore(sequence, context)?);
            all.push(self.question(sequence, 8)?);
            self.client.command(Command::MayEvict { sequence })?;
        }
        let events = self.client.all(&all)?;
        let ms = ms(begun);
        self.release(0..=CROWD)?;
        Ok(json!({
            "conversations": CROWD, "ms": ms, "evicted": events.evicted, "waited": events.waited,
            "state_bytes": events.state_bytes,
        }))
    }
}
