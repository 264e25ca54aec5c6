//! What changes from step to step, in device memory: `Step` of `kernels/common.cuh` and the tokens of the pass.
//!
//! The host keeps the authority and sends a copy before a pass needs it, in stream order, from page-locked slots that are
//! not reused before the device has read them. Graphs only ever see the two fixed device addresses.

use std::sync::Arc;

use super::Cuda;
use super::device::{Account, Device, DeviceBuffer, Pinned};
use super::driver::{DevicePtr, Event, Queue};
use super::graph::Stage;
use crate::backend::{BackendError, Pass, Place, Result, StepKey, Steps, internal};
use crate::protocol::engine::Token;

/// Bytes of the struct; both structs of `kernels/common.cuh` are four 32-bit words.
const STRUCT_BYTES: usize = 16;
/// Where the tokens start in device memory: right behind the struct, so that both go in one copy.
const TOKENS_AT: usize = STRUCT_BYTES;
/// Structs that may be in flight at once.
const SLOTS: usize = 64;

/// Four words and a list of tokens in device memory, sent in stream order.
pub(super) struct StepParameters {
    device: Device,
    memory: DeviceBuffer,
    slots: Pinned,
    next_slot: usize,
    /// Struct and tokens.
    whole: [Pinned; 2],
    whole_sent: [Event; 2],
    next_whole: usize,
    token_room: usize,
}

impl StepParameters {
    /// Zeros, and room for `rows` tokens.
    pub(super) fn new(device: &Device, rows: usize) -> Result<Self> {
        Ok(StepParameters {
            memory: device.zeroed("step", TOKENS_AT + rows * 4, Account::Work)?,
            slots: device.pinned(SLOTS * STRUCT_BYTES)?,
            next_slot: 0,
            whole: [device.pinned(TOKENS_AT + rows * 4)?, device.pinned(TOKENS_AT + rows * 4)?],
            whole_sent: [device.driver().event()?, device.driver().event()?],
            next_whole: 0,
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
        self.memory.ptr() + TOKENS_AT as u64
    }

    /// Both at once.
    pub(super) fn send_all(&mut self, words: [u32; 4], tokens: &[Token]) -> Result<()> {
        if tokens.len() > self.token_room {
            return Err(BackendError::Shape {
                op: "set_tokens",
                expected: format!("at most {} tokens", self.token_room),
                found: tokens.len().to_string(),
            });
        }
        let half = self.next_whole;
        self.next_whole ^= 1;
        let (Some(pinned), Some(sent)) = (self.whole.get_mut(half), self.whole_sent.get(half)) else {
            return Err(internal("set_tokens", "there are two buffers of tokens, this is neither"));
        };
        self.device.driver().wait_host(sent)?;
        let values = words.iter().chain(tokens);
        for (slot, value) in pinned.as_mut_slice().chunks_exact_mut(4).zip(values) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        // SAFETY: the half is not written again before `sent` has passed; the device side has room for every pass.
        unsafe {
            self.device.driver().copy_in(
                self.memory.ptr(),
                pinned.as_ptr(),
                TOKENS_AT + tokens.len() * 4,
                Queue::Compute,
            )?
        };
        self.device.driver().record(sent, Queue::Compute)
    }

    /// The struct alone.
    pub(super) fn send(&mut self, words: [u32; 4]) -> Result<()> {
        if self.next_slot == SLOTS {
            self.device.driver().synchronize(Queue::Compute)?;
            self.next_slot = 0;
        }
        let at = self.next_slot * STRUCT_BYTES;
        self.next_slot += 1;
        let slot = self.slots.as_mut_slice().get_mut(at..at + STRUCT_BYTES);
        let slot = slot.ok_or_else(|| internal("step", "no slot is left for its parameters"))?;
        for (bytes, word) in slot.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        // SAFETY: the slot is not written again before a wait for the queue.
        unsafe { self.device.driver().copy_in(self.memory.ptr(), slot.as_ptr(), STRUCT_BYTES, Queue::Compute) }
    }
}

impl Drop for StepParameters {
    fn drop(&mut self) {
        // Copies read the pinned slots; errors of earlier work were reported where it was given.
        let _ = self.device.driver().synchronize(Queue::Compute);
        for event in &mut self.whole_sent {
            self.device.driver().drop_event(std::mem::replace(event, Event(0)));
        }
    }
}

/// `struct Step { u32 position, pending, slot, reserved; }` and the tokens of the next pass.
pub(super) struct Step {
    step_parameters: StepParameters,
    /// Of the sequence in hand.
    sequence: u64,
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
            step_parameters: StepParameters::new(device, rows)?,
            sequence: 0,
            position: 0,
            pending: 0,
            slot: 0,
            unsent: false,
        })
    }

    /// `const Step*`
    pub(super) fn ptr(&self) -> DevicePtr {
        self.step_parameters.ptr()
    }

    /// `const u32*` of the tokens.
    pub(super) fn tokens_ptr(&self) -> DevicePtr {
        self.step_parameters.tokens_ptr()
    }

    pub(super) fn position(&self) -> usize {
        self.position as usize
    }

    pub(super) fn pending(&self) -> usize {
        self.pending as usize
    }

    pub(super) fn place(&self) -> Place {
        Place { id: self.sequence, position: self.position(), pending: self.pending(), slot: self.slot as usize }
    }

    /// Another sequence's numbers; sent as those of [`Step::seek`] are.
    pub(super) fn go_to(&mut self, place: Place) -> Result<()> {
        self.sequence = place.id;
        self.position = narrow(place.position)?;
        self.pending = narrow(place.pending)?;
        self.slot = narrow(place.slot)?;
        self.unsent = true;
        Ok(())
    }

    pub(super) fn set_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.step_parameters.send_all(self.words(), tokens)?;
        self.unsent = false;
        Ok(())
    }

    /// Jumps, with nothing pending. As all that follows, sent with the next tokens, or the next [`Step::flush`].
    pub(super) fn seek(&mut self, position: usize) -> Result<()> {
        self.position = narrow(position)?;
        self.pending = 0;
        self.unsent = true;
        Ok(())
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
        Ok(())
    }

    fn words(&self) -> [u32; 4] {
        [self.position, self.pending, self.slot, 0]
    }

    /// Every layer has absorbed its pending rows.
    pub(super) fn folded(&mut self) {
        self.pending = 0;
        self.unsent = true;
    }

    /// Sends what has changed; called before whatever reads the step, and never has anything to do inside a CUDA graph.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.unsent {
            self.step_parameters.send(self.words())?;
            self.unsent = false;
        }
        Ok(())
    }
}

