//! Passes from a frontier in time: single steps, the cost of attention mass, verify passes and rounds of a draft head.

use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::report::{median, quantiles};
use super::work::step_bytes;
use super::{Bench, WARM_UP};
use crate::backend::MassOf;
use crate::backend::draft::DraftOps;
use crate::backend::room::PoolCounts;
use crate::engine::protocol::{CheckpointImage, Token};
use crate::model::draft::Tables;

const VERIFY_ROWS: [usize; 6] = [1, 2, 4, 6, 8, 16];
const ROUND_DRAFTS: usize = 5;
/// Tokens that a round of [`ROUND_DRAFTS`] drafts is assumed to gain, a typical acceptance on open text. The measured
/// time of a round does not depend on it.
const ROUND_TOKENS: f64 = 3.2;

impl<B: DraftOps> Bench<'_, B> {
    fn step(&mut self, token: Token) -> anyhow::Result<()> {
        self.live.verify(&mut self.b, &self.model, &[token])?;
        Ok(self.live.advance(&mut self.b, 1)?)
    }

    pub(super) fn decode(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        let (decode, mut token) = (self.decode, self.token());
        let first = self.b.pool_counts()?;
        let times = self.times(WARM_UP, decode, |bench| {
            bench.live.verify(&mut bench.b, &bench.model, &[token])?;
            let found = bench.live.top_logits(&mut bench.b, 1)?;
            token = found.first().and_then(|c| c.ids.first()).copied().context("no top logits")?;
            Ok(bench.live.advance(&mut bench.b, 1)?)
        })?;
        let second = self.b.pool_counts()?;
        let start = Instant::now();
        for _ in 0..decode {
            self.step(token)?;
        }
        self.b.synchronize()?;
        let device_ms = start.elapsed().as_secs_f64() * 1e3 / decode as f64;
        let pool = match (first, second, self.b.pool_counts()?) {
            (Some(first), Some(second), Some(last)) => {
                Some(self.pool(second.since(first), last.since(second), device_ms)?)
            }
            _ => None,
        };
        let tokens_per_s = 1e3 * decode as f64 / times.iter().sum::<f64>();
        let weights = self.model.read_bytes(&self.b) as f64;
        // Least traffic of a step.
        let bytes = step_bytes(self.model.spec(), end.position as usize, weights);
        let gb_per_s = bytes * tokens_per_s / 1e9;
        let [p50_ms, p99_ms] = quantiles(times, [0.5, 0.99]);
        Ok(json!({
            "bytes_per_token": bytes, "decode_tokens_per_s": tokens_per_s, "decode_gb_per_s": gb_per_s,
            "read_bandwidth_share": self.read_gb_per_s.map(|read| gb_per_s / read), "p50_ms": p50_ms, "p99_ms": p99_ms,
            "device_ms": device_ms, "pool": pool,
        }))
    }

    /// The pool of blocks: what the waiting `steps` found there, and the `same` step repeated in `device_ms`; then steps
    /// with an empty pool.
    fn pool(&mut self, steps: PoolCounts, same: PoolCounts, device_ms: f64) -> anyhow::Result<Value> {
        let before = self.b.pool_counts()?.unwrap_or_default();
        let (token, mut cold) = (self.token(), 0.0);
        for step in 0..self.decode + WARM_UP {
            self.live.forget_blocks(&mut self.b)?;
            self.b.synchronize()?;
            let start = Instant::now();
            self.live.verify(&mut self.b, &self.model, &[token])?;
            self.b.synchronize()?;
            cold += if step < WARM_UP { 0.0 } else { start.elapsed().as_secs_f64() * 1e3 };
            self.live.advance(&mut self.b, 1)?;
        }
        let all = self.b.pool_counts()?.unwrap_or_default().since(before);
        let (counted, warmed) = (self.decode as f64, (self.decode + WARM_UP) as f64);
        let (cold_ms, cold_bytes, same_bytes) =
            (cold / counted, all.bytes as f64 / warmed, same.bytes as f64 / counted);
        let ms_per_byte = (cold_ms - device_ms) / (cold_bytes - same_bytes).max(1.0);
        Ok(json!({
            "hit_rate": steps.hit_rate(), "bytes_per_token": steps.bytes as f64 / warmed,
            "same_bytes_per_token": same_bytes, "cold_ms": cold_ms, "cold_bytes_per_token": cold_bytes,
            "ms_at_80": device_ms + ms_per_byte * (0.2 * cold_bytes - same_bytes),
        }))
    }

    /// The cost of measuring attention mass: steps without waiting, with mass off, summed, and read back for each token
    /// as a chat does; the minimum of several runs. The three take turns, so a drifting clock affects all alike.
    pub(super) fn look_cost(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        const ROUNDS: usize = 3;
        let token = self.token();
        let mut least = [f64::INFINITY; 3];
        for _ in 0..ROUNDS {
            for (kind, least) in least.iter_mut().enumerate() {
                let mut start = Instant::now();
                for step in 0..self.decode + WARM_UP {
                    if step == WARM_UP {
                        self.b.synchronize()?;
                        start = Instant::now();
                    }
                    self.live.verify(&mut self.b, &self.model, &[token])?;
                    if kind > 0 {
                        self.live.add_mass(&mut self.b, 0..1, MassOf::Answer)?;
                    }
                    if kind > 1 {
                        std::hint::black_box(self.live.row_mass(&mut self.b, 1)?);
                    }
                    self.live.advance(&mut self.b, 1)?;
                }
                self.b.synchronize()?;
                *least = least.min(start.elapsed().as_secs_f64() * 1e3 / self.decode as f64);
                self.live.restore(&mut self.b, end.position as usize, &[], Some(end))?;
            }
        }
        let [off, summed, read_back] = least;
        Ok(json!({"look": {
            "off_ms": off, "summed_ms": summed, "told_ms": read_back, "summed_share": summed / off - 1.0,
            "told_share": read_back / off - 1.0,
        }}))
    }

    /// `all_right_tokens_per_s` is with every draft accepted: the limit for an n-gram draft.
    pub(super) fn verify_passes(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        let mut out = Vec::new();
        let mut one = None;
        for rows in VERIFY_ROWS {
            let (ms, all_ms) = (self.verify(rows, rows.div_ceil(2))?, self.verify(rows, rows)?);
            let over_one = ms / *one.get_or_insert(ms);
            let rate = rows as f64 / all_ms * 1e3;
            out.push(json!({"rows": rows, "ms": ms, "over_one": over_one, "all_right_tokens_per_s": rate}));
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

    /// Drafting [`ROUND_DRAFTS`] tokens and verifying them, over a single step.
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
        Ok(json!({
            "draft_round_ms": ms, "draft_round_over_step": ms / step_ms,
            "draft_round_tokens_per_s": ROUND_TOKENS / ms * 1e3,
        }))
    }
}
