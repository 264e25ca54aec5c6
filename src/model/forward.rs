//! Packed weights and the forward pass: the one definition of the model, generic over the backend.
//!
//! Owns the order of operations of docs/model.md §3-5. Knows neither positions nor caches' contents (the backend's step
//! does) and never asks which backend it has. Everything in [`Model::run`] may be captured: it allocates nothing and
//! reads nothing back, unless a probe does, and probes are never used inside a captured step.

use crate::backend::{Backend, Follows, HeadRows, Pass, Result as BackendResult, internal};
use crate::protocol::engine::Precision;
use crate::spec::{Mixer, ModelSpec};

use super::parts::{LayerState, MixBufs, Workspace};
use super::weights::Source;
use super::{Checkpoint, ModelError, Result};

/// Norm, mixer projections and MLP of one layer.
struct Layer<B: Backend> {
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

/// Weights in a backend's layout, loaded once, never changed.
pub struct Model<B: Backend> {
    spec: ModelSpec,
    /// `[vocab, hidden]`
    embed: B::Matrix,
    layers: Vec<Layer<B>>,
    norm: B::Vector,
    /// `[vocab, hidden]`; `None` where the embedding table is the head.
    head: Option<B::Matrix>,
}

/// What a probe may look at during a pass. For golden data and calibration.
pub(super) enum Seen<'a, B: Backend> {
    /// The scaled embedding. `[rows, hidden]`
    Embedding(&'a B::Buf),
    /// A mixer's output before norm, gate and projection `[rows, heads·head_dim]`, and the fused projection that has its gate.
    Mixer { layer: usize, output: &'a B::Buf, projection: &'a B::Buf },
    /// Blocks chosen by a sparse layer, before it attends to them: a probe may choose otherwise.
    Selection { layer: usize, selection: &'a B::Selection },
    /// The residual stream between a layer's mixer and its MLP. `[rows, hidden]`
    Between { layer: usize, hidden: &'a B::Buf },
    /// What the MLP's last matrix is multiplied with. `[rows, intermediate]`
    Middle { layer: usize, mid: &'a B::Buf },
    /// The residual stream after a layer. `[rows, hidden]`
    Hidden { layer: usize, hidden: &'a B::Buf },
}

/// Called with everything a pass computes.
pub(super) type Probe<'p, B> = dyn FnMut(&mut B, Seen<'_, B>) -> BackendResult<()> + 'p;

impl<B: Backend> Model<B> {
    /// Packs all weights of a checkpoint, checking every name and shape first. `progress` hears the done share, 0 to 1.
    ///
    /// # Errors
    /// The first tensor that is missing or wrong, by name; or the device.
    pub fn load(b: &mut B, checkpoint: &Checkpoint, progress: impl FnMut(f64)) -> Result<Model<B>> {
        let spec = checkpoint.spec().clone();
        checkpoint.check()?;
        b.check(&spec, checkpoint.prefill())?;
        let mut loader = Loader { b, checkpoint, made: 0, done: 0, total: spec.parameters(), progress };
        let h = spec.hidden;
        // Synthetic tables: the scaled embedding has deviation 1, logits about 2.
        let embed = loader.matrix(&["model.embed_tokens"], &[spec.vocab], h, 1.0 / spec.scale_emb)?;
        let mut layers = Vec::with_capacity(spec.mixers.len());
        for (i, mixer) in spec.mixers.iter().enumerate() {
            layers.push(loader.layer(i, *mixer, &spec)?);
        }
        let norm = loader.vector("model.norm", h)?;
        let head_std = 2.0 * spec.logit_divisor / (h as f32).sqrt();
        let head =
            if spec.tie_embeddings { None } else { Some(loader.matrix(&["lm_head"], &[spec.vocab], h, head_std)?) };
        Ok(Model { spec, embed, layers, norm, head })
    }

    /// The model's shape.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The embedding table `[vocab, hidden]`; a draft head reads it too.
    pub fn embed(&self) -> &B::Matrix {
        &self.embed
    }

    /// The output head `[vocab, hidden]`.
    pub fn head(&self) -> &B::Matrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// Bytes of weights that a decode step reads: all matrices but an embedding table that is no head, of which it reads a row.
    pub fn read_bytes(&self, b: &B) -> u64 {
        let bytes = |m: &B::Matrix| b.parts(m).iter().map(|part| part.2 as u64).sum::<u64>();
        let layer = |l: &Layer<B>| bytes(&l.qkv) + bytes(&l.out) + bytes(&l.gate_up) + bytes(&l.down);
        self.layers.iter().map(layer).sum::<u64>() + bytes(self.head())
    }

    /// Makes the states of the sequences of the coming verify pass known to the device, layer by layer.
    pub(super) fn bind(&self, b: &mut B, sequences: &mut [&mut [LayerState<B>]]) -> BackendResult<()> {
        for (i, w) in self.layers.iter().enumerate() {
            match &w.mixer {
                MixerWeights::Sparse => b.bind_caches(i, &mut caches_of(sequences, i)?)?,
                MixerWeights::Lightning { .. } => b.bind_states(i, &mut states_of(sequences, i)?)?,
            }
        }
        Ok(())
    }

    /// Embedding and all layers over the pass's tokens, of which the sequences have as many rows each as the backend was told.
    pub(super) fn run(
        &self,
        b: &mut B,
        work: &mut Workspace<B>,
        sequences: &mut [&mut [LayerState<B>]],
        pass: Pass,
        probe: Option<&mut Probe<'_, B>>,
    ) -> BackendResult<()> {
        let mut ignore = |_: &mut B, _: Seen<'_, B>| Ok(());
        let probe: &mut Probe<'_, B> = match probe {
            Some(probe) => probe,
            None => &mut ignore,
        };
        let (eps, scale) = (self.spec.eps, self.spec.residual_scale);
        let Workspace { h, mid, aux_hidden, sparse_spec, sparse, lightning, .. } = work;
        // The norm in front of each layer, and of the head.
        let entry = |layer: usize| self.layers.get(layer).map_or(&self.norm, |w| &w.input_norm);
        b.coming(Follows::Norm(entry(0)));
        b.embed(h, &self.embed, self.spec.scale_emb, pass)?;
        probe(b, Seen::Embedding(h))?;
        for (i, w) in self.layers.iter().enumerate() {
            match &w.mixer {
                MixerWeights::Sparse => {
                    let mut caches = caches_of(sequences, i)?;
                    let Some((MixBufs { x, o }, selection)) = sparse.as_mut() else {
                        return Err(internal("forward", "a sparse layer without its buffers"));
                    };
                    b.norm_linear(x, h, &w.input_norm, eps, &w.qkv, pass)?;
                    b.append_rows(&mut caches, x, sparse_spec, pass)?;
                    let caches: Vec<&B::Cache> = caches.into_iter().map(|cache| &*cache).collect();
                    b.select_rows(selection, x, &caches, sparse_spec, pass)?;
                    probe(b, Seen::Selection { layer: i, selection })?;
                    b.coming(Follows::Gate { norm: None, columns: sparse_spec.gate_columns() });
                    b.attend_rows(o, x, selection, &caches, sparse_spec, pass)?;
                    probe(b, Seen::Mixer { layer: i, output: o, projection: x })?;
                    b.coming(Follows::Norm(&w.post_norm));
                    b.gate_output(h, o, None, eps, x, sparse_spec.gate_columns(), &w.out, scale, pass)?;
                }
                MixerWeights::Lightning { q_norm, k_norm, output_norm } => {
                    let mut states = states_of(sequences, i)?;
                    let Some(MixBufs { x, o }) = lightning.as_mut() else {
                        return Err(internal("forward", "a lightning layer without its buffers"));
                    };
                    let spec = &self.spec.lightning;
                    b.norm_linear(x, h, &w.input_norm, eps, &w.qkv, pass)?;
                    b.coming(Follows::Gate { norm: output_norm.as_ref(), columns: spec.gate_columns() });
                    b.lightning_rows(o, x, q_norm.as_ref(), k_norm.as_ref(), &mut states, spec, eps, pass)?;
                    probe(b, Seen::Mixer { layer: i, output: o, projection: x })?;
                    b.coming(Follows::Norm(&w.post_norm));
                    b.gate_output(h, o, output_norm.as_ref(), eps, x, spec.gate_columns(), &w.out, scale, pass)?;
                }
            }
            probe(b, Seen::Between { layer: i, hidden: h })?;
            b.norm_gate_up(mid, h, &w.post_norm, eps, &w.gate_up, pass)?;
            probe(b, Seen::Middle { layer: i, mid })?;
            b.coming(Follows::Norm(entry(i + 1)));
            b.linear_add(h, mid, &w.down, scale, pass)?;
            probe(b, Seen::Hidden { layer: i, hidden: h })?;
            if let Some(aux_hidden) = aux_hidden {
                for (slot, _) in aux_hidden.layers.iter().enumerate().filter(|(_, layer)| **layer == i) {
                    b.keep_aux_hidden(&mut aux_hidden.buf, slot, h, pass)?;
                }
            }
        }
        Ok(())
    }

    /// Logits of the chosen rows of the last pass.
    pub(super) fn logits(&self, b: &mut B, work: &mut Workspace<B>, rows: HeadRows, pass: Pass) -> BackendResult<()> {
        let s = &self.spec;
        b.head(&mut work.logits, &work.h, &self.norm, s.eps, s.logit_divisor, self.head(), rows, pass)
    }
}

/// The caches of layer `layer`.
fn caches_of<'a, B: Backend>(
    sequences: &'a mut [&mut [LayerState<B>]],
    layer: usize,
) -> BackendResult<Vec<&'a mut B::Cache>> {
    let caches = sequences.iter_mut().map(|layers| match layers.get_mut(layer) {
        Some(LayerState::Sparse(cache)) => Ok(cache),
        Some(LayerState::Lightning(_)) | None => Err(internal("forward", "a sparse layer has no cache")),
    });
    caches.collect()
}

/// The states of layer `layer`.
fn states_of<'a, B: Backend>(
    sequences: &'a mut [&mut [LayerState<B>]],
    layer: usize,
) -> BackendResult<Vec<&'a mut B::Recurrent>> {
    let states = sequences.iter_mut().map(|layers| match layers.get_mut(layer) {
        Some(LayerState::Lightning(state)) => Ok(state),
        Some(LayerState::Sparse(_)) | None => Err(internal("forward", "a lightning layer has no state")),
    });
    states.collect()
}

