//! Rows that an operation prepares for the next GEMM (`hint_next_op`): they must have the bits of rows that the GEMM
//! prepares itself.

use super::cases::{EPS, Sizes, cache_rows, lightning_spec, matrix, norm, sparse_spec, tokens, values};
use super::checks::{Checks, Outcome, first_difference};
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::backend::{BufKind, HeadRows, NextOp, Pass, Result};

const ROWS: [usize; 4] = [1, 3, 9, 16];
const POSITION: usize = 1000;

/// A chain of operations, each reading the rows of the one before, with or without a hint about the next operation.
type Chain = fn(&mut Cuda, Sizes, usize, bool) -> Result<Vec<f32>>;

/// Runs each producer of rows and its readers with and without hints, and counts the rows found ready.
pub(super) fn check(checks: &mut Checks, dev: &mut Cuda, sizes: Sizes) {
    // Small sizes: every pass makes its weights again.
    let sizes = Sizes {
        hidden: sizes.hidden.min(512),
        intermediate: sizes.intermediate.min(1024),
        vocab: sizes.vocab.min(1001),
        heads: sizes.heads.min(4),
        kv_heads: sizes.kv_heads.min(2),
        lightning_heads: sizes.lightning_heads.min(4),
        ..sizes
    };
    let chains: [(&str, Chain, u64); 4] =
        [("embed", embed, 1), ("linear_add", linear_add, 2), ("lightning", lightning, 2), ("attend", attend, 2)];
    for (name, chain, times) in chains {
        checks.add(format!("{name} {}: rows left ready have the bits of rows made ready", sizes.form.name()), || {
            for rows in ROWS {
                let mut run = |said| -> Result<_, String> {
                    let before = dev.found_ready();
                    let out = chain(dev, sizes, rows, said).map_err(|e| e.to_string())?;
                    Ok((out, dev.found_ready() - before))
                };
                let ((made, none), (left, some)) = (run(false)?, run(true)?);
                if (none, some) != (0, times) {
                    return Err(format!("{rows} rows were found ready {some} times, and {none} unsaid"));
                }
                if let Some(at) = first_difference(&made, &left) {
                    return Err(format!("{rows} rows differ at value {at} of {}", made.len()));
                }
            }
            Ok(Outcome::Holds)
        });
    }
}

fn embed<B: Backend>(b: &mut B, s: Sizes, rows: usize, said: bool) -> Result<Vec<f32>> {
    let pass = Pass::Verify { rows };
    let (table, w, n) =
        (matrix(b, s.form, 1, s.vocab, s.hidden)?, matrix(b, s.form, 2, 256, s.hidden)?, norm(b, 3, s.hidden)?);
    let (mut h, mut y) = (b.buf(s.hidden, BufKind::Residual)?, b.buf(256, BufKind::Activation)?);
    b.seek(0)?;
    b.set_tokens(&tokens(4, rows, s.vocab))?;
    if said {
        b.hint_next_op(NextOp::Norm(&n));
    }
    b.embed(&mut h, &table, 12.0, pass)?;
    b.norm_linear(&mut y, &h, &n, EPS, &w, pass)?;
    let out = b.read(&y, rows)?;
    b.advance(pass, 0)?;
    Ok(out)
}

/// A product added to the residual stream, then a projection; another, then the head of its last row.
fn linear_add<B: Backend>(b: &mut B, s: Sizes, rows: usize, said: bool) -> Result<Vec<f32>> {
    let pass = Pass::Verify { rows };
    let (down, w) = (matrix(b, s.form, 1, s.hidden, s.intermediate)?, matrix(b, s.form, 2, 256, s.hidden)?);
    let head = matrix(b, s.form, 3, s.vocab, s.hidden)?;
    let (post, last) = (norm(b, 4, s.hidden)?, norm(b, 5, s.hidden)?);
    let (mut h, mut x) = (b.buf(s.hidden, BufKind::Residual)?, b.buf(s.intermediate, BufKind::Activation)?);
    let (mut y, mut logits) = (b.buf(256, BufKind::Activation)?, b.buf(s.vocab, BufKind::Wide)?);
    b.seek(0)?;
    b.set_tokens(&vec![0; rows])?;
    b.write(&mut h, &values(6, rows * s.hidden, 1.0))?;
    b.write(&mut x, &values(7, rows * s.intermediate, 1.0))?;
    let say = |b: &mut B, norm| {
        if said {
            b.hint_next_op(NextOp::Norm(norm));
        }
    };
    say(b, &post);
    b.linear_add(&mut h, &x, &down, 0.75, pass)?;
    b.norm_linear(&mut y, &h, &post, EPS, &w, pass)?;
    say(b, &last);
    b.linear_add(&mut h, &x, &down, 0.5, pass)?;
    b.head(&mut logits, &h, &last, EPS, 16.0, &head, HeadRows::Last, pass)?;
    let out = [b.read(&y, rows)?, b.read(&logits, 1)?].concat();
    b.advance(pass, 0)?;
    Ok(out)
}

