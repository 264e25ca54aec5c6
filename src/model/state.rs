//! Live state of a conversation: caches, recurrent states, working buffers, and the rules of their use.
//!
//! What belongs to one conversation is a [`Sequence`]; what a pass works in is there once for all of them. [`Live`] is both,
//! with one sequence in hand; [`super::sequence`] takes another in its place.
//!
//! Owns the order of calls that keeps principle 1 (state is a function of the segment path): every pass is advanced
//! exactly once, only accepted rows enter the recurrent state, pending rows are folded before a prefill or an export.
//! Never holds tokens or text. Formats of images: [`crate::protocol::engine`].

use std::ops::Range;
use std::sync::Arc;

use crate::backend::{
    Backend, BlockMass, BufKind, GRID, HeadRows, MAX_VERIFY_ROWS, MassOf, Pass, Place, Result as BackendResult,
    StepKey, TopLogits, internal, layer_tensor,
};
use crate::protocol::engine::{CheckpointImage, ImageTensor, RowSource, RowsImage, Token};
use crate::spec::{DenseRule, LightningSpec, Mixer, ModelSpec, SparseSpec};

use super::forward::Probe;
use super::{Model, ModelError, Result};

/// Fused projection and mixer output of one kind of layer.
pub(super) struct MixBufs<B: Backend> {
    /// `[rows, projection_width]`
    pub(super) x: B::Buf,
    /// `[rows, heads·head_dim]`
    pub(super) o: B::Buf,
}

/// What one layer remembers.
pub(super) enum LayerState<B: Backend> {
    Sparse(B::Cache),
    Lightning(B::Recurrent),
}

/// Residual streams kept for a draft head.
pub(super) struct AuxHidden<B: Backend> {
    /// Layers whose output is kept, in slot order.
    pub(super) layers: Vec<usize>,
    /// `[rows, layers.len()·hidden]`
    pub(super) buf: B::Buf,
}

/// Where the state is between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing is under way.
    Synced,
    /// A pass ran and has not been advanced.
    Ran(Pass),
}

/// One conversation's state on a device.
pub struct Sequence<B: Backend> {
    pub(super) layers: Vec<LayerState<B>>,
    /// Its sums of attention mass while another sequence is in hand; those of the one in hand are in the selection.
    pub(super) sums: Option<B::Sums>,
    /// Where the device stood when it was put aside.
    pub(super) place: Place,
    pub(super) position: usize,
    /// Accepted rows of the last verify pass that the recurrent states have not absorbed yet.
    pub(super) pending: usize,
    pub(super) phase: Phase,
    /// Given tokens since the segment began, while it may go on.
    pub(super) segment: usize,
    /// Its first row in the last verify pass.
    pub(super) first_row: usize,
}

/// What passes work in, whoever's they are.
pub(super) struct Workspace<B: Backend> {
    /// The residual stream. `[rows, hidden]`
    pub(super) h: B::Buf,
    /// `[rows, intermediate]`
    pub(super) mid: B::Buf,
    /// `[1..=16 rows, vocab]`
    pub(super) logits: B::Buf,
    pub(super) sparse: Option<(MixBufs<B>, B::Selection)>,
    pub(super) lightning: Option<MixBufs<B>>,
    pub(super) aux_hidden: Option<AuxHidden<B>>,
    /// The model's, with the dense rule in force now.
    pub(super) sparse_spec: SparseSpec,
    pub(super) lightning_spec: LightningSpec,
    pub(super) limit: usize,
    /// The last prefill pass of the sequence in hand, for [`Live::prefill_logits`].
    pub(super) last_prefill: Option<Pass>,
}

/// A conversation's state and what its passes work in. See [`crate::model`] for the order of calls.
pub struct Live<B: Backend> {
    pub(super) now: Sequence<B>,
    pub(super) work: Workspace<B>,
}

