//! Several conversations on one device: each has its own [`Sequence`], all share one workspace, and one at a time is
//! current.
//!
//! A sequence's results are a function of its own path, whatever other sequences did in between: only scratch is
//! shared, and every pass writes the scratch that it reads.

use crate::backend::{Backend, Group, MAX_VERIFY_ROWS, Pass, StepKey, internal};
use crate::engine::protocol::Token;

use super::parts::{Layers, Phase, Sequence};
use super::state::{Live, fits};
use super::{Model, ModelError, Result};

impl<B: Backend> Live<B> {
    /// An empty sequence next to the current one.
    pub fn another(&self, b: &mut B, model: &Model<B>) -> Result<Sequence<B>> {
        let here = b.place();
        let made = b.new_place().map_err(ModelError::from).and_then(|place| {
            let layers = Layers::new(b, model.spec(), self.now.limit)?;
            let sums = match &self.work.sparse {
                Some((_, selection)) => Some(b.sums(selection)?),
                None => None,
            };
            Ok(Sequence::empty(layers, self.now.limit, sums, place))
        });
        b.go_to(here)?;
        made
    }

    /// Exchanges the current sequence with `other`, at negligible cost.
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
        b.copy_rows(&mut to.layers.caches(), &mut self.now.layers.caches(), position)?;
        for (from, to) in self.now.layers.states.iter().zip(&mut to.layers.states) {
            b.copy_state(to, from)?;
        }
        b.seek(position)?;
        (to.position, to.pending, to.phase, to.segment) = (position, 0, Phase::Synced, self.now.segment);
        to.named = self.now.named.clone();
        Ok(())
    }

    /// Moves keys and values of the current sequence and of all `others` from the device to host memory
    /// ([`Memory::page_out`](crate::backend::Memory::page_out)). Results stay the same.
    pub fn page_out(&mut self, b: &mut B, model: &Model<B>, others: &mut [&mut Sequence<B>]) -> Result<Option<String>> {
        let mut sequences = vec![self.now.layers.caches()];
        sequences.extend(others.iter_mut().map(|sequence| sequence.layers.caches()));
        Ok(b.page_out(model.spec(), self.now.limit, &mut sequences)?)
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
            if needed > sequence.limit {
                return Err(ModelError::Context { needed, limit: sequence.limit });
            }
            for cache in &mut sequence.layers.caches {
                b.reserve(cache, needed)?;
            }
            groups.push(Group { place: sequence.place, rows: tokens.len() });
        }
        let tokens: Vec<Token> = sequences.iter().flat_map(|(_, tokens)| *tokens).copied().collect();
        fits("verify", model, &tokens, MAX_VERIFY_ROWS)?;
        let pass = Pass::Verify { rows: tokens.len() };
        b.set_rows(&groups, &tokens)?;
        let mut layers: Vec<&mut Layers<B>> = sequences.iter_mut().map(|(sequence, _)| &mut sequence.layers).collect();
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
