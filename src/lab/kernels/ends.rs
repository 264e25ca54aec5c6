//! The whole model on a device: against the CPU's text, and against itself where the design promises equal bits.

use super::beside::beside;
use super::checks::{Checks, Extent, Outcome, words};
use super::subject::{Subject, prompt, same};
use crate::backend::GRID;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::engine::protocol::Precision;

/// A greedy token may differ where the oracle's two best logits are closer than this: the sum of bf16 roundings up to
/// the logits.
const MARGIN: f32 = 0.15;

pub fn against_oracle<A: Backend, B: Backend>(
    checks: &mut Checks,
    oracle: &mut Subject<A>,
    device: &mut Subject<B>,
    read: usize,
    n: usize,
) {
    checks.add(format!("greedy text after {read} tokens equals the CPU's"), || {
        let prompt = prompt(device.model.spec().vocab, read);
        let (expected, found) = (oracle.greedy(&prompt, n)?, device.greedy(&prompt, n)?);
        match expected.iter().zip(&found).position(|(e, f)| e.0 != f.0) {
            None => Ok(Outcome::Holds),
            Some(at) => {
                let lead = expected.get(at).map_or(0.0, |e| e.1);
                if lead <= MARGIN {
                    Ok(Outcome::Holds)
                } else {
                    Err(format!(
                        "token {at} of {n} differs, where the best leads by {lead:.3} (at most {MARGIN} may flip)"
                    ))
                }
            }
        }
    });
}

pub fn with_itself<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, read: usize, row_counts: &[usize]) {
    let text = prompt(s.model.spec().vocab, read);
    checks.add(format!("verify of n rows equals n steps after {read} tokens"), || {
        let drafts = prompt(s.model.spec().vocab, 40).split_off(24);
        let mut live = s.live()?;
        s.read(&mut live, &text, usize::MAX)?;
        let mut single = Vec::new();
        for token in &drafts {
            single.extend(s.step(&mut live, &[*token], 1)?);
        }
        let end = live.export_end(&mut s.b).map_err(words)?;
        for rows in row_counts.iter().copied() {
            let mut live = s.live()?;
            s.read(&mut live, &text, usize::MAX)?;
            // Each twice, to cover eager, captured and replayed passes. Refused rows must leave no trace.
            let mut at = 0;
            while at < drafts.len() {
                let take = rows.min(drafts.len() - at);
                let accept = take.div_ceil(2);
                let given = drafts.get(at..at + take).unwrap_or_default();
                let found = s.step(&mut live, given, accept)?;
                same(&found, single.get(at..at + take).unwrap_or_default(), &format!("{rows} rows at {at}"))?;
                at += accept;
            }
            let other = live.export_end(&mut s.b).map_err(words)?;
            for (a, b) in end.tensors.iter().zip(&other.tensors) {
                if a.data != b.data {
                    return Err(format!("{rows} rows: {} differs afterwards", a.name));
                }
            }
        }
        Ok(Outcome::Holds)
    });
    however_it_is_cut(checks, s, read);
    checks.add(format!("a state of {read} tokens restores its bits"), || {
        let mut live = s.live()?;
        s.read(&mut live, &text, usize::MAX)?;
        let drafts = prompt(s.model.spec().vocab, 8);
        s.step(&mut live, drafts.get(..4).unwrap_or_default(), 3)?;
        let position = live.position();
        let end = live.export_end(&mut s.b).map_err(words)?;
        let rows = live.export_rows(&mut s.b, 0..position).map_err(words)?;
        let expected = s.step(&mut live, drafts.get(4..).unwrap_or_default(), 1)?;
        let mut other = s.live()?;
        other.restore(&mut s.b, 0, std::slice::from_ref(&rows), Some(&end)).map_err(words)?;
        let found = s.step(&mut other, drafts.get(4..).unwrap_or_default(), 1)?;
        same(&found, &expected, "after restore")?;
        Ok(Outcome::Holds)
    });
}

