//! The engine alone with the work that clients gave a server.

use std::time::Instant;

use super::{Figures, Load, WARM_UPS};
use crate::cli::{Context, Failure};
use crate::engine::protocol::{EngineEvent, Generate, JobDone, SequenceId, Token};
use crate::lab::engine_client::EngineClient;
use crate::text::{Before, Halt, TextModel};

struct Conversation {
    sequence: SequenceId,
    job: u64,
    sent: Instant,
    first_token: Option<Instant>,
    generated: Vec<Token>,
    answered: u64,
}

struct Bench<'a> {
    client: EngineClient,
    text: &'a TextModel,
    generate: Generate,
}

/// Figures of each load without and with export of the state after each answer, and the name of the device.
pub(super) fn measure(
    context: &Context,
    text: &TextModel,
    generate: Generate,
    loads: &[Load],
) -> Result<(Vec<[Figures; 2]>, String), Failure> {
    let mut bench = Bench { client: EngineClient::start(context)?, text, generate };
    let device = bench.client.info.device.clone();
    let mut measured = Vec::new();
    for load in loads {
        for round in 0..WARM_UPS {
            bench.run(load.warm_up(round), true)?;
        }
        measured.push([bench.run(*load, false)?, bench.run(*load, true)?]);
    }
    bench.client.end();
    Ok((measured, device))
}

impl Bench<'_> {
    fn run(&mut self, load: Load, export: bool) -> Result<Figures, Failure> {
        let mut prompts = Vec::new();
        for client in 0..load.clients {
            let sequence = SequenceId(client as u32);
            let id = self.client.restore(sequence, 0, Vec::new(), None, Vec::new())?;
            self.client.restored(id)?;
            prompts.push((sequence, self.text.tokenizer.encode_prompt(&load.opening(self.text, client)?)?));
        }
        let (mut figures, mut waited) = (Figures::default(), 0.0);
        let begun = Instant::now();
        let mut open = Vec::new();
        for (sequence, prompt) in prompts {
            open.push(self.ask(sequence, 0, prompt, load, export)?);
        }
        while !open.is_empty() {
            match self.client.next()? {
                EngineEvent::Tokens { id, tokens, .. } => {
                    if let Some(conversation) = open.iter_mut().find(|open| open.job == id) {
                        conversation.first_token.get_or_insert_with(Instant::now);
                        conversation.generated.extend(tokens);
                    }
                }
                EngineEvent::Done { id, done } => {
                    let Some(at) = open.iter().position(|open| open.job == id) else { continue };
                    let ended = open.swap_remove(at);
                    waited += ended.first_token.map_or(0.0, |at| at.duration_since(ended.sent).as_secs_f64());
                    figures.add(&ended, &done);
                    if ended.answered + 1 < load.questions {
                        let prompt = self.next_prompt(&ended, &done)?;
                        open.push(self.ask(ended.sequence, ended.answered + 1, prompt, load, export)?);
                    }
                }
                _ => {}
            }
        }
        figures.seconds = begun.elapsed().as_secs_f64();
        figures.tokens_per_s = figures.written as f64 / figures.seconds.max(1e-9);
        figures.first_token_ms = waited * 1e3 / figures.answers.max(1) as f64;
        Ok(figures)
    }

    fn ask(
        &mut self,
        sequence: SequenceId,
        answered: u64,
        prompt: Vec<Token>,
        load: Load,
        export: bool,
    ) -> Result<Conversation, Failure> {
        let generate = Generate { max_tokens: load.tokens, ..self.generate.clone() };
        let sent = Instant::now();
        let (job, _) = self.client.run(sequence, prompt, Some(generate), export)?;
        Ok(Conversation { sequence, job, sent, first_token: None, generated: Vec::new(), answered })
    }

    /// The tokens after an answer that the state lacks: the last drawn token, and the next question.
    fn next_prompt(&self, ended: &Conversation, done: &JobDone) -> Result<Vec<Token>, Failure> {
        let read = usize::try_from(done.generated_in_state).unwrap_or(usize::MAX);
        let mut prompt = ended.generated.get(read..).unwrap_or_default().to_vec();
        let tokenizer = &self.text.tokenizer;
        let before = tokenizer.before_next(&ended.generated, Before::Edge);
        let halt = Halt { stop: &|| false, most: usize::MAX };
        prompt.extend(tokenizer.encode_after_until(&Load::question(ended.answered + 1), before, &halt)?);
        Ok(prompt)
    }
}

impl Figures {
    fn add(&mut self, ended: &Conversation, done: &JobDone) {
        self.answers += 1;
        self.read += done.prompt_in_state;
        self.written += ended.generated.len() as u64;
        self.drafted += done.stats.spec.drafted;
        self.accepted += done.stats.spec.accepted;
    }
}
