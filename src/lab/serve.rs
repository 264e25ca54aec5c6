//! `sala-chat bench serve`: the share of the engine's speed that the local server reaches, with several clients.
//! docs/performance.md has the method.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

use super::clients::{EngineClient, failed, greedy};
use super::eval::needles::{SENTENCE_TOKENS, filler};
use super::scratch::{longest, scratch};
use crate::cli::args::BenchArgs;
use crate::cli::serve_cmd::Serving;
use crate::cli::{Context, Failure, open};
use crate::config::settings::Settings;
use crate::core::SplitMix64;
use crate::engine::protocol::{Generate, JobDone, Sampling, SequenceId, Token};
use crate::text::{Before, TextModel};

const QUESTIONS: u64 = 3;
const CONTEXT: u64 = 64;
const CLIENTS: [usize; 2] = [1, 8];
/// Rounds of short conversations before a measurement.
const WARM_UPS: usize = 2;
const WARM_UP_TOKENS: u64 = 16;
const POLL: Duration = Duration::from_millis(50);

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

    /// About `context` tokens, others for every client.
    fn opening(&self, client: usize) -> String {
        let number = self.number + client;
        let mut dice = SplitMix64::new(number as u64);
        let sentences = (self.context / SENTENCE_TOKENS as u64).max(1);
        let text: String = (0..sentences).map(|_| filler(&mut dice) + "\n").collect();
        format!("Book {number}.\n{text}{}", Self::question(0))
    }

    fn question(number: u64) -> String {
        format!("\nQuestion {}: what does the last line say?\n", number + 1)
    }
}

pub(super) fn measure(context: &Context, args: &BenchArgs) -> Result<Value, Failure> {
    let contexts = if args.context.is_empty() { &[CONTEXT][..] } else { &args.context };
    let slots = context.config().serve.side_by_side;
    if let Some(clients) = args.sequences.iter().find(|clients| **clients > slots) {
        return Err(Failure::usage(format!("--sequences must be 1 to serve.side_by_side, {slots} (got {clients})")));
    }
    let clients = if args.sequences.is_empty() { &CLIENTS[..] } else { &args.sequences };
    let tokens = contexts.iter().copied().max().unwrap_or(CONTEXT) + QUESTIONS * args.decode;
    let most = longest(context);
    if tokens > most {
        let what = format!("--context and {QUESTIONS} answers of --decode must be {most} together at most");
        return Err(Failure::usage(format!("{what} (got {tokens})")));
    }
    let (_folder, mut own) = scratch(context, tokens)?;
    own.quiet = true;
    own.loaded.config.sampling.stop_loops = false;
    let mut loads = Vec::new();
    for context in contexts.iter().copied() {
        for clients in clients.iter().copied().filter(|clients| *clients <= slots) {
            let number = 1000 * (loads.len() + 1);
            loads.push(Load { context, clients, questions: QUESTIONS, tokens: args.decode, number });
        }
    }

    let (text, stop) = open::text(&open::model(context)?.name)?;
    own.loaded.recommend(&text.recommended);
    context.note("the server with its clients");
    let served = serve(&own, &loads)?;
    context.note("the engine alone");
    // The parameters that the server derives from the clients' requests.
    let settings = Settings::of(own.config());
    let sampling = Sampling { temperature: 0.0, seed: 1, ..settings.sampling };
    let generate = Generate { sampling, stop, ..greedy(0, settings.spec) };
    let (alone, device) = alone(&own, &text, generate, &loads)?;
    let rows = loads.iter().zip(served).zip(alone).map(|((load, served), engine)| {
        json!({
            "context": load.context, "clients": load.clients, "served": served.figures(),
            "seen": { "cached": served.sum(|a| a.cached) }, "engine": engine.figures(),
            "share": served.tokens_per_s() / engine.tokens_per_s().max(1e-9),
        })
    });
    let rows: Vec<Value> = rows.collect();
    let machine = json!({ "device": device });
    Ok(json!({"machine": machine, "questions": QUESTIONS, "answer_tokens": args.decode, "results": rows}))
}

/// Runs every load, after rounds that warm up.
fn each(loads: &[Load], mut run: impl FnMut(Load) -> Result<Answered, Failure>) -> Result<Vec<Answered>, Failure> {
    let measured = loads.iter().map(|load| {
        (0..WARM_UPS).try_for_each(|round| run(load.warm_up(round)).map(drop))?;
        run(*load)
    });
    measured.collect()
}

fn serve(context: &Context, loads: &[Load]) -> Result<Vec<Answered>, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = Serving::begin(context, open::engine_options(context)?, listener, None, true)?;
    let stop = serving.stop();
    let thread = std::thread::Builder::new().name("serving".into()).spawn(move || serving.run())?;
    let measured = Server::ready(url, || thread.is_finished()).and_then(|server| each(loads, |load| server.run(load)));
    stop.stop();
    let ended = thread.join().map_err(|_| failed("the server failed: see the lines above"))?;
    // The server's own error explains more than the client's failure to reach it.
    ended.and(measured)
}

struct Server {
    agent: Agent,
    url: String,
}

impl Server {
    /// Waits until the server answers. `gone` returns true once it has ended.
    fn ready(url: String, gone: impl Fn() -> bool) -> Result<Server, Failure> {
        // A proxy cannot reach a server on this machine.
        let agent = Agent::new_with_config(Agent::config_builder().proxy(None).build());
        while agent.get(format!("{url}/health")).call().is_err() {
            if gone() {
                return Err(failed("the server ended before its model was loaded"));
            }
            std::thread::sleep(POLL);
        }
        Ok(Server { agent, url })
    }

