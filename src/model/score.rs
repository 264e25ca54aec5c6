//! Teacher-forced scoring: what the model gives every token of a text that is known beforehand. For evaluation.

use crate::backend::{Backend, HeadRows, Pass};
use crate::protocol::engine::Token;

use super::{Live, Model, Result};

/// log Σ exp of logits.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = logits.iter().fold(f64::NEG_INFINITY, |m, v| m.max(f64::from(*v)));
    most + logits.iter().map(|v| (f64::from(*v) - most).exp()).sum::<f64>().ln()
}

/// Log-probability of one token; minus infinity for a token that is not there.
pub fn log_prob(logits: &[f32], token: Token) -> f64 {
    let logit = usize::try_from(token).ok().and_then(|t| logits.get(t));
    logit.map_or(f64::NEG_INFINITY, |l| f64::from(*l)) - log_sum_exp(logits)
}

impl<B: Backend> Live<B> {
    /// Reads `tokens` at the current position as prompt and hands `each` the logits `[vocab]` behind every row for which
    /// `wanted` says so; rows are counted from the first of `tokens`. Waits for the device at each of them.
    ///
    /// # Errors
    /// As [`Live::prefill`], and what `each` returns.
    pub fn score(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        tokens: &[Token],
        wanted: &dyn Fn(usize) -> bool,
        each: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let (vocab, most) = (model.spec().vocab, b.prefill_rows());
        for (n, chunk) in tokens.chunks(most).enumerate() {
            self.prefill(b, model, chunk)?;
            let pass = Pass::Prefill { rows: chunk.len() };
            for row in (0..chunk.len()).filter(|row| wanted(n * most + row)) {
                model.logits(b, &mut self.work, HeadRows::At(row), pass)?;
                let logits = self.logits(b, 1)?;
                each(n * most + row, logits.get(..vocab).unwrap_or(&logits))?;
            }
            self.advance(b, chunk.len())?;
        }
        Ok(())
    }
}
