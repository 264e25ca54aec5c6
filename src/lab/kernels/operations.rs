//! Every operation of a device against the CPU oracle on the same rounded inputs.

use super::cases::{self, Case, Mode, Sizes, SparseCase};
use super::checks::{
    ATTENTION, BF16, Checks, EXACT, Extent, Outcome, RECURRENT, alone_and_among, first_difference, place, relative,
    repeatable, rows_alone_and_together, words,
};
use super::{cuts, fp8, packed, ready, reference};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::{Form, Pass, Result};

macro_rules! compare {
    ($checks:expr, $cpu:expr, $dev:expr, $sizes:expr, $case:expr, $name:expr, $op:path, $budget:expr) => {{
        let (sizes, case) = ($sizes, $case);
        $checks.add(place($name, &case), || {
            let mut device = $op($dev, sizes, case).map_err(words)?;
            let found = repeatable($dev, &mut device, case.pass)?;
            let mut oracle = $op($cpu, sizes, case).map_err(words)?;
            let expected = oracle($cpu, Mode::Eager).map_err(words)?;
            Ok(Outcome::Error { error: relative(&found, &expected), budget: $budget })
        });
    }};
}

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
    for pass in cases::passes(verify, prefill) {
        let case = Case { pass, position: 0, seed: 11 };
        compare!(checks, cpu, dev, sizes, case, "embed", cases::embed, EXACT);
        compare!(checks, cpu, dev, sizes, case, "norm_linear", cases::norm_linear, BF16);
        compare!(checks, cpu, dev, sizes, case, "norm_gate_up", cases::norm_gate_up, BF16);
        compare!(checks, cpu, dev, sizes, case, "linear_add", cases::linear_add, BF16);
        compare!(checks, cpu, dev, sizes, case, "gate_output (normed)", cases::gate_output_normed, BF16);
        compare!(checks, cpu, dev, sizes, case, "gate_output (plain)", cases::gate_output_plain, BF16);
        compare!(checks, cpu, dev, sizes, case, "keep_aux_hidden", cases::keep_aux_hidden, EXACT);
        compare!(checks, cpu, dev, sizes, case, "head", cases::head, BF16);
        if let Pass::Verify { .. } = pass {
            compare!(checks, cpu, dev, sizes, case, "top_logits", cases::top_logits, EXACT);
        }
        for position in [0, 2_000_000] {
            compare!(checks, cpu, dev, sizes, Case { position, ..case }, "lightning", cases::lightning, RECURRENT);
        }
        for position in [0, 700] {
            compare!(checks, cpu, dev, sizes, Case { position, ..case }, "draft", cases::draft, ATTENTION);
        }
        compare!(checks, cpu, dev, sizes, case, "draft (normed)", cases::draft_normed, ATTENTION);
    }
    wide_rows(checks, cpu, dev, sizes);
    // On a device, the width of the 9B model's concatenated auxiliary hidden states; emulated, more columns than one
    // round takes.
    let hidden = if extent == Extent::Emulated { 512 } else { 4096 };
    let head = Sizes { hidden, heads: 1, kv_heads: 1, vocab: 64, intermediate: 64, ..sizes };
    let case = Case { pass: Pass::Verify { rows: 3 }, position: 0, seed: 29 };
    let name = format!("draft (normed) of {} columns", 3 * hidden);
    compare!(checks, cpu, dev, head, case, &name, cases::draft_normed, ATTENTION);
    let positions: &[usize] = match extent {
        Extent::Emulated => &[63, 6143],
        Extent::Device => &[0, 15, 63, 64, 65, 127, 128, 6143, 6144, 6145, 20_000],
        Extent::Limits => &[0, 127, 6144, 20_000],
    };
    for pass in cases::passes(verify, prefill) {
        // Long passes reach many positions by themselves.
        let long = pass.rows() > 100;
        for position in positions.iter().filter(|p| !long || [0, 6143, 20_000].contains(*p)) {
            sparse(checks, cpu, dev, sizes, Case { pass, position: *position, seed: 23 });
        }
    }
    checks.add("comparison: one bit in any place is found".to_owned(), || one_bit_is_found(dev));
    rows_alone_and_together(checks, dev, sizes);
    ready::check(checks, dev, sizes);
    packed::forms(checks, cpu, dev, sizes, verify, prefill);
    fp8::products(checks, cpu, dev, sizes, prefill);
    cuts::layers(checks, cpu, sizes);
    cuts::layers(checks, dev, sizes);
}

