//! One function per operation, generic over the backend: makes buffers and inputs for a case, and gives back a closure
//! that runs the operation from the same start again and again. The oracle and the device run the same functions, so a
//! difference between them is a difference of the operation.
//!
//! Inputs are rounded to bf16, the device's storage, so both start from the same numbers. Outputs are set to NaN before
//! every run: what is not written shows.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use rayon::prelude::*;

use crate::backend::draft::{DraftOps, DraftResidual, DraftShape};
use crate::backend::{
    Backend, BufKind, GRID, HeadRows, Pass, Result, StepKey, WeightView, synthetic_value,
};
use crate::protocol::engine::{Dtype, ImageTensor, Token};
use crate::spec::{DenseRule, LightningSpec, ScoreNorm, SparseSpec};

/// How a run reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Launched one by one.
    Eager,
    /// Through [`Backend::step`]: the first run is eager, the second recorded, later ones replayed.
    Step,
}

/// Which path, how many rows, where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Path and rows.
    pub pass: Pass,
    /// Position of row 0.
    pub position: usize,
    /// Of the random inputs.
    pub seed: u64,
}

/// Sizes of one set of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Rows of embedding and head; odd on purpose.
    pub vocab: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads of sparse layers.
    pub kv_heads: usize,
    /// Heads of lightning layers.
    pub lightning_heads: usize,
}

/// A prepared operation: runs once and gives what came out.
pub type Run<B> = Box<dyn FnMut(&mut B, Mode) -> Result<Vec<f32>>>;

const EPS: f32 = 1e-6;
const HEAD: usize = 128;

/// `n` random values of the given deviation, exact in bf16.
pub fn values(seed: u64, n: usize, std: f32) -> Vec<f32> {
    (0..n)
        .into_par_iter()
        .with_min_len(4096)
        .map(|i| bf16::from_f32(synthetic_value(seed, i as u64, std)).to_f32())
        .collect()
}

/// Tokens inside a vocabulary.
fn tokens(seed: u64, n: usize, vocab: usize) -> Vec<Token> {
    (0..n as u64)
        .map(|i| (synthetic_value(seed ^ 0x70_6B, i, 1.0).to_bits() >> 3) % vocab as u32)
        .collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn matrix<B: Backend>(b: &mut B, seed: u64, out: usize, inner: usize) -> Result<B::Matrix> {
    let data = bytes(&values(seed, out * inner, (inner as f32).sqrt().recip()));
    b.matrix(&[WeightView {
        name: "weight",
        shape: &[out, inner],
        dtype: Dtype::F32,
        data: &data,
    }])
}

fn norm<B: Backend>(b: &mut B, seed: u64, n: usize) -> Result<B::Vector> {
    let data = bytes(
        &values(seed, n, 0.2)
            .iter()
            .map(|v| bf16::from_f32(1.0 + v).to_f32())
            .collect::<Vec<_>>(),
    );
    b.vector(WeightView {
        name: "norm",
        shape: &[n],
        dtype: Dtype::F32,
        data: &data,
    })
}

/// A buffer of which only the first rows are used, NaN everywhere else they could be read.
fn poisoned<B: Backend>(b: &mut B, buf: &mut B::Buf, rows: usize, width: usize) -> Result<()> {
    b.write(buf, &vec![f32::NAN; rows * width])
}

/// Runs `op` at once or as a step; prefill passes are never recorded.
fn perform<B: Backend>(
    b: &mut B,
    mode: Mode,
    pass: Pass,
    op: &mut dyn FnMut(&mut B) -> Result<()>,
) -> Result<()> {
    match (mode, pass) {
        (Mode::Step, Pass::Verify { rows }) => b.step(StepKey::Verify(rows), op),
        (Mode::Eager | Mode::Step, _) => op(b),
    }
}

/// The rows of a case in the passes this backend can take.
fn cuts<B: Backend>(b: &B, case: &Case) -> Vec<(Pass, Range<usize>)> {
    match case.pass {
        Pass::Verify { rows } => vec![(case.pass, 0..rows)],
        Pass::Prefill { rows } => (0..rows)
            .step_by(b.prefill_rows())
            .map(|start| start..rows.min(start + b.prefill_rows()))
            .map(|part| (Pass::Prefill { rows: part.len() }, part))
            .collect(),
    }
}

fn part(all: &[f32], width: usize, rows: &Range<usize>) -> Vec<f32> {
    all.get(rows.start * width..rows.end * width)
        .map(<[f32]>::to_vec)
        .unwrap_or_default()
}

// -- rows in, rows out ---------------------------------------------------------------------------------------------------

/// An operation without state: buffers `inputs` (width, kind, values per row) are written, `op` runs, buffer `output` is read.
struct RowOp<B: Backend> {
    inputs: Vec<(B::Buf, usize, Vec<f32>)>,
    output: (B::Buf, usize),
    /// What the output holds before: NaN, or values for an operation that adds.
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
        made.push((
            b.buf(*width, *kind)?,
            *width,
            values(case.seed + 100 + i as u64, rows * width, *std),
        ));
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
    let table = matrix(b, case.seed, s.vocab, s.hidden)?;
    let mut op = row_op(b, &case, &[], (s.hidden, BufKind::Residual), false, s.vocab)?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, _, pass| {
            b.embed(out, &table, 12.0, pass)
        })
    }))
}