/// Reads or makes one packed weight after the other and reports progress.
struct Loader<'a, B: Backend, F: FnMut(f64)> {
    b: &'a mut B,
    checkpoint: &'a Checkpoint,
    /// Weights made so far; gives each synthetic weight its own seed.
    made: u64,
    /// Parameters done and in all.
    done: u64,
    total: u64,
    progress: F,
}

impl<B: Backend, F: FnMut(f64)> Loader<'_, B, F> {
    fn count(&mut self, parameters: usize) {
        self.made += 1;
        self.done += parameters as u64;
        (self.progress)(self.done as f64 / self.total.max(1) as f64);
    }

    fn seed(&self, base: u64) -> u64 {
        base.wrapping_mul(1_000_003).wrapping_add(self.made)
    }

    /// Stacks the named weights `[outs[i], inner]`.
    fn matrix(&mut self, names: &[&str], outs: &[usize], inner: usize, std: f32) -> Result<B::Matrix> {
        let out: usize = outs.iter().sum();
        let matrix = match &self.checkpoint.source {
            Source::Synthetic(base, _) => {
                let form = |name: &str| self.checkpoint.synthetic_form(self.checkpoint.recipe(), name, inner);
                let forms: Vec<_> = names.iter().zip(outs).map(|(name, out)| (*out, form(name))).collect();
                self.b.random_matrix(&forms, inner, std, self.seed(*base))?
            }
            Source::Tensors(_) => {
                let loaded = |(name, out): (&&str, &usize)| self.checkpoint.weight(name, &[*out, inner]);
                let parts = names.iter().zip(outs).map(loaded).collect::<Result<Vec<_>>>()?;
                let views: Vec<_> = parts.iter().map(|p| p.view()).collect();
                self.b.matrix(&views)?
            }
        };
        self.count(out * inner);
        Ok(matrix)
    }

    fn gate_up(&mut self, prefix: &str, out: usize, inner: usize) -> Result<B::Matrix> {
        let (gate, up) = (format!("{prefix}.gate_proj"), format!("{prefix}.up_proj"));
        let matrix = match &self.checkpoint.source {
            Source::Synthetic(base, _) => {
                let form = self.checkpoint.synthetic_form(self.checkpoint.recipe(), &gate, inner);
                self.b.random_gate_up(out, inner, (inner as f32).sqrt().recip(), self.seed(*base), form)?
            }
            Source::Tensors(_) => {
                let [gate, up] = self.checkpoint.pair([&gate, &up], &[out, inner])?;
                self.b.gate_up_matrix(gate.view(), up.view())?
            }
        };
        self.count(2 * out * inner);
        Ok(matrix)
    }

    fn vector(&mut self, name: &str, n: usize) -> Result<B::Vector> {
        let vector = match &self.checkpoint.source {
            Source::Synthetic(..) => self.b.ones(n)?,
            Source::Tensors(tensors) => self.b.vector(tensors.get(&format!("{name}.weight"), &[n])?.view())?,
        };
        self.count(n);
        Ok(vector)
    }

    fn layer(&mut self, i: usize, mixer: Mixer, spec: &ModelSpec) -> Result<Layer<B>> {
        let h = spec.hidden;
        let std = (h as f32).sqrt().recip();
        let attn = |name: &str| format!("model.layers.{i}.self_attn.{name}");
        let input_norm = self.vector(&format!("model.layers.{i}.input_layernorm"), h)?;
        let (heads, kv_heads, head_dim, gate) = match mixer {
            Mixer::Sparse => {
                let s = &spec.sparse;
                (s.heads, s.kv_heads, s.head_dim, s.gate.then(|| attn("o_gate")))
            }
            Mixer::Lightning => {
                let l = &spec.lightning;
                (l.heads, l.kv_heads, l.head_dim, l.output_gate.then(|| attn("z_proj")))
            }
        };
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let (mut names, mut outs) = (vec![attn("q_proj"), attn("k_proj"), attn("v_proj")], vec![q, kv, kv]);
        if let Some(gate) = gate {
            names.push(gate);
            outs.push(q);
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut qkv = self.matrix(&names, &outs, h, std)?;
        let mixer = match mixer {
            Mixer::Sparse => MixerWeights::Sparse,
            Mixer::Lightning => {
                let l = &spec.lightning;
                let mut norm = |wanted: bool, name: &str, n: usize| -> Result<Option<B::Vector>> {
                    if wanted { Ok(Some(self.vector(&attn(name), n)?)) } else { Ok(None) }
                };
                MixerWeights::Lightning {
                    q_norm: norm(l.qk_norm, "q_norm", head_dim)?,
                    k_norm: norm(l.qk_norm, "k_norm", head_dim)?,
                    output_norm: norm(l.output_norm, "o_norm", q)?,
                }
            }
        };
        let mut out = self.matrix(&[&attn("o_proj")], &[h], q, (q as f32).sqrt().recip())?;
        let post_norm = self.vector(&format!("model.layers.{i}.post_attention_layernorm"), h)?;
        let mlp = format!("model.layers.{i}.mlp");
        let mut gate_up = self.gate_up(&mlp, spec.intermediate, h)?;
        let down_std = (spec.intermediate as f32).sqrt().recip();
        let mut down = self.matrix(&[&format!("{mlp}.down_proj")], &[h], spec.intermediate, down_std)?;
        if self.checkpoint.prefill() == Precision::Fp8 {
            // Not what sparse layers keep: their keys choose blocks, and keys and values are read for the rest of a conversation. It
            // is 3 % of the work.
            if matches!(mixer, MixerWeights::Lightning { .. }) {
                self.b.read_in_fp8(&mut qkv);
            }
            [&mut out, &mut gate_up, &mut down].into_iter().for_each(|w| self.b.read_in_fp8(w));
        }
        Ok(Layer { input_norm, qkv, mixer, out, post_norm, gate_up, down })
    }
}

impl Checkpoint {
    /// Checks that every tensor the shape asks for is there with the right shape and type, before anything is loaded.
    ///
    /// # Errors
    /// The first one that is not, by name.
    pub fn check(&self) -> Result<(), ModelError> {
        if let Source::Tensors(tensors) = &self.source {
            for (name, shape) in Checkpoint::expected_tensors(self.spec()) {
                tensors.check(&name, &shape)?;
            }
        }
        self.check_packed_alike()
    }
}
