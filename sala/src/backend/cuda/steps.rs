//! The values that change from step to step, in device memory: `Step` of `kernels/common.cuh`, the rows of a verify
//! pass (`kernels/sequences.cuh`) and the tokens of the pass.
//!
//! The host holds the authoritative values and sends a copy before a pass needs it, in stream order, from page-locked
//! slots that are not reused before the device has read them. A CUDA graph of a verify pass copies them itself
//! (`step_words`); other graphs only see the two fixed device addresses.

use super::device::Device;
use super::driver::{DevicePtr, Queue};
use super::graph::{ANY, Key, Stage};
use super::step_words::{Laid, STRUCT_WORDS, StepParameters};
use super::{Cuda, u32_of};
use crate::backend::{Group, MAX_VERIFY_ROWS, Pass, Place, Result, StepKey, Steps, invariant};
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
    pub(super) place: Place,
    unsent: bool,
}

impl Step {
    pub(super) fn new(device: &Device, rows: usize) -> Result<Self> {
        Ok(Step {
            step_parameters: StepParameters::new(device, STEP_WORDS, rows)?,
            laid: Laid::new(device, STEP_WORDS + MAX_VERIFY_ROWS)?,
            tokens: Vec::new(),
            groups: Vec::new(),
            place: Place::default(),
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
        Group::of_pass(&self.groups, self.place, pass, given)
    }

    pub(super) fn verify_groups(&self) -> impl Iterator<Item = Group> {
        let alone = self.groups.is_empty().then_some(Group { place: self.place, rows: MAX_VERIFY_ROWS });
        alone.into_iter().chain(self.groups.iter().copied())
    }

    pub(super) fn verify_end(&self) -> usize {
        self.verify_groups().map(|group| group.place.position + group.rows).max().unwrap_or_default()
    }

    /// Takes effect with the next tokens or the next [`Step::flush`].
    pub(super) fn go_to(&mut self, place: Place) {
        self.groups.clear();
        (self.place, self.unsent) = (place, true);
    }

    pub(super) fn set_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.groups.clear();
        self.send(tokens)
    }

    pub(super) fn set_rows(&mut self, groups: &[Group], tokens: &[Token]) -> Result<()> {
        let rows: usize = groups.iter().map(|g| g.rows).sum();
        let holds = rows <= MAX_VERIFY_ROWS && rows == tokens.len();
        invariant(holds, "set_rows", "rows and tokens of a pass do not belong together")?;
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

    /// `Step` of the active sequence, and the rows of the groups, or of that sequence.
    fn words(&self) -> Result<Vec<u32>> {
        let mut words = Vec::with_capacity(STEP_WORDS);
        words.extend([u32_of(self.place.position)?, u32_of(self.place.pending)?, u32_of(self.place.slot)?, 0]);
        let mut first = 0;
        for Group { place, rows } in self.verify_groups() {
            let own = [u32_of(place.position)?, first, u32_of(rows)?, u32_of(place.pending)?, u32_of(place.slot)?];
            let [start, first_row, rows_of, pending, slot] = own;
            for i in 0..rows_of {
                words.extend([start.saturating_add(i), start, first_row, rows_of, pending, slot, 0, 0]);
            }
            first += rows_of;
        }
        words.resize(STEP_WORDS, 0);
        Ok(words)
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

impl Cuda {
    /// Whether the next verify pass scores blocks: some row may not take all of them. The same for all layers of a
    /// pass, eager or replayed.
    pub(super) fn scores(&self) -> bool {
        self.step.verify_end() > self.all_within
    }
}

impl Steps for Cuda {
    fn place(&self) -> Place {
        self.step.place
    }

    fn go_to(&mut self, place: Place) -> Result<()> {
        self.forget_rope();
        self.step.go_to(place);
        Ok(())
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
        let own = self.step.place.id;
        // A verify pass finds its sequences in the tables; a draft step names the buffers of one.
        let key = match key {
            StepKey::Verify(_) | StepKey::VerifyMany(_) => Key { step: key, of: ANY, scores: self.scores() },
            StepKey::Draft | StepKey::DraftExtend(_) => Key { step: key, of: own, scores: false },
        };
        if self.lazy_restores.get(&own).is_some_and(|a| a.complete()) {
            self.lazy_restores.remove(&own);
        }
        let alone = self.lazy_restores.contains_key(&own);
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
                        // No graph takes the prepared values.
                        self.step.unsent = true;
                        self.step.flush()?;
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

    fn folded(&mut self) {
        (self.step.place.pending, self.step.unsent) = (0, true);
    }

    fn synchronize(&mut self) -> Result<()> {
        self.device.driver().synchronize(Queue::Copy)?;
        self.device.driver().synchronize(Queue::Compute)
    }
}
