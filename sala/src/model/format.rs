//! The storage format that a published folder declares, read before any weight is loaded or downloaded.

use std::collections::BTreeSet;

use serde_json::Value;

/// `quant_method` of a folder that this program wrote.
pub(super) const METHOD: &str = "sala-chat";

/// The tool that packed a folder, as far as reading depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    Gptq,
    Awq,
    CompressedTensors,
    ModelOpt,
    /// FP8 as DeepSeek and transformers write it.
    Fp8,
    Mlx,
    SalaChat,
    BitsAndBytes,
    Hqq,
    Unknown,
}

/// One family: its `quant_method`, its name, and whether the program reads it.
struct Row {
    family: Family,
    key: &'static str,
    name: &'static str,
    read: bool,
}

const FAMILIES: &[Row] = &[
    Row { family: Family::Gptq, key: "gptq", name: "GPTQ", read: true },
    Row { family: Family::Awq, key: "awq", name: "AWQ", read: true },
    Row { family: Family::CompressedTensors, key: "compressed-tensors", name: "compressed-tensors", read: true },
    Row { family: Family::ModelOpt, key: "modelopt", name: "ModelOpt", read: true },
    Row { family: Family::Fp8, key: "fp8", name: "FP8", read: true },
    Row { family: Family::Mlx, key: "mlx", name: "MLX", read: true },
    Row { family: Family::SalaChat, key: METHOD, name: "sala-chat", read: true },
    Row { family: Family::BitsAndBytes, key: "bitsandbytes", name: "bitsandbytes", read: false },
    Row { family: Family::Hqq, key: "hqq", name: "HQQ", read: false },
];

impl Family {
    pub fn name(self) -> &'static str {
        FAMILIES.iter().find(|r| r.family == self).map_or("an unknown method", |r| r.name)
    }
}

#[derive(Clone, Debug)]
pub struct Format {
    pub(super) family: Family,
    name: String,
    algorithm: Option<String>,
    bits: Option<i64>,
    group: Option<i64>,
    /// GPTQ: every zero point is the middle.
    pub(super) symmetric: bool,
    /// GPTQ: zero points are stored without an offset.
    pub(super) gptq_v2: bool,
    /// FP8: rows and columns of a block.
    pub(super) blocks: Option<[usize; 2]>,
    beyond: Option<String>,
    excluded: Vec<String>,
    packed: Option<BTreeSet<String>>,
}

impl Format {
    /// From `config.json`, and `hf_quant_config.json` if it exists; `None` for plain weights.
    pub fn declared(config: &Value, sibling: Option<&Value>) -> Option<Format> {
        let set = |v: &Value, key: &str| v.get(key).filter(|v| v.is_object()).cloned();
        let method = |q: &Value| q.get("quant_method").and_then(Value::as_str).map(str::to_owned);
        let (declared, mlx) = (set(config, "quantization_config"), set(config, "quantization"));
        if let Some((q, method)) = declared.as_ref().and_then(|q| method(q).map(|m| (q, m))) {
            return Some(Format::of(&method, q));
        }
        // MLX writes the same object under both names, without a method.
        if let Some(q) = mlx {
            return Some(Format::of("mlx", &q));
        }
        if let Some(q) = sibling.and_then(|b| set(b, "quantization")) {
            return Some(Format::of("modelopt", &q));
        }
        declared.map(|q| Format::of("quantised", &q))
    }

    fn of(method: &str, q: &Value) -> Format {
        let row = FAMILIES.iter().find(|r| r.key == method);
        let details = inner(q);
        let number = |keys: &[&str]| keys.iter().find_map(|k| details.get(*k).or(q.get(*k)).and_then(Value::as_i64));
        let text = |key: &str| q.get(key).and_then(Value::as_str).map(short);
        let four = q.get("load_in_4bit").and_then(Value::as_bool) == Some(true);
        let block = q.get("weight_block_size").or_else(|| details.get("block_structure")).and_then(Value::as_array);
        let blocks = block.and_then(|b| match b.as_slice() {
            [high, wide] => Some([high.as_u64()? as usize, wide.as_u64()? as usize]),
            _ => None,
        });
        Format {
            family: row.map_or(Family::Unknown, |r| r.family),
            name: row.map_or_else(|| short(method), |r| r.name.to_owned()),
            algorithm: text("quant_algo").or_else(|| text("format")),
            bits: number(&["bits", "num_bits", "w_bit", "nbits"]).or(four.then_some(4)),
            group: number(&["group_size", "q_group_size"]).filter(|g| *g > 0),
            symmetric: q.get("sym").and_then(Value::as_bool).unwrap_or(true),
            gptq_v2: q.get("checkpoint_format").and_then(Value::as_str) == Some("gptq_v2"),
            blocks: blocks.filter(|b| b.iter().all(|n| *n > 0)),
            beyond: beyond(method, q),
            excluded: excluded(q),
            packed: q.get("quantized_layers").and_then(Value::as_object).map(|of| of.keys().cloned().collect()),
        }
    }

