//! Loads the weights of a checkpoint onto a device: their names, order and batches.

use super::{Layer, MixerWeights, Model};
use crate::backend::{Backend, Wanted, WeightView, internal, sections};
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::protocol::Precision;
use crate::model::weights::Source;
use crate::model::{Checkpoint, LoadedTensor, Result};

impl<B: Backend> Model<B> {
    /// Packs all weights of a checkpoint; checks every name and shape first. `progress` receives the done share, 0 to
    /// 1.
    pub fn load(b: &mut B, checkpoint: &Checkpoint, progress: impl FnMut(f64)) -> Result<Model<B>> {
        let spec = checkpoint.spec().clone();
        checkpoint.check()?;
        b.check(&spec, checkpoint.prefill)?;
        let mut loader = Loader { b, checkpoint, requested: 0, done: 0, total: spec.parameters(), progress };
        let h = spec.hidden;
        // Synthetic tables: the scaled embedding has deviation 1, logits about 2.
        let embed = loader.matrix("model.embed_tokens", spec.vocab, h, 1.0 / spec.scale_emb)?;
        let layers = loader.layers(&spec)?;
        let norm = loader.vector("model.norm", h)?;
        // The number of a synthetic weight counts norms too, in order.
        loader.requested += 1;
        let head_std = 2.0 * spec.logit_divisor / (h as f32).sqrt();
        let head = if spec.tie_embeddings { None } else { Some(loader.matrix("lm_head", spec.vocab, h, head_std)?) };
        Ok(Model { spec, embed, layers, norm, head })
    }
}

/// Bytes of layers in one batch for the device: its threads wait for each other once a batch.
const TOGETHER_BYTES: usize = 1 << 30;

struct Request {
    from: Origin,
    inner: usize,
    std: f32,
    /// Index among all weights, the seed of a synthetic one.
    number: u64,
}

/// The parts of a matrix, names without `.weight`.
enum Origin {
    /// (name, rows) from the top down.
    Stack(Vec<(String, usize)>),
    /// Gate and up, and the rows of either.
    GateUp([String; 2], usize),
}

impl Request {
    fn parameters(&self) -> usize {
        self.inner
            * match &self.from {
                Origin::Stack(parts) => parts.iter().map(|(_, rows)| rows).sum(),
                Origin::GateUp(_, rows) => 2 * rows,
            }
    }
}

struct LayerRequests {
    layer: usize,
    mixer: Mixer,
    /// Of [`Layer`]: qkv, out, gate_up, down.
    matrices: [Request; 4],
}

struct Loader<'b, 'c, B: Backend, F: FnMut(f64)> {
    b: &'b mut B,
    checkpoint: &'c Checkpoint,
    requested: u64,
    done: u64,
    total: u64,
    progress: F,
}

