//! The same rows cut into different passes: outputs, states, caches and attention mass must keep every bit, and
//! refused rows must leave no trace. Resumption and lossless speculation depend on it.

use super::cases::{Sizes, cache_rows, lightning_spec, numbers, sparse_spec, values};
use super::checks::{Checks, Outcome, first_difference};
use crate::backend::{Backend, BufKind, MassOf, Pass, Result};
use crate::engine::protocol::{Dtype, ImageTensor, TensorData};

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

/// Verify passes that accept these numbers of rows; each reads one more row, where there is one, and refuses it.
fn verified(cut: &[usize]) -> Vec<Part> {
    let mut at = 0;
    cut.iter()
        .map(|accepted| {
            let refused = usize::from(*accepted < 16 && at + accepted < VERIFIED);
            let part = Part { pass: Pass::Verify { rows: accepted + refused }, at, accepted: *accepted };
            at += accepted;
            part
        })
        .collect()
}

fn read(chunk: usize) -> Vec<Part> {
    (0..READ)
        .step_by(chunk)
        .map(|at| {
            let rows = chunk.min(READ - at);
            Part { pass: Pass::Prefill { rows }, at, accepted: rows }
        })
        .collect()
}

pub fn layers<B: Backend>(checks: &mut Checks, b: &mut B, sizes: Sizes) {
    let name = |layer: &str, pass: &str| format!("{layer} {pass} on {}: the same bits however it is cut", b.kind());
    let names = [
        name("lightning", "verify"),
        name("lightning", "prefill"),
        name("sparse", "verify"),
        name("sparse", "prefill"),
    ];
    let [lightning_verify, lightning_read, sparse_verify, sparse_read] = names;
    let verify: Vec<Vec<Part>> = VERIFY_CUTS.iter().map(|cut| verified(cut)).collect();
    let chunks: Vec<Vec<Part>> = CHUNKS.iter().map(|chunk| read(*chunk)).collect();
    checks.add(lightning_verify, || same(&verify, |parts| lightning(b, sizes, 1_999_990, parts)));
    checks.add(lightning_read, || same(&chunks, |parts| lightning(b, sizes, 100, parts)));
    checks.add(sparse_verify, || same(&verify, |parts| sparse(b, sizes, POSITION, parts)));
    checks.add(sparse_read, || same(&chunks, |parts| sparse(b, sizes, READ_AT, parts)));
}

fn same(cuts: &[Vec<Part>], mut run: impl FnMut(&[Part]) -> Result<Vec<f32>>) -> Result<Outcome, String> {
    let mut first: Option<Vec<f32>> = None;
    for (i, cut) in cuts.iter().enumerate() {
        let found = run(cut).map_err(|e| e.to_string())?;
        match &first {
            None => first = Some(found),
            Some(first) => {
                if let Some(at) = first_difference(first, &found) {
                    return Err(format!("cut {i} differs from the first at value {at} of {}", first.len()));
                }
            }
        }
    }
    Ok(Outcome::Holds)
}

fn bytes(values: &[f32]) -> TensorData {
    values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into()
}

/// Rows of the fused projection that a pass reads.
fn rows_of(input: &[f32], width: usize, part: Part) -> &[f32] {
    input.get(part.at * width..(part.at + part.pass.rows()) * width).unwrap_or_default()
}

/// Outputs of the accepted rows, then the state.
fn lightning<B: Backend>(b: &mut B, sizes: Sizes, position: usize, parts: &[Part]) -> Result<Vec<f32>> {
    let spec = lightning_spec(sizes);
    let (width, wide) = (spec.projection_width(), spec.heads * spec.head_dim);
    let (mut x, mut o) = (b.buf(width, BufKind::Activation)?, b.buf(wide, BufKind::Wide)?);
    let mut state = b.recurrent(&spec)?;
    let shape = vec![spec.heads, spec.head_dim, spec.head_dim];
    let start = values(41, shape.iter().product(), 1.0);
    let start = ImageTensor { name: "state".to_owned(), dtype: Dtype::F32, shape, data: bytes(&start) };
    let input = values(42, READ.max(VERIFIED) * width, 1.0);
    b.seek(position)?;
    b.write_state(&mut state, Some(&start))?;
    let mut out = Vec::new();
    for part in parts {
        b.write(&mut x, rows_of(&input, width, *part))?;
        b.set_tokens(&vec![0; part.pass.rows()])?;
        b.lightning(&mut o, &x, None, None, &mut [&mut state], &spec, 1e-6, part.pass)?;
        out.extend(b.read(&o, part.accepted)?);
        b.advance(part.pass, part.accepted)?;
    }
    b.fold(&mut state, &spec)?;
    b.folded();
    let end = b.read_state(&state)?;
    out.extend(end.data.chunks_exact(4).map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])));
    Ok(out)
}

/// Outputs of the accepted rows, then the cache's new rows, then the attention mass of the accepted rows.
fn sparse<B: Backend>(b: &mut B, sizes: Sizes, position: usize, parts: &[Part]) -> Result<Vec<f32>> {
    let spec = sparse_spec(sizes);
    let (width, wide) = (spec.projection_width(), spec.heads * spec.head_dim);
    let end = position + parts.iter().map(|p| p.accepted).sum::<usize>();
    let limit = (end + 64).next_multiple_of(64);
    let (mut x, mut o) = (b.buf(width, BufKind::Activation)?, b.buf(wide, BufKind::Wide)?);
    let (mut cache, mut selection) = (b.cache(&spec, limit)?, b.selection(&spec, limit)?);
    b.reserve(&mut cache, limit)?;
    let before = cache_rows(&spec, position, 43);
    b.write_rows(&mut cache, 0, &before.iter().collect::<Vec<_>>())?;
    let input = values(44, READ.max(VERIFIED) * width, 1.5);
    b.seek(position)?;
    let mut out = Vec::new();
    for part in parts {
        b.write(&mut x, rows_of(&input, width, *part))?;
        b.set_tokens(&vec![0; part.pass.rows()])?;
        b.append_kv(&mut [&mut cache], &x, &spec, part.pass)?;
        b.select_blocks(&mut selection, &x, &[&cache], &spec, part.pass)?;
        b.attend(&mut o, &x, &mut selection, &[&cache], &spec, part.pass)?;
        out.extend(b.read(&o, part.accepted)?);
        if let Pass::Verify { rows } = part.pass {
            let position = b.position();
            b.add_mass(&mut selection, &spec, 0..part.accepted, position, MassOf::Answer)?;
            b.clear_mass(&mut selection, 0..rows)?;
        }
        b.advance(part.pass, part.accepted)?;
    }
    for tensor in b.read_rows(&cache, position..end)? {
        out.extend(numbers(&tensor));
    }
    // Integers below 2^53, in two halves that f32 holds exactly.
    let halves = |n: u64| [(n >> 24) as f32, (n & 0xff_ffff) as f32];
    let mass = b.read_mass(&selection, MassOf::Answer)?;
    out.extend(mass.iter().flat_map(|m| [halves(m.chosen), halves(m.forced)].concat()));
    Ok(out)
}
