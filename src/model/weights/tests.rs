//! Checkpoints: what is refused, and what a fingerprint sees.

use std::collections::HashMap;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A copy of tiny-mixed in a temporary folder, its weights passed through `edit`.
fn edited(edit: impl FnOnce(&mut HashMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)>)) -> tempfile::TempDir {
    let source = fixture("tiny-mixed");
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(source.join("config.json"), dir.path().join("config.json")).unwrap();
    let bytes = std::fs::read(source.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: HashMap<_, _> =
        file.iter().map(|(n, t)| (n.to_string(), (t.dtype(), t.shape().to_vec(), t.data().to_vec()))).collect();
    edit(&mut tensors);
    let views: Vec<_> = tensors
        .iter()
        .map(|(n, (d, s, b))| (n.clone(), safetensors::tensor::TensorView::new(*d, s.clone(), b).unwrap()))
        .collect();
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

#[test]
fn released_shape_has_the_published_number_of_tensors_and_parameters() {
    let checkpoint = Checkpoint::open("synthetic:9b").unwrap();
    let expected = Checkpoint::expected_tensors(checkpoint.spec());
    assert_eq!(expected.len(), 395);
    let parameters: u64 = expected.iter().map(|(_, s)| s.iter().map(|d| *d as u64).product::<u64>()).sum();
    assert_eq!(parameters, 9_477_203_968);
    assert_eq!(checkpoint.spec().parameters(), parameters);
}

#[test]
fn tensors_without_a_use_are_known_by_name() {
    let extra = (safetensors::Dtype::BF16, vec![2], vec![0; 4]);
    let dir = edited(|tensors| {
        tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), extra.clone());
        tensors.insert("eagle.fc.weight".into(), extra);
    });
    let checkpoint = Checkpoint::open_dir(dir.path()).unwrap();
    checkpoint.check().unwrap();
    assert_eq!(checkpoint.unknown_tensors(), ["eagle.fc.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"]);
    assert!(Checkpoint::open("demo").unwrap().unknown_tensors().is_empty());
}

#[test]
fn demo_is_complete_and_keeps_its_fingerprint() {
    let (a, b) = (Checkpoint::open("demo").unwrap(), Checkpoint::open("demo").unwrap());
    a.check().unwrap();
    assert_eq!(a.dtype(), Dtype::Bf16);
    assert_eq!(a.fingerprint(), b.fingerprint());
    assert_eq!(a.fingerprint().len(), 32);
    assert!(super::super::demo_draft().unwrap().1.names().count() > 5);
}

#[test]
fn state_belongs_to_what_prefill_multiplies_in_and_weights_do_not() {
    let mut checkpoint = Checkpoint::open("synthetic:tiny").unwrap();
    let weights = checkpoint.fingerprint();
    assert_eq!(checkpoint.state_fingerprint(), weights, "what was saved before there was a choice is still good");
    checkpoint.set_prefill(Precision::Fp8);
    assert_eq!(checkpoint.fingerprint(), weights, "copies of packed weights are found again");
    assert_ne!(checkpoint.state_fingerprint(), weights);
    assert_eq!(checkpoint.state_fingerprint().len(), FINGERPRINT_DIGITS);
}

#[test]
fn synthetic_names_take_a_seed_and_others_are_refused() {
    let fingerprint = |s: &str| Checkpoint::open(s).unwrap().fingerprint();
    assert_ne!(fingerprint("synthetic:tiny"), fingerprint("synthetic:tiny:7"));
    assert_eq!(fingerprint("synthetic:tiny"), fingerprint("synthetic:tiny:0"));
    for bad in ["synthetic:", "synthetic:70b", "synthetic:tiny:x", "/no/such/folder", "demo2"] {
        assert!(matches!(Checkpoint::open(bad), Err(ModelError::Unknown(_))), "{bad}");
    }
}

#[test]
fn one_changed_weight_changes_the_fingerprint() {
    let plain = Checkpoint::open_dir(edited(|_| ()).path()).unwrap().fingerprint();
    assert_eq!(plain, Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap().fingerprint());
    let changed = edited(|t| t.get_mut("model.norm.weight").unwrap().2[0] ^= 1);
    assert_ne!(plain, Checkpoint::open_dir(changed.path()).unwrap().fingerprint());
}

