//! Teacher-forced scoring: the model's probabilities of every token of a known text. For evaluation.

use std::ops::Range;

use crate::backend::{Backend, HeadRows, MAX_VERIFY_ROWS, Pass, Result as BackendResult, internal};
use crate::engine::protocol::{Likely, Token};

use super::forward::{Seen, Wanted};
use super::{Live, Model, Result};

/// Receives the intermediate results of a pass over these rows.
pub type Watch<'a, B> = dyn FnMut(&mut B, Range<usize>, Seen<'_, B>) -> BackendResult<()> + 'a;

pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = logits.iter().fold(f64::NEG_INFINITY, |m, v| m.max(f64::from(*v)));
    most + logits.iter().map(|v| (f64::from(*v) - most).exp()).sum::<f64>().ln()
}

/// Minus infinity for a token outside the vocabulary.
pub fn log_prob(logits: &[f32], token: Token) -> f64 {
    let logit = usize::try_from(token).ok().and_then(|t| logits.get(t));
    logit.map_or(f64::NEG_INFINITY, |l| f64::from(*l)) - log_sum_exp(logits)
}

/// Probability of a token, and the `most` likeliest tokens at its place.
pub fn likely(logits: &[f32], token: Token, most: usize) -> Likely {
    let all = log_sum_exp(logits);
    let log_prob = |logit: f32| (f64::from(logit) - all) as f32;
    let mut best: Vec<(Token, f32)> = Vec::with_capacity(most + 1);
    for (id, logit) in (0..).zip(logits.iter().copied()) {
        // Of equal ones the lowest id is first.
        let at = best.partition_point(|(_, other)| *other >= logit);
        if at < most {
            best.insert(at, (id, logit));
            best.truncate(most);
        }
    }
    let own = usize::try_from(token).ok().and_then(|t| logits.get(t)).copied().unwrap_or(f32::NEG_INFINITY);
    Likely { log_prob: log_prob(own), best: best.into_iter().map(|(id, logit)| (id, log_prob(logit))).collect() }
}

/// Groups ascending rows into runs of neighbours, each at most as long as one pass of the head.
fn runs(rows: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for row in rows {
        match runs.last_mut() {
            Some(run) if run.end == row && run.len() < MAX_VERIFY_ROWS => run.end += 1,
            _ => runs.push(row..row + 1),
        }
    }
    runs
}

impl<B: Backend> Live<B> {
    /// Reads `tokens` at the current position as prompt and passes `each` the logits `[vocab]` of every row selected
    /// by `wanted`; rows are counted from the first of `tokens`. `watch` receives all intermediate results. Waits for
    /// the device at every run of up to 16 rows.
    pub fn score(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        tokens: &[Token],
        wanted: &dyn Fn(usize) -> bool,
        each: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
        mut watch: Option<&mut Watch<'_, B>>,
    ) -> Result<()> {
        let narrow = || internal("score", "a row that is narrower than the vocabulary");
        let (vocab, most) = (model.spec().vocab, b.prefill_rows());
        for (n, chunk) in tokens.chunks(most).enumerate() {
            let rows = n * most..n * most + chunk.len();
            match &mut watch {
                None if rows.clone().any(wanted) => self.prefill(b, model, chunk)?,
                None => self.prefill_state(b, model, chunk)?,
                Some(watch) => {
                    let mut probe = |b: &mut B, what: Seen<'_, B>| watch(b, rows.clone(), what);
                    self.prefill_pass(b, model, chunk, Wanted::Output, Some(&mut probe))?;
                }
            }
            let pass = Pass::Prefill { rows: chunk.len() };
            for part in runs(rows.clone().filter(|row| wanted(*row))) {
                let count = part.len();
                model.logits(b, &mut self.work, HeadRows::Some { first: part.start - rows.start, count }, pass)?;
                let logits = self.logits(b, count)?;
                for (row, logits) in part.zip(logits.chunks_exact(logits.len() / count)) {
                    each(row, logits.get(..vocab).ok_or_else(narrow)?)?;
                }
            }
            self.advance(b, chunk.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_form_runs_that_the_head_takes() {
        assert_eq!(runs([0, 1, 2, 5, 6, 9].into_iter()), [0..3, 5..7, 9..10]);
        assert_eq!(runs(3..37), [3..19, 19..35, 35..37]);
        assert!(runs(0..0).is_empty());
    }

    #[test]
    fn the_likeliest_are_first_and_add_up() {
        let logits = [0.5, 2.0, -1.0, 2.0];
        let found = likely(&logits, 2, 2);
        let ids: Vec<Token> = found.best.iter().map(|b| b.0).collect();
        assert_eq!(ids, [1, 3]);
        assert_eq!(f64::from(found.log_prob), f64::from(log_prob(&logits, 2) as f32));
        let all: f32 = likely(&logits, 0, 9).best.iter().map(|b| b.1.exp()).sum();
        assert!((all - 1.0).abs() < 1e-6);
        assert_eq!(likely(&logits, 0, 0).best, []);
    }
}
