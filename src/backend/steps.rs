//! The step: what changes from pass to pass.

use super::{Memory, Pass, Result, StepKey};
use crate::protocol::engine::Token;

/// Position, tokens and pending rows of the passes, and CUDA graphs of their work.
pub trait Steps: Memory {
    /// Tokens the state has absorbed, pending ones included.
    fn position(&self) -> usize;
    /// Moves to `position` with nothing pending. Used by restore and reset.
    fn seek(&mut self, position: usize) -> Result<()>;
    /// Given tokens of the segment before the coming prefill pass. A device may read a segment's first rows in another way
    /// than the rest; it may go by nothing else, so that state stays a function of the segment path.
    fn segment_at(&mut self, read: usize);
    /// Tokens of the coming pass.
    fn set_tokens(&mut self, tokens: &[Token]) -> Result<()>;
    /// Runs `body`; a GPU runs it eagerly the first time, records it the second, and replays the CUDA graph later.
    fn step(&mut self, key: StepKey, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()>;
    /// Accepts the first `rows` rows of the last pass: position += rows; after a verify pass they become pending in
    /// every lightning layer, after a prefill pass nothing is pending.
    fn advance(&mut self, pass: Pass, rows: usize) -> Result<()>;
    /// Called once after every layer's `fold`.
    fn folded(&mut self);
    /// Waits until the device is done; reports what went wrong on it.
    fn synchronize(&mut self) -> Result<()>;
}
