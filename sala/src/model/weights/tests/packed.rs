//! Folders packed by other tools.

use super::kept::quantized;
use super::*;

/// tiny-mixed with the matrices of its layers as compressed-tensors packs them (4 bits, groups of 32), and the same
/// values in bf16.
pub(super) fn packed_and_plain(skip: &[&str]) -> [tempfile::TempDir; 2] {
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

pub(super) fn logits(checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
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
    packed.recipe = Recipe::Bf16;
    assert!(packed.kept().unwrap().unwrap().to_string().contains("48 widened to bf16"));
    assert_eq!(logits(&packed), logits(&plain), "widened");
    assert_ne!(stored, packed.fingerprint(), "the form is part of it");
    packed.recipe = Recipe::Bits4;
    let kept = packed.kept().unwrap().unwrap().to_string();
    assert!(kept.contains("48 matrices kept as published (group4); 2 that were not packed as int8."), "{kept}");
    for recipe in [Recipe::Bits6, Recipe::Bits5] {
        packed.recipe = recipe;
        assert_eq!(
            packed.kept().unwrap().unwrap().to_string(),
            kept,
            "{recipe:?}: fewer bits than were asked for are kept"
        );
    }
    assert!(packed.bytes(Recipe::Stored) < packed.bytes(Recipe::Bf16) / 2);
}

#[test]
fn what_config_json_says_of_zero_points_is_part_of_the_fingerprint() {
    let [packed, _] = packed_and_plain(&[]);
    let declared = |symmetric: bool, version: &str| {
        configured(packed.path(), |c| {
            c["quantization_config"] = serde_json::json!({
                "quant_method": "gptq", "bits": 4, "group_size": 32, "sym": symmetric, "checkpoint_format": version,
            });
        });
        Checkpoint::open_dir(packed.path()).unwrap().fingerprint()
    };
    // The values of symmetric zero points show their version.
    assert_eq!(declared(true, "gptq"), declared(true, "gptq_v2"));
    assert_ne!(
        declared(false, "gptq"),
        declared(false, "gptq_v2"),
        "a copy made by the other reading is not this one's"
    );
}

/// tiny-mixed with the matrices of its layers in NVFP4 as ModelOpt writes it, except those that match `skip`.
pub(super) fn nvfp4_folder(skip: &str) -> tempfile::TempDir {
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
                // Scales round up to a power of two, which is enough for a test.
                let exponent = ((most / 6.0 / factor).log2().ceil() as i32).clamp(-6, 8);
                scales.push(((exponent + 7) << 3) as u8);
                let step = 2f32.powi(exponent) * factor;
                let codes = block.iter().map(|v| {
                    let near = |c: &u8| ((crate::model::published::e2m1(*c) * step - v).abs() * 1e9) as i64;
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
    packed.recipe = Recipe::Bf16;
    assert_eq!(logits(&packed), published, "the values are those that the library computes");
    assert_ne!(packed.fingerprint(), stored, "the form is part of it");
    packed.recipe = Recipe::Bits4;
    let kept = packed.kept().unwrap().unwrap().to_string();
    assert!(kept.contains("kept as published (nvfp4); 2 that were not packed as int8."), "{kept}");
    // Our own packed folder holds the same values.
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
    let (full, shape) = spec
        .tensors()
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
    // Rows of gate and up interleave: a folder that packs the two differently still loads.
    let [odd, _] = packed_and_plain(&["mlp.up_proj"]);
    assert_eq!(logits(&Checkpoint::open_dir(odd.path()).unwrap()).len(), 3);
}

/// tiny-mixed as ModelOpt's NVFP4_AWQ writes it: matrices that follow no norm have a scale per input; and the same
/// values in f32.
fn smoothed_and_plain() -> [tempfile::TempDir; 2] {
    let scaled = |name: &str| name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    let scale = |k: usize| 0.5 + (k % 7) as f32 / 4.0;
    // Every value is 0.5 or -0.5 of NVFP4 with scales of one: the values do not matter here.
    let code = |i: usize| if i.is_multiple_of(3) { 9u8 } else { 1 };
    let value = |i: usize| if i.is_multiple_of(3) { -0.5f32 } else { 0.5 };
    let factor = 0.0625f32;
    let packed = edited(|all| {
        let names: Vec<String> = all.keys().filter(|n| scaled(n)).cloned().collect();
        for name in names {
            let (_, shape, _) = all.remove(&name).unwrap();
            let (out, inner) = (shape[0], shape[1]);
            let base = name.trim_end_matches(".weight");
            let bytes = (0..out * inner / 2).map(|i| code(2 * i) | code(2 * i + 1) << 4).collect();
            let mut add = |part: &str, dtype, shape, bytes| {
                all.insert(format!("{base}.{part}"), (dtype, shape, bytes));
            };
            add("weight", safetensors::Dtype::U8, vec![out, inner / 2], bytes);
            add("weight_scale", safetensors::Dtype::F8_E4M3, vec![out, inner / 16], vec![0x38; out * inner / 16]);
            add("weight_scale_2", safetensors::Dtype::F32, vec![], factor.to_le_bytes().to_vec());
            let scales = (0..inner).flat_map(|k| scale(k).to_le_bytes()).collect();
            add("pre_quant_scale", safetensors::Dtype::F32, vec![inner], scales);
        }
    });
    configured(packed.path(), |c| {
        c["quantization_config"] = serde_json::json!({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"});
    });
    let plain = edited(|all| {
        for (name, (dtype, shape, bytes)) in all.iter_mut().filter(|(name, _)| scaled(name)) {
            assert!(name.starts_with("model.layers."));
            let inner = shape[1];
            let values = (0..shape[0] * inner).flat_map(|i| (value(i) * factor * scale(i % inner)).to_le_bytes());
            (*dtype, *bytes) = (safetensors::Dtype::F32, values.collect());
        }
    });
    [packed, plain]
}

#[test]
fn a_folder_with_scales_of_inputs_answers_as_its_values_do() {
    let [packed, plain] = smoothed_and_plain();
    let (mut packed, mut plain) =
        (Checkpoint::open_dir(packed.path()).unwrap(), Checkpoint::open_dir(plain.path()).unwrap());
    packed.check().unwrap();
    assert_eq!(packed.unknown_tensors(), Vec::<String>::new());
    let kept = packed.kept().unwrap().unwrap().to_string();
    assert!(kept.contains("packed again (int8)") && !kept.contains("as published"), "{kept}");
    for checkpoint in [&mut packed, &mut plain] {
        checkpoint.recipe = Recipe::Bf16;
    }
    assert_eq!(logits(&packed), logits(&plain));
}
