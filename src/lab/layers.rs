//! One lightning or sparse layer with its buffers, driven through the [`Backend`] trait as the model does.

use std::ops::Range;

use crate::backend::prelude::*;
use crate::backend::{BufKind, MassOf, Pass, Result, StepKey};
use crate::core::spec::{DenseRule, LightningSpec, ScoreNorm, SparseSpec};
use crate::engine::protocol::ImageTensor;

pub const EPS: f32 = 1e-6;

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn numbers(tensor: &ImageTensor) -> Vec<f32> {
    tensor.dtype.floats(&tensor.data).unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Eager,
    /// Through [`Backend::step`]: the first run is eager, the second captured, later ones replayed.
    Step,
}

/// Runs `op` eagerly or as a step; prefill passes are never captured.
pub fn perform<B: Backend>(b: &mut B, mode: Mode, pass: Pass, op: &mut dyn FnMut(&mut B) -> Result<()>) -> Result<()> {
    match (mode, pass) {
        (Mode::Step, Pass::Verify { rows }) => b.step(StepKey::Verify(rows), op),
        (Mode::Eager | Mode::Step, _) => op(b),
    }
}

/// A pass over the rows of an input from `at` on. The rows after the first `accepted` are refused.
#[derive(Clone, Copy)]
pub struct Part {
    pub pass: Pass,
    pub at: usize,
    pub accepted: usize,
}

impl Part {
    /// Verify passes as they are; prefill passes cut into chunks of at most `most` rows.
    pub fn list(pass: Pass, most: usize) -> Vec<Part> {
        let Pass::Prefill { rows: all } = pass else { return vec![Part { pass, at: 0, accepted: pass.rows() }] };
        let part = |at| {
            let rows = most.min(all - at);
            Part { pass: Pass::Prefill { rows }, at, accepted: rows }
        };
        (0..all).step_by(most).map(part).collect()
    }

    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.pass.rows()
    }

    pub fn rows<'a, T>(&self, input: &'a [T], width: usize) -> &'a [T] {
        input.get(self.at * width..self.range().end * width).unwrap_or_default()
    }
}

/// Writes the rows of a layer's next pass, each buffer with its width. Outputs are NaN before it: an unwritten element
/// shows.
fn write<B: Backend>(b: &mut B, x: (&mut B::Buf, usize), o: (&mut B::Buf, usize), rows: &[f32]) -> Result<()> {
    let count = rows.len() / x.1;
    b.write(x.0, rows)?;
    b.set_tokens(&vec![0; count])?;
    b.write(o.0, &vec![f32::NAN; count * o.1])
}

pub fn lightning_spec(heads: usize, head_dim: usize, rope_theta: Option<f64>) -> LightningSpec {
    LightningSpec {
        heads,
        kv_heads: heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        rope_theta,
        qk_norm: false,
        output_norm: false,
        output_gate: false,
    }
}

pub struct Lightning<B: Backend> {
    pub spec: LightningSpec,
    /// `[rows, projection]` and `[rows, heads·head_dim]`
    pub x: B::Buf,
    pub o: B::Buf,
    pub width: usize,
    norms: Option<[B::Vector; 2]>,
    state: B::Recurrent,
    start: Option<ImageTensor>,
}

impl<B: Backend> Lightning<B> {
    /// `norms` of q and k; `start` is the state at the start, zero for `None`.
    pub fn new(
        b: &mut B,
        spec: LightningSpec,
        norms: Option<[B::Vector; 2]>,
        start: Option<&[f32]>,
    ) -> Result<Lightning<B>> {
        let (width, shape) = (spec.projection_width(), vec![spec.heads, spec.head_dim, spec.head_dim]);
        Ok(Lightning {
            x: b.buf(width, BufKind::Activation)?,
            o: b.buf(spec.heads * spec.head_dim, BufKind::Wide)?,
            norms,
            state: b.recurrent(&spec)?,
            start: start.map(|values| ImageTensor::of_floats("state", shape, values)),
            spec,
            width,
        })
    }

    pub fn start(&mut self, b: &mut B, position: usize) -> Result<()> {
        b.seek(position)?;
        b.write_states(&mut [(&mut self.state, self.start.as_ref())])
    }

    pub fn write(&mut self, b: &mut B, rows: &[f32]) -> Result<()> {
        write(b, (&mut self.x, self.width), (&mut self.o, self.spec.heads * self.spec.head_dim), rows)
    }

    pub fn mix(&mut self, b: &mut B, pass: Pass) -> Result<()> {
        let [q, k] = self.norms.as_ref().map_or([None, None], |norms| norms.each_ref().map(Some));
        b.lightning(&mut self.o, &self.x, q, k, &mut [&mut self.state], &self.spec, EPS, pass)
    }

