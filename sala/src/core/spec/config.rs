//! `config.json`: every field that drives the computation, its default, and the rules between fields.

use std::fmt::Display;
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
const NUMBERS: RangeInclusive<f64> = 1e-15..=1e15;
const MOST_POSITIONS: usize = 1 << 24;

impl ModelSpec {
    /// Reads and checks the text of a `config.json`.
    pub fn from_json(text: &str) -> Result<ModelSpec, SpecError> {
        let map = object(text)?;
        let c = Fields::of(&map);
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
        let layers = c.count_in(1..=MOST_LAYERS, "num_hidden_layers", None)?;
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
            max_position: c.count_in(1..=MOST_POSITIONS, "max_position_embeddings", Some(524_288))?,
        })
    }
}

pub(crate) fn object(text: &str) -> Result<Map<String, Value>, SpecError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(SpecError::Json("it is not an object".into())),
        Err(e) => Err(SpecError::Json(e.to_string())),
    }
}

fn unsupported(field: &'static str, found: impl Display, supported: impl Into<String>) -> SpecError {
    SpecError::Unsupported { field, found: found.to_string(), supported: supported.into() }
}

fn wrong(field: &'static str, found: &Value, expected: &'static str) -> SpecError {
    SpecError::Type { field, found: found.to_string(), expected }
}

fn rule(holds: bool, field: &'static str, found: impl Display, supported: String) -> Result<(), SpecError> {
    if holds { Ok(()) } else { Err(unsupported(field, found, supported)) }
}

/// Checks that all heads together are no wider than [`MOST_COUNTED`].
fn wide(field: &'static str, heads: usize, head_dim: usize) -> Result<(), SpecError> {
    let most = format!("at most {MOST_COUNTED} for {heads} heads together");
    rule(heads * head_dim <= MOST_COUNTED, field, head_dim, most)
}