#[test]
fn missing_or_wrong_tensors_are_named() {
    let name = "model.layers.1.self_attn.z_proj.weight";
    let check = |dir: tempfile::TempDir| Checkpoint::open_dir(dir.path()).unwrap().check().unwrap_err().to_string();
    assert!(check(edited(|t| drop(t.remove(name)))).contains(name));
    let reshaped = check(edited(|t| t.get_mut(name).unwrap().1 = vec![64, 256]));
    assert!(reshaped.contains(name) && reshaped.contains("[64, 256]") && reshaped.contains("[128, 128]"), "{reshaped}");
    let retyped = check(edited(|t| t.get_mut(name).unwrap().0 = safetensors::Dtype::I32));
    assert!(retyped.contains(name) && retyped.contains("I32"), "{retyped}");
}

#[test]
fn a_torn_file_is_called_damaged() {
    let dir = edited(|_| ());
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 5, 100, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let error = Checkpoint::open_dir(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("model.safetensors"), "{length}: {error}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(Checkpoint::open_dir(dir.path()), Err(ModelError::NoCheckpoint { .. })));
}

#[test]
fn an_index_without_tensors_is_named_with_what_to_do() {
    let dir = edited(|_| ());
    std::fs::write(dir.path().join("model.safetensors.index.json"), r#"{"weight_map": {}}"#).unwrap();
    let error = Checkpoint::open_dir(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
    assert_eq!(
        error,
        format!(
            "{} is not a checkpoint: its model.safetensors.index.json names no tensors; download that again, or remove it \
             where model.safetensors is whole",
            dir.path().display()
        )
    );
}

#[test]
fn half_precision_is_widened_exactly() {
    let values = [1.5f32, -0.25, 65504.0, 6.0e-8];
    let halves: Vec<u8> = values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    let dir = edited(|t| {
        t.insert("extra".into(), (safetensors::Dtype::F16, vec![4], halves));
    });
    let checkpoint = Checkpoint::open_dir(dir.path()).unwrap();
    let tensor = checkpoint.tensor("extra", &[4]).unwrap();
    assert_eq!(tensor.view().dtype, Dtype::F32);
    let first = f32::from_le_bytes(tensor.view().data[..4].try_into().unwrap());
    assert_eq!(first, 1.5);
}

/// Writes `config.json` of a folder again.
fn configured(dir: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = dir.join("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
}

fn refusal(dir: &Path) -> String {
    let error = Checkpoint::open_dir(dir).and_then(|c| c.check()).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn weights_that_nobody_here_reads_are_named_as_what_they_are() {
    let dir = edited(|_| ());
    configured(dir.path(), |c| c["quantization_config"] = serde_json::json!({"quant_method": "hqq", "nbits": 4}));
    let error = refusal(dir.path());
    assert!(error.contains("is an HQQ model, 4 bits, which is not read (GPTQ, AWQ, "), "{error}");
    configured(dir.path(), |c| drop(c.as_object_mut().unwrap().remove("quantization_config")));
    std::fs::write(dir.path().join("hf_quant_config.json"), "{").unwrap();
    let error = refusal(dir.path());
    assert!(error.contains("hf_quant_config.json"), "{error}");
}

/// tiny-mixed with the matrices of its layers as compressed-tensors packs them (4 bits, groups of 32), and the same values in bf16.
fn packed_and_plain(skip: &[&str]) -> [tempfile::TempDir; 2] {
    type Made = (String, Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)>, Vec<u8>);
    let pack = |name: &str, shape: &[usize], bytes: &[u8]| -> Made {
        let (out, inner, group) = (shape[0], shape[1], 32);
        let values: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let (mut words, mut scales, mut plain) = (vec![0u32; out * inner / 8], Vec::new(), Vec::new());
        for (g, part) in values.chunks_exact(group).enumerate() {
            let most = part.iter().fold(0f32, |m, v| m.max(v.abs()));
            let scale = half::bf16::from_f32(most / 7.5);
            scales.extend(scale.to_le_bytes());
            for (i, v) in part.iter().enumerate() {
                let q = (v / scale.to_f32()).round().clamp(-8.0, 7.0);
                let at = g * group + i;
                words[at / 8] |= ((q + 8.0) as u32) << (at % 8 * 4);
                plain.extend(half::bf16::from_f32(q * scale.to_f32()).to_le_bytes());
            }
        }
        let base = name.trim_end_matches(".weight");
        let words = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let shape = [out as i64, inner as i64].iter().flat_map(|n| n.to_le_bytes()).collect();
        let parts = vec![
            (format!("{base}.weight_packed"), safetensors::Dtype::I32, vec![out, inner / 8], words),
            (format!("{base}.weight_scale"), safetensors::Dtype::BF16, vec![out, inner / group], scales),
            (format!("{base}.weight_shape"), safetensors::Dtype::I64, vec![2], shape),
        ];
        (name.to_owned(), parts, plain)
    };
    let wanted = |name: &str, shape: &[usize]| {
        shape.len() == 2 && name.starts_with("model.layers.") && !skip.iter().any(|s| name.contains(s))
    };
    let packed = edited(|all| {
        let names: Vec<String> = all.iter().filter(|(n, (_, s, _))| wanted(n, s)).map(|(n, _)| n.clone()).collect();
        for name in names {
            let (_, shape, bytes) = all.remove(&name).unwrap();
            all.extend(pack(&name, &shape, &bytes).1.into_iter().map(|(n, d, s, b)| (n, (d, s, b))));
        }
    });
    configured(packed.path(), |c| {
        c["quantization_config"] = serde_json::json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "symmetric": true}}},
        });
    });
    let plain = edited(|all| {
        for (name, (dtype, shape, bytes)) in all.iter_mut() {
            if wanted(name, shape) {
                *bytes = pack(name, shape, bytes).2;
                *dtype = safetensors::Dtype::BF16;
            }
        }
    });
    [packed, plain]
}

