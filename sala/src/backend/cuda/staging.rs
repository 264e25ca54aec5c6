//! Bulk copies between host and device through two page-locked buffers, so that filling one overlaps with the copy of
//! the other. Used for weights and state images; never inside a step.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::device::{Device, Pinned};
use super::driver::{DevicePtr, Driver, Event, Queue};
use super::stretch::Stretch;
use crate::backend::{BackendError, Result, internal};
use crate::engine::protocol::{PIECE_BYTES, RowSource};

/// Large enough to keep the link busy, small enough that both overlap on small images.
const CHUNK_BYTES: usize = 16 << 20;

const PART_ALIGN: usize = 256;

/// `(offset, slice)`: fills the slice with bytes of one array from an offset on.
type FillPart<'a> = Box<dyn Fn(usize, &mut [u8]) -> Result<()> + Sync + 'a>;

pub(super) struct Outgoing<'a> {
    dst: Stretch,
    unit: usize,
    fill: FillPart<'a>,
}

impl<'a> Outgoing<'a> {
    /// `fill` makes any multiple of `unit` bytes.
    pub(super) fn new(dst: Stretch, unit: usize, fill: impl Fn(usize, &mut [u8]) -> Result<()> + Sync + 'a) -> Self {
        Outgoing { dst, unit: if unit > 1 { unit } else { PART_ALIGN }, fill: Box::new(fill) }
    }

    pub(super) fn plain(dst: Stretch, data: &'a [u8]) -> Self {
        Outgoing::new(dst, 1, move |at, into| {
            let from = data.get(at..at + into.len());
            into.copy_from_slice(from.ok_or_else(|| internal("staging", "fewer bytes than are to be copied"))?);
            Ok(())
        })
    }

    pub(super) fn rows(dst: Stretch, name: String, feed: &'a dyn RowSource) -> Self {
        Outgoing::new(dst, PIECE_BYTES, move |at, into| feed.fill(&name, at, into).map_err(BackendError::Rows))
    }
}

struct Piece {
    array: usize,
    at: usize,
    dst: Stretch,
}

struct Slot<'a> {
    bytes: &'a mut [u8],
    passed: &'a Event,
}

/// The pipeline of [`Staging::send`]: threads take pieces, fill their own slots in turns, and queue each full slot
/// for copying at once. No thread waits for another, and copies may be under way at the end: the next array is read
/// meanwhile.
fn stream_through(slots: Vec<Slot<'_>>, pieces: &[Piece], arrays: &[Outgoing<'_>], driver: &dyn Driver) -> Result<()> {
    let threads = rayon::current_num_threads().clamp(1, pieces.len().max(1));
    let mut shares: Vec<Vec<Slot<'_>>> = (0..threads.min(slots.len())).map(|_| Vec::new()).collect();
    let n = shares.len();
    for (i, slot) in slots.into_iter().enumerate() {
        shares[i % n].push(slot);
    }
    let next = AtomicUsize::new(0);
    shares.into_par_iter().with_max_len(1).try_for_each(|mut own| {
        let mut turn = 0;
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let at = turn % own.len();
            let slot = &mut own[at];
            driver.wait_host(slot.passed)?;
            let into = &mut slot.bytes[..piece.dst.bytes];
            let filled = (arrays[piece.array].fill)(piece.at, into);
            if filled.is_err() {
                // Makes the other threads stop too.
                next.store(pieces.len(), Ordering::Relaxed);
            }
            filled?;
            // SAFETY: the array belongs to the caller of `send`; the slot is not filled again before its
            // event.
            unsafe { piece.dst.copy_in(driver, into.as_ptr(), Queue::Copy)? };
            driver.record(slot.passed, Queue::Copy)?;
            turn += 1;
        }
        Ok(())
    })
}

struct Part<'a> {
    src: Stretch,
    at: usize,
    to: &'a mut [u8],
}

fn loads<'a>(from: &[Stretch], out: &'a mut [Vec<u8>]) -> Vec<Vec<Part<'a>>> {
    let parts = from.iter().zip(out).flat_map(|(src, to)| {
        let part = |(i, to): (usize, &'a mut [u8])| (src.part(i * PIECE_BYTES, to.len()), to);
        to.chunks_mut(PIECE_BYTES).enumerate().map(part)
    });
    let mut loads: Vec<Vec<Part<'a>>> = Vec::new();
    let mut full = CHUNK_BYTES;
    for (src, to) in parts {
        // Aligned starts transfer fastest.
        let bytes = to.len().next_multiple_of(PART_ALIGN);
        if full + bytes > CHUNK_BYTES {
            loads.push(Vec::new());
            full = 0;
        }
        if let Some(load) = loads.last_mut() {
            load.push(Part { src, at: full, to });
        }
        full += bytes;
    }
    loads
}

fn cut(array: usize, dst: Stretch, piece: usize) -> Vec<Piece> {
    let one = |at: usize| Piece { array, at, dst: dst.part(at, piece.min(dst.bytes - at)) };
    (0..dst.bytes).step_by(piece.max(1)).map(one).collect()
}

