//! The table of kernels: a row holds a kernel's symbols, parameters, grid, block and shared memory, and its
//! description (layouts, limits). One module per file of `kernels/`, and `ring` for the GEMMs of 1..=16 rows.
//!
//! [`kernels!`] turns a row into a structure of the kernel's parameters and a launch that passes them in the kernel's
//! order. Kernels that share most of their parameters wrap the operands of their family ([`operands!`]) instead: an
//! operation fills these in once for all its launches. `tests` compares the rows with the declarations in the `.cu`
//! files.
//!
//! # Safety
//!
//! Every launch passes raw device addresses to a kernel. Its caller guarantees that each points to memory of the
//! extent in the row, that it stays allocated until the queue has passed the launch (or as long as a CUDA graph holds
//! it), and that outputs do not overlap inputs unless the row allows it.

use super::driver::{Arg, DeviceInfo, DevicePtr, Driver, Follow, Launch, TensorMap};
use crate::backend::Result;

/// `FAMILY: TYPE field field …; …`, where `Ptr` is a device address: the common parameters of a family's kernels. A
/// launch reads those of its row; the others stay at their default, 0.
macro_rules! operands {
    ($(#[doc = $what:literal])+ $family:ident: $($type:ident $($field:ident)+;)+) => {
        $(#[doc = $what])+
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $family { $($(pub $field: field_type!($type)),+),+ }
    };
}

/// `SOURCE, DEVICE: rows`; a row is
/// `/// what`, `Structure [symbols] (field: type, …) grid [x, y, z], threads n, shared bytes;` where grid and shared memory
/// may use the fields and the `DeviceInfo` named DEVICE. Types: `u32`, `u64`, `f32`, `TensorMap`, and `Ptr("C type")` for device
/// addresses. `Structure of FAMILY` takes its fields from those operands.
macro_rules! kernels {
    ($source:expr, $device:ident: $(
        $(#[doc = $what:literal])+
        $params:ident $(of $family:ident)? [$($symbol:ident)+] ($($field:ident: $type:ident $(($c:literal))?),+ $(,)?)
        grid $grid:expr, threads $threads:literal, shared $shared:expr;
    )+) => {
        $(
            parameters! { $(#[doc = $what])+ $params $(of $family)?; $($field: field_type!($type)),+ }

            impl $params {
                /// Passes the launch of one of the row's symbols to `then`.
                pub fn as_launch<R>(
                    &self,
                    $device: &crate::backend::cuda::launch::DeviceInfo,
                    symbol: &'static str,
                    then: impl FnOnce(&crate::backend::cuda::launch::Launch<'_>) -> R,
                ) -> R {
                    let _ = $device;
                    fields!(self, $params $(of $family)?; $($field),+);
                    let args = [$(crate::backend::cuda::launch::Arg::from($field)),+];
                    then(&crate::backend::cuda::launch::launch_of($device, symbol, $grid, $threads, $shared, &args))
                }

                /// # Safety
                /// See the module: every pointer must have the extent in the row.
                pub(super) unsafe fn launch_as(&self, d: &dyn crate::backend::cuda::launch::Driver, symbol: &'static str) -> crate::backend::cuda::launch::Result<()> {
                    // SAFETY: the caller's.
                    self.as_launch(d.info(), symbol, |launch| unsafe { d.launch(launch) })
                }
            }
            launcher!($params $($symbol)+);
        )+

        #[cfg(test)]
        pub(in crate::backend::cuda::launch) const ROWS: &[crate::backend::cuda::launch::tests::Row] = &[$(crate::backend::cuda::launch::tests::Row {
            source: $source,
            symbols: &[$(stringify!($symbol)),+],
            params: &[$((c_type!($type $(($c))?), stringify!($field))),+],
            threads: $threads,
            shared: stringify!($shared),
        }),+];
    };
}

macro_rules! parameters {
    ($(#[doc = $what:literal])+ $params:ident of $family:ident; $($rest:tt)+) => {
        $(#[doc = $what])+
        #[derive(Clone, Copy, Debug)]
        pub struct $params(pub $family);
    };
    ($(#[doc = $what:literal])+ $params:ident; $($field:ident: $type:ty),+) => {
        $(#[doc = $what])+
        #[derive(Clone, Copy, Debug)]
        pub struct $params { $(pub $field: $type),+ }
    };
}

macro_rules! fields {
    ($this:ident, $params:ident of $family:ident; $($field:ident),+) => {
        let $params($family { $($field,)+ .. }) = *$this;
    };
    ($this:ident, $params:ident; $($field:ident),+) => {
        let $params { $($field),+ } = *$this;
    };
}

/// The launch of a row with one symbol; families select theirs by [`kernels!`]'s `launch_as`.
macro_rules! launcher {
    ($params:ident $symbol:ident) => {
        impl $params {
            /// # Safety
            /// See the module: every pointer must have the extent in the row.
            pub unsafe fn launch(&self, d: &dyn crate::backend::cuda::launch::Driver) -> crate::backend::cuda::launch::Result<()> {
                // SAFETY: the caller's.
                unsafe { self.launch_as(d, stringify!($symbol)) }
            }
        }
    };
    ($params:ident $($symbol:ident)+) => {
        impl $params {
            pub(in crate::backend::cuda::launch) const SYMBOLS: &[&'static str] = &[$(stringify!($symbol)),+];
        }
    };
}

macro_rules! field_type {
    (Ptr) => {
        crate::backend::cuda::launch::DevicePtr
    };
    ($same:ident) => {
        $same
    };
}

#[cfg(test)]
macro_rules! c_type {
    (Ptr($c:literal)) => {
        $c
    };
    (f32) => {
        "float"
    };
    (TensorMap) => {
        "const __grid_constant__ TensorMap"
    };
    ($same:ident) => {
        stringify!($same)
    };
}

mod compare;
mod draft;
mod fp8;
mod gemm;
mod gemm_hopper;
mod lightning;
mod lightning_prefill;
mod packed;
mod pool;
mod ring;
mod rows;
mod skinny;
mod sparse;
mod sparse_attend;
mod sparse_scores;
mod sparse_select;
#[cfg(test)]
mod tests;
mod top_logits;

pub use compare::*;
pub use draft::*;
pub use fp8::*;
pub use gemm::*;
pub use gemm_hopper::*;
pub use lightning::*;
pub use lightning_prefill::*;
pub use packed::*;
pub use pool::*;
pub use rows::*;
pub use skinny::*;
pub use sparse::*;
pub use sparse_attend::*;
pub use sparse_scores::*;
pub use sparse_select::*;
pub use top_logits::*;

#[cfg(test)]
macro_rules! table {
    ($($file:ident),+) => {
        &[$($file::ROWS),+]
    };
}

#[cfg(test)]
const TABLE: &[&[tests::Row]] = super::images::kernel_files!(table);

/// Blocks of `by` that hold `n`, at least one.
fn up(n: u32, by: u32) -> u32 {
    n.div_ceil(by).max(1)
}

/// The same for large sizes; saturates, so that too many for a grid stay too many.
fn up64(n: u64, by: u64) -> u32 {
    u32::try_from(n.div_ceil(by).max(1)).unwrap_or(u32::MAX)
}

fn launch_of<'a>(
    device: &DeviceInfo,
    kernel: &'static str,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    args: &'a [Arg],
) -> Launch<'a> {
    let follow = if device.overlap { Follow::Overlap } else { Follow::After };
    Launch { kernel, grid, block: [threads, 1, 1], shared_bytes, follow, args }
}
