//! What changes from step to step, in device memory: `Step` of `kernels/common.cuh`, the rows of a verify pass
//! (`kernels/sequences.cuh`) and the tokens of the pass.
//!
//! The host keeps the authority and sends a copy before a pass needs it, in stream order, from page-locked slots that are
//! not reused before the device has read them. Graphs only ever see the two fixed device addresses.

use std::sync::Arc;

use super::Cuda;
use super::device::{Account, Device, DeviceBuffer, Pinned};
use super::driver::{DevicePtr, Event, Queue};
use super::graph::{ANY, Key, Stage};
use super::launch;
use crate::backend::{BackendError, Group, MAX_VERIFY_ROWS, Pass, Place, Result, StepKey, Steps, internal};
use crate::protocol::engine::Token;

/// Words of `Step` and of `DraftStep` of `kernels/common.cuh`.
const STRUCT_WORDS: usize = 4;
/// Words of `Row` of `kernels/sequences.cuh`.
const ROW_WORDS: usize = 8;
/// Where the rows of a verify pass lie behind `Step`.
const ROWS_AT: usize = STRUCT_WORDS * 4;
/// Words before the tokens of a pass of the model: `Step`, and an entry for each row of a verify pass.
const STEP_WORDS: usize = STRUCT_WORDS + MAX_VERIFY_ROWS * ROW_WORDS;
/// Structs, each with the tokens of a verify pass, that may be in flight at once.
const SLOTS: usize = 512;

/// A few words and a list of tokens behind them in device memory, sent in stream order.
pub(super) struct StepParameters {
    device: Device,
    /// Bytes before the tokens.
    tokens_at: usize,
    memory: DeviceBuffer,
    slots: Pinned,
    slot_bytes: usize,
    next_slot: usize,
    /// Struct and tokens.
    whole: [Pinned; 2],
    whole_sent: [Event; 2],
    next_whole: usize,
    token_room: usize,
}

impl StepParameters {
    /// `DraftStep`, and room for `rows` tokens.
    pub(super) fn of_draft(device: &Device, rows: usize) -> Result<Self> {
        Self::new(device, STRUCT_WORDS, rows)
    }

    /// Zeros, and room for `rows` tokens.
    fn new(device: &Device, words: usize, rows: usize) -> Result<Self> {
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

    /// The struct.
    pub(super) fn ptr(&self) -> DevicePtr {
        self.memory.ptr()
    }

    /// `const u32*` of the tokens.
    pub(super) fn tokens_ptr(&self) -> DevicePtr {
        self.memory.ptr() + self.tokens_at as u64
    }

    /// Both at once.
    pub(super) fn send_all(&mut self, words: &[u32], tokens: &[Token]) -> Result<()> {
        if tokens.len() > self.token_room {
            return Err(BackendError::Shape {
                op: "set_tokens",
                expected: format!("at most {} tokens", self.token_room),
                found: tokens.len().to_string(),
            });
        }
        if tokens.len() <= MAX_VERIFY_ROWS {
            return self.send_slot(words.iter().chain(tokens).copied());
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
                self.tokens_at + tokens.len() * 4,
                Queue::Compute,
            )?
        };
        self.device.driver().record(sent, Queue::Compute)
    }

    /// The words alone.
    pub(super) fn send(&mut self, words: &[u32]) -> Result<()> {
        self.send_slot(words.iter().copied())
    }

    /// A slot's worth. A kernel takes them from the host's memory: a copy so small would take several times as long, and the step waits for it.
    fn send_slot(&mut self, words: impl Iterator<Item = u32>) -> Result<()> {
        if self.next_slot == SLOTS {
            self.device.driver().synchronize(Queue::Compute)?;
            self.next_slot = 0;
        }
        let at = self.next_slot * self.slot_bytes;
        self.next_slot += 1;
        let slot = self.slots.as_mut_slice().get_mut(at..at + self.slot_bytes);
        let slot = slot.ok_or_else(|| internal("step", "no slot is left for its parameters"))?;
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
        // Copies and kernels read the page-locked memory; errors of earlier work were reported where it was given.
        let _ = self.device.driver().synchronize(Queue::Compute);
        for event in &mut self.whole_sent {
            self.device.driver().drop_event(std::mem::replace(event, Event(0)));
        }
    }
}

/// `struct Step { u32 position, pending, slot, reserved; }`, where each row of a verify pass stands, and the tokens of the next
/// pass.
pub(super) struct Step {
    step_parameters: StepParameters,
    /// Sequences of the coming verify pass, if they are several.
    groups: Vec<Group>,
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
            step_parameters: StepParameters::new(device, STEP_WORDS, rows)?,
            groups: Vec::new(),
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

