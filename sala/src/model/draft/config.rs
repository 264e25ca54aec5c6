//! `config.json` of an EAGLE-3 head, in every published form (docs/speculative.md §1.1), and the check that the head
//! fits its model.

use serde_json::Value;

use crate::backend::draft::{DraftResidual, DraftShape};
use crate::core::spec::{Fields, MOST_COUNTED, ModelSpec, SpecError, object};
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
    pub recipe: Recipe,
}

impl Default for DraftOptions {
    fn default() -> Self {
        DraftOptions { window: 4096, recipe: Recipe::Stored }
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
    /// Factor of the embedding: part of a head's fingerprint.
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

pub(super) fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(DraftError::Refused(reason.into()))
}

impl From<SpecError> for DraftError {
    fn from(error: SpecError) -> Self {
        DraftError::Refused(match error {
            SpecError::Json(cause) => format!("config.json is damaged: {cause}"),
            SpecError::Missing(field) => format!("config.json has no `{field}`; it is not an EAGLE-3 head's"),
            SpecError::Type { field, found, expected } => {
                format!("config.json: `{field}` is {found}, {expected} is needed")
            }
            SpecError::Unsupported { field, found, supported } => {
                format!("config.json: `{field}` is {found}, {supported} is supported")
            }
        })
    }
}

impl DraftConfig {
    /// Width of the auxiliary hidden states of a row.
    pub fn aux_width(&self) -> usize {
        self.aux_layers.len() * self.target_hidden
    }

    /// The layers that published heads read when their configuration names none: low, middle, high.
    pub fn default_aux_layers(layers: usize) -> Vec<usize> {
        let last = layers.saturating_sub(1);
        [1, (layers / 2).saturating_sub(1), layers.saturating_sub(4)].map(|layer| layer.min(last)).to_vec()
    }

    /// A sentence about an ambiguous configuration, where published code disagrees on the meaning.
    pub fn assumed(text: &str) -> Option<String> {
        let map = object(text).ok()?;
        let (top, keys) = top_and_all(&map);
        (of_speculators(top) && keys.present(RESIDUAL).is_none()).then(|| {
            format!("its config.json does not say `{RESIDUAL}`: true is taken, as vLLM does of speculators' heads")
        })
    }

