//! Live state of a conversation, and the rules of its use.
//!
//! A [`Sequence`] holds the state of one conversation; all conversations share one workspace for their passes.
//! [`Live`] is both, with one current sequence; [`super::sequence`] exchanges it for another.
//!
//! Owns the order of calls that keeps principle 1 (state is a function of the segment path): every pass is advanced
//! exactly once, only accepted rows enter the recurrent state, pending rows are folded before a prefill or an export.
//! [`super::parts`] has its parts, [`super::images`] saving and restoring, [`super::mass`] attention mass. Never holds
//! tokens or text.

use crate::backend::{Backend, BackendError, GRID, HeadRows, MAX_VERIFY_ROWS, Pass, StepKey, TopLogits, internal};
use crate::core::grouped;
use crate::core::spec::SparseSpec;
use crate::engine::protocol::{Token, segment_name};

use super::forward::{Probe, Wanted};
use super::parts::{Layers, Phase, Sequence, Workspace};
use super::{Model, ModelError, Result};

/// A conversation's state and the workspace of its passes. See [`crate::model`] for the order of calls.
pub struct Live<B: Backend> {
    pub(super) now: Sequence<B>,
    pub(super) work: Workspace<B>,
}

pub(super) fn fits<B: Backend>(op: &'static str, model: &Model<B>, tokens: &[Token], most: usize) -> Result<()> {
    let rows = tokens.len();
    if rows == 0 || rows > most {
        return Err(ModelError::Order { op, reason: format!("{rows} rows; it takes 1 to {most}") });
    }
    let vocab = model.spec().vocab;
    match tokens.iter().find(|t| **t as usize >= vocab) {
        Some(token) => Err(ModelError::Token { token: *token, vocab }),
        None => Ok(()),
    }
}

/// The error for a context that does not fit, with the length that does.
pub(super) fn no_room<B: Backend>(sequence: &Sequence<B>, b: &B, length: usize, free: u64) -> BackendError {
    BackendError::Memory {
        what: format!("a context of {} tokens", grouped(length as u64)),
        needed: sequence.wants(b, length),
        free,
        advice: format!("Fits with at most {} tokens", grouped(sequence.longest(b, length, free) as u64)),
    }
}

impl<B: Backend> Live<B> {
    /// An empty state that can grow to `limit` tokens and keeps the outputs of the layers in `aux_layers` (slot
    /// order).
    pub fn new(b: &mut B, model: &Model<B>, limit: usize, aux_layers: &[usize]) -> Result<Self> {
        let spec = model.spec();
        if let Some(bad) = aux_layers.iter().find(|t| **t >= spec.mixers.len()) {
            let reason = format!("layer {bad} of {} has no hidden state to keep", spec.mixers.len());
            return Err(ModelError::Order { op: "Live::new", reason });
        }
        let layers = Layers::new(b, spec, limit)?;
        let work = Workspace::new(b, spec, limit, aux_layers)?;
        Ok(Live { now: Sequence::empty(layers, limit, None, b.place()), work })
    }

    /// Tokens in the state, including accepted ones that are not folded yet.
    pub fn position(&self) -> usize {
        self.now.position
    }

    pub fn limit(&self) -> usize {
        self.now.limit
    }

    /// The current sequence.
    pub fn sequence(&self) -> &Sequence<B> {
        &self.now
    }

    /// The auxiliary hidden states of the last pass `[rows, aux·hidden]`; `None` if none are kept.
    pub fn aux_hidden(&self) -> Option<&B::Buf> {
        self.work.aux_hidden.as_ref().map(|t| &t.buf)
    }

    /// First row of the current sequence in the last verify pass: earlier rows belong to other sequences.
    pub fn first_row(&self) -> usize {
        self.now.first_row
    }

    pub fn sparse_spec(&self) -> &SparseSpec {
        &self.work.sparse_spec
    }

    /// For comparisons; the default dense rule keeps rows independent of later ones.
    pub fn sparse_spec_mut(&mut self) -> &mut SparseSpec {
        &mut self.work.sparse_spec
    }

    /// The blocks that the last pass chose.
    pub fn selection(&self) -> Option<&B::Selection> {
        self.work.sparse.as_ref().map(|(_, selection)| selection)
    }

