//! Passes from a frontier in time: single steps, the cost of attention mass, verify passes and rounds of a draft head.

use std::time::Instant;

use anyhow::Context as _;

use super::report::{LookCost, Pool, Row};
use super::{Bench, ROUND_DRAFTS, WARM_UP, median};
use crate::backend::MassOf;
use crate::backend::draft::DraftOps;
use crate::backend::room::PoolCounts;
use crate::engine::protocol::{CheckpointImage, Token};
use crate::model::draft::Tables;

impl<B: DraftOps> Bench<'_, B> {
    /// Times steps without waiting, with attention mass off, summed, and read back for each token. The three take
    /// turns, so a drifting clock affects all of them alike.
    pub(super) fn look_cost(&mut self, context: usize, end: &CheckpointImage) -> anyhow::Result<LookCost> {
        const ROUNDS: usize = 3;
        let mut least = [f64::INFINITY; 3];
        for _ in 0..ROUNDS {
            for (kind, least) in least.iter_mut().enumerate() {
                let mut start = Instant::now();
                for step in 0..self.decode + WARM_UP {
                    if step == WARM_UP {
                        self.b.synchronize()?;
                        start = Instant::now();
                    }
                    self.live.verify(&mut self.b, &self.model, &[17 % self.model.spec().vocab as Token])?;
                    if kind > 0 {
                        self.live.add_mass(&mut self.b, 0..1, MassOf::Answer)?;
                    }
                    if kind > 1 {
                        std::hint::black_box(self.live.row_mass(&mut self.b, 1)?);
                    }
                    self.live.advance(&mut self.b, 1)?;
                }
                self.b.synchronize()?;
                *least = least.min(start.elapsed().as_secs_f64() * 1e3 / self.decode.max(1) as f64);
                self.live.restore(&mut self.b, context, &[], Some(end))?;
            }
        }
        let [off_ms, summed_ms, told_ms] = least;
        let share = |ms: f64| ms / off_ms - 1.0;
        Ok(LookCost { off_ms, summed_ms, told_ms, summed_share: share(summed_ms), told_share: share(told_ms) })
    }

    pub(super) fn decode(&mut self, row: &mut Row) -> anyhow::Result<Option<[PoolCounts; 2]>> {
        let first = self.b.pool_counts()?;
        let mut token = 17 % self.model.spec().vocab as Token;
        let mut times = Vec::with_capacity(self.decode);
        for step in 0..self.decode + WARM_UP {
            let start = Instant::now();
            self.live.verify(&mut self.b, &self.model, &[token])?;
            let found = self.live.top_logits(&mut self.b, 1)?;
            token = found.first().and_then(|c| c.ids.first()).copied().context("no top logits")?;
            self.live.advance(&mut self.b, 1)?;
            if step >= WARM_UP {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        let second = self.b.pool_counts()?;
        let start = Instant::now();
        for _ in 0..self.decode {
            self.live.verify(&mut self.b, &self.model, &[token])?;
            self.live.advance(&mut self.b, 1)?;
        }
        self.b.synchronize()?;
        row.device_ms = start.elapsed().as_secs_f64() * 1e3 / self.decode.max(1) as f64;
        let sum: f64 = times.iter().sum();
        let mean = sum / times.len().max(1) as f64;
        row.decode_tokens_per_s = 1e3 / mean;
        times.sort_by(f64::total_cmp);
        let at = |q: f64| {
            times.get(((times.len() as f64 * q) as usize).min(times.len().saturating_sub(1))).copied().unwrap_or(0.0)
        };
        (row.p50_ms, row.p99_ms) = (at(0.5), at(0.99));
        let last = self.b.pool_counts()?;
        Ok(first.zip(second).zip(last).map(|((first, second), last)| [second.since(first), last.since(second)]))
    }

    /// Pool figures: what the steps found there (the second kind took `device_ms` each), and steps with an empty pool.
    pub(super) fn pool(&mut self, found: Option<[PoolCounts; 2]>, device_ms: f64) -> anyhow::Result<Option<Pool>> {
        let (Some([steps, same]), Some(before)) = (found, self.b.pool_counts()?) else { return Ok(None) };
        let mut cold = 0.0;
        for step in 0..self.decode + WARM_UP {
            self.live.forget_blocks(&mut self.b)?;
            self.b.synchronize()?;
            let start = Instant::now();
            self.live.verify(&mut self.b, &self.model, &[17 % self.model.spec().vocab as Token])?;
            self.b.synchronize()?;
            cold += if step < WARM_UP { 0.0 } else { start.elapsed().as_secs_f64() * 1e3 };
            self.live.advance(&mut self.b, 1)?;
        }
        let (cold_ms, all) =
            (cold / self.decode.max(1) as f64, self.b.pool_counts()?.unwrap_or_default().since(before));
        let (n, warmed) = (self.decode.max(1) as f64, (self.decode + WARM_UP).max(1) as f64);
        let cold_bytes_per_token = all.bytes as f64 / warmed;
        let (bytes_per_token, same_bytes_per_token) = (steps.bytes as f64 / warmed, same.bytes as f64 / n);
        let per_byte = (cold_ms - device_ms) / (cold_bytes_per_token - same_bytes_per_token).max(1.0);
        let ms_at_80 = device_ms + per_byte * (0.2 * cold_bytes_per_token - same_bytes_per_token);
        let hit_rate = steps.hit_rate();
        Ok(Some(Pool { hit_rate, bytes_per_token, same_bytes_per_token, cold_ms, cold_bytes_per_token, ms_at_80 }))
    }

    /// Median milliseconds of a verify pass of `rows` rows, `accept` of them accepted.
    pub(super) fn verify(&mut self, rows: usize, accept: usize) -> anyhow::Result<f64> {
        let tokens: Vec<Token> = self.history.iter().copied().take(rows).collect();
        let mut times = Vec::new();
        for step in 0..WARM_UP + (self.decode / 4).max(4) {
            let start = Instant::now();
            self.live.verify(&mut self.b, &self.model, &tokens)?;
            self.live.top_logits(&mut self.b, rows)?;
            self.live.advance(&mut self.b, accept)?;
            if step >= WARM_UP {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok(median(times))
    }

    /// Median milliseconds of drafting [`ROUND_DRAFTS`] tokens and verifying them.
    pub(super) fn draft_round(&mut self) -> anyhow::Result<f64> {
        let tables = Tables::from(&self.model);
        let Some(head) = &mut self.head else {
            return Ok(0.0);
        };
        let rows = ROUND_DRAFTS + 1;
        let mut times = Vec::new();
        head.reset(self.live.position());
        // Fills the draft head's window from the model's own residual streams.
        let tokens: Vec<Token> = self.history.iter().copied().take(rows).collect();
        for step in 0..2 * WARM_UP + (self.decode / 4).max(4) {
            let at = self.live.position();
            let start = Instant::now();
            if step > 0 {
                let history = self.history.get(..at + 1).context("history too short")?;
                let found = head.extend(&mut self.b, &tables, history)?;
                let mut token = found.ids.first().copied().unwrap_or(0);
                for _ in 1..ROUND_DRAFTS {
                    token = head.step(&mut self.b, &tables, token)?.ids.first().copied().unwrap_or(0);
                }
            }
            self.live.verify(&mut self.b, &self.model, &tokens)?;
            self.live.top_logits(&mut self.b, rows)?;
            self.live.advance(&mut self.b, 3)?;
            if let Some(aux_hidden) = self.live.aux_hidden() {
                let history = self.history.get(..at + 4).context("history too short")?;
                head.keep(&mut self.b, &tables, aux_hidden, 0..3, at, history)?;
            }
            if step >= 2 * WARM_UP {
                self.b.synchronize()?;
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok(median(times))
    }
}
