//! Images out and in: rows of the caches and recurrent states, through page-locked buffers on the copy queue.
//!
//! Rows keep their number type (bf16), so a round trip keeps every bit and the CPU backend only widens them. Buffers
//! for tests and golden data use the same path.

use std::ops::Range;
use std::sync::Arc;

use super::cache::Cache;
use super::device::DeviceBuffer;
use super::driver::{DevicePtr, Home, Queue};
use super::lazy_restore::{InFlight, LazyRestore, Source};
use super::readback::Readback;
use super::selection::Selection;
use super::staging::Outgoing;
use super::stretch::Stretch;
use super::tensors::{Buf, HEAD, Recurrent, floats, narrow, narrowed};
use super::{Cuda, check_shape, shape};
use crate::backend::{
    BackendError, BufKind, Images, ROW_ARRAYS, Result, Sparse, Steps, internal, invariant, layer_tensor, row_ranges,
};
use crate::core::spec::SparseSpec;
use crate::engine::protocol::{Cancel, Dtype, ImageTensor, RowSource, TensorData};

/// A pass with more rows waits for all earlier rows: together its rows choose nearly every block.
const CHOOSING_ROWS: usize = 512;

impl Images for Cuda {
    fn read(&mut self, buf: &Buf, rows: usize) -> Result<Vec<f32>> {
        check_shape(rows <= buf.rows, "read", format_args!("at most {} rows", buf.rows), rows)?;
        let data = self.staging.fetch(buf.ptr(), rows * buf.width * buf.value_bytes())?;
        floats(number_type(buf), &data)
    }

    fn write(&mut self, buf: &mut Buf, values: &[f32]) -> Result<()> {
        let fits = values.len() <= buf.rows * buf.width;
        check_shape(fits, "write", format_args!("at most {} values", buf.rows * buf.width), values.len())?;
        self.ready.forget();
        match number_type(buf) {
            Dtype::Bf16 => self.staging.send_bytes(buf.ptr(), &narrow(values)),
            Dtype::F32 | Dtype::U32 | Dtype::U8 => self.staging.send_bytes(buf.ptr(), bytemuck::cast_slice(values)),
        }
    }

    fn read_all_rows(&mut self, caches: &[&Cache], positions: Range<usize>) -> Result<Vec<Vec<ImageTensor>>> {
        let Some(spec) = caches.first().map(|cache| &cache.spec) else { return Ok(Vec::new()) };
        let ranges = row_ranges(spec, &positions);
        let mut arrays = Vec::with_capacity(caches.len() * ranges.len());
        for cache in caches {
            for (index, rows) in ranges.iter().enumerate() {
                let array = cache.rows(index, rows)?;
                if index < 2 {
                    cache.wait_for(rows.clone())?;
                }
                arrays.push(array);
            }
        }
        let mut data = self.fetch_arrays(&arrays)?.into_iter();
        let image = |(name, rows): (&str, &Range<usize>)| {
            let data = data.next().ok_or_else(|| internal("read_rows", "an array without its bytes"))?;
            let shape = vec![rows.len(), spec.kv_heads, HEAD];
            Ok(ImageTensor::new(name, Dtype::Bf16, shape, data))
        };
        let mut images = ROW_ARRAYS.into_iter().zip(&ranges).cycle().take(arrays.len()).map(image);
        caches.iter().map(|_| images.by_ref().take(ranges.len()).collect()).collect()
    }

    fn write_rows(&mut self, cache: &mut Cache, start: usize, tensors: &[&ImageTensor]) -> Result<()> {
        let spec = &cache.spec;
        let find = |name: &str| {
            let found = tensors.iter().find(|t| t.name == name);
            found.copied().ok_or_else(|| shape("write_rows", format!("an array `{name}`"), "none"))
        };
        let rows = find("k")?.shape.first().copied().unwrap_or(0);
        cache.forget(start)?;
        for (index, (name, rows)) in ROW_ARRAYS.into_iter().zip(row_ranges(spec, &(start..start + rows))).enumerate() {
            let tensor = find(name)?;
            let expected = [rows.len(), spec.kv_heads, HEAD];
            let fits = tensor.is_whole(&expected);
            check_shape(fits, "write_rows", format_args!("`{name}` {expected:?}"), format_args!("{tensor:?}"))?;
            let array = cache.rows(index, &rows)?;
            self.store_rows(array, &narrowed(tensor)?)?;
        }
        Ok(())
    }

