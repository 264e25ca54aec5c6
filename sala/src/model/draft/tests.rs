use std::path::{Path, PathBuf};

use super::*;
use crate::backend::cpu::Cpu;
use crate::backend::prelude::*;
use crate::core::spec::ModelSpec;
use crate::model::{Recipe, Tensors};

mod variants;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/eagle3")
}

/// A shape that the tiny fixture's head fits, small enough to write other forms of it.
fn tiny() -> (String, Vec<(String, Form)>, ModelSpec) {
    let dir = fixtures();
    let config = std::fs::read_to_string(dir.join("tiny.config.json")).unwrap();
    let tensors = Tensors::open_files(&[dir.join("tiny.head.safetensors")]).unwrap();
    let all = tensors.names().map(|n| {
        let (dtype, shape, bytes) = tensors.raw(n).unwrap();
        (n.to_string(), Form { dtype, shape: shape.to_vec(), bytes: bytes.to_vec() })
    });
    let mut spec = crate::model::Checkpoint::open("demo").unwrap().spec().clone();
    (spec.hidden, spec.vocab) = (128, 320);
    spec.mixers = vec![crate::core::spec::Mixer::Lightning; 32];
    (config, all.collect(), spec)
}

#[derive(Clone)]
struct Form {
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn floats(form: &Form) -> Vec<f32> {
    form.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn stored(all: &[(String, Form)]) -> Tensors {
    let views = all
        .iter()
        .map(|(n, f)| (n.clone(), safetensors::tensor::TensorView::new(f.dtype, f.shape.clone(), &f.bytes).unwrap()));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    Tensors::open_files(&[path]).unwrap()
}

fn states() -> Vec<f32> {
    (0..19 * 384).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect()
}

/// The first prediction of a head over a fixed prompt, equal for any two forms of the same weights.
fn prediction(b: &mut Cpu, head: &mut DraftHead<Cpu>) -> TopLogits {
    prediction_from(b, head, &states())
}

fn prediction_from(b: &mut Cpu, head: &mut DraftHead<Cpu>, states: &[f32]) -> TopLogits {
    let none = b
        .matrix(&[crate::backend::WeightView {
            name: "none",
            shape: &[1, 1],
            dtype: crate::engine::protocol::Dtype::F32,
            data: &[0; 4],
            file: None,
            form: crate::backend::Form::Bf16,
        }])
        .unwrap();
    let tables = Tables { embed: &none, head: &none };
    let history: Vec<Token> = (0..20).map(|i| i * 13 % 320).collect();
    let mut aux_hidden = b.draft_buf(19, 384, BufKind::Activation).unwrap();
    b.write(&mut aux_hidden, states).unwrap();
    head.read(b, &tables, &aux_hidden, 0, 19, &history[..19], 0).unwrap();
    head.extend(b, &tables, &history).unwrap()
}

fn load(config: &str, all: &[(String, Form)], spec: &ModelSpec) -> Result<TopLogits> {
    let mut b = Cpu::new();
    let mut head = DraftHead::load(&mut b, "test", config, &stored(all), spec, &DraftOptions::default())?;
    Ok(prediction(&mut b, &mut head))
}

fn refusal(config: &str, all: &[(String, Form)], spec: &ModelSpec) -> String {
    match load(config, all, spec) {
        Err(e @ (DraftError::Refused(_) | DraftError::Model(_))) => e.to_string(),
        Err(e) => panic!("another error: {e}"),
        Ok(_) => panic!("it was taken"),
    }
}

fn set(config: &str, edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) -> String {
    let mut value: serde_json::Value = serde_json::from_str(config).unwrap();
    edit(value.as_object_mut().unwrap());
    value.to_string()
}

fn take<'a>(all: &'a mut [(String, Form)], name: &str) -> &'a mut Form {
    &mut all.iter_mut().find(|(n, _)| n == name).unwrap().1
}

