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
fn demo_is_complete_and_keeps_its_fingerprint() {
    let (a, b) = (Checkpoint::open("demo").unwrap(), Checkpoint::open("demo").unwrap());
    a.check().unwrap();
    assert_eq!(a.dtype(), Dtype::Bf16);
    assert_eq!(a.fingerprint(), b.fingerprint());
    assert_eq!(a.fingerprint().len(), 32);
    assert!(super::super::demo_draft().unwrap().1.names().count() > 5);
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

#[test]
fn weights_that_somebody_packed_are_named_as_what_they_are() {
    let dir = edited(|_| ());
    let path = dir.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config["quantization_config"] = serde_json::json!({"quant_method": "gptq", "bits": 4, "group_size": 128});
    std::fs::write(&path, config.to_string()).unwrap();
    let error = Checkpoint::open_dir(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("is a GPTQ model, 4 bits, groups of 128;") && !error.contains('\n'), "{error}");
    config.as_object_mut().unwrap().remove("quantization_config");
    std::fs::write(&path, config.to_string()).unwrap();
    let beside = dir.path().join("hf_quant_config.json");
    std::fs::write(&beside, r#"{"quantization": {"quant_algo": "NVFP4", "group_size": 16}}"#).unwrap();
    assert!(matches!(Checkpoint::open_dir(dir.path()), Err(ModelError::Quantised { .. })));
    std::fs::write(&beside, "{").unwrap();
    let error = Checkpoint::open_dir(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("hf_quant_config.json"), "{error}");
}