/// Top logits after a prompt and two decode steps.
fn logits(checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
    use crate::backend::prelude::*;
    let mut b = crate::backend::cpu::Cpu::new();
    let model = crate::model::Model::load(&mut b, checkpoint, |_| ()).unwrap();
    let mut live = crate::model::Live::new(&mut b, &model, 1024, &[]).unwrap();
    let prompt: Vec<u32> = (0..90).map(|i| i * 7 % 500).collect();
    for chunk in prompt.chunks(b.prefill_rows()) {
        live.prefill(&mut b, &model, chunk).unwrap();
        live.advance(&mut b, chunk.len()).unwrap();
    }
    let mut all = vec![live.prefill_logits(&mut b, &model).unwrap().logits];
    for token in [3, 4] {
        live.verify(&mut b, &model, &[token]).unwrap();
        all.extend(live.top_logits(&mut b, 1).unwrap().into_iter().map(|t| t.logits));
        live.advance(&mut b, 1).unwrap();
    }
    all
}

#[test]
fn a_packed_folder_answers_as_its_values_do() {
    let [packed, plain] = packed_and_plain(&[]);
    let (mut packed, plain) =
        (Checkpoint::open_dir(packed.path()).unwrap(), Checkpoint::open_dir(plain.path()).unwrap());
    packed.check().unwrap();
    assert_eq!(packed.unknown_tensors(), Vec::<String>::new());
    let kept = packed.kept().unwrap().unwrap().to_string();
    assert_eq!(
        kept,
        "compressed-tensors (pack-quantized), 4 bits, groups of 32: 48 matrices kept as published (group4); 2 that were not packed as bf16."
    );
    assert_eq!(logits(&packed), logits(&plain));
    let stored = packed.fingerprint();
    packed.set_recipe(Recipe::Bf16);
    assert!(packed.kept().unwrap().unwrap().to_string().contains("48 widened to bf16"));
    assert_eq!(logits(&packed), logits(&plain), "widened");
    assert_ne!(stored, packed.fingerprint(), "the form is part of it");
    packed.set_recipe(Recipe::Bits4);
    let kept = packed.kept().unwrap().unwrap().to_string();
    assert!(kept.contains("48 matrices kept as published (group4); 2 that were not packed as int8."), "{kept}");
    for recipe in [Recipe::Bits6, Recipe::Bits5] {
        packed.set_recipe(recipe);
        assert_eq!(
            packed.kept().unwrap().unwrap().to_string(),
            kept,
            "{recipe:?}: fewer bits than were asked for are kept"
        );
    }
    assert!(packed.bytes(Recipe::Stored) < packed.bytes(Recipe::Bf16) / 2);
}

