//! Every operation of a device against the CPU oracle on the same rounded inputs.

use anyhow::{bail, ensure};

use super::cases::{self, Case, Sizes};
use super::reference::Judged;
use super::table::{
    ATTENTION, BF16, DRAFT_NORMED, EXACT, GATE_OUTPUT_NORMED, Group, NORM_LINEAR, Pair, modes, name, operations_of,
};
use super::{fp8, ready};
use super::{relative, same_bits};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::forms::{Group4, UNIT_COLUMNS};
use crate::backend::prelude::*;
use crate::backend::{Form, MassOf, Pass, Result};
use crate::engine::protocol::ImageTensor;
use crate::lab::checks::Checks;
use crate::lab::layers::{Mode, Part, Sparse, SparseRun, numbers};

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

/// What the operations are checked with.
pub struct Extent {
    pub sizes: Sizes,
    /// Width of a third of the draft head's input.
    pub wide: usize,
    /// Rows of verify and prefill passes.
    pub verify: &'static [usize],
    pub prefill: &'static [usize],
    pub positions: &'static [usize],
    /// Packed forms of the weights.
    pub forms: &'static [Form],
}

impl Extent {
    /// Real head counts; `wide` is the width of the 9B model's auxiliary hidden states.
    pub const DEVICE: Extent = Extent {
        sizes: Sizes {
            hidden: 1024,
            intermediate: 1536,
            vocab: 5003,
            heads: 32,
            kv_heads: 2,
            lightning_heads: 32,
            form: Form::Bf16,
            in_fp8: false,
        },
        wide: 4096,
        verify: &[1, 2, 5, 8, 16],
        prefill: &[63, 64, 65, 1000],
        positions: &[0, 15, 63, 64, 65, 127, 128, 6143, 6144, 6145, 20_000],
        forms: &PACKED_FORMS,
    };
}

pub fn operations(checks: &mut Checks, cpu: &mut Cpu, dev: &mut Cuda, extent: &Extent) {
    let Extent { sizes, wide, verify, prefill, positions, forms } = *extent;
    let pair = &mut Pair { cpu, dev };
    let passes = cases::passes(verify, prefill);
    for pass in passes.iter().copied() {
        let verify = matches!(pass, Pass::Verify { .. }).then(|| operations_of(Group::Verify));
        for op in operations_of(Group::Passes).chain(verify.into_iter().flatten()) {
            for position in op.positions.iter().copied() {
                op.check(checks, pair, Case { sizes, pass, position, seed: 11 }, "");
            }
        }
    }
    let case = Case { sizes, pass: Pass::Verify { rows: 3 }, position: 0, seed: 29 };
    wide_rows(checks, pair, Case { seed: 19, ..case });
    let head = Sizes { hidden: wide, heads: 1, kv_heads: 1, vocab: 64, intermediate: 64, ..sizes };
    DRAFT_NORMED.check(checks, pair, Case { sizes: head, ..case }, &format!(" of {} columns", 3 * wide));
    for pass in passes.iter().copied() {
        // Long passes reach many positions by themselves.
        let long = pass.rows() > 100;
        for position in positions.iter().copied().filter(|p| !long || [0, 6143, 20_000].contains(p)) {
            let case = Case { sizes, pass, position, seed: 23 };
            checks.compare(name("sparse layer", case), ATTENTION, || sparse(pair, case));
        }
    }
    checks.add("comparison: one bit in any place is found", || one_bit_is_found(pair.dev));
    rows_together(checks, pair.dev, case);
    for form in forms.iter().copied() {
        let sizes = Sizes { form, intermediate: sizes.intermediate.next_multiple_of(UNIT_COLUMNS), ..sizes };
        let about = format!(" {} ({})", form.name(), form.row().map_or(0, |row| row.unit_bytes));
        for pass in passes.iter().copied() {
            let case = Case { sizes, pass, position: 0, seed: 41 };
            operations_of(Group::Packed).for_each(|op| op.check(checks, pair, case, &about));
        }
        rows_together(checks, pair.dev, Case { sizes, ..case });
    }
    fp8::products(checks, pair, case, prefill);
    cut_layers(checks, pair.cpu, case);
    cut_layers(checks, pair.dev, case);
}