/// Norm and the fused projection.
pub fn norm_linear<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let out = (2 * s.heads + 2 * s.kv_heads) * HEAD;
    let (w, n) = (
        matrix(b, case.seed, out, s.hidden)?,
        norm(b, case.seed + 1, s.hidden)?,
    );
    let mut op = row_op(
        b,
        &case,
        &[(s.hidden, BufKind::Residual, 3.0)],
        (out, BufKind::Activation),
        false,
        1,
    )?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(h, ..)] => b.norm_linear(out, h, &n, EPS, &w, pass),
            _ => Ok(()),
        })
    }))
}

/// Norm, gate and up projection, SwiGLU.
pub fn norm_gate_up<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let std = (s.hidden as f32).sqrt().recip();
    let (gate, up) = (
        bytes(&values(case.seed, s.intermediate * s.hidden, std)),
        bytes(&values(case.seed + 2, s.intermediate * s.hidden, std)),
    );
    let shape = [s.intermediate, s.hidden];
    let w = b.gate_up_matrix(
        WeightView {
            name: "gate",
            shape: &shape,
            dtype: Dtype::F32,
            data: &gate,
        },
        WeightView {
            name: "up",
            shape: &shape,
            dtype: Dtype::F32,
            data: &up,
        },
    )?;
    let n = norm(b, case.seed + 1, s.hidden)?;
    let mut op = row_op(
        b,
        &case,
        &[(s.hidden, BufKind::Residual, 3.0)],
        (s.intermediate, BufKind::Activation),
        false,
        1,
    )?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(h, ..)] => b.norm_gate_up(out, h, &n, EPS, &w, pass),
            _ => Ok(()),
        })
    }))
}

/// `h += scale · (x Wᵀ)`
pub fn linear_add<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let w = matrix(b, case.seed, s.hidden, s.intermediate)?;
    let mut op = row_op(
        b,
        &case,
        &[(s.intermediate, BufKind::Activation, 1.0)],
        (s.hidden, BufKind::Residual),
        true,
        1,
    )?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(x, ..)] => b.linear_add(out, x, &w, 0.75, pass),
            _ => Ok(()),
        })
    }))
}

fn gate_output<B: Backend + 'static>(
    b: &mut B,
    s: Sizes,
    case: Case,
    normed: bool,
) -> Result<Run<B>> {
    let width = s.heads * HEAD;
    let x_width = width + 256;
    let w = matrix(b, case.seed, s.hidden, width)?;
    let n = if normed {
        Some(norm(b, case.seed + 1, width)?)
    } else {
        None
    };
    let inputs = [
        (width, BufKind::Wide, 2.0),
        (x_width, BufKind::Activation, 1.5),
    ];
    let mut op = row_op(b, &case, &inputs, (s.hidden, BufKind::Residual), true, 1)?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(o, ..), (x, ..)] => {
                b.gate_output(out, o, n.as_ref(), EPS, x, 256..x_width, &w, 0.25, pass)
            }
            _ => Ok(()),
        })
    }))
}

/// Norm, gate and output projection of a lightning layer.
pub fn gate_output_normed<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    gate_output(b, s, case, true)
}

/// Gate and output projection of a sparse layer.
pub fn gate_output_plain<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    gate_output(b, s, case, false)
}

/// A residual stream into its slot.
pub fn tap<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let mut op = row_op(
        b,
        &case,
        &[(s.hidden, BufKind::Residual, 1.0)],
        (3 * s.hidden, BufKind::Activation),
        true,
        1,
    )?;
    Ok(Box::new(move |b, mode| {
        op.run(b, &case, mode, &mut |b, out, inputs, pass| match inputs {
            [(h, ..)] => b.tap(out, 1, h, pass),
            _ => Ok(()),
        })
    }))
}

