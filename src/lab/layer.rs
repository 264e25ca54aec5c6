//! A lightning layer with its buffers, driven through the [`Backend`] trait as the model does.

use crate::backend::prelude::*;
use crate::backend::{BufKind, Pass, Result};
use crate::core::spec::LightningSpec;
use crate::engine::protocol::ImageTensor;

pub const EPS: f32 = 1e-6;

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn numbers(tensor: &ImageTensor) -> Vec<f32> {
    tensor.dtype.floats(&tensor.data).unwrap_or_default()
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
        b.write_state(&mut self.state, self.start.as_ref())
    }

    /// Writes the rows of the next pass. Outputs are NaN before it: an unwritten element shows.
    pub fn write(&mut self, b: &mut B, rows: &[f32]) -> Result<()> {
        let count = rows.len() / self.width;
        b.write(&mut self.x, rows)?;
        b.set_tokens(&vec![0; count])?;
        b.write(&mut self.o, &vec![f32::NAN; count * self.spec.heads * self.spec.head_dim])
    }

    pub fn run(&mut self, b: &mut B, pass: Pass) -> Result<()> {
        let [q, k] = self.norms.as_ref().map_or([None, None], |norms| norms.each_ref().map(Some));
        b.lightning(&mut self.o, &self.x, q, k, &mut [&mut self.state], &self.spec, EPS, pass)
    }

    /// The state at the end.
    pub fn end(&mut self, b: &mut B) -> Result<Vec<f32>> {
        b.fold(&mut self.state, &self.spec)?;
        b.folded();
        Ok(numbers(&b.read_state(&self.state)?))
    }
}