impl<'c, B: Backend, F: FnMut(f64)> Loader<'_, 'c, B, F> {
    fn count(&mut self, parameters: usize) {
        self.done += parameters as u64;
        (self.progress)(self.done as f64 / self.total.max(1) as f64);
    }

    fn request(&mut self, from: Origin, inner: usize, std: f32) -> Request {
        self.requested += 1;
        Request { from, inner, std, number: self.requested - 1 }
    }

    fn matrix(&mut self, name: &str, rows: usize, inner: usize, std: f32) -> Result<B::Matrix> {
        let request = self.request(Origin::Stack(vec![(name.into(), rows)]), inner, std);
        let parts = self.read(&request)?;
        let made = self.give(&[&request], &[parts])?.pop();
        made.ok_or_else(|| internal("load", "fewer weights than were asked for").into())
    }

    fn read(&self, request: &Request) -> Result<Vec<LoadedTensor<'c>>> {
        match (&self.checkpoint.source, &request.from) {
            (Source::Synthetic(..), _) => Ok(Vec::new()),
            (Source::Tensors(_), Origin::Stack(parts)) => {
                parts.iter().map(|(name, rows)| self.checkpoint.weight(name, &[*rows, request.inner])).collect()
            }
            (Source::Tensors(_), Origin::GateUp([gate, up], rows)) => {
                Ok(self.checkpoint.pair([gate, up], &[*rows, request.inner])?.into())
            }
        }
    }

    /// Makes matrices of these parts, in order; synthetic ones from their numbers.
    fn give(&mut self, requests: &[&Request], loaded: &[Vec<LoadedTensor<'_>>]) -> Result<Vec<B::Matrix>> {
        let made = match &self.checkpoint.source {
            Source::Synthetic(base, _) => {
                requests.iter().map(|request| self.made_up(request, *base)).collect::<Result<Vec<_>>>()?
            }
            Source::Tensors(_) => {
                let views: Vec<Vec<WeightView<'_>>> =
                    loaded.iter().map(|parts| parts.iter().map(LoadedTensor::view).collect()).collect();
                let wanted =
                    requests.iter().zip(&views).map(|(request, views)| match (&request.from, views.as_slice()) {
                        (Origin::GateUp(..), [gate, up]) => Wanted::GateUp([*gate, *up]),
                        (_, parts) => Wanted::Stack(parts),
                    });
                self.b.matrices(&wanted.collect::<Vec<_>>())?
            }
        };
        self.count(requests.iter().map(|request| request.parameters()).sum());
        Ok(made)
    }

    fn made_up(&mut self, request: &Request, base: u64) -> Result<B::Matrix> {
        let Request { from, inner, std, number } = request;
        let form = |name: &str, rows: usize| self.checkpoint.form(self.checkpoint.recipe, name, &[rows, *inner]);
        let seed = base.wrapping_mul(1_000_003).wrapping_add(*number);
        Ok(match from {
            Origin::Stack(parts) => {
                let forms: Vec<_> = parts.iter().map(|(name, rows)| (*rows, form(name, *rows))).collect();
                self.b.random_matrix(&forms, *inner, *std, seed)?
            }
            Origin::GateUp([gate, _], rows) => self.b.random_gate_up(*rows, *inner, *std, seed, form(gate, *rows))?,
        })
    }

    fn vector(&mut self, name: &str, n: usize) -> Result<B::Vector> {
        let vector = match &self.checkpoint.source {
            Source::Synthetic(..) => self.b.ones(n)?,
            Source::Tensors(tensors) => self.b.vector(tensors.get(&format!("{name}.weight"), &[n])?.view())?,
        };
        self.count(n);
        Ok(vector)
    }

    /// All layers in order, in batches. A batch bounds the memory for unpacked weights.
    fn layers(&mut self, spec: &ModelSpec) -> Result<Vec<Layer<B>>> {
        let requests: Vec<LayerRequests> =
            spec.mixers.iter().enumerate().map(|(i, m)| self.requests(i, *m, spec)).collect();
        let (mut layers, mut first) = (Vec::with_capacity(requests.len()), 0);
        let (mut loaded, mut bytes) = (Vec::new(), 0);
        for (i, layer) in requests.iter().enumerate() {
            for request in &layer.matrices {
                let parts = self.read(request)?;
                bytes += parts.iter().map(|part| part.view().data.len()).sum::<usize>();
                loaded.push(parts);
            }
            if bytes < TOGETHER_BYTES && i + 1 < requests.len() {
                continue;
            }
            let some = requests.get(first..=i).unwrap_or_default();
            let all: Vec<&Request> = some.iter().flat_map(|layer| &layer.matrices).collect();
            let mut made = self.give(&all, &loaded)?.into_iter();
            for requests in some {
                let mut next = || made.next().ok_or_else(|| internal("load", "fewer weights than were asked for"));
                let matrices = [next()?, next()?, next()?, next()?];
                layers.push(self.layer(requests, matrices, spec)?);
            }
            loaded.clear();
            (first, bytes) = (i + 1, 0);
        }
        Ok(layers)
    }

    fn requests(&mut self, layer: usize, mixer: Mixer, spec: &ModelSpec) -> LayerRequests {
        let h = spec.hidden;
        let deviation = |inner: usize| (inner as f32).sqrt().recip();
        let attn = |name: &str| format!("model.layers.{layer}.self_attn.{name}");
        let mlp = |name: &str| format!("model.layers.{layer}.mlp.{name}");
        let (heads, kv_heads, head_dim, gate, norms) = match mixer {
            Mixer::Sparse => {
                let s = &spec.sparse;
                (s.heads, s.kv_heads, s.head_dim, s.gate.then(|| attn("o_gate")), 0)
            }
            Mixer::Lightning => {
                let l = &spec.lightning;
                let norms = 2 * u64::from(l.qk_norm) + u64::from(l.output_norm);
                (l.heads, l.kv_heads, l.head_dim, l.output_gate.then(|| attn("z_proj")), norms)
            }
        };
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let mut parts = vec![(attn("q_proj"), q), (attn("k_proj"), kv), (attn("v_proj"), kv)];
        parts.extend(gate.map(|gate| (gate, q)));
        // The number of a synthetic weight counts norms too, in order.
        self.requested += 1;
        let qkv = self.request(Origin::Stack(parts), h, deviation(h));
        self.requested += norms;
        let out = self.request(Origin::Stack(vec![(attn("o_proj"), h)]), q, deviation(q));
        self.requested += 1;
        let gate_up = Origin::GateUp([mlp("gate_proj"), mlp("up_proj")], spec.intermediate);
        let gate_up = self.request(gate_up, h, deviation(h));
        let down = Origin::Stack(vec![(mlp("down_proj"), h)]);
        let down = self.request(down, spec.intermediate, deviation(spec.intermediate));
        LayerRequests { layer, mixer, matrices: [qkv, out, gate_up, down] }
    }

    fn layer(&mut self, requests: &LayerRequests, matrices: [B::Matrix; 4], spec: &ModelSpec) -> Result<Layer<B>> {
        let LayerRequests { layer, mixer, .. } = requests;
        let [mut qkv, mut out, mut gate_up, mut down] = matrices;
        let (h, name) = (spec.hidden, |name: &str| format!("model.layers.{layer}.{name}"));
        let input_norm = self.vector(&name("input_layernorm"), h)?;
        let (prefill, kind) = (self.checkpoint.prefill, *mixer);
        let mixer = match mixer {
            Mixer::Sparse => MixerWeights::Sparse,
            Mixer::Lightning => {
                let l = &spec.lightning;
                let mut norm = |wanted: bool, norm: &str, n: usize| -> Result<Option<B::Vector>> {
                    if wanted { Ok(Some(self.vector(&name(norm), n)?)) } else { Ok(None) }
                };
                MixerWeights::Lightning {
                    q_norm: norm(l.qk_norm, "self_attn.q_norm", l.head_dim)?,
                    k_norm: norm(l.qk_norm, "self_attn.k_norm", l.head_dim)?,
                    output_norm: norm(l.output_norm, "self_attn.o_norm", l.heads * l.head_dim)?,
                }
            }
        };
        let post_norm = self.vector(&name("post_attention_layernorm"), h)?;
        self.b.read_in(&mut qkv, &sections::of_projection(spec, kind, prefill))?;
        if prefill == Precision::Fp8 {
            for matrix in [&mut out, &mut gate_up, &mut down] {
                self.b.read_in_fp8(matrix)?;
            }
        }
        let nth = spec.mixers.iter().take(*layer).filter(|mixer| **mixer == kind).count();
        Ok(Layer { nth, input_norm, qkv, mixer, out, post_norm, gate_up, down })
    }
}

impl Checkpoint {
    /// Checks, before loading, that every tensor of the shape exists with the right shape and type.
    pub fn check(&self) -> Result<()> {
        if let Source::Tensors(tensors) = &self.source {
            for (name, shape) in self.spec().tensors() {
                tensors.check(&name, &shape)?;
            }
        }
        self.check_packed_alike()
    }
}
