//! `sala-chat bench serve`: the share of the engine's speed that the local server reaches, with several clients.
//! docs/performance.md has the method.

mod clients;
mod engine;

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use serde_json::{Value, json};

use super::engine_client::{failed, greedy};
use super::report::Measured;
use super::scratch::{longest, scratch};
use crate::cli::args::BenchArgs;
use crate::cli::serve_cmd::{Model, Serving};
use crate::cli::{Context, Failure, open};
use crate::config::settings::Settings;
use crate::engine::protocol::{Generate, Sampling};
use crate::text::TextModel;

const QUESTIONS: u64 = 3;
const CONTEXT: u64 = 64;
const CLIENTS: [usize; 2] = [1, 8];
/// Rounds of short conversations before a measurement.
const WARM_UPS: usize = 2;
const WARM_UP_TOKENS: u64 = 16;

#[derive(Debug, Default)]
struct Answer {
    /// Tokens of the prompt that were read, and those found in kept state.
    read: u64,
    cached: u64,
    written: u64,
    first_token: Duration,
}

/// The answers to a load, and the seconds they took together.
struct Answered(Vec<Answer>, f64);

impl Answered {
    fn sum(&self, of: impl Fn(&Answer) -> u64) -> u64 {
        self.0.iter().map(of).sum()
    }

    fn tokens_per_s(&self) -> f64 {
        self.sum(|a| a.written) as f64 / self.1.max(1e-9)
    }

    fn figures(&self) -> Value {
        let waited: f64 = self.0.iter().map(|a| a.first_token.as_secs_f64() * 1e3).sum();
        json!({
            "seconds": self.1, "answers": self.0.len(), "read": self.sum(|a| a.read), "written": self.sum(|a| a.written),
            "tokens_per_s": self.tokens_per_s(), "first_token_ms": waited / self.0.len().max(1) as f64,
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Load {
    context: u64,
    clients: usize,
    questions: u64,
    tokens: u64,
    number: usize,
}

impl Load {
    /// Short conversations of as many clients; `round` is below [`WARM_UPS`].
    fn warm_up(self, round: usize) -> Load {
        let number = self.number + (round + 1) * self.clients;
        Load { questions: 1, tokens: self.tokens.min(WARM_UP_TOKENS), number, ..self }
    }

    fn opening(&self, text: &TextModel, client: usize) -> Result<String, Failure> {
        let note = |i: u64| format!("Lamp {i} was lit in Oslo, and nobody saw it.\n");
        let some: String = (100..200).map(note).collect();
        let each = (text.tokenizer.encode_plain(&some)?.len() as u64 / 100).max(1);
        let notes: String = (100..100 + (self.context / each).max(1)).map(note).collect();
        Ok(format!("Book {}.\n{notes}{}", self.number + client, Self::question(0)))
    }

    fn question(number: u64) -> String {
        format!("\nQuestion {}: which lamp was lit last, and where?\n", number + 1)
    }
}

pub(super) fn measure(context: &Context, args: &BenchArgs) -> Result<Measured, Failure> {
    let contexts = if args.context.is_empty() { vec![CONTEXT] } else { args.context.clone() };
    let slots = context.config().serve.side_by_side;
    if let Some(clients) = args.sequences.iter().find(|clients| **clients > slots) {
        return Err(Failure::usage(format!("--sequences must be 1 to serve.side_by_side, {slots} (got {clients})")));
    }
    let clients = match args.sequences.is_empty() {
        true => CLIENTS.into_iter().filter(|clients| *clients <= slots).collect(),
        false => args.sequences.clone(),
    };
    let tokens = contexts.iter().copied().max().unwrap_or(CONTEXT) + QUESTIONS * args.decode;
    let most = longest(context);
    if tokens > most {
        let line =
            format!("--context and {QUESTIONS} answers of --decode must be {most} together at most (got {tokens})");
        return Err(Failure::usage(line));
    }
    let (_folder, mut own) = scratch(context, tokens)?;
    own.quiet = true;
    own.loaded.config.sampling.stop_loops = false;
    let mut loads = Vec::new();
    for context in contexts {
        for clients in clients.iter().copied() {
            let number = 1000 * (loads.len() + 1);
            loads.push(Load { context, clients, questions: QUESTIONS, tokens: args.decode, number });
        }
    }

    let (text, stop) = open::text(&open::model(context)?.name)?;
    own.loaded.recommend(&text.recommended);
    context.note("the server with its clients");
    let served = serve(&own, &text, &loads)?;
    context.note("the engine alone");
    // The parameters that the server derives from the clients' requests.
    let settings = Settings::of(own.config());
    let sampling = Sampling { temperature: 0.0, seed: 1, ..settings.sampling };
    let generate = Generate { sampling, stop, ..greedy(0, settings.spec) };
    let (alone, device) = engine::measure(&own, &text, generate, &loads)?;
    let rows = loads.iter().zip(served).zip(alone).map(|((load, served), [engine, engine_keeping])| {
        json!({
            "context": load.context, "clients": load.clients, "served": served.figures(),
            "seen": { "cached": served.sum(|a| a.cached) }, "engine": engine.figures(),
            "engine_keeping": engine_keeping.figures(),
            "share": served.tokens_per_s() / engine.tokens_per_s().max(1e-9),
        })
    });
    let figures = json!({
        "questions": QUESTIONS, "answer_tokens": args.decode, "results": rows.collect::<Vec<_>>(),
    });
    Measured::on(&device, figures)
}

fn serve(context: &Context, text: &TextModel, loads: &[Load]) -> Result<Vec<Answered>, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = Serving::begin(context, Model::of(context)?, listener, None, true)?;
    let stop = serving.stop();
    let server = std::thread::Builder::new().name("serving".into()).spawn(move || serving.run())?;
    let measured = clients::measure(&url, text, loads, &|| server.is_finished());
    stop.stop();
    let ended = server.join().map_err(|_| failed("the server failed: see the lines above"))?;
    // The server's own error explains more than the client's failure to reach it.
    ended.and(measured)
}
