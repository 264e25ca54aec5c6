//! Prefill in fp8: narrow rows against the format's definition, byte by byte, and products against the oracle with
//! operands rounded the same way. A device without fp8 products checks the rows alone.

use anyhow::{bail, ensure};
use half::bf16;

use super::cases::{self, Case, Sizes};
use super::same_bits;
use super::table::{Group, NORM_LINEAR, Pair, operations_of};
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::backend::{Form, GRID, Pass, fp8};
use crate::lab::checks::Checks;
use crate::lab::layers::Mode;

/// Widths of the compared rows: several pieces a thread, a narrow row, and more than a thread holds.
const WIDTHS: [usize; 3] = [1024, 64, 16_384 + 4096 + 64];
/// Forms to narrow from: directly, and widened first.
const FORMS: [Form; 3] = [Form::Bf16, Form::Int8, Form::Int4];

pub(super) fn products(checks: &mut Checks, pair: &mut Pair, case: Case, prefill: &[usize]) {
    let sizes = case.sizes;
    for n in WIDTHS {
        checks.add(format!("rows of {n} in e4m3 are those of the definition"), || rows_of(pair.dev, n));
        checks.add(format!("rows of {n} after a norm and a gate are the same in e4m3 by way of bf16"), || {
            gated(pair.dev, n)
        });
    }
    if !pair.dev.has_fp8() {
        return;
    }
    // Sets the position in the segment: the first rows of a segment are in bf16.
    let at = |pair: &mut Pair, read: usize| {
        pair.cpu.segment_at(read);
        pair.dev.segment_at(read);
    };
    for form in FORMS {
        let sizes = Sizes { form, in_fp8: true, intermediate: sizes.intermediate.next_multiple_of(128), ..sizes };
        let cases = cases::passes(&[], prefill).into_iter().map(|pass| (fp8::PLAIN_ROWS, pass));
        // The last case crosses the position where bf16 ends.
        for (read, pass) in cases.chain([(fp8::PLAIN_ROWS - GRID, Pass::Prefill { rows: 2 * GRID + 1 })]) {
            at(pair, read);
            let case = Case { sizes, pass, position: read, seed: 53 };
            let about = format!(" in fp8, {}", form.name());
            operations_of(Group::Fp8).for_each(|op| op.check(checks, pair, case, &about));
        }
    }
    at(pair, fp8::PLAIN_ROWS);
    let sizes = Sizes { in_fp8: true, ..sizes };
    let case = Case { sizes, pass: Pass::Prefill { rows: 65 }, position: 0, seed: 61 };
    checks.add("products in fp8: a row keeps its bits however a pass is cut", || cuts(pair.dev, case));
    checks.add("products in fp8: the first rows of a segment are read in bf16", || first_rows(pair.dev, case));
    checks.add("products in fp8: weights that are kept in e4m3 change nothing", || kept(pair.dev, case));
    at(pair, 0);
}

/// Every bf16 number that a scale of one leaves unchanged, and rows that are hard to scale.
fn rows_of(dev: &mut Cuda, n: usize) -> anyhow::Result<()> {
    let bits = |x: f32| bf16::from_f32(x).to_bits();
    let largest = bits(fp8::LARGEST);
    let mut rows: Vec<u16> = Vec::new();
    // A row's first value is the largest one; the others run through all smaller ones of both signs.
    let mut small = (0..=largest).flat_map(|x| [x, x | 0x8000]).peekable();
    while small.peek().is_some() {
        rows.push(largest);
        rows.extend((1..n).map(|_| small.next().unwrap_or(0)));
    }
    let hard: [&[f32]; 8] = [
        &[0.0],
        &[-0.0, 0.0],
        &[1e-30, -1e-31, 1e-38],
        &[1.1e-30, -1e-31, 1e-38],
        &[3.0e38, -1.0, 2e-38],
        &[1.7, f32::NAN, -1.7],
        &[2.0, f32::INFINITY, -1.0],
        &[-0.37, 0.36],
    ];
    for first in hard {
        let rest = (0..).map(|i| first[0] * (i % 61) as f32 / 61.0);
        rows.extend(first.iter().copied().chain(rest).take(n).map(bits));
    }
    let (bytes, scales) = dev.narrowed(&rows, n)?;
    dev.check_guards()?;
    let counts = [rows.len() / n, bytes.len() / n, scales.len()];
    ensure!(counts.iter().all(|count| *count == counts[0]), "rows, their bytes and their scales are {counts:?}");
    for (r, ((row, found), found_scale)) in rows.chunks_exact(n).zip(bytes.chunks_exact(n)).zip(scales).enumerate() {
        let values: Vec<f32> = row.iter().map(|x| bf16::from_bits(*x).to_f32()).collect();
        let (expected, scale) = fp8::narrow(&values);
        // e4m3 has two codes for NaN.
        let same = |a: u8, b: u8| a == b || (fp8::value(a).is_nan() && fp8::value(b).is_nan());
        if let Some(at) = expected.iter().zip(found).position(|(a, b)| !same(*a, *b)) {
            let (value, a, b) = (values[at], expected[at], found[at]);
            bail!("row {r}, value {at}: {value:e} is {b:#04x}, expected {a:#04x}");
        }
        ensure!(found_scale.to_bits() == scale.to_bits(), "row {r}: scale {found_scale:e}, expected {scale:e}");
    }
    Ok(())
}

