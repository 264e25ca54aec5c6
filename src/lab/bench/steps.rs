//! Passes from a frontier in time: single steps, verify passes, rounds of a draft head, several sequences in one pass.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::report::{median, quantiles};
use super::{Bench, WARM_UP};
use crate::backend::TopLogits;
use crate::backend::draft::DraftOps;
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::protocol::{CheckpointImage, Token};
use crate::model::draft::Tables;
use crate::model::{Live, Sequence};

const VERIFY_ROWS: [usize; 6] = [1, 2, 4, 6, 8, 16];
const ROUND_DRAFTS: usize = 5;

impl<B: DraftOps> Bench<'_, B> {
    pub(super) fn decode(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        let (decode, mut token) = (self.decode, 17 % self.model.spec().vocab as Token);
        let times = self.times(WARM_UP, decode, |bench| {
            bench.live.verify(&mut bench.b, &bench.model, &[token])?;
            let found = bench.live.top_logits(&mut bench.b, 1)?;
            token = found.first().and_then(|c| c.ids.first()).copied().context("no top logits")?;
            Ok(bench.live.advance(&mut bench.b, 1)?)
        })?;
        let tokens_per_s = 1e3 * decode as f64 / times.iter().sum::<f64>();
        let weights = self.model.read_bytes(&self.b) as f64;
        let bytes = step_bytes(self.model.spec(), end.position as usize, weights);
        let gb_per_s = bytes * tokens_per_s / 1e9;
        let [p50_ms, p99_ms] = quantiles(times, [0.5, 0.99]);
        Ok(json!({
            "bytes_per_token": bytes, "decode_tokens_per_s": tokens_per_s, "decode_gb_per_s": gb_per_s,
            "read_bandwidth_share": self.read_gb_per_s.map(|read| gb_per_s / read), "p50_ms": p50_ms, "p99_ms": p99_ms,
        }))
    }

    /// Half of the rows are accepted.
    pub(super) fn verify_passes(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        let (mut out, mut one) = (Vec::new(), None);
        for rows in VERIFY_ROWS {
            let ms = self.verify(rows, rows.div_ceil(2))?;
            out.push(json!({"rows": rows, "ms": ms, "over_one": ms / *one.get_or_insert(ms)}));
            self.live.restore(&mut self.b, end.position as usize, &[], Some(end))?;
        }
        Ok(json!({"verify": out}))
    }

    /// Median milliseconds of a verify pass of `rows` rows, `accept` of them accepted.
    fn verify(&mut self, rows: usize, accept: usize) -> anyhow::Result<f64> {
        let tokens: Vec<Token> = self.history.iter().copied().take(rows).collect();
        let times = self.times(WARM_UP, (self.decode / 4).max(4), |bench| {
            bench.live.verify(&mut bench.b, &bench.model, &tokens)?;
            bench.live.top_logits(&mut bench.b, rows)?;
            Ok(bench.live.advance(&mut bench.b, accept)?)
        })?;
        Ok(median(times))
    }

    pub(super) fn draft_round(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        let step_ms = self.verify(1, 1)?;
        self.live.restore(&mut self.b, end.position as usize, &[], Some(end))?;
        let Some(mut head) = self.head.take() else { return Ok(json!({})) };
        head.reset(self.live.position());
        let rows = ROUND_DRAFTS + 1;
        let tokens: Vec<Token> = self.history.iter().copied().take(rows).collect();
        let mut first = true;
        let times = self.times(2 * WARM_UP, (self.decode / 4).max(4), |bench| {
            let (at, tables) = (bench.live.position(), Tables::from(&bench.model));
            // The first round fills the draft head's window from the model's own residual streams.
            if !std::mem::take(&mut first) {
                let history = bench.history.get(..at + 1).context("history too short")?;
                let found = head.extend(&mut bench.b, &tables, history)?;
                let mut token = found.ids.first().copied().unwrap_or(0);
                for _ in 1..ROUND_DRAFTS {
                    token = head.step(&mut bench.b, &tables, token)?.ids.first().copied().unwrap_or(0);
                }
            }
            bench.live.verify(&mut bench.b, &bench.model, &tokens)?;
            bench.live.top_logits(&mut bench.b, rows)?;
            bench.live.advance(&mut bench.b, 3)?;
            if let Some(aux_hidden) = bench.live.aux_hidden() {
                let history = bench.history.get(..at + 4).context("history too short")?;
                head.keep(&mut bench.b, &tables, aux_hidden, 0..3, at, history)?;
            }
            Ok(bench.b.synchronize()?)
        });
        self.head = Some(head);
        let ms = median(times?);
        Ok(json!({"draft_round_ms": ms, "draft_round_over_step": ms / step_ms}))
    }

    /// Forks of the current state in shared passes of one row each, waiting for top logits as the engine does.
    pub(super) fn sequences(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        let counts = &self.args.sequences;
        let mut others = Vec::new();
        for _ in 1..counts.iter().copied().max().unwrap_or(1) {
            others.push(self.live.another(&mut self.b, &self.model).context("making a sequence")?);
        }
        let (mut out, mut one) = (Vec::new(), None);
        for n in counts.iter().copied() {
            let forks = others.get_mut(..n - 1).context("more sequences than were made")?;
            self.live.restore(&mut self.b, end.position as usize, &[], Some(end))?;
            for fork in forks.iter_mut() {
                self.live.copy_to(&mut self.b, fork).context("forking")?;
            }
            let vocab = self.model.spec().vocab as Token;
            let mut tokens: Vec<Token> = (0..n as Token).map(|i| (17 + 31 * i) % vocab).collect();
            let times = self.times(WARM_UP, self.decode, |bench| {
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
            Live::release(&mut self.b, other);
        }
        Ok(json!({"sequences": out}))
    }

    fn pass(&mut self, others: &mut [Sequence<B>], tokens: &[Token]) -> anyhow::Result<Vec<TopLogits>> {
        let mut rows = tokens.chunks(1);
        let own = rows.next().context("a pass of no sequence")?;
        let mut rest: Vec<(&mut Sequence<B>, &[Token])> = others.iter_mut().zip(rows).collect();
        self.live.verify_alongside(&mut self.b, &self.model, own, &mut rest)?;
        let found = self.live.top_logits(&mut self.b, tokens.len())?;
        self.live.advance(&mut self.b, 1)?;
        for other in others {
            self.live.swap(&mut self.b, other)?;
            self.live.advance(&mut self.b, 1)?;
            self.live.swap(&mut self.b, other)?;
        }
        Ok(found)
    }
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