    /// The format and the reason for refusing it, `a HQQ model, 4 bits, which is not read (GPTQ, … are)`; `None` if it
    /// is read.
    pub fn refusal(&self) -> Option<String> {
        let read = || FAMILIES.iter().filter(|r| r.read);
        let why = match &self.beyond {
            _ if !read().any(|r| r.family == self.family) => {
                let others = read().filter(|r| r.family != Family::SalaChat);
                format!("which is not read ({} are)", others.map(|r| r.name).collect::<Vec<_>>().join(", "))
            }
            Some(beyond) => beyond.clone(),
            None => return None,
        };
        Some(format!("{}, {why}", self.described()))
    }

    /// `GPTQ, 4 bits, groups of 128`.
    pub fn details(&self) -> String {
        let mut out = self.name.clone();
        if let Some(algorithm) = &self.algorithm {
            out.push_str(&format!(" ({algorithm})"));
        }
        if let Some(bits) = self.bits {
            out.push_str(&format!(", {bits} bits"));
        }
        if let Some(group) = self.group {
            out.push_str(&format!(", groups of {group}"));
        }
        out
    }

    /// `a GPTQ model, 4 bits, groups of 128`.
    pub fn described(&self) -> String {
        let an = self.name.starts_with(['A', 'E', 'F', 'H', 'M']) && self.family != Family::ModelOpt;
        let article = if an { "an" } else { "a" };
        let details = self.details();
        let rest = details.strip_prefix(&self.name).unwrap_or_default();
        format!("{article} {} model{rest}", self.name)
    }

    /// The part of the declaration that changes the values of the same tensors, `None` for the default. It is part of
    /// the fingerprint, so a corrected declaration makes another model.
    pub(super) fn decides(&self) -> Option<&'static str> {
        // Symmetric zero points show by their value how they were written.
        match (self.family, self.symmetric, self.gptq_v2) {
            (Family::Gptq, false, true) => Some("asymmetric, version 2"),
            (Family::Gptq, false, false) => Some("asymmetric"),
            _ => None,
        }
    }

    /// Whether the folder declares a module (`model.layers.0.mlp.down_proj`) as not packed.
    pub fn excludes(&self, module: &str) -> bool {
        let matches = |pattern: &str| {
            fancy_regex::Regex::new(&format!("^(?:{pattern})")).is_ok_and(|r| r.is_match(module).unwrap_or(false))
        };
        let unlisted = self.packed.as_ref().is_some_and(|packed| !packed.contains(module));
        unlisted
            || self.excluded.iter().any(|entry| match entry.strip_prefix("re:").or_else(|| entry.strip_prefix("-:")) {
                Some(pattern) => matches(pattern),
                None if entry.contains('*') => glob::Pattern::new(entry).is_ok_and(|p| p.matches(module)),
                None => module == entry || module.contains(entry.as_str()),
            })
    }
}

fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

fn beyond(method: &str, q: &Value) -> Option<String> {
    if q.get("quant_algo").and_then(Value::as_str).is_some_and(|algorithm| algorithm.eq_ignore_ascii_case("NVFP4_SVD"))
    {
        return Some("whose low-rank part is not read".into());
    }
    // Rotations of weights are part of them already; those of activations and caches happen while the model runs.
    let groups =
        q.get("transform_config").filter(|_| method == "compressed-tensors")?.get("config_groups")?.as_object()?;
    let applied = groups.values().filter_map(|group| group.get("apply")?.as_array()).flatten();
    let mut locations = applied.map(|entry| entry.get("location").and_then(Value::as_str).unwrap_or("?"));
    let online = locations.find(|location| !matches!(*location, "weight_input" | "weight_output"))?;
    Some(format!("which is rotated at `{}` while it runs (transform_config), and that is not done", short(online)))
}

/// `compressed-tensors` nests bits and group size.
fn inner(q: &Value) -> &Value {
    let group = q.get("config_groups").and_then(Value::as_object).and_then(|g| g.values().next());
    group.and_then(|g| g.get("weights")).unwrap_or(q)
}