    fn restore_rows(&mut self, caches: &mut [(usize, &mut Cache)], feeds: &[Arc<dyn RowSource>]) -> Result<()> {
        let (mut compressed, mut sources) = (Vec::new(), Vec::new());
        let mut of_cache = Vec::with_capacity(caches.len());
        if caches.iter().any(|(_, cache)| cache.paged.is_some()) {
            // Threads write where the device may still be reading.
            self.synchronize()?;
        }
        for (layer, cache) in caches.iter_mut() {
            let first = sources.len();
            let [home, ..] = cache.columns.map(|column| column.home);
            if let Some(feed) = feeds.first() {
                cache.forget(usize::try_from(feed.start()).unwrap_or(usize::MAX))?;
            }
            for feed in feeds {
                let start = usize::try_from(feed.start()).unwrap_or(usize::MAX);
                let rows = usize::try_from(feed.rows()).unwrap_or(usize::MAX - start);
                let ranges = row_ranges(&cache.spec, &(start..start + rows));
                let names = ROW_ARRAYS.map(|name| layer_tensor(name, *layer));
                let as_here = names.iter().zip(&ranges).all(|(name, rows)| {
                    let shape = vec![rows.len(), cache.spec.kv_heads, HEAD];
                    feed.array(name) == Some((Dtype::Bf16, shape))
                });
                if !as_here {
                    self.write_feed(cache, *layer, feed.as_ref())?;
                    continue;
                }
                let mut places = Vec::with_capacity(names.len());
                for (index, (name, rows)) in names.into_iter().zip(&ranges).enumerate() {
                    places.push((name, cache.rows(index, rows)?.0));
                }
                let mut places = places.into_iter();
                if let (Some(k), Some(v)) = (places.next(), places.next()) {
                    sources.push(Source {
                        feed: Arc::clone(feed),
                        start,
                        rows,
                        row_bytes: cache.row_bytes,
                        arrays: [k, v],
                        home,
                    });
                }
                compressed.extend(places.map(|(name, dst)| Outgoing::rows(dst, name, feed.as_ref())));
            }
            of_cache.push(first..sources.len());
        }
        self.staging.send(&compressed)?;
        self.staging.land()?;
        let lazy_restore = LazyRestore::start(&self.device, sources)?;
        for ((_, cache), sources) in caches.iter_mut().zip(of_cache) {
            cache.in_flight = Some(InFlight { lazy_restore: Arc::clone(&lazy_restore), sources });
        }
        self.lazy_restores.insert(self.step.place.id, lazy_restore);
        Ok(())
    }

    fn copy_rows(&mut self, to: &mut [&mut Cache], from: &mut [&mut Cache], positions: usize) -> Result<()> {
        let (Some(first), Some(theirs)) = (to.first(), from.first()) else {
            return invariant(to.len() == from.len(), "copy_rows", "caches of two shapes");
        };
        invariant(!first.is_sibling(theirs), "copy_rows", "a sequence and itself")?;
        for from in from.iter() {
            // A block is copied whole.
            from.wait_for(0..positions.next_multiple_of(from.spec.block))?;
        }
        for to in to.iter_mut() {
            to.in_flight = None;
            to.forget(0)?;
        }
        Cache::joined_of(to)?.copy_from(&mut *Cache::joined_of(from)?, positions)
    }

    fn own_rows(&mut self, caches: &mut [&mut Cache], keep: usize) -> Result<()> {
        for cache in caches.iter() {
            cache.forget(keep)?;
        }
        if caches.is_empty() { Ok(()) } else { Cache::joined_of(caches)?.own(keep) }
    }