    /// Reads `config.json` of a head that drafts for `model`.
    pub fn from_json(text: &str, model: &ModelSpec, options: &DraftOptions) -> Result<DraftConfig> {
        let map = object(text)?;
        let (top, keys) = top_and_all(&map);
        check_kind(top, keys)?;

        let hidden = keys.count("hidden_size", None)?;
        let heads = keys.count("num_attention_heads", None)?;
        let kv_heads = keys.count("num_key_value_heads", Some(heads))?;
        let head_dim = keys.count("head_dim", Some(hidden / heads))?;
        if heads % kv_heads != 0 || head_dim == 0 || head_dim % 2 != 0 || heads * head_dim > MOST_COUNTED {
            return refuse(format!(
                "{heads} query heads, {kv_heads} key heads and a head width of {head_dim} do not go together"
            ));
        }
        let vocab = keys.count("vocab_size", None)?;
        if vocab != model.vocab {
            return refuse(format!("it was made for a vocabulary of {vocab} tokens, the model has {}", model.vocab));
        }
        let draft_vocab = keys.count("draft_vocab_size", Some(vocab))?;
        if draft_vocab > vocab {
            return refuse(format!("its draft vocabulary of {draft_vocab} is larger than its vocabulary of {vocab}"));
        }
        let target_hidden = keys.count("target_hidden_size", Some(hidden))?;
        if target_hidden != model.hidden {
            return refuse(format!("it reads streams {target_hidden} wide, the model's are {}", model.hidden));
        }
        if options.window == 0 {
            return refuse("the draft window must hold at least one position");
        }
        Ok(DraftConfig {
            shape: DraftShape {
                hidden,
                intermediate: keys.count("intermediate_size", None)?,
                heads,
                kv_heads,
                head_dim,
                window: options.window,
                inv_freq: inv_freq(keys, head_dim)?,
            },
            vocab,
            draft_vocab,
            aux_layers: aux_layers(top, keys, model.mixers.len())?,
            target_hidden,
            eps: keys.number("rms_norm_eps", 1e-6)? as f32,
            residual: match keys.flag(RESIDUAL, of_speculators(top))? {
                true => DraftResidual::Normed,
                false => DraftResidual::Stream,
            },
            fc_norm: fc_norm(keys)?,
            norm_output: keys.flag("norm_output", false)?,
            embed_scale: 1.0,
            logit_scale: keys.number("logit_scale", 1.0)? as f32,
            tied: keys.flag("tie_word_embeddings", false)?,
        })
    }
}

/// The top-level keys, and the same with those of `transformer_layer_config` where the top level has none
/// (`speculators` exports).
fn top_and_all(map: &serde_json::Map<String, Value>) -> (Fields<'_>, Fields<'_>) {
    let top = Fields::of(map);
    (top, top.over(top.present("transformer_layer_config").and_then(Value::as_object)))
}

/// Refuses any head but a one-layer EAGLE-3 head of the form computed here.
fn check_kind(top: Fields<'_>, keys: Fields<'_>) -> Result<()> {
    if let Some(names) = top.present("architectures").and_then(Value::as_array) {
        let known =
            |n: &Value| n.as_str().is_some_and(|n| n.to_lowercase().contains("eagle3") || n == "LlamaForCausalLM");
        if !names.is_empty() && !names.iter().any(known) {
            return refuse(format!("architecture {} is not an EAGLE-3 head", Value::Array(names.clone())));
        }
    }
    if let Some(kind) = top.present("speculators_model_type").filter(|kind| kind.as_str() != Some("eagle3")) {
        return refuse(format!("config.json: `speculators_model_type` is {kind}, not \"eagle3\""));
    }
    let layers = keys.count("num_hidden_layers", Some(1))?;
    if layers != 1 {
        return refuse(format!("it has {layers} layers; only one-layer heads are supported"));
    }
    for key in ["attention_bias", "mlp_bias"] {
        if keys.flag(key, false)? {
            return refuse(format!("`{key}` is set; heads with biases are not supported"));
        }
    }
    if let Some(act) = keys.present("hidden_act").filter(|a| a.as_str() != Some("silu")) {
        return refuse(format!("its activation is {act}; only silu is supported"));
    }
    match keys.object("eagle_config")?.present("use_aux_hidden_state") {
        Some(Value::Bool(false)) => refuse("it reads a single stream (EAGLE-1); an EAGLE-3 head is needed"),
        _ => Ok(()),
    }
}

fn fc_norm(keys: Fields<'_>) -> Result<FcNorm> {
    let eagle = keys.object("eagle_config")?;
    let set = |key| -> Result<bool> { Ok(keys.flag(key, false)? || eagle.flag(key, false)?) };
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
fn of_speculators(top: Fields<'_>) -> bool {
    const ARCHITECTURES: [&str; 2] = ["Eagle3Speculator", "Eagle3DraftModel"];
    let named = top.present("architectures").and_then(Value::as_array).into_iter().flatten();
    top.present("speculators_model_type").is_some_and(Value::is_string)
        || named.filter_map(Value::as_str).any(|name| ARCHITECTURES.contains(&name))
}

/// Layers of the auxiliary hidden states, "output of layer i"; the published default where the configuration names
/// none. `speculators` counts inputs, as vLLM does: i is the output of layer i - 1, and 0 the embedding.
fn aux_layers(top: Fields<'_>, keys: Fields<'_>, layers: usize) -> Result<Vec<usize>> {
    let name = "eagle_aux_hidden_state_layer_ids";
    let Some(listed) = keys.object("eagle_config")?.present(name).or_else(|| keys.present(name)) else {
        return Ok(DraftConfig::default_aux_layers(layers));
    };
    let ids = listed.as_array().and_then(|ids| ids.iter().map(Value::as_i64).collect::<Option<Vec<_>>>());
    let Some(ids) = ids.filter(|ids| !ids.is_empty()) else {
        return refuse(format!("config.json: `{name}` is {listed}, a list of layers is needed"));
    };
    let (before, states) = if of_speculators(top) { (1, "inputs") } else { (0, "hidden states") };
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
fn inv_freq(keys: Fields<'_>, head_dim: usize) -> Result<Vec<f64>> {
    let parameters = keys.object("rope_parameters")?;
    let theta = keys.number("rope_theta", parameters.number("rope_theta", 10_000.0)?)?;
    let plain: Vec<f64> = (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect();
    let scaling = if keys.present("rope_scaling").is_some() { keys.object("rope_scaling")? } else { parameters };
    let kind = scaling.present("rope_type").or_else(|| scaling.present("type")).and_then(Value::as_str);
    match kind.unwrap_or("default") {
        "default" => Ok(plain),
        "linear" => {
            let factor = scaling.number("factor", 1.0)?;
            Ok(plain.iter().map(|f| f / factor).collect())
        }
        "llama3" => {
            let factor = scaling.number("factor", 8.0)?;
            let (low, high) = (scaling.number("low_freq_factor", 1.0)?, scaling.number("high_freq_factor", 4.0)?);
            if low >= high {
                return refuse(format!(
                    "config.json: `high_freq_factor` is {high}, more than `low_freq_factor` ({low}) is needed"
                ));
            }
            let trained = scaling.number("original_max_position_embeddings", 8192.0)?;
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