#[test]
fn matrices_take_the_forms_of_the_recipe() {
    use crate::backend::Form as In;
    let spec = crate::model::Checkpoint::open("demo").unwrap().spec().clone();
    let mut prints = std::collections::BTreeSet::new();
    let taken = [
        (Recipe::Stored, In::Bf16, In::Bf16),
        (Recipe::Bits8, In::Int8, In::Int8),
        (Recipe::Bits6, In::Int6, In::Int8),
        (Recipe::Bits5, In::Int5, In::Int8),
        (Recipe::Bits4, In::Int4, In::Int8),
    ];
    for (recipe, layer, table) in taken {
        let options = DraftOptions { recipe, ..DraftOptions::default() };
        let mut b = Cpu::new();
        let head = DraftHead::demo(&mut b, &spec, &options).unwrap();
        let w = &head.weights;
        let forms = |m| b.parts(m).iter().map(|part| part.1).collect::<Vec<_>>();
        for matrix in [&w.kvq, &w.out, &w.gate_up, &w.down] {
            assert!(forms(matrix).iter().all(|form| *form == layer), "{recipe:?}: {:?}", forms(matrix));
        }
        let super::load::Output::Own(own) = &w.head else { panic!("its head is its own") };
        assert_eq!([forms(&w.fc), forms(own)], [vec![table], vec![table]], "{recipe:?}");
        prints.insert(head.fingerprint.clone());
    }
    assert_eq!(prints.len(), taken.len(), "what is kept of a window belongs to one form");
}

#[test]
fn a_head_of_absurd_sizes_is_refused_before_anything_is_made_of_them() {
    let (config, all, spec) = tiny();
    for (field, value) in [("head_dim", 1u64 << 40), ("head_dim", 1 << 20), ("intermediate_size", 1 << 50)] {
        let config = set(&config, |c| drop(c.insert(field.into(), value.into())));
        let refused = refusal(&config, &all, &spec);
        assert!(refused.contains(&value.to_string()), "{refused}");
    }
}

#[test]
fn published_names_and_nestings_are_one_head() {
    let (config, all, spec) = tiny();
    let want = load(&config, &all, &spec).unwrap();
    let renamed = |f: &dyn Fn(&str) -> String| -> Vec<(String, Form)> {
        all.iter().map(|(n, form)| (f(n), form.clone())).collect()
    };
    assert_eq!(load(&config, &renamed(&|n| format!("model.{n}")), &spec).unwrap(), want);
    assert_eq!(load(&config, &renamed(&|n| n.replace("midlayer.", "layers.0.")), &spec).unwrap(), want);

    // Fused projections.
    let mut fused = all.clone();
    for (name, parts) in [
        ("self_attn.qkv_proj", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].as_slice()),
        ("mlp.gate_up_proj", &["mlp.gate_proj", "mlp.up_proj"]),
    ] {
        let forms: Vec<Form> =
            parts.iter().map(|p| take(&mut fused, &format!("midlayer.{p}.weight")).clone()).collect();
        fused.retain(|(n, _)| !parts.iter().any(|p| *n == format!("midlayer.{p}.weight")));
        let shape = vec![forms.iter().map(|f| f.shape[0]).sum(), forms[0].shape[1]];
        fused.push((
            format!("midlayer.{name}.weight"),
            Form { dtype: forms[0].dtype, shape, bytes: forms.iter().flat_map(|f| f.bytes.clone()).collect() },
        ));
    }
    assert_eq!(load(&config, &fused, &spec).unwrap(), want);

    // A `speculators` export: geometry nested, RoPE in its own object, auxiliary hidden states at the top, another
    // architecture name.
    let nested = set(&config, |c| {
        let mut layer = std::mem::take(c);
        let theta = layer.remove("rope_theta").unwrap();
        layer.insert("rope_parameters".into(), serde_json::json!({"rope_type": "default", "rope_theta": theta}));
        {
            let key = "draft_vocab_size";
            c.insert(key.into(), layer.remove(key).unwrap());
        }
        c.insert("architectures".into(), serde_json::json!(["Eagle3Speculator"]));
        c.insert("target_hidden_size".into(), serde_json::Value::Null);
        c.insert("norm_before_residual".into(), false.into());
        c.insert("eagle_aux_hidden_state_layer_ids".into(), serde_json::json!([2, 16, 29]));
        c.insert("transformer_layer_config".into(), layer.into());
    });
    assert_eq!(load(&nested, &all, &spec).unwrap(), want);

    // Half-precision weights stay close.
    for (dtype, round) in [
        (safetensors::Dtype::BF16, (|x| half::bf16::from_f32(x).to_le_bytes()) as fn(f32) -> [u8; 2]),
        (safetensors::Dtype::F16, |x| half::f16::from_f32(x).to_le_bytes()),
    ] {
        let mut half = all.clone();
        for (_, form) in half.iter_mut().filter(|(_, f)| f.dtype == safetensors::Dtype::F32) {
            *form =
                Form { dtype, shape: form.shape.clone(), bytes: floats(form).into_iter().flat_map(round).collect() };
        }
        let got = load(&config, &half, &spec).unwrap();
        assert_eq!(got.ids[0], want.ids[0]);
        assert!(
            (got.logits[0] - want.logits[0]).abs() < 0.2 && got != want,
            "{dtype:?}: {} {}",
            got.logits[0],
            want.logits[0]
        );
    }
}