    /// The residual stream after the last layer of the last pass with an output `[rows, hidden]`, before the final
    /// norm.
    pub fn hidden(&self) -> &B::Buf {
        &self.work.h
    }

    /// The next given token begins a segment, even if the last chunk allowed its segment to continue.
    pub fn begin_segment(&mut self) {
        self.now.segment = 0;
    }

    /// Names the last rows as those of a segment, if the segment below has a name. An empty segment has none.
    pub fn end_segment(&mut self, fingerprint: &str, prompt: &[Token], completion: &[Token]) -> Option<[u8; 32]> {
        let end = self.now.position;
        let start = end.checked_sub(prompt.len() + completion.len()).filter(|start| *start < end)?;
        let parent = match start {
            0 => None,
            _ => Some(self.now.named.last_at(start)?),
        };
        let name = segment_name(fingerprint, parent, prompt, completion);
        self.now.named.add(end, name);
        Some(name)
    }

    /// Reads one chunk of given tokens (at most [`prefill_rows`](crate::backend::Memory::prefill_rows)) at the current
    /// position. Follow it with [`Live::advance`] of all its rows; in between the auxiliary hidden states may be read
    /// at the pass's own positions.
    ///
    /// All chunks of a segment but the last must be multiples of [`crate::backend::GRID`]; then its state does not
    /// depend on the cut. Any other chunk ends the segment: the next one starts its own grid.
    ///
    /// # Errors
    /// Too many rows, a token outside the vocabulary, a full context, an unadvanced prefill; or the device, after
    /// which the state must be reset.
    pub fn prefill(&mut self, b: &mut B, model: &Model<B>, tokens: &[Token]) -> Result<()> {
        self.prefill_pass(b, model, tokens, Wanted::Output, None)
    }

    /// [`Live::prefill`] of a chunk that others follow: the same state, bit for bit, and the same auxiliary hidden
    /// states, but no logits for [`Live::prefill_logits`].
    pub fn prefill_state(&mut self, b: &mut B, model: &Model<B>, tokens: &[Token]) -> Result<()> {
        self.prefill_pass(b, model, tokens, Wanted::State, None)
    }

    pub(super) fn prefill_pass(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        tokens: &[Token],
        wanted: Wanted,
        probe: Option<&mut Probe<'_, B>>,
    ) -> Result<()> {
        let pass = Pass::Prefill { rows: tokens.len() };
        self.begin("prefill", b, model, tokens, b.prefill_rows())?;
        self.fold(b)?;
        model.run(b, &mut self.work, &mut [&mut self.now.layers], pass, wanted, probe)?;
        self.now.phase = Phase::Ran(pass);
        self.work.last_prefill = (wanted == Wanted::Output).then_some(pass);
        Ok(())
    }

    /// Top logits for the token after the last row of the last prefill, before or after its advance. Waits.
    pub fn prefill_logits(&mut self, b: &mut B, model: &Model<B>) -> Result<TopLogits> {
        let Some(pass) = self.work.last_prefill else {
            return Err(ModelError::Order {
                op: "prefill_logits",
                reason: "the last pass was no prefill with an output".into(),
            });
        };
        model.logits(b, &mut self.work, HeadRows::Last, pass)?;
        b.top_logits(&self.work.logits, model.spec().vocab, HeadRows::Last, pass)?;
        let row = b.read_top_logits(1)?.into_iter().next();
        Ok(row.ok_or_else(|| internal("prefill_logits", "no row of logits was found"))?)
    }

    /// Runs 1..=16 rows at the current position and finds each row's top logits: the pending token, then drafts. Does
    /// not advance. Equal, bit for bit, to that many single steps.
    pub fn verify(&mut self, b: &mut B, model: &Model<B>, tokens: &[Token]) -> Result<()> {
        let pass = Pass::Verify { rows: tokens.len() };
        self.begin("verify", b, model, tokens, MAX_VERIFY_ROWS)?;
        let Live { now, work } = self;
        model.bind(b, &mut [&mut now.layers])?;
        b.step(StepKey::Verify(tokens.len()), &mut |b| model.verify(b, work, &mut [&mut now.layers], pass))?;
        self.now.phase = Phase::Ran(pass);
        self.now.first_row = 0;
        self.work.last_prefill = None;
        Ok(())
    }

