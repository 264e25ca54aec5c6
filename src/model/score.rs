//! Teacher-forced scoring: what the model gives every token of a text that is known beforehand. For evaluation.

use crate::backend::{Backend, HeadRows, Pass};
use crate::protocol::engine::Token;

use super::{Live, Model, Result};

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
                model.logits(b, self, HeadRows::At(row), pass)?;
                let logits = self.logits(b, 1)?;
                each(n * most + row, logits.get(..vocab).unwrap_or(&logits))?;
            }
            self.advance(b, chunk.len())?;
        }
        Ok(())
    }
}
