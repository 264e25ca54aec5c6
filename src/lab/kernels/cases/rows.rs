//! Operations without state, rows in and rows out: embedding, norms and GEMMs, auxiliary hidden states, the head and
//! its top logits.

use super::{
    Case, EPS, HEAD, Run, Sizes, cuts, matrix, norm, part, perform, poisoned, product, tokens, values, view, weight,
};
use crate::backend::{Backend, BufKind, Form, HeadRows, Mlp, Pass, Result};

/// The output of an operation: its width, its kind, and whether the operation adds to it.
type Output = (usize, BufKind, bool);

/// Prepares `op`, which reads the buffers `inputs` (width, kind and deviation of their values) and writes one.
fn row_op<B: Backend, const N: usize>(
    b: &mut B,
    s: Sizes,
    case: Case,
    inputs: [(usize, BufKind, f32); N],
    (width, kind, adds): Output,
    mut op: impl FnMut(&mut B, &mut B::Buf, &[B::Buf; N], Pass) -> Result<()> + 'static,
) -> Result<Run<B>> {
    let rows = case.pass.rows();
    let mut data = Vec::new();
    let mut bufs = Vec::new();
    for (i, (width, kind, std)) in inputs.into_iter().enumerate() {
        bufs.push(b.buf(width, kind)?);
        data.push((width, values(case.seed + 100 + i as u64, rows * width, std)));
    }
    let Ok(mut bufs) = <[B::Buf; N]>::try_from(bufs) else {
        return Err(crate::backend::internal("row_op", "a buffer is missing"));
    };
    let mut output = b.buf(width, kind)?;
    let before = if adds { values(case.seed + 99, rows * width, 1.0) } else { vec![f32::NAN; rows * width] };
    let tokens = tokens(case.seed, rows, s.vocab);
    Ok(Box::new(move |b, mode| {
        let mut all = Vec::new();
        b.seek(case.position)?;
        for (pass, rows) in cuts(b, &case) {
            for (buf, (width, values)) in bufs.iter_mut().zip(&data) {
                b.write(buf, part(values, *width, &rows))?;
            }
            b.write(&mut output, part(&before, width, &rows))?;
            b.set_tokens(tokens.get(rows.clone()).unwrap_or_default())?;
            perform(b, mode, pass, &mut |b| op(b, &mut output, &bufs, pass))?;
            all.extend(b.read(&output, rows.len())?);
            b.advance(pass, rows.len())?;
        }
        Ok(all)
    }))
}

/// `h[r] = scale · table[token r]`
pub fn embed<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let table = matrix(b, s.form, case.seed, s.vocab, s.hidden)?;
    row_op(b, s, case, [], (s.hidden, BufKind::Residual, false), move |b, h, [], pass| b.embed(h, &table, 12.0, pass))
}

fn qkvg_width(s: Sizes) -> usize {
    (2 * s.heads + 2 * s.kv_heads) * HEAD
}

pub fn norm_linear<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let w = product(b, s, case.seed, qkvg_width(s), s.hidden)?;
    projection(b, s, case, w)
}

/// The same with the lower half of the weight in 8 bits, as in mixed folders.
pub fn norm_linear_mixed<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let shape = [qkvg_width(s) / 2, s.hidden];
    let parts =
        [s.form, Form::Int8].map(|form| (form, weight(form, case.seed ^ form.name().len() as u64, shape[0], s.hidden)));
    let views = parts.each_ref().map(|(form, (dtype, data))| view("weight", &shape, *dtype, data, *form));
    let w = b.matrix(&views)?;
    projection(b, s, case, w)
}

fn projection<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case, w: B::Matrix) -> Result<Run<B>> {
    let n = norm(b, case.seed + 1, s.hidden)?;
    let output = (qkvg_width(s), BufKind::Activation, false);
    row_op(b, s, case, [(s.hidden, BufKind::Residual, 3.0)], output, move |b, out, [h], pass| {
        b.norm_linear(out, h, &n, EPS, &w, pass)
    })
}

fn gate_up<B: Backend>(b: &mut B, s: Sizes, seed: u64) -> Result<B::Matrix> {
    let shape = [s.intermediate, s.hidden];
    let [(dtype, gate), (_, up)] = [seed, seed + 2].map(|seed| weight(s.form, seed, s.intermediate, s.hidden));
    let mut w = b.gate_up_matrix(view("gate", &shape, dtype, &gate, s.form), view("up", &shape, dtype, &up, s.form))?;
    if s.in_fp8 {
        b.read_in_fp8(&mut w)?;
    }
    Ok(w)
}

