//! One device, seen as the fused operations the model is written in.
//!
//! The forward pass in [`crate::model`] is generic over [`Backend`] and never asks which one it has. `cpu` writes every
//! operation as plain equations in f32 and is the oracle; `cuda` launches kernels. An operation is destination first,
//! allocates nothing, never waits for the device, and takes no host value that changes from step to step: position,
//! row count and pending rows live in the backend's *step* (device memory on a GPU), so a CUDA graph is only a
//! CUDA graph of ordinary code.
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
//! are accepted. They are folded in at the start of the next pass or by [`Lightning::fold`] (docs/speculative.md §4.3).
//! Refused rows therefore never touch the state, and KV rows beyond the position are dead until overwritten.
//!
//! Every pass is followed by exactly one [`Steps::advance`] before the next pass starts, with `rows = 0` if nothing was
//! accepted: a verify pass has folded what was pending before it and has overwritten it. [`crate::model::Live`] keeps
//! this order. A prefill pass runs with nothing pending (fold first) and is advanced by all of its rows; its first row
//! is the origin of its [`GRID`], so a chunk whose length is no multiple of it ends a segment.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod draft;
pub mod forms;
pub mod fp8;
mod host;
mod images;
mod lightning;
mod memory;
pub mod room;
mod rows;
pub mod sections;
mod sparse;
mod steps;

pub use forms::Form;
pub use images::Images;
pub use lightning::Lightning;
pub use memory::{Memory, Wanted};
pub use rows::{Mlp, NextOp, Rows};
pub use sparse::{BlockMass, MASS, MassOf, Sparse};
pub use steps::{Group, Place, Steps};

pub use crate::engine::protocol::{MAX_VERIFY_ROWS, ROW_ARRAYS, TOP_LOGITS};

use std::ops::Range;

use crate::core::spec::SparseSpec;
use crate::core::{GOLDEN, bytes, mix};
use crate::engine::protocol::{Dtype, RowsFault, Token};

/// Prefill chunks start on multiples of this, counted from the segment's start. Also the chunk of the lightning form.
pub const GRID: usize = 64;
/// Most positions of a conversation: some kernels hold a bit or a score for each of 16,384 blocks of 64.
pub const MAX_POSITIONS: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Given tokens. Any number of rows up to [`Memory::prefill_rows`].
    Prefill { rows: usize },
    /// Decode (one row) or verify (up to [`MAX_VERIFY_ROWS`]): row i has position `position + i`; or as [`Steps::set_rows`] says.
    Verify { rows: usize },
}

impl Pass {
    pub fn rows(self) -> usize {
        match self {
            Pass::Prefill { rows } | Pass::Verify { rows } => rows,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKey {
    /// The target over this many rows of one sequence; 1 is plain decode.
    Verify(usize),
    /// The target over this many rows of several sequences.
    VerifyMany(usize),
    Draft,
    /// Extending the draft window by this many verified rows.
    DraftExtend(usize),
}

/// What an activation buffer holds; decides its number type on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufKind {
    /// The residual stream: f32 everywhere.
    Residual,
    /// Inputs of GEMMs: f32 on the CPU, bf16 on a GPU.
    Activation,
    /// Mixer outputs before norm and gate: f32 everywhere.
    Wide,
    /// Logits: f32 everywhere, at most [`MAX_VERIFY_ROWS`] rows whatever the pass.
    Logits,
}

/// A weight as it lies in a checkpoint: row-major `[out, in]`, or `[n]` for a norm; and the form it is to take.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    pub name: &'a str,
    /// Slowest axis first.
    pub shape: &'a [usize],
    /// F32 or Bf16 (f16 files are widened to f32 before); U8 where `data` is packed in `form` already.
    pub dtype: Dtype,
    /// Little-endian values.
    pub data: &'a [u8],
    /// The same bytes in a file and where they begin there, for devices that read them on their way.
    pub file: Option<(&'a std::fs::File, u64)>,
    /// How the weight is to lie on the device. Norms are never packed.
    pub form: Form,
}

/// The top logits of one row, by (logit descending, id ascending), at most [`TOP_LOGITS`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopLogits {
    pub ids: Vec<Token>,
    pub logits: Vec<f32>,
    /// log Σ exp over the whole vocabulary.
    pub log_sum_exp: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadRows {
    Last,
    All,
    /// At most 16 rows of the pass. For scores and golden data: never inside a captured step.
    Some {
        first: usize,
        count: usize,
    },
}

impl HeadRows {
    pub fn range(self, pass: Pass) -> Range<usize> {
        match self {
            HeadRows::Last => pass.rows().saturating_sub(1)..pass.rows(),
            HeadRows::All => 0..pass.rows(),
            HeadRows::Some { first, count } => first..first + count,
        }
    }
}

/// Value `index` of a synthetic weight with the given seed: uniform with standard deviation `std`. Every backend that
/// makes weights on its device uses this formula, so that synthetic models are the same numbers everywhere (up to the
/// weight's number type).
pub fn synthetic_value(seed: u64, index: u64, std: f32) -> f32 {
    // splitmix64 of (seed, index); the top 24 bits are an exact f32 in [0, 1).
    let z = mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)));
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
    Shape { op: &'static str, expected: String, found: String },
    #[error("{what} needs {}, {} are free; {advice}", bytes(*needed), bytes(*free))]
    Memory { what: String, needed: u64, free: u64, advice: String },
    #[error("{op}: {cause}")]
    Device { op: String, cause: String },
    #[error("weight `{0}` holds values that are not finite; the checkpoint is damaged or was badly converted")]
    NotFinite(String),
    /// A branch that is never reached: a fault of this program, never a quiet result.
    #[error("internal error in {op}: {what}; please report it, the conversation is saved")]
    Internal { op: &'static str, what: &'static str },
    /// This backend has no form of the operation for these sizes.
    #[error("{0}")]
    Unsupported(String),
    #[error("saved state cannot be used: {0}")]
    Rows(RowsFault),
    /// [`Images::stop_on`]: the user would not wait any longer.
    #[error("stopped while rows of the saved state were in flight")]
    Stopped,
}

pub(crate) fn shape(op: &'static str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> BackendError {
    BackendError::Shape { op, expected: expected.to_string(), found: found.to_string() }
}

pub(crate) fn internal(op: &'static str, what: &'static str) -> BackendError {
    BackendError::Internal { op, what }
}

pub type Result<T, E = BackendError> = std::result::Result<T, E>;

/// Operations the model is written in, subject by subject.
pub trait Backend: Memory + Steps + Rows + Sparse + Lightning + Images {}

impl<B: Memory + Steps + Rows + Sparse + Lightning + Images> Backend for B {}

/// Every trait of a device, for code that has a particular one.
pub mod prelude {
    pub use super::{Backend, Images, Lightning, Memory, Rows, Sparse, Steps};
}

/// The rows of each of [`ROW_ARRAYS`] that belong to these positions: a compressed key belongs to the end of its
/// window.
pub fn row_ranges(spec: &SparseSpec, positions: &Range<usize>) -> [Range<usize>; 4] {
    let level1 = spec.level1_rows(positions.start)..spec.level1_rows(positions.end);
    let level2 = spec.level2_rows(positions.start)..spec.level2_rows(positions.end);
    [positions.clone(), positions.clone(), level1, level2]
}

/// Names used in images, one place: `k.{layer}` and so on.
pub fn layer_tensor(name: &str, layer: usize) -> String {
    format!("{name}.{layer}")
}
