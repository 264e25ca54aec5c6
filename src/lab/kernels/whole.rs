//! The whole model on a device: against the CPU's text, and against itself where the design promises equal bits.

use anyhow::{anyhow, ensure};

use super::checks::{Checks, Extent, Outcome};
use super::sequences;
use super::subject::{Subject, same_logits, same_tensors};
use crate::backend::GRID;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::engine::protocol::Precision;

/// A greedy token may differ where the oracle's two best logits are closer than this: the sum of bf16 roundings up to
/// the logits.
const MARGIN: f32 = 0.15;

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
    groups: &'static [&'static [(usize, usize)]],
}

const EMULATED: Plan = Plan {
    model: "synthetic:tiny",
    read: 70,
    read_in_fp8: 330,
    texts: &[66],
    steps: 4,
    row_counts: &[5, 16],
    groups: &[&[(70, 2), (5, 1), (33, 3)]],
};
const LIMITS: Plan = Plan {
    model: "demo",
    read: 300,
    read_in_fp8: 1000,
    texts: &[100],
    steps: 16,
    row_counts: &[5, 16],
    groups: &[&[(70, 2), (5, 1), (640, 3), (1, 4)]],
};
const SIXTEEN: [(usize, usize); 16] = {
    let mut all = [(100, 1); 16];
    let mut i = 1;
    while i < 16 {
        all[i].0 = if i < 10 { 100 * (i + 1) } else { 1000 * (i - 8) };
        i += 1;
    }
    all
};
const DEVICE: Plan = Plan {
    model: "demo",
    read: 1000,
    read_in_fp8: 3000,
    texts: &[100, 3000],
    steps: 64,
    row_counts: &[2, 5, 8, 16],
    groups: &[&[(1000, 1), (1000, 1)], &[(70, 2), (5, 1), (5000, 5), (640, 3), (1, 4)], &SIXTEEN],
};

pub fn run(checks: &mut Checks, mut open: impl FnMut() -> Result<Cuda, String>, extent: Extent) {
    let plan = match extent {
        Extent::Emulated => EMULATED,
        Extent::Limits => LIMITS,
        Extent::Device => DEVICE,
    };
    let device = open().map_err(|e| anyhow!(e)).and_then(|b| Subject::new(b, plan.model, Precision::Bf16));
    match (device, Subject::new(Cpu::new(), plan.model, Precision::Bf16)) {
        (Ok(mut device), Ok(mut oracle)) => {
            for n in plan.texts {
                against_oracle(checks, &mut oracle, &mut device, *n, plan.steps);
            }
            with_itself(checks, &mut device, plan.read, plan.row_counts);
            for group in plan.groups {
                sequences::check(checks, &mut device, group);
            }
        }
        (Err(e), _) | (_, Err(e)) => checks.add(format!("{} loads", plan.model), || Err(e)),
    }
    // The text in fp8 is not compared with the CPU's: where the two differ by a rounding in bf16, some operands differ
    // by a step of e4m3.
    match open() {
        Ok(b) if !b.has_fp8() => {}
        opened => match opened.map_err(|e| anyhow!(e)).and_then(|b| Subject::new(b, plan.model, Precision::Fp8)) {
            Ok(mut device) => however_it_is_cut(checks, &mut device, plan.read_in_fp8, " in fp8"),
            Err(e) => checks.add(format!("{} loads in fp8", plan.model), || Err(e)),
        },
    }
}

fn against_oracle(checks: &mut Checks, oracle: &mut Subject<Cpu>, device: &mut Subject<Cuda>, read: usize, n: usize) {
    checks.add(format!("greedy text after {read} tokens equals the CPU's"), || {
        let prompt = device.prompt(read);
        let (expected, found) = (oracle.greedy(&prompt, n)?, device.greedy(&prompt, n)?);
        if let Some(at) = expected.iter().zip(&found).position(|(e, f)| e.0 != f.0) {
            let lead = expected[at].1;
            ensure!(
                lead <= MARGIN,
                "token {at} of {n} differs, where the best leads by {lead:.3} (at most {MARGIN} may flip)"
            );
        }
        Ok(Outcome::Holds)
    });
}

fn with_itself<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, read: usize, row_counts: &[usize]) {
    let text = s.prompt(read);
    checks.add(format!("verify of n rows equals n steps after {read} tokens"), || {
        let drafts = s.prompt(40).split_off(24);
        let (mut live, _) = s.after(&text, usize::MAX)?;
        let mut single = Vec::new();
        for token in &drafts {
            single.extend(s.step(&mut live, &[*token], 1)?);
        }
        let end = live.export_end(&mut s.b)?;
        for rows in row_counts.iter().copied() {
            let (mut live, _) = s.after(&text, usize::MAX)?;
            // Each twice, to cover eager, captured and replayed passes. Refused rows must leave no trace.
            let mut at = 0;
            while at < drafts.len() {
                let take = rows.min(drafts.len() - at);
                let accept = take.div_ceil(2);
                let found = s.step(&mut live, &drafts[at..at + take], accept)?;
                same_logits(&found, &single[at..at + take], &format!("{rows} rows at {at}"))?;
                at += accept;
            }
            let other = live.export_end(&mut s.b)?;
            same_tensors(&other.tensors, &end.tensors, &format!("{rows} rows, state afterwards"))?;
        }
        Ok(Outcome::Holds)
    });
    however_it_is_cut(checks, s, read, "");
    checks.add(format!("a state of {read} tokens restores its bits"), || {
        let (mut live, _) = s.after(&text, usize::MAX)?;
        let drafts = s.prompt(8);
        s.step(&mut live, &drafts[..4], 3)?;
        let end = live.export_end(&mut s.b)?;
        let rows = live.export_rows(&mut s.b, 0..live.position())?;
        let expected = s.step(&mut live, &drafts[4..], 1)?;
        let mut other = s.live()?;
        other.restore(&mut s.b, 0, std::slice::from_ref(&rows), Some(&end))?;
        same_logits(&s.step(&mut other, &drafts[4..], 1)?, &expected, "after restore")?;
        Ok(Outcome::Holds)
    });
}

/// Checks that state and logits of a text keep their bits however it is cut into passes.
fn however_it_is_cut<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, read: usize, about: &str) {
    let text = s.prompt(read);
    checks.add(format!("prefill of {read} tokens{about} does not depend on the chunks"), || {
        let (mut live, whole) = s.after(&text, usize::MAX)?;
        let expected = s.export(&mut live)?;
        for chunk in [GRID, 3 * GRID] {
            let (mut live, cut) = s.after(&text, chunk)?;
            let what = format!("chunks of {chunk}");
            same_logits(std::slice::from_ref(&cut), std::slice::from_ref(&whole), &what)?;
            same_tensors(&s.export(&mut live)?, &expected, &what)?;
        }
        Ok(Outcome::Holds)
    });
}
