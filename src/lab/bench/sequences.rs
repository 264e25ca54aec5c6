//! Several sequences at once: their common speed, the cost of a fork, and whether each keeps its bits.

use std::time::Instant;

use anyhow::Context as _;
use serde::Serialize;

use super::{Bench, WARM_UP, median};
use crate::backend::draft::DraftOps;
use crate::backend::{MAX_VERIFY_ROWS, TopLogits};
use crate::engine::protocol::{CheckpointImage, Token};
use crate::model::{Live, Sequence};

const COMPARED: usize = 4;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Beside {
    sequences: usize,
    /// Of all sequences together, one row each, waiting for top logits as the engine does.
    pub(super) tokens_per_s: f64,
    over_one: f64,
    ms: f64,
    /// Rows of each sequence when sixteen rows are divided among them, all accepted: the limit for perfect drafts.
    drafted_rows: usize,
    drafted_tokens_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fork_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fork_bytes: Option<u64>,
    /// Top logits of every sequence's first steps equal those of the sequence alone, bit for bit.
    same_bits: bool,
}

impl Beside {
    pub(super) fn line(&self) -> String {
        let fork = match (self.fork_ms, self.fork_bytes) {
            (Some(ms), Some(bytes)) => format!("; a fork {ms:.1} ms, {:.2} GB", bytes as f64 / 1e9),
            _ => String::new(),
        };
        format!(
            "          {:>2} sequences: {:.1} t/s, {:.2} of one, {:.3} ms; {} rows each all right {:.0} t/s; same bits: {}{fork}\n",
            self.sequences,
            self.tokens_per_s,
            self.over_one,
            self.ms,
            self.drafted_rows,
            self.drafted_tokens_per_s,
            self.same_bits
        )
    }
}

impl<B: DraftOps> Bench<'_, B> {
    /// Measures each number of sequences in `counts`. All are forks of the current state, which ends at `end`.
    pub(super) fn sequences(&mut self, counts: &[usize], end: &CheckpointImage) -> anyhow::Result<Vec<Beside>> {
        let most = counts.iter().copied().max().unwrap_or(1);
        let (mut others, mut fork_ms) = (Vec::new(), Vec::new());
        let before = self.b.memory().state;
        for _ in 1..most {
            let begun = Instant::now();
            let mut other = self.live.another(&mut self.b, &self.model).context("making a sequence")?;
            self.live.copy_to(&mut self.b, &mut other).context("forking")?;
            self.b.synchronize()?;
            fork_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            others.push(other);
        }
        let fork_bytes = (most > 1).then(|| (self.b.memory().state - before) / (most as u64 - 1));
        let fork_ms = (most > 1).then(|| median(fork_ms));
        let mut alone = Vec::new();
        for i in 0..most {
            self.back(&mut [], end)?;
            alone.push(self.steps(&mut [], &[self.first(i)])?.into_iter().flatten().collect::<Vec<_>>());
        }
        let mut out: Vec<Beside> = Vec::new();
        for n in counts.iter().copied() {
            let beside = others.get_mut(..n - 1).context("more sequences than were made")?;
            self.back(beside, end)?;
            let firsts: Vec<Token> = (0..n).map(|i| self.first(i)).collect();
            let together = self.steps(beside, &firsts)?;
            let of = |i: usize| together.iter().filter_map(|step| step.get(i)).cloned().collect::<Vec<_>>();
            let same_bits = alone.iter().take(n).enumerate().all(|(i, alone)| of(i) == *alone);
            let (ms, tokens_per_s) = self.timed(beside, 1, self.decode)?;
            let drafted_rows = MAX_VERIFY_ROWS / n;
            self.back(beside, end)?;
            let (_, drafted_tokens_per_s) = self.timed(beside, drafted_rows, (self.decode / 4).max(4))?;
            let one = out.first().map_or(tokens_per_s, |first| first.tokens_per_s / first.sequences as f64);
            out.push(Beside {
                sequences: n,
                tokens_per_s,
                over_one: tokens_per_s / one,
                ms,
                drafted_rows,
                drafted_tokens_per_s,
                fork_ms,
                fork_bytes,
                same_bits,
            });
        }
        self.back(&mut [], end)?;
        for other in others {
            Live::release(&mut self.b, other);
        }
        Ok(out)
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
        let mut beside: Vec<(&mut Sequence<B>, &[Token])> =
            others.iter_mut().zip(rest).map(|(other, rows)| (other, rows.as_slice())).collect();
        self.live.verify_alongside(&mut self.b, &self.model, own, &mut beside)?;
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
        let (mut times, mut all) = (Vec::with_capacity(passes), 0.0);
        for pass in 0..WARM_UP + passes {
            let begun = Instant::now();
            let found = self.pass(others, &tokens)?;
            let seconds = begun.elapsed().as_secs_f64();
            if pass >= WARM_UP {
                times.push(seconds * 1e3);
                all += seconds;
            }
            for (tokens, rows) in tokens.iter_mut().zip(found.chunks_exact(rows)) {
                tokens.clear();
                tokens.extend(rows.iter().filter_map(|row| row.ids.first()));
            }
        }
        Ok((median(times), (passes * n * rows) as f64 / all))
    }
}