/// Final norm and head of every row; the last one for prefill passes.
pub fn head<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let (w, n) = (
        matrix(b, case.seed, s.vocab, s.hidden)?,
        norm(b, case.seed + 1, s.hidden)?,
    );
    let (mut h, mut logits) = (
        b.buf(s.hidden, BufKind::Residual)?,
        b.buf(s.vocab, BufKind::Logits)?,
    );
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
            poisoned(b, &mut logits, which.count(pass), s.vocab)?;
            perform(b, mode, pass, &mut |b| {
                b.head(&mut logits, &h, &n, EPS, 1.0 / 16.0, &w, which, pass)
            })?;
            last = b.read(&logits, which.count(pass))?;
            b.advance(pass, rows.len())?;
        }
        Ok(last)
    }))
}

/// The best candidates, many of them equal: ids, logits and log-sum-exp in one list.
pub fn top_candidates<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let rows = case.pass.rows();
    let mut logits = b.buf(s.vocab, BufKind::Logits)?;
    // Coarse steps make ties, which go to the lower id.
    let input: Vec<f32> = values(case.seed, rows * s.vocab, 4.0)
        .iter()
        .map(|v| (v * 8.0).round() / 8.0)
        .collect();
    Ok(Box::new(move |b, mode| {
        b.seek(case.position)?;
        b.write(&mut logits, &input)?;
        perform(b, mode, case.pass, &mut |b| {
            b.top_candidates(&logits, s.vocab, HeadRows::All, case.pass)
        })?;
        let found = b.candidates(rows)?;
        b.advance(case.pass, 0)?;
        Ok(found
            .into_iter()
            .flat_map(|c| {
                c.ids
                    .iter()
                    .map(|id| *id as f32)
                    .chain(c.logits)
                    .chain([c.log_sum_exp])
                    .collect::<Vec<_>>()
            })
            .collect())
    }))
}

// -- sparse layers -------------------------------------------------------------------------------------------------------

/// The released shape of sparse layers, with the sizes' heads.
pub fn sparse_spec(s: Sizes) -> SparseSpec {
    SparseSpec {
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: HEAD,
        gate: true,
        block: 64,
        kernel: 32,
        stride: 16,
        init_blocks: 1,
        local_blocks: 32,
        topk: 96,
        dense_len: 8192,
        dense_rule: DenseRule::AsSparse,
        score_norm: ScoreNorm::Coarse,
    }
}

/// Rows of a cache as they would be there: k, v random, compressed keys their means, all exact in bf16.
pub fn cache_rows(spec: &SparseSpec, rows: usize, seed: u64) -> Vec<ImageTensor> {
    let width = spec.kv_heads * HEAD;
    let k = values(seed, rows * width, 1.0);
    let v = values(seed + 1, rows * width, 1.0);
    let means = |window: usize, stride: usize, n: usize| -> Vec<f32> {
        let mut out = Vec::with_capacity(n * width);
        for j in 0..n {
            for c in 0..width {
                let sum: f32 = (j * stride..j * stride + window)
                    .filter_map(|t| k.get(t * width + c))
                    .sum();
                out.push(bf16::from_f32(sum / window as f32).to_f32());
            }
        }
        out
    };
    let k1 = means(spec.kernel, spec.stride, spec.fine_rows(rows));
    let k2 = means(4 * spec.kernel, 4 * spec.stride, spec.coarse_rows(rows));
    [("k", k), ("v", v), ("k1", k1), ("k2", k2)]
        .into_iter()
        .map(|(name, values)| ImageTensor {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape: vec![values.len() / width, spec.kv_heads, HEAD],
            data: Arc::new(bytes(&values)),
        })
        .collect()
}

/// What a sparse layer did: the projection's q as given, cache rows after it, chosen blocks, attention output.
pub struct SparseRun {
    /// `[rows, heads·128]`
    pub q: Vec<f32>,
    /// k, v, k1, k2 of all positions.
    pub cache: Vec<ImageTensor>,
    /// `[rows][kv_heads]`
    pub chosen: Vec<Vec<Vec<u32>>>,
    /// `[rows, heads·128]`
    pub output: Vec<f32>,
}

/// A whole sparse layer: append, select, attend.
pub struct SparseCase<B: Backend> {
    spec: SparseSpec,
    case: Case,
    cache: B::Cache,
    selection: B::Selection,
    x: B::Buf,
    o: B::Buf,
    input: Vec<f32>,
    before: Vec<ImageTensor>,
}

