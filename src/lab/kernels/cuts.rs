//! The same rows cut into different passes: outputs, states, caches and attention mass must keep every bit, and
//! refused rows must leave no trace. Resumption and lossless speculation depend on it.

use super::cases::{Sizes, Sparse, lightning_layer, numbers, values};
use super::checks::{Checks, Outcome, same_bits};
use crate::backend::{Backend, MassOf, Pass, Result};

/// Rows of the verify passes, and how they are cut.
const VERIFIED: usize = 24;
const VERIFY_CUTS: [&[usize]; 4] = [&[1; VERIFIED], &[16, 8], &[5, 11, 7, 1], &[3, 16, 5]];
/// Rows of the prefill passes, and the chunks they are cut into.
const READ: usize = 200;
const CHUNKS: [usize; 3] = [256, 64, 128];
/// Start of verify passes of sparse layers: rows cross a block and choose among more blocks than they may take.
const POSITION: usize = 96 * 64 + 50;
/// Start of their prefill passes: the first row of a block.
const READ_AT: usize = 96 * 64;

#[derive(Clone, Copy)]
struct Part {
    pass: Pass,
    at: usize,
    accepted: usize,
}

impl Part {
    fn rows(self, input: &[f32], width: usize) -> &[f32] {
        input.get(self.at * width..(self.at + self.pass.rows()) * width).unwrap_or_default()
    }
}

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

fn read(chunk: usize) -> Vec<Part> {
    let part = |at| {
        let rows = chunk.min(READ - at);
        Part { pass: Pass::Prefill { rows }, at, accepted: rows }
    };
    (0..READ).step_by(chunk).map(part).collect()
}

pub fn layers<B: Backend>(checks: &mut Checks, b: &mut B, sizes: Sizes) {
    type Layer<B> = fn(&mut B, Sizes, usize, &[Part]) -> Result<Vec<f32>>;
    let verify: Vec<Vec<Part>> = VERIFY_CUTS.iter().map(|cut| verified(cut)).collect();
    let chunks: Vec<Vec<Part>> = CHUNKS.iter().map(|chunk| read(*chunk)).collect();
    let all: [(&str, Layer<B>, usize, &[Vec<Part>]); 4] = [
        ("lightning verify", lightning, 1_999_990, &verify),
        ("lightning prefill", lightning, 100, &chunks),
        ("sparse verify", sparse, POSITION, &verify),
        ("sparse prefill", sparse, READ_AT, &chunks),
    ];
    for (name, layer, position, cuts) in all {
        checks.add(format!("{name} on {}: the same bits however it is cut", b.kind()), || {
            let mut found = Vec::new();
            for cut in cuts {
                found.push(layer(b, sizes, position, cut)?);
            }
            for (i, other) in found.iter().enumerate().skip(1) {
                same_bits(&found[0], other, format!("cut {i} and the first"))?;
            }
            Ok(Outcome::Holds)
        });
    }
}

/// Outputs of the accepted rows, then the state.
fn lightning<B: Backend>(b: &mut B, sizes: Sizes, position: usize, parts: &[Part]) -> Result<Vec<f32>> {
    let mut layer = lightning_layer(b, sizes, 41)?;
    let input = values(42, READ.max(VERIFIED) * layer.width, 1.0);
    layer.start(b, position)?;
    let mut out = Vec::new();
    for part in parts {
        layer.write(b, part.rows(&input, layer.width))?;
        layer.run(b, part.pass)?;
        out.extend(b.read(&layer.o, part.accepted)?);
        b.advance(part.pass, part.accepted)?;
    }
    out.extend(layer.end(b)?);
    Ok(out)
}

/// Outputs of the accepted rows, then the cache's new rows, then the attention mass of the accepted rows.
fn sparse<B: Backend>(b: &mut B, sizes: Sizes, position: usize, parts: &[Part]) -> Result<Vec<f32>> {
    let accepted = parts.iter().map(|p| p.accepted).sum::<usize>();
    let mut layer = Sparse::new(b, sizes, position, accepted + 1, 43)?;
    let input = values(44, READ.max(VERIFIED) * layer.width, 1.5);
    layer.start(b)?;
    let mut out = Vec::new();
    for part in parts {
        layer.write(b, part.rows(&input, layer.width))?;
        layer.select(b, part.pass)?;
        layer.attend(b, part.pass)?;
        out.extend(b.read(&layer.o, part.accepted)?);
        if let Pass::Verify { rows } = part.pass {
            let position = b.position();
            b.add_mass(&mut layer.selection, &layer.spec, 0..part.accepted, position, MassOf::Answer)?;
            b.clear_mass(&mut layer.selection, 0..rows)?;
        }
        b.advance(part.pass, part.accepted)?;
    }
    for tensor in b.read_rows(&layer.cache, position..position + accepted)? {
        out.extend(numbers(&tensor));
    }
    // Integers below 2^53, in two halves that f32 holds exactly.
    let halves = |n: u64| [(n >> 24) as f32, (n & 0xff_ffff) as f32];
    let mass = b.read_mass(&layer.selection, MassOf::Answer)?;
    out.extend(mass.iter().flat_map(|m| [halves(m.chosen), halves(m.forced)].concat()));
    Ok(out)
}
