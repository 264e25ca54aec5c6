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

pub(super) enum LayerState<B: Backend> {
    Sparse(B::Cache),
    Lightning(B::Recurrent),
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
    pub(super) layers: Vec<LayerState<B>>,
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
    pub(super) limit: usize,
    /// The current sequence's last prefill pass, if it has an output, for [`Live::prefill_logits`].
    pub(super) last_prefill: Option<Pass>,
}

impl<B: Backend> LayerState<B> {
    pub(super) fn all(b: &mut B, spec: &ModelSpec, limit: usize) -> Result<Vec<Self>> {
        let sparse = spec.mixers.iter().filter(|mixer| **mixer == Mixer::Sparse).count();
        let mut caches = match sparse {
            0 => Vec::new(),
            _ => b.caches(&spec.sparse, limit, sparse)?,
        }
        .into_iter();
        let mut layers = Vec::with_capacity(spec.mixers.len());
        for mixer in &spec.mixers {
            layers.push(match mixer {
                Mixer::Sparse => {
                    let cache = caches.next();
                    LayerState::Sparse(cache.ok_or_else(|| internal("caches", "fewer caches than sparse layers"))?)
                }
                Mixer::Lightning => LayerState::Lightning(b.recurrent(&spec.lightning)?),
            });
        }
        Ok(layers)
    }

    pub(super) fn caches(layers: &mut [Self]) -> Vec<&mut B::Cache> {
        let caches = layers.iter_mut().filter_map(|layer| match layer {
            LayerState::Sparse(cache) => Some(cache),
            LayerState::Lightning(_) => None,
        });
        caches.collect()
    }
}

/// Mixers and MLPs share these rows: only one of them runs at a time.
pub(super) struct LayerRows<B: Backend> {
    pub(super) mid: B::Buf,
    pub(super) sparse: Option<MixBufs<B>>,
    pub(super) lightning: Option<MixBufs<B>>,
}

impl<B: Backend> LayerRows<B> {
    pub(super) fn new(b: &mut B, spec: &ModelSpec) -> Result<Self> {
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
        Ok(LayerRows { mid, sparse: mixer(&sparse)?, lightning: mixer(&lightning)? })
    }
}

impl<B: Backend> Sequence<B> {
    pub(super) fn empty(layers: Vec<LayerState<B>>, sums: Option<B::Sums>, place: Place) -> Self {
        let named = Named::default();
        Sequence { layers, sums, place, position: 0, pending: 0, phase: Phase::Synced, segment: 0, first_row: 0, named }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes that a context of `length` tokens (at most the limit) needs beyond the present ones.
    pub fn wants(&self, b: &B, length: usize) -> u64 {
        self.in_caches(|cache| b.wants(cache, length))
    }

    /// The same if only the first `keep` tokens stay.
    pub fn wants_anew(&self, b: &B, keep: usize, length: usize) -> u64 {
        self.in_caches(|cache| b.wants_anew(cache, keep, length))
    }

    fn in_caches(&self, bytes: impl Fn(&B::Cache) -> u64) -> u64 {
        let caches = self.layers.iter().map(|layer| match layer {
            LayerState::Sparse(cache) => bytes(cache),
            LayerState::Lightning(_) => 0,
        });
        caches.sum()
    }

    /// The longest context up to `length` tokens that needs at most `free` more bytes; at least the present one.
    pub fn longest(&self, b: &B, length: usize, free: u64) -> usize {
        let (mut fits, mut beyond) = (self.position, length + 1);
        while fits + 1 < beyond {
            let middle = fits + (beyond - fits) / 2;
            if self.wants(b, middle) <= free { fits = middle } else { beyond = middle }
        }
        fits
    }

    /// Number of positions of the path `rows` that this sequence can lend: it has them under the same names. 0 while
    /// any of its own rows are in flight, because lending moves its memory and they would arrive at the old place.
    pub fn lends(&self, b: &B, rows: &[Arc<dyn RowSource>]) -> usize {
        let there = self.layers.iter().all(|layer| match layer {
            LayerState::Sparse(cache) => b.rows_are_there(cache),
            LayerState::Lightning(_) => true,
        });
        if there { self.named.common(rows) } else { 0 }
    }
}