impl<B: Backend> LayerState<B> {
    /// What an empty conversation remembers, layer by layer.
    pub(super) fn all(b: &mut B, spec: &ModelSpec, limit: usize) -> Result<Vec<Self>> {
        let mut layers = Vec::with_capacity(spec.mixers.len());
        for mixer in &spec.mixers {
            layers.push(match mixer {
                Mixer::Sparse => LayerState::Sparse(b.cache(&spec.sparse, limit)?),
                Mixer::Lightning => LayerState::Lightning(b.recurrent(&spec.lightning)?),
            });
        }
        Ok(layers)
    }
}

/// Whether tokens can be the rows of a pass.
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

impl<B: Backend> Workspace<B> {
    /// A verify pass as far as it may be recorded.
    pub(super) fn verify(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        sequences: &mut [&mut [LayerState<B>]],
        pass: Pass,
    ) -> BackendResult<()> {
        model.run(b, self, sequences, pass, None)?;
        model.logits(b, self, HeadRows::All, pass)?;
        b.top_logits(&self.logits, model.spec().vocab, HeadRows::All, pass)
    }
}

impl<B: Backend> Sequence<B> {
    pub(super) fn empty(layers: Vec<LayerState<B>>, sums: Option<B::Sums>, place: Place) -> Self {
        Sequence { layers, sums, place, position: 0, pending: 0, phase: Phase::Synced, segment: 0, first_row: 0 }
    }

    /// Tokens in the state.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<B: Backend> Live<B> {
    /// An empty state that can grow to `limit` tokens and keeps the outputs of the layers in `aux_layers` (slot order).
    ///
    /// # Errors
    /// Not enough memory, a shape the device cannot do, or a layer outside the model.
    pub fn new(b: &mut B, model: &Model<B>, limit: usize, aux_layers: &[usize]) -> Result<Self> {
        let spec = model.spec();
        if let Some(bad) = aux_layers.iter().find(|t| **t >= spec.mixers.len()) {
            let reason = format!("layer {bad} of {} has no hidden state to keep", spec.mixers.len());
            return Err(ModelError::Order { op: "Live::new", reason });
        }
        let layers = LayerState::all(b, spec, limit)?;
        let mix = |b: &mut B, width: usize, out: usize| -> Result<MixBufs<B>> {
            Ok(MixBufs { x: b.buf(width, BufKind::Activation)?, o: b.buf(out, BufKind::Wide)? })
        };
        let (s, l) = (&spec.sparse, &spec.lightning);
        let sparse = if spec.mixers.contains(&Mixer::Sparse) {
            Some((mix(b, s.projection_width(), s.heads * s.head_dim)?, b.selection(s, limit)?))
        } else {
            None
        };
        let lightning = if spec.mixers.contains(&Mixer::Lightning) {
            Some(mix(b, l.projection_width(), l.heads * l.head_dim)?)
        } else {
            None
        };
        let aux_hidden = if aux_layers.is_empty() {
            None
        } else {
            Some(AuxHidden {
                layers: aux_layers.to_vec(),
                buf: b.buf(aux_layers.len() * spec.hidden, BufKind::Activation)?,
            })
        };
        b.seek(0)?;
        let work = Workspace {
            h: b.buf(spec.hidden, BufKind::Residual)?,
            mid: b.buf(spec.intermediate, BufKind::Activation)?,
            logits: b.buf(spec.vocab, BufKind::Logits)?,
            sparse,
            lightning,
            aux_hidden,
            sparse_spec: spec.sparse.clone(),
            lightning_spec: spec.lightning.clone(),
            limit,
            last_prefill: None,
        };
        Ok(Live { now: Sequence::empty(layers, None, b.place()), work })
    }

    /// Tokens in the state: accepted ones that are not folded yet included.
    pub fn position(&self) -> usize {
        self.now.position
    }

    /// Tokens the caches may hold.
    pub fn limit(&self) -> usize {
        self.work.limit
    }

    /// The auxiliary hidden states of the last pass `[rows, aux·hidden]`; `None` if none are kept.
    pub fn aux_hidden(&self) -> Option<&B::Buf> {
        self.work.aux_hidden.as_ref().map(|t| &t.buf)
    }

