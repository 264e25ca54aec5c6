//! Prefill in fp8: narrow rows against the format's definition, byte by byte, and products against the oracle with
//! operands rounded the same way. A device without fp8 products checks the rows alone.

use half::bf16;

use super::cases::{self, Case, Run, Sizes};
use super::checks::{BF16, Checks, Outcome, first_difference, place, relative, repeatable, words};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::backend::{Form, GRID, Pass, Result, fp8};

/// Widths of the compared rows: several pieces a thread, a narrow row, and more than a thread holds.
const WIDTHS: [usize; 3] = [1024, 64, 16_384 + 4096 + 64];
/// Forms to narrow from: directly, and widened first.
const FORMS: [Form; 3] = [Form::Bf16, Form::Int8, Form::Int4];

/// For two products in sequence: a value that rounds differently in bf16 may narrow to the next e4m3.
const NARROW_TWICE: f64 = 1.2e-2;

pub fn products(checks: &mut Checks, cpu: &mut Cpu, dev: &mut Cuda, sizes: Sizes, prefill: &[usize]) {
    for n in WIDTHS {
        checks.add(format!("rows of {n} in e4m3 are those of the definition"), || rows_of(dev, n));
        checks
            .add(format!("rows of {n} behind a norm and a gate are the same in e4m3 by way of bf16"), || gated(dev, n));
    }
    if !dev.has_fp8() {
        return;
    }
    // Sets the position in the segment: the first rows of a segment are in bf16.
    let at = |read: usize, cpu: &mut Cpu, dev: &mut Cuda| {
        cpu.segment_at(read);
        dev.segment_at(read);
    };
    for form in FORMS {
        let sizes = Sizes { form, in_fp8: true, intermediate: sizes.intermediate.next_multiple_of(128), ..sizes };
        let cases = cases::passes(&[], prefill).into_iter().map(|pass| (fp8::PLAIN_ROWS, pass));
        // The last case crosses the position where bf16 ends.
        for (read, pass) in cases.chain([(fp8::PLAIN_ROWS - GRID, Pass::Prefill { rows: 2 * GRID + 1 })]) {
            at(read, cpu, dev);
            let case = Case { pass, position: read, seed: 53 };
            macro_rules! compare {
                ($name:literal, $op:path, $budget:expr) => {
                    checks.add(place(&format!("{} in fp8, {}", $name, form.name()), &case), || {
                        let mut device = $op(dev, sizes, case).map_err(words)?;
                        let found = repeatable(dev, &mut device, case.pass)?;
                        let mut oracle = $op(cpu, sizes, case).map_err(words)?;
                        let expected = oracle(cpu, cases::Mode::Eager).map_err(words)?;
                        Ok(Outcome::Error { error: relative(&found, &expected), budget: $budget })
                    });
                };
            }
            compare!("norm_linear", cases::norm_linear, BF16);
            compare!("norm_gate_up", cases::norm_gate_up, BF16);
            compare!("linear_add", cases::linear_add, BF16);
            compare!("mlp", cases::mlp, NARROW_TWICE);
            compare!("gate_output (normed)", cases::gate_output_normed, BF16);
            compare!("gate_output (plain)", cases::gate_output_plain, BF16);
        }
    }
    at(fp8::PLAIN_ROWS, cpu, dev);
    let sizes = Sizes { in_fp8: true, ..sizes };
    checks.add("products in fp8: a row keeps its bits however a pass is cut".to_owned(), || cuts(dev, sizes));
    checks.add("products in fp8: the first rows of a segment are read in bf16".to_owned(), || first_rows(dev, sizes));
    checks.add("products in fp8: weights that are kept in e4m3 change nothing".to_owned(), || kept(dev, sizes));
    at(0, cpu, dev);
}

/// Every bf16 number that a scale of one leaves unchanged, and rows that are hard to scale.
fn rows_of(dev: &mut Cuda, n: usize) -> Result<Outcome, String> {
    let bits = |x: f32| bf16::from_f32(x).to_bits();
    let largest = bits(fp8::LARGEST);
    let mut rows: Vec<u16> = Vec::new();
    // A row's first value is the largest one; the others run through all smaller ones of both signs.
    let mut small = (0..=largest).flat_map(|x| [x, x | 0x8000]).peekable();
    while small.peek().is_some() {
        rows.push(largest);
        rows.extend((1..n).map(|_| small.next().unwrap_or(0)));
    }
    let mut row = |values: &[f32]| {
        let first: Vec<u16> = values.iter().map(|x| bits(*x)).collect();
        rows.extend(first.into_iter().chain((0..).map(|i| bits(values[0] * (i % 61) as f32 / 61.0))).take(n));
    };
    row(&[0.0]);
    row(&[-0.0, 0.0]);
    row(&[1e-30, -1e-31, 1e-38]);
    row(&[1.1e-30, -1e-31, 1e-38]);
    row(&[3.0e38, -1.0, 2e-38]);
    row(&[1.7, f32::NAN, -1.7]);
    row(&[2.0, f32::INFINITY, -1.0]);
    row(&[-0.37, 0.36]);
    let (bytes, scales) = dev.narrowed(&rows, n).map_err(words)?;
    dev.check_guards().map_err(words)?;
    for (r, row) in rows.chunks_exact(n).enumerate() {
        let values: Vec<f32> = row.iter().map(|x| bf16::from_bits(*x).to_f32()).collect();
        let (expected, scale) = fp8::narrow(&values);
        let found = row_of(&bytes, r, n)?;
        // e4m3 has two codes for NaN.
        let same = |a: u8, b: u8| a == b || (fp8::value(a).is_nan() && fp8::value(b).is_nan());
        if let Some(at) = expected.iter().zip(found).position(|(a, b)| !same(*a, *b)) {
            let (value, a, b) = (values[at], expected[at], found[at]);
            return Err(format!("row {r}, value {at}: {value:e} is {b:#04x}, expected {a:#04x}"));
        }
        if scales.get(r).map(|s| s.to_bits()) != Some(scale.to_bits()) {
            return Err(format!("row {r}: scale {:?}, expected {scale:e}", scales.get(r)));
        }
    }
    Ok(Outcome::Holds)
}

