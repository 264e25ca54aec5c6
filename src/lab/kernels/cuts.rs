//! The same rows cut into different passes: outputs, states, caches and attention mass must keep every bit, and
//! refused rows must leave no trace. Resumption and lossless speculation depend on it.

use super::cases::{Case, lightning_layer, sparse_layer, values};
use super::same_bits;
use crate::backend::{Backend, MassOf, Pass, Result};
use crate::lab::checks::Checks;
use crate::lab::layers::{Mode, Part, numbers};

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

pub fn layers<B: Backend>(checks: &mut Checks, b: &mut B, case: Case) {
    let verify = VERIFY_CUTS.map(verified).to_vec();
    let chunks = CHUNKS.map(|chunk| Part::list(Pass::Prefill { rows: READ }, chunk)).to_vec();
    // The verify passes of a sparse layer cross a block and choose among more blocks than they may take; its prefill
    // passes begin with the first row of a block.
    let all: [(&str, Layer<B>, usize, &[Vec<Part>]); 4] = [
        ("lightning verify", lightning, 1_999_990, &verify),
        ("lightning prefill", lightning, 100, &chunks),
        ("sparse verify", sparse, 96 * 64 + 50, &verify),
        ("sparse prefill", sparse, 96 * 64, &chunks),
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
fn lightning<B: Backend>(b: &mut B, case: Case, parts: &[Part]) -> Result<Vec<f32>> {
    let mut layer = lightning_layer(b, case.sizes, case.seed)?;
    let input = values(42, READ.max(VERIFIED) * layer.width, 1.0);
    let out = layer.run(b, case.position, &input, parts, Mode::Eager)?;
    Ok([out, layer.end(b)?].concat())
}

/// Outputs of the accepted rows, then the cache's new rows, then the attention mass of the accepted rows.
fn sparse<B: Backend>(b: &mut B, case: Case, parts: &[Part]) -> Result<Vec<f32>> {
    let accepted = parts.iter().map(|p| p.accepted).sum::<usize>();
    let mut layer = sparse_layer(b, case.sizes, case.position, accepted + 1, case.seed + 2)?;
    let input = values(44, READ.max(VERIFIED) * layer.width, 1.5);
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
