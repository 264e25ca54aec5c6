//! Packing that minimises the error of a weight's output, from the second moments of its input over text.
//!
//! The measure is not the squared error of the weights, `eᵀe`, but that of their products, `eᵀHe` with `H = Σ x xᵀ`.
//! Only entries of `H` within a unit count. Each column's share weighs it in the choice of scales; then the columns
//! are rounded one after the other, and later columns of the unit compensate for the error of each (as GPTQ does, with
//! the same triangular factor). A row of a unit is kept only where it beats [`Packed::pack`]. The layout is the same.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::{Form, NotFinite, Packed, Place, UNIT_COLUMNS};

/// Added to the diagonal of a unit, as a share of its mean: columns that are almost always zero still count.
const DAMPING: f64 = 0.01;

pub(super) trait Rounding: Sized + Copy + Default {
    const COLUMNS: usize;
    /// Scale (and zero point) of a group, with weighted columns. Equal weights give the plain choice.
    fn choose(x: &[f32], weights: &[f32]) -> Self;
    fn round(&self, x: f32) -> (i32, f32);
    fn put(&self, unit: &mut [u8], place: Place, group: usize, codes: &[i32]);
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OutputErrors {
    /// Σ wᵀHw.
    pub all: f64,
    /// Σ eᵀHe of plain packing.
    pub plain: f64,
    pub careful: f64,
}

impl std::ops::AddAssign for OutputErrors {
    fn add_assign(&mut self, other: OutputErrors) {
        self.all += other.all;
        self.plain += other.plain;
        self.careful += other.careful;
    }
}

pub(super) struct Unit {
    /// The upper half of `H`, with half the diagonal. `[128, 128]`
    moments: Vec<f32>,
    /// Row j: the compensation of each later column for an error of 1 in column j. `[128, 128]`
    feedback: Vec<f32>,
    /// Cost of a column's error after compensation; 1 on average.
    weights: [f32; UNIT_COLUMNS],
}

impl Unit {
    /// `None` where the moments are zero.
    fn new(moments: &[f32]) -> Option<Unit> {
        const N: usize = UNIT_COLUMNS;
        let at = |i: usize, j: usize| moments.get(i.min(j) * N + i.max(j)).map_or(0.0, |v| f64::from(*v));
        let mean = (0..N).map(|i| at(i, i)).sum::<f64>() / N as f64;
        if !(mean.is_normal() && mean > 0.0) {
            return None;
        }
        // H + damping = M Mᵀ with M upper triangular, from the last column on.
        let mut m = vec![0f64; N * N];
        for j in (0..N).rev() {
            for i in (0..=j).rev() {
                let known: f64 = (j + 1..N).map(|k| m[i * N + k] * m[j * N + k]).sum();
                let rest = at(i, j) / mean + if i == j { DAMPING } else { 0.0 } - known;
                m[i * N + j] = if i == j { rest.max(DAMPING * 1e-3).sqrt() } else { rest / m[j * N + j] };
            }
        }
        // U = M⁻¹; its rows over their diagonals.
        let mut u = vec![0f64; N * N];
        for j in 0..N {
            u[j * N + j] = 1.0 / m[j * N + j];
            for i in (0..j).rev() {
                let sum: f64 = (i + 1..=j).map(|k| m[i * N + k] * u[k * N + j]).sum();
                u[i * N + j] = -sum / m[i * N + i];
            }
        }
        let feedback = (0..N * N).map(|at| if at % N > at / N { (u[at] * m[at / N * (N + 1)]) as f32 } else { 0.0 });
        let costs: [f32; N] = std::array::from_fn(|j| (m[j * N + j] * m[j * N + j]) as f32);
        let cost = costs.iter().map(|c| f64::from(*c)).sum::<f64>() / N as f64;
        let half = |k: usize| match (k / N).cmp(&(k % N)) {
            std::cmp::Ordering::Less => at(k / N, k % N) as f32,
            std::cmp::Ordering::Equal => (at(k / N, k % N) / 2.0) as f32,
            std::cmp::Ordering::Greater => 0.0,
        };
        Some(Unit {
            moments: (0..N * N).map(half).collect(),
            feedback: feedback.collect(),
            weights: costs.map(|c| (f64::from(c) / cost) as f32),
        })
    }

