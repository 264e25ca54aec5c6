//! The trait's operations as launches.
//!
//! Passes of 1..16 rows (verify) use the skinny kernels, with rows that their producers leave ready; passes of a whole
//! chunk (prefill) make the GEMM's input first and pass it to a library or to `gemm_*`. Nothing here waits, and
//! nothing of a verify pass allocates or takes a host value that changes from step to step: kernels read position,
//! pending rows and tokens from [`super::steps::Step`], grids follow from the number of rows and the largest context.

mod gemm;
mod lightning;
mod mlp;
mod paged;
mod ready;
mod rows;
mod scratch;
mod select;
mod skinny;
mod sparse;

use super::tensors::Buf;
use super::{check_shape, limits};
use crate::backend::Result;

pub(super) use gemm::{Narrow, Output};
pub(super) use lightning::Rope;
pub(super) use ready::Ready;
pub(super) use rows::TopLogitsBuffers;
pub(super) use scratch::Scratch;

fn check_rows(op: &'static str, buf: &Buf, rows: usize) -> Result<()> {
    check_shape(rows <= buf.rows, op, format_args!("at most {} rows", buf.rows), rows)
}

/// The kernels read whole pieces of a row: with another width they would compute wrong values.
fn check_width(inner: usize) -> Result<()> {
    let expected = format_args!("inputs of a multiple of {} values", limits::INNER);
    check_shape(inner.is_multiple_of(limits::INNER), "gemm", expected, inner)
}
