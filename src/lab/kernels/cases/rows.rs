//! Operations without state, rows in and rows out: embedding, norms and GEMMs, auxiliary hidden states, the head and
//! its top logits.

use std::ops::Range;

use super::{Case, EPS, HEAD, Part, Run, Sizes, matrix, norm, perform, product, tokens, values, view, weight};
use crate::backend::{Backend, BufKind, Form, HeadRows, Mlp, Pass, Result, TopLogits};

struct Output {
    width: usize,
    kind: BufKind,
    /// The operation adds to it.
    adds: bool,
    /// A prefill pass writes only the row of its last token.
    last: bool,
}

impl Output {
    fn rows(&self, part: &Part) -> Range<usize> {
        if self.last && matches!(part.pass, Pass::Prefill { .. }) { 0..1 } else { part.range() }
    }
}

const OUT: Output = Output { width: 0, kind: BufKind::Activation, adds: false, last: false };

/// The residual stream, which an operation adds to.
fn stream(s: Sizes) -> Output {
    Output { width: s.hidden, kind: BufKind::Residual, adds: true, ..OUT }
}

/// Prepares `op`, which reads the buffers `inputs` (width, kind and deviation of their values) and writes one.
fn row_op<B: Backend, const N: usize>(
    b: &mut B,
    case: Case,
    inputs: [(usize, BufKind, f32); N],
    out: Output,
    mut op: impl FnMut(&mut B, &mut B::Buf, &[B::Buf; N], Pass) -> Result<()> + 'static,
) -> Result<Run<B>> {
    let rows = case.pass.rows();
    let (mut data, mut bufs) = (Vec::new(), Vec::new());
    for (i, (width, kind, std)) in inputs.into_iter().enumerate() {
        bufs.push(b.buf(width, kind)?);
        data.push((width, values(case.seed + 100 + i as u64, rows * width, std)));
    }
    let Ok(mut bufs) = <[B::Buf; N]>::try_from(bufs) else {
        return Err(crate::backend::internal("row_op", "a buffer is missing"));
    };
    let mut output = b.buf(out.width, out.kind)?;
    let before =
        if out.adds { values(case.seed + 99, rows * out.width, 1.0) } else { vec![f32::NAN; rows * out.width] };
    let tokens = tokens(case.seed, rows, case.sizes.vocab);
    let parts = Part::list(case.pass, b.prefill_rows());
    Ok(Box::new(move |b, mode| {
        let mut all = Vec::new();
        b.seek(case.position)?;
        for part in &parts {
            for (buf, (width, values)) in bufs.iter_mut().zip(&data) {
                b.write(buf, part.rows(values, *width))?;
            }
            let written = out.rows(part);
            b.write(&mut output, before.get(written.start * out.width..written.end * out.width).unwrap_or_default())?;
            b.set_tokens(part.rows(&tokens, 1))?;
            perform(b, mode, part.pass, &mut |b| op(b, &mut output, &bufs, part.pass))?;
            all.truncate(written.start * out.width);
            all.extend(b.read(&output, written.len())?);
            b.advance(part.pass, part.accepted)?;
        }
        Ok(all)
    }))
}

/// `h[r] = scale · table[token r]`
pub fn embed<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    let s = case.sizes;
    let table = matrix(b, s.form, case.seed, s.vocab, s.hidden)?;
    let output = Output { adds: false, ..stream(s) };
    row_op(b, case, [], output, move |b, h, [], pass| b.embed(h, &table, 12.0, pass))
}

fn qkvg_width(s: Sizes) -> usize {
    (2 * s.heads + 2 * s.kv_heads) * HEAD
}

pub fn norm_linear<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    let w = product(b, case.sizes, case.seed, qkvg_width(case.sizes), case.sizes.hidden)?;
    projection(b, case, w)
}

/// The same with the lower half of the weight in 8 bits, as in mixed folders.
pub fn norm_linear_mixed<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    let shape = [qkvg_width(case.sizes) / 2, case.sizes.hidden];
    let part = |form: Form| (form, weight(form, case.seed ^ form.name().len() as u64, shape[0], shape[1]));
    let parts = [case.sizes.form, Form::Int8].map(part);
    let w = b.matrix(&parts.each_ref().map(|(form, (dtype, data))| view(&shape, *dtype, data, *form)))?;
    projection(b, case, w)
}

fn projection<B: Backend + 'static>(b: &mut B, case: Case, w: B::Matrix) -> Result<Run<B>> {
    let n = norm(b, case.seed + 1, case.sizes.hidden)?;
    let output = Output { width: qkvg_width(case.sizes), ..OUT };
    row_op(b, case, [(case.sizes.hidden, BufKind::Residual, 3.0)], output, move |b, out, [h], pass| {
        b.norm_linear(out, h, &n, EPS, &w, None, pass)
    })
}

