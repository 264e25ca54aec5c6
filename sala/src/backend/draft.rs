//! The operations that a draft head needs beyond [`Backend`]: one small layer over its own sliding window of keys.
//!
//! The rules of [`Backend`] hold: destination first, nothing allocates or waits inside a step, and no host value
//! changes from step to step: [`DraftOps::draft_seek`] sets tokens and position of the next draft pass outside of the
//! step, in device memory. Row i of a draft pass has position `position + i`.
//!
//! The window is a ring over positions (`slot = position % capacity`). Drafted rows ahead of the accepted text are
//! written at their positions and overwritten when the accepted rows of those positions arrive; a query never looks
//! past its own position, so a stale row is invisible (docs/speculative.md §3.1).
//!
//! Drafts never decide the text, so these operations need not be independent of the number of rows.

use std::ops::Range;

use super::{Backend, BufKind, MAX_VERIFY_ROWS, Pass, Result};
use crate::engine::protocol::{ImageTensor, Token};

/// Limit of accepted rows with auxiliary hidden states that wait for the window.
pub const PENDING_ROWS: usize = MAX_VERIFY_ROWS;

#[derive(Clone, Debug, PartialEq)]
pub struct DraftShape {
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    /// Divides `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// A key at position k is visible from q iff `0 <= q - k < window`.
    pub window: usize,
    /// Angle per position of each rotated pair `(i, i + head_dim/2)`, `[head_dim/2]`. Angles are formed in f64.
    pub inv_freq: Vec<f64>,
}

impl DraftShape {
    /// The window, and room for rows drafted ahead and for a batch of accepted ones.
    pub fn capacity(&self) -> usize {
        self.window + PENDING_ROWS + MAX_VERIFY_ROWS
    }

    pub fn kvq_width(&self) -> usize {
        (2 * self.kv_heads + self.heads) * self.head_dim
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftResidual {
    Stream,
    /// The stream after `hidden_norm` (`norm_before_residual` heads).
    Normed,
}

/// See docs/speculative.md §3.1.
pub trait DraftOps: Backend {
    /// Rotated keys and values `[capacity, kv_heads, head_dim]`.
    type Window: Send;

    fn draft_buf(&mut self, rows: usize, width: usize, kind: BufKind) -> Result<Self::Buf>;
    fn draft_window(&mut self, shape: &DraftShape) -> Result<Self::Window>;
    /// Sets the next draft pass, outside of a step: row i carries `tokens[i]` at `position + i`; keys below `first` do
    /// not exist.
    fn draft_seek(&mut self, tokens: &[Token], position: usize, first: usize) -> Result<()>;
    fn draft_copy(&mut self, dst: &mut Self::Buf, dst_row: usize, src: &Self::Buf, rows: Range<usize>) -> Result<()>;

    /// `g[r] = aux_hidden[r] Wᵀ` `[rows, hidden]`. With `norms`, each of the `norms.len()` equal slots of a row is
    /// RMS-normed first; a single norm covers the whole row.
    fn draft_fuse(
        &mut self,
        g: &mut Self::Buf,
        aux_hidden: &Self::Buf,
        norms: &[Self::Vector],
        eps: f32,
        w: &Self::Matrix,
        pass: Pass,
    ) -> Result<()>;
    /// `x[r] = [rmsnorm(scale · table[token r], input_norm) | rmsnorm(g[r], hidden_norm)]` `[rows, 2·hidden]`; for
    /// [`DraftResidual::Normed`] `g[r]` is replaced by its normed form.
    fn draft_input(
        &mut self,
        x: &mut Self::Buf,
        g: &mut Self::Buf,
        table: &Self::Matrix,
        scale: f32,
        input_norm: &Self::Vector,
        hidden_norm: &Self::Vector,
        eps: f32,
        residual: DraftResidual,
        pass: Pass,
    ) -> Result<()>;
    /// `dst = scale · (x Wᵀ)`. `[rows, out]`
    fn draft_project(
        &mut self,
        dst: &mut Self::Buf,
        x: &Self::Buf,
        w: &Self::Matrix,
        scale: f32,
        pass: Pass,
    ) -> Result<()>;
    /// Rotates the keys of `kvq [rows, k (kv·d) | v (kv·d) | q (heads·d)]` and stores keys and values at the rows' positions.
    fn draft_append(&mut self, window: &mut Self::Window, kvq: &Self::Buf, pass: Pass) -> Result<()>;
    /// Attention of the pass's last query row of `kvq`: rotates it at that row's position and attends to every visible
    /// key, softmax scale `1/sqrt(d)`. `o [1, heads·d]`
    fn draft_attend(&mut self, o: &mut Self::Buf, kvq: &Self::Buf, window: &Self::Window, pass: Pass) -> Result<()>;

    /// Rows of the window as images, `[k, v]`, each `[rows, kv_heads, head_dim]`. At most the ring's capacity.
    fn read_window(&mut self, window: &Self::Window, positions: Range<usize>) -> Result<[ImageTensor; 2]>;
    /// The inverse; accepts f32 and bf16.
    fn write_window(&mut self, window: &mut Self::Window, start: usize, k: &ImageTensor, v: &ImageTensor)
    -> Result<()>;
}