fn row_of(bytes: &[u8], row: usize, n: usize) -> Result<&[u8], String> {
    bytes
        .get(row * n..(row + 1) * n)
        .ok_or_else(|| format!("row {row}: {} bytes came back, rows are of {n}", bytes.len()))
}

fn gated(dev: &mut Cuda, n: usize) -> Result<Outcome, String> {
    let rows = 5;
    let mut values = cases::values(71, rows * n, 1.0);
    values[..n].fill(0.0);
    let norm = cases::values(73, n, 1.0);
    let gate: Vec<u16> = cases::values(79, rows * n, 3.0).iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
    for (norm, gate) in [(&norm[..], &gate[..]), (&norm, &[]), (&[], &gate), (&[], &[])] {
        let [direct, by_way] = dev.gated(&values, norm, gate, n).map_err(words)?;
        dev.check_guards().map_err(words)?;
        if let Some(at) = direct.iter().zip(&by_way).position(|(a, b)| a != b) {
            let with = format!("{} norm, {} gate", norm.len().min(1), gate.len().min(1));
            return Err(format!("{with}: byte {at} is {:#04x}, by way of bf16 {:#04x}", direct[at], by_way[at]));
        }
    }
    Ok(Outcome::Holds)
}

type Make = fn(&mut Cuda, Sizes, Case) -> Result<Run<Cuda>>;
const MADE: [(&str, Make); 4] = [
    ("norm_gate_up", cases::norm_gate_up),
    ("linear_add", cases::linear_add),
    ("norm_linear", cases::norm_linear),
    ("mlp", cases::mlp),
];

/// The first rows of a pass have the same bits in a shorter pass.
fn cuts(dev: &mut Cuda, sizes: Sizes) -> Result<Outcome, String> {
    let most = dev.prefill_rows().min(1000);
    for (name, make) in MADE {
        let run = |dev: &mut Cuda, rows: usize| -> Result<Vec<f32>, String> {
            let case = Case { pass: Pass::Prefill { rows }, position: 0, seed: 59 };
            make(dev, sizes, case).map_err(words)?(dev, cases::Mode::Eager).map_err(words)
        };
        let all = run(dev, most)?;
        for rows in [1, GRID, GRID + 1, 3 * GRID].into_iter().filter(|rows| *rows < most) {
            let few = run(dev, rows)?;
            if let Some(at) = first_difference(&few, all.get(..few.len()).unwrap_or_default()) {
                return Err(format!("{name}: {rows} rows differ from {most} at value {at}"));
            }
        }
    }
    Ok(Outcome::Holds)
}

/// At the start of a segment an fp8 product equals the bf16 product.
fn first_rows(dev: &mut Cuda, sizes: Sizes) -> Result<Outcome, String> {
    let case = Case { pass: Pass::Prefill { rows: 65 }, position: 0, seed: 61 };
    let run = |dev: &mut Cuda, read: usize, in_fp8: bool| -> Result<Vec<f32>, String> {
        dev.segment_at(read);
        let mut run = cases::norm_linear(dev, Sizes { in_fp8, ..sizes }, case).map_err(words)?;
        run(dev, cases::Mode::Eager).map_err(words)
    };
    let (plain, narrow) = (run(dev, 0, false)?, run(dev, 0, true)?);
    let later = run(dev, fp8::PLAIN_ROWS, true)?;
    if let Some(at) = first_difference(&plain, &narrow) {
        return Err(format!("value {at} differs"));
    }
    if first_difference(&plain, &later).is_none() {
        return Err("the rows behind them are read in bf16 too".into());
    }
    Ok(Outcome::Holds)
}

/// From a text's second pass on the device keeps weights in e4m3 if it has room, and takes another path for MLPs.
fn kept(dev: &mut Cuda, sizes: Sizes) -> Result<Outcome, String> {
    let case = Case { pass: Pass::Prefill { rows: 65 }, position: 0, seed: 67 };
    for (name, make) in MADE {
        let mut run = make(dev, sizes, case).map_err(words)?;
        let mut read = |dev: &mut Cuda, read: usize| -> Result<Vec<f32>, String> {
            dev.segment_at(read);
            run(dev, cases::Mode::Eager).map_err(words)
        };
        // With short passes `PLAIN_ROWS` is already past the text's first pass, so this call keeps the weights.
        let before = dev.memory().weights;
        let first = read(dev, fp8::PLAIN_ROWS)?;
        let later = dev.prefill_rows().max(fp8::PLAIN_ROWS);
        for _ in 0..2 {
            let again = read(dev, later)?;
            if let Some(at) = first_difference(&first, &again) {
                return Err(format!("{name}: value {at} differs"));
            }
        }
        if dev.memory().weights == before {
            return Err(format!("{name}: nothing was kept"));
        }
    }
    Ok(Outcome::Holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_did_not_come_back_are_no_row() {
        assert_eq!(row_of(&[1, 2, 3, 4], 1, 2), Ok(&[3, 4][..]));
        assert_eq!(row_of(&[1, 2, 3], 1, 2), Err("row 1: 3 bytes came back, rows are of 2".to_owned()));
    }
}
