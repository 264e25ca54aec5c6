//! The CPU backend: every operation in f32. The oracle for other backends, and the engine of the built-in model.
//!
//! A file for each trait of [`crate::backend`]: `memory`, `steps`, `rows`, `sparse`, `lightning`, `images`; beside them what they are made of:
//! `matrix` (GEMM), `cache`, its `pages`, and `attend` (InfLLM-V2), `simd` (vector kernels), `draft`. Operations run at once. Sums have a fixed order that
//! does not depend on the number of rows.

mod attend;
mod cache;
mod draft;
#[cfg(any(test, feature = "emulated"))]
#[path = "../../../tests/emulated/faults.rs"]
pub mod faults;
mod images;
mod lightning;
mod matrix;
mod memory;
mod pages;
mod rows;
mod select;
mod selection;
mod simd;
mod sparse;
mod steps;

pub use cache::Cache;
pub use lightning::Recurrent;
pub use matrix::Matrix;
pub use selection::{Selection, Sums};

use std::sync::OnceLock;

use self::lightning::RopeTable;
use super::{Group, Pass, Result, Steps, TopLogits};
use crate::engine::protocol::{MemoryInfo, Token};

/// Rows of a prefill pass.
const PREFILL_ROWS: usize = 512;

/// The CPU as a device.
pub struct Cpu {
    threads: usize,
    /// Position of row 0 of the coming pass.
    position: usize,
    /// Given tokens of the segment before the pass under way.
    segment_read: usize,
    tokens: Vec<Token>,
    /// Sequences of the coming verify pass, if they are several.
    groups: Vec<Group>,
    /// Accepted rows of the last verify pass, remembered in every recurrent state.
    pending: usize,
    /// Of the sequence in hand, and the greatest given so far.
    place: u64,
    places: u64,
    /// Of each sequence of a pass.
    ropes: Vec<RopeTable>,
    top_logits: Vec<TopLogits>,
    memory: MemoryInfo,
    /// Of caches and recurrent states.
    state: pages::Account,
    /// What they may be at most: what was free when that was first asked.
    most_state: OnceLock<Option<u64>>,
    /// What there is room for is all that there is until keys and values leave.
    #[cfg(any(test, feature = "emulated"))]
    can_page_out: bool,
    #[cfg(any(test, feature = "emulated"))]
    faults: faults::Faults,
    /// Tokens and place of the coming draft pass.
    draft: draft::DraftStep,
    /// An error made on purpose, to see that it is found.
    #[cfg(test)]
    pub(crate) planted: Option<Planted>,
}

/// Errors that a port of this model makes easily.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// Generated rows are rotated as if they stood one further.
    Rotation,
    /// Each head decays like its neighbour.
    Decay,
    /// Keys and values of the fourth block are not written.
    StaleBlock,
}

/// Activations `[rows, width]`, f32.
pub struct Buf {
    width: usize,
    data: Vec<f32>,
}

impl Buf {
    /// Rows of the pass.
    fn rows(&self, pass: Pass) -> &[f32] {
        &self.data[..pass.rows() * self.width]
    }
    fn rows_mut(&mut self, pass: Pass) -> &mut [f32] {
        &mut self.data[..pass.rows() * self.width]
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new()
    }
}

impl Cpu {
    /// The CPU with all threads of the process's pool.
    pub fn new() -> Cpu {
        Cpu {
            threads: rayon::current_num_threads(),
            position: 0,
            segment_read: 0,
            tokens: Vec::new(),
            groups: Vec::new(),
            pending: 0,
            place: 0,
            places: 0,
            ropes: Vec::new(),
            top_logits: Vec::new(),
            memory: MemoryInfo::default(),
            state: pages::Account::default(),
            most_state: OnceLock::new(),
            #[cfg(any(test, feature = "emulated"))]
            can_page_out: false,
            #[cfg(any(test, feature = "emulated"))]
            faults: faults::Faults::default(),
            draft: draft::DraftStep::default(),
            #[cfg(test)]
            planted: None,
        }
    }

    /// Caches and states take `bytes` at most.
    pub fn with_room(bytes: u64) -> Cpu {
        Cpu { most_state: OnceLock::from(Some(bytes)), ..Cpu::new() }
    }

    /// For tests (feature `emulated`): the same until keys and values leave for another memory, as a GPU's do; then without that limit.
    #[cfg(any(test, feature = "emulated"))]
    pub fn with_room_until_paged(bytes: u64) -> Cpu {
        Cpu { can_page_out: true, ..Cpu::with_room(bytes) }
    }

    /// For tests (feature `emulated`): with faults to come.
    #[cfg(any(test, feature = "emulated"))]
    pub fn with_faults(self, faults: faults::Faults) -> Cpu {
        Cpu { faults, ..self }
    }

    /// The sequences of a pass: where each stands, and its rows.
    fn groups(&self, pass: Pass, given: usize) -> Result<Vec<Group>> {
        Group::of_pass(&self.groups, self.place(), pass, given)
    }

    fn count_weight(&mut self, bytes: usize) {
        self.memory.weights += bytes as u64;
    }
}
