//! Checkpoints: refused folders, and changes that a fingerprint detects.

use std::collections::HashMap;

use super::*;

mod kept;
mod packed;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
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
    let expected = checkpoint.spec().tensors();
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
    checkpoint.prefill = Precision::Fp8;
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
fn an_index_names_files_of_its_own_folder_that_can_be_seen() {
    let dir = edited(|_| ());
    let named = |file: &str| {
        let index = serde_json::json!({"weight_map": {"model.norm.weight": file}});
        std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        refusal(dir.path())
    };
    for file in ["../model.safetensors", "/dev/zero", "..", ".", "", "sub/a.safetensors", "a.safetensors/", "a\\b"] {
        let error = named(file);
        assert!(error.ends_with(&format!("its index names `{file}`, which is no file of this folder")), "{error}");
    }
    for (file, message) in [("a\nb", "`a b`"), ("\u{1b}[2J", "`\\x1b[2J`"), ("a\0.safetensors", "`a\\x00.safetensors`")]
    {
        assert!(
            named(file).ends_with(&format!("its index names {message}, which is no file of this folder")),
            "{message}"
        );
    }
    std::fs::create_dir(dir.path().join("folder.safetensors")).unwrap();
    for file in ["none.safetensors", "folder.safetensors"] {
        assert!(named(file).contains("but it is not there; download it again"), "{file}");
    }
    // A link to itself: no process can open it, whatever its permissions.
    let own = dir.path().join("own.safetensors");
    std::os::unix::fs::symlink(&own, &own).unwrap();
    let error = named("own.safetensors");
    assert!(error.starts_with(&format!("cannot read {}: ", own.display())), "{error}");
}

#[test]
fn names_of_tensors_are_one_short_line_in_every_message() {
    let name = format!("a\nsvdquant_lora\u{1b}[2J{}", "x".repeat(1000));
    let dir = edited(|all| {
        all.insert(name.clone(), (safetensors::Dtype::BF16, vec![2], vec![0; 4]));
    });
    let low_rank = refusal(dir.path());
    std::fs::rename(dir.path().join("model.safetensors"), dir.path().join("a.safetensors")).unwrap();
    std::fs::copy(dir.path().join("a.safetensors"), dir.path().join("b.safetensors")).unwrap();
    let indexed = |files: serde_json::Value| {
        let index = serde_json::json!({ "weight_map": files });
        std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        refusal(dir.path())
    };
    let other = format!("b{name}");
    for message in [
        low_rank,
        indexed(serde_json::json!({ name.as_str(): "a.safetensors", "lm_head.weight": "b.safetensors" })),
        indexed(serde_json::json!({ other.as_str(): "a.safetensors" })),
    ] {
        assert!(message.contains("tensor `") && message.len() < 600 && !message.contains('\u{1b}'), "{message}");
    }
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
fn weights_in_unknown_formats_are_named_as_what_they_are() {
    let dir = edited(|_| ());
    configured(dir.path(), |c| c["quantization_config"] = serde_json::json!({"quant_method": "hqq", "nbits": 4}));
    let error = refusal(dir.path());
    assert!(error.contains("is an HQQ model, 4 bits, which is not read (GPTQ, AWQ, "), "{error}");
    configured(dir.path(), |c| drop(c.as_object_mut().unwrap().remove("quantization_config")));
    std::fs::write(dir.path().join("hf_quant_config.json"), "{").unwrap();
    let error = refusal(dir.path());
    assert!(error.contains("hf_quant_config.json"), "{error}");
}

#[test]
fn what_a_reader_of_tensors_alone_would_leave_out_is_refused_by_name() {
    let extra = (safetensors::Dtype::BF16, vec![2], vec![0; 4]);
    let dir = edited(|all| {
        all.insert("model.layers.0.self_attn.o_proj.weight_quantizer._svdquant_lora_a".into(), extra);
    });
    configured(dir.path(), |c| {
        c["quantization_config"] = serde_json::json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
    });
    let error = refusal(dir.path());
    assert!(error.contains("o_proj.weight_quantizer._svdquant_lora_a` belongs to a low-rank part"), "{error}");
    configured(dir.path(), |c| {
        c["quantization_config"] = serde_json::json!({
            "quant_method": "compressed-tensors",
            "transform_config": {"config_groups": {"R4": {"apply": [{"targets": ["Linear"], "location": "input"}]}}},
        });
    });
    let error = refusal(dir.path());
    assert!(error.contains("rotated at `input`") && error.contains("take the unquantised folder"), "{error}");
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