fn one_bit_is_found(dev: &mut Cuda) -> Result<Outcome, String> {
    let a: Vec<u8> = (0..16 * (3 * 1024 + 5)).map(|i| (i * 7 % 251) as u8).collect();
    if dev.differ(&a, &a).map_err(words)? {
        return Err("equal arrays are said to differ".into());
    }
    for place in [0, 5, 1024 * 16 + 11, 2 * 1024 * 16 - 1, a.len() - 1] {
        let mut b = a.clone();
        if let Some(byte) = b.get_mut(place) {
            *byte ^= 0x10;
        }
        if !dev.differ(&a, &b).map_err(words)? {
            return Err(format!("a bit in byte {place} is not found"));
        }
    }
    Ok(Outcome::Holds)
}

/// A sparse layer: appended rows against the oracle's, choice and attention against the formulas.
fn sparse(checks: &mut Checks, cpu: &mut Cpu, dev: &mut Cuda, sizes: Sizes, case: Case) {
    let limit = (case.position + case.pass.rows() + 64).next_multiple_of(64);
    checks.add(place("sparse layer", &case), || {
        let mut device = SparseCase::new(dev, sizes, case, limit).map_err(words)?;
        let first = device.run(dev, Mode::Eager).map_err(words)?;
        let mut modes = vec![("two runs", Mode::Eager)];
        if let Pass::Verify { .. } = case.pass {
            modes.extend([("eager in a step", Mode::Step), ("captured", Mode::Step), ("replayed", Mode::Step)]);
        }
        for (what, mode) in modes {
            let other = device.run(dev, mode).map_err(words)?;
            if other.chosen != first.chosen {
                return Err(format!("{what}: the choice of blocks differs"));
            }
            if let Some(at) = first_difference(&first.output, &other.output) {
                return Err(format!("{what}: the output differs at value {at}"));
            }
            if other.mass != first.mass {
                return Err(format!("{what}: the attention mass differs"));
            }
        }
        dev.check_guards().map_err(words)?;
        let mut oracle = SparseCase::new(cpu, sizes, case, limit).map_err(words)?;
        let expected = oracle.run(cpu, Mode::Eager).map_err(words)?;
        for (found, expected) in first.cache.iter().zip(&expected.cache) {
            let error = relative(&cases::numbers(found), &cases::numbers(expected));
            let budget = if matches!(expected.name.as_str(), "k" | "v") { EXACT } else { BF16 };
            if expected.shape != found.shape || !(error <= budget || expected.data.is_empty()) {
                return Err(format!(
                    "cache array {}: relative error {error:.2e}, at most {budget:.0e} allowed",
                    expected.name
                ));
            }
        }
        let judgement = reference::judge(device.spec(), &first, case.position, (case.pass.rows() / 12).max(1));
        if let Some(wrong) = judgement.wrong_choice {
            return Err(wrong);
        }
        for (whose, run) in [("the device's", &first), ("the CPU's", &expected)] {
            if let Some(wrong) = reference::wrong_mass(device.spec(), run, case.position) {
                return Err(format!("{whose} {wrong}"));
            }
        }
        Ok(Outcome::Error { error: judgement.attention_error, budget: ATTENTION })
    });
}

/// Rows of more than 4096 columns, which a lane processes in several rounds: inside a GEMM's block and in a kernel
/// before it.
fn wide_rows(checks: &mut Checks, cpu: &mut Cpu, dev: &mut Cuda, sizes: Sizes) {
    const WIDE: usize = 4096 + 128;
    for form in [Form::Bf16, Form::Int8, Form::Int4] {
        let normed = Sizes { hidden: WIDE, heads: 1, kv_heads: 1, form, ..sizes };
        let gated = Sizes { hidden: 256, heads: WIDE / 128, kv_heads: 1, form, ..sizes };
        for rows in [1, 3] {
            let case = Case { pass: Pass::Verify { rows }, position: 0, seed: 19 };
            let name = |op: &str| format!("{op} {} of {WIDE} columns", form.name());
            compare!(checks, cpu, dev, normed, case, &name("norm_linear"), cases::norm_linear, BF16);
            compare!(checks, cpu, dev, gated, case, &name("gate_output (normed)"), cases::gate_output_normed, BF16);
        }
        let name = format!("norm_linear {} of {WIDE} columns: a row alone has the bits it has among 3", form.name());
        checks.add(name, || alone_and_among(dev, cases::norm_linear, normed, 19, 3, &[1]));
    }
}