fn gate_up<B: Backend>(b: &mut B, s: Sizes, seed: u64) -> Result<B::Matrix> {
    let shape = [s.intermediate, s.hidden];
    let [(dtype, gate), (_, up)] = [seed, seed + 2].map(|seed| weight(s.form, seed, s.intermediate, s.hidden));
    let mut w = b.gate_up_matrix(view(&shape, dtype, &gate, s.form), view(&shape, dtype, &up, s.form))?;
    if s.in_fp8 {
        b.read_in_fp8(&mut w)?;
    }
    Ok(w)
}

pub fn norm_gate_up<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    let s = case.sizes;
    let (w, n) = (gate_up(b, s, case.seed)?, norm(b, case.seed + 1, s.hidden)?);
    let output = Output { width: s.intermediate, ..OUT };
    row_op(b, case, [(s.hidden, BufKind::Residual, 3.0)], output, move |b, out, [h], pass| {
        b.norm_gate_up(out, h, &n, EPS, &w, pass)
    })
}

pub fn mlp<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    let s = case.sizes;
    let (w, n) = (gate_up(b, s, case.seed)?, norm(b, case.seed + 1, s.hidden)?);
    let down = product(b, s, case.seed + 3, s.hidden, s.intermediate)?;
    let mut mid = b.buf(s.intermediate, BufKind::Activation)?;
    row_op(b, case, [], stream(s), move |b, h, [], pass| {
        b.mlp(h, &mut mid, &Mlp { norm: &n, eps: EPS, gate_up: &w, down: &down, scale: 0.75 }, pass)
    })
}

/// `h += scale · (x Wᵀ)`
pub fn linear_add<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    let s = case.sizes;
    let w = product(b, s, case.seed, s.hidden, s.intermediate)?;
    row_op(b, case, [(s.intermediate, BufKind::Activation, 1.0)], stream(s), move |b, h, [x], pass| {
        b.linear_add(h, x, &w, 0.75, pass)
    })
}

pub fn gate_output<B: Backend + 'static>(b: &mut B, case: Case, normed: bool) -> Result<Run<B>> {
    let (s, width) = (case.sizes, case.sizes.heads * HEAD);
    let w = product(b, s, case.seed, s.hidden, width)?;
    let n = normed.then(|| norm(b, case.seed + 1, width)).transpose()?;
    let inputs = [(width, BufKind::Wide, 2.0), (width + 256, BufKind::Activation, 1.5)];
    row_op(b, case, inputs, stream(s), move |b, h, [o, x], pass| {
        b.gate_output(h, o, n.as_ref(), EPS, x, 256..width + 256, &w, 0.25, pass)
    })
}

pub fn keep_aux_hidden<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    let output = Output { width: 3 * case.sizes.hidden, adds: true, ..OUT };
    row_op(b, case, [(case.sizes.hidden, BufKind::Residual, 1.0)], output, |b, out, [h], pass| {
        b.keep_aux_hidden(out, 1, h, pass)
    })
}

pub fn head<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    let s = case.sizes;
    let (w, n) = (matrix(b, s.form, case.seed, s.vocab, s.hidden)?, norm(b, case.seed + 1, s.hidden)?);
    let output = Output { width: s.vocab, kind: BufKind::Logits, last: true, ..OUT };
    row_op(b, case, [(s.hidden, BufKind::Residual, 3.0)], output, move |b, logits, [h], pass| {
        let rows = if let Pass::Verify { .. } = pass { HeadRows::All } else { HeadRows::Last };
        b.head(logits, h, &n, EPS, 1.0 / 16.0, &w, rows, pass)
    })
}

pub fn top_logits<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    let (rows, vocab) = (case.pass.rows(), case.sizes.vocab);
    let mut logits = b.buf(vocab, BufKind::Logits)?;
    // Coarse values make ties; the lower id must win.
    let input: Vec<f32> = values(case.seed, rows * vocab, 4.0).iter().map(|v| (v * 8.0).round() / 8.0).collect();
    Ok(Box::new(move |b, mode| {
        b.seek(case.position)?;
        b.write(&mut logits, &input)?;
        perform(b, mode, case.pass, &mut |b| b.top_logits(&logits, vocab, HeadRows::All, case.pass))?;
        let found = b.read_top_logits(rows)?;
        b.advance(case.pass, 0)?;
        let row = |c: TopLogits| [c.ids.iter().map(|id| *id as f32).collect(), c.logits, vec![c.log_sum_exp]].concat();
        Ok(found.into_iter().flat_map(row).collect())
    }))
}
