//! One table of kernels: a row is a kernel's symbols, its parameters, grid, block and shared memory, and what it does. One
//! module per file of `kernels/`, and `ring`, which those of GEMMs of 1..=16 rows share.
//!
//! [`kernels!`] makes of a row a structure with a named field per parameter and the launch that hands them over in the
//! kernel's order. The table of signatures in `kernels/README.md` is written from the same rows, and `tests` compares both
//! with what the `.cu` files declare. The contract of each kernel (layouts, limits) is its row there.
//!
//! Kernels themselves take their parameters one by one, not as one structure: the machine code that speeds were measured with
//! stays as it is, and the order is nobody's business but this table's.
//!
//! # Safety
//!
//! Every launch hands raw device addresses to a kernel. Its caller guarantees that each points to memory of the
//! extent the contract names, that it stays allocated until the queue has passed the launch (or as long as a CUDA graph
//! holds it), and that outputs do not overlap inputs unless the contract allows it.

use super::driver::{Arg, DeviceInfo, DevicePtr, Driver, Follow, Launch, TensorMap};
use crate::backend::Result;

/// `SOURCE, DEVICE: rows`; a row is
/// `/// what`, `Structure [symbols] (field: type, …) grid [x, y, z], threads n, shared bytes;` where grid and shared memory
/// may use the fields and the `DeviceInfo` named DEVICE. Types: `u32`, `u64`, `f32`, `TensorMap`, and `Ptr("C type")` for device addresses.
macro_rules! kernels {
    ($source:literal, $device:ident: $(
        $(#[doc = $what:literal])+
        $params:ident [$($symbol:ident)+] ($($field:ident: $type:ident $(($c:literal))?),+ $(,)?)
        grid $grid:expr, threads $threads:literal, shared $shared:expr;
    )+) => {
        $(
            $(#[doc = $what])+
            #[derive(Clone, Copy, Debug)]
            pub struct $params { $(pub $field: field_type!($type)),+ }

            impl $params {
                /// The launch of one of the row's symbols, handed to `then`.
                pub fn as_launch<R>(
                    &self,
                    $device: &super::DeviceInfo,
                    symbol: &'static str,
                    then: impl FnOnce(&super::Launch<'_>) -> R,
                ) -> R {
                    let _ = $device;
                    let $params { $($field),+ } = *self;
                    let args = [$(super::Arg::from($field)),+];
                    then(&super::launch_of($device, symbol, $grid, $threads, $shared, &args))
                }

                /// One of the row's symbols.
                ///
                /// # Safety
                /// See the module: every pointer must span what kernels/README.md says.
                pub(super) unsafe fn launch_as(&self, d: &dyn super::Driver, symbol: &'static str) -> super::Result<()> {
                    // SAFETY: the caller's.
                    self.as_launch(d.info(), symbol, |launch| unsafe { d.launch(launch) })
                }
            }
            launcher!($params $($symbol)+);
        )+

        /// The rows of this file, in words.
        #[cfg(test)]
        pub(super) const ROWS: &[super::tests::Row] = &[$(super::tests::Row {
            source: $source,
            symbols: &[$(stringify!($symbol)),+],
            what: concat!($($what),+),
            params: &[$((c_type!($type $(($c))?), stringify!($field))),+],
            grid: stringify!($grid),
            threads: $threads,
            shared: stringify!($shared),
        }),+];
    };
}

/// The launch of a row with one symbol; families choose theirs by [`kernels!`]'s `launch_as`.
macro_rules! launcher {
    ($params:ident $symbol:ident) => {
        impl $params {
            /// Launches the kernel.
            ///
            /// # Safety
            /// See the module: every pointer must span what kernels/README.md says.
            pub unsafe fn launch(&self, d: &dyn super::Driver) -> super::Result<()> {
                // SAFETY: the caller's.
                unsafe { self.launch_as(d, stringify!($symbol)) }
            }
        }
    };
    ($params:ident $($symbol:ident)+) => {};
}

macro_rules! field_type {
    (Ptr) => {
        super::DevicePtr
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

/// A row of GEMMs of 1..=16 rows in one form.
macro_rules! skinny_kernels {
    ($source:literal, $what:literal, $params:ident [$($symbol:ident)+], $ring:path, threads $threads:literal) => {
        const _: () = assert!($ring.warps * 32 == $threads);
        kernels! { $source, device:
            #[doc = $what]
            $params [$($symbol)+] (
                dst: Ptr("void*"), ldd: u32, w: Ptr("const unsigned char*"), out: u32, inner: u32, detail: u32,
                w2: Ptr("const unsigned char*"), x: Ptr("const bf16*"), ldx: u32, sums: Ptr("const float*"), eps: f32,
                mul: f32, scale: f32, next_norm: Ptr("const float*"), next_x: Ptr("bf16*"), next_sums: Ptr("float*"),
                next_n: u32, rows: u32, stages: u32, places: u32, deep: u32,
            )
            grid [super::ring::shares(out, device.multiprocessors), 1, 1],
            threads $threads,
            shared super::ring::shared_bytes(&$ring, detail, [stages, places, deep, rows], device.shared_limit);
        }
    };
}

mod compare;
mod draft;
mod fp8;
mod gemm;
mod lightning;
mod lightning_prefill;
mod packed;
mod pool;
mod ring;
mod rows;
mod skinny;
mod skinny_group4;
mod skinny_int4;
mod skinny_int5;
mod skinny_int6;
mod skinny_int8;
mod skinny_mixed;
mod skinny_nvfp4;
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

/// All rows, file by file.
#[cfg(test)]
const TABLE: &[&[tests::Row]] = super::images::kernel_files!(table);

/// Blocks of `by` that hold `n`, at least one.
fn up(n: u32, by: u32) -> u32 {
    n.div_ceil(by).max(1)
}

/// The same for large sizes; too many for a grid stay too many.
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
