//! One device, seen as the fused operations the model is written in.
//!
//! The forward pass in [`crate::model`] is generic over [`Backend`] and never asks which one it has. `cpu` writes every
//! operation as plain equations in f32 and is the oracle; `cuda` launches kernels. An operation is destination first,
//! allocates nothing, never waits for the device, and takes no host value that changes from step to step: position,
//! row count and pending rows live in the backend's *step* (device memory on a GPU), so a CUDA graph is only a
//! recording of ordinary code.
//!
//! # Two paths
//!
//! [`Pass::Prefill`] reads given tokens in chunks; [`Pass::Verify`] runs 1..=16 generated or drafted rows (plain
//! decode is one row). Each path is bit-for-bit independent of how the work was cut: prefill of the chunk size, as
//! long as chunks start on a multiple of [`GRID`] counted from the segment's start; verify of the number of rows.
//!
//! # Recurrent state
//!
//! Verify reads the committed state and only *remembers* its rows' (k, v); `advance(n)` says that the first n of them
//! are accepted. They are folded in at the start of the next pass or by [`Backend::fold`] (docs/speculative.md §4.3).
//! Refused rows therefore never touch the state, and KV rows beyond the position are dead until overwritten.
//!
//! Every pass is followed by exactly one [`Backend::advance`] before the next pass starts, with `rows = 0` if nothing was
//! accepted: a verify pass has folded what was pending before it and has overwritten it. [`crate::model::Live`] keeps
//! this order. A prefill pass runs with nothing pending (fold first) and is advanced by all of its rows; its first row
//! is the origin of its [`GRID`], so a chunk whose length is no multiple of it ends a segment.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod draft;

use std::ops::Range;
use std::sync::Arc;

use crate::protocol::engine::{Cancel, Dtype, ImageTensor, MemoryInfo, RowsFault, RowsFeed, Token};
use crate::spec::{LightningSpec, SparseSpec};

/// Prefill chunks start on multiples of this, counted from the segment's start. Also the chunk of the lightning form.
pub const GRID: usize = 64;
/// Most rows of a verify pass.
pub const MAX_VERIFY_ROWS: usize = 16;
/// Candidates per row that reach the host for sampling.
pub const CANDIDATES: usize = 256;

/// Which path, and how many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Given tokens. Any number of rows up to [`Backend::prefill_rows`].
    Prefill {
        /// Rows of this chunk.
        rows: usize,
    },
    /// Decode (one row) or verify (up to [`MAX_VERIFY_ROWS`]): row i has position `position + i`.
    Verify {
        /// Rows of this pass.
        rows: usize,
    },
}

impl Pass {
    /// Rows of the pass.
    pub fn rows(self) -> usize {
        match self {
            Pass::Prefill { rows } | Pass::Verify { rows } => rows,
        }
    }
}

/// What a recording is filed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKey {
    /// The target over this many rows; 1 is plain decode.
    Verify(usize),
    /// One recursive draft step.
    Draft,
    /// Extending the draft window by this many verified rows.
    DraftExtend(usize),
}

/// What an activation buffer holds; decides its number type on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufKind {
    /// The residual stream: f32 everywhere.
    Residual,
    /// Inputs of products: f32 on the CPU, bf16 on a GPU.
    Activation,
    /// Mixer outputs before norm and gate: f32 everywhere.
    Wide,
    /// Logits: f32 everywhere, at most [`MAX_VERIFY_ROWS`] rows whatever the pass.
    Logits,
}

/// A weight as it lies in a checkpoint: row-major `[out, in]`, or `[n]` for a norm.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// Slowest axis first.
    pub shape: &'a [usize],
    /// F32 or Bf16 (f16 files are widened to f32 before).
    pub dtype: Dtype,
    /// Little-endian values.
    pub data: &'a [u8],
}

/// The best candidates of one row, by (logit descending, id ascending), at most [`CANDIDATES`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// Token ids.
    pub ids: Vec<Token>,
    /// Their logits.
    pub logits: Vec<f32>,
    /// log Σ exp over the whole vocabulary.
    pub log_sum_exp: f32,
}

/// Rows of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadRows {
    /// Only the last row of the pass.
    Last,
    /// Every row of a verify pass.
    All,
    /// Only this row of the pass. For golden data: never inside a recorded step.
    At(usize),
}

