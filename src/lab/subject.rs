//! A model on one device with one sequence and no engine: for `bench`, `eval`, kernel checks and golden data.

use crate::backend::TopLogits;
use crate::backend::prelude::*;
use crate::core::spec::DenseRule;
use crate::engine::protocol::{CheckpointImage, Precision, StateImage, Token};
use crate::model::score::Watch;
use crate::model::{Checkpoint, Live, Model, Result};

pub struct Subject<'a, B: Backend> {
    pub b: &'a mut B,
    pub model: Model<B>,
    pub live: Live<B>,
    /// Of the weights' products in prefill.
    pub prefill: Precision,
}

impl<'a, B: Backend> Subject<'a, B> {
    pub fn open(b: &'a mut B, checkpoint: &Checkpoint, limit: usize) -> Result<Self> {
        let model = Model::load(b, checkpoint, |_| {})?;
        let live = Live::new(b, &model, limit.next_multiple_of(64), &[])?;
        Ok(Subject { b, model, live, prefill: checkpoint.prefill })
    }

    pub fn reset(&mut self) -> Result<()> {
        self.live.reset(self.b)
    }

    /// Sets the rule for dense rows as it applies to a call over `tokens` tokens.
    pub fn set_dense_rule(&mut self, rule: DenseRule, tokens: usize) {
        let spec = self.live.sparse_spec_mut();
        spec.dense_rule = rule;
        spec.dense_rule = spec.for_call(tokens);
    }

    /// Reads on in passes of at most `chunk` tokens. As in a session, only the last token has logits.
    pub fn read(&mut self, tokens: &[Token], chunk: usize) -> Result<()> {
        let mut parts = tokens.chunks(chunk.min(self.b.prefill_rows())).peekable();
        while let Some(part) = parts.next() {
            match parts.peek() {
                Some(_) => self.live.prefill_state(self.b, &self.model, part)?,
                None => self.live.prefill(self.b, &self.model, part)?,
            }
            self.live.advance(self.b, part.len())?;
        }
        Ok(())
    }

    /// Reads on and passes `each` the logits of the wanted rows, counted from the first of `tokens`.
    pub fn score(
        &mut self,
        tokens: &[Token],
        wanted: &dyn Fn(usize) -> bool,
        each: &mut dyn FnMut(usize, &[f32]),
        watch: Option<&mut Watch<'_, B>>,
    ) -> Result<()> {
        let mut each = |row: usize, logits: &[f32]| {
            each(row, logits);
            Ok(())
        };
        self.live.score(self.b, &self.model, tokens, wanted, &mut each, watch)
    }

    /// A verify pass, of which the first `accept` rows stay.
    pub fn step(&mut self, rows: &[Token], accept: usize) -> Result<Vec<TopLogits>> {
        self.live.verify(self.b, &self.model, rows)?;
        let found = self.live.top_logits(self.b, rows.len())?;
        self.live.advance(self.b, accept)?;
        Ok(found)
    }

    /// All logits `[rows, vocab]` of a verify pass that keeps all its rows.
    pub fn logits(&mut self, rows: &[Token]) -> Result<Vec<f32>> {
        self.live.verify(self.b, &self.model, rows)?;
        let mut logits = self.live.logits(self.b, rows.len())?;
        logits.truncate(rows.len() * self.model.spec().vocab);
        self.live.advance(self.b, rows.len())?;
        Ok(logits)
    }

    pub fn end(&mut self) -> Result<CheckpointImage> {
        self.live.export_end(self.b)
    }

    /// Returns to an earlier position; the caches still have its rows.
    pub fn back(&mut self, end: &CheckpointImage) -> Result<()> {
        self.live.restore(self.b, usize::try_from(end.position).unwrap_or(usize::MAX), &[], Some(end))
    }

    pub fn export(&mut self) -> Result<StateImage> {
        let end = self.end()?;
        let rows = self.live.export_rows(self.b, 0..self.live.position())?;
        Ok(StateImage { rows, end: Some(end) })
    }

    pub fn restore(&mut self, state: &StateImage) -> Result<()> {
        self.live.restore(self.b, 0, std::slice::from_ref(&state.rows), state.end.as_ref())
    }
}
