//! One function per operation, generic over the backend: it makes buffers and inputs for a case, and returns a closure
//! that runs the operation from the same start again and again. The oracle and the device run the same functions, so a
//! difference between them is a difference of the operation.
//!
//! Inputs are rounded to bf16, the device's storage, so both start from the same numbers. Outputs are set to NaN
//! before every run: an unwritten element shows.
//!
//! This file has the inputs, the layers and the draft head; `rows` has the operations without state.

mod rows;

use half::bf16;
use rayon::prelude::*;

use crate::backend::draft::{DraftOps, DraftResidual, DraftShape};
use crate::backend::forms::Packed;
use crate::backend::prelude::*;
use crate::backend::{BufKind, Form, Pass, Result, WeightView, synthetic_value};
use crate::core::spec::{LightningSpec, SparseSpec};
use crate::engine::protocol::{Dtype, ImageTensor, ROW_ARRAYS, Token};
use crate::lab::layers::{self, EPS, Lightning, Mode, Part, Sparse, bytes, numbers, perform};

pub use rows::{
    embed, gate_output, head, keep_aux_hidden, linear_add, mlp, norm_gate_up, norm_linear, norm_linear_mixed,
    top_logits,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub sizes: Sizes,
    pub pass: Pass,
    pub position: usize,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub hidden: usize,
    pub intermediate: usize,
    /// Rows of embedding and head; odd on purpose.
    pub vocab: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub lightning_heads: usize,
    pub form: Form,
    /// Prefill products are in fp8.
    pub in_fp8: bool,
}

/// A prepared operation: one call runs it and returns its outputs.
pub type Run<B> = Box<dyn FnMut(&mut B, Mode) -> Result<Vec<f32>>>;

pub const HEAD: usize = 128;

/// `n` random values of deviation `std`, exact in bf16.
pub fn values(seed: u64, n: usize, std: f32) -> Vec<f32> {
    let value = |i| bf16::from_f32(synthetic_value(seed, i as u64, std)).to_f32();
    (0..n).into_par_iter().with_min_len(4096).map(value).collect()
}

pub fn tokens(seed: u64, n: usize, vocab: usize) -> Vec<Token> {
    (0..n as u64).map(|i| (synthetic_value(seed ^ 0x70_6B, i, 1.0).to_bits() >> 3) % vocab as u32).collect()
}

/// A matrix that prefill reads in fp8 where the sizes say so.
fn product<B: Backend>(b: &mut B, s: Sizes, seed: u64, out: usize, inner: usize) -> Result<B::Matrix> {
    let mut w = matrix(b, s.form, seed, out, inner)?;
    if s.in_fp8 {
        b.read_in_fp8(&mut w)?;
    }
    Ok(w)
}

pub fn matrix<B: Backend>(b: &mut B, form: Form, seed: u64, out: usize, inner: usize) -> Result<B::Matrix> {
    let (dtype, data) = weight(form, seed, out, inner);
    b.matrix(&[view(&[out, inner], dtype, &data, form)])
}

/// Values that the loader converts to the form; for a form that only published weights have, packed ones.
fn weight(form: Form, seed: u64, out: usize, inner: usize) -> (Dtype, Vec<u8>) {
    let std = (inner as f32).sqrt().recip();
    match Packed::random(form, seed, out, inner, std) {
        Some(packed) => (Dtype::U8, packed.into_bytes()),
        None => (Dtype::F32, bytes(&values(seed, out * inner, std))),
    }
}

fn view<'a>(shape: &'a [usize], dtype: Dtype, data: &'a [u8], form: Form) -> WeightView<'a> {
    WeightView { name: "weight", shape, dtype, data, file: None, form }
}

pub fn norm<B: Backend>(b: &mut B, seed: u64, n: usize) -> Result<B::Vector> {
    let data: Vec<f32> = values(seed, n, 0.2).iter().map(|v| bf16::from_f32(1.0 + v).to_f32()).collect();
    b.vector(view(&[n], Dtype::F32, &bytes(&data), Form::Bf16))
}

/// Verify passes of the given rows, and prefill passes around the grid.
pub fn passes(verify: &[usize], prefill: &[usize]) -> Vec<Pass> {
    let verify = verify.iter().map(|rows| Pass::Verify { rows: *rows });
    verify.chain(prefill.iter().map(|rows| Pass::Prefill { rows: *rows })).collect()
}

pub fn lightning_spec(s: Sizes) -> LightningSpec {
    let spec = layers::lightning_spec(s.lightning_heads, HEAD, Some(10_000.0));
    LightningSpec { qk_norm: true, output_norm: true, output_gate: true, ..spec }
}

/// A layer with random norms, from a random state.
pub fn lightning_layer<B: Backend>(b: &mut B, s: Sizes, seed: u64) -> Result<Lightning<B>> {
    let norms = [norm(b, seed + 1, HEAD)?, norm(b, seed + 2, HEAD)?];
    let start = values(seed + 3, s.lightning_heads * HEAD * HEAD, 1.0);
    Lightning::new(b, lightning_spec(s), Some(norms), Some(&start))
}