impl<B: Backend> SparseCase<B> {
    /// A cache of `case.position` rows; room for `limit`.
    pub fn new(b: &mut B, s: Sizes, case: Case, limit: usize) -> Result<Self> {
        let spec = sparse_spec(s);
        let width = spec.projection_width();
        let mut cache = b.cache(&spec, limit)?;
        b.reserve(&mut cache, case.position + case.pass.rows())?;
        Ok(SparseCase {
            case,
            selection: b.selection(&spec, limit)?,
            x: b.buf(width, BufKind::Activation)?,
            o: b.buf(spec.heads * HEAD, BufKind::Wide)?,
            input: values(case.seed + 7, case.pass.rows() * width, 1.5),
            before: cache_rows(&spec, case.position, case.seed + 8),
            cache,
            spec,
        })
    }

    /// The shape.
    pub fn spec(&self) -> &SparseSpec {
        &self.spec
    }

    /// Runs the layer from the same start.
    pub fn run(&mut self, b: &mut B, mode: Mode) -> Result<SparseRun> {
        let (spec, case, width) = (&self.spec, self.case, self.spec.projection_width());
        if case.position > 0 {
            let before: Vec<&ImageTensor> = self.before.iter().collect();
            b.write_rows(&mut self.cache, spec, 0, &before)?;
        }
        b.seek(case.position)?;
        let (mut chosen, mut output) = (Vec::new(), Vec::new());
        for (pass, rows) in cuts(b, &case) {
            b.write(&mut self.x, &part(&self.input, width, &rows))?;
            poisoned(b, &mut self.o, rows.len(), spec.heads * HEAD)?;
            let (x, o, cache, selection) =
                (&self.x, &mut self.o, &mut self.cache, &mut self.selection);
            perform(b, mode, pass, &mut |b| {
                b.append_kv(cache, x, spec, pass)?;
                b.select_blocks(selection, x, cache, spec, pass)?;
                b.attend(o, x, selection, cache, spec, pass)
            })?;
            chosen.extend(b.read_selection(&self.selection, spec, rows.len())?);
            output.extend(b.read(&self.o, rows.len())?);
            b.advance(pass, rows.len())?;
        }
        let q = self
            .input
            .chunks_exact(width)
            .flat_map(|row| row.iter().take(spec.heads * HEAD).copied())
            .collect();
        let cache = b.read_rows(&self.cache, spec, 0..case.position + case.pass.rows())?;
        Ok(SparseRun {
            q,
            cache,
            chosen,
            output,
        })
    }
}

// -- lightning layers ----------------------------------------------------------------------------------------------------

/// The released shape of lightning layers, with the sizes' heads.
pub fn lightning_spec(s: Sizes) -> LightningSpec {
    LightningSpec {
        heads: s.lightning_heads,
        kv_heads: s.lightning_heads,
        head_dim: HEAD,
        scale: 1.0 / (HEAD as f32).sqrt(),
        rope_theta: Some(10_000.0),
        qk_norm: true,
        output_norm: true,
        output_gate: true,
    }
}

/// A lightning layer from a non-zero state; outputs of all rows, then the state after them. Verify passes come second to a pass
/// of five rows of which three were accepted, so that pending rows are absorbed on the way.
pub fn lightning<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let spec = lightning_spec(s);
    let width = spec.projection_width();
    let (q_norm, k_norm) = (norm(b, case.seed + 1, HEAD)?, norm(b, case.seed + 2, HEAD)?);
    let (mut x, mut o) = (
        b.buf(width, BufKind::Activation)?,
        b.buf(spec.heads * HEAD, BufKind::Wide)?,
    );
    let mut state = b.recurrent(&spec)?;
    let start = ImageTensor {
        name: "state".to_owned(),
        dtype: Dtype::F32,
        shape: vec![spec.heads, HEAD, HEAD],
        data: Arc::new(bytes(&values(case.seed + 3, spec.heads * HEAD * HEAD, 1.0))),
    };
    let input = values(case.seed + 4, case.pass.rows() * width, 1.0);
    let early = values(case.seed + 5, 5 * width, 1.0);
    Ok(Box::new(move |b, mode| {
        b.seek(case.position)?;
        b.write_state(&mut state, &spec, Some(&start))?;
        let mut out = Vec::new();
        if let Pass::Verify { .. } = case.pass {
            let first = Pass::Verify { rows: 5 };
            b.write(&mut x, &early)?;
            b.set_tokens(&[0; 5])?;
            b.lightning(
                &mut o,
                &x,
                Some(&q_norm),
                Some(&k_norm),
                &mut state,
                &spec,
                EPS,
                first,
            )?;
            b.advance(first, 3)?;
        }
        for (pass, rows) in cuts(b, &case) {
            b.write(&mut x, &part(&input, width, &rows))?;
            b.set_tokens(&vec![0; rows.len()])?;
            poisoned(b, &mut o, rows.len(), spec.heads * HEAD)?;
            perform(b, mode, pass, &mut |b| {
                b.lightning(
                    &mut o,
                    &x,
                    Some(&q_norm),
                    Some(&k_norm),
                    &mut state,
                    &spec,
                    EPS,
                    pass,
                )
            })?;
            out.extend(b.read(&o, rows.len())?);
            b.advance(pass, rows.len())?;
        }
        b.fold(&mut state, &spec)?;
        b.folded();
        let after = b.read_state(&state, &spec)?;
        out.extend(
            after
                .data
                .chunks_exact(4)
                .map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])),
        );
        Ok(out)
    }))
}