    fn rows_are_there(&self, cache: &Cache) -> bool {
        cache.in_flight().is_none()
    }

    fn copy_state(&mut self, to: &mut Recurrent, from: &Recurrent) -> Result<()> {
        let bytes = from.state.bytes().min(to.state.bytes());
        // SAFETY: both have this size; they are different states.
        unsafe { self.device.driver().copy(to.state.ptr(), from.state.ptr(), bytes, Queue::Compute) }
    }

    fn sync_rows(&mut self, keep: usize) -> Result<()> {
        self.lazy_restores.remove(&self.step.place.id).map_or(Ok(()), |a| a.sync(keep))
    }

    fn stop_on(&mut self, cancel: Option<&Cancel>) {
        if let Some(lazy_restore) = self.lazy_restores.get(&self.step.place.id) {
            lazy_restore.stop_on(cancel);
        }
    }

    fn rows_in_flight(&self) -> bool {
        self.lazy_restores.get(&self.step.place.id).is_some_and(|a| !a.complete())
    }

    fn read_states(&mut self, states: &[&Recurrent]) -> Result<Vec<ImageTensor>> {
        if self.step.place.pending > 0 {
            return Err(BackendError::Unsupported(
                "a recurrent state with pending rows cannot be saved; fold first".to_owned(),
            ));
        }
        let places: Vec<_> = states.iter().map(|s| (s.state.ptr(), s.state.bytes())).collect();
        let image =
            |(state, data): (&&Recurrent, _)| ImageTensor::new("state", Dtype::F32, state.shape().to_vec(), data);
        Ok(states.iter().zip(self.leave(&places)?).map(image).collect())
    }

    fn write_states(&mut self, states: &mut [(&mut Recurrent, Option<&ImageTensor>)]) -> Result<()> {
        let mut outgoing = Vec::with_capacity(states.len());
        for (state, image) in states.iter() {
            let Some(image) = *image else {
                self.zero(&state.state)?;
                continue;
            };
            let expected = state.shape();
            let fits = image.dtype == Dtype::F32 && image.is_whole(&expected);
            check_shape(fits, "write_states", format_args!("f32 {expected:?}"), format_args!("{image:?}"))?;
            outgoing.push(Outgoing::plain(Stretch::plain(state.state.ptr(), image.data.len()), &image.data));
        }
        self.staging.send(&outgoing)
    }
}

impl Cuda {
    pub(super) fn await_chosen(
        &mut self,
        cache: &Cache,
        sel: &Selection,
        spec: &SparseSpec,
        rows: usize,
    ) -> Result<()> {
        let Some(in_flight) = cache.in_flight() else { return Ok(()) };
        if rows > CHOOSING_ROWS {
            return cache.wait_for(0..self.step.place.position + rows);
        }
        let chosen = self.read_selection(sel, spec, rows)?;
        let mut blocks: Vec<u32> = chosen.into_iter().flatten().flatten().collect();
        blocks.sort_unstable();
        blocks.dedup();
        let first = |block: u32| block as usize * spec.block;
        let ranges: Vec<Range<usize>> = blocks
            .chunk_by(|a, b| a + 1 == *b)
            .filter_map(|run| Some(first(*run.first()?)..first(run.last()? + 1)))
            .collect();
        in_flight.wait_for(&ranges)
    }

    /// Bytes of device memory after all work queued so far; they may arrive after the return.
    fn leave(&mut self, places: &[(DevicePtr, usize)]) -> Result<Vec<TensorData>> {
        let readback = match &mut self.readback {
            Some(readback) => readback,
            none => none.insert(Readback::start(&self.device)?),
        };
        if let Some(data) = readback.take(places)? {
            return Ok(data);
        }
        let places: Vec<_> = places.iter().map(|(at, bytes)| Stretch::plain(*at, *bytes)).collect();
        Ok(self.staging.fetch_all(&places)?.into_iter().map(TensorData::from).collect())
    }