#[test]
fn quantised_heads_are_dequantised_with_the_scales_of_each_projection() {
    let (config, mut all, spec) = tiny();
    let mut packed = all.clone();
    let e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0f32];
    // Every projection gets its own scale; the fused tensor holds all rows, the scalars keep the split names.
    for (fused, parts) in [
        ("self_attn.qkv_proj", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].as_slice()),
        ("mlp.gate_up_proj", &["mlp.gate_proj", "mlp.up_proj"]),
        ("self_attn.o_proj", &["self_attn.o_proj"]),
    ] {
        let (mut bytes, mut scales, mut rows, mut inner) = (Vec::new(), Vec::new(), 0, 0);
        for (i, part) in parts.iter().enumerate() {
            let scale = 0.05 + 0.03 * i as f32;
            let name = format!("midlayer.{part}.weight");
            let form = take(&mut all, &name);
            (rows, inner) = (rows + form.shape[0], form.shape[1]);
            let codes: Vec<u8> = floats(form)
                .iter()
                .map(|x| {
                    let nearest = (0..8u8)
                        .min_by(|a, b| {
                            (e2m1[*a as usize] * scale - x.abs())
                                .abs()
                                .total_cmp(&(e2m1[*b as usize] * scale - x.abs()).abs())
                        })
                        .unwrap();
                    nearest | if *x < 0.0 { 8 } else { 0 }
                })
                .collect();
            let value = |c: &u8| e2m1[(c & 7) as usize] * scale * if c & 8 == 0 { 1.0 } else { -1.0 };
            form.bytes = codes.iter().flat_map(|c| value(c).to_le_bytes()).collect();
            bytes.extend(codes.chunks_exact(2).map(|c| c[0] | c[1] << 4));
            scales.extend(vec![0x38u8; codes.len() / 16]); // e4m3 1.0
            packed.retain(|(n, _)| *n != name);
            packed.push((
                format!("midlayer.{part}.weight_scale_2"),
                Form { dtype: safetensors::Dtype::F32, shape: vec![], bytes: scale.to_le_bytes().to_vec() },
            ));
            packed.push((
                format!("midlayer.{part}.input_scale"),
                Form { dtype: safetensors::Dtype::F32, shape: vec![], bytes: 1f32.to_le_bytes().to_vec() },
            ));
        }
        packed.push((
            format!("midlayer.{fused}.weight"),
            Form { dtype: safetensors::Dtype::U8, shape: vec![rows, inner / 2], bytes },
        ));
        packed.push((
            format!("midlayer.{fused}.weight_scale"),
            Form { dtype: safetensors::Dtype::F8_E4M3, shape: vec![rows, inner / 16], bytes: scales },
        ));
    }
    assert_eq!(load(&config, &packed, &spec).unwrap(), load(&config, &all, &spec).unwrap());

    // Inputs that are scaled before the product: values times the scale of their column.
    let scale = |k: usize| 0.5 + (k % 5) as f32 / 4.0;
    let (mut smoothed, mut values) = (packed.clone(), all.clone());
    for part in ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("midlayer.self_attn.{part}")) {
        let form = take(&mut values, &format!("{part}.weight"));
        let inner = form.shape[1];
        form.bytes = floats(form).iter().enumerate().flat_map(|(i, v)| (v * scale(i % inner)).to_le_bytes()).collect();
        let bytes = (0..inner).flat_map(|k| half::bf16::from_f32(scale(k)).to_le_bytes()).collect();
        let scales = Form { dtype: safetensors::Dtype::BF16, shape: vec![inner], bytes };
        smoothed.push((format!("{part}.pre_quant_scale"), scales));
    }
    assert_eq!(load(&config, &smoothed, &spec).unwrap(), load(&config, &values, &spec).unwrap());
    let part = Form { dtype: safetensors::Dtype::BF16, shape: vec![2], bytes: vec![0; 4] };
    smoothed.push(("midlayer.self_attn.o_proj.weight_quantizer._svdquant_lora_a".into(), part));
    assert!(refusal(&config, &smoothed, &spec).contains("low-rank part"));

    for bad in [f32::NAN, -1.0, 0.0] {
        take(&mut packed, "midlayer.self_attn.k_proj.weight_scale_2").bytes = bad.to_le_bytes().to_vec();
        let message = refusal(&config, &packed, &spec);
        assert!(message.contains("k_proj.weight_scale_2` is ") && message.contains("positive"), "{message}");
    }
    packed.retain(|(n, _)| n != "midlayer.self_attn.k_proj.weight_scale_2");
    assert!(refusal(&config, &packed, &spec).contains("weight_scale_2"));
}

