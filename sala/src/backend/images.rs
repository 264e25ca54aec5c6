//! State to and from the host.

use std::ops::Range;
use std::sync::Arc;

use super::{Memory, Result};
use crate::engine::protocol::{Cancel, ImageTensor, RowSource};

/// Rows and states as images, and buffers for tests. Runs outside of steps and waits for the device. The bytes of rows
/// and states are those at the time of the call and may arrive later
/// ([`TensorData`](crate::engine::protocol::TensorData)).
pub trait Images: Memory {
    /// Row-major; for tests, golden data and capture.
    fn read(&mut self, buf: &Self::Buf, rows: usize) -> Result<Vec<f32>>;
    /// Row-major, from the first row on; for tests and golden data.
    fn write(&mut self, buf: &mut Self::Buf, values: &[f32]) -> Result<()>;
    /// Rows of `positions` of each cache: k, v, and the compressed keys of windows that end inside them; names without
    /// layer.
    fn read_all_rows(&mut self, caches: &[&Self::Cache], positions: Range<usize>) -> Result<Vec<Vec<ImageTensor>>>;
    fn read_rows(&mut self, cache: &Self::Cache, positions: Range<usize>) -> Result<Vec<ImageTensor>> {
        Ok(self.read_all_rows(&[cache], positions)?.into_iter().flatten().collect())
    }
    /// The inverse; accepts f32 and bf16.
    fn write_rows(&mut self, cache: &mut Self::Cache, start: usize, tensors: &[&ImageTensor]) -> Result<()>;
    /// Loads the rows of `feeds`, in order, into the caches of these layers, which have room for them.
    ///
    /// It may return while keys and values are still in flight, as long as every operation waits for those it needs; an
    /// unreadable row is the error of that operation.
    fn restore_rows(&mut self, caches: &mut [(usize, &mut Self::Cache)], feeds: &[Arc<dyn RowSource>]) -> Result<()>;
    /// Copies the first `positions` positions of a sequence's caches, in all layers, from another of the same shape,
    /// by shared memory where the device supports it. Waits for rows in flight.
    fn copy_rows(&mut self, to: &mut [&mut Self::Cache], from: &mut [&mut Self::Cache], positions: usize)
    -> Result<()>;
    /// Prepares new rows from position `keep` on, in all layers of a sequence: they may not be in memory that another
    /// sequence shares. Rows after the last one ever written need no preparation.
    fn own_rows(&mut self, _caches: &mut [&mut Self::Cache], _keep: usize) -> Result<()> {
        Ok(())
    }
    /// Whether no rows of the cache are in flight.
    fn rows_are_there(&self, _cache: &Self::Cache) -> bool {
        true
    }
    /// Nothing may be pending in either state.
    fn copy_state(&mut self, to: &mut Self::Recurrent, from: &Self::Recurrent) -> Result<()>;
    /// Waits for rows of the first `keep` positions that [`Images::restore_rows`] left in flight, and may cancel the
    /// others. Nothing is in flight afterwards.
    fn sync_rows(&mut self, _keep: usize) -> Result<()> {
        Ok(())
    }
    /// From now on this token ends any wait for rows in flight with [`crate::backend::BackendError::Stopped`].
    fn stop_on(&mut self, _cancel: Option<&Cancel>) {}
    /// While true, work may wait for rows, and its duration says nothing about the device.
    fn rows_in_flight(&self) -> bool {
        false
    }
    /// Committed states; fold first. `[heads, d, d]` f32
    fn read_states(&mut self, states: &[&Self::Recurrent]) -> Result<Vec<ImageTensor>>;
    /// The inverse of [`Images::read_states`]; `None` sets zero.
    fn write_states(&mut self, states: &mut [(&mut Self::Recurrent, Option<&ImageTensor>)]) -> Result<()>;
}