    /// The row of the last verify pass with which the sequence in hand begins: those before it are of other sequences.
    pub fn first_row(&self) -> usize {
        self.now.first_row
    }

    /// The residual stream after the last layer of the last pass `[rows, hidden]`, before the final norm.
    pub fn hidden(&self) -> &B::Buf {
        &self.work.h
    }

    /// Changes when rows are dense. For comparisons; the default rule keeps rows independent of what follows.
    pub fn set_dense_rule(&mut self, rule: DenseRule) {
        self.work.sparse_spec.dense_rule = rule;
    }

    /// The next given token begins a segment, though the last chunk would have let its own go on.
    pub fn begin_segment(&mut self) {
        self.now.segment = 0;
    }

    /// Given tokens that the present segment has so far; 0 where the next one begins a segment.
    pub fn segment_read(&self) -> usize {
        self.now.segment
    }

    /// Reads one chunk of given tokens (at most [`prefill_rows`](crate::backend::Memory::prefill_rows)) at the current position. Follow it with
    /// [`Live::advance`] of all its rows; in between the auxiliary hidden states may be read at the pass's own positions.
    ///
    /// All chunks of a segment but the last must be multiples of [`crate::backend::GRID`]; then its state does not
    /// depend on the cut. A chunk that is none ends the segment: the next one starts its own grid.
    ///
    /// # Errors
    /// Too many rows, a token outside the vocabulary, a full context, an unadvanced prefill; or the device, after which
    /// the state must be reset.
    pub fn prefill(&mut self, b: &mut B, model: &Model<B>, tokens: &[Token]) -> Result<()> {
        self.prefill_probed(b, model, tokens, None)
    }

    pub(super) fn prefill_probed(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        tokens: &[Token],
        probe: Option<&mut Probe<'_, B>>,
    ) -> Result<()> {
        let pass = Pass::Prefill { rows: tokens.len() };
        self.begin("prefill", b, model, tokens, b.prefill_rows())?;
        self.fold(b)?;
        model.run(b, &mut self.work, &mut [&mut self.now.layers], pass, probe)?;
        self.now.phase = Phase::Ran(pass);
        self.work.last_prefill = Some(pass);
        Ok(())
    }

    /// Top logits for the token after the last row of the last prefill, before or after its advance. Waits.
    ///
    /// # Errors
    /// No prefill was the last pass, or the device.
    pub fn prefill_logits(&mut self, b: &mut B, model: &Model<B>) -> Result<TopLogits> {
        let Some(pass) = self.work.last_prefill else {
            return Err(ModelError::Order { op: "prefill_logits", reason: "the last pass was no prefill".into() });
        };
        model.logits(b, &mut self.work, HeadRows::Last, pass)?;
        b.top_logits(&self.work.logits, model.spec().vocab, HeadRows::Last, pass)?;
        let row = b.read_top_logits(1)?.into_iter().next();
        Ok(row.ok_or_else(|| internal("prefill_logits", "no row of logits was found"))?)
    }

    /// Runs 1..=16 rows at the current position and finds each row's top logits: the pending token, then drafts. Does
    /// not advance. Equal, bit for bit, to that many single steps.
    ///
    /// # Errors
    /// As [`Live::prefill`].
    pub fn verify(&mut self, b: &mut B, model: &Model<B>, tokens: &[Token]) -> Result<()> {
        let pass = Pass::Verify { rows: tokens.len() };
        self.begin("verify", b, model, tokens, MAX_VERIFY_ROWS)?;
        let Live { now, work } = self;
        model.bind(b, &mut [&mut now.layers])?;
        b.step(StepKey::Verify(tokens.len()), &mut |b| work.verify(b, model, &mut [&mut now.layers], pass))?;
        self.now.phase = Phase::Ran(pass);
        self.now.first_row = 0;
        self.work.last_prefill = None;
        Ok(())
    }

