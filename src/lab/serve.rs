//! `sala-chat bench serve`: the share of the engine's speed that the local server reaches, with several clients.
//!
//! # Method
//!
//! The benchmark starts a server as `sala-chat serve` does, on a free port of this machine and with a data directory
//! of its own, on disk. Each of `--sequences` clients (1, then 8) holds a conversation: [`QUESTIONS`] questions to
//! `/v1/completions`, each sent as soon as the answer before it is complete, with the whole conversation again, as
//! stateless clients do. The first prompt has about `--context` tokens and a beginning that no other conversation has;
//! an answer has `--decode` tokens, fewer where the model ends it. Answers are the likeliest tokens, drafts are as in
//! the settings, and loops are not ended: a model of random weights falls into them.
//!
//! Then the engine gets the same work without a server: as many sequences, each with the same prompts one after the
//! other and as many tokens to write, the next prompt sent as soon as an answer is complete. The engine does not read
//! again what the server found in kept state. `engine` only writes; `engine_keeping` also exports the state after each
//! answer, as for a server, and drops it.
//!
//! Two rounds of short conversations of as many clients precede each measurement: they make sequences, load kernels
//! and record CUDA graphs.
//!
//! # How to read it
//!
//! `tokens_per_s` counts written tokens from the first request to the end of the last answer: it includes reading
//! prompts, and empty slots while the last answers end. `share` is the server's over that of `engine`.
//! `first_token_ms` is the mean from a request's arrival to its first token; `first_text_ms` is the mean at the client
//! until it sees text: later if the first tokens spell none, like most tokens of a random model.

mod clients;
mod direct;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener};

use serde::Serialize;
use serde_json::{Value, json};

use super::bench::describe;
use super::sessions::{self, apart, scratch};
use crate::cli::args::BenchArgs;
use crate::cli::serve_cmd::{Model, Serving};
use crate::cli::{Context, Exit, Failure, open};
use crate::config::settings::Settings;
use crate::text::TextModel;

const QUESTIONS: u64 = 3;
const CONTEXT: u64 = 64;
const CLIENTS: [usize; 2] = [1, 8];
/// Rounds of short conversations before a measurement.
const WARM_UPS: usize = 2;
/// Tokens of their answers.
const WARM_UP_TOKENS: u64 = 16;

#[derive(Clone, Debug, Default, Serialize)]
struct Figures {
    seconds: f64,
    answers: u64,
    read: u64,
    written: u64,
    tokens_per_s: f64,
    first_token_ms: f64,
    drafted: u64,
    accepted: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Seen {
    /// Tokens of prompts that were found in kept state.
    cached: u64,
    first_text_ms: f64,
    slowest_first_text_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    context: u64,
    clients: usize,
    served: Figures,
    seen: Seen,
    engine: Figures,
    engine_keeping: Figures,
    share: f64,
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

/// # Errors
/// No room, a model that does not load, a context it does not hold, or an answer that fails.
pub(super) fn run(context: &Context, args: &BenchArgs) -> Result<Exit, Failure> {
    let contexts = if args.context.is_empty() { vec![CONTEXT] } else { args.context.clone() };
    let seats = context.config().serve.side_by_side;
    if let Some(clients) = args.sequences.iter().find(|clients| **clients > seats) {
        return Err(Failure::usage(format!("--sequences must be 1 to serve.side_by_side, {seats} (got {clients})")));
    }
    let clients = match args.sequences.is_empty() {
        true => CLIENTS.into_iter().filter(|clients| *clients <= seats).collect(),
        false => args.sequences.clone(),
    };
    let longest = contexts.iter().copied().max().unwrap_or(CONTEXT) + QUESTIONS * args.decode;
    let most = sessions::longest(context);
    if longest > most {
        let line =
            format!("--context and {QUESTIONS} answers of --decode must be {most} together at most (got {longest})");
        return Err(Failure::usage(line));
    }
    let scratch = scratch(context)?;
    let mut quiet = apart(context, scratch.path(), longest);
    quiet.quiet = true;
    quiet.loaded.config.sampling.stop_loops = false;
    let mut loads = Vec::new();
    for context in contexts {
        for clients in clients.iter().copied() {
            let number = 1000 * (loads.len() + 1);
            loads.push(Load { context, clients, questions: QUESTIONS, tokens: args.decode, number });
        }
    }

    let (text, stop) = open::text(&open::model(context)?.name)?;
    quiet.loaded.recommend(&text.recommended);
    context.note("the server with its clients");
    let served = serve(&quiet, &text, &loads)?;
    context.note("the engine alone");
    let wish = direct::Wish::new(&Settings::of(quiet.config()), stop);
    let (alone, device) = direct::measure(&quiet, &text, &wish, &loads)?;
    let row = |((load, (served, seen)), [engine, engine_keeping]): ((&Load, (Figures, Seen)), [Figures; 2])| {
        let share = served.tokens_per_s / engine.tokens_per_s.max(1e-9);
        Row { context: load.context, clients: load.clients, served, seen, engine, engine_keeping, share }
    };
    let rows: Vec<Row> = loads.iter().zip(served).zip(alone).map(row).collect();
    let mut machine = json!({ "device": device });
    describe(&mut machine, args);
    let model = open::model(context)?.name;
    let report = json!({
        "bench": "serve", "model": model, "machine": machine, "questions": QUESTIONS, "answer_tokens": args.decode, "results": rows,
    });
    context.result(|| report.clone(), || table(&report, &rows))?;
    Ok(Exit::Ok)
}

fn serve(context: &Context, text: &TextModel, loads: &[Load]) -> Result<Vec<(Figures, Seen)>, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = Serving::begin(context, Model::of(context)?, listener, None, true)?;
    let stop = serving.stop();
    let server = std::thread::Builder::new().name("serving".into()).spawn(move || serving.run())?;
    let measured = clients::measure(&url, text, loads, &|| server.is_finished());
    stop.stop();
    let ended = server.join().map_err(|_| Failure::new(Exit::Failure, "the server failed: see the lines above"))?;
    // The server's own error explains more than the client's failure to reach it.
    ended.and(measured)
}

fn table(report: &Value, rows: &[Row]) -> String {
    let mut out = format!("{} on {}\n", report["model"], report["machine"]["device"].as_str().unwrap_or_default());
    for Row { context, clients, served, seen, engine, engine_keeping, share } in rows {
        let _ = writeln!(
            out,
            "{clients} clients, {} questions of {context} tokens at first, {} tokens written",
            served.answers, served.written
        );
        for (name, f) in [("server", served), ("engine", engine), ("keeping", engine_keeping)] {
            let _ = writeln!(
                out,
                "  {name:<8} {:.1} tok/s, first token after {:.0} ms; {} tokens read, {} of {} drafts right",
                f.tokens_per_s, f.first_token_ms, f.read, f.accepted, f.drafted
            );
        }
        let _ = writeln!(
            out,
            "  share    {share:.3} of the engine's; text at the clients after {:.0} ms, slowest {:.0}; {} tokens were kept",
            seen.first_text_ms, seen.slowest_first_text_ms, seen.cached
        );
    }
    out
}
