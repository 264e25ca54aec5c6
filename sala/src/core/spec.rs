//! The model's shape, read once from `config.json` and checked. Everything after load may rely on it.
//!
//! Owns the meaning of every field of `config.json` that drives the computation (`config`: its defaults and the rules
//! between fields). An unknown value is an error that names the field, never a silent default. Opens no files.

mod config;

pub(crate) use config::{Fields, MOST_COUNTED, object};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mixer {
    /// InfLLM-V2 block-sparse attention (`minicpm4`).
    Sparse,
    /// Lightning linear attention (`lightning-attn`).
    Lightning,
}

/// When a row attends densely (docs/model.md §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DenseRule {
    /// Block selection at every length: the program's default. A row never depends on later rows.
    #[default]
    AsSparse,
    /// A row at position p is dense iff `p + 1 < dense_len`.
    Token,
    /// All rows of a call are dense iff the total length after the call is below `dense_len`: the released code's
    /// rule. [`SparseSpec::for_call`] resolves it with the final length; backends see [`DenseRule::Token`], which is
    /// the same for one-token calls.
    Call,
    Always,
}

/// Which keys normalise stage-1 scores (docs/model.md §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ScoreNorm {
    /// Log-sum-exp over the level-2 compressed keys k2: the released behaviour.
    #[default]
    Level2,
    /// Over the level-1 compressed keys k1: the textbook form, for comparisons.
    Level1,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SparseSpec {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub gate: bool,
    pub block: usize,
    /// Window of a level-1 compressed key k1; k2's is four times this.
    pub kernel: usize,
    /// Stride of k1; k2's is four times this.
    pub stride: usize,
    /// Blocks at the start that are always chosen.
    pub init_blocks: usize,
    /// Blocks before the query's own that are always chosen.
    pub local_blocks: usize,
    /// Budget including forced blocks: `topk + local_blocks` of the config.
    pub topk: usize,
    /// Length from which the released code selects blocks.
    pub dense_len: usize,
    pub dense_rule: DenseRule,
    pub score_norm: ScoreNorm,
}

impl SparseSpec {
    /// Whether a row in block `own` always attends to this block: one of the first, or in the local window before its
    /// own.
    pub fn is_forced(&self, block: usize, own: usize) -> bool {
        block < self.init_blocks || block + self.local_blocks >= own
    }

    /// The rule for a call that ends at `total` tokens: resolves [`DenseRule::Call`].
    pub fn for_call(&self, total: usize) -> DenseRule {
        match self.dense_rule {
            DenseRule::Call if total < self.dense_len => DenseRule::Always,
            DenseRule::Call => DenseRule::AsSparse,
            rule @ (DenseRule::AsSparse | DenseRule::Token | DenseRule::Always) => rule,
        }
    }
    pub fn is_dense(&self, position: usize) -> bool {
        match self.dense_rule {
            DenseRule::AsSparse => false,
            DenseRule::Token | DenseRule::Call => position + 1 < self.dense_len,
            DenseRule::Always => true,
        }
    }
    pub fn level1_rows(&self, length: usize) -> usize {
        compressed(length, self.kernel, self.stride)
    }
    pub fn level2_rows(&self, length: usize) -> usize {
        compressed(length, 4 * self.kernel, 4 * self.stride)
    }
    /// Bytes of a token in one layer, in bf16: of key and value, and of compressed keys.
    pub fn token_bytes(&self) -> [usize; 2] {
        let row = self.kv_heads * self.head_dim * 2;
        [2 * row, row / self.stride + row / (4 * self.stride)]
    }
    /// Columns of the fused projection: q, k, v, gate.
    pub fn projection_width(&self) -> usize {
        let gate = if self.gate { self.heads } else { 0 };
        (self.heads + 2 * self.kv_heads + gate) * self.head_dim
    }
    pub fn kv_columns(&self) -> std::ops::Range<usize> {
        let start = self.heads * self.head_dim;
        start..start + 2 * self.kv_heads * self.head_dim
    }
    /// Columns of the gate in the fused projection; empty if there is none.
    pub fn gate_columns(&self) -> std::ops::Range<usize> {
        self.kv_columns().end..self.projection_width()
    }
}