/// The rows of one pass of 16 against the same rows in shorter passes, and against rows prepared ahead of time.
fn rows_together(checks: &mut Checks, dev: &mut Cuda, case: Case) {
    let form = case.sizes.form.name();
    for op in operations_of(Group::Alone) {
        let name = format!("{} {form}: a row alone has the bits it has among 16", op.name);
        checks.add(name, || op.rows_alone(dev, Case { seed: 31, ..case }, 16, &[1, 2, 3, 8, 9]));
    }
    ready::check(checks, dev, case);
}

fn one_bit_is_found(dev: &mut Cuda) -> anyhow::Result<()> {
    let a: Vec<u8> = (0..16 * (3 * 1024 + 5)).map(|i| (i * 7 % 251) as u8).collect();
    ensure!(!dev.differ(&a, &a)?, "equal arrays are reported to differ");
    for at in [0, 5, 1024 * 16 + 11, 2 * 1024 * 16 - 1, a.len() - 1] {
        let mut b = a.clone();
        b.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 0x10);
        ensure!(dev.differ(&a, &b)?, "a bit in byte {at} is not found");
    }
    Ok(())
}

/// A sparse layer: appended rows against the oracle's, choice and attention against the formulas.
fn sparse(pair: &mut Pair, case: Case) -> anyhow::Result<f64> {
    let Case { sizes, pass, position, seed } = case;
    let spec = cases::sparse_spec(sizes);
    let (before, width) = (cases::cache_rows(&spec, position, seed + 8), spec.projection_width());
    let input = cases::values(seed + 7, pass.rows() * width, 1.5);
    let q: Vec<f32> = input.chunks_exact(width).flat_map(|row| &row[..sizes.heads * cases::HEAD]).copied().collect();
    let all = 0..position + pass.rows();
    fn run<B: Backend>(b: &mut B, layer: &mut Sparse<B>, case: Case, mode: Mode, of: Inputs) -> Result<SparseRun> {
        layer.start(b, case.position, of.1)?;
        layer.run(b, of.0, &Part::list(case.pass, b.prefill_rows()), mode)
    }
    let inputs = (&input[..], &before[..]);
    let mut layer = Sparse::new(pair.dev, spec.clone(), all.end)?;
    let first = run(pair.dev, &mut layer, case, Mode::Eager, inputs)?;
    for (what, mode) in modes(pass) {
        let other = run(pair.dev, &mut layer, case, *mode, inputs)?;
        ensure!(other.chosen == first.chosen, "{what}: the choice of blocks differs");
        same_bits(&first.output, &other.output, what)?;
        ensure!(other.mass == first.mass, "{what}: the attention mass differs");
    }
    pair.dev.check_guards()?;
    let found = pair.dev.read_rows(&layer.cache, all.clone())?;
    let mut layer = Sparse::new(pair.cpu, spec.clone(), all.end)?;
    let oracle = run(pair.cpu, &mut layer, case, Mode::Eager, inputs)?;
    let expected = pair.cpu.read_rows(&layer.cache, all)?;
    for (found, expected) in found.iter().zip(&expected) {
        let error = relative(&numbers(found), &numbers(expected));
        let budget = if matches!(expected.name.as_str(), "k" | "v") { EXACT } else { BF16 };
        if expected.shape != found.shape || !(error <= budget || expected.data.is_empty()) {
            bail!("cache array {}: relative error {error:.2e}, at most {budget:.0e} allowed", expected.name);
        }
    }
    let device = Judged::new(&spec, &q, &found, &first, position)?;
    let error = device.error((pass.rows() / 12).max(1))?;
    device.mass("device")?;
    Judged::new(&spec, &q, &expected, &oracle, position)?.mass("CPU")?;
    Ok(error)
}

/// The rows of a pass, and the cache before it.
type Inputs<'a> = (&'a [f32], &'a [ImageTensor]);

/// Rows of more than 4096 columns, which a lane processes in several rounds: inside a GEMM's block and in a kernel
/// before it.
fn wide_rows(checks: &mut Checks, pair: &mut Pair, case: Case) {
    const WIDE: usize = 4096 + 128;
    for form in [Form::Bf16, Form::Int8, Form::Int4] {
        let normed = Sizes { hidden: WIDE, heads: 1, kv_heads: 1, form, ..case.sizes };
        let gated = Sizes { hidden: 256, heads: WIDE / 128, kv_heads: 1, form, ..case.sizes };
        let about = format!(" {} of {WIDE} columns", form.name());
        for rows in [1, 3] {
            let case = Case { pass: Pass::Verify { rows }, ..case };
            NORM_LINEAR.check(checks, pair, Case { sizes: normed, ..case }, &about);
            GATE_OUTPUT_NORMED.check(checks, pair, Case { sizes: gated, ..case }, &about);
        }
        let name = format!("norm_linear{about}: a row alone has the bits it has among 3");
        checks.add(name, || NORM_LINEAR.rows_alone(pair.dev, Case { sizes: normed, ..case }, 3, &[1]));
    }
}

