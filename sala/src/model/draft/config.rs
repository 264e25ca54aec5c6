//! `config.json` of an EAGLE-3 head, in every published form (docs/speculative.md §1.1), and the check that the head
//! fits its model.

use serde_json::{Map, Value};

use crate::backend::draft::{DraftResidual, DraftShape};
use crate::core::spec::{MOST_COUNTED, ModelSpec, NUMBERS, NUMBERS_ARE};
use crate::model::Recipe;

use super::{DraftError, Result};

/// Whether the residual is the normed stream. An absent key means false, except in heads of `speculators`: there it
/// means true, as in vLLM.
const RESIDUAL: &str = "norm_before_residual";

/// Settings of a head beyond its own configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftOptions {
    /// Positions a draft looks back. Heads are trained on 2k to 4k tokens; larger rotations are outside their
    /// training.
    pub window: usize,
    pub rope_theta: Option<f64>,
    /// Factor of the shared embedding: 1, unless the head was trained on the scaled one.
    pub embed_scale: f32,
    pub recipe: Recipe,
}

impl Default for DraftOptions {
    fn default() -> Self {
        DraftOptions { window: 4096, rope_theta: None, embed_scale: 1.0, recipe: Recipe::Stored }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct DraftConfig {
    pub shape: DraftShape,
    pub vocab: usize,
    pub draft_vocab: usize,
    /// Layers with output streams that the head reads, in the order of concatenation.
    pub aux_layers: Vec<usize>,
    pub target_hidden: usize,
    pub eps: f32,
    pub residual: DraftResidual,
    pub fc_norm: FcNorm,
    /// The next draft step starts from the normed stream (EAGLE-3.1), not from the un-normed stream (EAGLE-3).
    pub norm_output: bool,
    pub embed_scale: f32,
    pub logit_scale: f32,
    pub tied: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FcNorm {
    Off,
    /// Each auxiliary hidden state separately (`fc_norm`).
    EachState,
    /// All of them as one row (`norm_before_fc`).
    WholeRow,
}

impl std::fmt::Debug for FcNorm {
    /// Prints the flag of earlier versions: the configuration in this form is part of a head's fingerprint, so saved
    /// windows stay valid.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FcNorm::Off => "false",
            FcNorm::EachState => "true",
            FcNorm::WholeRow => "whole row",
        })
    }
}

fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(DraftError::Refused(reason.into()))
}

/// Top-level keys, with those of `transformer_layer_config` where the top level has none (`speculators` exports).
struct Keys {
    top: Map<String, Value>,
    nested: Map<String, Value>,
}

impl Keys {
    fn new(top: Map<String, Value>) -> Keys {
        let nested = match top.get("transformer_layer_config") {
            Some(Value::Object(map)) => map.clone(),
            _ => Map::new(),
        };
        Keys { top, nested }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        let found = |m: &'_ Map<String, Value>| m.get(key).is_some_and(|v| !v.is_null());
        if found(&self.top) { self.top.get(key) } else { self.nested.get(key).filter(|v| !v.is_null()) }
    }

    fn size(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => {
                match v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=MOST_COUNTED).contains(n)) {
                    Some(n) => Ok(Some(n)),
                    None => refuse(format!(
                        "config.json: `{key}` is {v}, a whole number from 1 to {MOST_COUNTED} is needed"
                    )),
                }
            }
        }
    }

    fn required(&self, key: &str) -> Result<usize> {
        match self.size(key)? {
            Some(n) => Ok(n),
            None => refuse(format!("config.json has no `{key}`; it is not an EAGLE-3 head's")),
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => refuse(format!("config.json: `{key}` is {v}, true or false is needed")),
        }
    }

    fn eagle(&self) -> Keys {
        let top = self.get("eagle_config").and_then(Value::as_object).cloned().unwrap_or_default();
        Keys { top, nested: Map::new() }
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => match v.as_f64().filter(|x| NUMBERS.contains(x)) {
                Some(x) => Ok(x),
                None => refuse(format!("config.json: `{key}` is {v}, {NUMBERS_ARE} is needed")),
            },
        }
    }
}

impl DraftConfig {
    /// The layers that published heads read when their configuration names none: low, middle, high.
    pub fn default_aux_layers(layers: usize) -> Vec<usize> {
        let last = layers.saturating_sub(1);
        [1, (layers / 2).saturating_sub(1), layers.saturating_sub(4)].map(|layer| layer.min(last)).to_vec()
    }