/// Written before any hint: a write discards prepared rows.
fn stream<B: Backend>(b: &mut B, s: Sizes, rows: usize) -> Result<B::Buf> {
    let mut h = b.buf(s.hidden, BufKind::Residual)?;
    b.write(&mut h, &values(14, rows * s.hidden, 1.0))?;
    Ok(h)
}

fn gated<B: Backend>(
    b: &mut B,
    s: Sizes,
    rows: usize,
    said: bool,
    h: &mut B::Buf,
    [o, x]: [&B::Buf; 2],
    output_norm: Option<&B::Vector>,
    columns: std::ops::Range<usize>,
) -> Result<Vec<f32>> {
    let pass = Pass::Verify { rows };
    let (out, w, n) = (
        matrix(b, s.form, 11, s.hidden, columns.len())?,
        matrix(b, s.form, 12, 256, s.hidden)?,
        norm(b, 13, s.hidden)?,
    );
    let mut y = b.buf(256, BufKind::Activation)?;
    if said {
        b.hint_next_op(NextOp::Norm(&n));
    }
    b.gate_output(h, o, output_norm, EPS, x, columns, &out, 0.25, pass)?;
    b.norm_linear(&mut y, h, &n, EPS, &w, pass)?;
    Ok([b.read(h, rows)?, b.read(&y, rows)?].concat())
}

fn lightning<B: Backend>(b: &mut B, s: Sizes, rows: usize, said: bool) -> Result<Vec<f32>> {
    let (pass, spec) = (Pass::Verify { rows }, lightning_spec(s));
    let (width, wide) = (spec.projection_width(), spec.heads * spec.head_dim);
    let (mut x, mut o) = (b.buf(width, BufKind::Activation)?, b.buf(wide, BufKind::Wide)?);
    let (mut state, n) = (b.recurrent(&spec)?, norm(b, 8, wide)?);
    b.seek(POSITION)?;
    b.write_state(&mut state, None)?;
    b.write(&mut x, &values(9, rows * width, 1.0))?;
    let mut h = stream(b, s, rows)?;
    b.set_tokens(&vec![0; rows])?;
    if said {
        b.hint_next_op(NextOp::Gate { norm: Some(&n), columns: spec.gate_columns() });
    }
    b.lightning(&mut o, &x, None, None, &mut [&mut state], &spec, EPS, pass)?;
    let out = gated(b, s, rows, said, &mut h, [&o, &x], Some(&n), spec.gate_columns())?;
    b.advance(pass, 0)?;
    Ok(out)
}

fn attend<B: Backend>(b: &mut B, s: Sizes, rows: usize, said: bool) -> Result<Vec<f32>> {
    let (pass, spec) = (Pass::Verify { rows }, sparse_spec(s));
    let (width, wide) = (spec.projection_width(), spec.heads * spec.head_dim);
    let limit = (POSITION + rows).next_multiple_of(64);
    let (mut x, mut o) = (b.buf(width, BufKind::Activation)?, b.buf(wide, BufKind::Wide)?);
    let (mut cache, mut selection) = (b.cache(&spec, limit)?, b.selection(&spec, limit)?);
    b.reserve(&mut cache, limit)?;
    let before = cache_rows(&spec, POSITION, 43);
    b.write_rows(&mut cache, 0, &before.iter().collect::<Vec<_>>())?;
    b.seek(POSITION)?;
    b.write(&mut x, &values(10, rows * width, 1.0))?;
    let mut h = stream(b, s, rows)?;
    b.set_tokens(&vec![0; rows])?;
    b.append_kv(&mut [&mut cache], &x, &spec, pass)?;
    b.select_blocks(&mut selection, &x, &[&cache], &spec, pass)?;
    if said {
        b.hint_next_op(NextOp::Gate { norm: None, columns: spec.gate_columns() });
    }
    b.attend(&mut o, &x, &mut selection, &[&cache], &spec, pass)?;
    let out = gated(b, s, rows, said, &mut h, [&o, &x], None, spec.gate_columns())?;
    b.advance(pass, 0)?;
    Ok(out)
}
