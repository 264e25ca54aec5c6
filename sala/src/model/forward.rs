//! Packed weights and the forward pass: the one definition of the model, generic over the backend. [`load`] loads the
//! weights.
//!
//! Owns the order of operations of docs/model.md §3-5. The backend's step owns positions and the contents of caches,
//! and no code here depends on the kind of backend. Everything in [`Model::run`] may be captured: it allocates nothing
//! and reads nothing back, unless a probe does, and probes are never used inside a captured step.

mod load;

use crate::backend::{Backend, HeadRows, Mlp, NextOp, Pass, Result as BackendResult, internal};
use crate::core::spec::ModelSpec;

use super::parts::{Layers, MixBufs, Workspace};

struct Layer<B: Backend> {
    /// Its number among the layers of its kind.
    nth: usize,
    input_norm: B::Vector,
    /// q, k, v and gate, stacked. `[projection_width, hidden]`
    qkv: B::Matrix,
    mixer: MixerWeights<B>,
    /// `[hidden, heads·head_dim]`
    out: B::Matrix,
    post_norm: B::Vector,
    /// Gate and up. `[2·intermediate, hidden]`
    gate_up: B::Matrix,
    /// `[hidden, intermediate]`
    down: B::Matrix,
}

enum MixerWeights<B: Backend> {
    Sparse,
    Lightning { q_norm: Option<B::Vector>, k_norm: Option<B::Vector>, output_norm: Option<B::Vector> },
}

pub struct Model<B: Backend> {
    spec: ModelSpec,
    /// `[vocab, hidden]`; a draft head reads it too.
    pub(super) embed: B::Matrix,
    layers: Vec<Layer<B>>,
    norm: B::Vector,
    /// `[vocab, hidden]`; `None` where the embedding table is the head.
    head: Option<B::Matrix>,
}

