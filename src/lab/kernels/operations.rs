//! Every operation of a device against the CPU oracle on the same rounded inputs.

use anyhow::{bail, ensure};

use super::cases::{self, Case, Mode, Sizes, SparseCase};
use super::checks::{Checks, Extent, Outcome, relative, same_bits};
use super::table::{
    ATTENTION, BF16, DRAFT, DRAFT_NORMED, EXACT, GATE_OUTPUT_NORMED, Group, LIGHTNING, NORM_LINEAR, Pair, TOP_LOGITS,
    modes, name, operations_of,
};
use super::{cuts, fp8, ready, reference};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::forms::{Group4, UNIT_COLUMNS};
use crate::backend::{Form, Pass};

const PACKED_FORMS: [Form; 8] = [
    Form::Int8,
    Form::Int6,
    Form::Int5,
    Form::Int4,
    Form::Group4(Group4::G32),
    Form::Group4(Group4::G64),
    Form::Group4(Group4::G128),
    Form::Nvfp4,
];

pub fn operations(checks: &mut Checks, cpu: &mut Cpu, dev: &mut Cuda, extent: Extent) {
    let real = Sizes {
        hidden: 1024,
        intermediate: 1536,
        vocab: 5003,
        heads: 32,
        kv_heads: 2,
        lightning_heads: 32,
        form: Form::Bf16,
        in_fp8: false,
    };
    let small = Sizes { hidden: 256, intermediate: 320, vocab: 2311, heads: 4, lightning_heads: 2, ..real };
    let (sizes, verify, prefill): (Sizes, &[usize], &[usize]) = match extent {
        Extent::Emulated => (small, &[1, 5, 16], &[65]),
        Extent::Device => (real, &[1, 2, 5, 8, 16], &[63, 64, 65, 1000]),
        Extent::Limits => (real, &[1, 8, 16], &[65]),
    };
    let pair = &mut Pair { cpu, dev };
    for pass in cases::passes(verify, prefill) {
        let case = Case { pass, position: 0, seed: 11 };
        operations_of(Group::Passes).for_each(|op| op.check(checks, pair, sizes, case, ""));
        if let Pass::Verify { .. } = pass {
            TOP_LOGITS.check(checks, pair, sizes, case, "");
        }
        for (op, position) in [(LIGHTNING, 0), (LIGHTNING, 2_000_000), (DRAFT, 0), (DRAFT, 700)] {
            op.check(checks, pair, sizes, Case { position, ..case }, "");
        }
    }
    wide_rows(checks, pair, sizes);
    // On a device, the width of the 9B model's concatenated auxiliary hidden states; emulated, more columns than one
    // round takes.
    let hidden = if extent == Extent::Emulated { 512 } else { 4096 };
    let head = Sizes { hidden, heads: 1, kv_heads: 1, vocab: 64, intermediate: 64, ..sizes };
    let case = Case { pass: Pass::Verify { rows: 3 }, position: 0, seed: 29 };
    DRAFT_NORMED.check(checks, pair, head, case, &format!(" of {} columns", 3 * hidden));
    let positions: &[usize] = match extent {
        Extent::Emulated => &[63, 6143],
        Extent::Device => &[0, 15, 63, 64, 65, 127, 128, 6143, 6144, 6145, 20_000],
        Extent::Limits => &[0, 127, 6144, 20_000],
    };
    for pass in cases::passes(verify, prefill) {
        // Long passes reach many positions by themselves.
        let long = pass.rows() > 100;
        for position in positions.iter().filter(|p| !long || [0, 6143, 20_000].contains(*p)) {
            let case = Case { pass, position: *position, seed: 23 };
            checks.add(name("sparse layer", case), || sparse(pair, sizes, case));
        }
    }
    checks.add("comparison: one bit in any place is found", || one_bit_is_found(pair.dev));
    rows_together(checks, pair.dev, sizes);
    for form in PACKED_FORMS {
        let sizes = Sizes { form, intermediate: sizes.intermediate.next_multiple_of(UNIT_COLUMNS), ..sizes };
        let about = format!(" {} ({})", form.name(), form.row().map_or(0, |row| row.unit_bytes));
        for pass in cases::passes(verify, prefill) {
            let case = Case { pass, position: 0, seed: 41 };
            operations_of(Group::Packed).for_each(|op| op.check(checks, pair, sizes, case, &about));
        }
        rows_together(checks, pair.dev, sizes);
    }
    fp8::products(checks, pair, sizes, prefill);
    cuts::layers(checks, pair.cpu, sizes);
    cuts::layers(checks, pair.dev, sizes);
}