    /// All clients of a load at once, a thread for each.
    fn run(&self, load: Load) -> Result<Answered, Failure> {
        let begun = Instant::now();
        let answers = std::thread::scope(|scope| {
            let client = |client| scope.spawn(move || self.converse(load, load.opening(client)));
            let clients: Vec<_> = (0..load.clients).map(client).collect();
            let ended = clients.into_iter().map(|client| client.join().map_err(|_| failed("a client failed"))?);
            ended.collect::<Result<Vec<_>, Failure>>()
        })?;
        Ok(Answered(answers.into_iter().flatten().collect(), begun.elapsed().as_secs_f64()))
    }

    fn converse(&self, load: Load, mut text: String) -> Result<Vec<Answer>, Failure> {
        let mut answers = Vec::new();
        for question in 1..=load.questions {
            let (answer, written) = self.ask(&text, load.tokens)?;
            text.push_str(&written);
            text.push_str(&Load::question(question));
            answers.push(answer);
        }
        Ok(answers)
    }

    fn ask(&self, prompt: &str, tokens: u64) -> Result<(Answer, String), Failure> {
        let body = json!({
            "model": "default", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "seed": 1,
            "stream": true, "stream_options": { "include_usage": true },
        });
        let begun = Instant::now();
        let request = self.agent.post(format!("{}/v1/completions", self.url)).config().http_status_as_error(false);
        let mut response = request.build().content_type("application/json").send(body.to_string()).map_err(failed)?;
        if !response.status().is_success() {
            let why = response.body_mut().read_to_string().unwrap_or_default();
            return Err(failed(format!("{}: {why}", response.status())));
        }
        let (mut answer, mut text, mut first_text) = (None, String::new(), None);
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line?;
            let data = line.strip_prefix("data:").and_then(|data| serde_json::from_str::<Value>(data).ok());
            let Some(event) = data else { continue };
            if let Some(error) = event.pointer("/error/message").and_then(Value::as_str) {
                return Err(failed(error));
            }
            text.push_str(event.pointer("/choices/0/text").and_then(Value::as_str).unwrap_or_default());
            if !text.is_empty() {
                first_text.get_or_insert_with(|| begun.elapsed());
            }
            if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
                let count = |at: &str| usage.pointer(at).and_then(Value::as_u64).unwrap_or(0);
                let cached = count("/prompt_tokens_details/cached_tokens");
                let (read, written) = (count("/prompt_tokens").saturating_sub(cached), count("/completion_tokens"));
                answer = Some(Answer { read, cached, written, ..Answer::default() });
            }
        }
        let answer = answer.ok_or_else(|| failed("an answer ended without its counts"))?;
        Ok((Answer { first_token: first_text.unwrap_or_else(|| begun.elapsed()), ..answer }, text))
    }
}

struct Alone<'a> {
    client: EngineClient,
    text: &'a TextModel,
    generate: Generate,
}

/// The engine's answers to each load, and the name of its device.
fn alone(
    context: &Context,
    text: &TextModel,
    generate: Generate,
    loads: &[Load],
) -> Result<(Vec<Answered>, String), Failure> {
    let mut bench = Alone { client: EngineClient::start(context)?, text, generate };
    let measured = each(loads, |load| bench.run(load))?;
    Ok((measured, bench.client.end()))
}

impl Alone<'_> {
    /// All clients of a load at once, question by question.
    fn run(&mut self, load: Load) -> Result<Answered, Failure> {
        self.generate.max_tokens = load.tokens;
        let mut prompts = Vec::new();
        for client in 0..load.clients {
            let sequence = SequenceId(client as u32);
            self.client.restore(sequence, Vec::new(), None, Vec::new())?;
            prompts.push((sequence, self.text.tokenizer.encode_prompt(&load.opening(client))?));
        }
        let (begun, mut answers) = (Instant::now(), Vec::new());
        for question in 1..=load.questions {
            let (sent, mut jobs) = (Instant::now(), Vec::new());
            for (sequence, prompt) in &mut prompts {
                jobs.push(self.client.run(*sequence, std::mem::take(prompt), self.generate.clone(), false)?);
            }
            let events = self.client.all(&jobs)?;
            for (job, (_, prompt)) in jobs.iter().zip(&mut prompts) {
                let pieces: Vec<_> = events.tokens.iter().filter(|(_, id, _)| id == job).collect();
                let generated: Vec<Token> = pieces.iter().flat_map(|(.., tokens)| tokens).copied().collect();
                let Some(done) = events.done.get(job) else { continue };
                answers.push(Answer {
                    read: done.prompt_in_state,
                    cached: 0,
                    written: generated.len() as u64,
                    first_token: pieces.first().map_or(Duration::ZERO, |(at, ..)| at.duration_since(sent)),
                });
                *prompt = self.next_prompt(question, &generated, done)?;
            }
        }
        Ok(Answered(answers, begun.elapsed().as_secs_f64()))
    }

    /// The tokens after an answer that the state lacks: the last drawn token, and the next question.
    fn next_prompt(&self, question: u64, generated: &[Token], done: &JobDone) -> Result<Vec<Token>, Failure> {
        let read = usize::try_from(done.generated_in_state).unwrap_or(usize::MAX);
        let mut prompt = generated.get(read..).unwrap_or_default().to_vec();
        let tokenizer = &self.text.tokenizer;
        let before = tokenizer.before_next(generated, Before::Edge);
        prompt.extend(tokenizer.encode_after(&Load::question(question), before)?);
        Ok(prompt)
    }
}
