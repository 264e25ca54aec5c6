//! The engine alone with the work that clients gave a server.

use std::time::{Duration, Instant};

use super::{Answer, Answered, Load, WARM_UPS};
use crate::cli::{Context, Failure};
use crate::engine::protocol::{EngineEvent, Generate, JobDone, SequenceId, Token};
use crate::lab::engine_client::EngineClient;
use crate::text::{Before, TextModel};

/// A question that the engine answers.
struct Open {
    sequence: SequenceId,
    job: u64,
    number: u64,
    sent: Instant,
    first_token: Option<Duration>,
    generated: Vec<Token>,
}

struct Bench<'a> {
    client: EngineClient,
    text: &'a TextModel,
    generate: Generate,
}

/// The answers to each load without and with export of the state after each answer, and the name of the device.
pub(super) fn measure(
    context: &Context,
    text: &TextModel,
    generate: Generate,
    loads: &[Load],
) -> Result<(Vec<[Answered; 2]>, String), Failure> {
    let mut bench = Bench { client: EngineClient::start(context)?, text, generate };
    let mut measured = Vec::new();
    for load in loads {
        for round in 0..WARM_UPS {
            bench.run(load.warm_up(round), true)?;
        }
        measured.push([bench.run(*load, false)?, bench.run(*load, true)?]);
    }
    Ok((measured, bench.client.end()))
}

impl Bench<'_> {
    fn run(&mut self, load: Load, export: bool) -> Result<Answered, Failure> {
        let mut prompts = Vec::new();
        for client in 0..load.clients {
            let sequence = SequenceId(client as u32);
            let id = self.client.restore(sequence, 0, Vec::new(), None, Vec::new())?;
            self.client.all(&[id])?;
            prompts.push((sequence, self.text.tokenizer.encode_prompt(&load.opening(self.text, client)?)?));
        }
        let (begun, mut open, mut answers) = (Instant::now(), Vec::new(), Vec::new());
        for (sequence, prompt) in prompts {
            open.push(self.ask(sequence, 1, prompt, load, export)?);
        }
        while !open.is_empty() {
            match self.client.next()? {
                EngineEvent::Tokens { id, tokens, .. } => {
                    if let Some(question) = open.iter_mut().find(|open| open.job == id) {
                        question.first_token.get_or_insert_with(|| question.sent.elapsed());
                        question.generated.extend(tokens);
                    }
                }
                EngineEvent::Done { id, done } => {
                    let Some(at) = open.iter().position(|open| open.job == id) else { continue };
                    let ended = open.swap_remove(at);
                    answers.push(Answer {
                        read: done.prompt_in_state,
                        cached: 0,
                        written: ended.generated.len() as u64,
                        first_token: ended.first_token.unwrap_or_default(),
                    });
                    if ended.number < load.questions {
                        let prompt = self.next_prompt(&ended, &done)?;
                        open.push(self.ask(ended.sequence, ended.number + 1, prompt, load, export)?);
                    }
                }
                _ => {}
            }
        }
        Ok(Answered(answers, begun.elapsed().as_secs_f64()))
    }

    fn ask(
        &mut self,
        sequence: SequenceId,
        number: u64,
        prompt: Vec<Token>,
        load: Load,
        export: bool,
    ) -> Result<Open, Failure> {
        let generate = Generate { max_tokens: load.tokens, ..self.generate.clone() };
        let sent = Instant::now();
        let (job, _) = self.client.run(sequence, prompt, Some(generate), export)?;
        Ok(Open { sequence, job, number, sent, first_token: None, generated: Vec::new() })
    }

    /// The tokens after an answer that the state lacks: the last drawn token, and the next question.
    fn next_prompt(&self, ended: &Open, done: &JobDone) -> Result<Vec<Token>, Failure> {
        let read = usize::try_from(done.generated_in_state).unwrap_or(usize::MAX);
        let mut prompt = ended.generated.get(read..).unwrap_or_default().to_vec();
        let tokenizer = &self.text.tokenizer;
        let before = tokenizer.before_next(&ended.generated, Before::Edge);
        prompt.extend(tokenizer.encode_after(&Load::question(ended.number), before)?);
        Ok(prompt)
    }
}