/// tiny-mixed with the matrices of its layers in NVFP4 as ModelOpt writes it, those that `skip` names left out.
fn nvfp4_folder(skip: &str) -> tempfile::TempDir {
    let dir = edited(|all| {
        let wanted = |name: &str, shape: &[usize]| {
            shape.len() == 2 && name.starts_with("model.layers.") && (skip.is_empty() || !name.contains(skip))
        };
        let names: Vec<String> = all.iter().filter(|(n, (_, s, _))| wanted(n, s)).map(|(n, _)| n.clone()).collect();
        for (i, name) in names.into_iter().enumerate() {
            let (_, shape, bytes) = all.remove(&name).unwrap();
            let values: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            let factor = 0.000_1 * (1.0 + i as f32 / 7.0);
            let (mut nibbles, mut scales) = (Vec::new(), Vec::new());
            for block in values.chunks_exact(16) {
                let most = block.iter().fold(0f32, |m, v| m.max(v.abs()));
                // The next power of two: enough to be a weight.
                let exponent = ((most / 6.0 / factor).log2().ceil() as i32).clamp(-6, 8);
                scales.push(((exponent + 7) << 3) as u8);
                let step = 2f32.powi(exponent) * factor;
                let codes = block.iter().map(|v| {
                    let near = |c: &u8| ((super::super::published::e2m1(*c) * step - v).abs() * 1e9) as i64;
                    (0..16u8).min_by_key(near).unwrap()
                });
                let codes: Vec<u8> = codes.collect();
                nibbles.extend(codes.chunks_exact(2).map(|c| c[0] | c[1] << 4));
            }
            let base = name.trim_end_matches(".weight");
            let (out, inner) = (shape[0], shape[1]);
            all.insert(name.clone(), (safetensors::Dtype::U8, vec![out, inner / 2], nibbles));
            let scale = (safetensors::Dtype::F8_E4M3, vec![out, inner / 16], scales);
            all.insert(format!("{base}.weight_scale"), scale);
            let factor = (safetensors::Dtype::F32, vec![], factor.to_le_bytes().to_vec());
            all.insert(format!("{base}.weight_scale_2"), factor);
        }
    });
    configured(dir.path(), |c| {
        c["quantization_config"] = serde_json::json!({
            "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", format!("*{skip}*")],
        });
    });
    dir
}

