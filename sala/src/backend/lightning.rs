use super::{Memory, Pass, Result};
use crate::core::spec::LightningSpec;

/// Operations of docs/model.md §4.
pub trait Lightning: Memory {
    /// Registers states of a layer, like [`Sparse::bind_caches`](super::Sparse::bind_caches).
    fn bind_states(&mut self, _layer: usize, _states: &mut [&mut Self::Recurrent]) -> Result<()> {
        Ok(())
    }
    /// Lightning attention up to and including the read of the state: qk-norm, RoPE, recurrence (docs/model.md §4,
    /// steps 2-5). `q_norm`, `k_norm` are `None` where the spec has no qk-norm. `o [rows, heads·d]`. One state per
    /// group of the pass.
    fn lightning(
        &mut self,
        o: &mut Self::Buf,
        x: &Self::Buf,
        q_norm: Option<&Self::Vector>,
        k_norm: Option<&Self::Vector>,
        states: &mut [&mut Self::Recurrent],
        spec: &LightningSpec,
        eps: f32,
        pass: Pass,
    ) -> Result<()>;
    /// Absorbs pending rows, `S ← λ·S + k vᵀ` row by row. A no-op when nothing is pending.
    fn fold(&mut self, state: &mut Self::Recurrent, spec: &LightningSpec) -> Result<()>;
}