/// Checks that state and logits of a text keep their bits however it is cut into passes.
fn however_it_is_cut<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, read: usize) {
    let text = prompt(s.model.spec().vocab, read);
    checks.add(format!("prefill of {read} tokens{} does not depend on the chunks", s.said()), || {
        let mut live = s.live()?;
        let whole = s.read(&mut live, &text, usize::MAX)?;
        let rows = live.export_rows(&mut s.b, 0..read).map_err(words)?;
        let end = live.export_end(&mut s.b).map_err(words)?;
        for chunk in [GRID, 3 * GRID] {
            let mut live = s.live()?;
            let cut = s.read(&mut live, &text, chunk)?;
            same(std::slice::from_ref(&cut), std::slice::from_ref(&whole), &format!("chunks of {chunk}"))?;
            let (other_rows, other_end) =
                (live.export_rows(&mut s.b, 0..read).map_err(words)?, live.export_end(&mut s.b).map_err(words)?);
            for (a, b) in
                rows.tensors.iter().chain(&end.tensors).zip(other_rows.tensors.iter().chain(&other_end.tensors))
            {
                if a.data != b.data {
                    return Err(format!("chunks of {chunk}: {} differs", a.name));
                }
            }
        }
        Ok(Outcome::Holds)
    });
}

struct Plan {
    model: &'static str,
    read: usize,
    /// The same for prefill in fp8: longer than the first rows of a segment, which are in bf16.
    read_in_fp8: usize,
    /// Prompt lengths of the greedy texts; `steps` is the length of the texts.
    texts: &'static [usize],
    steps: usize,
    row_counts: &'static [usize],
    /// Groups of sequences in shared passes: (tokens read, rows) of each.
    beside: &'static [&'static [(usize, usize)]],
}

pub fn run(checks: &mut Checks, mut open: impl FnMut() -> Result<Cuda, String>, extent: Extent) {
    let plan = match extent {
        Extent::Emulated => Plan {
            model: "synthetic:tiny",
            read: 70,
            read_in_fp8: 330,
            texts: &[66],
            steps: 4,
            row_counts: &[5, 16],
            beside: &[&[(70, 2), (5, 1), (33, 3)]],
        },
        Extent::Limits => Plan {
            model: "demo",
            read: 300,
            read_in_fp8: 1000,
            texts: &[100],
            steps: 16,
            row_counts: &[5, 16],
            beside: &[&[(70, 2), (5, 1), (640, 3), (1, 4)]],
        },
        Extent::Device => Plan {
            model: "demo",
            read: 1000,
            read_in_fp8: 3000,
            texts: &[100, 3000],
            steps: 64,
            row_counts: &[2, 5, 8, 16],
            beside: &[
                &[(1000, 1), (1000, 1)],
                &[(70, 2), (5, 1), (5000, 5), (640, 3), (1, 4)],
                &[
                    (100, 1),
                    (200, 1),
                    (300, 1),
                    (400, 1),
                    (500, 1),
                    (600, 1),
                    (700, 1),
                    (800, 1),
                    (900, 1),
                    (1000, 1),
                    (2000, 1),
                    (3000, 1),
                    (4000, 1),
                    (5000, 1),
                    (6000, 1),
                    (7000, 1),
                ],
            ],
        },
    };
    let device = open().and_then(|b| Subject::new(b, plan.model, Precision::Bf16, 8192));
    match (device, Subject::new(Cpu::new(), plan.model, Precision::Bf16, 8192)) {
        (Ok(mut device), Ok(mut oracle)) => {
            for n in plan.texts {
                against_oracle(checks, &mut oracle, &mut device, *n, plan.steps);
            }
            with_itself(checks, &mut device, plan.read, plan.row_counts);
            for sequences in plan.beside {
                beside(checks, &mut device, sequences);
            }
        }
        (device, oracle) => {
            let reason = device.err().or(oracle.err()).unwrap_or_default();
            checks.add(format!("{} loads", plan.model), || Err(reason));
        }
    }
    in_fp8(checks, open, &plan);
}

/// Cuts with prefill in fp8, if the device supports it. The text is not compared with the CPU's: where the two differ
/// by a rounding in bf16, some operands differ by a step of e4m3.
fn in_fp8(checks: &mut Checks, mut open: impl FnMut() -> Result<Cuda, String>, plan: &Plan) {
    let device = match open() {
        Ok(b) if !b.has_fp8() => return,
        opened => opened.and_then(|b| Subject::new(b, plan.model, Precision::Fp8, 8192)),
    };
    match device {
        Ok(mut device) => however_it_is_cut(checks, &mut device, plan.read_in_fp8),
        Err(reason) => checks.add(format!("{} loads in fp8", plan.model), || Err(reason)),
    }
}
