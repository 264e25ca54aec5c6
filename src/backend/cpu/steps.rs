//! The step: a few numbers, and work that runs at once.

use super::Cpu;
use crate::backend::{Pass, Result, StepKey, Steps};
use crate::protocol::engine::Token;

impl Steps for Cpu {
    fn position(&self) -> usize {
        self.position
    }

    fn seek(&mut self, position: usize) -> Result<()> {
        self.position = position;
        self.pending = 0;
        Ok(())
    }

    fn segment_at(&mut self, _read: usize) {}

    fn set_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn step(&mut self, _key: StepKey, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        body(self)
    }

    fn advance(&mut self, pass: Pass, rows: usize) -> Result<()> {
        self.position += rows;
        self.pending = match pass {
            Pass::Prefill { .. } => 0,
            Pass::Verify { .. } => rows,
        };
        Ok(())
    }

    fn folded(&mut self) {
        self.pending = 0;
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}
