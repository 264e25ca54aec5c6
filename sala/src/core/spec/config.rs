//! `config.json`: every field that drives the computation, its default, and the rules between fields.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{DenseRule, LightningSpec, Mixer, ModelSpec, ScoreNorm, SparseSpec, SpecError};

/// Most blocks that one token attends to.
const BUDGET: usize = 1 << 14;
/// The largest count of anything, heads times their width included, and of layers, so that the sum of all weights
/// stays below 2^64.
pub(crate) const MOST_COUNTED: usize = 1 << 20;
const MOST_LAYERS: usize = 1 << 12;
/// Factors and divisors: results in f32 stay finite, and none is rounded to 0.
pub(crate) const NUMBERS: RangeInclusive<f64> = 1e-15..=1e15;
pub(crate) const NUMBERS_ARE: &str = "a number from 1e-15 to 1e15";
const MOST_POSITIONS: usize = 1 << 24;

impl ModelSpec {
    /// Reads and checks the text of a `config.json`.
    ///
    /// # Errors
    /// [`SpecError`] names the first field that is missing, of the wrong type, or not supported.
    pub fn from_json(text: &str) -> Result<ModelSpec, SpecError> {
        let value: Value = serde_json::from_str(text).map_err(|e| SpecError::Json(e.to_string()))?;
        let Value::Object(map) = value else {
            return Err(SpecError::Json("it is not an object".into()));
        };
        let c = Fields { map: &map };
        c.only("model_type", &["minicpm_sala"])?;
        c.only("hidden_act", &["silu"])?;
        c.only("torch_dtype", &["bfloat16", "float16", "float32"])?;
        c.only("dtype", &["bfloat16", "float16", "float32"])?;
        c.absent_or_false("attention_bias")?;
        c.absent_or_false("attn_use_rope")?;
        if let Some(v) = c.present("rope_scaling") {
            return Err(unsupported("rope_scaling", v, "null"));
        }

        let hidden = c.count("hidden_size", None)?;
        let heads = c.count("num_attention_heads", None)?;
        let kv_heads = c.count("num_key_value_heads", Some(heads))?;
        let head_dim = c.count("head_dim", Some((hidden / heads).max(1)))?;
        wide("head_dim", heads, head_dim)?;
        let layers = c.count_to(MOST_LAYERS, "num_hidden_layers", None)?;
        let mixers = c.mixers(layers)?;
        let sparse = c.sparse(heads, kv_heads, head_dim)?;
        let lightning = c.lightning(heads, kv_heads, head_dim)?;
        let scale_depth = c.number("scale_depth", 1.4)?;
        let dim_model_base = c.number("dim_model_base", 256.0)?;
        Ok(ModelSpec {
            hidden,
            intermediate: c.count("intermediate_size", None)?,
            vocab: c.count("vocab_size", None)?,
            eps: c.number("rms_norm_eps", 1e-6)? as f32,
            sparse,
            lightning,
            scale_emb: c.number("scale_emb", 12.0)? as f32,
            // The released code divides by the number of layers and never reads `mup_denominator`.
            residual_scale: (scale_depth / (mixers.len() as f64).sqrt()) as f32,
            mixers,
            logit_divisor: (hidden as f64 / dim_model_base) as f32,
            tie_embeddings: c.flag("tie_word_embeddings", false)?,
            bos: c.ids("bos_token_id")?.first().copied(),
            eos: c.ids("eos_token_id")?,
            max_position: c.count_to(MOST_POSITIONS, "max_position_embeddings", Some(524_288))?,
        })
    }
}

struct Fields<'a> {
    map: &'a Map<String, Value>,
}

fn unsupported(field: &'static str, found: &Value, supported: impl Into<String>) -> SpecError {
    SpecError::Unsupported { field, found: found.to_string(), supported: supported.into() }
}

fn wrong(field: &'static str, found: &Value, expected: &'static str) -> SpecError {
    SpecError::Type { field, found: found.to_string(), expected }
}

/// Checks that all heads together are no wider than [`MOST_COUNTED`].
fn wide(field: &'static str, heads: usize, head_dim: usize) -> Result<(), SpecError> {
    if heads * head_dim <= MOST_COUNTED {
        return Ok(());
    }
    let supported = format!("at most {MOST_COUNTED} for {heads} heads together");
    Err(SpecError::Unsupported { field, found: head_dim.to_string(), supported })
}

