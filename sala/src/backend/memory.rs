use super::sections::Section;
use super::{BufKind, Form, Result, WeightView, internal};
use crate::core::spec::{LightningSpec, ModelSpec, SparseSpec};
use crate::engine::protocol::{Dtype, MemoryInfo, Precision};

#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    Stack(&'a [WeightView<'a>]),
    /// Gate and up projection of the MLP, for [`Rows::norm_gate_up`](super::Rows::norm_gate_up); the backend may
    /// interleave them.
    GateUp([WeightView<'a>; 2]),
}

fn one<M>(made: Vec<M>) -> Result<M> {
    made.into_iter().next().ok_or_else(|| internal("matrices", "no weight was made"))
}

/// Allocations of a device. Steps never call these methods.
pub trait Memory: Sized + Send + 'static {
    /// Activations `[rows, width]`, allocated once.
    type Buf: Send;
    /// `[out, in]` in this backend's own layout and quantisation.
    type Matrix: Send;
    type Vector: Send;
    /// KV and compressed keys of one sparse layer: k, v `[L, kv, d]`, k1, k2 (docs/model.md §5.3). Grows.
    type Cache: Send;
    /// Recurrent state of one lightning layer `[heads, d, d]` f32, and its pending rows.
    type Recurrent: Send;
    type Selection: Send;
    type Sums: Send;
    fn kind(&self) -> &'static str;
    fn describe(&self) -> String;
    /// Fallbacks in use, one sentence each, for one display. May wait until the GEMM library is open.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    fn cache_dtype(&self) -> Dtype;
    /// A multiple of [`GRID`](super::GRID).
    fn prefill_rows(&self) -> usize;
    /// Refuses a model or a prefill precision that this device cannot compute; runs before the weights are loaded.
    ///
    /// # Errors
    /// The first limit that the model exceeds, with field and value.
    fn check(&mut self, _spec: &ModelSpec, _prefill: Precision) -> Result<()> {
        Ok(())
    }
    fn matrices(&mut self, wanted: &[Wanted<'_>]) -> Result<Vec<Self::Matrix>>;
    fn matrix(&mut self, parts: &[WeightView<'_>]) -> Result<Self::Matrix> {
        one(self.matrices(&[Wanted::Stack(parts)])?)
    }
    fn gate_up_matrix(&mut self, gate: WeightView<'_>, up: WeightView<'_>) -> Result<Self::Matrix> {
        one(self.matrices(&[Wanted::GateUp([gate, up])])?)
    }
    /// Sets the sections of rows that prefill multiplies with; fp8 ([`super::fp8`]) only where [`Memory::check`] has
    /// allowed it. By default one section in bf16.
    fn read_in(&mut self, matrix: &mut Self::Matrix, sections: &[Section]) -> Result<()>;
    fn read_in_fp8(&mut self, matrix: &mut Self::Matrix) -> Result<()> {
        let rows = self.parts(matrix).iter().map(|part| part.0).sum();
        self.read_in(matrix, &[Section { rows, precision: Precision::Fp8 }])
    }
    fn vector(&mut self, view: WeightView<'_>) -> Result<Self::Vector>;
    /// Makes a weight on the device: element (o, i) is [`synthetic_value`](super::synthetic_value) of index `o·inner +
    /// i`. `parts`: rows and form of each part.
    fn random_matrix(&mut self, parts: &[(usize, Form)], inner: usize, std: f32, seed: u64) -> Result<Self::Matrix>;
    /// The same for [`Rows::norm_gate_up`](super::Rows::norm_gate_up): `out` is the width of one of the two; gate rows
    /// have the lower indices.
    fn random_gate_up(&mut self, out: usize, inner: usize, std: f32, seed: u64, form: Form) -> Result<Self::Matrix>;
    fn parts(&self, matrix: &Self::Matrix) -> Vec<(usize, Form, usize)>;
    fn ones(&mut self, n: usize) -> Result<Self::Vector>;
    /// Decides the home (device or host memory) of caches of up to `limit` positions; runs after the weights are
    /// loaded and before the first cache. `requested`: `limit` is the user's setting. [`Memory::notes`] reports a decision
    /// for host memory.
    ///
    /// # Errors
    /// Neither memory suffices; the message names a limit that fits.
    fn plan_context(&mut self, _spec: &ModelSpec, _limit: usize, _requested: bool) -> Result<()> {
        Ok(())
    }
    /// Moves keys and values of all sequences (each with all its layers) to host memory, and plans later contexts of
    /// up to `limit` positions there. Runs between passes; waits for rows in flight. Returns a line about the new
    /// plan; `None` if they are there already or the device cannot read host memory.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`](super::BackendError::Unsupported): impossible, and nothing changed. Any other:
    /// the device is lost.
    fn page_out(
        &mut self,
        _spec: &ModelSpec,
        _limit: usize,
        _sequences: &mut [Vec<&mut Self::Cache>],
    ) -> Result<Option<String>> {
        Ok(None)
    }
    fn buf(&mut self, width: usize, kind: BufKind) -> Result<Self::Buf>;
    /// Buffers in groups that are in use one after the other and may share memory: writing one group destroys the
    /// others.
    fn alternating_bufs(&mut self, groups: &[&[(usize, BufKind)]]) -> Result<Vec<Vec<Self::Buf>>> {
        let mut group =
            |group: &&[(usize, BufKind)]| group.iter().map(|(width, kind)| self.buf(*width, *kind)).collect();
        groups.iter().map(&mut group).collect()
    }
    /// Empty caches that can grow to `limit` positions, for `layers` layers of one sequence. They may share memory;
    /// then they grow together, and the first represents all.
    fn caches(&mut self, spec: &SparseSpec, limit: usize, layers: usize) -> Result<Vec<Self::Cache>>;
    fn cache(&mut self, spec: &SparseSpec, limit: usize) -> Result<Self::Cache> {
        let made = self.caches(spec, limit, 1)?.pop();
        made.ok_or_else(|| internal("cache", "no cache was made"))
    }
    fn recurrent(&mut self, spec: &LightningSpec) -> Result<Self::Recurrent>;
    fn selection(&mut self, spec: &SparseSpec, limit: usize) -> Result<Self::Selection>;
    fn sums(&mut self, sel: &Self::Selection) -> Result<Self::Sums>;
    /// Grows a cache, and those that share its memory, so that positions below `limit` can be written. Runs outside of
    /// steps.
    fn reserve(&mut self, cache: &mut Self::Cache, limit: usize) -> Result<()>;
    /// Bytes that [`Memory::reserve`] of `limit` positions would allocate after
    /// [`Images::own_rows`](super::Images::own_rows) of `keep`, which replaces shared memory.
    fn wants_anew(&self, cache: &Self::Cache, keep: usize, limit: usize) -> u64;
    /// Bytes still available to caches and states; `None` if unknown.
    fn room(&self) -> Result<Option<u64>>;
    /// Estimated seconds that a prefill pass after `positions` tokens waits for their rows, however short it is: 0
    /// where keys and values are on the device.
    fn row_seconds(&self, _positions: usize) -> f64 {
        0.0
    }
    fn memory(&self) -> MemoryInfo;
}
