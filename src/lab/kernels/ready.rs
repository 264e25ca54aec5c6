//! Rows that an operation prepares for the next GEMM (`hint_next_op`): they must have the bits of rows that the GEMM
//! prepares itself.

use std::ops::Range;

use anyhow::ensure;

use super::cases::{Sizes, lightning_layer, matrix, norm, sparse_layer, tokens, values};
use super::checks::{Checks, Outcome, same_bits};
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::backend::{BufKind, HeadRows, NextOp, Pass, Result};
use crate::lab::layers::EPS;

const ROWS: [usize; 4] = [1, 3, 9, 16];
const POSITION: usize = 1000;
/// Output columns of the projection at the end of a chain.
const OUT: usize = 256;

/// A pass, and whether each operation gets a hint about the next one.
#[derive(Clone, Copy)]
struct Hinted {
    rows: usize,
    pass: Pass,
    hint: bool,
}

impl Hinted {
    fn hint<B: Backend>(self, b: &mut B, next: NextOp<'_, B::Vector>) {
        if self.hint {
            b.hint_next_op(next);
        }
    }
}

/// A chain of operations, each reading the rows of the one before.
type Chain = fn(&mut Cuda, Sizes, Hinted) -> Result<Vec<f32>>;

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
                let mut run = |hint| -> Result<_> {
                    let before = dev.found_ready();
                    let out = chain(dev, sizes, Hinted { rows, pass: Pass::Verify { rows }, hint })?;
                    Ok((out, dev.found_ready() - before))
                };
                let ((made, none), (left, some)) = (run(false)?, run(true)?);
                ensure!(
                    (none, some) == (0, times),
                    "{rows} rows were found ready {some} times with hints and {none} times without"
                );
                same_bits(&made, &left, format!("{rows} rows"))?;
            }
            Ok(Outcome::Holds)
        });
    }
}

fn embed<B: Backend>(b: &mut B, s: Sizes, run: Hinted) -> Result<Vec<f32>> {
    let (table, w) = (matrix(b, s.form, 1, s.vocab, s.hidden)?, matrix(b, s.form, 2, OUT, s.hidden)?);
    let n = norm(b, 3, s.hidden)?;
    let (mut h, mut y) = (b.buf(s.hidden, BufKind::Residual)?, b.buf(OUT, BufKind::Activation)?);
    b.seek(0)?;
    b.set_tokens(&tokens(4, run.rows, s.vocab))?;
    run.hint(b, NextOp::Norm(&n));
    b.embed(&mut h, &table, 12.0, run.pass)?;
    b.norm_linear(&mut y, &h, &n, EPS, &w, run.pass)?;
    let out = b.read(&y, run.rows)?;
    b.advance(run.pass, 0)?;
    Ok(out)
}

/// A product added to the residual stream, then a projection; another, then the head of its last row.
fn linear_add<B: Backend>(b: &mut B, s: Sizes, run: Hinted) -> Result<Vec<f32>> {
    let Hinted { rows, pass, .. } = run;
    let (down, w) = (matrix(b, s.form, 1, s.hidden, s.intermediate)?, matrix(b, s.form, 2, OUT, s.hidden)?);
    let head = matrix(b, s.form, 3, s.vocab, s.hidden)?;
    let (post, last) = (norm(b, 4, s.hidden)?, norm(b, 5, s.hidden)?);
    let (mut h, mut x) = (b.buf(s.hidden, BufKind::Residual)?, b.buf(s.intermediate, BufKind::Activation)?);
    let (mut y, mut logits) = (b.buf(OUT, BufKind::Activation)?, b.buf(s.vocab, BufKind::Wide)?);
    b.seek(0)?;
    b.set_tokens(&vec![0; rows])?;
    b.write(&mut h, &values(6, rows * s.hidden, 1.0))?;
    b.write(&mut x, &values(7, rows * s.intermediate, 1.0))?;
    run.hint(b, NextOp::Norm(&post));
    b.linear_add(&mut h, &x, &down, 0.75, pass)?;
    b.norm_linear(&mut y, &h, &post, EPS, &w, pass)?;
    run.hint(b, NextOp::Norm(&last));
    b.linear_add(&mut h, &x, &down, 0.5, pass)?;
    b.head(&mut logits, &h, &last, EPS, 16.0, &head, HeadRows::Last, pass)?;
    let out = [b.read(&y, rows)?, b.read(&logits, 1)?].concat();
    b.advance(pass, 0)?;
    Ok(out)
}

fn lightning<B: Backend>(b: &mut B, s: Sizes, run: Hinted) -> Result<Vec<f32>> {
    let mut layer = lightning_layer(b, s, 8)?;
    let (wide, columns) = (layer.spec.heads * layer.spec.head_dim, layer.spec.gate_columns());
    let n = norm(b, 8, wide)?;
    layer.start(b, POSITION)?;
    layer.write(b, &values(9, run.rows * layer.width, 1.0))?;
    let mut h = stream(b, s, run.rows)?;
    run.hint(b, NextOp::Gate { norm: Some(&n), columns: columns.clone() });
    layer.mix(b, run.pass)?;
    gated(b, s, run, &mut h, [&layer.o, &layer.x], Some(&n), columns)
}

fn attend<B: Backend>(b: &mut B, s: Sizes, run: Hinted) -> Result<Vec<f32>> {
    let mut layer = sparse_layer(b, s, POSITION, run.rows, 43)?;
    layer.write(b, &values(10, run.rows * layer.width, 1.0))?;
    let mut h = stream(b, s, run.rows)?;
    layer.select(b, run.pass)?;
    let columns = layer.spec.gate_columns();
    run.hint(b, NextOp::Gate { norm: None, columns: columns.clone() });
    layer.attend(b, run.pass)?;
    gated(b, s, run, &mut h, [&layer.o, &layer.x], None, columns)
}

/// Written before any hint: a write discards prepared rows.
fn stream<B: Backend>(b: &mut B, s: Sizes, rows: usize) -> Result<B::Buf> {
    let mut h = b.buf(s.hidden, BufKind::Residual)?;
    b.write(&mut h, &values(14, rows * s.hidden, 1.0))?;
    Ok(h)
}

/// The gated output projection of a mixer, then a projection.
fn gated<B: Backend>(
    b: &mut B,
    s: Sizes,
    run: Hinted,
    h: &mut B::Buf,
    [o, x]: [&B::Buf; 2],
    output_norm: Option<&B::Vector>,
    columns: Range<usize>,
) -> Result<Vec<f32>> {
    let (out, w) = (matrix(b, s.form, 11, s.hidden, columns.len())?, matrix(b, s.form, 12, OUT, s.hidden)?);
    let n = norm(b, 13, s.hidden)?;
    let mut y = b.buf(OUT, BufKind::Activation)?;
    run.hint(b, NextOp::Norm(&n));
    b.gate_output(h, o, output_norm, EPS, x, columns, &out, 0.25, run.pass)?;
    b.norm_linear(&mut y, h, &n, EPS, &w, run.pass)?;
    let out = [b.read(h, run.rows)?, b.read(&y, run.rows)?].concat();
    b.advance(run.pass, 0)?;
    Ok(out)
}
