//! One function per operation, generic over the backend: it makes buffers and inputs for a case, and returns a closure
//! that runs the operation from the same start again and again. The oracle and the device run the same functions, so a
//! difference between them is a difference of the operation.
//!
//! Inputs are rounded to bf16, the device's storage, so both start from the same numbers. Outputs are set to NaN
//! before every run: an unwritten element shows.
//!
//! This file has what all cases share. Operations are in `rows`, `layers` and `draft`.

mod draft;
mod layers;
mod rows;

use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use crate::backend::forms::Packed;
use crate::backend::prelude::*;
use crate::backend::{Form, GRID, Pass, Result, StepKey, WeightView, synthetic_value};
use crate::engine::protocol::{Dtype, ImageTensor, Token};

pub use draft::draft;
pub use layers::{Lightning, Sparse, SparseCase, SparseRun, lightning, lightning_spec, sparse_spec};
pub use rows::{
    embed, gate_output, head, keep_aux_hidden, linear_add, mlp, norm_gate_up, norm_linear, norm_linear_mixed,
    top_logits,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Eager,
    /// Through [`Backend::step`]: the first run is eager, the second captured, later ones replayed.
    Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
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

pub const EPS: f32 = 1e-6;
pub const HEAD: usize = 128;

/// `n` random values of deviation `std`, exact in bf16.
pub fn values(seed: u64, n: usize, std: f32) -> Vec<f32> {
    (0..n)
        .into_par_iter()
        .with_min_len(4096)
        .map(|i| bf16::from_f32(synthetic_value(seed, i as u64, std)).to_f32())
        .collect()
}

pub fn tokens(seed: u64, n: usize, vocab: usize) -> Vec<Token> {
    (0..n as u64).map(|i| (synthetic_value(seed ^ 0x70_6B, i, 1.0).to_bits() >> 3) % vocab as u32).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn numbers(tensor: &ImageTensor) -> Vec<f32> {
    tensor.dtype.floats(&tensor.data).unwrap_or_default()
}

fn product<B: Backend>(b: &mut B, s: Sizes, seed: u64, out: usize, inner: usize) -> Result<B::Matrix> {
    let mut w = matrix(b, s.form, seed, out, inner)?;
    if s.in_fp8 {
        b.read_in_fp8(&mut w)?;
    }
    Ok(w)
}

pub fn matrix<B: Backend>(b: &mut B, form: Form, seed: u64, out: usize, inner: usize) -> Result<B::Matrix> {
    let (dtype, data) = weight(form, seed, out, inner);
    b.matrix(&[view("weight", &[out, inner], dtype, &data, form)])
}

/// Values that the loader converts to the form; for a form that only published weights have, packed ones.
fn weight(form: Form, seed: u64, out: usize, inner: usize) -> (Dtype, Vec<u8>) {
    let std = (inner as f32).sqrt().recip();
    match Packed::random(form, seed, out, inner, std) {
        Some(packed) => (Dtype::U8, packed.into_bytes()),
        None => (Dtype::F32, bytes(&values(seed, out * inner, std))),
    }
}

fn view<'a>(name: &'a str, shape: &'a [usize], dtype: Dtype, data: &'a [u8], form: Form) -> WeightView<'a> {
    WeightView { name, shape, dtype, data, file: None, form }
}

pub fn norm<B: Backend>(b: &mut B, seed: u64, n: usize) -> Result<B::Vector> {
    let data = bytes(&values(seed, n, 0.2).iter().map(|v| bf16::from_f32(1.0 + v).to_f32()).collect::<Vec<_>>());
    b.vector(view("norm", &[n], Dtype::F32, &data, Form::Bf16))
}

fn poisoned<B: Backend>(b: &mut B, buf: &mut B::Buf, rows: usize, width: usize) -> Result<()> {
    b.write(buf, &vec![f32::NAN; rows * width])
}

/// Runs `op` eagerly or as a step; prefill passes are never captured.
fn perform<B: Backend>(b: &mut B, mode: Mode, pass: Pass, op: &mut dyn FnMut(&mut B) -> Result<()>) -> Result<()> {
    match (mode, pass) {
        (Mode::Step, Pass::Verify { rows }) => b.step(StepKey::Verify(rows), op),
        (Mode::Eager | Mode::Step, _) => op(b),
    }
}

/// The rows of a case, cut into passes that this backend can take.
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

fn part<'a>(all: &'a [f32], width: usize, rows: &Range<usize>) -> &'a [f32] {
    all.get(rows.start * width..rows.end * width).unwrap_or_default()
}

/// Verify passes of the given rows, and prefill passes around the grid.
pub fn passes(verify: &[usize], prefill: &[usize]) -> Vec<Pass> {
    debug_assert_eq!(GRID, 64);
    let verify = verify.iter().map(|rows| Pass::Verify { rows: *rows });
    verify.chain(prefill.iter().map(|rows| Pass::Prefill { rows: *rows })).collect()
}
