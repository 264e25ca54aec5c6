//! Operations on rows, from the embedding to the best logits.

use std::ops::Range;

use super::{HeadRows, Memory, Pass, Result, TopLogits};

/// What every row goes through on its own: embedding, norms, GEMMs, gates, the head.
///
/// Layout of the fused projection `x` written by [`Rows::norm_linear`], columns in this order:
/// sparse layers `[q (heads·d) | k (kv·d) | v (kv·d) | gate (heads·d, if any)]`,
/// lightning layers `[q (heads·d) | k (kv·d) | v (kv·d) | z (heads·d, if any)]`.
pub trait Rows: Memory {
    /// `h[r] = scale · table[token r]`. `[rows, hidden]`
    fn embed(&mut self, h: &mut Self::Buf, table: &Self::Matrix, scale: f32, pass: Pass) -> Result<()>;
    /// `dst = rmsnorm(h, norm) Wᵀ` `[rows, out]` (docs/model.md §3).
    fn norm_linear(
        &mut self,
        dst: &mut Self::Buf,
        h: &Self::Buf,
        norm: &Self::Vector,
        eps: f32,
        w: &Self::Matrix,
        pass: Pass,
    ) -> Result<()>;
    /// `dst = silu(x Wgᵀ) ∘ (x Wuᵀ)`, `x = rmsnorm(h, norm)`. `[rows, intermediate]`
    fn norm_gate_up(
        &mut self,
        dst: &mut Self::Buf,
        h: &Self::Buf,
        norm: &Self::Vector,
        eps: f32,
        w: &Self::Matrix,
        pass: Pass,
    ) -> Result<()>;
    /// `h += scale · (x Wᵀ)`. `[rows, hidden]`
    fn linear_add(&mut self, h: &mut Self::Buf, x: &Self::Buf, w: &Self::Matrix, scale: f32, pass: Pass) -> Result<()>;
    /// `h += scale · ((norm(o) ∘ sigmoid(gate)) Wᵀ)`; norm over all lanes of a row, absent for sparse layers; the gate is
    /// columns `gate` of `x`, absent where empty.
    #[allow(clippy::too_many_arguments)]
    fn gate_output(
        &mut self,
        h: &mut Self::Buf,
        o: &Self::Buf,
        norm: Option<&Self::Vector>,
        eps: f32,
        x: &Self::Buf,
        gate: Range<usize>,
        w: &Self::Matrix,
        scale: f32,
        pass: Pass,
    ) -> Result<()>;
    /// Copies `h` into columns `[slot·hidden, (slot+1)·hidden)` of `aux_hidden`: the residual streams a draft head reads.
    fn keep_aux_hidden(&mut self, aux_hidden: &mut Self::Buf, slot: usize, h: &Self::Buf, pass: Pass) -> Result<()>;
    /// `logits = (rmsnorm(h, norm) / divisor) Wᵀ`. `[rows or 1, vocab]`
    #[allow(clippy::too_many_arguments)]
    fn head(
        &mut self,
        logits: &mut Self::Buf,
        h: &Self::Buf,
        norm: &Self::Vector,
        eps: f32,
        divisor: f32,
        w: &Self::Matrix,
        rows: HeadRows,
        pass: Pass,
    ) -> Result<()>;
    /// Finds each row's top logits on the device. Read them with [`Rows::read_top_logits`].
    fn top_logits(&mut self, logits: &Self::Buf, vocab: usize, rows: HeadRows, pass: Pass) -> Result<()>;
    /// What [`Rows::top_logits`] found, for the first `rows` rows. Waits for the device.
    fn read_top_logits(&mut self, rows: usize) -> Result<Vec<TopLogits>>;
}
