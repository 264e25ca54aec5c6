//! Images out and in: rows of the caches and recurrent states, as f32, from f32 or bf16.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::cache::Slots;
use super::{Buf, Cache, Cpu, Recurrent};
use crate::backend::{BackendError, Images, Memory, ROW_ARRAYS, Result, internal, layer_tensor, row_ranges, shape};
use crate::core::spec::SparseSpec;
use crate::engine::protocol::{Dtype, ImageTensor, PIECE_BYTES, RowSource};

impl Images for Cpu {
    fn read(&mut self, buf: &Buf, rows: usize) -> Result<Vec<f32>> {
        let values = buf
            .data
            .get(..rows * buf.width)
            .ok_or_else(|| shape("read", format!("at most {} rows", buf.data.len() / buf.width.max(1)), rows))?;
        Ok(values.to_vec())
    }

    fn write(&mut self, buf: &mut Buf, values: &[f32]) -> Result<()> {
        let room = buf.data.len();
        let dst = buf
            .data
            .get_mut(..values.len())
            .ok_or_else(|| shape("write", format!("at most {room} values"), values.len()))?;
        dst.copy_from_slice(values);
        Ok(())
    }

    fn read_all_rows(&mut self, caches: &[&Cache], positions: Range<usize>) -> Result<Vec<Vec<ImageTensor>>> {
        let rows_of = |cache: &&Cache| {
            let spec = &cache.spec;
            let arrays = ROW_ARRAYS.into_iter().zip(row_ranges(spec, &positions)).enumerate();
            let array = |(i, (name, rows)): (usize, (&str, Range<usize>))| {
                ImageTensor::of_floats(name, vec![rows.len(), spec.kv_heads, spec.head_dim], &cache.read(i, rows))
            };
            arrays.map(array).collect()
        };
        Ok(caches.iter().map(rows_of).collect())
    }

    fn write_rows(&mut self, cache: &mut Cache, start: usize, tensors: &[&ImageTensor]) -> Result<()> {
        let spec = &cache.spec;
        let missing = |name: &str| shape("restore", format!("a tensor {name}"), "none");
        let named = |name: &str| tensors.iter().find(|t| t.name == name).ok_or_else(|| missing(name));
        let rows = named("k")?.shape.first().copied().unwrap_or(0);
        let array = |(name, rows): (&str, Range<usize>)| {
            let values = image_values(named(name)?, &[rows.len(), spec.kv_heads, spec.head_dim])?;
            Ok((rows.start, values))
        };
        let arrays = ROW_ARRAYS.into_iter().zip(row_ranges(spec, &(start..start + rows)));
        let arrays = arrays.map(array).collect::<Result<Vec<_>>>()?;
        self.reserve(cache, start + rows)?;
        for (i, (first, values)) in arrays.into_iter().enumerate() {
            cache.write(i, first, &values);
        }
        Ok(())
    }

    fn restore_rows(&mut self, caches: &mut [(usize, &mut Cache)], feeds: &[Arc<dyn RowSource>]) -> Result<()> {
        let Some(spec) = caches.first().map(|(_, cache)| cache.spec.clone()) else { return Ok(()) };
        let last = feeds.iter().map(|f| f.start() + f.rows()).max();
        let last = usize::try_from(last.unwrap_or(0)).unwrap_or(usize::MAX);
        for (_, cache) in caches.iter_mut() {
            self.reserve(cache, last)?;
        }
        // One task per array and layer: the bytes are read, checked and stored while they are in the processor's
        // cache.
        let arrays = caches.iter_mut().flat_map(|(layer, cache)| {
            let names = ROW_ARRAYS.map(|name| layer_tensor(name, *layer));
            names.into_iter().zip(cache.arrays()).enumerate()
        });
        let arrays: Vec<(usize, (String, Slots<'_>))> = arrays.collect();
        arrays.into_par_iter().try_for_each(|(i, (name, mut slots))| {
            feeds.iter().try_for_each(|feed| restore_array(&mut slots, i, &name, &spec, feed.as_ref()))
        })
    }

    fn copy_rows(&mut self, to: &mut [&mut Cache], from: &mut [&mut Cache], positions: usize) -> Result<()> {
        for (to, from) in to.iter_mut().zip(from) {
            to.share(from, positions);
            self.reserve(to, positions)?;
        }
        Ok(())
    }

    fn own_rows(&mut self, caches: &mut [&mut Cache], keep: usize) -> Result<()> {
        caches.iter_mut().for_each(|cache| cache.own(keep));
        Ok(())
    }

    fn copy_state(&mut self, to: &mut Recurrent, from: &Recurrent) -> Result<()> {
        to.write(&from.read());
        Ok(())
    }

    fn read_states(&mut self, states: &[&Recurrent]) -> Result<Vec<ImageTensor>> {
        Ok(states.iter().map(|state| ImageTensor::of_floats("state", state.shape().to_vec(), &state.read())).collect())
    }

    fn write_states(&mut self, states: &mut [(&mut Recurrent, Option<&ImageTensor>)]) -> Result<()> {
        for (state, image) in states {
            match *image {
                Some(image) => state.write(&image_values(image, &state.shape())?),
                None => state.clear(),
            }
        }
        Ok(())
    }
}

pub(super) fn image_values(tensor: &ImageTensor, dims: &[usize]) -> Result<Vec<f32>> {
    let values = if tensor.is_whole(dims) { tensor.dtype.floats(&tensor.data) } else { None };
    values.ok_or_else(|| {
        let found = format!("{:?} {:?}, {} bytes", tensor.shape, tensor.dtype, tensor.data.len());
        shape("restore", format!("{} {dims:?} f32 or bf16", tensor.name), found)
    })
}

fn restore_array(slots: &mut Slots<'_>, i: usize, name: &str, spec: &SparseSpec, feed: &dyn RowSource) -> Result<()> {
    let start = usize::try_from(feed.start()).unwrap_or(usize::MAX);
    let rows = usize::try_from(feed.rows()).unwrap_or(usize::MAX - start);
    let rows = row_ranges(spec, &(start..start + rows))[i].clone();
    let expected = [rows.len(), spec.kv_heads, spec.head_dim];
    let dtype = match feed.array(name) {
        Some((dtype @ (Dtype::F32 | Dtype::Bf16), shape)) if shape == expected => dtype,
        found => return Err(shape("restore", format!("{name} {expected:?} f32 or bf16"), format!("{found:?}"))),
    };
    let row_bytes = slots.row_width() * dtype.size();
    // The number of rows that fill a piece: for the usual widths, exactly.
    let step = (PIECE_BYTES / row_bytes.max(1)).max(1);
    let mut bytes = vec![0; step.min(rows.len()) * row_bytes];
    for at in (0..rows.len()).step_by(step) {
        let piece = bytes.get_mut(..step.min(rows.len() - at) * row_bytes);
        let piece = piece.ok_or_else(|| internal("restore", "a piece larger than its buffer"))?;
        feed.fill(name, at * row_bytes, piece).map_err(BackendError::Rows)?;
        let values = dtype.floats(piece).ok_or_else(|| internal("restore", "rows of no number type"))?;
        slots.write(rows.start + at, &values);
    }
    Ok(())
}
