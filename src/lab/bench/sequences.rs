//! Several sequences at once: their common speed, the cost of a fork, and whether each keeps its bits.

use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::report::{median, ms};
use super::{Bench, WARM_UP, fields};
use crate::backend::draft::DraftOps;
use crate::backend::{MAX_VERIFY_ROWS, TopLogits};
use crate::engine::protocol::{CheckpointImage, Token};
use crate::model::{Live, Sequence};

const COMPARED: usize = 4;

impl<B: DraftOps> Bench<'_, B> {
    /// Measures each wanted number of sequences. All are forks of the current state, which ends at `end`. `same_bits` is
    /// true if the top logits of every sequence's first steps equal those of the sequence alone, bit for bit.
    pub(super) fn sequences(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        let counts = &self.args.sequences;
        let most = counts.iter().copied().max().unwrap_or(1);
        let (mut others, mut fork_ms) = (Vec::new(), Vec::new());
        let before = self.b.memory().state;
        for _ in 1..most {
            let begun = Instant::now();
            let mut other = self.live.another(&mut self.b, &self.model).context("making a sequence")?;
            self.live.copy_to(&mut self.b, &mut other).context("forking")?;
            self.b.synchronize()?;
            fork_ms.push(ms(begun));
            others.push(other);
        }
        let fork_bytes = (most > 1).then(|| (self.b.memory().state - before) / (most as u64 - 1));
        let fork_ms = (most > 1).then(|| median(fork_ms));
        let mut alone = Vec::new();
        for i in 0..most {
            self.back(&mut [], end)?;
            alone.push(self.steps(&mut [], &[self.first(i)])?.into_iter().flatten().collect::<Vec<_>>());
        }
        let (mut out, mut one) = (Vec::new(), None);
        for n in counts.iter().copied() {
            let forks = others.get_mut(..n - 1).context("more sequences than were made")?;
            self.back(forks, end)?;
            let firsts: Vec<Token> = (0..n).map(|i| self.first(i)).collect();
            let together = self.steps(forks, &firsts)?;
            let of = |i: usize| together.iter().filter_map(|step| step.get(i)).cloned().collect::<Vec<_>>();
            let same_bits = alone.iter().take(n).enumerate().all(|(i, alone)| of(i) == *alone);
            // One row each, waiting for top logits as the engine does.
            let (ms, tokens_per_s) = self.timed(forks, 1, self.decode)?;
            // Sixteen rows divided among the sequences, all accepted: the limit for perfect drafts.
            let drafted_rows = MAX_VERIFY_ROWS / n;
            self.back(forks, end)?;
            let (_, drafted_tokens_per_s) = self.timed(forks, drafted_rows, (self.decode / 4).max(4))?;
            let over_one = tokens_per_s / *one.get_or_insert(tokens_per_s / n as f64);
            let mut row = fields(json!({
                "sequences": n, "tokens_per_s": tokens_per_s, "over_one": over_one, "ms": ms,
                "drafted_rows": drafted_rows, "drafted_tokens_per_s": drafted_tokens_per_s, "same_bits": same_bits,
            }));
            if let Some((ms, bytes)) = fork_ms.zip(fork_bytes) {
                row.extend([("fork_ms".into(), ms.into()), ("fork_bytes".into(), bytes.into())]);
            }
            out.push(row);
        }
        self.back(&mut [], end)?;
        for other in others {
            Live::release(&mut self.b, other);
        }
        Ok(json!({"sequences": out}))
    }

    fn first(&self, i: usize) -> Token {
        (17 + 31 * i as Token) % self.model.spec().vocab as Token
    }

    fn back(&mut self, others: &mut [Sequence<B>], end: &CheckpointImage) -> anyhow::Result<()> {
        self.live.restore(&mut self.b, end.position as usize, &[], Some(end))?;
        for other in others {
            self.live.copy_to(&mut self.b, other)?;
        }
        Ok(())
    }

    /// Greedy steps from one token each; returns top logits of each step and sequence.
    fn steps(&mut self, others: &mut [Sequence<B>], firsts: &[Token]) -> anyhow::Result<Vec<Vec<TopLogits>>> {
        let mut tokens: Vec<Vec<Token>> = firsts.iter().map(|t| vec![*t]).collect();
        let mut out = Vec::with_capacity(COMPARED);
        for _ in 0..COMPARED {
            let found = self.pass(others, &tokens)?;
            let best = found.iter().map(|row| row.ids.first().copied().map(|t| vec![t]));
            tokens = best.collect::<Option<_>>().context("no top logits")?;
            out.push(found);
        }
        Ok(out)
    }

    fn pass(&mut self, others: &mut [Sequence<B>], tokens: &[Vec<Token>]) -> anyhow::Result<Vec<TopLogits>> {
        let (own, rest) = tokens.split_first().context("a pass of no sequence")?;
        let mut rest_rows: Vec<(&mut Sequence<B>, &[Token])> =
            others.iter_mut().zip(rest).map(|(other, rows)| (other, rows.as_slice())).collect();
        self.live.verify_alongside(&mut self.b, &self.model, own, &mut rest_rows)?;
        let found = self.live.top_logits(&mut self.b, tokens.iter().map(Vec::len).sum())?;
        self.live.advance(&mut self.b, own.len())?;
        for (other, rows) in others.iter_mut().zip(rest) {
            self.live.swap(&mut self.b, other)?;
            self.live.advance(&mut self.b, rows.len())?;
            self.live.swap(&mut self.b, other)?;
        }
        Ok(found)
    }

    /// Median milliseconds of a pass with `rows` rows of each sequence, and tokens per second of all.
    fn timed(&mut self, others: &mut [Sequence<B>], rows: usize, passes: usize) -> anyhow::Result<(f64, f64)> {
        let n = others.len() + 1;
        let mut tokens: Vec<Vec<Token>> = (0..n).map(|i| vec![self.first(i); rows]).collect();
        let times = self.times(WARM_UP, passes, |bench| {
            let found = bench.pass(others, &tokens)?;
            for (tokens, rows) in tokens.iter_mut().zip(found.chunks_exact(rows)) {
                tokens.clear();
                tokens.extend(rows.iter().filter_map(|row| row.ids.first()));
            }
            Ok(())
        })?;
        let all: f64 = times.iter().sum();
        Ok((median(times), (passes * n * rows) as f64 / all * 1e3))
    }
}