pub fn norm_gate_up<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let (w, n) = (gate_up(b, s, case.seed)?, norm(b, case.seed + 1, s.hidden)?);
    let output = (s.intermediate, BufKind::Activation, false);
    row_op(b, s, case, [(s.hidden, BufKind::Residual, 3.0)], output, move |b, out, [h], pass| {
        b.norm_gate_up(out, h, &n, EPS, &w, pass)
    })
}

pub fn mlp<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let (w, n) = (gate_up(b, s, case.seed)?, norm(b, case.seed + 1, s.hidden)?);
    let down = product(b, s, case.seed + 3, s.hidden, s.intermediate)?;
    let mut mid = b.buf(s.intermediate, BufKind::Activation)?;
    row_op(b, s, case, [], (s.hidden, BufKind::Residual, true), move |b, h, [], pass| {
        b.mlp(h, &mut mid, &Mlp { norm: &n, eps: EPS, gate_up: &w, down: &down, scale: 0.75 }, pass)
    })
}

/// `h += scale · (x Wᵀ)`
pub fn linear_add<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let w = product(b, s, case.seed, s.hidden, s.intermediate)?;
    let output = (s.hidden, BufKind::Residual, true);
    row_op(b, s, case, [(s.intermediate, BufKind::Activation, 1.0)], output, move |b, h, [x], pass| {
        b.linear_add(h, x, &w, 0.75, pass)
    })
}

pub fn gate_output<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case, normed: bool) -> Result<Run<B>> {
    let width = s.heads * HEAD;
    let x_width = width + 256;
    let w = product(b, s, case.seed, s.hidden, width)?;
    let n = if normed { Some(norm(b, case.seed + 1, width)?) } else { None };
    let inputs = [(width, BufKind::Wide, 2.0), (x_width, BufKind::Activation, 1.5)];
    row_op(b, s, case, inputs, (s.hidden, BufKind::Residual, true), move |b, h, [o, x], pass| {
        b.gate_output(h, o, n.as_ref(), EPS, x, 256..x_width, &w, 0.25, pass)
    })
}

pub fn keep_aux_hidden<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let output = (3 * s.hidden, BufKind::Activation, true);
    row_op(b, s, case, [(s.hidden, BufKind::Residual, 1.0)], output, |b, out, [h], pass| {
        b.keep_aux_hidden(out, 1, h, pass)
    })
}

pub fn head<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let (w, n) = (matrix(b, s.form, case.seed, s.vocab, s.hidden)?, norm(b, case.seed + 1, s.hidden)?);
    let (mut h, mut logits) = (b.buf(s.hidden, BufKind::Residual)?, b.buf(s.vocab, BufKind::Logits)?);
    let input = values(case.seed + 100, case.pass.rows() * s.hidden, 3.0);
    Ok(Box::new(move |b, mode| {
        let mut last = Vec::new();
        b.seek(case.position)?;
        for (pass, rows) in cuts(b, &case) {
            let which = match pass {
                Pass::Verify { .. } => HeadRows::All,
                Pass::Prefill { .. } => HeadRows::Last,
            };
            b.write(&mut h, part(&input, s.hidden, &rows))?;
            poisoned(b, &mut logits, which.range(pass).len(), s.vocab)?;
            perform(b, mode, pass, &mut |b| b.head(&mut logits, &h, &n, EPS, 1.0 / 16.0, &w, which, pass))?;
            last = b.read(&logits, which.range(pass).len())?;
            b.advance(pass, rows.len())?;
        }
        Ok(last)
    }))
}

pub fn top_logits<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let rows = case.pass.rows();
    let mut logits = b.buf(s.vocab, BufKind::Logits)?;
    // Coarse values make ties; the lower id must win.
    let input: Vec<f32> = values(case.seed, rows * s.vocab, 4.0).iter().map(|v| (v * 8.0).round() / 8.0).collect();
    Ok(Box::new(move |b, mode| {
        b.seek(case.position)?;
        b.write(&mut logits, &input)?;
        perform(b, mode, case.pass, &mut |b| b.top_logits(&logits, s.vocab, HeadRows::All, case.pass))?;
        let found = b.read_top_logits(rows)?;
        b.advance(case.pass, 0)?;
        let row = |c: crate::backend::TopLogits| {
            c.ids.iter().map(|id| *id as f32).chain(c.logits).chain([c.log_sum_exp]).collect::<Vec<_>>()
        };
        Ok(found.into_iter().flat_map(row).collect())
    }))
}
