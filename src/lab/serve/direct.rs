//! The engine alone with the work that clients gave a server.

use std::time::{Duration, Instant};

use super::{Figures, Load, WARM_UPS};
use crate::cli::{Context, Failure};
use crate::config::settings::Settings;
use crate::engine::protocol::{
    Cancel, Command, EngineEvent, Generate, Job, JobDone, Look, Sampling, SequenceId, SpecMode, Token,
};
use crate::lab::sessions::direct::Direct;
use crate::text::{Before, Halt, TextModel};

const PATIENCE: Duration = Duration::from_secs(600);

pub(super) struct Wish {
    sampling: Sampling,
    spec: SpecMode,
    stop: Vec<Token>,
}

impl Wish {
    /// The parameters that the server derives from requests of [`super::clients`].
    pub(super) fn new(settings: &Settings, stop: Vec<Token>) -> Wish {
        let sampling = Sampling { temperature: 0.0, seed: 1, ..settings.sampling };
        Wish { sampling, spec: settings.spec, stop }
    }
}

struct Talk {
    sequence: SequenceId,
    job: u64,
    asked: Instant,
    silent: bool,
    generated: Vec<Token>,
    answered: u64,
}

struct Bench<'a> {
    direct: Direct,
    text: &'a TextModel,
    wish: &'a Wish,
}

pub(super) fn measure(
    context: &Context,
    text: &TextModel,
    wish: &Wish,
    loads: &[Load],
) -> Result<(Vec<[Figures; 2]>, String), Failure> {
    let mut bench = Bench { direct: Direct::start(context)?, text, wish };
    let device = bench.direct.info().device.clone();
    let mut measured = Vec::new();
    for load in loads {
        for round in 0..WARM_UPS {
            bench.run(load.warm_up(round), true)?;
        }
        measured.push([bench.run(*load, false)?, bench.run(*load, true)?]);
    }
    bench.direct.end();
    Ok((measured, device))
}

impl Bench<'_> {
    fn run(&mut self, load: Load, export: bool) -> Result<Figures, Failure> {
        let mut talks = Vec::new();
        for client in 0..load.clients {
            let sequence = SequenceId(client as u32);
            let id = self.direct.number();
            let (rows, history) = (Vec::new(), Vec::new().into());
            self.direct.command(Command::Restore { id, sequence, keep: 0, rows, end: None, history })?;
            while !matches!(self.direct.next(PATIENCE)?, EngineEvent::Restored { .. }) {}
            let prompt = self.text.tokenizer.encode_prompt(&load.opening(self.text, client)?)?;
            talks.push((sequence, prompt));
        }
        let mut figures = Figures::default();
        let begun = Instant::now();
        let mut open = Vec::new();
        for (sequence, prompt) in talks {
            let talk = Talk { sequence, job: 0, asked: begun, silent: true, generated: Vec::new(), answered: 0 };
            open.push(self.ask(talk, prompt, load, export)?);
        }
        let mut waited = 0.0;
        while !open.is_empty() {
            match self.direct.next(PATIENCE)? {
                EngineEvent::Tokens { id, tokens, .. } => {
                    if let Some(talk) = open.iter_mut().find(|talk| talk.job == id) {
                        if std::mem::replace(&mut talk.silent, false) {
                            waited += talk.asked.elapsed().as_secs_f64();
                        }
                        talk.generated.extend(tokens);
                    }
                }
                EngineEvent::Done { id, done } => {
                    let Some(at) = open.iter().position(|talk| talk.job == id) else { continue };
                    let talk = open.swap_remove(at);
                    figures.add(&talk, &done);
                    if talk.answered + 1 < load.questions {
                        let prompt = self.next_prompt(&talk, &done)?;
                        open.push(self.ask(Talk { answered: talk.answered + 1, ..talk }, prompt, load, export)?);
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

    fn ask(&mut self, mut talk: Talk, prompt: Vec<Token>, load: Load, export: bool) -> Result<Talk, Failure> {
        let id = self.direct.number();
        (talk.job, talk.asked, talk.silent) = (id, Instant::now(), true);
        talk.generated.clear();
        let generate = Generate {
            sampling: self.wish.sampling,
            max_tokens: load.tokens,
            stop: self.wish.stop.clone(),
            spec: self.wish.spec,
            steering: None,
            constraint: None,
            likely: None,
            look: Look::default(),
        };
        let (sequence, cancel) = (talk.sequence, Cancel::default());
        let job = Job { id, sequence, prompt, generate: Some(generate), score: None, export, cancel };
        self.direct.command(Command::Run(job))?;
        Ok(talk)
    }

    /// The tokens after an answer that the state lacks: the last drawn token, and the next question.
    fn next_prompt(&self, talk: &Talk, done: &JobDone) -> Result<Vec<Token>, Failure> {
        let read = usize::try_from(done.generated_in_state).unwrap_or(usize::MAX);
        let mut prompt = talk.generated.get(read..).unwrap_or_default().to_vec();
        let tokenizer = &self.text.tokenizer;
        let before = tokenizer.before_next(&talk.generated, Before::Edge);
        let halt = Halt { stop: &|| false, most: usize::MAX };
        prompt.extend(tokenizer.encode_behind_until(&Load::question(talk.answered + 1), before, &halt)?);
        Ok(prompt)
    }
}

impl Figures {
    fn add(&mut self, talk: &Talk, done: &JobDone) {
        self.answers += 1;
        self.read += done.prompt_in_state;
        self.written += talk.generated.len() as u64;
        self.drafted += done.stats.spec.drafted;
        self.accepted += done.stats.spec.accepted;
    }
}