    /// A sentence about an ambiguous configuration, where published code disagrees on the meaning.
    pub fn assumed(text: &str) -> Option<String> {
        let Ok(Value::Object(top)) = serde_json::from_str(text) else { return None };
        let keys = Keys::new(top);
        (of_speculators(&keys) && keys.get(RESIDUAL).is_none()).then(|| {
            format!("its config.json does not say `{RESIDUAL}`: true is taken, as vLLM does of speculators' heads")
        })
    }

    /// Reads `config.json` of a head that drafts for `model`.
    ///
    /// # Errors
    /// [`DraftError::Refused`] with the reason if the head is of another kind or does not fit the model.
    pub fn from_json(text: &str, model: &ModelSpec, options: &DraftOptions) -> Result<DraftConfig> {
        let top = match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(map)) => map,
            Ok(_) => return refuse("config.json is not an object"),
            Err(e) => return refuse(format!("config.json is damaged: {e}")),
        };
        let keys = Keys::new(top);
        check_kind(&keys)?;

        let hidden = keys.required("hidden_size")?;
        let heads = keys.required("num_attention_heads")?;
        let kv_heads = keys.size("num_key_value_heads")?.unwrap_or(heads);
        let head_dim = match keys.size("head_dim")? {
            Some(d) => d,
            None => hidden / heads,
        };
        if heads % kv_heads != 0 || head_dim == 0 || head_dim % 2 != 0 || heads * head_dim > MOST_COUNTED {
            return refuse(format!(
                "{heads} query heads, {kv_heads} key heads and a head width of {head_dim} do not go together"
            ));
        }
        let vocab = keys.required("vocab_size")?;
        if vocab != model.vocab {
            return refuse(format!("it was made for a vocabulary of {vocab} tokens, the model has {}", model.vocab));
        }
        let draft_vocab = keys.size("draft_vocab_size")?.unwrap_or(vocab);
        if draft_vocab > vocab {
            return refuse(format!("its draft vocabulary of {draft_vocab} is larger than its vocabulary of {vocab}"));
        }
        let target_hidden = keys.size("target_hidden_size")?.unwrap_or(hidden);
        if target_hidden != model.hidden {
            return refuse(format!("it reads streams {target_hidden} wide, the model's are {}", model.hidden));
        }
        if options.window == 0 {
            return refuse("the draft window must hold at least one position");
        }
        Ok(DraftConfig {
            shape: DraftShape {
                hidden,
                intermediate: keys.required("intermediate_size")?,
                heads,
                kv_heads,
                head_dim,
                window: options.window,
                inv_freq: inv_freq(&keys, head_dim, options)?,
            },
            vocab,
            draft_vocab,
            aux_layers: aux_layers(&keys, model.mixers.len())?,
            target_hidden,
            eps: keys.number("rms_norm_eps", 1e-6)? as f32,
            residual: match keys.flag(RESIDUAL, of_speculators(&keys))? {
                true => DraftResidual::Normed,
                false => DraftResidual::Stream,
            },
            fc_norm: fc_norm(&keys)?,
            norm_output: keys.flag("norm_output", false)?,
            embed_scale: options.embed_scale,
            logit_scale: keys.number("logit_scale", 1.0)? as f32,
            tied: keys.flag("tie_word_embeddings", false)?,
        })
    }
}

/// Refuses any head but a one-layer EAGLE-3 head of the form computed here.
fn check_kind(keys: &Keys) -> Result<()> {
    if let Some(names) = keys.top.get("architectures").and_then(Value::as_array) {
        let known =
            |n: &Value| n.as_str().is_some_and(|n| n.to_lowercase().contains("eagle3") || n == "LlamaForCausalLM");
        if !names.is_empty() && !names.iter().any(known) {
            return refuse(format!("architecture {} is not an EAGLE-3 head", Value::Array(names.clone())));
        }
    }
    if let Some(kind) =
        keys.top.get("speculators_model_type").filter(|kind| !kind.is_null() && kind.as_str() != Some("eagle3"))
    {
        return refuse(format!("config.json: `speculators_model_type` is {kind}, not \"eagle3\""));
    }
    if let Some(layers) = keys.size("num_hidden_layers")?.filter(|n| *n != 1) {
        return refuse(format!("it has {layers} layers; only one-layer heads are supported"));
    }
    for key in ["attention_bias", "mlp_bias"] {
        if keys.flag(key, false)? {
            return refuse(format!("`{key}` is set; heads with biases are not supported"));
        }
    }
    if let Some(act) = keys.get("hidden_act").filter(|a| a.as_str() != Some("silu")) {
        return refuse(format!("its activation is {act}; only silu is supported"));
    }
    match keys.eagle().get("use_aux_hidden_state") {
        Some(Value::Bool(false)) => refuse("it reads a single stream (EAGLE-1); an EAGLE-3 head is needed"),
        _ => Ok(()),
    }
}

