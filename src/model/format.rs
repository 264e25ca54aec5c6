//! How a published folder says its weights are stored, in words: read before anything is loaded or downloaded.

use serde_json::Value;

/// What is published under each `quant_method`.
const METHODS: &[(&str, &str)] = &[
    ("gptq", "GPTQ"),
    ("awq", "AWQ"),
    ("compressed-tensors", "compressed-tensors"),
    ("modelopt", "ModelOpt"),
    ("fp8", "FP8"),
    ("bitsandbytes", "bitsandbytes"),
    ("hqq", "HQQ"),
];

/// The format that `config.json` (and `hf_quant_config.json`, where it is there) declares, for example
/// `a GPTQ model, 4 bits, groups of 128`; `None` for plain weights.
pub fn quantised(config: &Value, beside: Option<&Value>) -> Option<String> {
    let set = |v: &Value, key: &str| v.get(key).filter(|v| v.is_object()).cloned();
    if let Some(q) = set(config, "quantization_config") {
        let method = q.get("quant_method").and_then(Value::as_str).unwrap_or("quantised");
        let algorithm = q.get("quant_algo").or_else(|| q.get("format")).and_then(Value::as_str);
        return Some(described(known(method), algorithm, inner(&q)));
    }
    if let Some(q) = set(config, "quantization") {
        return Some(described("MLX".into(), None, &q));
    }
    let q = beside.and_then(|b| set(b, "quantization"))?;
    let algorithm = q.get("quant_algo").and_then(Value::as_str);
    Some(described("ModelOpt".into(), algorithm, &q))
}

fn known(method: &str) -> String {
    let known = METHODS.iter().find(|(key, _)| *key == method).map(|(_, name)| (*name).to_owned());
    known.unwrap_or_else(|| method.chars().filter(|c| !c.is_control()).take(40).collect())
}

/// Where bits and group size are: `compressed-tensors` nests them.
fn inner(q: &Value) -> &Value {
    let group = q.get("config_groups").and_then(Value::as_object).and_then(|g| g.values().next());
    group.and_then(|g| g.get("weights")).unwrap_or(q)
}

fn described(name: String, algorithm: Option<&str>, q: &Value) -> String {
    let number = |keys: &[&str]| keys.iter().find_map(|k| q.get(*k).and_then(Value::as_i64));
    let article = if name.starts_with(['A', 'E', 'F', 'H', 'M']) && name != "ModelOpt" { "an" } else { "a" };
    let mut out = format!("{article} {name} model");
    if let Some(algorithm) = algorithm {
        out.push_str(&format!(" ({})", algorithm.chars().filter(|c| !c.is_control()).take(40).collect::<String>()));
    }
    let four = q.get("load_in_4bit").and_then(Value::as_bool) == Some(true);
    if let Some(bits) = number(&["bits", "num_bits", "w_bit", "nbits"]).or(four.then_some(4)) {
        out.push_str(&format!(", {bits} bits"));
    }
    if let Some(group) = number(&["group_size", "q_group_size"]).filter(|g| *g > 0) {
        out.push_str(&format!(", groups of {group}"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_formats_are_named_as_what_they_are() {
        let of = |text: &str| quantised(&serde_json::from_str(text).unwrap(), None);
        let says = |text: &str, expected: &str| assert_eq!(of(text).as_deref(), Some(expected));
        says(
            r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true}}"#,
            "a GPTQ model, 4 bits, groups of 128",
        );
        says(
            r#"{"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}}"#,
            "an AWQ model, 4 bits, groups of 64",
        );
        says(
            r#"{"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "group_size": 128}}}}}"#,
            "a compressed-tensors model (pack-quantized), 8 bits, groups of 128",
        );
        says(
            r#"{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}"#,
            "a ModelOpt model (NVFP4)",
        );
        says(
            r#"{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}"#,
            "a bitsandbytes model, 4 bits",
        );
        says(r#"{"quantization": {"group_size": 64, "bits": 8}}"#, "an MLX model, 8 bits, groups of 64");
        says(r#"{"quantization_config": {"quant_method": "new\u001b[0m"}}"#, "a new[0m model");
        assert_eq!(of(r#"{"torch_dtype": "bfloat16", "quantization_config": null}"#), None);
        let beside = serde_json::json!({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null}});
        assert_eq!(quantised(&serde_json::json!({}), Some(&beside)).as_deref(), Some("a ModelOpt model (FP8)"));
    }
}