/// The fields of a JSON object, and where it has none those of a second one. `null` counts as absent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fields<'a> {
    map: Option<&'a Map<String, Value>>,
    under: Option<&'a Map<String, Value>>,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { map: Some(map), under: None }
    }

    pub(crate) fn over(self, under: Option<&'a Map<String, Value>>) -> Fields<'a> {
        Fields { under, ..self }
    }

    pub(crate) fn present(&self, field: &str) -> Option<&'a Value> {
        let maps = [self.map, self.under].into_iter().flatten();
        maps.filter_map(|map| map.get(field)).find(|v| !v.is_null())
    }

    /// The fields of the object at `field`; none if it is absent.
    pub(crate) fn object(&self, field: &'static str) -> Result<Fields<'a>, SpecError> {
        let Some(v) = self.present(field) else { return Ok(Fields::default()) };
        v.as_object().map(Fields::of).ok_or_else(|| wrong(field, v, "an object"))
    }

    fn only(&self, field: &'static str, allowed: &[&str]) -> Result<(), SpecError> {
        match self.present(field) {
            Some(v) if !v.as_str().is_some_and(|s| allowed.contains(&s)) => {
                Err(unsupported(field, v, allowed.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn absent_or_false(&self, field: &'static str) -> Result<(), SpecError> {
        match self.present(field) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(v) => Err(unsupported(field, v, "false")),
        }
    }

    pub(crate) fn flag(&self, field: &'static str, default: bool) -> Result<bool, SpecError> {
        let Some(v) = self.present(field) else { return Ok(default) };
        v.as_bool().ok_or_else(|| wrong(field, v, "true or false"))
    }

    pub(crate) fn count(&self, field: &'static str, default: Option<usize>) -> Result<usize, SpecError> {
        self.count_in(1..=MOST_COUNTED, field, default)
    }

    fn count_in(
        &self,
        range: RangeInclusive<usize>,
        field: &'static str,
        default: Option<usize>,
    ) -> Result<usize, SpecError> {
        let Some(v) = self.present(field) else { return default.ok_or(SpecError::Missing(field)) };
        match v.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if range.contains(&n) => Ok(n),
            Some(_) => Err(unsupported(field, v, format!("{} to {}", range.start(), range.end()))),
            None => Err(wrong(field, v, "a whole number")),
        }
    }

    pub(crate) fn number(&self, field: &'static str, default: f64) -> Result<f64, SpecError> {
        let Some(v) = self.present(field) else { return Ok(default) };
        v.as_f64().filter(|n| NUMBERS.contains(n)).ok_or_else(|| wrong(field, v, "a number from 1e-15 to 1e15"))
    }

    fn ids(&self, field: &'static str) -> Result<Vec<u32>, SpecError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Ids {
            One(u32),
            Many(Vec<u32>),
        }
        let Some(v) = self.present(field) else { return Ok(Vec::new()) };
        match Ids::deserialize(v) {
            Ok(Ids::One(id)) => Ok(vec![id]),
            Ok(Ids::Many(ids)) => Ok(ids),
            Err(_) => Err(wrong(field, v, "a token id or a list of them")),
        }
    }

    fn mixers(&self, layers: usize) -> Result<Vec<Mixer>, SpecError> {
        const FIELD: &str = "mixer_types";
        let list = self.present(FIELD).ok_or(SpecError::Missing(FIELD))?;
        let items = list.as_array().ok_or_else(|| wrong(FIELD, list, "a list of names"))?;
        let mixer = |v: &Value| match v.as_str() {
            Some("minicpm4") => Ok(Mixer::Sparse),
            Some("lightning-attn" | "lightning_attn" | "lightning") => Ok(Mixer::Lightning),
            _ => Err(unsupported(FIELD, v, "minicpm4, lightning-attn, lightning_attn, lightning")),
        };
        let mixers = items.iter().map(mixer).collect::<Result<Vec<_>, _>>()?;
        let one_per_layer = format!("one per layer (num_hidden_layers = {layers})");
        rule(mixers.len() == layers, FIELD, format_args!("{} entries", mixers.len()), one_per_layer)?;
        Ok(mixers)
    }

    fn sparse(&self, heads: usize, kv_heads: usize, head_dim: usize) -> Result<SparseSpec, SpecError> {
        let c = self.object("sparse_config")?;
        c.absent_or_false("use_nope")?;
        let block = c.count("block_size", Some(64))?;
        let kernel = c.count("kernel_size", Some(32))?;
        let stride = c.count("kernel_stride", Some(16))?;
        let window = c.count("window_size", Some(2048))?;
        let init_blocks = c.count_in(0..=MOST_COUNTED, "init_blocks", Some(1))?;
        let dense_len = c.count_in(0..=MOST_COUNTED, "dense_len", Some(8192))?;
        let (local_blocks, chosen) = (window / block, c.count("topk", Some(64))?);
        let topk = chosen + local_blocks;
        let divides = |field, found: usize, of: usize, whole: &str| {
            rule(of.is_multiple_of(found), field, found, format!("a divisor of {whole} = {of}"))
        };
        let multiple = |field, found: usize, of: usize, part: &str| {
            rule(found.is_multiple_of(of), field, found, format!("a multiple of {part} = {of}"))
        };
        divides("num_key_value_heads", kv_heads, heads, "num_attention_heads")?;
        divides("kernel_stride", stride, block, "block_size")?;
        multiple("kernel_size", kernel, stride, "kernel_stride")?;
        multiple("window_size", window, block, "block_size")?;
        // Buffers are as large as the budget; more blocks than a million tokens have are useless.
        let most = format!("{BUDGET} blocks, topk and window_size / block_size together (they are {topk})");
        rule(topk <= BUDGET, "topk", chosen, most)?;
        rule(chosen > init_blocks, "topk", chosen, format!("at least init_blocks + 1 = {}", init_blocks + 1))?;
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
        let nested = self.object("rope_parameters")?;
        nested.only("rope_type", &["default"])?;
        self.number("rope_theta", nested.number("rope_theta", 10_000.0)?)
    }

    fn lightning(&self, heads: usize, kv_heads: usize, head_dim: usize) -> Result<LightningSpec, SpecError> {
        let heads = self.count("lightning_nh", Some(heads))?;
        let kv_heads = self.count("lightning_nkv", Some(kv_heads))?;
        let head_dim = self.count("lightning_head_dim", Some(head_dim))?;
        wide("lightning_head_dim", heads, head_dim)?;
        let divisor = format!("a divisor of lightning_nh = {heads}");
        rule(heads.is_multiple_of(kv_heads), "lightning_nkv", kv_heads, divisor)?;
        let rotated = self.flag("lightning_use_rope", true)?;
        let even = "an even number (lanes are rotated in pairs)".into();
        rule(!rotated || head_dim.is_multiple_of(2), "lightning_head_dim", head_dim, even)?;
        let theta = self.theta()?;
        let root = (head_dim as f64).powf(-0.5);
        let scale = match self.present("lightning_scale") {
            None => root,
            Some(v) => match v.as_str() {
                Some("1/sqrt(d)") => root,
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
