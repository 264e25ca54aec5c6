//! What changes from step to step, in device memory: `Step` of `kernels/common.cuh` and the tokens of the pass.
//!
//! The host keeps the authority and sends a copy after every change, in stream order, from page-locked slots that are
//! not reused before the device has read them. Recordings only ever see the two fixed device addresses.

use super::device::{Account, Device, DeviceBuffer, Pinned};
use super::driver::{DevicePtr, Event, Queue};
use crate::backend::{BackendError, Pass, Result};
use crate::protocol::engine::Token;

/// Bytes of the struct; both structs of `kernels/common.cuh` are four 32-bit words.
const STRUCT_BYTES: usize = 16;
/// Where the tokens start in device memory.
const TOKENS_AT: u64 = 256;
/// Structs that may be on their way at once.
const SLOTS: usize = 64;

/// Four words and a list of tokens in device memory, sent in stream order.
pub(super) struct Posted {
    device: Device,
    memory: DeviceBuffer,
    slots: Pinned,
    next_slot: usize,
    tokens: [Pinned; 2],
    tokens_sent: [Event; 2],
    next_tokens: usize,
    token_room: usize,
}

impl Posted {
    /// Zeros, and room for `rows` tokens.
    pub(super) fn new(device: &Device, rows: usize) -> Result<Self> {
        Ok(Posted {
            memory: device.zeroed("step", TOKENS_AT as usize + rows * 4, Account::Work)?,
            slots: device.pinned(SLOTS * STRUCT_BYTES)?,
            next_slot: 0,
            tokens: [device.pinned(rows * 4)?, device.pinned(rows * 4)?],
            tokens_sent: [device.driver().event()?, device.driver().event()?],
            next_tokens: 0,
            token_room: rows,
            device: device.clone(),
        })
    }

    /// The struct.
    pub(super) fn ptr(&self) -> DevicePtr {
        self.memory.ptr()
    }

    /// `const u32*` of the tokens.
    pub(super) fn tokens_ptr(&self) -> DevicePtr {
        self.memory.ptr() + TOKENS_AT
    }

    pub(super) fn send_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        if tokens.len() > self.token_room {
            return Err(BackendError::Shape {
                op: "set_tokens",
                expected: format!("at most {} tokens", self.token_room),
                found: tokens.len().to_string(),
            });
        }
        let half = self.next_tokens;
        self.next_tokens ^= 1;
        let (Some(pinned), Some(sent)) = (self.tokens.get_mut(half), self.tokens_sent.get(half))
        else {
            return Ok(());
        };
        self.device.driver().wait_host(sent)?;
        for (slot, token) in pinned.as_mut_slice().chunks_exact_mut(4).zip(tokens) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        // SAFETY: the half is not written again before `sent` has passed; the device side has room for every pass.
        unsafe {
            self.device.driver().copy_in(
                self.memory.ptr() + TOKENS_AT,
                pinned.as_ptr(),
                tokens.len() * 4,
                Queue::Compute,
            )?
        };
        self.device.driver().record(sent, Queue::Compute)
    }

    pub(super) fn send(&mut self, words: [u32; 4]) -> Result<()> {
        if self.next_slot == SLOTS {
            self.device.driver().synchronize(Queue::Compute)?;
            self.next_slot = 0;
        }
        let at = self.next_slot * STRUCT_BYTES;
        self.next_slot += 1;
        if let Some(slot) = self.slots.as_mut_slice().get_mut(at..at + STRUCT_BYTES) {
            for (bytes, word) in slot.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            // SAFETY: the slot is not written again before a wait for the queue.
            unsafe {
                self.device.driver().copy_in(
                    self.memory.ptr(),
                    slot.as_ptr(),
                    STRUCT_BYTES,
                    Queue::Compute,
                )?
            };
        }
        Ok(())
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        // Copies read the pinned slots; errors of earlier work were reported where it was given.
        let _ = self.device.driver().synchronize(Queue::Compute);
        for event in &mut self.tokens_sent {
            self.device
                .driver()
                .drop_event(std::mem::replace(event, Event(0)));
        }
    }
}

/// `struct Step { u32 position, pending, slot, reserved; }` and the tokens of the next pass.
pub(super) struct Step {
    posted: Posted,
    position: u32,
    pending: u32,
    slot: u32,
    /// The device's copy is older.
    unsent: bool,
}

impl Step {
    /// At position 0 with nothing pending; passes of up to `rows` rows.
    pub(super) fn new(device: &Device, rows: usize) -> Result<Self> {
        Ok(Step {
            posted: Posted::new(device, rows)?,
            position: 0,
            pending: 0,
            slot: 0,
            unsent: false,
        })
    }

    /// `const Step*`
    pub(super) fn ptr(&self) -> DevicePtr {
        self.posted.ptr()
    }

    /// `const u32*` of the tokens.
    pub(super) fn tokens_ptr(&self) -> DevicePtr {
        self.posted.tokens_ptr()
    }

    pub(super) fn position(&self) -> usize {
        self.position as usize
    }

    pub(super) fn pending(&self) -> usize {
        self.pending as usize
    }

    pub(super) fn set_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.flush()?;
        self.posted.send_tokens(tokens)
    }

    /// Jumps, with nothing pending.
    pub(super) fn seek(&mut self, position: usize) -> Result<()> {
        self.position = narrow(position)?;
        self.pending = 0;
        self.unsent = true;
        self.flush()
    }

    pub(super) fn advance(&mut self, pass: Pass, rows: usize) -> Result<()> {
        if rows > pass.rows() {
            return Err(BackendError::Shape {
                op: "advance",
                expected: format!("at most {} rows", pass.rows()),
                found: rows.to_string(),
            });
        }
        self.position = narrow(self.position() + rows)?;
        match pass {
            Pass::Prefill { .. } => self.pending = 0,
            Pass::Verify { .. } => {
                // The pass absorbed the old half and wrote its rows to the other one.
                self.slot ^= 1;
                self.pending = narrow(rows)?;
            }
        }
        self.unsent = true;
        self.flush()
    }

    /// Every layer has absorbed its pending rows. Sent with the next [`Step::flush`].
    pub(super) fn folded(&mut self) {
        self.pending = 0;
        self.unsent = true;
    }

    /// Sends what has changed; called before whatever reads the step, and never has anything to do inside a recording.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.unsent {
            self.posted
                .send([self.position, self.pending, self.slot, 0])?;
            self.unsent = false;
        }
        Ok(())
    }
}

/// A position as kernels count it.
pub(super) fn narrow(value: usize) -> Result<u32> {
    u32::try_from(value)
        .map_err(|_| BackendError::Unsupported(format!("position {value} is beyond 32 bits")))
}
