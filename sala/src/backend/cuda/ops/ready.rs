//! Rows of a verify pass that are ready for a GEMM: normed, but for the factor that is the same for a whole row, or
//! gated.
//!
//! The kernel that makes a row's values also makes it ready for the GEMM that
//! [`Rows::hint_next_op`](crate::backend::Rows::hint_next_op) names; without a hint a kernel of its own does so before
//! the GEMM, with the same bits.

use std::ops::Range;

use super::super::Cuda;
use super::super::driver::DevicePtr;
use super::super::launch::{self, NextRows, SUMMED, SkinnyRows};
use super::super::tensors::{Buf, Matrix, Vector};
use super::check_width;
use crate::backend::{MAX_VERIFY_ROWS, NextOp, Pass, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normed,
    Gated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) norm: DevicePtr,
    pub(super) gate: DevicePtr,
    pub(super) ldg: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hint {
    kind: Kind,
    norm: Option<(DevicePtr, usize)>,
    /// Of the gate; empty where there is none.
    columns: Range<usize>,
}

#[derive(Debug, Default)]
pub(in crate::backend::cuda) struct Ready {
    hint: Option<Hint>,
    made: Option<Made>,
    found: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Made {
    of: DevicePtr,
    way: Way,
    n: usize,
    rows: usize,
}

/// The destination of a producer's rows, and the gate to apply: none without a hint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leave {
    pub(super) next: NextRows,
    pub(super) way: Way,
}

const NO_WAY: Way = Way { norm: 0, gate: 0, ldg: 0 };

impl Ready {
    /// Drops the hint and the ready rows: a prefill pass does not use them, or other code has written rows.
    pub(in crate::backend::cuda) fn forget(&mut self) {
        (self.hint, self.made) = (None, None);
    }

    pub(super) fn hint(&mut self, op: NextOp<'_, Vector>) {
        let (kind, norm, columns) = match op {
            NextOp::Norm(norm) => (Kind::Normed, Some(norm), 0..0),
            NextOp::Gate { norm, columns } => (Kind::Gated, norm, columns),
        };
        self.hint = Some(Hint { kind, norm: norm.map(|norm| (norm.memory.ptr(), norm.n)), columns });
    }
}

impl Cuda {
    /// Number of GEMMs that found their rows ready since the start; for checks.
    pub fn found_ready(&self) -> u64 {
        self.ready.found
    }

    /// The destination of rows of `n` values at `of` for the hinted operation, for the kernel that writes them. Rows
    /// that were ready before are stale.
    fn leave_rows(&mut self, of: DevicePtr, n: usize, pass: Pass, kind: Kind, x: Option<&Buf>) -> Result<Leave> {
        let (hint, none) = (self.ready.hint.take(), Leave { next: NextRows::default(), way: NO_WAY });
        self.ready.made = None;
        let (Pass::Verify { rows }, Some(hint)) = (pass, hint) else { return Ok(none) };
        let fits = hint.kind == kind && hint.norm.is_none_or(|(_, width)| width == n) && n.is_multiple_of(SUMMED);
        let (norm, columns) = (hint.norm.map_or(0, |(weight, _)| weight), hint.columns);
        let way = match x {
            _ if !fits => return Ok(none),
            _ if columns.is_empty() => Way { norm, ..NO_WAY },
            Some(x) if columns.len() == n && columns.end <= x.width => {
                Way { norm, gate: x.column(columns.start), ldg: x.width }
            }
            // The reader of the gate reports this error.
            Some(_) | None => return Ok(none),
        };
        let next = self.place(kind, way, n)?;
        self.ready.made = Some(Made { of, way, n, rows });
        Ok(Leave { next, way })
    }

    /// [`Cuda::leave_rows`] of the residual stream, to which products with `w` are added.
    pub(super) fn leave_added(&mut self, h: DevicePtr, w: &Matrix, pass: Pass) -> Result<NextRows> {
        let before = w.parts.len().saturating_sub(1);
        if w.parts.iter().take(before).any(|part| !part.rows.is_multiple_of(SUMMED)) {
            // A part would begin among columns that are summed together.
            self.ready.hint = None;
        }
        self.leave_normed(h, w.out, pass)
    }

    pub(super) fn leave_normed(&mut self, h: DevicePtr, n: usize, pass: Pass) -> Result<NextRows> {
        Ok(self.leave_rows(h, n, pass, Kind::Normed, None)?.next)
    }

    pub(super) fn leave_gated(&mut self, o: DevicePtr, n: usize, pass: Pass, x: &Buf) -> Result<Leave> {
        self.leave_rows(o, n, pass, Kind::Gated, Some(x))
    }

    fn place(&mut self, kind: Kind, way: Way, n: usize) -> Result<NextRows> {
        let values = MAX_VERIFY_ROWS * n * 2;
        let bytes = values + MAX_VERIFY_ROWS * n.div_ceil(SUMMED) * 4;
        let x = match kind {
            Kind::Normed => self.room(|scratch| &mut scratch.normed, bytes)?,
            Kind::Gated => self.room(|scratch| &mut scratch.gated, bytes)?,
        };
        Ok(NextRows { norm: way.norm, x, sums: if way.norm == 0 { 0 } else { x + values as u64 }, n })
    }

    /// f32 rows `first..first + rows` of `src`, `n` values each, in the form of a GEMM's input: ready ones, or made
    /// now.
    pub(super) fn ready_rows(
        &mut self,
        kind: Kind,
        src: &Buf,
        way: Way,
        n: usize,
        [first, rows]: [usize; 2],
        [eps, mul]: [f32; 2],
    ) -> Result<SkinnyRows> {
        check_width(n)?;
        let made = self.ready.made.take();
        let NextRows { x, sums, .. } = self.place(kind, way, n)?;
        let all = SkinnyRows { x, ld: n, sums, eps, mul };
        let fits = |made: Made| (made.of, made.way, made.n) == (src.ptr(), way, n) && first + rows <= made.rows;
        if made.is_some_and(fits) {
            self.ready.found += 1;
            return Ok(all.rows_from(first, n));
        }
        let (d, from, ld) = (self.device.driver(), src.row(first), src.width);
        let Way { norm, gate, ldg } = way;
        let normed = launch::NormRows { dst: x, ldd: n, sums, src: from, lds: ld, norm, n, eps, mul: 1.0, rows };
        let gated = launch::GateRows { dst: x, ldd: n, sums, o: from, ldo: ld, norm, eps, gate, ldg, n, rows };
        // SAFETY: the callers have checked sizes; the place has room for every verify pass.
        unsafe {
            match kind {
                Kind::Normed => normed.launch(d)?,
                Kind::Gated => gated.launch(d)?,
            }
        }
        Ok(all)
    }
}
