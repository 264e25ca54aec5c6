//! Operations without state, rows in and rows out: embedding, norms and GEMMs, auxiliary hidden states, the head and
//! its top logits.

use super::{
    Case, EPS, HEAD, Mode, Run, Sizes, cuts, matrix, matrix_of_two, norm, part, perform, poisoned, product, tokens,
    values, weight,
};
use crate::backend::{Backend, BufKind, Form, HeadRows, Mlp, Pass, Result, WeightView};
use crate::engine::protocol::Token;

/// An operation without state: writes the buffers `inputs` (width, kind, values per row), runs `op`, reads the buffer
/// `output`.
struct RowOp<B: Backend> {
    inputs: Vec<(B::Buf, usize, Vec<f32>)>,
    output: (B::Buf, usize),
    /// Initial output: NaN, or values for an operation that adds.
    before: Option<Vec<f32>>,
    tokens: Vec<Token>,
}

impl<B: Backend> RowOp<B> {
    fn run(
        &mut self,
        b: &mut B,
        case: &Case,
        mode: Mode,
        op: &mut dyn FnMut(&mut B, &mut B::Buf, &[(B::Buf, usize, Vec<f32>)], Pass) -> Result<()>,
    ) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        b.seek(case.position)?;
        for (pass, rows) in cuts(b, case) {
            for (buf, width, values) in &mut self.inputs {
                b.write(buf, &part(values, *width, &rows))?;
            }
            let (output, width) = &mut self.output;
            match &self.before {
                None => poisoned(b, output, rows.len(), *width)?,
                Some(values) => b.write(output, &part(values, *width, &rows))?,
            }
            b.set_tokens(self.tokens.get(rows.clone()).unwrap_or_default())?;
            let inputs = &self.inputs;
            perform(b, mode, pass, &mut |b| op(b, output, inputs, pass))?;
            all.extend(b.read(output, rows.len())?);
            b.advance(pass, rows.len())?;
        }
        Ok(all)
    }
}

fn row_op<B: Backend>(
    b: &mut B,
    case: &Case,
    inputs: &[(usize, BufKind, f32)],
    output: (usize, BufKind),
    adds: bool,
    vocab: usize,
) -> Result<RowOp<B>> {
    let rows = case.pass.rows();
    let mut made = Vec::new();
    for (i, (width, kind, std)) in inputs.iter().enumerate() {
        made.push((b.buf(*width, *kind)?, *width, values(case.seed + 100 + i as u64, rows * width, *std)));
    }
    Ok(RowOp {
        inputs: made,
        output: (b.buf(output.0, output.1)?, output.0),
        before: adds.then(|| values(case.seed + 99, rows * output.0, 1.0)),
        tokens: tokens(case.seed, rows, vocab.max(1)),
    })
}

/// `h[r] = scale · table[token r]`
pub fn embed<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let table = matrix(b, s.form, case.seed, s.vocab, s.hidden)?;
    let mut op = row_op(b, &case, &[], (s.hidden, BufKind::Residual), false, s.vocab)?;
    Ok(Box::new(move |b, mode| op.run(b, &case, mode, &mut |b, out, _, pass| b.embed(out, &table, 12.0, pass))))
}

pub fn norm_linear<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let out = (2 * s.heads + 2 * s.kv_heads) * HEAD;
    let w = product(b, s, case.seed, out, s.hidden)?;
    projection(b, s, case, w, out)
}

/// The same with the lower half of the weight in 8 bits.
pub fn norm_linear_mixed<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let out = (2 * s.heads + 2 * s.kv_heads) * HEAD;
    let w = matrix_of_two(b, [s.form, Form::Int8], case.seed, out, s.hidden)?;
    projection(b, s, case, w, out)
}

