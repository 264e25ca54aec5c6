//! Operations on rows, from the embedding to the top logits.

use std::ops::Range;

use super::{HeadRows, Memory, Pass, Result, TopLogits};

#[derive(Clone, Debug)]
pub enum NextOp<'a, V> {
    /// [`Rows::norm_linear`], [`Rows::norm_gate_up`] or [`Rows::head`] with this norm, after [`Rows::embed`], [`Rows::linear_add`] or [`Rows::gate_output`].
    Norm(&'a V),
    /// [`Rows::gate_output`] with this norm and these columns of the projection, after a mixer.
    Gate {
        norm: Option<&'a V>,
        /// Empty where there is no gate.
        columns: Range<usize>,
    },
}

#[derive(Debug)]
pub struct Mlp<'a, M, V> {
    pub norm: &'a V,
    pub eps: f32,
    pub gate_up: &'a M,
    pub down: &'a M,
    pub scale: f32,
}

/// Operations on single rows: embedding, norms, GEMMs, gates, the head.
///
/// Layout of the fused projection `x` written by [`Rows::norm_linear`], columns in this order: sparse layers `[q
/// (heads·d) | k (kv·d) | v (kv·d) | gate (heads·d, if any)]`, lightning layers `[q (heads·d) | k (kv·d) | v (kv·d) |
/// z (heads·d, if any)]`.
pub trait Rows: Memory {
    /// Announces the reader of the next operation's rows: a backend may prepare them on the way. A hint for verify
    /// passes: no value depends on it.
    fn hint_next_op(&mut self, _op: NextOp<'_, Self::Vector>) {}
    /// `h[r] = scale · table[token r]`. `[rows, hidden]`
    fn embed(&mut self, h: &mut Self::Buf, table: &Self::Matrix, scale: f32, pass: Pass) -> Result<()>;
    /// `dst = rmsnorm(h, norm) Wᵀ` `[rows, out]` (docs/model.md §3). A prefill pass may compute only the columns `only`,
    /// whole sections of the weight.
    fn norm_linear(
        &mut self,
        dst: &mut Self::Buf,
        h: &Self::Buf,
        norm: &Self::Vector,
        eps: f32,
        w: &Self::Matrix,
        only: Option<Range<usize>>,
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
    /// [`Rows::norm_gate_up`] into `mid` and [`Rows::linear_add`] from there, with the same bits. The content of `mid`
    /// is undefined afterwards.
    fn mlp(
        &mut self,
        h: &mut Self::Buf,
        mid: &mut Self::Buf,
        mlp: &Mlp<'_, Self::Matrix, Self::Vector>,
        pass: Pass,
    ) -> Result<()> {
        self.norm_gate_up(mid, h, mlp.norm, mlp.eps, mlp.gate_up, pass)?;
        self.linear_add(h, mid, mlp.down, mlp.scale, pass)
    }
    /// `h += scale · ((norm(o) ∘ sigmoid(gate)) Wᵀ)`; norm over all lanes of a row, absent for sparse layers; the gate is
    /// columns `gate` of `x`, absent where empty.
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
    /// Copies `h`, a residual stream that a draft head reads, into columns `[slot·hidden, (slot+1)·hidden)` of
    /// `aux_hidden`.
    fn keep_aux_hidden(&mut self, aux_hidden: &mut Self::Buf, slot: usize, h: &Self::Buf, pass: Pass) -> Result<()>;
    /// `logits = (rmsnorm(h, norm) / divisor) Wᵀ`. `[rows or 1, vocab]`
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
    /// Read them with [`Rows::read_top_logits`].
    fn top_logits(&mut self, logits: &Self::Buf, vocab: usize, rows: HeadRows, pass: Pass) -> Result<()>;
    /// The results of [`Rows::top_logits`] for the first `rows` rows. Waits for the device.
    fn read_top_logits(&mut self, rows: usize) -> Result<Vec<TopLogits>>;
}
