//! Sends words that change from step to step to device memory: in stream order, or in page-locked memory from which a
//! CUDA graph reads them.

use super::device::{Account, Device, DeviceBuffer, Pinned};
use super::driver::{DevicePtr, Event, Queue};
use super::launch;
use crate::backend::{MAX_VERIFY_ROWS, Result, check_shape, invariant};
use crate::engine::protocol::Token;

/// Size of `Step` and of `DraftStep` in `kernels/common.cuh`.
pub(super) const STRUCT_WORDS: usize = 4;
/// Structs, each with the tokens of a verify pass, that may be in flight at once.
const SLOTS: usize = 512;

pub(super) struct StepParameters {
    device: Device,
    tokens_at: usize,
    memory: DeviceBuffer,
    slots: Pinned,
    slot_bytes: usize,
    next_slot: usize,
    whole: [Pinned; 2],
    whole_sent: [Event; 2],
    next_whole: usize,
    token_room: usize,
}

impl StepParameters {
    pub(super) fn new(device: &Device, words: usize, rows: usize) -> Result<Self> {
        let tokens_at = words * 4;
        let slot_bytes = tokens_at + MAX_VERIFY_ROWS * 4;
        Ok(StepParameters {
            tokens_at,
            memory: device.zeroed("step", tokens_at + rows.max(MAX_VERIFY_ROWS) * 4, Account::Work)?,
            slots: device.pinned(SLOTS * slot_bytes)?,
            slot_bytes,
            next_slot: 0,
            whole: [device.pinned(tokens_at + rows * 4)?, device.pinned(tokens_at + rows * 4)?],
            whole_sent: [device.driver().event()?, device.driver().event()?],
            next_whole: 0,
            token_room: rows,
            device: device.clone(),
        })
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        self.memory.ptr()
    }

    pub(super) fn tokens_ptr(&self) -> DevicePtr {
        self.memory.ptr() + self.tokens_at as u64
    }

    pub(super) fn send_all(&mut self, words: &[u32], tokens: &[Token]) -> Result<()> {
        let fits = tokens.len() <= self.token_room;
        check_shape(fits, "set_tokens", format_args!("at most {} tokens", self.token_room), tokens.len())?;
        if tokens.len() <= MAX_VERIFY_ROWS {
            return self.send_slot(words.iter().chain(tokens).copied());
        }
        let half = self.next_whole;
        self.next_whole ^= 1;
        let (pinned, sent) = (&mut self.whole[half], &self.whole_sent[half]);
        self.device.driver().wait_host(sent)?;
        let values = words.iter().chain(tokens);
        for (slot, value) in pinned.as_mut_slice().chunks_exact_mut(4).zip(values) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        let (dst, bytes) = (self.memory.ptr(), self.tokens_at + tokens.len() * 4);
        // SAFETY: the half is not written again before `sent` has passed; the device side has room for every pass.
        unsafe { self.device.driver().copy_in(dst, pinned.as_ptr(), bytes, Queue::Compute)? };
        self.device.driver().record(sent, Queue::Compute)
    }

    /// Sends one slot. A kernel reads it from host memory: so small a copy would take several times as long, and the
    /// step waits for it.
    fn send_slot(&mut self, words: impl Iterator<Item = u32>) -> Result<()> {
        if self.next_slot == SLOTS {
            self.device.driver().synchronize(Queue::Compute)?;
            self.next_slot = 0;
        }
        let at = self.next_slot * self.slot_bytes;
        self.next_slot += 1;
        let slot = &mut self.slots.as_mut_slice()[at..at + self.slot_bytes];
        let mut n = 0;
        for (bytes, word) in slot.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
            n += 1;
        }
        // Page-locked memory has one address for both sides.
        let from = self.slots.as_ptr() as DevicePtr + at as u64;
        // SAFETY: the slot is not written again before a wait for the queue, and the device side has room for it.
        unsafe { launch::TakeWords { dst: self.memory.ptr(), from, n }.launch(self.device.driver()) }
    }
}

impl Drop for StepParameters {
    fn drop(&mut self) {
        // Copies and kernels read the page-locked memory; earlier errors were reported by their own calls.
        let _ = self.device.driver().synchronize(Queue::Compute);
        for event in &mut self.whole_sent {
            self.device.driver().drop_event(std::mem::replace(event, Event(0)));
        }
    }
}

/// The words of a step in page-locked memory at one address, which the first kernel of its CUDA graph reads. A launch
/// before the graph would cost the host some 10 us while the device waits for both.
pub(super) struct Laid {
    device: Device,
    words: Pinned,
    taken: Event,
}

impl Laid {
    pub(super) fn new(device: &Device, words: usize) -> Result<Self> {
        Ok(Laid { words: device.pinned(words * 4)?, taken: device.driver().event()?, device: device.clone() })
    }

    /// Writes the words, padded with zeros, once the previous graph has read its own.
    pub(super) fn lay(&mut self, words: impl Iterator<Item = u32>) -> Result<()> {
        self.device.driver().wait_host(&self.taken)?;
        let mut words = words.fuse();
        for bytes in self.words.as_mut_slice().chunks_exact_mut(4) {
            bytes.copy_from_slice(&words.next().unwrap_or(0).to_le_bytes());
        }
        invariant(words.next().is_none(), "step", "more words than its graph takes")?;
        Ok(())
    }

    /// Records the kernel that copies them to `dst` into a graph.
    pub(super) fn take(&self, dst: DevicePtr) -> Result<()> {
        let n = self.words.bytes() / 4;
        // Page-locked memory has one address for both sides.
        let from = self.words.as_ptr() as DevicePtr;
        // SAFETY: `lay` waits until the graph before has passed `given`; `dst` has as much room by the caller.
        unsafe { launch::TakeWords { dst, from, n }.launch(self.device.driver()) }
    }

    pub(super) fn given(&self) -> Result<()> {
        self.device.driver().record(&self.taken, Queue::Compute)
    }
}

impl Drop for Laid {
    fn drop(&mut self) {
        // A graph may still read them; earlier errors were reported by their own calls.
        let _ = self.device.driver().synchronize(Queue::Compute);
        self.device.driver().drop_event(std::mem::replace(&mut self.taken, Event(0)));
    }
}