/// Rows of the verify passes, and how they are cut.
const VERIFIED: usize = 24;
const VERIFY_CUTS: [&[usize]; 4] = [&[1; VERIFIED], &[16, 8], &[5, 11, 7, 1], &[3, 16, 5]];
/// Rows of the prefill passes, and the chunks they are cut into.
const READ: usize = 200;
const CHUNKS: [usize; 3] = [256, 64, 128];

type Layer<B> = fn(&mut B, Case, &[Part]) -> Result<Vec<f32>>;

/// Verify passes that accept these numbers of rows; each reads one more row, where there is one, and refuses it.
fn verified(cut: &[usize]) -> Vec<Part> {
    let mut at = 0;
    let part = |accepted: &usize| {
        let refused = usize::from(*accepted < 16 && at + accepted < VERIFIED);
        let part = Part { pass: Pass::Verify { rows: accepted + refused }, at, accepted: *accepted };
        at += accepted;
        part
    };
    cut.iter().map(part).collect()
}

/// Checks that the same rows cut into different passes keep every bit of outputs, states, caches and attention mass, and
/// that refused rows leave no trace. Resumption and lossless speculation depend on it.
fn cut_layers<B: Backend>(checks: &mut Checks, b: &mut B, case: Case) {
    let verify = VERIFY_CUTS.map(verified).to_vec();
    let chunks = CHUNKS.map(|chunk| Part::list(Pass::Prefill { rows: READ }, chunk)).to_vec();
    // The verify passes of a sparse layer cross a block and choose among more blocks than they may take; its prefill
    // passes begin with the first row of a block.
    let all: [(&str, Layer<B>, usize, &[Vec<Part>]); 4] = [
        ("lightning verify", cut_lightning, 1_999_990, &verify),
        ("lightning prefill", cut_lightning, 100, &chunks),
        ("sparse verify", cut_sparse, 96 * 64 + 50, &verify),
        ("sparse prefill", cut_sparse, 96 * 64, &chunks),
    ];
    for (name, layer, position, cuts) in all {
        checks.add(format!("{name} on {}: the same bits however it is cut", b.kind()), || {
            let case = Case { position, seed: 41, ..case };
            let found = cuts.iter().map(|cut| layer(b, case, cut)).collect::<Result<Vec<_>>>()?;
            for (i, other) in found.iter().enumerate().skip(1) {
                same_bits(&found[0], other, format!("cut {i} and the first"))?;
            }
            Ok(())
        });
    }
}

/// Outputs of the accepted rows, then the state.
fn cut_lightning<B: Backend>(b: &mut B, case: Case, parts: &[Part]) -> Result<Vec<f32>> {
    let mut layer = cases::lightning_layer(b, case.sizes, case.seed)?;
    let input = cases::values(42, READ.max(VERIFIED) * layer.width, 1.0);
    let out = layer.run(b, case.position, &input, parts, Mode::Eager)?;
    Ok([out, layer.end(b)?].concat())
}

/// Outputs of the accepted rows, then the cache's new rows, then the attention mass of the accepted rows.
fn cut_sparse<B: Backend>(b: &mut B, case: Case, parts: &[Part]) -> Result<Vec<f32>> {
    let accepted = parts.iter().map(|p| p.accepted).sum::<usize>();
    let mut layer = cases::sparse_layer(b, case.sizes, case.position, accepted + 1, case.seed + 2)?;
    let input = cases::values(44, READ.max(VERIFIED) * layer.width, 1.5);
    let mut out = layer.run(b, &input, parts, Mode::Eager)?.output;
    for tensor in b.read_rows(&layer.cache, case.position..case.position + accepted)? {
        out.extend(numbers(&tensor));
    }
    // Integers below 2^53, in two halves that f32 holds exactly.
    let halves = |n: u64| [(n >> 24) as f32, (n & 0xff_ffff) as f32];
    let mass = b.read_mass(&layer.selection, MassOf::Answer)?;
    out.extend(mass.iter().flat_map(|m| [halves(m.chosen), halves(m.forced)].concat()));
    Ok(out)
}
