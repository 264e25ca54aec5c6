//! Gain and cost of speculation in time: the decoder as a chat uses it, with the policy's choice of depth, on a text
//! with all drafts wrong and on one with all drafts right.
//!
//! Plain decoding runs first and gives the text. *Wrong*: the lookup proposes other tokens with full confidence in
//! every round, and with random weights the head is wrong too (that of the built-in model is often right). *Right*:
//! the lookup knows the text. Each run is made twice with an untrained policy; the first records CUDA graphs and does
//! not count. All runs must give the same text.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::engine_client::greedy;
use super::Bench;
use crate::backend::draft::DraftOps;
use crate::engine::ngram::Lookup;
use crate::engine::protocol::{CheckpointImage, SpecMode, Token};
use crate::engine::speculate::{Decoder, Finder};

/// Tokens read before each run; their last logits give the first token.
const OPENING: usize = 64;
/// Tokens that do not count: the policy has not chosen a depth yet.
const WARM: usize = 96;

struct Run {
    text: Vec<Token>,
    rounds: Vec<(usize, f64)>,
}

impl Run {
    /// Of the rounds after [`WARM`] tokens.
    fn seconds_per_token(&self) -> f64 {
        let (mut before, mut tokens, mut all) = (0, 0, 0.0);
        for (new, seconds) in &self.rounds {
            before += new;
            if before > WARM {
                (tokens, all) = (tokens + new, all + seconds);
            }
        }
        all / f64::max(tokens as f64, 1.0)
    }
}

impl<B: DraftOps> Bench<'_, B> {
    /// Speeds as multiples of plain decoding.
    pub(super) fn speculation(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        let plain = self.run(end, SpecMode::Off, || Box::new(|_, _| None))?;
        let text = Arc::new(plain.text.clone());
        let base = end.position as usize + OPENING;
        let scripted = |wrong: Token| -> Finder {
            let text = Arc::clone(&text);
            Box::new(move |history, most| {
                let rest = text.get(history.len() - base..)?;
                let tokens: Vec<Token> = rest.iter().take(most).map(|t| t ^ wrong).collect();
                (!tokens.is_empty()).then_some(Lookup { tokens, matched: 64, agreement: 1.0 })
            })
        };
        let wrong = self.run(end, SpecMode::Auto, || scripted(1))?;
        let right = self.run(end, SpecMode::Auto, || scripted(0))?;
        let each = plain.seconds_per_token();
        let tokens: usize = right.rounds.iter().map(|round| round.0).sum();
        Ok(json!({"speculation": {
            "tokens": text.len(),
            "plain_tokens_per_s": 1.0 / each,
            "wrong_over_plain": each / wrong.seconds_per_token(),
            "right_over_plain": each / right.seconds_per_token(),
            "right_tokens_per_round": tokens as f64 / right.rounds.len().max(1) as f64,
            "same_text": wrong.text == *text && right.text == *text,
        }}))
    }

    fn run(&mut self, end: &CheckpointImage, spec: SpecMode, finder: impl Fn() -> Finder) -> anyhow::Result<Run> {
        self.run_once(end, spec, finder())?;
        self.run_once(end, spec, finder())
    }

    fn run_once(&mut self, end: &CheckpointImage, spec: SpecMode, finder: Finder) -> anyhow::Result<Run> {
        let mut decoder = Decoder::new(self.head.take());
        decoder.set_finder(finder);
        let run = self.decode_all(end, spec, &mut decoder);
        self.head = decoder.into_head();
        run
    }

    fn decode_all(&mut self, end: &CheckpointImage, spec: SpecMode, decoder: &mut Decoder<B>) -> anyhow::Result<Run> {
        let (b, model, live) = (&mut self.b, &self.model, &mut self.live);
        let at = end.position as usize;
        live.restore(b, at, &[], Some(end))?;
        let history = self.history.get(..at + OPENING);
        let (past, opening) = history.context("history too short")?.split_at(at);
        decoder.restore(b, past, Some(end))?;
        live.prefill(b, model, opening)?;
        live.advance(b, OPENING)?;
        decoder.read(b, model, live, opening, 0)?;
        let generate = greedy(4 * self.decode as u64 + WARM as u64, spec);
        let mut round = decoder.begin(b, model, live, &generate)?;
        let mut run = Run { text: round.tokens, rounds: Vec::new() };
        while round.ended.is_none() {
            let begun = Instant::now();
            round = decoder.round(b, model, live)?;
            run.rounds.push((round.tokens.len(), begun.elapsed().as_secs_f64()));
            run.text.extend(&round.tokens);
        }
        Ok(run)
    }
}
