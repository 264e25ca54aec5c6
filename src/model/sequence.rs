//! Several conversations on one device: each has its own [`Sequence`], all work in one workspace, one at a time is in hand.
//!
//! What a sequence computes is a function of its own path, whatever other sequences did in between: nothing but scratch is
//! shared, and every pass writes the scratch that it reads.

use crate::backend::{Backend, internal};

use super::state::{LayerState, Live, Phase, Sequence};
use super::{Model, ModelError, Result};

impl<B: Backend> Live<B> {
    /// An empty sequence beside the one in hand.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn another(&self, b: &mut B, model: &Model<B>) -> Result<Sequence<B>> {
        let here = b.place();
        let made = b.new_place().map_err(ModelError::from).and_then(|place| {
            let layers = LayerState::all(b, model.spec(), self.work.limit)?;
            let sums = match &self.work.sparse {
                Some((_, selection)) => Some(b.sums(selection)?),
                None => None,
            };
            Ok(Sequence::empty(layers, sums, place))
        });
        b.go_to(here)?;
        made
    }

    /// Takes `other` in hand and leaves in its place the sequence that was. Costs nothing worth counting.
    ///
    /// # Errors
    /// The device; `other` is one that never was put aside.
    pub fn swap(&mut self, b: &mut B, other: &mut Sequence<B>) -> Result<()> {
        if let Some((_, selection)) = &mut self.work.sparse {
            let mut sums = other.sums.take().ok_or_else(|| internal("swap", "a sequence without its sums"))?;
            b.exchange_sums(selection, &mut sums);
            self.now.sums = Some(sums);
        }
        self.now.place = b.place();
        b.go_to(other.place)?;
        std::mem::swap(&mut self.now, other);
        self.work.last_prefill = None;
        Ok(())
    }

    /// Makes `to` what the sequence in hand is, row by row; whatever it was is forgotten. Rows in flight are waited for.
    ///
    /// # Errors
    /// A pass that has not been advanced, not enough memory, the device: `to` must be reset then.
    pub fn copy_to(&mut self, b: &mut B, to: &mut Sequence<B>) -> Result<()> {
        self.fold(b)?;
        let here = b.place();
        b.go_to(to.place)?;
        let copied = b.sync_rows(0).map_err(ModelError::from).and_then(|()| self.copy_layers(b, to));
        to.place = b.place();
        b.go_to(here)?;
        copied
    }

    fn copy_layers(&mut self, b: &mut B, to: &mut Sequence<B>) -> Result<()> {
        let position = self.now.position;
        for (from, to) in self.now.layers.iter().zip(&mut to.layers) {
            match (from, to) {
                (LayerState::Sparse(from), LayerState::Sparse(to)) => {
                    b.reserve(to, position)?;
                    b.copy_rows(to, from, &self.work.sparse_spec, position)?;
                }
                (LayerState::Lightning(from), LayerState::Lightning(to)) => b.copy_state(to, from)?,
                (LayerState::Sparse(_), LayerState::Lightning(_))
                | (LayerState::Lightning(_), LayerState::Sparse(_)) => {
                    return Err(internal("copy_to", "layers of two sequences are of different kinds").into());
                }
            }
        }
        b.seek(position)?;
        (to.position, to.pending, to.phase, to.segment) = (position, 0, Phase::Synced, self.now.segment);
        Ok(())
    }

    /// Gives up a sequence that is not in hand, and its memory.
    pub fn release(b: &mut B, sequence: Sequence<B>) {
        let id = sequence.place.id;
        // Its rows in flight end with its caches.
        drop(sequence);
        b.forget_place(id);
    }
}
