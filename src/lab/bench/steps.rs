//! Passes from a frontier in time: single steps, verify passes, several sequences in one pass.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::report::{median, quantiles};
use super::Bench;
use crate::backend::{Backend, TopLogits};
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::protocol::Token;
use crate::model::{Live, Sequence};

const VERIFY_ROWS: [usize; 6] = [1, 2, 4, 6, 8, 16];

impl<B: Backend> Bench<'_, B> {
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