fn fc_norm(keys: &Keys) -> Result<FcNorm> {
    let eagle = keys.eagle();
    let set = |key: &str| -> Result<bool> { Ok(keys.flag(key, false)? || eagle.flag(key, false)?) };
    match (set("fc_norm")?, set("norm_before_fc")?) {
        (false, false) => Ok(FcNorm::Off),
        (true, false) => Ok(FcNorm::EachState),
        (false, true) => Ok(FcNorm::WholeRow),
        // Published code disagrees on the meaning.
        (true, true) => {
            refuse("config.json sets both `fc_norm` and `norm_before_fc`; heads with one of them are supported")
        }
    }
}

/// Whether a configuration is from vLLM's `speculators`, under any of its names.
fn of_speculators(keys: &Keys) -> bool {
    const ARCHITECTURES: [&str; 2] = ["Eagle3Speculator", "Eagle3DraftModel"];
    let named = keys.top.get("architectures").and_then(Value::as_array).into_iter().flatten();
    keys.top.get("speculators_model_type").is_some_and(Value::is_string)
        || named.filter_map(Value::as_str).any(|name| ARCHITECTURES.contains(&name))
}

/// Layers of the auxiliary hidden states, "output of layer i"; the published default where the configuration names
/// none. `speculators` counts inputs, as vLLM does: i is the output of layer i - 1, and 0 the embedding.
fn aux_layers(keys: &Keys, layers: usize) -> Result<Vec<usize>> {
    let name = "eagle_aux_hidden_state_layer_ids";
    let eagle = keys.eagle();
    let listed = eagle.get(name).or_else(|| keys.get(name));
    let ids: Vec<i64> = match listed {
        None => return Ok(DraftConfig::default_aux_layers(layers)),
        Some(v) => match v.as_array().map(|a| a.iter().map(Value::as_i64).collect::<Option<Vec<_>>>()) {
            Some(Some(ids)) if !ids.is_empty() => ids,
            _ => {
                return refuse(format!("config.json: `{name}` is {v}, a list of layers is needed"));
            }
        },
    };
    let (before, states) = if of_speculators(keys) { (1, "inputs") } else { (0, "hidden states") };
    if before == 1 && ids.contains(&0) {
        return refuse(format!("config.json: `{name}` is {ids:?}; 0 is the embedding there, and only layers are read"));
    }
    let inside = |id: &i64| usize::try_from(id.checked_sub(before)?).ok().filter(|i| *i < layers);
    match ids.iter().map(inside).collect::<Option<Vec<_>>>() {
        Some(layers) => Ok(layers),
        None => refuse(format!("it reads the {states} of layers {ids:?}, the model has {layers}")),
    }
}

/// Angle per position of each rotated pair, in f64. An absent base means 10000, not the model's.
fn inv_freq(keys: &Keys, head_dim: usize, options: &DraftOptions) -> Result<Vec<f64>> {
    let parameters = keys.get("rope_parameters").and_then(Value::as_object).cloned().unwrap_or_default();
    let nested = Keys { top: parameters.clone(), nested: Map::new() };
    let theta = match options.rope_theta {
        Some(theta) => theta,
        None => keys.number("rope_theta", nested.number("rope_theta", 10_000.0)?)?,
    };
    let plain: Vec<f64> = (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect();
    let scaling = match keys.get("rope_scaling").and_then(Value::as_object) {
        Some(map) => map.clone(),
        None => parameters,
    };
    let kind = scaling
        .get("rope_type")
        .or_else(|| scaling.get("type"))
        .and_then(Value::as_str)
        .unwrap_or("default")
        .to_string();
    let s = Keys { top: scaling, nested: Map::new() };
    match kind.as_str() {
        "default" => Ok(plain),
        "linear" => {
            let factor = s.number("factor", 1.0)?;
            Ok(plain.iter().map(|f| f / factor).collect())
        }
        "llama3" => {
            let (factor, low, high) =
                (s.number("factor", 8.0)?, s.number("low_freq_factor", 1.0)?, s.number("high_freq_factor", 4.0)?);
            if low >= high {
                return refuse(format!(
                    "config.json: `high_freq_factor` is {high}, more than `low_freq_factor` ({low}) is needed"
                ));
            }
            let trained = s.number("original_max_position_embeddings", 8192.0)?;
            let scaled = |f: &f64| {
                let turns = trained * f / std::f64::consts::TAU;
                let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                f * (keep + (1.0 - keep) / factor)
            };
            Ok(plain.iter().map(scaled).collect())
        }
        other => refuse(format!("its rotation is scaled by `{other}`; default, linear and llama3 are supported")),
    }
}