/// Complete windows of `kernel` tokens every `stride` tokens.
fn compressed(length: usize, kernel: usize, stride: usize) -> usize {
    if length < kernel { 0 } else { (length - kernel) / stride + 1 }
}

#[derive(Clone, Debug, PartialEq)]
pub struct LightningSpec {
    pub heads: usize,
    /// Divides `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Multiplies q before it reads the state.
    pub scale: f32,
    /// RoPE base, if rotated.
    pub rope_theta: Option<f64>,
    /// RMS norm on q and k, per head.
    pub qk_norm: bool,
    /// RMS norm over all lanes of the output.
    pub output_norm: bool,
    /// Sigmoid gate on the output.
    pub output_gate: bool,
}

impl LightningSpec {
    /// Columns of the fused projection: q, k, v, z.
    pub fn projection_width(&self) -> usize {
        let gate = if self.output_gate { self.heads } else { 0 };
        (self.heads + 2 * self.kv_heads + gate) * self.head_dim
    }
    pub fn gate_columns(&self) -> std::ops::Range<usize> {
        let start = (self.heads + 2 * self.kv_heads) * self.head_dim;
        start..self.projection_width()
    }
    /// Decay rate of each head: the state is multiplied by `exp(-slope)` per token. Computed in f64.
    pub fn slopes(&self) -> Vec<f32> {
        decay_slopes(self.heads).into_iter().map(|m| m as f32).collect()
    }
}

/// ALiBi slopes of `heads` heads; for a head count that is no power of two, those of the next lower power followed by
/// every second one of the next higher.
fn decay_slopes(heads: usize) -> Vec<f64> {
    let powers = |n: usize| -> Vec<f64> { (1..=n).map(|h| (-8.0 * h as f64 / n as f64).exp2()).collect() };
    if heads.is_power_of_two() {
        return powers(heads);
    }
    let lower = heads.next_power_of_two() / 2;
    let mut slopes = powers(lower);
    slopes.extend(powers(2 * lower).into_iter().step_by(2).take(heads - lower));
    slopes
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    pub hidden: usize,
    pub intermediate: usize,
    pub mixers: Vec<Mixer>,
    pub vocab: usize,
    /// Of every RMS norm.
    pub eps: f32,
    pub sparse: SparseSpec,
    pub lightning: LightningSpec,
    pub scale_emb: f32,
    /// Multiplies every branch before it is added: `scale_depth / sqrt(layers)`.
    pub residual_scale: f32,
    /// Divides the final hidden state: `hidden / dim_model_base`.
    pub logit_divisor: f32,
    pub tie_embeddings: bool,
    pub bos: Option<u32>,
    /// Any of these ends a turn.
    pub eos: Vec<u32>,
    /// Trained length; not a limit.
    pub max_position: usize,
}