fn gated(dev: &mut Cuda, n: usize) -> anyhow::Result<()> {
    let rows = 5;
    let mut values = cases::values(71, rows * n, 1.0);
    values[..n].fill(0.0);
    let norm = cases::values(73, n, 1.0);
    let gate: Vec<u16> = cases::values(79, rows * n, 3.0).iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
    for (norm, gate) in [(&norm[..], &gate[..]), (&norm, &[]), (&[], &gate), (&[], &[])] {
        let [direct, by_way] = dev.gated(&values, norm, gate, n)?;
        dev.check_guards()?;
        if let Some(at) = direct.iter().zip(&by_way).position(|(a, b)| a != b) {
            let with = format!("{} norm, {} gate", norm.len().min(1), gate.len().min(1));
            bail!("{with}: byte {at} is {:#04x}, by way of bf16 {:#04x}", direct[at], by_way[at]);
        }
    }
    Ok(())
}

/// The first rows of a pass have the same bits in a shorter pass.
fn cuts(dev: &mut Cuda, case: Case) -> anyhow::Result<()> {
    let most = dev.prefill_rows().min(1000);
    let of = |rows| Case { pass: Pass::Prefill { rows }, ..case };
    for op in operations_of(Group::Fp8Cuts) {
        let all = op.eager(dev, of(most))?;
        for rows in [1, GRID, GRID + 1, 3 * GRID].into_iter().filter(|rows| *rows < most) {
            let few = op.eager(dev, of(rows))?;
            let what = format!("{}: {rows} rows and {most}", op.name);
            same_bits(&few, all.get(..few.len()).unwrap_or_default(), what)?;
        }
    }
    Ok(())
}

/// At the start of a segment an fp8 product equals the bf16 product.
fn first_rows(dev: &mut Cuda, case: Case) -> anyhow::Result<()> {
    let run = |dev: &mut Cuda, read: usize, in_fp8: bool| {
        dev.segment_at(read);
        NORM_LINEAR.eager(dev, Case { sizes: Sizes { in_fp8, ..case.sizes }, ..case })
    };
    let (plain, narrow) = (run(dev, 0, false)?, run(dev, 0, true)?);
    let later = run(dev, fp8::PLAIN_ROWS, true)?;
    same_bits(&plain, &narrow, "bf16 and fp8")?;
    ensure!(same_bits(&plain, &later, "").is_err(), "the rows after them are read in bf16 too");
    Ok(())
}

/// From a text's second pass on the device keeps weights in e4m3 if it has room, and takes another path for MLPs.
fn kept(dev: &mut Cuda, case: Case) -> anyhow::Result<()> {
    for op in operations_of(Group::Fp8Cuts) {
        let mut run = (op.device)(dev, case)?;
        let mut read = |dev: &mut Cuda, read: usize| {
            dev.segment_at(read);
            run(dev, Mode::Eager)
        };
        // With short passes `PLAIN_ROWS` is already past the text's first pass, so this call keeps the weights.
        let before = dev.memory().weights;
        let first = read(dev, fp8::PLAIN_ROWS)?;
        let later = dev.prefill_rows().max(fp8::PLAIN_ROWS);
        for _ in 0..2 {
            same_bits(&first, &read(dev, later)?, op.name)?;
        }
        ensure!(dev.memory().weights != before, "{}: nothing was kept", op.name);
    }
    Ok(())
}