    /// `eᵀHe`
    #[inline(always)]
    fn cost(&self, e: &[f32]) -> f64 {
        let rows = self.moments.chunks_exact(UNIT_COLUMNS).zip(e).enumerate();
        let sum: f64 = rows
            .map(|(i, (row, a))| {
                let from = i / 8 * 8;
                let (row, e) = (row.get(from..).unwrap_or_default(), e.get(from..).unwrap_or_default());
                f64::from(*a * dot(row, e))
            })
            .sum();
        2.0 * sum
    }
}

/// Eight sums, which the compiler keeps in one register. Lengths are multiples of eight.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

struct Row<R> {
    codes: [i32; UNIT_COLUMNS],
    off: [f32; UNIT_COLUMNS],
    groups: [R; UNIT_COLUMNS / 32],
}

impl<R: Rounding> Row<R> {
    /// Rounds column by column; with `unit`, later columns compensate for errors.
    #[inline(always)]
    fn of(x: &[f32], unit: Option<&Unit>) -> Row<R> {
        let mut row =
            Row { codes: [0; UNIT_COLUMNS], off: [0.0; UNIT_COLUMNS], groups: [R::default(); UNIT_COLUMNS / 32] };
        let mut rest = [0f32; UNIT_COLUMNS];
        rest.iter_mut().zip(x).for_each(|(to, x)| *to = *x);
        for (group, first) in row.groups.iter_mut().zip((0..UNIT_COLUMNS).step_by(R::COLUMNS)) {
            let columns = first..first + R::COLUMNS;
            let weights = unit.map_or(&EQUAL, |unit| &unit.weights);
            *group = R::choose(&rest[columns.clone()], &weights[columns.clone()]);
            for j in columns {
                let (code, value) = group.round(rest[j]);
                (row.codes[j], row.off[j]) = (code, value - x.get(j).copied().unwrap_or_default());
                let Some(unit) = unit else { continue };
                let error = rest[j] - value;
                let from = (j + 1) / 8 * 8;
                let feedback = unit.feedback.get(j * UNIT_COLUMNS + from..(j + 1) * UNIT_COLUMNS).unwrap_or_default();
                rest[from..].iter_mut().zip(feedback).for_each(|(x, f)| *x -= error * f);
            }
        }
        row
    }

    fn put(&self, unit: &mut [u8], place: Place) {
        for (i, (group, codes)) in self.groups.iter().zip(self.codes.chunks_exact(R::COLUMNS)).enumerate() {
            group.put(unit, place, i, codes);
        }
    }
}

const EQUAL: [f32; UNIT_COLUMNS] = [1.0; UNIT_COLUMNS];

/// Packs a unit's row in the better of two ways, with this machine's vector instructions.
pub(super) fn pack_row<R: Rounding>(bytes: &mut [u8], place: Place, x: &[f32], unit: Option<&Unit>) -> OutputErrors {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || better::<R>(bytes, place, x, unit),
    )
}

#[inline(always)]
fn better<R: Rounding>(bytes: &mut [u8], place: Place, x: &[f32], unit: Option<&Unit>) -> OutputErrors {
    let plain = Row::<R>::of(x, None);
    let Some(unit) = unit else {
        plain.put(bytes, place);
        return OutputErrors::default();
    };
    let careful = Row::<R>::of(x, Some(unit));
    let (before, after) = (unit.cost(&plain.off), unit.cost(&careful.off));
    if after < before {
        careful.put(bytes, place)
    } else {
        plain.put(bytes, place)
    }
    OutputErrors { all: unit.cost(x), plain: before, careful: after.min(before) }
}

impl Packed {
    /// [`Packed::pack`] by the second moments of the weight's input: for each unit of columns the upper half of `Σ x
    /// xᵀ`, `[inner / 128, 128, 128]`. Units with only zeros are packed plainly.
    pub fn pack_careful(
        form: Form,
        out: usize,
        inner: usize,
        moments: &[f32],
        fill: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<(Packed, OutputErrors), NotFinite> {
        let pack = form.row().and_then(|row| row.pack).ok_or(NotFinite)?;
        if moments.len() != inner * UNIT_COLUMNS {
            return Err(NotFinite);
        }
        let units: Vec<Option<Unit>> = moments.par_chunks(UNIT_COLUMNS * UNIT_COLUMNS).map(Unit::new).collect();
        // One sum per pair of tiles, added in order.
        let sums = Mutex::new(BTreeMap::new());
        let packed = Packed::pack_with(form, out, inner, fill, |pair, r, bytes, values| {
            let mut sum = OutputErrors::default();
            let unit_bytes = bytes.len() / units.len().max(1);
            for ((bytes, x), unit) in
                bytes.chunks_exact_mut(unit_bytes.max(1)).zip(values.chunks_exact(UNIT_COLUMNS)).zip(&units)
            {
                sum += pack(bytes, Place::of(r), x, unit.as_ref());
            }
            sums.lock().unwrap_or_else(PoisonError::into_inner).insert((pair, r), sum);
        })?;
        let mut all = OutputErrors::default();
        let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
        sums.into_values().for_each(|sum| all += sum);
        Ok((packed, all))
    }
}