/// Lists of modules under any of their names, GPTQ's `dynamic` overrides that begin with `-:`, and MLX's modules that
/// are `false`.
fn excluded(q: &Value) -> Vec<String> {
    let lists = ["ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"];
    let named = lists.iter().filter_map(|k| q.get(*k).and_then(Value::as_array)).flatten();
    let mut all: Vec<String> = named.filter_map(Value::as_str).filter(|s| !s.is_empty()).map(str::to_owned).collect();
    if let Some(dynamic) = q.get("dynamic").and_then(Value::as_object) {
        all.extend(dynamic.keys().filter(|k| k.starts_with("-:")).cloned());
    }
    if let Some(modules) = q.as_object() {
        all.extend(
            modules
                .iter()
                .filter(|(_, v)| **v == Value::Bool(false))
                .filter(|(k, _)| k.contains('.'))
                .map(|(k, _)| k.clone()),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Format> {
        Format::declared(&serde_json::from_str(text).unwrap(), None)
    }

    #[test]
    fn published_formats_are_named_as_what_they_are() {
        let says = |text: &str, read: bool, expected: &str| {
            let format = of(text).unwrap();
            assert_eq!((format.described().as_str(), format.refusal().is_none()), (expected, read));
        };
        says(
            r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true}}"#,
            true,
            "a GPTQ model, 4 bits, groups of 128",
        );
        says(
            r#"{"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}}"#,
            true,
            "an AWQ model, 4 bits, groups of 64",
        );
        says(
            r#"{"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "group_size": 128}}}}}"#,
            true,
            "a compressed-tensors model (pack-quantized), 8 bits, groups of 128",
        );
        says(
            r#"{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}"#,
            true,
            "a ModelOpt model (NVFP4)",
        );
        says(
            r#"{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}"#,
            false,
            "a bitsandbytes model, 4 bits",
        );
        says(r#"{"quantization": {"group_size": 64, "bits": 8}}"#, true, "an MLX model, 8 bits, groups of 64");
        says(
            r#"{"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}}"#,
            true,
            "an MLX model, 4 bits, groups of 64",
        );
        says(r#"{"quantization_config": {"quant_method": "new\u001b[0m"}}"#, false, "a new[0m model");
        assert!(of(r#"{"torch_dtype": "bfloat16", "quantization_config": null}"#).is_none());
        let sibling = serde_json::json!({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null}});
        let format = Format::declared(&serde_json::json!({}), Some(&sibling)).unwrap();
        assert_eq!(format.described(), "a ModelOpt model (FP8)");
    }

    #[test]
    fn what_is_done_to_activations_while_a_model_runs_is_refused() {
        let rotated = |locations: &[&str]| {
            let apply: Vec<Value> =
                locations.iter().map(|l| serde_json::json!({"targets": ["Linear"], "location": l})).collect();
            let config = serde_json::json!({"quantization_config": {
                "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                "transform_config": {"config_groups": {
                    "R1": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "weight_output"}]},
                    "R4": {"type": "hadamard", "apply": apply},
                }},
            }});
            Format::declared(&config, None).unwrap().refusal()
        };
        assert_eq!(rotated(&["weight_input", "weight_output"]), None, "it is in the weights");
        for location in ["input", "output", "k_cache", "q_attn", "new"] {
            assert_eq!(
                rotated(&["weight_input", location]).unwrap(),
                format!(
                    "a compressed-tensors model (nvfp4-pack-quantized), which is rotated at `{location}` while it runs (transform_config), and that is not done"
                )
            );
        }
        let empty = r#"{"quantization_config": {"quant_method": "compressed-tensors", "transform_config": {}}}"#;
        assert_eq!(of(empty).unwrap().refusal(), None);
        let algorithm = |name: &str| {
            let config = serde_json::json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": name}});
            Format::declared(&config, None).unwrap().refusal()
        };
        assert_eq!(algorithm("NVFP4_AWQ"), None);
        assert_eq!(algorithm("NVFP4_SVD").unwrap(), "a ModelOpt model (NVFP4_SVD), whose low-rank part is not read");
    }

    #[test]
    fn modules_are_excluded_as_each_family_writes_it() {
        let excludes = |text: &str, module: &str| of(text).unwrap().excludes(module);
        let ct = r#"{"quantization_config": {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*layers\\.1\\..*"]}}"#;
        assert!(excludes(ct, "lm_head") && excludes(ct, "model.layers.1.mlp.up_proj"));
        assert!(!excludes(ct, "model.layers.11.mlp.up_proj"));
        let gptq = r#"{"quantization_config": {"quant_method": "gptq", "dynamic": {"-:.*self_attn.*": {}, "+:.*mlp.*": {"bits": 8}}}}"#;
        assert!(excludes(gptq, "model.layers.0.self_attn.q_proj") && !excludes(gptq, "model.layers.0.mlp.up_proj"));
        let modelopt =
            r#"{"quantization_config": {"quant_method": "modelopt", "exclude_modules": ["model.layers.2*"]}}"#;
        assert!(excludes(modelopt, "model.layers.2.mlp.up_proj") && !excludes(modelopt, "model.layers.3.mlp.up_proj"));
        let mixed = r#"{"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "FP8"}}}}"#;
        assert!(excludes(mixed, "model.layers.1.mlp.up_proj") && !excludes(mixed, "model.layers.0.mlp.up_proj"));
        let mlx = r#"{"quantization": {"group_size": 64, "bits": 8, "model.embed_tokens": false}}"#;
        assert!(excludes(mlx, "model.embed_tokens") && !excludes(mlx, "lm_head"));
    }
}
