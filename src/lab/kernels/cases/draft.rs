//! The draft head, up to its MLP.

use super::{Case, EPS, HEAD, Run, Sizes, matrix, norm, numbers, perform, tokens, values};
use crate::backend::draft::{DraftOps, DraftResidual, DraftShape};
use crate::backend::{BufKind, Result};
use crate::engine::protocol::ImageTensor;

/// Fuse, input, keys and values, attention of the last row: everything a draft pass computes before its MLP; with this number
/// of norms before `fc`, over parts of a row's auxiliary hidden states.
pub fn draft<B: DraftOps + 'static>(b: &mut B, s: Sizes, case: Case, norms: usize) -> Result<Run<B>> {
    let rows = case.pass.rows();
    let shape = DraftShape {
        hidden: s.hidden,
        intermediate: s.intermediate,
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: HEAD,
        // A pass must fit into the ring. Short passes leave the window small, so that they wrap around.
        window: rows.max(256),
        inv_freq: (0..HEAD / 2).map(|i| 10_000f64.powf(-2.0 * i as f64 / HEAD as f64)).collect(),
    };
    let q_width = s.heads * HEAD;
    let table = matrix(b, s.form, case.seed, s.vocab, s.hidden)?;
    let fc = matrix(b, s.form, case.seed + 1, s.hidden, 3 * s.hidden)?;
    let kvq_width = shape.kvq_width();
    let wkvq = matrix(b, s.form, case.seed + 2, kvq_width, 2 * s.hidden)?;
    let (input_norm, hidden_norm) = (norm(b, case.seed + 4, s.hidden)?, norm(b, case.seed + 5, s.hidden)?);
    let width = 3 * s.hidden / norms.max(1);
    let fc_norm = (0..norms as u64).map(|i| norm(b, case.seed + 9 + i, width)).collect::<Result<Vec<_>>>()?;
    let mut aux_hidden = b.draft_buf(rows, 3 * s.hidden, BufKind::Activation)?;
    let mut g = b.draft_buf(rows, s.hidden, BufKind::Residual)?;
    let mut x = b.draft_buf(rows, 2 * s.hidden, BufKind::Activation)?;
    let mut kvq = b.draft_buf(rows, kvq_width, BufKind::Activation)?;
    let mut o = b.draft_buf(1, q_width, BufKind::Activation)?;
    let mut window = b.draft_window(&shape)?;
    let known = shape.window.min(case.position);
    let old = |seed| {
        ImageTensor::of_floats("k", vec![known, s.kv_heads, HEAD], &values(seed, known * s.kv_heads * HEAD, 1.0))
    };
    let (old_k, old_v) = (old(case.seed + 6), old(case.seed + 7));
    let streams = values(case.seed + 8, rows * 3 * s.hidden, 1.0);
    let ids = tokens(case.seed, rows, s.vocab);
    Ok(Box::new(move |b, mode| {
        if known > 0 {
            b.write_window(&mut window, case.position - known, &old_k, &old_v)?;
        }
        b.draft_seek(&ids, case.position, case.position.saturating_sub(known))?;
        b.write(&mut aux_hidden, &streams)?;
        perform(b, mode, case.pass, &mut |b| {
            b.draft_fuse(&mut g, &aux_hidden, &fc_norm, EPS, &fc, case.pass)?;
            b.draft_input(
                &mut x,
                &mut g,
                &table,
                1.0,
                &input_norm,
                &hidden_norm,
                EPS,
                DraftResidual::Stream,
                case.pass,
            )?;
            b.draft_project(&mut kvq, &x, &wkvq, 1.0, case.pass)?;
            b.draft_append(&mut window, &kvq, case.pass)?;
            b.draft_attend(&mut o, &kvq, &window, case.pass)
        })?;
        let mut out = b.read(&o, 1)?;
        let end = case.position + rows;
        for tensor in b.read_window(&window, case.position..end)? {
            out.extend(numbers(&tensor));
        }
        Ok(out)
    }))
}
