//! One typed wrapper per kernel: arguments in kernel order, grid, block and shared memory. Nothing else. One module per
//! family of kernels.
//!
//! The contract of each kernel (layouts, limits) is its row in `kernels/README.md`.
//!
//! # Safety
//!
//! Every function here hands raw device addresses to a kernel. Its caller guarantees that each points to memory of the
//! extent the contract names, that it stays allocated until the queue has passed the launch (or as long as a recording
//! holds it), and that outputs do not overlap inputs unless the contract allows it.
#![allow(clippy::too_many_arguments)]

use super::driver::{Arg, Driver, Follow, Launch};
use crate::backend::Result;

macro_rules! args {
    ($($e:expr),* $(,)?) => { &[$(super::Arg::from($e)),*] };
}

mod candidates;
mod draft;
mod lightning;
mod products;
mod rows;
mod sparse;
mod sparse_prefill;

pub use candidates::*;
pub use draft::*;
pub use lightning::*;
pub use products::*;
pub use rows::*;
pub use sparse::*;
pub use sparse_prefill::*;

/// Dynamic shared memory of attention over 128 keys (`attention.cuh`).
const ATTEND_SHARED: u32 = 34_816;

fn up(n: u32, by: u32) -> u32 {
    n.div_ceil(by).max(1)
}

fn up64(n: u64, by: u64) -> u32 {
    u32::try_from(n.div_ceil(by).max(1)).unwrap_or(u32::MAX)
}

/// # Safety
/// See the module.
unsafe fn run(
    d: &dyn Driver,
    kernel: &'static str,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    args: &[Arg],
) -> Result<()> {
    let follow = if d.info().overlap { Follow::Overlap } else { Follow::After };
    // SAFETY: the caller's.
    unsafe { d.launch(&Launch { kernel, grid, block: [threads, 1, 1], shared_bytes, follow, args }) }
}