/// The rows of one pass of 16 against the same rows in shorter passes, and against rows prepared ahead of time.
fn rows_together(checks: &mut Checks, dev: &mut Cuda, sizes: Sizes) {
    let form = sizes.form.name();
    for op in operations_of(Group::Alone) {
        let name = format!("{} {form}: a row alone has the bits it has among 16", op.name);
        checks.add(name, || op.rows_alone(dev, sizes, 31, 16, &[1, 2, 3, 8, 9]));
    }
    ready::check(checks, dev, sizes);
}

fn one_bit_is_found(dev: &mut Cuda) -> anyhow::Result<Outcome> {
    let a: Vec<u8> = (0..16 * (3 * 1024 + 5)).map(|i| (i * 7 % 251) as u8).collect();
    ensure!(!dev.differ(&a, &a)?, "equal arrays are reported to differ");
    for at in [0, 5, 1024 * 16 + 11, 2 * 1024 * 16 - 1, a.len() - 1] {
        let mut b = a.clone();
        b.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 0x10);
        ensure!(dev.differ(&a, &b)?, "a bit in byte {at} is not found");
    }
    Ok(Outcome::Holds)
}

/// A sparse layer: appended rows against the oracle's, choice and attention against the formulas.
fn sparse(pair: &mut Pair, sizes: Sizes, case: Case) -> anyhow::Result<Outcome> {
    let mut device = SparseCase::new(pair.dev, sizes, case)?;
    let first = device.run(pair.dev, Mode::Eager)?;
    for (what, mode) in modes(case.pass) {
        let other = device.run(pair.dev, *mode)?;
        ensure!(other.chosen == first.chosen, "{what}: the choice of blocks differs");
        same_bits(&first.output, &other.output, what)?;
        ensure!(other.mass == first.mass, "{what}: the attention mass differs");
    }
    pair.dev.check_guards()?;
    let expected = SparseCase::new(pair.cpu, sizes, case)?.run(pair.cpu, Mode::Eager)?;
    for (found, expected) in first.cache.iter().zip(&expected.cache) {
        let error = relative(&cases::numbers(found), &cases::numbers(expected));
        let budget = if matches!(expected.name.as_str(), "k" | "v") { EXACT } else { BF16 };
        if expected.shape != found.shape || !(error <= budget || expected.data.is_empty()) {
            bail!("cache array {}: relative error {error:.2e}, at most {budget:.0e} allowed", expected.name);
        }
    }
    let spec = &device.layer.spec;
    let error = reference::judge(spec, &first, case.position, (case.pass.rows() / 12).max(1))?;
    for (device, run) in [("device", &first), ("CPU", &expected)] {
        if let Some(wrong) = reference::wrong_mass(spec, run, case.position) {
            bail!("{device}: {wrong}");
        }
    }
    Ok(Outcome::Error { error, budget: ATTENTION })
}

/// Rows of more than 4096 columns, which a lane processes in several rounds: inside a GEMM's block and in a kernel
/// before it.
fn wide_rows(checks: &mut Checks, pair: &mut Pair, sizes: Sizes) {
    const WIDE: usize = 4096 + 128;
    for form in [Form::Bf16, Form::Int8, Form::Int4] {
        let normed = Sizes { hidden: WIDE, heads: 1, kv_heads: 1, form, ..sizes };
        let gated = Sizes { hidden: 256, heads: WIDE / 128, kv_heads: 1, form, ..sizes };
        let about = format!(" {} of {WIDE} columns", form.name());
        for rows in [1, 3] {
            let case = Case { pass: Pass::Verify { rows }, position: 0, seed: 19 };
            NORM_LINEAR.check(checks, pair, normed, case, &about);
            GATE_OUTPUT_NORMED.check(checks, pair, gated, case, &about);
        }
        let name = format!("norm_linear{about}: a row alone has the bits it has among 3");
        checks.add(name, || NORM_LINEAR.rows_alone(pair.dev, normed, 19, 3, &[1]));
    }
}