pub enum Seen<'a, B: Backend> {
    /// The scaled embedding. `[rows, hidden]`
    Embedding(&'a B::Buf),
    /// A mixer's output before norm, gate and projection `[rows, heads·head_dim]`, and the fused projection with its
    /// gate.
    Mixer { layer: usize, output: &'a B::Buf, projection: &'a B::Buf },
    /// Blocks chosen by a sparse layer, before it attends to them: a probe may change the choice.
    Selection { layer: usize, selection: &'a B::Selection },
    /// The residual stream between a layer's mixer and its MLP. `[rows, hidden]`
    Between { layer: usize, hidden: &'a B::Buf },
    /// The input of the MLP's last matrix. `[rows, intermediate]`
    Middle { layer: usize, mid: &'a B::Buf },
    /// The residual stream after a layer. `[rows, hidden]`
    Hidden { layer: usize, hidden: &'a B::Buf },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Everything, up to the residual stream after the last layer.
    Output,
    /// The layers' state and the inputs of a draft head: the last layer stops after that.
    State,
}

pub type Probe<'p, B> = dyn FnMut(&mut B, Seen<'_, B>) -> BackendResult<()> + 'p;

impl<B: Backend> Model<B> {
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// `[vocab, hidden]`
    pub fn head(&self) -> &B::Matrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// Bytes of weights that a decode step reads: all matrices except an embedding table that is not the head; of that
    /// it reads one row.
    pub fn read_bytes(&self, b: &B) -> u64 {
        let bytes = |m: &B::Matrix| b.parts(m).iter().map(|part| part.2 as u64).sum::<u64>();
        let layer = |l: &Layer<B>| bytes(&l.qkv) + bytes(&l.out) + bytes(&l.gate_up) + bytes(&l.down);
        self.layers.iter().map(layer).sum::<u64>() + bytes(self.head())
    }

    /// Binds the sequences' states to the device for the next verify pass, layer by layer.
    pub(super) fn bind(&self, b: &mut B, sequences: &mut [&mut Layers<B>]) -> BackendResult<()> {
        for (i, w) in self.layers.iter().enumerate() {
            match &w.mixer {
                MixerWeights::Sparse => b.bind_caches(i, &mut caches_of(sequences, w.nth)?)?,
                MixerWeights::Lightning { .. } => b.bind_states(i, &mut states_of(sequences, w.nth)?)?,
            }
        }
        Ok(())
    }

    /// Embedding and all layers over the pass's tokens. The backend has the number of rows of each sequence.
    pub(super) fn run(
        &self,
        b: &mut B,
        work: &mut Workspace<B>,
        sequences: &mut [&mut Layers<B>],
        pass: Pass,
        wanted: Wanted,
        probe: Option<&mut Probe<'_, B>>,
    ) -> BackendResult<()> {
        let watched = probe.is_some();
        let mut ignore = |_: &mut B, _: Seen<'_, B>| Ok(());
        let probe: &mut Probe<'_, B> = match probe {
            Some(probe) => probe,
            None => &mut ignore,
        };
        let (eps, scale) = (self.spec.eps, self.spec.residual_scale);
        let Workspace { h, mid, aux_hidden, sparse_spec, sparse, lightning, .. } = work;
        // The norm before each layer, and before the head.
        let entry = |layer: usize| self.layers.get(layer).map_or(&self.norm, |w| &w.input_norm);
        b.hint_next_op(NextOp::Norm(entry(0)));
        b.embed(h, &self.embed, self.spec.scale_emb, pass)?;
        probe(b, Seen::Embedding(h))?;
        // Rows after the last layer serve logits alone, unless a draft head reads them.
        let stop_in = match wanted {
            Wanted::Output => None,
            Wanted::State => self.layers.len().checked_sub(1),
        };
        let stop_in = stop_in.filter(|last| aux_hidden.as_ref().is_none_or(|aux| !aux.layers.contains(last)));
        for (i, w) in self.layers.iter().enumerate() {
            match &w.mixer {
                MixerWeights::Sparse => {
                    let mut caches = caches_of(sequences, w.nth)?;
                    let Some((MixBufs { x, o }, selection)) = sparse.as_mut() else {
                        return Err(internal("forward", "a sparse layer without its buffers"));
                    };
                    if stop_in == Some(i) {
                        let kept = Some(sparse_spec.kv_columns());
                        b.norm_linear(x, h, &w.input_norm, eps, &w.qkv, kept, pass)?;
                        b.append_kv(&mut caches, x, sparse_spec, pass)?;
                        break;
                    }
                    b.norm_linear(x, h, &w.input_norm, eps, &w.qkv, None, pass)?;
                    b.append_kv(&mut caches, x, sparse_spec, pass)?;
                    let caches: Vec<&B::Cache> = caches.into_iter().map(|cache| &*cache).collect();
                    b.select_blocks(selection, x, &caches, sparse_spec, pass)?;
                    probe(b, Seen::Selection { layer: i, selection })?;
                    b.hint_next_op(NextOp::Gate { norm: None, columns: sparse_spec.gate_columns() });
                    b.attend(o, x, selection, &caches, sparse_spec, pass)?;
                    probe(b, Seen::Mixer { layer: i, output: o, projection: x })?;
                    b.hint_next_op(NextOp::Norm(&w.post_norm));
                    b.gate_output(h, o, None, eps, x, sparse_spec.gate_columns(), &w.out, scale, pass)?;
                }
                MixerWeights::Lightning { q_norm, k_norm, output_norm } => {
                    let mut states = states_of(sequences, w.nth)?;
                    let Some(MixBufs { x, o }) = lightning.as_mut() else {
                        return Err(internal("forward", "a lightning layer without its buffers"));
                    };
                    let spec = &self.spec.lightning;
                    b.norm_linear(x, h, &w.input_norm, eps, &w.qkv, None, pass)?;
                    b.hint_next_op(NextOp::Gate { norm: output_norm.as_ref(), columns: spec.gate_columns() });
                    b.lightning(o, x, q_norm.as_ref(), k_norm.as_ref(), &mut states, spec, eps, pass)?;
                    if stop_in == Some(i) {
                        break;
                    }
                    probe(b, Seen::Mixer { layer: i, output: o, projection: x })?;
                    b.hint_next_op(NextOp::Norm(&w.post_norm));
                    b.gate_output(h, o, output_norm.as_ref(), eps, x, spec.gate_columns(), &w.out, scale, pass)?;
                }
            }
            probe(b, Seen::Between { layer: i, hidden: h })?;
            b.hint_next_op(NextOp::Norm(entry(i + 1)));
            if watched {
                b.norm_gate_up(mid, h, &w.post_norm, eps, &w.gate_up, pass)?;
                probe(b, Seen::Middle { layer: i, mid })?;
                b.linear_add(h, mid, &w.down, scale, pass)?;
            } else {
                let mlp = Mlp { norm: &w.post_norm, eps, gate_up: &w.gate_up, down: &w.down, scale };
                b.mlp(h, mid, &mlp, pass)?;
            }
            probe(b, Seen::Hidden { layer: i, hidden: h })?;
            if let Some(aux_hidden) = aux_hidden {
                for (slot, _) in aux_hidden.layers.iter().enumerate().filter(|(_, layer)| **layer == i) {
                    b.keep_aux_hidden(&mut aux_hidden.buf, slot, h, pass)?;
                }
            }
        }
        Ok(())
    }

    /// The part of a verify pass that may be captured.
    pub(super) fn verify(
        &self,
        b: &mut B,
        work: &mut Workspace<B>,
        sequences: &mut [&mut Layers<B>],
        pass: Pass,
    ) -> BackendResult<()> {
        if let Some((_, selection)) = &mut work.sparse {
            // Clears the attention mass of the pass before.
            b.clear_mass(selection, 0..pass.rows())?;
        }
        self.run(b, work, sequences, pass, Wanted::Output, None)?;
        self.logits(b, work, HeadRows::All, pass)?;
        b.top_logits(&work.logits, self.spec.vocab, HeadRows::All, pass)
    }

    pub(super) fn logits(&self, b: &mut B, work: &mut Workspace<B>, rows: HeadRows, pass: Pass) -> BackendResult<()> {
        let s = &self.spec;
        b.head(&mut work.logits, &work.h, &self.norm, s.eps, s.logit_divisor, self.head(), rows, pass)
    }
}

fn caches_of<'a, B: Backend>(sequences: &'a mut [&mut Layers<B>], nth: usize) -> BackendResult<Vec<&'a mut B::Cache>> {
    let missing = || internal("forward", "a sparse layer has no cache");
    sequences.iter_mut().map(|layers| layers.caches.get_mut(nth).ok_or_else(missing)).collect()
}

fn states_of<'a, B: Backend>(
    sequences: &'a mut [&mut Layers<B>],
    nth: usize,
) -> BackendResult<Vec<&'a mut B::Recurrent>> {
    let missing = || internal("forward", "a lightning layer has no state");
    sequences.iter_mut().map(|layers| layers.states.get_mut(nth).ok_or_else(missing)).collect()
}
