//! The fused operations of one device, in terms of which the model is written.
//!
//! The forward pass in [`crate::model`] is generic over [`Backend`]. `cpu` computes every operation as plain equations
//! in f32 and is the oracle; `cuda` launches kernels. An operation takes its destination first, allocates nothing,
//! never waits for the device, and takes no host value that changes from step to step: position, row count and pending
//! rows live in the backend's *step* (device memory on a GPU). So a CUDA graph is a recording of ordinary code.
//!
//! # Two paths
//!
//! [`Pass::Prefill`] reads given tokens in chunks; [`Pass::Verify`] runs 1..=16 generated or drafted rows (plain
//! decode is one row). Each path is bit-for-bit independent of how the work is cut: prefill of the chunk size, as long
//! as chunks start on a multiple of [`GRID`] counted from the segment's start; verify of the number of rows.
//!
//! # Recurrent state
//!
//! Verify reads the committed state and only *remembers* its rows' (k, v); `advance(n)` accepts the first n of them.
//! The start of the next pass or [`Lightning::fold`] folds them in (docs/speculative.md §4.2). Rejected rows therefore
//! never touch the state, and KV rows beyond the position are dead until overwritten.
//!
//! Exactly one [`Steps::advance`] follows every pass before the next one starts, with `rows = 0` if nothing was
//! accepted: a verify pass folds the rows that were pending before it and overwrites them. [`crate::model::Live`]
//! keeps this order. A prefill pass runs with nothing pending (fold first) and is advanced by all of its rows; its
//! first row is the origin of its [`GRID`], so a chunk with another length ends a segment.

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

pub const GRID: usize = 64;
/// Limit of a conversation: some kernels hold a bit or a score for each of 16,384 blocks of 64.
pub const MAX_POSITIONS: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Given tokens, up to [`Memory::prefill_rows`].
    Prefill { rows: usize },
    /// Decode (one row) or verify (up to [`MAX_VERIFY_ROWS`]): row i has position `position + i`, unless
    /// [`Steps::set_rows`] sets the positions.
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
    /// Rows of one sequence; 1 is plain decode.
    Verify(usize),
    VerifyMany(usize),
    Draft,
    DraftExtend(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufKind {
    /// f32 everywhere.
    Residual,
    Activation,
    /// Mixer outputs before norm and gate: f32 everywhere.
    Wide,
    /// f32 everywhere, at most [`MAX_VERIFY_ROWS`] rows in any pass.
    Logits,
}

/// A weight as in a checkpoint: row-major `[out, in]`, or `[n]` for a norm.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    pub name: &'a str,
    /// Slowest axis first.
    pub shape: &'a [usize],
    /// F32 or Bf16 (f16 is widened to f32 before); U8 where `data` is already packed in `form`.
    pub dtype: Dtype,
    /// Little-endian values.
    pub data: &'a [u8],
    /// The same bytes in a file, and their offset, for devices that read straight from it.
    pub file: Option<(&'a std::fs::File, u64)>,
    /// The form on the device. Norms are never packed.
    pub form: Form,
}

/// Sorted by (logit descending, id ascending), at most [`TOP_LOGITS`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopLogits {
    pub ids: Vec<Token>,
    pub logits: Vec<f32>,
    pub log_sum_exp: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadRows {
    Last,
    All,
    /// At most 16 rows of the pass, for scores and golden data; never inside a captured step.
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

/// Value `index` of a synthetic weight: uniform with standard deviation `std`. All backends use this formula, so
/// synthetic models have the same numbers everywhere (up to the weight's number type).
pub fn synthetic_value(seed: u64, index: u64, std: f32) -> f32 {
    // splitmix64 of (seed, index); the top 24 bits are an exact f32 in [0, 1).
    let z = mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)));
    let unit = (z >> 40) as f32 / (1u32 << 24) as f32;
    // A uniform value on [-a, a] has standard deviation a / sqrt(3).
    (2.0 * unit - 1.0) * std * 1.732_050_8
}

/// Each message is one line: operation, cause, remedy.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// Shapes do not match: a bug or a broken checkpoint.
    #[error("{op}: expected {expected}, found {found}")]
    Shape { op: &'static str, expected: String, found: String },
    #[error("{what} needs {}, {} are free; {advice}", bytes(*needed), bytes(*free))]
    Memory { what: String, needed: u64, free: u64, advice: String },
    #[error("{op}: {cause}")]
    Device { op: String, cause: String },
    #[error("weight `{0}` holds values that are not finite; the checkpoint is damaged or was badly converted")]
    NotFinite(String),
    /// An unreachable branch was reached: a bug that must not yield a quiet result.
    #[error("internal error in {op}: {what}; please report it, the conversation is saved")]
    Internal { op: &'static str, what: &'static str },
    /// This backend does not implement the operation for these sizes.
    #[error("{0}")]
    Unsupported(String),
    #[error("saved state cannot be used: {0}")]
    Rows(RowsFault),
    /// The user cancelled the wait of [`Images::stop_on`].
    #[error("stopped while rows of the saved state were in flight")]
    Stopped,
}

pub(crate) fn shape(op: &'static str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> BackendError {
    BackendError::Shape { op, expected: expected.to_string(), found: found.to_string() }
}

/// [`BackendError::Shape`] unless `holds`.
pub(crate) fn check_shape(
    holds: bool,
    op: &'static str,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> Result<()> {
    if holds { Ok(()) } else { Err(shape(op, expected, found)) }
}

pub fn internal(op: &'static str, what: &'static str) -> BackendError {
    BackendError::Internal { op, what }
}

/// [`BackendError::Internal`] with what was found, unless `holds`.
pub(crate) fn invariant(holds: bool, op: &'static str, found: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(internal(op, found)) }
}

pub type Result<T, E = BackendError> = std::result::Result<T, E>;

pub trait Backend: Memory + Steps + Rows + Sparse + Lightning + Images {}

impl<B: Memory + Steps + Rows + Sparse + Lightning + Images> Backend for B {}

pub mod prelude {
    pub use super::{Backend, Images, Lightning, Memory, Rows, Sparse, Steps};
}

/// The rows of each of [`ROW_ARRAYS`] for these positions: a compressed key belongs to the end of its window.
pub fn row_ranges(spec: &SparseSpec, positions: &Range<usize>) -> [Range<usize>; 4] {
    let level1 = spec.level1_rows(positions.start)..spec.level1_rows(positions.end);
    let level2 = spec.level2_rows(positions.start)..spec.level2_rows(positions.end);
    [positions.clone(), positions.clone(), level1, level2]
}

/// The name of a layer's tensor in images: `k.{layer}` and so on.
pub fn layer_tensor(name: &str, layer: usize) -> String {
    format!("{name}.{layer}")
}