    /// Outputs of the accepted rows of all parts, from the state at the start. `mode` is that of the last part.
    pub fn run(&mut self, b: &mut B, position: usize, input: &[f32], parts: &[Part], mode: Mode) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        self.start(b, position)?;
        for (n, part) in parts.iter().enumerate() {
            self.write(b, part.rows(input, self.width))?;
            let mode = if n + 1 == parts.len() { mode } else { Mode::Eager };
            perform(b, mode, part.pass, &mut |b| self.mix(b, part.pass))?;
            out.extend(b.read(&self.o, part.accepted)?);
            b.advance(part.pass, part.accepted)?;
        }
        Ok(out)
    }

    pub fn end(&mut self, b: &mut B) -> Result<Vec<f32>> {
        b.fold(&mut self.state, &self.spec)?;
        b.folded();
        Ok(b.read_states(&[&self.state])?.iter().flat_map(numbers).collect())
    }
}

/// `block, kernel, stride, init_blocks, local_blocks, topk`
pub type SparseShape = [usize; 6];

pub fn sparse_spec(heads: usize, kv_heads: usize, head_dim: usize, gate: bool, shape: SparseShape) -> SparseSpec {
    let [block, kernel, stride, init_blocks, local_blocks, topk] = shape;
    SparseSpec {
        heads,
        kv_heads,
        head_dim,
        gate,
        block,
        kernel,
        stride,
        init_blocks,
        local_blocks,
        topk,
        dense_len: 0,
        dense_rule: DenseRule::AsSparse,
        score_norm: ScoreNorm::Level2,
    }
}

pub struct Sparse<B: Backend> {
    pub spec: SparseSpec,
    /// `[rows, projection]` and `[rows, heads·head_dim]`
    pub x: B::Buf,
    pub o: B::Buf,
    pub width: usize,
    pub cache: B::Cache,
    pub selection: B::Selection,
}

/// What a sparse layer did with the accepted rows of a run.
#[derive(Default)]
pub struct SparseRun {
    /// `[rows][kv_heads]`
    pub chosen: Vec<Vec<Vec<u32>>>,
    /// `[rows, heads·head_dim]`
    pub output: Vec<f32>,
    /// Attention mass of each row of a verify pass, one value a block.
    pub mass: Vec<Vec<u32>>,
}

impl<B: Backend> Sparse<B> {
    /// An empty layer with room for `rows` rows.
    pub fn new(b: &mut B, spec: SparseSpec, rows: usize) -> Result<Self> {
        let (width, limit) = (spec.projection_width(), (rows + 64).next_multiple_of(64));
        // Two layers: as in a model, the rows of another layer lie between those of this one.
        let made = b.caches(&spec, limit, 2)?.pop();
        let mut cache = made.ok_or_else(|| crate::backend::internal("caches", "no cache was made"))?;
        b.reserve(&mut cache, rows)?;
        Ok(Sparse {
            selection: b.selection(&spec, limit)?,
            x: b.buf(width, BufKind::Activation)?,
            o: b.buf(spec.heads * spec.head_dim, BufKind::Wide)?,
            cache,
            spec,
            width,
        })
    }

    /// Puts `before` at the beginning of the cache, which has `position` rows then.
    pub fn start(&mut self, b: &mut B, position: usize, before: &[ImageTensor]) -> Result<()> {
        if position > 0 {
            b.write_rows(&mut self.cache, 0, &before.iter().collect::<Vec<_>>())?;
        }
        b.seek(position)
    }

    pub fn write(&mut self, b: &mut B, rows: &[f32]) -> Result<()> {
        write(b, (&mut self.x, self.width), (&mut self.o, self.spec.heads * self.spec.head_dim), rows)
    }

    /// Appends the pass's keys and values, and chooses blocks for its rows.
    pub fn select(&mut self, b: &mut B, pass: Pass) -> Result<()> {
        b.append_kv(&mut [&mut self.cache], &self.x, &self.spec, pass)?;
        b.select_blocks(&mut self.selection, &self.x, &[&self.cache], &self.spec, pass)
    }

    pub fn attend(&mut self, b: &mut B, pass: Pass) -> Result<()> {
        b.attend(&mut self.o, &self.x, &mut self.selection, &[&self.cache], &self.spec, pass)
    }

    /// Runs all parts on top of the rows from [`Sparse::start`]. The attention mass of accepted rows is added up on
    /// the device.
    pub fn run(&mut self, b: &mut B, input: &[f32], parts: &[Part], mode: Mode) -> Result<SparseRun> {
        let mut out = SparseRun::default();
        for part in parts {
            self.write(b, part.rows(input, self.width))?;
            perform(b, mode, part.pass, &mut |b| {
                self.select(b, part.pass)?;
                self.attend(b, part.pass)
            })?;
            out.chosen.extend(b.read_selection(&self.selection, &self.spec, part.accepted)?);
            out.output.extend(b.read(&self.o, part.accepted)?);
            if let Pass::Verify { rows } = part.pass {
                let position = b.position();
                let blocks = (position + rows).div_ceil(self.spec.block);
                out.mass.extend(b.read_row_mass(&self.selection, 0..part.accepted, blocks)?);
                b.add_mass(&mut self.selection, &self.spec, 0..part.accepted, position, MassOf::Answer)?;
                b.clear_mass(&mut self.selection, 0..rows)?;
            }
            b.advance(part.pass, part.accepted)?;
        }
        Ok(out)
    }
}