#[test]
fn heads_that_do_not_fit_are_refused_with_the_reason() {
    let (config, all, spec) = tiny();
    let with = |key: &str, value: serde_json::Value| {
        set(&config, |c| {
            c.insert(key.into(), value);
        })
    };
    for (key, value, reason) in [
        ("vocab_size", 321.into(), "vocabulary of 321 tokens, the model has 320"),
        ("target_hidden_size", 64.into(), "streams 64 wide, the model's are 128"),
        ("num_hidden_layers", 2.into(), "2 layers"),
        ("architectures", serde_json::json!(["LlamaForCausalLMEagle"]), "not an EAGLE-3 head"),
        (
            "eagle_config",
            serde_json::json!({"eagle_aux_hidden_state_layer_ids": [1, 15, 32]}),
            "reads the hidden states of layers [1, 15, 32], the model has 32",
        ),
        ("eagle_config", serde_json::json!({"use_aux_hidden_state": false}), "EAGLE-1"),
        ("rope_scaling", serde_json::json!({"rope_type": "longrope"}), "longrope"),
        (
            "rope_scaling",
            serde_json::json!({"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0}),
            "`high_freq_factor` is 4, more than `low_freq_factor` (4) is needed",
        ),
        ("logit_scale", serde_json::json!(1e300), ", a number from 1e-15 to 1e15 is needed"),
        ("speculators_model_type", "peagle".into(), "`speculators_model_type` is \"peagle\", not \"eagle3\""),
        ("hidden_act", "gelu".into(), "silu"),
        ("attention_bias", true.into(), "biases"),
        ("hidden_size", "wide".into(), "`hidden_size`"),
        ("draft_vocab_size", 128.into(), "`d2t` has shape"),
    ] {
        let text = refusal(&with(key, value), &all, &spec);
        assert!(text.contains(reason) && !text.contains('\n'), "{key}: {text}");
    }
    assert!(refusal("{", &all, &spec).contains("damaged"));

    let without = |name: &str| all.iter().filter(|(n, _)| n != name).cloned().collect::<Vec<_>>();
    assert!(refusal(&config, &without("d2t"), &spec).contains("`d2t` is missing"));
    assert!(refusal(&config, &without("fc.weight"), &spec).contains("`fc.weight` is missing"));
    assert!(refusal(&config, &without("lm_head.weight"), &spec).contains("`lm_head` is missing"));
    assert!(load(&config, &without("t2d"), &spec).is_ok());

    let mut bad = all.clone();
    take(&mut bad, "t2d").bytes[0] ^= 1;
    assert!(refusal(&config, &bad, &spec).contains("disagree"));
    let mut bad = all.clone();
    take(&mut bad, "d2t").bytes[..8].copy_from_slice(&1000i64.to_le_bytes());
    assert!(refusal(&config, &bad, &spec).contains("outside the vocabulary"));
    take(&mut bad, "d2t").bytes[..16].copy_from_slice(&[0i64, i64::MAX].map(i64::to_le_bytes).concat());
    assert!(refusal(&config, &bad, &spec).contains("outside the vocabulary"));
    let mut bad = all.clone();
    take(&mut bad, "norm.weight").bytes[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert!(refusal(&config, &bad, &spec).contains("not finite"));
    let mut bad = all.clone();
    take(&mut bad, "fc.weight").shape = vec![64, 768];
    assert!(refusal(&config, &bad, &spec).contains("fc.weight"));
}

#[test]
fn a_head_may_borrow_the_models_tables() {
    let (config, all, spec) = tiny();
    let config = set(&config, |c| {
        c.remove("draft_vocab_size");
    });
    let own = |name: &str| all.iter().find(|(n, _)| n == name).unwrap().1.clone();
    let rest: Vec<_> = all
        .iter()
        .filter(|(n, _)| !["d2t", "t2d", "lm_head.weight", "embed_tokens.weight"].contains(&n.as_str()))
        .cloned()
        .collect();
    let mut b = Cpu::new();
    let embed = own("embed_tokens.weight");
    let view = crate::backend::WeightView {
        name: "embed",
        shape: &embed.shape,
        dtype: crate::engine::protocol::Dtype::F32,
        data: &embed.bytes,
        file: None,
        form: crate::backend::Form::Bf16,
    };
    let table = b.matrix(&[view]).unwrap();
    let tables = Tables { embed: &table, head: &table };
    let mut head =
        DraftHead::load(&mut b, "borrows", &config, &stored(&rest), &spec, &DraftOptions::default()).unwrap();
    let mut aux_hidden = b.draft_buf(1, 384, BufKind::Activation).unwrap();
    b.write(&mut aux_hidden, &[0.5; 384]).unwrap();
    head.keep(&mut b, &tables, &aux_hidden, 0..1, 0, &[7, 8]).unwrap();
    let borrowed = head.extend(&mut b, &tables, &[7, 8]).unwrap();
    // The same tables as the head's own: its output tied to its embedding.
    let tied = set(&config, |c| {
        c.insert("tie_word_embeddings".into(), true.into());
    });
    let mut with_own = rest.clone();
    with_own.push(("embed_tokens.weight".into(), embed));
    let mut head = DraftHead::load(&mut b, "owns", &tied, &stored(&with_own), &spec, &DraftOptions::default()).unwrap();
    head.keep(&mut b, &tables, &aux_hidden, 0..1, 0, &[7, 8]).unwrap();
    assert_eq!(head.extend(&mut b, &tables, &[7, 8]).unwrap(), borrowed);
    assert_eq!(borrowed.ids.len(), crate::backend::TOP_LOGITS);
}

#[test]
fn heads_packed_in_the_layouts_of_models_predict_as_their_values_do() {
    use safetensors::Dtype::{BF16, F32, I32, I64};
    let (config, mut all, spec) = tiny();
    let mut packed = all.clone();
    let name = "midlayer.self_attn.o_proj.weight";
    let form = take(&mut all, name);
    let (out, inner) = (form.shape[0], form.shape[1]);
    let (mut words, mut scales, mut plain) = (vec![0u32; out * inner / 8], Vec::new(), Vec::new());
    for (g, part) in floats(form).chunks_exact(32).enumerate() {
        let most = part.iter().fold(0f32, |m, v| m.max(v.abs()));
        let scale = half::bf16::from_f32(most / 7.5);
        scales.extend(scale.to_le_bytes());
        for (i, v) in part.iter().enumerate() {
            let q = (v / scale.to_f32()).round().clamp(-8.0, 7.0);
            words[(g * 32 + i) / 8] |= ((q + 8.0) as u32) << (i % 8 * 4);
            plain.extend(half::bf16::from_f32(q * scale.to_f32()).to_f32().to_le_bytes());
        }
    }
    form.bytes = plain;
    packed.retain(|(n, _)| n != name);
    let base = name.trim_end_matches("weight");
    let mut add = |part: &str, dtype, shape: &[usize], bytes: Vec<u8>| {
        packed.push((format!("{base}{part}"), Form { dtype, shape: shape.to_vec(), bytes }));
    };
    add("weight_packed", I32, &[out, inner / 8], words.iter().flat_map(|w| w.to_le_bytes()).collect());
    add("weight_scale", BF16, &[out, inner / 32], scales);
    add("weight_shape", I64, &[2], [out as i64, inner as i64].iter().flat_map(|n| n.to_le_bytes()).collect());
    assert!(all.iter().any(|(_, f)| f.dtype == F32));
    let says = serde_json::json!({"quantization_config": {"quant_method": "compressed-tensors"}});
    let format = crate::model::format::Format::declared(&says, None);
    let mut b = Cpu::new();
    let tensors = stored(&packed).in_format(format);
    let mut head = DraftHead::load(&mut b, "test", &config, &tensors, &spec, &DraftOptions::default()).unwrap();
    let got = prediction(&mut b, &mut head);
    let expected = load(&config, &all, &spec).unwrap();
    assert_eq!(got, expected);
}
