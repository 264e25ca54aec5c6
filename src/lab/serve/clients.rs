//! Clients of a running server; they know only its address.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Answer, Answered, Load, WARM_UPS};
use crate::cli::Failure;
use crate::client::remote::Events;
use crate::lab::engine_client::failed;
use crate::text::TextModel;

const POLL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
struct Server {
    http: reqwest::Client,
    url: String,
    model: String,
}

/// The answers to each load. `gone` returns true once the server has ended.
pub(super) fn measure(
    url: &str,
    text: &TextModel,
    loads: &[Load],
    gone: &dyn Fn() -> bool,
) -> Result<Vec<Answered>, Failure> {
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
            let begun = Instant::now();
            let answers = server.run(text, *load).await?;
            measured.push(Answered(answers, begun.elapsed().as_secs_f64()));
        }
        Ok(measured)
    })
}

impl Server {
    async fn get(&self, path: &str) -> Result<String, Failure> {
        let response = self.http.get(format!("{}{path}", self.url)).send().await.map_err(failed)?;
        response.error_for_status().map_err(failed)?.text().await.map_err(failed)
    }

    async fn ready(&mut self, gone: &dyn Fn() -> bool) -> Result<(), Failure> {
        while self.get("/health").await.is_err() {
            if gone() {
                return Err(failed("the server ended before its model was loaded"));
            }
            tokio::time::sleep(POLL).await;
        }
        let list: Value = serde_json::from_str(&self.get("/v1/models").await?).map_err(failed)?;
        let name = list.pointer("/data/0/id").and_then(Value::as_str);
        name.ok_or_else(|| failed("the server lists no model"))?.clone_into(&mut self.model);
        Ok(())
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
            let (answer, written) = self.ask(&text, load.tokens).await?;
            text.push_str(&written);
            text.push_str(&Load::question(question));
            answers.push(answer);
        }
        Ok(answers)
    }

    async fn ask(&self, prompt: &str, tokens: u64) -> Result<(Answer, String), Failure> {
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
        let (mut answer, mut text, mut first_text) = (None, String::new(), None);
        let (mut events, mut data) = (Events::default(), Vec::new());
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            events.push(&piece, &mut data).map_err(|_| failed("the server sends an event without end"))?;
            for event in data.drain(..) {
                let Ok(event) = serde_json::from_str::<Value>(&event) else { continue };
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
        }
        let answer = answer.ok_or_else(|| failed("an answer ended without its counts"))?;
        Ok((Answer { first_token: first_text.unwrap_or_else(|| begun.elapsed()), ..answer }, text))
    }
}
