//! The CPU backend: every operation in f32. The oracle for other backends, and the engine of the built-in model.
//!
//! `memory`, `steps`, `rows`, `sparse`, `lightning`, `images` and `draft` implement a trait of [`crate::backend`]
//! each, from `matrix` (GEMM), `cache` and its `pages`, `select` and `attend` (InfLLM-V2), and `simd` (vector
//! kernels). Operations run at once. Sums have a fixed order that does not depend on the number of rows.

mod attend;
mod cache;
mod draft;
#[cfg(any(test, feature = "emulated"))]
#[path = "../../../../tests/emulated/faults.rs"]
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
use super::{Group, Pass, Place, Result, TopLogits};
use crate::engine::protocol::{MemoryInfo, Token};

const PREFILL_ROWS: usize = 512;

#[derive(Default)]
pub struct Cpu {
    place: Place,
    segment_read: usize,
    tokens: Vec<Token>,
    groups: Vec<Group>,
    /// The greatest id of a sequence so far.
    places: u64,
    ropes: Vec<RopeTable>,
    top_logits: Vec<TopLogits>,
    memory: MemoryInfo,
    state: pages::Account,
    /// Limit of state memory: the free bytes at the first call of `room`.
    most_state: OnceLock<Option<u64>>,
    /// For tests: the limit holds until keys and values leave this memory.
    #[cfg(any(test, feature = "emulated"))]
    can_page_out: bool,
    #[cfg(any(test, feature = "emulated"))]
    faults: faults::Faults,
    draft: draft::DraftStep,
    /// A deliberate error that tests must detect.
    #[cfg(any(test, feature = "emulated"))]
    pub planted: Option<Planted>,
}

#[cfg(any(test, feature = "emulated"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    Rotation,
    Decay,
    StaleBlock,
}

/// `[rows, width]`, f32.
pub struct Buf {
    width: usize,
    data: Vec<f32>,
}

impl Buf {
    fn rows(&self, pass: Pass) -> &[f32] {
        &self.data[..pass.rows() * self.width]
    }
    fn rows_mut(&mut self, pass: Pass) -> &mut [f32] {
        &mut self.data[..pass.rows() * self.width]
    }
}

impl Cpu {
    pub fn new() -> Cpu {
        Cpu::default()
    }

    pub fn with_room(bytes: u64) -> Cpu {
        Cpu { most_state: OnceLock::from(Some(bytes)), ..Cpu::new() }
    }

    /// For tests (feature `emulated`): limits memory until keys and values leave for another memory, as on a GPU.
    #[cfg(any(test, feature = "emulated"))]
    pub fn with_room_until_paged(bytes: u64) -> Cpu {
        Cpu { can_page_out: true, ..Cpu::with_room(bytes) }
    }

    #[cfg(any(test, feature = "emulated"))]
    pub fn with_faults(self, faults: faults::Faults) -> Cpu {
        Cpu { faults, ..self }
    }

    fn groups(&self, pass: Pass, given: usize) -> Result<Vec<Group>> {
        Group::of_pass(&self.groups, self.place, pass, given)
    }

    fn count_weight(&mut self, bytes: usize) {
        self.memory.weights += bytes as u64;
    }
}