    /// Checks that a pass may start and readies tokens and caches for it.
    fn begin(&mut self, op: &'static str, b: &mut B, model: &Model<B>, tokens: &[Token], most: usize) -> Result<()> {
        match self.now.phase {
            Phase::Synced => {}
            // A verify pass whose rows were all refused.
            Phase::Ran(Pass::Verify { .. }) => self.advance(b, 0)?,
            Phase::Ran(Pass::Prefill { .. }) => {
                return Err(ModelError::Order { op, reason: "the last prefill chunk was not advanced".into() });
            }
        }
        fits(op, model, tokens, most)?;
        self.make_room(b, tokens.len())?;
        b.segment_at(self.now.segment);
        b.set_tokens(tokens)?;
        Ok(())
    }

    /// Puts memory under `rows` more positions, which a pass does by itself: for who wants to know before.
    ///
    /// # Errors
    /// A full context, or not enough memory.
    pub fn make_room(&mut self, b: &mut B, rows: usize) -> Result<()> {
        let needed = self.now.position + rows;
        if needed > self.work.limit {
            return Err(ModelError::Context { needed, limit: self.work.limit });
        }
        self.reserve(b, needed)
    }

    fn reserve(&mut self, b: &mut B, length: usize) -> Result<()> {
        for layer in &mut self.now.layers {
            match layer {
                LayerState::Sparse(cache) => b.reserve(cache, length)?,
                LayerState::Lightning(_) => {}
            }
        }
        Ok(())
    }

    /// Top logits of the first `rows` rows of the last verify pass. Waits for the device.
    ///
    /// # Errors
    /// The device.
    pub fn top_logits(&mut self, b: &mut B, rows: usize) -> Result<Vec<TopLogits>> {
        Ok(b.read_top_logits(rows)?)
    }

    /// Logits of the first `rows` rows of the last head, row-major `[rows, vocab]`. For tests and golden data. Waits.
    ///
    /// # Errors
    /// The device.
    pub fn logits(&mut self, b: &mut B, rows: usize) -> Result<Vec<f32>> {
        Ok(b.read(&self.work.logits, rows)?)
    }

    /// Accepts the first `rows` rows of the last pass: all of a prefill, any number of a verify.
    ///
    /// # Errors
    /// No pass to advance, or more rows than it had.
    pub fn advance(&mut self, b: &mut B, rows: usize) -> Result<()> {
        let fail = |reason: String| Err(ModelError::Order { op: "advance", reason });
        let Phase::Ran(pass) = self.now.phase else {
            return fail("no pass has run since the last advance".into());
        };
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
        if let (Pass::Verify { rows: all }, Some((_, selection))) = (pass, &mut self.work.sparse) {
            b.clear_mass(selection, self.now.first_row..self.now.first_row + all)?;
        }
        b.advance(pass, rows)?;
        self.now.position += rows;
        self.now.phase = Phase::Synced;
        Ok(())
    }

    /// Adds what rows `rows` of the last verify pass, not advanced yet, attended to in the sparse layers to one of the sums.
    /// Call it for accepted rows only.
    ///
    /// # Errors
    /// No verify pass to advance, rows that it did not have, or the device.
    pub fn add_mass(&mut self, b: &mut B, rows: Range<usize>, of: MassOf) -> Result<()> {
        match self.now.phase {
            Phase::Ran(Pass::Verify { rows: all }) if rows.end <= all => {}
            Phase::Ran(_) | Phase::Synced => {
                let reason = format!("rows {rows:?} are not of a verify pass that waits to be advanced");
                return Err(ModelError::Order { op: "add_mass", reason });
            }
        }
        match &mut self.work.sparse {
            Some((_, selection)) => {
                let (first, position) = (self.now.first_row, self.now.position + rows.start);
                let rows = first + rows.start..first + rows.end;
                Ok(b.add_mass(selection, &self.work.sparse_spec, rows, position, of)?)
            }
            None => Ok(()),
        }
    }

    /// Rows of prefill passes from now on do not attend to these blocks of the sparse layers; to all again when there are none.
    pub fn hide_blocks(&mut self, b: &mut B, blocks: &[Range<u32>]) {
        if let Some((_, selection)) = &mut self.work.sparse {
            b.hide_blocks(selection, blocks);
        }
    }