#[test]
fn an_nvfp4_folder_is_kept_as_published() {
    let folder = nvfp4_folder("");
    let mut packed = Checkpoint::open_dir(folder.path()).unwrap();
    packed.check().unwrap();
    assert_eq!(packed.unknown_tensors(), Vec::<String>::new());
    let kept = packed.kept().unwrap().unwrap().to_string();
    assert!(kept.contains("NVFP4") && kept.contains("48 matrices kept as published (nvfp4); 2 that"), "{kept}");
    let (published, stored) = (logits(&packed), packed.fingerprint());
    // 4.5 bits a value, and 256 bytes for 32 rows.
    let bytes = |checkpoint: &Checkpoint, recipe| checkpoint.bytes(recipe) as f64;
    assert!(bytes(&packed, Recipe::Stored) < 0.55 * bytes(&packed, Recipe::Bf16));
    packed.set_recipe(Recipe::Bf16);
    assert_eq!(logits(&packed), published, "the values are those that the library computes");
    assert_ne!(packed.fingerprint(), stored, "the form is part of it");
    packed.set_recipe(Recipe::Bits4);
    let kept = packed.kept().unwrap().unwrap().to_string();
    assert!(kept.contains("kept as published (nvfp4); 2 that were not packed as int8."), "{kept}");
    // As a folder of our own it holds the same.
    let out = tempfile::tempdir().unwrap();
    quantized(&packed, out.path());
    let ours = Checkpoint::open_dir(out.path()).unwrap();
    ours.check().unwrap();
    assert_eq!(logits(&ours), logits(&packed));
    let part = out.path().join("part-001.safetensors");
    let mut bytes = std::fs::read(&part).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let (name, end) = metadata
        .tensors()
        .into_iter()
        .find(|(name, _)| name.ends_with("q_proj.nvfp4"))
        .map(|(name, info)| (name, info.data_offsets.1))
        .unwrap();
    bytes[8 + header + end - 4..8 + header + end].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&part, bytes).unwrap();
    let damaged = Checkpoint::open_dir(out.path()).unwrap();
    let spec = damaged.spec().clone();
    let (full, shape) = Checkpoint::expected_tensors(&spec)
        .into_iter()
        .find(|(full, _)| full.trim_end_matches(".weight") == name.trim_end_matches(".nvfp4"))
        .unwrap();
    let error = damaged.weight(full.trim_end_matches(".weight"), &shape).err().unwrap().to_string();
    assert!(error.contains(&name) && error.contains("damaged") && !error.contains('\n'), "{error}");
}

#[test]
fn an_nvfp4_folder_may_leave_out_what_it_says() {
    let folder = nvfp4_folder("o_proj");
    let checkpoint = Checkpoint::open_dir(folder.path()).unwrap();
    checkpoint.check().unwrap();
    let kept = checkpoint.kept().unwrap().unwrap().to_string();
    assert!(kept.contains("kept as published (nvfp4); 8 that were not packed as bf16"), "{kept}");
    assert_eq!(logits(&checkpoint).len(), 3);
}

#[test]
fn synthetic_layers_may_be_published() {
    let plain = Checkpoint::open("synthetic:9b").unwrap();
    for (name, form, bits) in [("synthetic:9b-nvfp4", "nvfp4", 4.516), ("synthetic:9b-gptq:3", "group4", 4.25)] {
        let made = Checkpoint::open(name).unwrap();
        assert_eq!((made.weights_name(), made.published().unwrap()), (form, format!("synthetic {form}")));
        assert_ne!(made.fingerprint(), plain.fingerprint());
        let tables = 2 * 73_448 * 4096 * 2;
        let layers = 9_477_203_968.0 - 2.0 * 73_448.0 * 4096.0;
        let found = (made.bytes(Recipe::Stored) - tables) as f64 * 8.0 / layers;
        assert!((found - bits).abs() < 0.02, "{name}: {found} bits");
    }
    assert!(Checkpoint::open("synthetic:9b-awq").is_err());
}

#[test]
fn a_weight_packed_in_some_layers_only_is_refused_unless_the_folder_says_so() {
    let [half, _] = packed_and_plain(&["layers.3.mlp.down"]);
    let error = refusal(half.path());
    assert!(
        error.starts_with("tensor `model.layers.3.mlp.down_proj.weight` is not packed, but model.layers.0.mlp.down_proj is pack-quantized"),
        "{error}"
    );
    configured(half.path(), |c| {
        c["quantization_config"]["ignore"] = serde_json::json!(["re:.*layers\\.3\\.mlp\\.down.*"]);
    });
    let checkpoint = Checkpoint::open_dir(half.path()).unwrap();
    checkpoint.check().unwrap();
    assert!(checkpoint.kept().unwrap().unwrap().to_string().contains("47 matrices kept as published (group4); 3 that"));
    // Gate and up lie in turns: a folder that treats them differently is still loaded.
    let [odd, _] = packed_and_plain(&["mlp.up_proj"]);
    assert_eq!(logits(&Checkpoint::open_dir(odd.path()).unwrap()).len(), 3);
}

