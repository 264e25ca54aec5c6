//! Passes from a frontier in time: single steps, verify passes, speculation, several sequences in one pass.

use std::sync::Arc;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::clients::greedy;
use super::super::report::{median, quantiles};
use super::super::subject::Round;
use super::Bench;
use crate::backend::TopLogits;
use crate::backend::draft::DraftOps;
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::ngram::Lookup;
use crate::engine::protocol::{SpecMode, Token};
use crate::engine::speculate::{Decoder, Finder};
use crate::model::{Live, Sequence};

const VERIFY_ROWS: [usize; 6] = [1, 2, 4, 6, 8, 16];

/// Tokens read before each run of speculation; their last logits give the first token.
const OPENING: usize = 64;
/// Tokens of a run that do not count: the policy has not chosen a depth yet.
const UNSETTLED: usize = 96;

impl<B: DraftOps> Bench<'_, B> {
    /// Single steps, each waiting for its top logits as a chat does.
    pub(super) fn decode(&mut self) -> anyhow::Result<Value> {
        let (decode, mut token) = (self.decode, 17 % self.s.model.spec().vocab as Token);
        let times = self.times(decode, |bench| {
            let found = bench.s.step(&[token], 1)?;
            token = found.first().and_then(|c| c.ids.first()).copied().context("no top logits")?;
            Ok(())
        })?;
        let tokens_per_s = 1e3 * decode as f64 / times.iter().sum::<f64>();
        let weights = self.s.model.read_bytes(self.s.b) as f64;
        let bytes = step_bytes(self.s.model.spec(), self.frontier.position as usize, weights);
        let gb_per_s = bytes * tokens_per_s / 1e9;
        let [p50_ms, p99_ms] = quantiles(times, [0.5, 0.99]);
        Ok(json!({
            "bytes_per_token": bytes, "decode_tokens_per_s": tokens_per_s, "decode_gb_per_s": gb_per_s,
            "read_bandwidth_share": self.read_gb_per_s.map(|read| gb_per_s / read), "p50_ms": p50_ms, "p99_ms": p99_ms,
        }))
    }

    /// Verify passes of which half of the rows are accepted.
    pub(super) fn verify_passes(&mut self) -> anyhow::Result<Value> {
        let (mut out, mut one) = (Vec::new(), None);
        for rows in VERIFY_ROWS {
            let tokens: Vec<Token> = self.history.iter().copied().take(rows).collect();
            let times = self.times((self.decode / 4).max(4), |bench| {
                bench.s.step(&tokens, rows.div_ceil(2))?;
                Ok(())
            })?;
            let ms = median(times);
            out.push(json!({"rows": rows, "ms": ms, "over_one": ms / *one.get_or_insert(ms)}));
            self.s.back(&self.frontier)?;
        }
        Ok(json!({"verify": out}))
    }

    /// The decoder as a chat uses it, with the policy's choice of depth: speeds with all drafts wrong and all right as
    /// multiples of plain decoding.
    ///
    /// Plain decoding runs first and gives the text. *Wrong*: the lookup proposes other tokens with full confidence in
    /// every round, and with random weights the head is wrong too (that of the built-in model is often right). *Right*:
    /// the lookup knows the text. All runs must give the same text.
    pub(super) fn speculation(&mut self) -> anyhow::Result<Value> {
        let text = |rounds: &[Round]| rounds.iter().flat_map(|round| round.0.clone()).collect::<Vec<Token>>();
        let plain = self.speculate(SpecMode::Off, || Box::new(|_, _| None))?;
        let known = Arc::new(text(&plain));
        let base = self.frontier.position as usize + OPENING;
        let scripted = |wrong: Token| -> Finder {
            let known = Arc::clone(&known);
            Box::new(move |history, most| {
                let rest = known.get(history.len() - base..)?;
                let tokens: Vec<Token> = rest.iter().take(most).map(|t| t ^ wrong).collect();
                (!tokens.is_empty()).then_some(Lookup { tokens, matched: 64, agreement: 1.0 })
            })
        };
        let wrong = self.speculate(SpecMode::Auto, || scripted(1))?;
        let right = self.speculate(SpecMode::Auto, || scripted(0))?;
        let drafted = right.get(1..).unwrap_or_default();
        let tokens: usize = drafted.iter().map(|round| round.0.len()).sum();
        let each = seconds_per_token(&plain);
        Ok(json!({"speculation": {
            "tokens": known.len(),
            "plain_tokens_per_s": 1.0 / each,
            "wrong_over_plain": each / seconds_per_token(&wrong),
            "right_over_plain": each / seconds_per_token(&right),
            "right_tokens_per_round": tokens as f64 / drafted.len().max(1) as f64,
            "same_text": text(&wrong) == *known && text(&right) == *known,
        }}))
    }

    /// Two runs with an untrained policy; the first records CUDA graphs and does not count.
    fn speculate(&mut self, spec: SpecMode, finder: impl Fn() -> Finder) -> anyhow::Result<Vec<Round>> {
        let at = self.frontier.position as usize;
        let generate = greedy(4 * self.decode as u64 + UNSETTLED as u64, spec);
        let mut rounds = Vec::new();
        for _ in 0..2 {
            let (past, opening) = self.history.get(..at + OPENING).context("history too short")?.split_at(at);
            let mut decoder = Decoder::new(self.head.take());
            decoder.set_finder(finder());
            self.s.back(&self.frontier)?;
            decoder.restore(self.s.b, past, Some(&self.frontier))?;
            self.s.read(opening, OPENING)?;
            decoder.read(self.s.b, &self.s.model, &self.s.live, opening, 0)?;
            rounds = self.s.generate(&mut decoder, &generate)?;
            self.head = decoder.into_head();
        }
        Ok(rounds)
    }

    /// Forks of the current state in shared passes of one row each, waiting for top logits as the engine does.
    pub(super) fn sequences(&mut self) -> anyhow::Result<Value> {
        let counts = &self.args.sequences;
        let mut others = Vec::new();
        for _ in 1..counts.iter().copied().max().unwrap_or(1) {
            others.push(self.s.live.another(self.s.b, &self.s.model).context("making a sequence")?);
        }
        let (mut out, mut one) = (Vec::new(), None);
        for n in counts.iter().copied() {
            let forks = others.get_mut(..n - 1).context("more sequences than were made")?;
            self.s.back(&self.frontier)?;
            for fork in forks.iter_mut() {
                self.s.live.copy_to(self.s.b, fork).context("forking")?;
            }
            let vocab = self.s.model.spec().vocab as Token;
            let mut tokens: Vec<Token> = (0..n as Token).map(|i| (17 + 31 * i) % vocab).collect();
            let times = self.times(self.decode, |bench| {
                let best = bench.pass(forks, &tokens)?.into_iter().map(|row| row.ids.first().copied());
                tokens = best.collect::<Option<_>>().context("no top logits")?;
                Ok(())
            })?;
            let tokens_per_s = 1e3 * (n * times.len()) as f64 / times.iter().sum::<f64>();
            let over_one = tokens_per_s / *one.get_or_insert(tokens_per_s / n as f64);
            let ms = median(times);
            out.push(json!({"sequences": n, "tokens_per_s": tokens_per_s, "over_one": over_one, "ms": ms}));
        }
        for other in others {
            Live::release(self.s.b, other);
        }
        Ok(json!({"sequences": out}))
    }

    fn pass(&mut self, others: &mut [Sequence<B>], tokens: &[Token]) -> anyhow::Result<Vec<TopLogits>> {
        let (b, live) = (&mut *self.s.b, &mut self.s.live);
        let mut rows = tokens.chunks(1);
        let own = rows.next().context("a pass of no sequence")?;
        let mut rest: Vec<(&mut Sequence<B>, &[Token])> = others.iter_mut().zip(rows).collect();
        live.verify_alongside(b, &self.s.model, own, &mut rest)?;
        let found = live.top_logits(b, tokens.len())?;
        live.advance(b, 1)?;
        for other in others {
            live.swap(b, other)?;
            live.advance(b, 1)?;
            live.swap(b, other)?;
        }
        Ok(found)
    }
}