/// A `config.json` that this program cannot run. One line: field, its value, supported values.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SpecError {
    #[error("config.json cannot be read: {0}; take it from the model's own folder")]
    Json(String),
    #[error("config.json has no `{0}`; take it from the model's own folder")]
    Missing(&'static str),
    #[error("config.json: `{field}` is {found}; expected {expected}")]
    Type { field: &'static str, found: String, expected: &'static str },
    #[error("config.json: `{field}` = {found} is not supported; supported: {supported}")]
    Unsupported { field: &'static str, found: String, supported: String },
}

impl ModelSpec {
    /// Number of layers of a kind.
    pub fn layers(&self, kind: Mixer) -> usize {
        self.mixers.iter().filter(|mixer| **mixer == kind).count()
    }

    pub fn parameters(&self) -> u64 {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>() as u64).sum()
    }

    /// Every tensor of the shape, by its checkpoint name (docs/model.md §2), with its dimensions.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (h, i, s, l) = (self.hidden, self.intermediate, &self.sparse, &self.lightning);
        let mut all = vec![("model.embed_tokens.weight".to_string(), vec![self.vocab, h])];
        for (layer, mixer) in self.mixers.iter().enumerate() {
            let (q, kv, gate) = match mixer {
                Mixer::Sparse => (s.heads * s.head_dim, s.kv_heads * s.head_dim, s.gate.then_some("self_attn.o_gate")),
                Mixer::Lightning => {
                    (l.heads * l.head_dim, l.kv_heads * l.head_dim, l.output_gate.then_some("self_attn.z_proj"))
                }
            };
            let norm = |name: &'static str, wanted: bool, width: usize| {
                (*mixer == Mixer::Lightning && wanted).then(|| (name, vec![width]))
            };
            let tensors = [
                Some(("input_layernorm", vec![h])),
                norm("self_attn.o_norm", l.output_norm, q),
                norm("self_attn.q_norm", l.qk_norm, l.head_dim),
                norm("self_attn.k_norm", l.qk_norm, l.head_dim),
                Some(("self_attn.q_proj", vec![q, h])),
                Some(("self_attn.k_proj", vec![kv, h])),
                Some(("self_attn.v_proj", vec![kv, h])),
                Some(("self_attn.o_proj", vec![h, q])),
                gate.map(|gate| (gate, vec![q, h])),
                Some(("post_attention_layernorm", vec![h])),
                Some(("mlp.gate_proj", vec![i, h])),
                Some(("mlp.up_proj", vec![i, h])),
                Some(("mlp.down_proj", vec![h, i])),
            ];
            let full = |(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape);
            all.extend(tensors.into_iter().flatten().map(full));
        }
        all.push(("model.norm.weight".into(), vec![h]));
        if !self.tie_embeddings {
            all.push(("lm_head.weight".into(), vec![self.vocab, h]));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    const DEMO: &str = include_str!("../../assets/demo/config.json");

    fn with(field: &str, value: Value) -> Result<ModelSpec, SpecError> {
        let mut config: Map<String, Value> = serde_json::from_str(DEMO).unwrap();
        config.insert(field.into(), value);
        ModelSpec::from_json(&serde_json::to_string(&config).unwrap())
    }

    fn without(field: &str) -> Result<ModelSpec, SpecError> {
        let mut config: Map<String, Value> = serde_json::from_str(DEMO).unwrap();
        config.remove(field);
        ModelSpec::from_json(&serde_json::to_string(&config).unwrap())
    }

    #[test]
    fn sizes_that_nothing_could_be_made_of_are_refused() {
        for (field, value, allowed) in [
            ("hidden_size", 1u64 << 40, "1 to 1048576"),
            ("num_hidden_layers", 5_000, "1 to 4096"),
            ("head_dim", 1 << 20, "heads together"),
            ("lightning_head_dim", 1 << 20, "heads together"),
        ] {
            let error = with(field, Value::from(value)).unwrap_err().to_string();
            assert!(error.contains(field) && error.contains(allowed), "{error}");
        }
        for (field, value) in
            [("rms_norm_eps", 1e-60), ("scale_emb", 1e60), ("dim_model_base", 1e-38), ("rope_theta", 1e300)]
        {
            let error = with(field, Value::from(value)).unwrap_err().to_string();
            assert!(error.contains(field) && error.ends_with("; expected a number from 1e-15 to 1e15"), "{error}");
        }
        let error = with("vocab_size", Value::from(-3)).unwrap_err().to_string();
        assert!(error.contains("vocab_size") && error.contains("a whole number"), "{error}");
    }

    #[test]
    fn demo_config_reads_as_the_model_card_says() {
        let spec = ModelSpec::from_json(DEMO).unwrap();
        assert_eq!((spec.hidden, spec.intermediate, spec.vocab), (256, 768, 3072));
        assert_eq!(spec.layers(Mixer::Sparse), 3);
        assert_eq!((spec.sparse.topk, spec.sparse.local_blocks), (48, 16));
        assert_eq!(spec.eos, [2, 4]);
        assert!((spec.residual_scale - 1.4 / 8f32.sqrt()).abs() < 1e-7);
        assert_eq!(spec.logit_divisor, 1.0);
        assert_eq!(spec.parameters() * 2, 17_446_400);
    }

    #[test]
    fn the_base_of_rope_is_read_where_newer_exports_put_it() {
        let nested = |v: Value| with("rope_parameters", v).map(|s| s.lightning.rope_theta);
        let mut config: Map<String, Value> = serde_json::from_str(DEMO).unwrap();
        config.remove("rope_theta");
        let theta = serde_json::json!({"rope_type": "default", "rope_theta": 50_000.0});
        config.insert("rope_parameters".into(), theta.clone());
        let spec = ModelSpec::from_json(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(spec.lightning.rope_theta, Some(50_000.0));
        // The top level wins, as in the family's files.
        assert_eq!(nested(theta).unwrap(), ModelSpec::from_json(DEMO).unwrap().lightning.rope_theta);
        assert!(nested(serde_json::json!({"rope_type": "yarn"})).unwrap_err().to_string().contains("rope_type"));
        assert!(nested(7.into()).is_err());
    }

    #[test]
    fn every_spelling_of_mixer_and_dtype_is_accepted() {
        for name in ["lightning", "lightning_attn", "lightning-attn"] {
            let list: Vec<&str> = (0..8).map(|i| if i == 0 { "minicpm4" } else { name }).collect();
            assert_eq!(with("mixer_types", list.into()).unwrap().mixers[1], Mixer::Lightning);
        }
        for name in ["bfloat16", "float16", "float32"] {
            assert!(with("dtype", name.into()).is_ok() && with("torch_dtype", name.into()).is_ok());
        }
    }

    #[test]
    fn unknown_values_are_refused_by_field() {
        let named = |r: Result<ModelSpec, SpecError>| match r.unwrap_err() {
            SpecError::Unsupported { field, .. } | SpecError::Type { field, .. } | SpecError::Missing(field) => field,
            SpecError::Json(_) => "json",
        };
        assert_eq!(named(with("mixer_types", vec!["mamba"; 8].into())), "mixer_types");
        assert_eq!(named(with("mixer_types", vec!["minicpm4"; 7].into())), "mixer_types");
        assert_eq!(named(with("rope_scaling", serde_json::json!({"type": "yarn"}))), "rope_scaling");
        assert_eq!(named(with("attention_bias", true.into())), "attention_bias");
        assert_eq!(named(with("attn_use_rope", true.into())), "attn_use_rope");
        assert_eq!(named(with("lightning_scale", "2".into())), "lightning_scale");
        assert_eq!(named(with("dtype", "int4".into())), "dtype");
        assert_eq!(named(with("hidden_act", "gelu".into())), "hidden_act");
        assert_eq!(named(with("lightning_nkv", 3.into())), "lightning_nkv");
        assert_eq!(named(with("hidden_size", "256".into())), "hidden_size");
        assert_eq!(named(with("rms_norm_eps", 0.into())), "rms_norm_eps");
        assert_eq!(named(without("hidden_size")), "hidden_size");
        assert_eq!(named(ModelSpec::from_json("[]")), "json");
        let sparse = |field: &str, n: u64| with("sparse_config", serde_json::json!({ field: n }));
        assert_eq!(named(sparse("topk", 1 << 20)), "topk");
        assert_eq!(named(sparse("window_size", 1 << 20)), "topk");
        assert!(sparse("topk", 16_000).is_ok());
        assert!(with("attention_bias", true.into()).unwrap_err().to_string().contains("supported: false"));
    }

    #[test]
    fn missing_keys_take_the_released_defaults() {
        for field in ["lightning_nh", "lightning_nkv", "lightning_head_dim", "head_dim", "torch_dtype", "rope_theta"] {
            assert!(without(field).is_ok(), "{field}");
        }
        let spec = without("sparse_config").unwrap();
        assert_eq!((spec.sparse.block, spec.sparse.topk, spec.sparse.dense_len), (64, 96, 8192));
        assert_eq!(without("lightning_nkv").unwrap().lightning.kv_heads, 1);
    }

    #[test]
    fn slopes_of_odd_head_counts_interleave_the_next_power() {
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-15) && a.len() == b.len();
        assert!(close(&decay_slopes(2), &[1.0 / 16.0, 1.0 / 256.0]));
        assert!(close(&decay_slopes(3), &[1.0 / 16.0, 1.0 / 256.0, 0.25]));
        assert_eq!(decay_slopes(32)[31], 2f64.powi(-8));
    }
}
