//! Several conversations on one device: each has its own [`Sequence`], all share one workspace, and one at a time is
//! current.
//!
//! A sequence's results are a function of its own path, whatever other sequences did in between: only scratch is
//! shared, and every pass writes the scratch that it reads.

use crate::backend::{Backend, Group, MAX_VERIFY_ROWS, Pass, StepKey, internal};
use crate::engine::protocol::Token;

use super::parts::{LayerState, Phase, Sequence};
use super::state::{Live, fits};
use super::{Model, ModelError, Result};

impl<B: Backend> Live<B> {
    /// An empty sequence next to the current one.
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

    /// Exchanges the current sequence with `other`, at negligible cost.
    ///
    /// # Errors
    /// The device; `other` was never swapped out.
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

    /// Makes `to` a copy of the current sequence and drops its old state. Both share the memory of cache rows if the
    /// device supports that. Waits for rows in flight.
    ///
    /// # Errors
    /// A pass that has not been advanced, not enough memory, the device: then `to` must be reset.
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
        let (mut rows, mut theirs) = (LayerState::caches(&mut to.layers), LayerState::caches(&mut self.now.layers));
        b.copy_rows(&mut rows, &mut theirs, position)?;
        for (from, to) in self.now.layers.iter().zip(&mut to.layers) {
            match (from, to) {
                (LayerState::Sparse(_), LayerState::Sparse(_)) => {}
                (LayerState::Lightning(from), LayerState::Lightning(to)) => b.copy_state(to, from)?,
                (LayerState::Sparse(_), LayerState::Lightning(_))
                | (LayerState::Lightning(_), LayerState::Sparse(_)) => {
                    return Err(internal("copy_to", "layers of two sequences are of different kinds").into());
                }
            }
        }
        b.seek(position)?;
        (to.position, to.pending, to.phase, to.segment) = (position, 0, Phase::Synced, self.now.segment);
        to.named = self.now.named.clone();
        Ok(())
    }

    /// Moves keys and values of the current sequence and of all `others` from the device to host memory
    /// ([`Memory::page_out`](crate::backend::Memory::page_out)). Results stay the same.
    pub fn page_out(&mut self, b: &mut B, model: &Model<B>, others: &mut [&mut Sequence<B>]) -> Result<Option<String>> {
        let mut sequences = vec![LayerState::caches(&mut self.now.layers)];
        sequences.extend(others.iter_mut().map(|sequence| LayerState::caches(&mut sequence.layers)));
        Ok(b.page_out(model.spec(), self.work.limit, &mut sequences)?)
    }

    /// One verify pass over rows of several sequences: `own` of the current one, then those of `others`, which are
    /// swapped out; at most 16 in all, each as in [`Live::verify`]. Each has the results that it has alone, bit for
    /// bit. Swap each in and advance it before its next pass; [`Live::first_row`] is the index of its first row.
    ///
    /// # Errors
    /// As [`Live::verify`], of any of them: then nothing was computed, unless the device failed.
    pub fn verify_alongside(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        own: &[Token],
        others: &mut [(&mut Sequence<B>, &[Token])],
    ) -> Result<()> {
        if others.is_empty() {
            return self.verify(b, model, own);
        }
        let Live { now, work } = self;
        now.place = b.place();
        let mut sequences: Vec<(&mut Sequence<B>, &[Token])> = vec![(now, own)];
        sequences.extend(others.iter_mut().map(|(sequence, tokens)| (&mut **sequence, *tokens)));
        let mut groups = Vec::with_capacity(sequences.len());
        for (sequence, tokens) in &mut sequences {
            fits("verify", model, tokens, MAX_VERIFY_ROWS)?;
            if sequence.phase != Phase::Synced {
                let reason = "a sequence has a pass that was not advanced".into();
                return Err(ModelError::Order { op: "verify", reason });
            }
            let needed = sequence.position + tokens.len();
            if needed > work.limit {
                return Err(ModelError::Context { needed, limit: work.limit });
            }
            for layer in &mut sequence.layers {
                if let LayerState::Sparse(cache) = layer {
                    b.reserve(cache, needed)?;
                }
            }
            groups.push(Group { place: sequence.place, rows: tokens.len() });
        }
        let tokens: Vec<Token> = sequences.iter().flat_map(|(_, tokens)| *tokens).copied().collect();
        fits("verify", model, &tokens, MAX_VERIFY_ROWS)?;
        let pass = Pass::Verify { rows: tokens.len() };
        b.set_rows(&groups, &tokens)?;
        let mut layers: Vec<&mut [LayerState<B>]> = Vec::with_capacity(sequences.len());
        layers.extend(sequences.iter_mut().map(|(sequence, _)| sequence.layers.as_mut_slice()));
        model.bind(b, &mut layers)?;
        b.step(StepKey::VerifyMany(tokens.len()), &mut |b| model.verify(b, work, &mut layers, pass))?;
        let mut first_row = 0;
        for (sequence, tokens) in sequences {
            sequence.phase = Phase::Ran(Pass::Verify { rows: tokens.len() });
            sequence.first_row = first_row;
            first_row += tokens.len();
        }
        work.last_prefill = None;
        Ok(())
    }

    pub fn release(b: &mut B, sequence: Sequence<B>) {
        let id = sequence.place.id;
        // Dropping its caches ends its rows in flight.
        drop(sequence);
        b.forget_place(id);
    }
}
