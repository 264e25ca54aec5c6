//! Clients of a running server; they know only its address.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Figures, Load, Seen, WARM_UPS};
use crate::cli::Failure;
use crate::client::remote::Events;
use crate::lab::engine_client::failed;
use crate::text::TextModel;

const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Answer {
    text: String,
    prompt: u64,
    cached: u64,
    written: u64,
    first_text: Duration,
}

/// Seconds and number of first tokens, drafted and accepted tokens.
type Counted = [f64; 4];

#[derive(Clone, Debug)]
struct Server {
    http: reqwest::Client,
    url: String,
    model: String,
}

/// The clients' figures of each load. `gone` returns true once the server has ended.
pub(super) fn measure(
    url: &str,
    text: &TextModel,
    loads: &[Load],
    gone: &dyn Fn() -> bool,
) -> Result<Vec<(Figures, Seen)>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // A proxy cannot reach a server on this machine.
        let http = crate::client::remote::http().no_proxy().build().map_err(failed)?;
        let mut server = Server { http, url: url.to_owned(), model: String::new() };
        server.ready(gone).await?;
        let mut measured = Vec::new();
        for load in loads {
            for round in 0..WARM_UPS {
                server.run(text, load.warm_up(round)).await?;
            }
            let before = server.counted().await?;
            let begun = Instant::now();
            let answers = server.run(text, *load).await?;
            let seconds = begun.elapsed().as_secs_f64();
            measured.push(figures(&answers, seconds, before, server.counted().await?));
        }
        Ok(measured)
    })
}

fn figures(answers: &[Answer], seconds: f64, before: Counted, after: Counted) -> (Figures, Seen) {
    let sum = |of: fn(&Answer) -> u64| answers.iter().map(of).sum::<u64>();
    let first_text = answers.iter().map(|a| a.first_text.as_secs_f64() * 1e3);
    let (written, cached) = (sum(|a| a.written), sum(|a| a.cached));
    let [waited, tokens, drafted, accepted] = std::array::from_fn(|i| after[i] - before[i]);
    let figures = Figures {
        seconds,
        answers: answers.len() as u64,
        read: sum(|a| a.prompt).saturating_sub(cached),
        written,
        tokens_per_s: written as f64 / seconds.max(1e-9),
        first_token_ms: waited * 1e3 / tokens.max(1.0),
        drafted: drafted as u64,
        accepted: accepted as u64,
    };
    let seen = Seen {
        cached,
        first_text_ms: first_text.clone().sum::<f64>() / answers.len().max(1) as f64,
        slowest_first_text_ms: first_text.fold(0.0, f64::max),
    };
    (figures, seen)
}

impl Server {
    async fn get(&self, path: &str) -> Result<(bool, String), Failure> {
        let response = self.http.get(format!("{}{path}", self.url)).send().await.map_err(failed)?;
        let good = response.status().is_success();
        Ok((good, response.text().await.map_err(failed)?))
    }

    async fn ready(&mut self, gone: &dyn Fn() -> bool) -> Result<(), Failure> {
        while !self.get("/health").await.is_ok_and(|(good, _)| good) {
            if gone() {
                return Err(failed("the server ended before its model was loaded"));
            }
            tokio::time::sleep(POLL).await;
        }
        let (_, list) = self.get("/v1/models").await?;
        let list: Value = serde_json::from_str(&list).map_err(failed)?;
        let name = list.pointer("/data/0/id").and_then(Value::as_str);
        name.ok_or_else(|| failed("the server lists no model"))?.clone_into(&mut self.model);
        Ok(())
    }

    async fn counted(&self) -> Result<Counted, Failure> {
        let (_, text) = self.get("/metrics").await?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix("sala_chat_")?.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).ok_or_else(|| failed(format!("/metrics has no {name}")))
        };
        Ok([
            value("first_token_seconds_sum ")?,
            value("first_token_seconds_count ")?,
            value("drafted_tokens_total ")?,
            value("accepted_tokens_total ")?,
        ])
    }

    async fn run(&self, text: &TextModel, load: Load) -> Result<Vec<Answer>, Failure> {
        let mut clients = JoinSet::new();
        for client in 0..load.clients {
            let (server, opening) = (self.clone(), load.opening(text, client)?);
            clients.spawn(async move { server.converse(load, opening).await });
        }
        let mut answers = Vec::new();
        while let Some(ended) = clients.join_next().await {
            answers.extend(ended.map_err(failed)??);
        }
        Ok(answers)
    }

    async fn converse(&self, load: Load, mut text: String) -> Result<Vec<Answer>, Failure> {
        let mut answers = Vec::new();
        for question in 1..=load.questions {
            let answer = self.ask(&text, load.tokens).await?;
            text.push_str(&answer.text);
            text.push_str(&Load::question(question));
            answers.push(answer);
        }
        Ok(answers)
    }

    async fn ask(&self, prompt: &str, tokens: u64) -> Result<Answer, Failure> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "seed": 1,
            "stream": true, "stream_options": { "include_usage": true },
        });
        let begun = Instant::now();
        let request = self.http.post(format!("{}/v1/completions", self.url));
        let request = request.header("content-type", "application/json").body(body.to_string());
        let mut response = request.send().await.map_err(failed)?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(failed(format!("{status}: {}", response.text().await.unwrap_or_default())));
        }
        let (mut answer, mut events, mut data) = (Answer::default(), Events::default(), Vec::new());
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            events.push(&piece, &mut data).map_err(|_| failed("the server sends an event without end"))?;
            for event in data.drain(..) {
                answer.take(&event, begun)?;
            }
        }
        if answer.prompt == 0 {
            return Err(failed("an answer ended without its counts"));
        }
        if answer.text.is_empty() {
            answer.first_text = begun.elapsed();
        }
        Ok(answer)
    }
}

impl Answer {
    fn take(&mut self, event: &str, begun: Instant) -> Result<(), Failure> {
        let Ok(event) = serde_json::from_str::<Value>(event) else { return Ok(()) };
        if let Some(error) = event.pointer("/error/message").and_then(Value::as_str) {
            return Err(failed(error));
        }
        if let Some(text) = event.pointer("/choices/0/text").and_then(Value::as_str).filter(|text| !text.is_empty()) {
            if self.text.is_empty() {
                self.first_text = begun.elapsed();
            }
            self.text.push_str(text);
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            let count = |at: &str| usage.pointer(at).and_then(Value::as_u64).unwrap_or(0);
            self.prompt = count("/prompt_tokens");
            self.cached = count("/prompt_tokens_details/cached_tokens");
            self.written = count("/completion_tokens");
        }
        Ok(())
    }
}
