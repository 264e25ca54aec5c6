//! GEMMs, look-ups and the draft head with weights of every packed form, against the oracle with the same packed
//! weights.

use super::cases::{self, Case, Mode, Run, Sizes};
use super::checks::{
    ATTENTION, BF16, Checks, EXACT, Outcome, place, relative, repeatable, rows_alone_and_together, words,
};
use super::ready;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::forms::{Group4, UNIT_COLUMNS};
use crate::backend::{Form, Result};

const FORMS: [Form; 8] = [
    Form::Int8,
    Form::Int6,
    Form::Int5,
    Form::Int4,
    Form::Group4(Group4::G32),
    Form::Group4(Group4::G64),
    Form::Group4(Group4::G128),
    Form::Nvfp4,
];

struct Operation {
    name: &'static str,
    on_device: fn(&mut Cuda, Sizes, Case) -> Result<Run<Cuda>>,
    on_cpu: fn(&mut Cpu, Sizes, Case) -> Result<Run<Cpu>>,
    budget: f64,
}

macro_rules! operation {
    ($name:literal, $op:path, $budget:expr) => {
        Operation { name: $name, on_device: $op, on_cpu: $op, budget: $budget }
    };
}

const OPERATIONS: [Operation; 9] = [
    operation!("embed", cases::embed, EXACT),
    operation!("norm_linear", cases::norm_linear, BF16),
    operation!("norm_linear (mixed)", cases::norm_linear_mixed, BF16),
    operation!("norm_gate_up", cases::norm_gate_up, BF16),
    operation!("linear_add", cases::linear_add, BF16),
    operation!("gate_output (normed)", cases::gate_output_normed, BF16),
    operation!("gate_output (plain)", cases::gate_output_plain, BF16),
    operation!("head", cases::head, BF16),
    operation!("draft", cases::draft, ATTENTION),
];

pub fn forms(checks: &mut Checks, cpu: &mut Cpu, dev: &mut Cuda, sizes: Sizes, verify: &[usize], prefill: &[usize]) {
    for form in FORMS {
        let intermediate = sizes.intermediate.next_multiple_of(UNIT_COLUMNS);
        let sizes = Sizes { form, intermediate, ..sizes };
        let detail = form.row().map_or(0, |row| row.unit_bytes);
        for pass in cases::passes(verify, prefill) {
            let case = Case { pass, position: 0, seed: 41 };
            for op in &OPERATIONS {
                checks.add(place(&format!("{} {} ({detail})", op.name, form.name()), &case), || {
                    let mut device = (op.on_device)(dev, sizes, case).map_err(words)?;
                    let found = repeatable(dev, &mut device, case.pass)?;
                    let mut oracle = (op.on_cpu)(cpu, sizes, case).map_err(words)?;
                    let expected = oracle(cpu, Mode::Eager).map_err(words)?;
                    Ok(Outcome::Error { error: relative(&found, &expected), budget: op.budget })
                });
            }
        }
        rows_alone_and_together(checks, dev, sizes);
        ready::check(checks, dev, sizes);
    }
}