    /// `const Row*`: 16 of them
    pub(super) fn rows_ptr(&self) -> DevicePtr {
        self.step_parameters.ptr() + ROWS_AT as u64
    }

    /// `const u32*` of the tokens.
    pub(super) fn tokens_ptr(&self) -> DevicePtr {
        self.step_parameters.tokens_ptr()
    }

    /// The sequences of a pass: where each stands, and its rows.
    pub(super) fn groups(&self, pass: Pass, given: usize) -> Result<Vec<Group>> {
        Group::of_pass(&self.groups, self.place(), pass, given)
    }

    /// Those of the coming verify pass; all rows are the sequence's in hand where nothing else was said.
    pub(super) fn verify_groups(&self) -> impl Iterator<Item = Group> {
        let alone = self.groups.is_empty().then(|| Group { place: self.place(), rows: MAX_VERIFY_ROWS });
        alone.into_iter().chain(self.groups.iter().copied())
    }

    /// Positions of the coming verify pass are below.
    pub(super) fn verify_end(&self) -> usize {
        self.verify_groups().map(|group| group.place.position + group.rows).max().unwrap_or_default()
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
        self.groups.clear();
        self.sequence = place.id;
        self.position = narrow(place.position)?;
        self.pending = narrow(place.pending)?;
        self.slot = narrow(place.slot)?;
        self.unsent = true;
        Ok(())
    }

    pub(super) fn set_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.groups.clear();
        self.send(tokens)
    }

    pub(super) fn set_rows(&mut self, groups: &[Group], tokens: &[Token]) -> Result<()> {
        let rows: usize = groups.iter().map(|g| g.rows).sum();
        if rows > MAX_VERIFY_ROWS || rows != tokens.len() {
            return Err(internal("set_rows", "rows and tokens of a pass do not belong together"));
        }
        self.groups = groups.to_vec();
        self.send(tokens)
    }

    fn send(&mut self, tokens: &[Token]) -> Result<()> {
        let words = self.words()?;
        self.step_parameters.send_all(&words, tokens)?;
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
        self.go_to(self.place().advanced(pass, rows))
    }

    /// `Step` of the sequence in hand, and the rows of the groups, or of that sequence.
    fn words(&self) -> Result<Vec<u32>> {
        let mut words = Vec::with_capacity(STEP_WORDS);
        words.extend([self.position, self.pending, self.slot, 0]);
        let mut first = 0;
        for Group { place, rows } in self.verify_groups() {
            let own = [narrow(place.position)?, first, narrow(rows)?, narrow(place.pending)?, narrow(place.slot)?];
            let [start, first_row, rows_of, pending, slot] = own;
            for i in 0..rows_of {
                words.extend([start.saturating_add(i), start, first_row, rows_of, pending, slot, 0, 0]);
            }
            first += rows_of;
        }
        words.resize(STEP_WORDS, 0);
        Ok(words)
    }

    /// Every layer has absorbed its pending rows.
    pub(super) fn folded(&mut self) {
        self.pending = 0;
        self.unsent = true;
    }

    /// Sends what has changed; called before whatever reads the step, and never has anything to do inside a CUDA graph.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.unsent {
            let words = self.words()?;
            self.step_parameters.send(&words)?;
            self.unsent = false;
        }
        Ok(())
    }
}

/// A position as kernels count it.
pub(super) fn narrow(value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| BackendError::Unsupported(format!("position {value} is beyond 32 bits")))
}

impl Cuda {
    /// Whether blocks are scored in the coming verify pass: some row may not take all of them. The same for all layers of a pass, whether
    /// it is run or replayed.
    pub(super) fn scores(&self) -> bool {
        self.step.verify_end() > self.all_within
    }
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
        if id != ANY {
            self.graphs.forget_of(id);
        }
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

    fn set_rows(&mut self, groups: &[Group], tokens: &[Token]) -> Result<()> {
        self.forget_rope();
        self.step.set_rows(groups, tokens)
    }

    fn step(&mut self, key: StepKey, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.forget_rope();
        self.ready.forget();
        self.step.flush()?;
        self.tables.flush()?;
        let own = self.step.place().id;
        // A verify pass finds its sequences in the tables, whoever they are; a draft step names the buffers of one.
        let key = match key {
            StepKey::Verify(_) | StepKey::VerifyMany(_) => Key { step: key, of: ANY, scores: self.scores() },
            StepKey::Draft | StepKey::DraftExtend(_) => Key { step: key, of: own, scores: false },
        };
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
                // The first pass of all only learns which rows take all blocks.
                if !key.scores || self.scores() {
                    self.graphs.warmed(key);
                }
            }
            Stage::Record => {
                let recorded = self.device.driver().begin_capture().and_then(|()| {
                    self.tables.fixed(true);
                    let run = body(self);
                    self.tables.fixed(false);
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
                        self.ready.forget();
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
