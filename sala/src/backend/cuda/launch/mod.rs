//! The table of kernels: a row holds a kernel's symbols, parameters, grid, block and shared memory, and its
//! description (layouts, limits). One module per family of operations.
//!
//! [`kernels!`] turns a row into a structure of the kernel's parameters and a launch that passes them in the kernel's
//! order; sizes are `usize` up to there, and one that a kernel's 32 bits do not hold is an error. Kernels that share
//! most of their parameters wrap the operands of their family ([`operands!`]) instead: an operation fills these in once
//! for all its launches. `tests` compares the rows with the declarations in the `.cu` files.
//!
//! # Safety
//!
//! Every launch passes raw device addresses to a kernel. Its caller guarantees that each points to memory of the
//! extent in the row, that it stays allocated until the queue has passed the launch (or as long as a CUDA graph holds
//! it), and that outputs do not overlap inputs unless the row allows it.

use super::driver::{Arg, DeviceInfo, DevicePtr, Driver, Launch, TensorMap};
use super::u32_of;
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

/// `DEVICE; SOURCE: rows …`; a row is
/// `/// what`, `Structure [symbols] (field: type, …) grid [x, y, z], threads n, shared bytes;` where grid and shared memory
/// may use the fields and the `DeviceInfo` named DEVICE. Types: `u32`, `u64`, `f32`, `TensorMap`, and `Ptr("C type")` for device
/// addresses. `Structure of FAMILY` takes its fields from those operands.
macro_rules! kernels {
    ($device:ident; $($source:literal: $(
        $(#[doc = $what:literal])+
        $params:ident $(of $family:ident)? [$($symbol:ident)+] ($($field:ident: $type:ident $(($c:literal))?),+ $(,)?)
        grid $grid:expr, threads $threads:literal, shared $shared:expr;
    )+)+) => {
        $($(
            parameters! { $(#[doc = $what])+ $params $(of $family)?; $($field: field_type!($type)),+ }

            impl $params {
                /// Passes the launch of one of the row's symbols to `then`.
                pub fn as_launch(
                    &self,
                    $device: &DeviceInfo,
                    symbol: &'static str,
                    then: impl FnOnce(&Launch<'_>) -> Result<()>,
                ) -> Result<()> {
                    let _ = $device;
                    fields!(self, $params $(of $family)?; $($field),+);
                    let args = [$(argument!($type, $field)),+];
                    then(&launch_of(symbol, $grid, $threads, $shared, &args)?)
                }

                /// # Safety
                /// See the module: every pointer must have the extent in the row.
                pub(super) unsafe fn launch_as(&self, d: &dyn Driver, symbol: &'static str) -> Result<()> {
                    // SAFETY: the caller's.
                    self.as_launch(d.info(), symbol, |launch| unsafe { d.launch(launch) })
                }
            }
            launcher!($params $($symbol)+);
        )+)+

        #[cfg(test)]
        pub(super) const ROWS: &[super::tests::Row] = &[$($(super::tests::Row {
            source: $source,
            symbols: &[$(stringify!($symbol)),+],
            params: &[$((c_type!($type $(($c))?), stringify!($field))),+],
            threads: $threads,
            shared: stringify!($shared),
        }),+),+];
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
            pub unsafe fn launch(&self, d: &dyn Driver) -> Result<()> {
                // SAFETY: the caller's.
                unsafe { self.launch_as(d, stringify!($symbol)) }
            }
        }
    };
    ($params:ident $($symbol:ident)+) => {
        impl $params {
            pub(super) const SYMBOLS: &[&'static str] = &[$(stringify!($symbol)),+];
        }
    };
}

macro_rules! field_type {
    (Ptr) => {
        DevicePtr
    };
    (u32) => {
        usize
    };
    ($same:ident) => {
        $same
    };
}

macro_rules! argument {
    (u32, $field:ident) => {
        Arg::from(u32_of($field)?)
    };
    ($type:ident, $field:ident) => {
        Arg::from($field)
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

mod attend;
mod draft;
mod gemm;
mod gemm_hopper;
mod lightning;
mod packed;
mod rows;
mod select;
mod skinny;
#[cfg(test)]
mod tests;

pub use attend::*;
pub use draft::*;
pub use gemm::*;
pub use gemm_hopper::*;
pub use lightning::*;
pub use packed::*;
pub use rows::*;
pub use select::*;
pub use skinny::*;

#[cfg(test)]
const TABLE: &[&[tests::Row]] = &[
    attend::ROWS,
    draft::ROWS,
    gemm::ROWS,
    gemm_hopper::ROWS,
    lightning::ROWS,
    packed::ROWS,
    rows::ROWS,
    select::ROWS,
    skinny::ROWS,
];

/// Blocks of `by` that hold `n`, at least one.
fn up(n: usize, by: usize) -> usize {
    n.div_ceil(by).max(1)
}

fn launch_of<'a>(
    kernel: &'static str,
    [x, y, z]: [usize; 3],
    threads: u32,
    shared_bytes: usize,
    args: &'a [Arg],
) -> Result<Launch<'a>> {
    let grid = [u32_of(x)?, u32_of(y)?, u32_of(z)?];
    Ok(Launch { kernel, grid, threads, shared_bytes: u32_of(shared_bytes)?, args })
}