/// A position as kernels count it.
pub(super) fn narrow(value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| BackendError::Unsupported(format!("position {value} is beyond 32 bits")))
}

impl Steps for Cuda {
    fn place(&self) -> Place {
        self.step.place()
    }

    fn go_to(&mut self, place: Place) -> Result<()> {
        self.forget_rope();
        self.step.go_to(place)
    }

    fn new_place(&mut self) -> Result<Place> {
        self.places += 1;
        let place = Place { id: self.places, ..Place::default() };
        self.go_to(place)?;
        // Caches of different sequences do not grow in step.
        self.ledger = Arc::default();
        Ok(place)
    }

    fn forget_place(&mut self, id: u64) {
        self.graphs.forget_of(id);
        if let Some(lazy_restore) = self.lazy_restores.remove(&id) {
            lazy_restore.give_up();
        }
    }

    fn position(&self) -> usize {
        self.step.position()
    }

    fn seek(&mut self, position: usize) -> Result<()> {
        self.forget_rope();
        self.step.seek(position)
    }

    fn segment_at(&mut self, read: usize) {
        self.segment_read = read;
    }

    fn set_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.forget_rope();
        self.step.set_tokens(tokens)
    }

    fn step(&mut self, key: StepKey, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.forget_rope();
        self.step.flush()?;
        let own = self.step.place().id;
        let key = (key, own);
        if self.lazy_restores.get(&own).is_some_and(|a| a.complete()) {
            self.lazy_restores.remove(&own);
        }
        if self.options.no_graphs || self.lazy_restores.contains_key(&own) {
            let run = body(self);
            self.forget_rope();
            return run;
        }
        match self.graphs.stage(key) {
            Stage::RunEagerly => {
                body(self)?;
                self.graphs.warmed(key);
            }
            Stage::Record => {
                let recorded = self.device.driver().begin_capture().and_then(|()| {
                    let run = body(self);
                    let graph = self.device.driver().end_capture();
                    run.and(graph)
                });
                self.forget_rope();
                match recorded {
                    Ok(graph) => {
                        self.graphs.keep(key, graph);
                        self.graphs.replay(key)?;
                    }
                    Err(cause) => {
                        self.notes.push(format!(
                            "steps are not recorded ({cause}): every kernel is launched singly, which is slower"
                        ));
                        self.graphs.refuse(key);
                        body(self)?;
                    }
                }
            }
            Stage::Replay => self.graphs.replay(key)?,
        }
        self.forget_rope();
        Ok(())
    }

    fn advance(&mut self, pass: Pass, rows: usize) -> Result<()> {
        self.forget_rope();
        self.step.advance(pass, rows)
    }

    fn folded(&mut self) {
        self.step.folded();
    }

    fn synchronize(&mut self) -> Result<()> {
        self.device.driver().synchronize(Queue::Copy)?;
        self.device.driver().synchronize(Queue::Compute)
    }
}