    fn fetch_arrays(&mut self, arrays: &[(Stretch, Home)]) -> Result<Vec<Vec<u8>>> {
        let on_device = arrays.iter().filter(|(_, home)| *home == Home::Device);
        let places: Vec<Stretch> = on_device.map(|(array, _)| *array).collect();
        if places.len() < arrays.len() {
            self.synchronize()?;
        }
        let mut fetched = self.staging.fetch_all(&places)?.into_iter();
        let data = arrays.iter().map(|(array, home)| match home {
            Home::Device => fetched.next().ok_or_else(|| internal("read_rows", "an array without its bytes")),
            // SAFETY: the device has finished with them; no rows are in flight to them.
            Home::Host => Ok(unsafe { array.host()? }.to_vec()),
        });
        data.collect()
    }

    /// Rows of another number type, or of wrong shapes, which are rejected with a message.
    fn write_feed(&mut self, cache: &mut Cache, layer: usize, feed: &dyn RowSource) -> Result<()> {
        let mut tensors = Vec::with_capacity(ROW_ARRAYS.len());
        for name in ROW_ARRAYS {
            let full = layer_tensor(name, layer);
            if feed.array(&full).is_some() {
                let tensor = feed.load(&full).map_err(BackendError::Rows)?;
                tensors.push(ImageTensor { name: name.to_owned(), ..tensor });
            }
        }
        let start = usize::try_from(feed.start()).unwrap_or(usize::MAX);
        self.write_rows(cache, start, &tensors.iter().collect::<Vec<_>>())
    }

    fn store_rows(&mut self, (array, home): (Stretch, Home), data: &[u8]) -> Result<()> {
        check_shape(data.len() == array.bytes, "write_rows", format_args!("{} bytes", array.bytes), data.len())?;
        if home == Home::Device {
            return self.staging.send(&[Outgoing::plain(array, data)]);
        }
        self.synchronize()?;
        // SAFETY: the device has finished with them; nothing is in flight to rows that are written.
        unsafe { array.host()? }.copy_from_slice(data);
        Ok(())
    }

    fn zero(&mut self, buffer: &DeviceBuffer) -> Result<()> {
        // SAFETY: the buffer has this size.
        unsafe { self.device.driver().fill(buffer.ptr(), 0, buffer.bytes(), Queue::Compute) }
    }

    pub(super) fn words(&mut self, at: DevicePtr, n: usize) -> Result<Vec<u32>> {
        let data = self.staging.fetch(at, n * 4)?;
        Ok(data.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
    }
}

fn number_type(buf: &Buf) -> Dtype {
    match buf.kind {
        BufKind::Activation => Dtype::Bf16,
        BufKind::Residual | BufKind::Wide | BufKind::Logits => Dtype::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::spec::{DenseRule, ScoreNorm};

    #[test]
    fn compressed_rows_belong_to_the_positions_that_complete_them() {
        let spec = SparseSpec {
            heads: 2,
            kv_heads: 1,
            head_dim: 128,
            gate: true,
            block: 64,
            kernel: 32,
            stride: 16,
            init_blocks: 1,
            local_blocks: 2,
            topk: 4,
            dense_len: 0,
            dense_rule: DenseRule::AsSparse,
            score_norm: ScoreNorm::Level2,
        };
        assert_eq!(row_ranges(&spec, &(0..31)), [0..31, 0..31, 0..0, 0..0]);
        assert_eq!(row_ranges(&spec, &(0..128)), [0..128, 0..128, 0..7, 0..1]);
        assert_eq!(row_ranges(&spec, &(127..128)), [127..128, 127..128, 6..7, 0..1]);
        // Neighbouring pieces share nothing and miss nothing.
        for cut in 0..300 {
            let (a, b) = (row_ranges(&spec, &(0..cut)), row_ranges(&spec, &(cut..300)));
            for (a, b) in a.iter().zip(&b) {
                assert_eq!(a.end, b.start, "cut at {cut}");
            }
        }
    }
}