/// Outputs of all rows, then the state after them. A verify pass follows one of five rows with three accepted, so that
/// it absorbs pending rows.
pub fn lightning<B: Backend + 'static>(b: &mut B, case: Case) -> Result<Run<B>> {
    const EARLY: Part = Part { pass: Pass::Verify { rows: 5 }, at: 0, accepted: 3 };
    let mut layer = lightning_layer(b, case.sizes, case.seed)?;
    let rows = |seed, n: usize| values(seed, n * layer.width, 1.0);
    let mut input = rows(case.seed + 4, case.pass.rows());
    let mut parts = Part::list(case.pass, b.prefill_rows());
    if let Pass::Verify { rows: n } = case.pass {
        input = [rows(case.seed + 5, 5), input].concat();
        parts = vec![EARLY, Part { at: 5, pass: case.pass, accepted: n }];
    }
    Ok(Box::new(move |b, mode| {
        let mut out = layer.run(b, case.position, &input, &parts, mode)?;
        out.drain(..out.len().saturating_sub(case.pass.rows() * layer.spec.heads * HEAD));
        out.extend(layer.end(b)?);
        Ok(out)
    }))
}

pub fn sparse_spec(s: Sizes) -> SparseSpec {
    layers::sparse_spec(s.heads, s.kv_heads, HEAD, true, [64, 32, 16, 1, 32, 96])
}

/// Consistent rows of a cache: k, v random, compressed keys their means, all exact in bf16.
pub fn cache_rows(spec: &SparseSpec, rows: usize, seed: u64) -> Vec<ImageTensor> {
    let width = spec.kv_heads * HEAD;
    let k = values(seed, rows * width, 1.0);
    let v = values(seed + 1, rows * width, 1.0);
    let means = |window: usize, stride: usize, n: usize| -> Vec<f32> {
        let mean = |j: usize, c: usize| {
            let sum: f32 = (j * stride..j * stride + window).filter_map(|t| k.get(t * width + c)).sum();
            bf16::from_f32(sum / window as f32).to_f32()
        };
        (0..n).flat_map(|j| (0..width).map(move |c| (j, c))).map(|(j, c)| mean(j, c)).collect()
    };
    let k1 = means(spec.kernel, spec.stride, spec.level1_rows(rows));
    let k2 = means(4 * spec.kernel, 4 * spec.stride, spec.level2_rows(rows));
    let tensor = |(name, values): (&str, Vec<f32>)| {
        ImageTensor::of_floats(name, vec![values.len() / width, spec.kv_heads, HEAD], &values)
    };
    ROW_ARRAYS.into_iter().zip([k, v, k1, k2]).map(tensor).collect()
}

/// A layer after `position` random rows, with room for `rows` more.
pub fn sparse_layer<B: Backend>(b: &mut B, s: Sizes, position: usize, rows: usize, seed: u64) -> Result<Sparse<B>> {
    let mut layer = Sparse::new(b, sparse_spec(s), position + rows)?;
    let before = cache_rows(&layer.spec, position, seed);
    layer.start(b, position, &before)?;
    Ok(layer)
}

/// Fuse, input, keys and values, attention of the last row: everything a draft pass computes before its MLP; with this
/// number of norms before `fc`, over parts of a row's auxiliary hidden states.
pub fn draft<B: DraftOps + 'static>(b: &mut B, case: Case, norms: usize) -> Result<Run<B>> {
    let Case { sizes: s, pass, position, seed } = case;
    let rows = pass.rows();
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
    let table = matrix(b, s.form, seed, s.vocab, s.hidden)?;
    let fc = matrix(b, s.form, seed + 1, s.hidden, 3 * s.hidden)?;
    let wkvq = matrix(b, s.form, seed + 2, shape.kvq_width(), 2 * s.hidden)?;
    let (input_norm, hidden_norm) = (norm(b, seed + 4, s.hidden)?, norm(b, seed + 5, s.hidden)?);
    let norms = 0..norms as u64;
    let width = 3 * s.hidden / norms.end.max(1) as usize;
    let fc_norm = norms.map(|i| norm(b, seed + 9 + i, width)).collect::<Result<Vec<_>>>()?;
    let mut aux_hidden = b.draft_buf(rows, 3 * s.hidden, BufKind::Activation)?;
    let mut g = b.draft_buf(rows, s.hidden, BufKind::Residual)?;
    let mut x = b.draft_buf(rows, 2 * s.hidden, BufKind::Activation)?;
    let mut kvq = b.draft_buf(rows, shape.kvq_width(), BufKind::Activation)?;
    let mut o = b.draft_buf(1, s.heads * HEAD, BufKind::Activation)?;
    let mut window = b.draft_window(&shape)?;
    let known = shape.window.min(position);
    let old = |seed| {
        ImageTensor::of_floats("k", vec![known, s.kv_heads, HEAD], &values(seed, known * s.kv_heads * HEAD, 1.0))
    };
    let (old_k, old_v) = (old(seed + 6), old(seed + 7));
    let streams = values(seed + 8, rows * 3 * s.hidden, 1.0);
    let ids = tokens(seed, rows, s.vocab);
    Ok(Box::new(move |b, mode| {
        if known > 0 {
            b.write_window(&mut window, position - known, &old_k, &old_v)?;
        }
        b.draft_seek(&ids, position, position.saturating_sub(known))?;
        b.write(&mut aux_hidden, &streams)?;
        perform(b, mode, pass, &mut |b| {
            b.draft_fuse(&mut g, &aux_hidden, &fc_norm, EPS, &fc, pass)?;
            let residual = DraftResidual::Stream;
            b.draft_input(&mut x, &mut g, &table, 1.0, &input_norm, &hidden_norm, EPS, residual, pass)?;
            b.draft_project(&mut kvq, &x, &wkvq, 1.0, pass)?;
            b.draft_append(&mut window, &kvq, pass)?;
            b.draft_attend(&mut o, &kvq, &window, pass)
        })?;
        let mut out = b.read(&o, 1)?;
        let kept = b.read_window(&window, position..position + rows)?;
        out.extend(kept.iter().flat_map(numbers));
        Ok(out)
    }))
}
