//! Bulk copies between host and device through two page-locked buffers, so that filling one overlaps with the copy of
//! the other. Used for weights and state images; never inside a step.

use rayon::prelude::*;

use super::device::{Device, Pinned};
use super::driver::{DevicePtr, Event, Queue};
use crate::backend::Result;

/// Size of one buffer: long enough that the link is busy, short enough that both overlap on small images.
const CHUNK_BYTES: usize = 16 << 20;
/// Pieces that threads copy at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Two page-locked buffers and their events.
pub(super) struct Staging {
    device: Device,
    halves: [Pinned; 2],
    done: [Option<Event>; 2],
}

impl Staging {
    pub(super) fn new(device: &Device) -> Result<Self> {
        Ok(Staging {
            halves: [device.pinned(CHUNK_BYTES)?, device.pinned(CHUNK_BYTES)?],
            done: [
                Some(device.driver().event()?),
                Some(device.driver().event()?),
            ],
            device: device.clone(),
        })
    }

    fn wait(&self, half: usize) -> Result<()> {
        self.done
            .get(half)
            .and_then(Option::as_ref)
            .map_or(Ok(()), |event| self.device.driver().wait_host(event))
    }

    fn mark(&self, half: usize) -> Result<()> {
        self.done
            .get(half)
            .and_then(Option::as_ref)
            .map_or(Ok(()), |event| {
                self.device.driver().record(event, Queue::Copy)
            })
    }

    /// Sends `bytes` to `dst`, made by `fill(offset, chunk)` in pieces that are multiples of `unit`. What the compute
    /// queue holds so far is done before the first byte arrives, and it goes on only after the last one.
    pub(super) fn send(
        &mut self,
        dst: DevicePtr,
        bytes: usize,
        unit: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<()> {
        self.after_compute()?;
        let chunk = (CHUNK_BYTES / unit.max(1)).max(1) * unit;
        if chunk > CHUNK_BYTES {
            return Err(super::driver::failed(
                "copy to device",
                format!("rows of {unit} bytes are too long"),
            ));
        }
        let mut at = 0;
        let mut half = 0;
        while at < bytes {
            let n = chunk.min(bytes - at);
            self.wait(half)?;
            if let Some(buffer) = self
                .halves
                .get_mut(half)
                .and_then(|h| h.as_mut_slice().get_mut(..n))
            {
                fill(at, buffer);
                // SAFETY: the half is not written before its event has passed; the caller owns `bytes` at `dst`.
                unsafe {
                    self.device.driver().copy_in(
                        dst + at as u64,
                        buffer.as_ptr(),
                        n,
                        Queue::Copy,
                    )?
                };
            }
            self.mark(half)?;
            at += n;
            half ^= 1;
        }
        self.before_compute()
    }

    /// Sends bytes as they are.
    pub(super) fn send_bytes(&mut self, dst: DevicePtr, data: &[u8]) -> Result<()> {
        self.send(dst, data.len(), 1, &|at, chunk| {
            chunk
                .par_chunks_mut(PIECE_BYTES)
                .enumerate()
                .for_each(|(i, piece)| {
                    if let Some(from) = data
                        .get(at + i * PIECE_BYTES..)
                        .and_then(|d| d.get(..piece.len()))
                    {
                        piece.copy_from_slice(from);
                    }
                });
        })
    }

    /// Fetches device memory into a vector.
    pub(super) fn fetch(&mut self, src: DevicePtr, bytes: usize) -> Result<Vec<u8>> {
        self.after_compute()?;
        let mut out = vec![0u8; bytes];
        let chunks = bytes.div_ceil(CHUNK_BYTES);
        // One copy runs ahead while the chunk before it is moved into the vector.
        for i in 0..=chunks {
            if i < chunks {
                let (at, half) = (i * CHUNK_BYTES, i % 2);
                let n = CHUNK_BYTES.min(bytes - at);
                if let Some(buffer) = self.halves.get_mut(half) {
                    // SAFETY: the half was emptied two rounds ago; the caller owns `bytes` at `src`.
                    unsafe {
                        self.device.driver().copy_out(
                            buffer.as_mut_ptr(),
                            src + at as u64,
                            n,
                            Queue::Copy,
                        )?
                    };
                }
                self.mark(half)?;
            }
            if i > 0 {
                let (at, half) = ((i - 1) * CHUNK_BYTES, (i - 1) % 2);
                self.wait(half)?;
                if let (Some(buffer), Some(to)) = (self.halves.get(half), out.get_mut(at..)) {
                    let from = buffer.as_slice();
                    to.par_chunks_mut(PIECE_BYTES)
                        .take(CHUNK_BYTES / PIECE_BYTES)
                        .enumerate()
                        .for_each(|(i, piece)| {
                            if let Some(from) = from
                                .get(i * PIECE_BYTES..)
                                .and_then(|f| f.get(..piece.len()))
                            {
                                piece.copy_from_slice(from);
                            }
                        });
                }
            }
        }
        Ok(out)
    }

    /// The copy queue waits for what the compute queue holds now.
    fn after_compute(&self) -> Result<()> {
        let driver = self.device.driver();
        let event = driver.event()?;
        let ordered = driver
            .record(&event, Queue::Compute)
            .and_then(|()| driver.wait(Queue::Copy, &event));
        driver.drop_event(event);
        ordered
    }

    /// The compute queue waits for what the copy queue holds now.
    fn before_compute(&self) -> Result<()> {
        let driver = self.device.driver();
        let event = driver.event()?;
        let ordered = driver
            .record(&event, Queue::Copy)
            .and_then(|()| driver.wait(Queue::Compute, &event));
        driver.drop_event(event);
        ordered
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The buffers must not go while a copy is under way; its error was reported where it was given.
        let _ = self.device.driver().synchronize(Queue::Copy);
        for event in &mut self.done {
            if let Some(event) = event.take() {
                self.device.driver().drop_event(event);
            }
        }
    }
}