impl<'a> Fields<'a> {
    fn present(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|v| !v.is_null())
    }

    fn only(&self, field: &'static str, allowed: &[&str]) -> Result<(), SpecError> {
        match self.present(field) {
            None => Ok(()),
            Some(v) if v.as_str().is_some_and(|s| allowed.contains(&s)) => Ok(()),
            Some(v) => Err(unsupported(field, v, allowed.join(", "))),
        }
    }

    fn absent_or_false(&self, field: &'static str) -> Result<(), SpecError> {
        match self.present(field) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(v) => Err(unsupported(field, v, "false")),
        }
    }

    fn flag(&self, field: &'static str, default: bool) -> Result<bool, SpecError> {
        match self.present(field) {
            None => Ok(default),
            Some(v) => v.as_bool().ok_or_else(|| wrong(field, v, "true or false")),
        }
    }

    fn count(&self, field: &'static str, default: Option<usize>) -> Result<usize, SpecError> {
        self.count_to(MOST_COUNTED, field, default)
    }

    fn count_to(&self, most: usize, field: &'static str, default: Option<usize>) -> Result<usize, SpecError> {
        let Some(v) = self.present(field) else { return default.ok_or(SpecError::Missing(field)) };
        match v.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (1..=most).contains(&n) => Ok(n),
            Some(_) => Err(unsupported(field, v, format!("1 to {most}"))),
            None => Err(wrong(field, v, "a whole number")),
        }
    }

    fn number(&self, field: &'static str, default: f64) -> Result<f64, SpecError> {
        match self.present(field) {
            None => Ok(default),
            Some(v) => match v.as_f64() {
                Some(n) if NUMBERS.contains(&n) => Ok(n),
                _ => Err(wrong(field, v, NUMBERS_ARE)),
            },
        }
    }

    fn ids(&self, field: &'static str) -> Result<Vec<u32>, SpecError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Ids {
            One(u32),
            Many(Vec<u32>),
        }
        match self.present(field) {
            None => Ok(Vec::new()),
            Some(v) => match Ids::deserialize(v) {
                Ok(Ids::One(id)) => Ok(vec![id]),
                Ok(Ids::Many(ids)) => Ok(ids),
                Err(_) => Err(wrong(field, v, "a token id or a list of them")),
            },
        }
    }

    fn mixers(&self, layers: usize) -> Result<Vec<Mixer>, SpecError> {
        let list = self.present("mixer_types").ok_or(SpecError::Missing("mixer_types"))?;
        let items = list.as_array().ok_or_else(|| wrong("mixer_types", list, "a list of names"))?;
        let mixers = items
            .iter()
            .map(|v| match v.as_str() {
                Some("minicpm4") => Ok(Mixer::Sparse),
                Some("lightning-attn" | "lightning_attn" | "lightning") => Ok(Mixer::Lightning),
                _ => Err(unsupported("mixer_types", v, "minicpm4, lightning-attn, lightning_attn, lightning")),
            })
            .collect::<Result<Vec<_>, _>>()?;
        if mixers.len() != layers {
            return Err(SpecError::Unsupported {
                field: "mixer_types",
                found: format!("{} entries", mixers.len()),
                supported: format!("one per layer (num_hidden_layers = {layers})"),
            });
        }
        Ok(mixers)
    }

    fn sparse(&self, heads: usize, kv_heads: usize, head_dim: usize) -> Result<SparseSpec, SpecError> {
        let empty = Map::new();
        let inner = match self.present("sparse_config") {
            None => &empty,
            Some(Value::Object(m)) => m,
            Some(v) => return Err(wrong("sparse_config", v, "an object")),
        };
        let c = Fields { map: inner };
        c.absent_or_false("use_nope")?;
        let block = c.count("block_size", Some(64))?;
        let kernel = c.count("kernel_size", Some(32))?;
        let stride = c.count("kernel_stride", Some(16))?;
        let window = c.count("window_size", Some(2048))?;
        let init_blocks = match c.present("init_blocks") {
            Some(v) if v.as_u64() == Some(0) => 0,
            _ => c.count("init_blocks", Some(1))?,
        };
        let dense_len = match c.present("dense_len") {
            Some(v) if v.as_u64() == Some(0) => 0,
            _ => c.count("dense_len", Some(8192))?,
        };
        let local_blocks = window / block;
        let topk = c.count("topk", Some(64))? + local_blocks;
        let rule = |ok: bool, field: &'static str, found: usize, supported: String| {
            if ok { Ok(()) } else { Err(SpecError::Unsupported { field, found: found.to_string(), supported }) }
        };
        rule(
            heads.is_multiple_of(kv_heads),
            "num_key_value_heads",
            kv_heads,
            format!("a divisor of num_attention_heads = {heads}"),
        )?;
        rule(block.is_multiple_of(stride), "kernel_stride", stride, format!("a divisor of block_size = {block}"))?;
        rule(kernel.is_multiple_of(stride), "kernel_size", kernel, format!("a multiple of kernel_stride = {stride}"))?;
        rule(window.is_multiple_of(block), "window_size", window, format!("a multiple of block_size = {block}"))?;
        let forced = init_blocks + local_blocks + 1;
        // Buffers are as large as the budget; more blocks than a million tokens have are useless.
        let most = |n: usize| format!("{BUDGET} blocks, topk and window_size / block_size together (they are {n})");
        rule(topk <= BUDGET, "topk", topk - local_blocks, most(topk))?;
        rule(topk >= forced, "topk", topk - local_blocks, format!("at least init_blocks + 1 = {}", init_blocks + 1))?;
        Ok(SparseSpec {
            heads,
            kv_heads,
            head_dim,
            gate: self.flag("attn_use_output_gate", true)?,
            block,
            kernel,
            stride,
            init_blocks,
            local_blocks,
            topk,
            dense_len,
            dense_rule: DenseRule::default(),
            score_norm: ScoreNorm::default(),
        })
    }

    /// RoPE's base: at the top level, or where newer exports have it.
    fn theta(&self) -> Result<f64, SpecError> {
        let nested = match self.present("rope_parameters") {
            None => 10_000.0,
            Some(Value::Object(map)) => {
                let inner = Fields { map };
                inner.only("rope_type", &["default"])?;
                inner.number("rope_theta", 10_000.0)?
            }
            Some(other) => return Err(unsupported("rope_parameters", other, "an object")),
        };
        self.number("rope_theta", nested)
    }

    fn lightning(&self, heads: usize, kv_heads: usize, head_dim: usize) -> Result<LightningSpec, SpecError> {
        let heads = self.count("lightning_nh", Some(heads))?;
        let kv_heads = self.count("lightning_nkv", Some(kv_heads))?;
        let head_dim = self.count("lightning_head_dim", Some(head_dim))?;
        wide("lightning_head_dim", heads, head_dim)?;
        if !heads.is_multiple_of(kv_heads) {
            let supported = format!("a divisor of lightning_nh = {heads}");
            return Err(SpecError::Unsupported { field: "lightning_nkv", found: kv_heads.to_string(), supported });
        }
        let rotated = self.flag("lightning_use_rope", true)?;
        if rotated && !head_dim.is_multiple_of(2) {
            let supported = "an even number (lanes are rotated in pairs)".into();
            return Err(SpecError::Unsupported { field: "lightning_head_dim", found: head_dim.to_string(), supported });
        }
        let theta = self.theta()?;
        let scale = match self.present("lightning_scale") {
            None => (head_dim as f64).powf(-0.5),
            Some(v) => match v.as_str() {
                Some("1/sqrt(d)") => (head_dim as f64).powf(-0.5),
                Some("1/d") => 1.0 / head_dim as f64,
                // The released code treats every other string as 1.
                Some("1" | "none") => 1.0,
                _ => return Err(unsupported("lightning_scale", v, "1/sqrt(d), 1/d, 1")),
            },
        };
        Ok(LightningSpec {
            heads,
            kv_heads,
            head_dim,
            scale: scale as f32,
            rope_theta: rotated.then_some(theta),
            qk_norm: self.flag("qk_norm", true)?,
            output_norm: self.flag("use_output_norm", true)?,
            output_gate: self.flag("use_output_gate", true)?,
        })
    }
}
