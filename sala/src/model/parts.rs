//! The parts of a live state: the state of each layer, one conversation's sequence, and the workspace of passes.
//! [`super::state`] owns the order of their use.

use std::sync::Arc;

use crate::backend::{Backend, BackendError, BufKind, Pass, Place, internal};
use crate::core::spec::{LightningSpec, Mixer, ModelSpec, SparseSpec};
use crate::engine::protocol::RowSource;

use super::Result;
use super::named::Named;

pub(super) struct MixBufs<B: Backend> {
    /// `[rows, projection_width]`
    pub(super) x: B::Buf,
    /// `[rows, heads·head_dim]`
    pub(super) o: B::Buf,
}

/// The state of all layers of a sequence, by kind, in the order of the layers.
pub(super) struct Layers<B: Backend> {
    pub(super) caches: Vec<B::Cache>,
    pub(super) states: Vec<B::Recurrent>,
}

pub(super) struct AuxHidden<B: Backend> {
    pub(super) layers: Vec<usize>,
    /// `[rows, layers.len()·hidden]`
    pub(super) buf: B::Buf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Synced,
    /// A pass ran and has not been advanced.
    Ran(Pass),
}

pub struct Sequence<B: Backend> {
    pub(super) layers: Layers<B>,
    /// Most tokens.
    pub(super) limit: usize,
    pub(super) sums: Option<B::Sums>,
    pub(super) place: Place,
    pub(super) position: usize,
    /// Accepted rows of the last verify pass that the recurrent states have not absorbed yet.
    pub(super) pending: usize,
    pub(super) phase: Phase,
    /// Given tokens since the segment began; 0 once it has ended.
    pub(super) segment: usize,
    pub(super) first_row: usize,
    pub(super) named: Named,
}

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
    pub(super) sparse_spec: SparseSpec,
    pub(super) lightning_spec: LightningSpec,
    /// Numbers of the sparse and of the lightning layers.
    pub(super) sparse_layers: Vec<usize>,
    pub(super) lightning_layers: Vec<usize>,
    /// The current sequence's last prefill pass, if it has an output, for [`Live::prefill_logits`].
    pub(super) last_prefill: Option<Pass>,
}

pub(super) fn layers_of(spec: &ModelSpec, kind: Mixer) -> Vec<usize> {
    (0..).zip(&spec.mixers).filter(|(_, mixer)| **mixer == kind).map(|(layer, _)| layer).collect()
}

impl<B: Backend> Layers<B> {
    pub(super) fn new(b: &mut B, spec: &ModelSpec, limit: usize) -> Result<Self> {
        let caches = match spec.layers(Mixer::Sparse) {
            0 => Vec::new(),
            sparse => b.caches(&spec.sparse, limit, sparse)?,
        };
        let states = layers_of(spec, Mixer::Lightning).into_iter().map(|_| b.recurrent(&spec.lightning));
        Ok(Layers { caches, states: states.collect::<Result<_, _>>()? })
    }

    pub(super) fn caches(&mut self) -> Vec<&mut B::Cache> {
        self.caches.iter_mut().collect()
    }
}

impl<B: Backend> Workspace<B> {
    pub(super) fn new(b: &mut B, spec: &ModelSpec, limit: usize, aux_layers: &[usize]) -> Result<Self> {
        // Mixers and MLPs share rows: only one of them runs at a time.
        let (s, l) = (&spec.sparse, &spec.lightning);
        let mixer = |kind: Mixer, projection: usize, out: usize| match spec.mixers.contains(&kind) {
            true => vec![(projection, BufKind::Activation), (out, BufKind::Wide)],
            false => Vec::new(),
        };
        let sparse = mixer(Mixer::Sparse, s.projection_width(), s.heads * s.head_dim);
        let lightning = mixer(Mixer::Lightning, l.projection_width(), l.heads * l.head_dim);
        let mlp = [(spec.intermediate, BufKind::Activation)];
        let mut made = b.alternating_bufs(&[&mlp, &sparse, &lightning])?.into_iter().flatten();
        let missing = || internal("alternating_bufs", "fewer buffers than were asked for");
        let mid = made.next().ok_or_else(missing)?;
        let mut mixer = |wanted: &[(usize, BufKind)]| match wanted {
            [] => Ok(None),
            _ => {
                let (x, o) = (made.next().ok_or_else(missing)?, made.next().ok_or_else(missing)?);
                Ok::<_, BackendError>(Some(MixBufs { x, o }))
            }
        };
        let (sparse, lightning) = (mixer(&sparse)?, mixer(&lightning)?);
        let sparse = match sparse {
            Some(bufs) => Some((bufs, b.selection(s, limit)?)),
            None => None,
        };
        let aux_hidden = match aux_layers {
            [] => None,
            layers => {
                let buf = b.buf(layers.len() * spec.hidden, BufKind::Activation)?;
                Some(AuxHidden { layers: layers.to_vec(), buf })
            }
        };
        b.seek(0)?;
        Ok(Workspace {
            h: b.buf(spec.hidden, BufKind::Residual)?,
            mid,
            logits: b.buf(spec.vocab, BufKind::Logits)?,
            sparse,
            lightning,
            aux_hidden,
            sparse_spec: s.clone(),
            lightning_spec: l.clone(),
            sparse_layers: layers_of(spec, Mixer::Sparse),
            lightning_layers: layers_of(spec, Mixer::Lightning),
            last_prefill: None,
        })
    }
}

impl<B: Backend> Sequence<B> {
    pub(super) fn empty(layers: Layers<B>, limit: usize, sums: Option<B::Sums>, place: Place) -> Self {
        Sequence {
            layers,
            limit,
            sums,
            place,
            position: 0,
            pending: 0,
            phase: Phase::Synced,
            segment: 0,
            first_row: 0,
            named: Named::default(),
        }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes that a context of `length` tokens (at most the limit) needs beyond the present ones.
    pub fn wants(&self, b: &B, length: usize) -> u64 {
        self.wants_anew(b, usize::MAX, length)
    }

    /// The same if only the first `keep` tokens stay.
    pub fn wants_anew(&self, b: &B, keep: usize, length: usize) -> u64 {
        self.layers.caches.iter().map(|cache| b.wants_anew(cache, keep, length.min(self.limit))).sum()
    }

    /// The longest context up to `length` tokens that needs at most `free` more bytes; at least the present one.
    pub fn longest(&self, b: &B, length: usize, free: u64) -> usize {
        let (mut fits, mut beyond) = (self.position, length.min(self.limit) + 1);
        while fits + 1 < beyond {
            let middle = fits + (beyond - fits) / 2;
            if self.wants(b, middle) <= free { fits = middle } else { beyond = middle }
        }
        fits
    }

    /// Number of positions of the path `rows` that this sequence can lend: it has them under the same names. 0 while
    /// any of its own rows are in flight, because lending moves its memory and they would arrive at the old place.
    pub fn lends(&self, b: &B, rows: &[Arc<dyn RowSource>]) -> usize {
        let there = self.layers.caches.iter().all(|cache| b.rows_are_there(cache));
        if there { self.named.common(rows) } else { 0 }
    }
}