// -- the draft head ------------------------------------------------------------------------------------------------------

/// Fuse, input, keys and values, attention of the last row; everything a draft pass computes before its MLP.
pub fn draft<B: DraftOps + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let rows = case.pass.rows();
    let shape = DraftShape {
        hidden: s.hidden,
        intermediate: s.intermediate,
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: HEAD,
        // A pass must fit into the ring; short ones leave the small window and run around it.
        window: rows.max(256),
        inv_freq: (0..HEAD / 2)
            .map(|i| 10_000f64.powf(-2.0 * i as f64 / HEAD as f64))
            .collect(),
    };
    let q_width = s.heads * HEAD;
    let table = matrix(b, case.seed, s.vocab, s.hidden)?;
    let fc = matrix(b, case.seed + 1, s.hidden, 3 * s.hidden)?;
    let kvq_width = shape.kvq_width();
    let wkvq = matrix(b, case.seed + 2, kvq_width, 2 * s.hidden)?;
    let (input_norm, hidden_norm) = (
        norm(b, case.seed + 4, s.hidden)?,
        norm(b, case.seed + 5, s.hidden)?,
    );
    let mut taps = b.draft_buf(rows, 3 * s.hidden, BufKind::Activation)?;
    let mut g = b.draft_buf(rows, s.hidden, BufKind::Residual)?;
    let mut x = b.draft_buf(rows, 2 * s.hidden, BufKind::Activation)?;
    let mut kvq = b.draft_buf(rows, kvq_width, BufKind::Activation)?;
    let mut o = b.draft_buf(1, q_width, BufKind::Activation)?;
    let mut window = b.draft_window(&shape)?;
    let known = shape.window.min(case.position);
    let image = |seed: u64| ImageTensor {
        name: "k".to_owned(),
        dtype: Dtype::F32,
        shape: vec![known, s.kv_heads, HEAD],
        data: Arc::new(bytes(&values(seed, known * s.kv_heads * HEAD, 1.0))),
    };
    let (old_k, old_v) = (image(case.seed + 6), image(case.seed + 7));
    let streams = values(case.seed + 8, rows * 3 * s.hidden, 1.0);
    let ids = tokens(case.seed, rows, s.vocab);
    Ok(Box::new(move |b, mode| {
        if known > 0 {
            b.write_window(&mut window, &shape, case.position - known, &old_k, &old_v)?;
        }
        b.draft_seek(&ids, case.position, case.position.saturating_sub(known))?;
        b.write(&mut taps, &streams)?;
        perform(b, mode, case.pass, &mut |b| {
            b.draft_fuse(&mut g, &taps, &[], EPS, &fc, case.pass)?;
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
            b.draft_append(&mut window, &kvq, &shape, case.pass)?;
            b.draft_attend(&mut o, &kvq, &window, &shape, case.pass)
        })?;
        let mut out = b.read(&o, 1)?;
        let end = case.position + rows;
        for tensor in b.read_window(&window, &shape, case.position..end)? {
            out.extend(super::reference::numbers(&tensor));
        }
        Ok(out)
    }))
}

/// Verify passes of the given rows, and prefill passes around the grid.
pub fn passes(verify: &[usize], prefill: &[usize]) -> Vec<Pass> {
    debug_assert_eq!(GRID, 64);
    verify
        .iter()
        .map(|rows| Pass::Verify { rows: *rows })
        .chain(prefill.iter().map(|rows| Pass::Prefill { rows: *rows }))
        .collect()
}