    /// Both sums become 0.
    ///
    /// # Errors
    /// The device.
    pub fn reset_mass(&mut self, b: &mut B) -> Result<()> {
        match &mut self.work.sparse {
            Some((_, selection)) => Ok(b.reset_mass(selection)?),
            None => Ok(()),
        }
    }

    /// One of the sums, a value a KV block; empty without sparse layers. Waits.
    ///
    /// # Errors
    /// The device.
    pub fn mass(&mut self, b: &mut B, of: MassOf) -> Result<Vec<BlockMass>> {
        match &self.work.sparse {
            Some((_, selection)) => Ok(b.read_mass(selection, of)?),
            None => Ok(Vec::new()),
        }
    }

    /// What each of the first `rows` rows of the last verify pass, not advanced yet, attended to, a value a KV block, in
    /// units of [`MASS`](crate::backend::MASS) a head and layer. Waits.
    ///
    /// # Errors
    /// The device.
    pub fn row_mass(&mut self, b: &mut B, rows: usize) -> Result<Vec<Vec<u32>>> {
        match &self.work.sparse {
            Some((_, selection)) => {
                let blocks = (self.now.position + rows).div_ceil(self.work.sparse_spec.block);
                Ok(b.read_row_mass(selection, self.now.first_row..self.now.first_row + rows, blocks)?)
            }
            None => Ok(Vec::new()),
        }
    }

    /// Absorbs accepted rows into the recurrent states. Refused rows of an unadvanced verify are dropped.
    ///
    /// # Errors
    /// The device; an unadvanced prefill.
    pub fn fold(&mut self, b: &mut B) -> Result<()> {
        match self.now.phase {
            Phase::Synced => {}
            Phase::Ran(Pass::Verify { .. }) => self.advance(b, 0)?,
            Phase::Ran(Pass::Prefill { .. }) => {
                return Err(ModelError::Order { op: "fold", reason: "the last prefill chunk was not advanced".into() });
            }
        }
        if self.now.pending == 0 {
            return Ok(());
        }
        for layer in &mut self.now.layers {
            match layer {
                LayerState::Lightning(state) => b.fold(state, &self.work.lightning_spec)?,
                LayerState::Sparse(_) => {}
            }
        }
        b.folded();
        self.now.pending = 0;
        Ok(())
    }

    /// KV rows of `positions`, for saving. Waits.
    ///
    /// # Errors
    /// Positions outside the state, or the device.
    pub fn export_rows(&mut self, b: &mut B, positions: Range<usize>) -> Result<RowsImage> {
        if positions.start > positions.end || positions.end > self.now.position {
            let reason = format!("{positions:?} of {} tokens", self.now.position);
            return Err(ModelError::Order { op: "export_rows", reason });
        }
        let mut tensors = Vec::new();
        for (i, layer) in self.now.layers.iter().enumerate() {
            match layer {
                LayerState::Sparse(cache) => {
                    for mut tensor in b.read_rows(cache, &self.work.sparse_spec, positions.clone())? {
                        tensor.name = layer_tensor(&tensor.name, i);
                        tensors.push(tensor);
                    }
                }
                LayerState::Lightning(_) => {}
            }
        }
        Ok(RowsImage { start: positions.start as u64, rows: positions.len() as u64, tensors })
    }

    /// The recurrent states at the current position, for saving. Folds first. Waits.
    ///
    /// # Errors
    /// The device.
    pub fn export_end(&mut self, b: &mut B) -> Result<CheckpointImage> {
        self.fold(b)?;
        let mut tensors = Vec::new();
        for (i, layer) in self.now.layers.iter().enumerate() {
            match layer {
                LayerState::Lightning(state) => {
                    let mut tensor = b.read_state(state, &self.work.lightning_spec)?;
                    tensor.name = layer_tensor("state", i);
                    tensors.push(tensor);
                }
                LayerState::Sparse(_) => {}
            }
        }
        Ok(CheckpointImage { position: self.now.position as u64, tensors })
    }

