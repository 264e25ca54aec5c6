//! The values that change from step to step, in device memory: `Step` of `kernels/common.cuh`, the rows of a verify
//! pass (`kernels/sequences.cuh`) and the tokens of the pass.
//!
//! The host holds the authoritative values and sends a copy before a pass needs it, in stream order, from page-locked
//! slots that are not reused before the device has read them. A CUDA graph of a verify pass copies them itself
//! (`step_words`); other graphs only see the two fixed device addresses.

use super::Cuda;
use super::device::Device;
use super::driver::{DevicePtr, Queue};
use super::graph::{ANY, Key, Stage};
use super::step_words::{Laid, STRUCT_WORDS, StepParameters};
use crate::backend::{BackendError, Group, MAX_VERIFY_ROWS, Pass, Place, Result, StepKey, Steps, internal, shape};
use crate::engine::protocol::Token;

/// Size of `Row` in `kernels/sequences.cuh`.
const ROW_WORDS: usize = 8;
/// Byte offset of the rows of a verify pass after `Step`.
const ROWS_AT: usize = STRUCT_WORDS * 4;
const STEP_WORDS: usize = STRUCT_WORDS + MAX_VERIFY_ROWS * ROW_WORDS;
/// `struct Step { u32 position, pending, slot, reserved; }`, the position of each row of a verify pass, and the tokens
/// of the next pass.
pub(super) struct Step {
    step_parameters: StepParameters,
    laid: Laid,
    /// Unsent tokens of the next pass, if they fit a verify pass.
    tokens: Vec<Token>,
    /// Sequences of the next verify pass; empty for a single one.
    groups: Vec<Group>,
    sequence: u64,
    position: u32,
    pending: u32,
    slot: u32,
    unsent: bool,
}

impl Step {
    pub(super) fn new(device: &Device, rows: usize) -> Result<Self> {
        Ok(Step {
            step_parameters: StepParameters::new(device, STEP_WORDS, rows)?,
            laid: Laid::new(device, STEP_WORDS + MAX_VERIFY_ROWS)?,
            tokens: Vec::new(),
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

    pub(super) fn tokens_ptr(&self) -> DevicePtr {
        self.step_parameters.tokens_ptr()
    }

    pub(super) fn groups(&self, pass: Pass, given: usize) -> Result<Vec<Group>> {
        Group::of_pass(&self.groups, self.place(), pass, given)
    }

    pub(super) fn verify_groups(&self) -> impl Iterator<Item = Group> {
        let alone = self.groups.is_empty().then(|| Group { place: self.place(), rows: MAX_VERIFY_ROWS });
        alone.into_iter().chain(self.groups.iter().copied())
    }

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

    /// Unsent until [`Step::flush`], as in [`Step::seek`].
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

    /// A few tokens wait for the next [`Step::flush`], or a graph takes them.
    fn send(&mut self, tokens: &[Token]) -> Result<()> {
        self.tokens.clear();
        self.unsent = true;
        if tokens.len() <= MAX_VERIFY_ROWS {
            self.tokens.extend(tokens);
            return Ok(());
        }
        self.step_parameters.send_all(&self.words()?, tokens)?;
        self.unsent = false;
        Ok(())
    }

    /// Prepares all values for the graph of the verify pass that is launched next.
    fn lay(&mut self) -> Result<()> {
        let words = self.words()?;
        self.laid.lay(words.into_iter().chain(self.tokens.iter().copied()))?;
        self.unsent = false;
        Ok(())
    }

    fn given(&self, lays: bool) -> Result<()> {
        if lays { self.laid.given() } else { Ok(()) }
    }

    /// No graph takes the prepared values, so they have to be sent.
    fn send_again(&mut self) -> Result<()> {
        self.unsent = true;
        self.flush()
    }

    /// Sets the position with nothing pending. Like the methods below, it takes effect with the next tokens or the
    /// next [`Step::flush`].
    pub(super) fn seek(&mut self, position: usize) -> Result<()> {
        self.position = narrow(position)?;
        self.pending = 0;
        self.unsent = true;
        Ok(())
    }

    pub(super) fn advance(&mut self, pass: Pass, rows: usize) -> Result<()> {
        if rows > pass.rows() {
            return Err(shape("advance", format!("at most {} rows", pass.rows()), rows));
        }
        self.go_to(self.place().advanced(pass, rows))
    }

    /// `Step` of the active sequence, and the rows of the groups, or of that sequence.
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

    pub(super) fn folded(&mut self) {
        self.pending = 0;
        self.unsent = true;
    }

    /// Sends changed values; runs before every reader of the step, and is a no-op inside a CUDA graph.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.unsent {
            self.step_parameters.send_all(&self.words()?, &self.tokens)?;
            self.unsent = false;
        }
        Ok(())
    }
}

pub(super) fn narrow(value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| BackendError::Unsupported(format!("position {value} is beyond 32 bits")))
}

impl Cuda {
    /// Whether the next verify pass scores blocks: some row may not take all of them. The same for all layers of a
    /// pass, eager or replayed.
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
        self.ledgers.begin();
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
        self.tables.flush()?;
        let own = self.step.place().id;
        // A verify pass finds its sequences in the tables; a draft step names the buffers of one.
        let key = match key {
            StepKey::Verify(_) | StepKey::VerifyMany(_) => Key { step: key, of: ANY, scores: self.scores() },
            StepKey::Draft | StepKey::DraftExtend(_) => Key { step: key, of: own, scores: false },
        };
        if self.lazy_restores.get(&own).is_some_and(|a| a.complete()) {
            self.lazy_restores.remove(&own);
        }
        let alone = self.options.no_graphs || self.lazy_restores.contains_key(&own);
        let stage = if alone { Stage::RunEagerly } else { self.graphs.stage(key) };
        let verifies = matches!(key.step, StepKey::Verify(_) | StepKey::VerifyMany(_));
        let lays = verifies && stage != Stage::RunEagerly;
        if lays {
            self.step.lay()?
        } else {
            self.step.flush()?
        }
        match stage {
            Stage::RunEagerly => {
                let run = body(self);
                self.forget_rope();
                run?;
                // The very first pass only determines which rows take all blocks.
                if !alone && (!key.scores || self.scores()) {
                    self.graphs.warmed(key);
                }
            }
            Stage::Record => {
                let recorded = self.device.driver().begin_capture().and_then(|()| {
                    self.tables.fixed(true);
                    let taken = if lays { self.step.laid.take(self.step.ptr()) } else { Ok(()) };
                    let run = taken.and_then(|()| body(self));
                    self.tables.fixed(false);
                    let graph = self.device.driver().end_capture();
                    run.and(graph)
                });
                self.forget_rope();
                match recorded {
                    Ok(graph) => {
                        self.graphs.keep(key, graph);
                        self.graphs.replay(key)?;
                        self.step.given(lays)?;
                    }
                    Err(cause) => {
                        self.notes.push(format!(
                            "steps are not recorded ({cause}): every kernel is launched singly, which is slower"
                        ));
                        self.graphs.refuse(key);
                        self.ready.forget();
                        self.step.send_again()?;
                        body(self)?;
                    }
                }
            }
            Stage::Replay => {
                self.graphs.replay(key)?;
                self.step.given(lays)?;
            }
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