/// Of the rounds after the first [`UNSETTLED`] tokens.
fn seconds_per_token(rounds: &[Round]) -> f64 {
    let (mut before, mut counted, mut seconds) = (0, 0, 0.0);
    for (tokens, took) in rounds.get(1..).unwrap_or_default() {
        before += tokens.len();
        if before > UNSETTLED {
            (counted, seconds) = (counted + tokens.len(), seconds + took);
        }
    }
    seconds / f64::max(counted as f64, 1.0)
}

/// Bytes of a cached value on a GPU (bf16).
const CACHE_BYTES: f64 = 2.0;

/// Bytes a decode step must move at `context` tokens; `weights` is the part of the weights.
fn step_bytes(spec: &ModelSpec, context: usize, weights: f64) -> f64 {
    let (s, l) = (&spec.sparse, &spec.lightning);
    let row = (s.kv_heads * s.head_dim) as f64 * CACHE_BYTES;
    let chosen = context.min(s.topk * s.block) as f64 * 2.0 * row;
    let keys = (s.level1_rows(context) + s.level2_rows(context)) as f64 * row;
    let state = (2 * 4 * l.heads * l.head_dim * l.head_dim) as f64;
    let count = |mixer: Mixer| spec.mixers.iter().filter(|m| **m == mixer).count() as f64;
    weights + count(Mixer::Sparse) * (chosen + keys) + count(Mixer::Lightning) * state
}
