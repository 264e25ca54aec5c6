//! Rows that an operation prepares for the next GEMM (`hint_next_op`): they must have the bits of rows that the GEMM
//! prepares itself.

use anyhow::ensure;

use super::cases::{Case, lightning_layer, matrix, norm, sparse_layer, tokens, values};
use super::same_bits;
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::backend::{BufKind, HeadRows, NextOp, Pass, Result};
use crate::lab::checks::Checks;
use crate::lab::layers::EPS;

const ROWS: [usize; 4] = [1, 3, 9, 16];
/// Position of a mixer's rows.
const POSITION: usize = 1000;
/// Output columns of the projection at the end of a chain.
const OUT: usize = 256;

/// The operation that begins a chain, and how often its rows are found ready.
const PRODUCERS: [(&str, u64); 4] = [("embed", 1), ("linear_add", 2), ("lightning", 2), ("attend", 2)];

/// Runs each producer of rows and its readers with and without hints, and counts the rows found ready.
pub(super) fn check(checks: &mut Checks, dev: &mut Cuda, mut case: Case) {
    // Small sizes: every pass makes its weights again.
    let s = &mut case.sizes;
    (s.hidden, s.intermediate, s.vocab) = (s.hidden.min(512), s.intermediate.min(1024), s.vocab.min(1001));
    (s.heads, s.kv_heads, s.lightning_heads) = (s.heads.min(4), s.kv_heads.min(2), s.lightning_heads.min(4));
    for (producer, times) in PRODUCERS {
        let name = format!("{producer} {}: rows left ready have the bits of rows made ready", case.sizes.form.name());
        checks.add(name, || {
            for rows in ROWS {
                let case = Case { pass: Pass::Verify { rows }, ..case };
                let mut run = |hinted| -> Result<_> {
                    let before = dev.found_ready();
                    let out = chain(dev, case, producer, hinted)?;
                    Ok((out, dev.found_ready() - before))
                };
                let ((made, none), (left, some)) = (run(false)?, run(true)?);
                ensure!(
                    (none, some) == (0, times),
                    "{rows} rows were found ready {some} times with hints and {none} times without"
                );
                same_bits(&made, &left, format!("{rows} rows"))?;
            }
            Ok(())
        });
    }
}

/// A chain of operations, each reading the rows of the one before, with or without a hint to each about the next: the
/// residual stream is written, a mixer's output by way of its gated projection, and projected.
fn chain(b: &mut Cuda, case: Case, producer: &str, hinted: bool) -> Result<Vec<f32>> {
    let Case { sizes: s, pass, .. } = case;
    let rows = pass.rows();
    let hint = |b: &mut Cuda, next: NextOp<'_, <Cuda as Memory>::Vector>| {
        if hinted {
            b.hint_next_op(next);
        }
    };
    let (n, last, project) = (norm(b, 3, s.hidden)?, norm(b, 5, s.hidden)?, matrix(b, s.form, 2, OUT, s.hidden)?);
    let down = matrix(b, s.form, 1, s.hidden, s.intermediate)?;
    let (mut h, mut x) = (b.buf(s.hidden, BufKind::Residual)?, b.buf(s.intermediate, BufKind::Activation)?);
    let mut y = b.buf(OUT, BufKind::Activation)?;
    b.seek(0)?;
    b.set_tokens(&tokens(4, rows, s.vocab))?;
    // A write discards prepared rows, so it precedes every hint.
    b.write(&mut h, &values(6, rows * s.hidden, 1.0))?;
    b.write(&mut x, &values(7, rows * s.intermediate, 1.0))?;
    match producer {
        "embed" => {
            let table = matrix(b, s.form, 8, s.vocab, s.hidden)?;
            hint(b, NextOp::Norm(&n));
            b.embed(&mut h, &table, 12.0, pass)?;
        }
        "linear_add" => {
            hint(b, NextOp::Norm(&n));
            b.linear_add(&mut h, &x, &down, 0.75, pass)?;
        }
        "lightning" => {
            let mut layer = lightning_layer(b, s, 8)?;
            let columns = layer.spec.gate_columns();
            let (wide, out) = (norm(b, 9, columns.len())?, matrix(b, s.form, 11, s.hidden, columns.len())?);
            layer.start(b, POSITION)?;
            layer.write(b, &values(9, rows * layer.width, 1.0))?;
            hint(b, NextOp::Gate { norm: Some(&wide), columns: columns.clone() });
            layer.mix(b, pass)?;
            hint(b, NextOp::Norm(&n));
            b.gate_output(&mut h, &layer.o, Some(&wide), EPS, &layer.x, columns, &out, 0.25, pass)?;
        }
        _ => {
            let mut layer = sparse_layer(b, s, POSITION, rows, 43)?;
            let columns = layer.spec.gate_columns();
            let out = matrix(b, s.form, 11, s.hidden, columns.len())?;
            layer.write(b, &values(10, rows * layer.width, 1.0))?;
            layer.select(b, pass)?;
            hint(b, NextOp::Gate { norm: None, columns: columns.clone() });
            layer.attend(b, pass)?;
            hint(b, NextOp::Norm(&n));
            b.gate_output(&mut h, &layer.o, None, EPS, &layer.x, columns, &out, 0.25, pass)?;
        }
    }
    b.norm_linear(&mut y, &h, &n, EPS, &project, None, pass)?;
    let mut found = [b.read(&h, rows)?, b.read(&y, rows)?].concat();
    if producer == "linear_add" {
        // Another product, then the head of its last row.
        let (head, mut logits) = (matrix(b, s.form, 3, s.vocab, s.hidden)?, b.buf(s.vocab, BufKind::Wide)?);
        hint(b, NextOp::Norm(&last));
        b.linear_add(&mut h, &x, &down, 0.5, pass)?;
        b.head(&mut logits, &h, &last, EPS, 16.0, &head, HeadRows::Last, pass)?;
        found.extend(b.read(&logits, 1)?);
    }
    b.advance(pass, 0)?;
    Ok(found)
}