pub(super) struct Staging {
    device: Device,
    halves: [Pinned; 2],
    done: [Event; 2],
    /// One per piece of both halves that [`Staging::send`] fills; created on its first call.
    passed: Vec<Event>,
    flying: bool,
}

impl Staging {
    pub(super) fn new(device: &Device) -> Result<Self> {
        Ok(Staging {
            halves: [device.pinned(CHUNK_BYTES)?, device.pinned(CHUNK_BYTES)?],
            done: [device.driver().event()?, device.driver().event()?],
            passed: Vec::new(),
            flying: false,
            device: device.clone(),
        })
    }

    fn wait(&self, half: usize) -> Result<()> {
        self.device.driver().wait_host(&self.done[half])
    }

    fn mark(&self, half: usize) -> Result<()> {
        self.device.driver().record(&self.done[half], Queue::Copy)
    }

    pub(super) fn send_bytes(&mut self, dst: DevicePtr, data: &[u8]) -> Result<()> {
        self.send(&[Outgoing::plain(Stretch::plain(dst, data.len()), data)])
    }

    /// Sends arrays in order with the compute queue: after its present work, before later work. One thread fills a
    /// piece and sends it at once, in any order; the threads share the work evenly.
    pub(super) fn send(&mut self, arrays: &[Outgoing<'_>]) -> Result<()> {
        let threads = rayon::current_num_threads();
        let bytes: usize = arrays.iter().map(|a| a.dst.bytes).sum();
        let share = bytes.div_ceil(bytes.div_ceil(threads * PIECE_BYTES).max(1) * threads);
        let mut pieces = Vec::new();
        for (i, Outgoing { dst, unit, .. }) in arrays.iter().enumerate() {
            if *unit > PIECE_BYTES {
                return Err(super::driver::failed("copy to device", format!("rows of {unit} bytes are too long")));
            }
            pieces.extend(cut(i, *dst, share.next_multiple_of(*unit).min(PIECE_BYTES / unit * unit)));
        }
        self.device.order(Queue::Compute, Queue::Copy)?;
        self.wait(0)?;
        self.wait(1)?;
        let driver = self.device.driver();
        while self.passed.len() < 2 * CHUNK_BYTES / PIECE_BYTES {
            self.passed.push(driver.event()?);
        }
        let parts = self.halves.iter_mut().flat_map(|h| h.as_mut_slice().chunks_exact_mut(PIECE_BYTES));
        let slots = parts.zip(&self.passed).map(|(bytes, passed)| Slot { bytes, passed }).collect();
        self.flying = true;
        let sent = stream_through(slots, &pieces, arrays, driver);
        if sent.is_err() {
            // The caller frees the destination after an error: nothing may arrive there any more.
            self.land()?;
        }
        sent?;
        self.device.order(Queue::Copy, Queue::Compute)
    }

    /// Waits for the pieces under way.
    pub(super) fn land(&mut self) -> Result<()> {
        if std::mem::take(&mut self.flying) {
            self.device.driver().synchronize(Queue::Copy)?;
        }
        Ok(())
    }

    pub(super) fn fetch(&mut self, src: DevicePtr, bytes: usize) -> Result<Vec<u8>> {
        self.fetch_all(&[Stretch::plain(src, bytes)])?.pop().ok_or_else(|| internal("staging", "nothing was fetched"))
    }

    /// Fetches each piece of device memory into its own vector. Short pieces share a buffer: a state of a hundred
    /// arrays then waits for the device a few times instead of a hundred, and all threads take part in touching new
    /// memory.
    pub(super) fn fetch_all(&mut self, from: &[Stretch]) -> Result<Vec<Vec<u8>>> {
        self.device.order(Queue::Compute, Queue::Copy)?;
        self.fetch_ready(from)
    }

    /// The same for memory that no work on the compute queue writes any more.
    pub(super) fn fetch_ready(&mut self, from: &[Stretch]) -> Result<Vec<Vec<u8>>> {
        self.land()?;
        let mut out: Vec<Vec<u8>> = from.par_iter().map(|from| vec![0u8; from.bytes]).collect();
        let mut loads = loads(from, &mut out);
        // One load is copied while the one before is moved into its vectors.
        for i in 0..=loads.len() {
            if let Some(load) = loads.get(i) {
                let start = self.halves[i % 2].as_mut_ptr();
                for part in load {
                    // SAFETY: the half was emptied two loads ago, and the parts of a load lie in it; the caller owns these bytes.
                    unsafe { part.src.copy_out(self.device.driver(), start.add(part.at), Queue::Copy)? };
                }
                self.mark(i % 2)?;
            }
            if let Some(before) = i.checked_sub(1)
                && let Some(load) = loads.get_mut(before)
            {
                self.wait(before % 2)?;
                let buffer = self.halves[before % 2].as_slice();
                load.par_iter_mut().for_each(|part| part.to.copy_from_slice(&buffer[part.at..][..part.to.len()]));
            }
        }
        Ok(out)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The buffers must outlive every copy; its error was reported by its own call.
        let _ = self.device.driver().synchronize(Queue::Copy);
        for event in self.done.iter_mut().chain(&mut self.passed) {
            self.device.driver().drop_event(std::mem::replace(event, Event(0)));
        }
    }
}