impl HeadRows {
    /// Rows of logits that come out of a pass.
    pub fn count(self, pass: Pass) -> usize {
        match self {
            HeadRows::Last | HeadRows::At(_) => 1,
            HeadRows::All => pass.rows(),
        }
    }
}

/// Value `index` of a synthetic weight with the given seed: uniform with standard deviation `std`. Every backend that
/// makes weights on its device uses this formula, so that synthetic models are the same numbers everywhere (up to the
/// weight's number type).
pub fn synthetic_value(seed: u64, index: u64, std: f32) -> f32 {
    // splitmix64 of (seed, index); the top 24 bits are an exact f32 in [0, 1).
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    let unit = (z >> 40) as f32 / (1u32 << 24) as f32;
    // A uniform value on [-a, a] has standard deviation a / sqrt(3).
    (2.0 * unit - 1.0) * std * 1.732_050_8
}

/// What a device could not do. One line: operation, cause, what to do next.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Shapes that cannot go together; a bug or a broken checkpoint.
    #[error("{op}: expected {expected}, found {found}")]
    Shape {
        /// Operation.
        op: &'static str,
        /// What it needs.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// Not enough memory, computed or reported.
    #[error("{what} needs {needed} bytes, {free} are free; {advice}")]
    Memory {
        /// What was to be allocated.
        what: String,
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
        /// What would fit.
        advice: String,
    },
    /// The device or its driver failed.
    #[error("{op}: {cause}")]
    Device {
        /// Operation.
        op: String,
        /// In the driver's words.
        cause: String,
    },
    /// This backend has no form of the operation for these sizes.
    #[error("{0}")]
    Unsupported(String),
    /// Saved rows that cannot be had back.
    #[error("saved state cannot be used: {0}")]
    Rows(RowsFault),
    /// [`Backend::stop_on`]: the user would not wait any longer.
    #[error("stopped while rows of the saved state were on their way")]
    Stopped,
}

/// Shorthand.
pub type Result<T, E = BackendError> = std::result::Result<T, E>;