    fn begin(&mut self, op: &'static str, b: &mut B, model: &Model<B>, tokens: &[Token], most: usize) -> Result<()> {
        self.settle(op, b)?;
        fits(op, model, tokens, most)?;
        self.make_room(b, tokens.len())?;
        b.segment_at(self.now.segment);
        b.set_tokens(tokens)?;
        Ok(())
    }

    /// Reserves memory for `rows` more positions. A pass does so itself; this call reports a lack of memory earlier.
    pub fn make_room(&mut self, b: &mut B, rows: usize) -> Result<()> {
        let needed = self.now.position + rows;
        if needed > self.now.limit {
            return Err(ModelError::Context { needed, limit: self.now.limit });
        }
        let wants = self.now.wants(b, needed);
        if wants > 0
            && let Some(free) = b.room()?.filter(|free| *free < wants)
        {
            return Err(no_room(&self.now, b, needed, free).into());
        }
        self.reserve(b, needed)
    }

    pub(super) fn reserve(&mut self, b: &mut B, length: usize) -> Result<()> {
        Ok(self.now.layers.caches.iter_mut().try_for_each(|cache| b.reserve(cache, length))?)
    }

    /// Top logits of the first `rows` rows of the last verify pass. Waits for the device.
    pub fn top_logits(&mut self, b: &mut B, rows: usize) -> Result<Vec<TopLogits>> {
        Ok(b.read_top_logits(rows)?)
    }

    /// Logits of the first `rows` rows of the last head, row-major `[rows, vocab]`. For tests and golden data. Waits.
    pub fn logits(&mut self, b: &mut B, rows: usize) -> Result<Vec<f32>> {
        Ok(b.read(&self.work.logits, rows)?)
    }

    /// All logits of one row of the last head `[vocab]`: of the last verify pass, or of [`Live::prefill_logits`] (row
    /// 0). Waits.
    pub fn logits_of(&self, b: &mut B, model: &Model<B>, row: usize) -> Result<Vec<f32>> {
        let all = b.read(&self.work.logits, row + 1)?;
        let width = all.len() / (row + 1);
        let logits = all.chunks_exact(width).nth(row).and_then(|row| row.get(..model.spec().vocab));
        Ok(logits
            .map(<[f32]>::to_vec)
            .ok_or_else(|| internal("logits_of", "a row that is narrower than the vocabulary"))?)
    }

    /// Accepts the first `rows` rows of the last pass: all of a prefill, any number of a verify.
    pub fn advance(&mut self, b: &mut B, rows: usize) -> Result<()> {
        let fail = |reason: String| Err(ModelError::Order { op: "advance", reason });
        let Phase::Ran(pass) = self.now.phase else { return fail("no pass has run since the last advance".into()) };
        match pass {
            Pass::Prefill { rows: all } if rows != all => {
                return fail(format!("{rows} of {all} prefilled rows; all are given"));
            }
            Pass::Verify { rows: all } if rows > all => {
                return fail(format!("{rows} of {all} verified rows"));
            }
            Pass::Prefill { .. } => {
                self.now.pending = 0;
                self.now.segment = if rows.is_multiple_of(GRID) { self.now.segment + rows } else { 0 };
            }
            Pass::Verify { .. } => {
                self.now.pending = rows;
                self.now.segment = if rows == 0 { self.now.segment } else { 0 };
            }
        }
        b.advance(pass, rows)?;
        self.now.position += rows;
        self.now.phase = Phase::Synced;
        Ok(())
    }

    /// Refuses all rows of an unadvanced verify pass.
    fn settle(&mut self, op: &'static str, b: &mut B) -> Result<()> {
        match self.now.phase {
            Phase::Synced => Ok(()),
            Phase::Ran(Pass::Verify { .. }) => self.advance(b, 0),
            Phase::Ran(Pass::Prefill { .. }) => {
                Err(ModelError::Order { op, reason: "the last prefill chunk was not advanced".into() })
            }
        }
    }

    /// Absorbs accepted rows into the recurrent states. Drops refused rows of an unadvanced verify.
    pub fn fold(&mut self, b: &mut B) -> Result<()> {
        self.settle("fold", b)?;
        if self.now.pending == 0 {
            return Ok(());
        }
        for state in &mut self.now.layers.states {
            b.fold(state, &self.work.lightning_spec)?;
        }
        b.folded();
        self.now.pending = 0;
        Ok(())
    }
}
