//! The meaning of head configurations, and errors where a default would hide a problem.

use super::*;
use serde_json::json;

fn predicted(config: &str, all: &[(String, Form)], spec: &ModelSpec, states: &[f32]) -> TopLogits {
    let mut b = Cpu::new();
    let mut head = DraftHead::load(&mut b, "test", config, &stored(all), spec, &DraftOptions::default()).unwrap();
    prediction_from(&mut b, &mut head, states)
}

#[test]
fn norm_before_fc_is_one_norm_over_all_states() {
    let (config, all, spec) = tiny();
    let norm: Vec<f32> = (0..384).map(|i| 0.5 + (i * 29 % 97) as f32 / 97.0).collect();
    let weight = |values: &[f32]| Form {
        dtype: safetensors::Dtype::F32,
        shape: vec![values.len()],
        bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    let mut with = all.clone();
    with.push(("input_norm.weight".into(), weight(&norm)));

    // By the definition, before a head without a norm. The states have different sizes, so that separate norms would
    // differ.
    let sizes = [0.25f32, 1.0, 4.0];
    let given: Vec<f32> = states().iter().enumerate().map(|(i, x)| x * sizes[i % 384 / 128]).collect();
    let normed: Vec<f32> = given
        .chunks_exact(384)
        .flat_map(|row| {
            let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 384.0;
            let factor = (mean + 1e-5).sqrt().recip();
            row.iter().zip(&norm).map(move |(x, w)| (f64::from(*x) * factor * f64::from(*w)) as f32).collect::<Vec<_>>()
        })
        .collect();
    let want = predicted(&config, &all, &spec, &normed);
    let top = set(&config, |c| drop(c.insert("norm_before_fc".into(), true.into())));
    let nested = set(&config, |c| {
        c.insert("norm_before_fc".into(), false.into());
        c.insert("eagle_config".into(), json!({"norm_before_fc": true}));
    });
    for flagged in [&top, &nested] {
        let got = predicted(flagged, &with, &spec, &given);
        assert_eq!(got.ids[..8], want.ids[..8], "{flagged}");
        let off = got.logits.iter().zip(&want.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-4, "{flagged}: {off}");
    }
    // Saved windows of heads without the flag stay valid.
    let words = |config: &str| {
        let config = DraftConfig::from_json(config, &spec, &DraftOptions::default()).unwrap();
        format!("{config:?}")
    };
    assert!(words(&config).contains("fc_norm: false,") && words(&top).contains("fc_norm: whole row,"));
    let plain = predicted(&config, &all, &spec, &given);
    assert!((plain.logits[0] - want.logits[0]).abs() > 1e-2, "the norm makes a difference here");

    assert!(refusal(&top, &all, &spec).contains("`input_norm.weight` is missing"));
    with.pop();
    with.push(("input_norm.weight".into(), weight(&norm[..128])));
    assert!(refusal(&top, &with, &spec).contains("input_norm.weight"));
    let both = set(&top, |c| drop(c.insert("fc_norm".into(), true.into())));
    assert!(refusal(&both, &with, &spec).contains("both `fc_norm` and `norm_before_fc`"));
}

#[test]
fn layer_ids_of_speculators_count_inputs() {
    let (config, _, spec) = tiny();
    let layers = |ids: serde_json::Value, more: serde_json::Value| {
        let config = set(&config, |c| {
            c.remove("architectures");
            c.insert("eagle_aux_hidden_state_layer_ids".into(), ids);
            c.extend(more.as_object().unwrap().clone());
        });
        DraftConfig::from_json(&config, &spec, &DraftOptions::default())
            .map(|c| c.aux_layers)
            .map_err(|e| e.to_string())
    };
    let ours = [
        json!({"speculators_model_type": "eagle3"}),
        json!({"architectures": ["Eagle3Speculator"]}),
        json!({"architectures": ["Eagle3DraftModel"]}),
    ];
    for speculators in ours {
        let layers = |ids| layers(ids, speculators.clone());
        assert_eq!(layers(json!([2, 16, 29])), Ok(vec![1, 15, 28]), "{speculators}");
        assert_eq!(layers(json!([1, 2, 32])), Ok(vec![0, 1, 31]), "{speculators}");
        assert_eq!(layers(json!(null)), Ok(vec![1, 15, 28]), "the default is the same layers");
        let embedding = layers(json!([0, 16, 29])).unwrap_err();
        assert!(embedding.contains("is [0, 16, 29]; 0 is the embedding there"), "{embedding}");
        for ids in [json!([2, 16, 33]), json!([2, -1, 29]), json!([i64::MIN])] {
            let outside = layers(ids).unwrap_err();
            assert!(outside.contains("it reads the inputs of layers [") && outside.contains("has 32"), "{outside}");
        }
    }
    let others = [json!({}), json!({"architectures": ["LlamaForCausalLMEagle3"]})];
    for other in others {
        assert_eq!(layers(json!([2, 16, 29]), other.clone()), Ok(vec![2, 16, 29]));
        assert_eq!(layers(json!([0, 16, 31]), other), Ok(vec![0, 16, 31]));
    }
}

#[test]
fn heads_of_speculators_that_do_not_say_where_the_residual_starts_are_read_as_vllm_reads_them() {
    let (config, all, spec) = tiny();
    // The form of `speculators`: the layer in an object of its own, tensors named after it.
    let of_speculators = |more: serde_json::Value| {
        set(&config, |c| {
            let mut layer = std::mem::take(c);
            layer.retain(|key, _| !["architectures", "draft_vocab_size", "target_hidden_size"].contains(&key.as_str()));
            c.insert("architectures".into(), json!(["Eagle3DraftModel"]));
            c.insert("speculators_model_type".into(), "eagle3".into());
            c.insert("draft_vocab_size".into(), 160.into());
            c.insert("target_hidden_size".into(), serde_json::Value::Null);
            c.insert("transformer_layer_config".into(), layer.into());
            c.extend(more.as_object().unwrap().clone());
        })
    };
    let named: Vec<_> = all.iter().map(|(n, form)| (n.replace("midlayer.", "layers.0."), form.clone())).collect();
    let plain = |text: bool| set(&config, |c| drop(c.insert("norm_before_residual".into(), text.into())));
    let [normed, stream] = [true, false].map(|text| load(&plain(text), &all, &spec).unwrap());
    assert!(normed != stream, "it makes a difference");
    let nested = of_speculators(
        json!({"transformer_layer_config": serde_json::from_str::<serde_json::Value>(&plain(false)).unwrap()}),
    );
    for (config, expected, assumed) in [
        (of_speculators(json!({})), &normed, true),
        (of_speculators(json!({"norm_before_residual": null})), &normed, true),
        (of_speculators(json!({"norm_before_residual": true})), &normed, false),
        (of_speculators(json!({"norm_before_residual": false})), &stream, false),
        (nested, &stream, false),
        (config.clone(), &stream, false),
    ] {
        assert!(load(&config, &named, &spec).unwrap() == *expected, "{config}");
        let mut b = Cpu::new();
        let options = DraftOptions::default();
        let head = DraftHead::load(&mut b, "test", &config, &stored(&named), &spec, &options).unwrap();
        let says = |line: &str| line.contains("does not say `norm_before_residual`: true is taken");
        assert_eq!(head.assumed().map(says), assumed.then_some(true), "{config}");
    }
    assert!(refusal(&of_speculators(json!({"norm_before_residual": 1})), &named, &spec).contains("true or false"));
}

#[test]
fn a_head_that_norms_queries_and_keys_is_refused() {
    let (config, mut all, spec) = tiny();
    let ones = Form { dtype: safetensors::Dtype::F32, shape: vec![32], bytes: 1f32.to_le_bytes().repeat(32) };
    all.push(("layers.0.self_attn.k_norm.weight".into(), ones));
    assert!(refusal(&config, &all, &spec).contains("it has `midlayer.self_attn.k_norm.weight`"));
}

#[test]
fn a_prediction_that_is_not_there_or_has_no_place_in_the_vocabulary_is_an_error() {
    let row = |ids: &[Token]| TopLogits { ids: ids.to_vec(), logits: vec![0.0; ids.len()], log_sum_exp: 0.0 };
    assert_eq!(in_model_ids(vec![row(&[0, 1])], Some(&[7, 9])).unwrap().ids, [7, 9]);
    assert_eq!(in_model_ids(vec![row(&[5])], None).unwrap().ids, [5]);
    for (rows, map) in [(vec![], None), (vec![row(&[0, 2])], Some(&[7, 9][..]))] {
        assert!(matches!(in_model_ids(rows, map), Err(BackendError::Internal { op: "draft", .. })));
    }
}

#[test]
fn a_tensor_under_two_names_is_refused_where_it_is_used() {
    let (config, all, spec) = tiny();
    let with_second = |name: &str, second: &str| {
        let mut all = all.clone();
        let form = take(&mut all, name).clone();
        all.push((second.to_owned(), form));
        refusal(&config, &all, &spec)
    };
    let says =
        |one: &str, two: &str| format!("tensor `{two}` is there beside `{one}`: one of the two is of another download");
    for (name, second, says) in [
        ("fc.weight", "model.fc.weight", says("fc.weight", "model.fc.weight")),
        ("d2t", "model.d2t", says("d2t", "model.d2t")),
        (
            "midlayer.mlp.down_proj.weight",
            "layers.0.mlp.down_proj.weight",
            says("layers.0.mlp.down_proj.weight", "midlayer.mlp.down_proj.weight"),
        ),
    ] {
        let text = with_second(name, second);
        assert!(text.contains(&says) && !text.contains('\n'), "{text}");
    }
    // An unused tensor may exist twice.
    let mut more = all.clone();
    more.extend(["rotary.inv_freq", "model.rotary.inv_freq"].map(|name| (name.to_owned(), all[0].1.clone())));
    assert!(load(&config, &more, &spec).is_ok());
}