#[test]
fn an_index_that_names_what_its_file_does_not_have_is_refused() {
    let dir = edited(|_| ());
    std::fs::rename(dir.path().join("model.safetensors"), dir.path().join("a.safetensors")).unwrap();
    let index =
        serde_json::json!({"weight_map": {"model.norm.weight": "a.safetensors", "lm_head.qweight": "a.safetensors"}});
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let error = refusal(dir.path());
    assert!(error.contains("names tensor `lm_head.qweight` in a.safetensors, which does not have it"), "{error}");
}

fn quantized(source: &Checkpoint, out: &Path) -> Vec<crate::model::quantize::Part> {
    let mut parts = Vec::new();
    let done = crate::model::quantize::quantize(source, None, out, &Default::default(), &mut |p| parts.push(p.clone()));
    assert!(done.unwrap().unwrap() > 0);
    parts
}

#[test]
fn a_quantized_folder_answers_as_its_source_packed_while_loading() {
    for recipe in [Recipe::Bits8, Recipe::Bits6, Recipe::Bits5, Recipe::Bits4] {
        let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
        source.set_recipe(recipe);
        let out = tempfile::tempdir().unwrap();
        let parts = quantized(&source, out.path());
        assert_eq!(parts.iter().map(|p| p.name.as_str()).collect::<Vec<_>>()[..2], ["embedding", "layer 0"]);
        assert_eq!((parts.len(), parts[7].name.as_str()), (8, "head"));
        let most = match recipe {
            Recipe::Bits8 => 1e-4,
            Recipe::Bits6 => 1e-3,
            Recipe::Bits5 => 3e-3,
            _ => 1e-2,
        };
        assert!(parts[1..7].iter().all(|p| p.errors.weights > 0.0 && p.errors.weights < most), "{parts:?}");
        let expected = logits(&source);
        let folder = Checkpoint::open_dir(out.path()).unwrap();
        assert_eq!(folder.unknown_tensors(), Vec::<String>::new());
        assert_eq!(logits(&folder), expected, "{recipe:?}");
        assert!(folder.kept().unwrap().unwrap().to_string().contains("kept as published (int8)"));
        // A second run finds everything, and does not write it again.
        assert!(quantized(&source, out.path()).iter().all(|p| p.earlier));
    }
}

#[test]
fn a_run_that_was_stopped_goes_on_where_it_was() {
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.set_recipe(Recipe::Bits8);
    let out = tempfile::tempdir().unwrap();
    let stop = crate::protocol::engine::Cancel::default();
    let mut heard = 0;
    let stopped = crate::model::quantize::quantize(&source, None, out.path(), &stop, &mut |part| {
        heard += 1;
        if part.number == 3 {
            stop.cancel();
        }
    });
    assert_eq!((stopped.unwrap(), heard), (None, 3));
    assert!(Checkpoint::open_dir(out.path()).is_err(), "without its index it is no checkpoint");
    let torn = out.path().join("part-001.safetensors");
    let bytes = std::fs::read(&torn).unwrap();
    std::fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();
    let parts = quantized(&source, out.path());
    let earlier: Vec<bool> = parts.iter().map(|p| p.earlier).collect();
    assert_eq!(earlier[..4], [true, false, true, false]);
    assert!(std::fs::read(&torn).unwrap() == bytes, "the same file again");
    // Parts of another recipe are not taken for this one's.
    source.set_recipe(Recipe::Bits4);
    assert!(quantized(&source, out.path()).iter().all(|p| !p.earlier));
}