/// Operations the model is written in.
///
/// Layout of the fused projection `x` written by [`Backend::norm_linear`], columns in this order:
/// sparse layers `[q (heads·d) | k (kv·d) | v (kv·d) | gate (heads·d, if any)]`,
/// lightning layers `[q (heads·d) | k (kv·d) | v (kv·d) | z (heads·d, if any)]`.
pub trait Backend: Sized + Send + 'static {
    /// Activations `[rows, width]`, allocated once.
    type Buf: Send;
    /// Packed weight `[out, in]` in this backend's own layout and quantisation.
    type Matrix: Send;
    /// Norm weight `[n]`.
    type Vector: Send;
    /// KV and compressed keys of one sparse layer: k, v `[L, kv, d]`, k1, k2 (docs/model.md §5.3). Grows.
    type Cache: Send;
    /// Recurrent state of one lightning layer `[heads, d, d]` f32, and its pending rows.
    type Recurrent: Send;
    /// Chosen blocks of one sparse layer, per row and KV head.
    type Selection: Send;

    // -- setting up ------------------------------------------------------------------------------------------------
    /// `cpu`, `cuda`.
    fn kind(&self) -> &'static str;
    /// For people: `CPU, 2 threads`, `NVIDIA H200`.
    fn describe(&self) -> String;
    /// Number type of KV rows in images.
    fn cache_dtype(&self) -> Dtype;
    /// Most rows of a prefill pass; a multiple of [`GRID`].
    fn prefill_rows(&self) -> usize;
    /// Stacks `parts` along the out axis into one weight.
    fn matrix(&mut self, parts: &[WeightView<'_>]) -> Result<Self::Matrix>;
    /// Gate and up projection of the MLP, for [`Backend::norm_gate_up`]; the backend may interleave them.
    fn gate_up_matrix(&mut self, gate: WeightView<'_>, up: WeightView<'_>) -> Result<Self::Matrix>;
    /// A norm weight.
    fn vector(&mut self, view: WeightView<'_>) -> Result<Self::Vector>;
    /// A weight of the given size with values of the given standard deviation, made on the device: element (o, i) is
    /// [`synthetic_value`] of index `o·inner + i`.
    fn random_matrix(&mut self, out: usize, inner: usize, std: f32, seed: u64) -> Result<Self::Matrix>;
    /// The same for [`Backend::norm_gate_up`]: `out` is the width of one of the two; gate rows come first in the index.
    fn random_gate_up(&mut self, out: usize, inner: usize, std: f32, seed: u64) -> Result<Self::Matrix>;
    /// A norm weight of ones.
    fn ones(&mut self, n: usize) -> Result<Self::Vector>;
    /// Rows for any pass.
    fn buf(&mut self, width: usize, kind: BufKind) -> Result<Self::Buf>;
    /// An empty cache that can grow to `limit` positions.
    fn cache(&mut self, spec: &SparseSpec, limit: usize) -> Result<Self::Cache>;
    /// A zero state.
    fn recurrent(&mut self, spec: &LightningSpec) -> Result<Self::Recurrent>;
    /// Room for the selection of any pass up to `limit` positions.
    fn selection(&mut self, spec: &SparseSpec, limit: usize) -> Result<Self::Selection>;
    /// Memory in use.
    fn memory(&self) -> MemoryInfo;

    // -- the step --------------------------------------------------------------------------------------------------
    /// Tokens the state has absorbed, pending ones included.
    fn position(&self) -> usize;
    /// Moves to `position` with nothing pending. Used by restore and reset.
    fn seek(&mut self, position: usize) -> Result<()>;
    /// Grows a cache so that positions below `limit` can be written. Called outside of steps.
    fn reserve(&mut self, cache: &mut Self::Cache, limit: usize) -> Result<()>;
    /// Tokens of the coming pass.
    fn set_tokens(&mut self, tokens: &[Token]) -> Result<()>;
    /// Runs `body`; a GPU runs it eagerly the first time, records it the second, and replays the recording later.
    fn step(&mut self, key: StepKey, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()>;
    /// Accepts the first `rows` rows of the last pass: position += rows; after a verify pass they become pending in
    /// every lightning layer, after a prefill pass nothing is pending.
    fn advance(&mut self, pass: Pass, rows: usize) -> Result<()>;
    /// Absorbs pending rows, `S ← λ·S + k vᵀ` row by row. A no-op when nothing is pending.
    fn fold(&mut self, state: &mut Self::Recurrent, spec: &LightningSpec) -> Result<()>;
    /// Called once after every layer's `fold`.
    fn folded(&mut self);
    /// Waits until the device is done; reports what went wrong on it.
    fn synchronize(&mut self) -> Result<()>;

    // -- operations ------------------------------------------------------------------------------------------------
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
    /// Appends the k, v columns of `x` at the rows' positions and writes every compressed key whose window they
    /// complete (docs/model.md §5.3).
    fn append_kv(&mut self, cache: &mut Self::Cache, x: &Self::Buf, spec: &SparseSpec, pass: Pass) -> Result<()>;
    /// Chooses blocks per row and KV head (docs/model.md §5.4-5.6), every row by its own position.
    fn select_blocks(
        &mut self,
        sel: &mut Self::Selection,
        x: &Self::Buf,
        cache: &Self::Cache,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Softmax attention over the chosen blocks (docs/model.md §5.7). `o [rows, heads·d]`
    fn attend(
        &mut self,
        o: &mut Self::Buf,
        x: &Self::Buf,
        sel: &Self::Selection,
        cache: &Self::Cache,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Lightning attention up to and including the read of the state: qk-norm, RoPE, recurrence (docs/model.md §4,
    /// steps 2-5). `q_norm`, `k_norm` are `None` where the spec has no qk-norm. `o [rows, heads·d]`
    #[allow(clippy::too_many_arguments)]
    fn lightning(
        &mut self,
        o: &mut Self::Buf,
        x: &Self::Buf,
        q_norm: Option<&Self::Vector>,
        k_norm: Option<&Self::Vector>,
        state: &mut Self::Recurrent,
        spec: &LightningSpec,
        eps: f32,
        pass: Pass,
    ) -> Result<()>;
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
    /// Copies `h` into columns `[slot·hidden, (slot+1)·hidden)` of `taps`: the residual streams a draft head reads.
    fn tap(&mut self, taps: &mut Self::Buf, slot: usize, h: &Self::Buf, pass: Pass) -> Result<()>;
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
    /// Finds each row's best candidates on the device. Read them with [`Backend::candidates`].
    fn top_candidates(&mut self, logits: &Self::Buf, vocab: usize, rows: HeadRows, pass: Pass) -> Result<()>;

    // -- to and from the host (outside of steps; waits) ---------------------------------------------------------------
    /// What [`Backend::top_candidates`] found, for the first `rows` rows. Waits for the device.
    fn candidates(&mut self, rows: usize) -> Result<Vec<Candidates>>;
    /// The first `rows` rows of a buffer as f32, row-major. For tests, golden data and capture.
    fn read(&mut self, buf: &Self::Buf, rows: usize) -> Result<Vec<f32>>;
    /// Sets the first rows of a buffer, row-major. For tests and golden data.
    fn write(&mut self, buf: &mut Self::Buf, values: &[f32]) -> Result<()>;
    /// Blocks chosen in the last pass: `[rows][kv_heads]`, ascending. A row that ran densely reads as all its blocks.
    fn read_selection(&mut self, sel: &Self::Selection, spec: &SparseSpec, rows: usize) -> Result<Vec<Vec<Vec<u32>>>>;
    /// Cache rows of `positions`: k, v, and the compressed keys whose window ends inside them; names without layer.
    fn read_rows(
        &mut self,
        cache: &Self::Cache,
        spec: &SparseSpec,
        positions: Range<usize>,
    ) -> Result<Vec<ImageTensor>>;
    /// The inverse; accepts f32 and bf16.
    fn write_rows(
        &mut self,
        cache: &mut Self::Cache,
        spec: &SparseSpec,
        start: usize,
        tensors: &[&ImageTensor],
    ) -> Result<()>;
    /// Puts the rows of `feeds`, in order, into the caches of these layers. The caches have room for them.
    ///
    /// A device that copies beside the host's work overrides this, to have files read, checked and sent at the same time. It
    /// may return while keys and values are still on their way, as long as every operation waits for those it needs; what
    /// turns out unreadable then is the error of that operation.
    fn restore_rows(
        &mut self,
        caches: &mut [(usize, &mut Self::Cache)],
        spec: &SparseSpec,
        feeds: &[Arc<dyn RowsFeed>],
    ) -> Result<()> {
        for (layer, cache) in caches {
            for feed in feeds {
                self.write_feed(cache, *layer, spec, feed.as_ref())?;
            }
        }
        Ok(())
    }
    /// What [`Backend::restore_rows`] left on its way: rows of the first `keep` positions arrive, others may be given up.
    /// Nothing is on its way afterwards.
    fn settle_rows(&mut self, _keep: usize) -> Result<()> {
        Ok(())
    }
    /// From now on, waiting for rows on their way ends with [`BackendError::Stopped`] once this is cancelled.
    fn stop_on(&mut self, _cancel: &Cancel) {}
    /// Whether some are on their way: work may have to wait for them, and its times say nothing of the device.
    fn rows_coming(&self) -> bool {
        false
    }
    /// The rows of one feed into the cache of one layer, by way of memory.
    fn write_feed(
        &mut self,
        cache: &mut Self::Cache,
        layer: usize,
        spec: &SparseSpec,
        feed: &dyn RowsFeed,
    ) -> Result<()> {
        let mut tensors = Vec::with_capacity(ROW_ARRAYS.len());
        for name in ROW_ARRAYS {
            let full = layer_tensor(name, layer);
            if feed.array(&full).is_some() {
                let tensor = feed.load(&full).map_err(BackendError::Rows)?;
                let name = name.to_owned();
                tensors.push(ImageTensor { name, ..tensor });
            }
        }
        let tensors: Vec<&ImageTensor> = tensors.iter().collect();
        let start = usize::try_from(feed.start()).unwrap_or(usize::MAX);
        self.write_rows(cache, spec, start, &tensors)
    }
    /// The committed state; fold first. `[heads, d, d]` f32
    fn read_state(&mut self, state: &Self::Recurrent, spec: &LightningSpec) -> Result<ImageTensor>;
    /// The inverse. `None` sets zero.
    fn write_state(
        &mut self,
        state: &mut Self::Recurrent,
        spec: &LightningSpec,
        image: Option<&ImageTensor>,
    ) -> Result<()>;
}

/// The arrays of a cache, in the order of images, without their layer.
pub const ROW_ARRAYS: [&str; 4] = ["k", "v", "k1", "k2"];

/// Names used in images, one place: `k.{layer}` and so on.
pub fn layer_tensor(name: &str, layer: usize) -> String {
    format!("{name}.{layer}")
}