    /// Makes the state equal a saved path: the first `keep` tokens of the caches stay (they must be common to both),
    /// `rows` follow without gaps, and `end` is the recurrent state after the last of them. `keep` 0 without rows is an
    /// empty state; then `end` may be `None`. Tensors of `end` that are no recurrent state are ignored.
    ///
    /// # Errors
    /// Images that do not fit this model or leave gaps: nothing has been changed if the plan is wrong; after an error
    /// while writing, reset.
    pub fn restore(&mut self, b: &mut B, keep: usize, rows: &[RowsImage], end: Option<&CheckpointImage>) -> Result<()> {
        // Tensors are shared, not copied.
        let feeds = rows.iter().map(|r| Arc::new(r.clone()) as Arc<dyn RowSource>);
        let feeds: Vec<Arc<dyn RowSource>> = feeds.collect();
        self.restore_from(b, keep, &feeds, end)
    }

    /// The same with rows that may still be in files: small state first, then rows as fast as they come. On a device that
    /// copies by itself they go on coming afterwards, beside whatever is done next ([`restore_rows`](crate::backend::Images::restore_rows)).
    ///
    /// # Errors
    /// As [`Live::restore`]; rows that turn out to be unreadable, these or those of the restore before.
    pub fn restore_from(
        &mut self,
        b: &mut B,
        keep: usize,
        rows: &[Arc<dyn RowSource>],
        end: Option<&CheckpointImage>,
    ) -> Result<()> {
        let bad = |text: String| Err(ModelError::Image(text));
        if keep > self.now.position {
            return bad(format!("{keep} tokens should stay, {} are there", self.now.position));
        }
        let mut length = keep;
        for feed in rows {
            if feed.start() != length as u64 {
                return bad(format!("rows from {} do not follow {length}", feed.start()));
            }
            length += usize::try_from(feed.rows()).unwrap_or(usize::MAX - length);
        }
        if length > self.work.limit {
            return Err(ModelError::Context { needed: length, limit: self.work.limit });
        }
        match end {
            Some(end) if end.position != length as u64 => {
                return bad(format!("the state is at {}, its rows end at {length}", end.position));
            }
            None if length != 0 => return bad(format!("no recurrent state at {length}")),
            Some(_) | None => {}
        }
        let named = |tensors: &'_ [ImageTensor], name: &str, layer: usize| -> Option<usize> {
            let wanted = layer_tensor(name, layer);
            tensors.iter().position(|t| t.name == wanted)
        };
        self.now.phase = Phase::Synced;
        self.now.pending = 0;
        self.now.segment = 0;
        self.work.last_prefill = None;
        // Rows still in flight would be written over those of this path.
        b.sync_rows(keep)?;
        for layer in &mut self.now.layers {
            if let LayerState::Sparse(cache) = layer {
                b.own_rows(cache, &self.work.sparse_spec, keep)?;
            }
        }
        self.reserve(b, length)?;
        let mut caches = Vec::new();
        for (i, layer) in self.now.layers.iter_mut().enumerate() {
            match layer {
                LayerState::Sparse(cache) => caches.push((i, cache)),
                LayerState::Lightning(state) => {
                    let image = match end {
                        None => None,
                        Some(end) => match named(&end.tensors, "state", i).and_then(|at| end.tensors.get(at)) {
                            Some(tensor) => Some(tensor),
                            None if length == 0 => None,
                            None => {
                                return bad(format!("it has no `{}`", layer_tensor("state", i)));
                            }
                        },
                    };
                    b.write_state(state, &self.work.lightning_spec, image)?;
                }
            }
        }
        if !rows.is_empty() {
            b.restore_rows(&mut caches, &self.work.sparse_spec, rows)?;
        }
        b.seek(length)?;
        self.now.position = length;
        // A pass that failed may have left some.
        self.reset_mass(b)
    }

    /// Empties the state. Also the way out after a device error.
    ///
    /// # Errors
    /// The device.
    pub fn reset(&mut self, b: &mut B) -> Result<()> {
        self.restore(b, 0, &[], None)
    }
}