#[test]
fn kept_weights_stand_for_their_source_until_they_are_damaged() {
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.set_recipe(Recipe::Bits4);
    let dir = tempfile::tempdir().unwrap();
    assert!(source.packed_earlier(dir.path(), source.recipe()).unwrap().is_none());
    quantized(&source, &dir.path().join(source.fingerprint()));
    let earlier = source.packed_earlier(dir.path(), source.recipe()).unwrap().unwrap();
    assert_eq!((earlier.fingerprint(), earlier.name()), (source.fingerprint(), source.name()));
    assert!(source.packs_while_loading(Recipe::Bits4) && !earlier.packs_while_loading(Recipe::Bits4));
    assert!(earlier.published().is_none() && earlier.kept().unwrap().is_none());
    assert_eq!(logits(&earlier), logits(&source));
    let mode = |p: &Path| std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(p).unwrap().permissions()) & 0o777;
    let part = dir.path().join(source.fingerprint()).join("part-002.safetensors");
    assert_eq!(mode(&part), 0o600);
    drop(earlier);
    let mut bytes = std::fs::read(&part).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let error = source.packed_earlier(dir.path(), source.recipe()).err().unwrap().to_string();
    assert!(error.contains("not those that its index describes"), "{error}");
    assert!(crate::model::quantize::kept_folders(dir.path())[0].1 > 100_000);
    assert!(crate::model::quantize::remove_kept(dir.path()).unwrap() > 100_000);
    assert!(source.packed_earlier(dir.path(), source.recipe()).unwrap().is_none());
}

#[test]
fn what_somebody_else_packed_is_repacked_once() {
    let [integers, _] = packed_and_plain(&[]);
    // A folder may leave out some layers, if it says so.
    for (folder, name) in [(nvfp4_folder("layers.3."), "NVFP4"), (integers, "compressed-tensors")] {
        for recipe in [Recipe::Stored, Recipe::Bits4] {
            let mut source = Checkpoint::open_dir(folder.path()).unwrap();
            source.set_recipe(recipe);
            let dir = tempfile::tempdir().unwrap();
            quantized(&source, &dir.path().join(source.fingerprint()));
            let earlier = source.packed_earlier(dir.path(), source.recipe()).unwrap().unwrap();
            assert!(source.packs_while_loading(recipe) && !earlier.packs_while_loading(recipe));
            assert_eq!(earlier.state_fingerprint(), source.state_fingerprint(), "saved state stays valid");
            assert_eq!((earlier.bytes(recipe), earlier.published()), (source.bytes(recipe), source.published()));
            assert!(earlier.published().unwrap().contains(name));
            assert_eq!(logits(&earlier), logits(&source), "{name} {recipe:?}");
        }
    }
    let folder = nvfp4_folder("");
    let source = Checkpoint::open_dir(folder.path()).unwrap();
    assert!(!source.packs_while_loading(Recipe::Bf16), "four times the bytes are not worth keeping");
    let ours = tempfile::tempdir().unwrap();
    quantized(&source, ours.path());
    assert!(!Checkpoint::open_dir(ours.path()).unwrap().packs_while_loading(Recipe::Stored), "nothing is left to do");
}

#[test]
fn only_kept_weights_are_removed_and_never_through_a_link() {
    use crate::model::quantize::{kept_folders, remove_kept};
    let (dir, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = |at: &Path| {
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, "text").unwrap();
        at.to_path_buf()
    };
    let [ours, linked, beside] = [1, 2, 3].map(|n| format!("{n:032x}"));
    let weights = dir.path().join("weights");
    let gone =
        [file(&weights.join(&ours).join("part-000.safetensors")), file(&weights.join(&beside).join("config.json"))];
    let stays = [
        file(&weights.join("photos/part-000.safetensors")),
        file(&weights.join("notes.txt")),
        file(&weights.join(&beside).join("diary.txt")),
        file(&weights.join(&beside).join("part-1.safetensors")),
        file(&foreign.path().join(&linked).join("part-000.safetensors")),
    ];
    std::os::unix::fs::symlink(foreign.path().join(&linked), weights.join(&linked)).unwrap();
    assert_eq!(kept_folders(&weights).iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [4, 4]);
    assert_eq!(remove_kept(&weights).unwrap(), 8);
    assert!(gone.iter().all(|p| !p.exists()) && stays.iter().all(|p| p.exists()));
    assert!(!weights.join(&ours).exists() && weights.join(&beside).exists());
    // Nor is the folder of all of them a link.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(foreign.path(), &link).unwrap();
    assert_eq!((kept_folders(&link), remove_kept(&link).unwrap()), (Vec::new(), 0));
    assert!(stays.iter().all(|p| p.exists()));
}
