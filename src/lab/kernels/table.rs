//! The table of operations with their budgets, and the checks of one operation.
//!
//! A check of an operation demands: every output element written (outputs start as NaN), relative error within the
//! budget of its number types, equal bits when run twice, and for verify passes equal bits when captured and replayed.

use super::cases::{self, Case, Run};
use super::{relative, same_bits};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::backend::{Pass, Result};
use crate::lab::checks::Checks;
use crate::lab::layers::Mode;

/// Outputs rounded to bf16, or sums of products of bf16 inputs.
pub(super) const BF16: f64 = 6e-3;
/// Values that are only moved or scaled in f32.
pub(super) const EXACT: f64 = 1e-6;
/// Outputs of a recurrence over bf16 q, k, v.
const RECURRENT: f64 = 1.2e-2;
/// Two products in sequence in fp8: a value that rounds differently in bf16 may narrow to the next e4m3.
const FP8_TWICE: f64 = 1.2e-2;
/// Softmax over bf16 keys with bf16 weights.
pub(super) const ATTENTION: f64 = 1.2e-2;

pub(super) struct Pair<'a> {
    pub(super) cpu: &'a mut Cpu,
    pub(super) dev: &'a mut Cuda,
}

type Make<B> = fn(&mut B, Case) -> Result<Run<B>>;

/// Checks that several operations have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Verify and prefill passes of all sizes.
    Passes,
    /// Verify passes of all sizes.
    Verify,
    /// The same with packed weights.
    Packed,
    /// Prefill in fp8.
    Fp8,
    /// Prefill in fp8, cut into different passes.
    Fp8Cuts,
    /// Rows of a verify pass alone and among others.
    Alone,
}

pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) device: Make<Cuda>,
    oracle: Make<Cpu>,
    budget: f64,
    /// Positions of the first row in [`Group::Passes`].
    pub(super) positions: &'static [usize],
    groups: &'static [Group],
}

pub(super) fn operations_of(group: Group) -> impl Iterator<Item = &'static Operation> {
    OPERATIONS.iter().filter(move |op| op.groups.contains(&group))
}

macro_rules! operations {
    ($($id:ident $name:literal $make:expr, $budget:ident, $positions:expr, [$($group:ident),*];)+) => {
        $(pub(super) const $id: Operation = Operation {
            name: $name,
            device: $make,
            oracle: $make,
            budget: $budget,
            positions: &$positions,
            groups: &[$(Group::$group),*],
        };)+
        const OPERATIONS: &[Operation] = &[$($id),+];
    };
}

operations! {
    EMBED "embed" cases::embed, EXACT, [0], [Passes, Packed];
    NORM_LINEAR "norm_linear" cases::norm_linear, BF16, [0], [Passes, Packed, Fp8, Fp8Cuts, Alone];
    NORM_LINEAR_MIXED "norm_linear (mixed)" cases::norm_linear_mixed, BF16, [], [Packed];
    NORM_GATE_UP "norm_gate_up" cases::norm_gate_up, BF16, [0], [Passes, Packed, Fp8, Fp8Cuts, Alone];
    LINEAR_ADD "linear_add" cases::linear_add, BF16, [0], [Passes, Packed, Fp8, Fp8Cuts, Alone];
    MLP "mlp" cases::mlp, FP8_TWICE, [], [Fp8, Fp8Cuts];
    GATE_OUTPUT_NORMED "gate_output (normed)" |b, case| cases::gate_output(b, case, true), BF16, [0],
        [Passes, Packed, Fp8, Alone];
    GATE_OUTPUT_PLAIN "gate_output (plain)" |b, case| cases::gate_output(b, case, false), BF16, [0],
        [Passes, Packed, Fp8];
    KEEP_AUX_HIDDEN "keep_aux_hidden" cases::keep_aux_hidden, EXACT, [0], [Passes];
    HEAD "head" cases::head, BF16, [0], [Passes, Packed, Alone];
    TOP_LOGITS "top_logits" cases::top_logits, EXACT, [0], [Verify];
    LIGHTNING "lightning" cases::lightning, RECURRENT, [0, 2_000_000], [Passes];
    DRAFT "draft" |b, case| cases::draft(b, case, 0), ATTENTION, [0, 700], [Passes, Packed];
    DRAFT_NORMED "draft (normed)" |b, case| cases::draft(b, case, 1), ATTENTION, [0], [Passes];
}

impl Operation {
    pub(super) fn eager(&self, dev: &mut Cuda, case: Case) -> Result<Vec<f32>> {
        (self.device)(dev, case)?(dev, Mode::Eager)
    }

    /// Checks the device against the oracle, and that every run gives the same bits; `about` follows the operation's
    /// name.
    pub(super) fn check(&self, checks: &mut Checks, pair: &mut Pair, case: Case, about: &str) {
        checks.compare(name(&format!("{}{about}", self.name), case), self.budget, || {
            let mut run = (self.device)(pair.dev, case)?;
            let found = run(pair.dev, Mode::Eager)?;
            for (what, mode) in modes(case.pass) {
                same_bits(&found, &run(pair.dev, *mode)?, what)?;
            }
            pair.dev.synchronize()?;
            pair.dev.check_guards()?;
            let expected = (self.oracle)(pair.cpu, case)?(pair.cpu, Mode::Eager)?;
            Ok(relative(&found, &expected))
        });
    }

    /// Checks that the first rows of a verify pass of `all` rows have the bits they have in passes of each of `few`.
    /// Lossless speculation depends on it.
    pub(super) fn rows_alone(&self, dev: &mut Cuda, case: Case, all: usize, few: &[usize]) -> anyhow::Result<()> {
        let of = |rows| Case { pass: Pass::Verify { rows }, ..case };
        let among = self.eager(dev, of(all))?;
        for rows in few {
            let found = self.eager(dev, of(*rows))?;
            same_bits(&found, among.get(..found.len()).unwrap_or_default(), format!("{rows} rows and {all}"))?;
        }
        Ok(())
    }
}

/// The runs after the first, eager one.
pub(super) fn modes(pass: Pass) -> &'static [(&'static str, Mode)] {
    const ALL: [(&str, Mode); 4] = [
        ("two runs (a race, or something unwritten)", Mode::Eager),
        ("eager in a step", Mode::Step),
        ("captured", Mode::Step),
        ("replayed", Mode::Step),
    ];
    match pass {
        Pass::Verify { .. } => &ALL,
        Pass::Prefill { .. } => &ALL[..1],
    }
}

pub(super) fn name(op: &str, case: Case) -> String {
    let (path, rows) = match case.pass {
        Pass::Verify { rows } => ("verify", rows),
        Pass::Prefill { rows } => ("prefill", rows),
    };
    format!("{op} {path} {rows} @ {}", case.position)
}