fn projection<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case, w: B::Matrix, out: usize) -> Result<Run<B>> {
    let n = norm(b, case.seed + 1, s.hidden)?;
    let mut op = row_op(b, &case, &[(s.hidden, BufKind::Residual, 3.0)], (out, BufKind::Activation), false, 1)?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(h, ..)] => b.norm_linear(out, h, &n, EPS, &w, pass),
            _ => Ok(()),
        })
    }))
}

fn gate_up<B: Backend>(b: &mut B, s: Sizes, seed: u64) -> Result<B::Matrix> {
    let (dtype, gate) = weight(s.form, seed, s.intermediate, s.hidden);
    let (_, up) = weight(s.form, seed + 2, s.intermediate, s.hidden);
    let shape = [s.intermediate, s.hidden];
    let mut w = b.gate_up_matrix(
        WeightView { name: "gate", shape: &shape, dtype, data: &gate, file: None, form: s.form },
        WeightView { name: "up", shape: &shape, dtype, data: &up, file: None, form: s.form },
    )?;
    if s.in_fp8 {
        b.read_in_fp8(&mut w)?;
    }
    Ok(w)
}

pub fn norm_gate_up<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let (w, n) = (gate_up(b, s, case.seed)?, norm(b, case.seed + 1, s.hidden)?);
    let mut op =
        row_op(b, &case, &[(s.hidden, BufKind::Residual, 3.0)], (s.intermediate, BufKind::Activation), false, 1)?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(h, ..)] => b.norm_gate_up(out, h, &n, EPS, &w, pass),
            _ => Ok(()),
        })
    }))
}

pub fn mlp<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let (w, n) = (gate_up(b, s, case.seed)?, norm(b, case.seed + 1, s.hidden)?);
    let down = product(b, s, case.seed + 3, s.hidden, s.intermediate)?;
    let mut mid = b.buf(s.intermediate, BufKind::Activation)?;
    let mut op = row_op(b, &case, &[], (s.hidden, BufKind::Residual), true, 1)?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, h, _, pass| {
            b.mlp(h, &mut mid, &Mlp { norm: &n, eps: EPS, gate_up: &w, down: &down, scale: 0.75 }, pass)
        })
    }))
}

/// `h += scale · (x Wᵀ)`
pub fn linear_add<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let w = product(b, s, case.seed, s.hidden, s.intermediate)?;
    let mut op =
        row_op(b, &case, &[(s.intermediate, BufKind::Activation, 1.0)], (s.hidden, BufKind::Residual), true, 1)?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(x, ..)] => b.linear_add(out, x, &w, 0.75, pass),
            _ => Ok(()),
        })
    }))
}

fn gate_output<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case, normed: bool) -> Result<Run<B>> {
    let width = s.heads * HEAD;
    let x_width = width + 256;
    let w = product(b, s, case.seed, s.hidden, width)?;
    let n = if normed { Some(norm(b, case.seed + 1, width)?) } else { None };
    let inputs = [(width, BufKind::Wide, 2.0), (x_width, BufKind::Activation, 1.5)];
    let mut op = row_op(b, &case, &inputs, (s.hidden, BufKind::Residual), true, 1)?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(o, ..), (x, ..)] => b.gate_output(out, o, n.as_ref(), EPS, x, 256..x_width, &w, 0.25, pass),
            _ => Ok(()),
        })
    }))
}

pub fn gate_output_normed<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    gate_output(b, s, case, true)
}

pub fn gate_output_plain<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    gate_output(b, s, case, false)
}

pub fn keep_aux_hidden<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let mut op = row_op(b, &case, &[(s.hidden, BufKind::Residual, 1.0)], (3 * s.hidden, BufKind::Activation), true, 1)?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(h, ..)] => b.keep_aux_hidden(out, 1, h, pass),
            _ => Ok(()),
        })
    }))
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
            b.write(&mut h, &part(&input, s.hidden, &rows))?;
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
        Ok(found
            .into_iter()
            .flat_map(|c| c.ids.iter().map(|id| *id as f32).chain(c.logits).chain([c.log_sum_exp]).collect::<Vec<_>>())
            .collect())
    }))
}
