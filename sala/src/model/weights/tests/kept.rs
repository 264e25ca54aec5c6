//! Folders that the program packs, and keeps.

use super::packed::{logits, nvfp4_folder, packed_and_plain};
use super::*;
use crate::model::quantize::{Claim, Part, quantize};

pub(super) fn quantized(source: &Checkpoint, out: &Path) -> Vec<Part> {
    let mut parts = Vec::new();
    let claim = Claim::take(out).unwrap();
    let index = quantize(source, None, &claim, &Default::default(), &mut |p| parts.push(p.clone())).unwrap().unwrap();
    assert!(!out.join("model.safetensors.index.json").exists(), "it is written last");
    index.write().unwrap();
    assert!(index.bytes > 0);
    parts
}

#[test]
fn a_quantized_folder_answers_as_its_source_packed_while_loading() {
    for recipe in [Recipe::Bits8, Recipe::Bits6, Recipe::Bits5, Recipe::Bits4] {
        let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
        source.recipe = recipe;
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
    }
}

#[test]
fn a_stopped_run_starts_again() {
    use crate::model::quantize::{Holds, holds};
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.recipe = Recipe::Bits8;
    let (whole, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    quantized(&source, whole.path());
    let stop = crate::engine::protocol::Cancel::default();
    let mut heard = 0;
    let stopped = quantize(&source, None, &Claim::take(out.path()).unwrap(), &stop, &mut |part| {
        heard += 1;
        if part.number == 3 {
            stop.cancel();
        }
    });
    assert!(stopped.unwrap().is_none() && heard == 3);
    let words = Checkpoint::open_dir(out.path()).err().unwrap().to_string();
    assert!(words.contains("packing it was not finished"), "{words}");
    assert_eq!(holds(&source, &source.fingerprint(), out.path()), Holds::Free);
    std::fs::write(out.path().join("tokenizer.json"), "{}").unwrap();
    assert_eq!(holds(&source, &source.fingerprint(), out.path()), Holds::Free, "copied beside the parts");
    // Whatever the parts hold by now, and a part that the model does not have.
    for torn in ["part-001.safetensors", "part-042.safetensors"] {
        std::fs::write(out.path().join(torn), "torn").unwrap();
    }
    assert_eq!(quantized(&source, out.path()).len(), 8);
    std::fs::remove_file(out.path().join("tokenizer.json")).unwrap();
    let files = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let all = entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap()));
        all.collect::<std::collections::BTreeMap<_, _>>()
    };
    assert!(files(out.path()) == files(whole.path()), "the same files with the same bytes");
    // An earlier version wrote config.json after the parts, and kept hashes and statistics with them.
    for gone in ["config.json", "model.safetensors.index.json"] {
        std::fs::remove_file(out.path().join(gone)).unwrap();
    }
    for left in [".sala-chat.hashes", "calibration.safetensors", ".part-a1B2c3"] {
        std::fs::write(out.path().join(left), "left").unwrap();
    }
    assert_eq!(holds(&source, &source.fingerprint(), out.path()), Holds::Free);
    quantized(&source, out.path());
    assert!(files(out.path()) == files(whole.path()), "nothing of it is left");
    std::fs::remove_file(out.path().join("config.json")).unwrap();
    std::fs::remove_file(out.path().join("model.safetensors.index.json")).unwrap();
    std::fs::write(out.path().join("diary.txt"), "mine").unwrap();
    assert_eq!(holds(&source, &source.fingerprint(), out.path()), Holds::Files("diary.txt".to_owned()));
}

#[test]
fn kept_weights_stand_for_their_source_until_they_are_damaged() {
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.recipe = Recipe::Bits4;
    let dir = tempfile::tempdir().unwrap();
    assert!(source.packed_earlier(dir.path(), source.recipe).unwrap().is_none());
    quantized(&source, &dir.path().join(source.fingerprint()));
    let earlier = source.packed_earlier(dir.path(), source.recipe).unwrap().unwrap();
    assert_eq!((earlier.fingerprint(), earlier.name()), (source.fingerprint(), source.name()));
    assert!(source.packs_while_loading(Recipe::Bits4) && !earlier.packs_while_loading(Recipe::Bits4));
    assert!(earlier.published().is_none() && earlier.kept().unwrap().is_none());
    assert_eq!(logits(&earlier), logits(&source));
    let mode = |p: &Path| std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(p).unwrap().permissions()) & 0o777;
    let part = dir.path().join(source.fingerprint()).join("part-002.safetensors");
    assert_eq!(mode(&part), mode(&part.with_file_name("config.json")), "one can be read by whoever can read the other");
    drop(earlier);
    let mut bytes = std::fs::read(&part).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let error = source.packed_earlier(dir.path(), source.recipe).err().unwrap().to_string();
    assert!(error.contains("not those that its index describes"), "{error}");
    assert!(crate::model::quantize::kept_folders(dir.path())[0].bytes > 100_000);
    let removed = crate::model::quantize::remove_kept(dir.path()).unwrap();
    assert!(removed.files == 10 && removed.bytes > 100_000, "8 parts, config.json and the index: {removed:?}");
    assert!(source.packed_earlier(dir.path(), source.recipe).unwrap().is_none());
}

#[test]
fn what_was_changed_in_a_folder_is_named() {
    use crate::model::quantize::{Condition, check};
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.recipe = Recipe::Bits8;
    let out = tempfile::tempdir().unwrap();
    let damaged = || -> Vec<String> {
        let found = check(out.path(), &mut |_, _| ()).unwrap().into_iter();
        found.filter(|(_, condition)| *condition != Condition::AsWritten).map(|(name, _)| name).collect()
    };
    assert_eq!(check(out.path(), &mut |_, _| ()), None, "nothing is in it");
    assert_eq!(check(&fixture("tiny-mixed"), &mut |_, _| ()), None, "somebody else's");
    quantized(&source, out.path());
    assert_eq!((damaged(), check(out.path(), &mut |_, _| ()).unwrap().len()), (Vec::new(), 8));
    let part = |i: usize| out.path().join(format!("part-{i:03}.safetensors"));
    let mut bytes = std::fs::read(part(3)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 2].iter_mut().for_each(|b| *b ^= 0x55);
    std::fs::write(part(3), bytes).unwrap();
    std::fs::remove_file(part(5)).unwrap();
    // A link to itself: no process can open it, whatever its permissions.
    std::fs::remove_file(part(6)).unwrap();
    std::os::unix::fs::symlink(part(6), part(6)).unwrap();
    assert_eq!(damaged(), ["part-003.safetensors", "part-005.safetensors", "part-006.safetensors"]);
    let found = check(out.path(), &mut |_, _| ()).unwrap();
    assert!(matches!(found["part-006.safetensors"], Condition::Unreadable(_)), "{found:?}");
    assert!(matches!(found["part-005.safetensors"], Condition::Damaged(_)), "{found:?}");
    quantized(&source, out.path());
    assert_eq!(damaged(), Vec::<String>::new());

    let path = out.path().join("model.safetensors.index.json");
    let edited = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut index: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        edit(&mut index["metadata"]);
        std::fs::write(&path, index.to_string()).unwrap();
    };
    edited(&|metadata| metadata["seal"] = "another".into());
    assert_eq!(damaged(), ["model.safetensors.index.json"]);
    edited(&|metadata| metadata["hashes"]["part-003.safetensors"] = "another".into());
    assert_eq!(damaged(), ["part-003.safetensors"]);
    // As an earlier version finished it.
    edited(&|metadata| drop(metadata.as_object_mut().unwrap().remove("hashes")));
    assert_eq!(check(out.path(), &mut |_, _| ()), Some(Default::default()));
}

#[test]
fn a_run_removes_what_others_left_and_excludes_other_runs() {
    use crate::model::ModelError;
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.recipe = Recipe::Bits8;
    let out = tempfile::tempdir().unwrap();
    let left = [".part-a1B2c3", ".tmpA1b2C3"].map(|name| out.path().join(name));
    left.iter().for_each(|path| std::fs::write(path, "torn").unwrap());
    let mut refused = 0;
    let mut hear = |_: &Part| refused += usize::from(matches!(Claim::take(out.path()), Err(ModelError::InUse { .. })));
    let claim = Claim::take(out.path()).unwrap();
    quantize(&source, None, &claim, &Default::default(), &mut hear).unwrap().unwrap().write().unwrap();
    drop(claim);
    assert_eq!(refused, 8);
    assert!(left.iter().all(|path| !path.exists()));
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 10, "8 parts, config.json and the index");
    assert!(Claim::take(out.path()).is_ok());
}

#[test]
fn what_somebody_else_packed_is_repacked_once() {
    let [integers, _] = packed_and_plain(&[]);
    // A folder may leave out some layers if it declares so.
    for (folder, name) in [(nvfp4_folder("layers.3."), "NVFP4"), (integers, "compressed-tensors")] {
        for recipe in [Recipe::Stored, Recipe::Bits4] {
            let mut source = Checkpoint::open_dir(folder.path()).unwrap();
            source.recipe = recipe;
            let dir = tempfile::tempdir().unwrap();
            quantized(&source, &dir.path().join(source.fingerprint()));
            let earlier = source.packed_earlier(dir.path(), source.recipe).unwrap().unwrap();
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
    use crate::model::quantize::{Removed, Stage, kept_folders, remove_kept};
    let (dir, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = |at: &Path| {
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, "text").unwrap();
        at.to_path_buf()
    };
    let [ours, linked, mixed, left, empty, going] = [1, 2, 3, 4, 5, 6].map(|n| format!("{n:032x}"));
    let weights = dir.path().join("weights");
    let gone = [
        file(&weights.join(&ours).join("part-000.safetensors")),
        file(&weights.join(&ours).join("model.safetensors.index.json")),
        file(&weights.join(&mixed).join("config.json")),
        // Files of a killed run, and of one of an earlier version.
        file(&weights.join(&left).join(".part-a1B2c3")),
        file(&weights.join(&left).join(".tmpA1b2C3")),
    ];
    std::fs::create_dir(weights.join(&empty)).unwrap();
    let claim = Claim::take(&weights.join(&going)).unwrap();
    let stays = [
        file(&weights.join("photos/part-000.safetensors")),
        file(&weights.join("notes.txt")),
        file(&weights.join(&mixed).join("diary.txt")),
        file(&weights.join(&mixed).join("part-1.safetensors")),
        file(&weights.join(&going).join("part-000.safetensors")),
        file(&foreign.path().join(&linked).join("part-000.safetensors")),
    ];
    std::os::unix::fs::symlink(foreign.path().join(&linked), weights.join(&linked)).unwrap();
    let kept: Vec<_> = kept_folders(&weights).iter().map(|kept| (kept.stage, kept.bytes)).collect();
    let unfinished = |bytes: u64| (Stage::Unfinished, bytes);
    assert_eq!(kept, [(Stage::Finished, 8), unfinished(4), unfinished(8), unfinished(0), (Stage::Going, 4)]);
    assert_eq!(remove_kept(&weights).unwrap(), Removed { files: 5, bytes: 20 });
    assert!(gone.iter().all(|p| !p.exists()) && stays.iter().all(|p| p.exists()));
    assert!([&ours, &left, &empty].iter().all(|name| !weights.join(name).exists()) && weights.join(&mixed).exists());
    drop(claim);
    // The folder of all copies must not be a link either.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(foreign.path(), &link).unwrap();
    assert_eq!((kept_folders(&link), remove_kept(&link).unwrap()), (Vec::new(), Removed::default()));
    assert!(stays.iter().all(|p| p.exists()));
}

#[test]
fn weights_of_an_earlier_version_are_refused_and_kept_ones_packed_again() {
    use crate::model::quantize::{Holds, holds, is_finished};
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.recipe = Recipe::Bits4;
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join(source.fingerprint());
    quantized(&source, &kept);
    // As that version finished it: its part, its names in the index, and the seal over both.
    let part = kept.join("part-001.safetensors");
    std::fs::copy(fixture("packed-earlier/part-001.safetensors"), &part).unwrap();
    let files: Vec<PathBuf> = (0..8).map(|i| kept.join(format!("part-{i:03}.safetensors"))).collect();
    let tensors = Tensors::open_files(&files).unwrap();
    let mut hasher = blake3::Hasher::new();
    tensors.hash_into(&mut hasher);
    let path = kept.join("model.safetensors.index.json");
    let mut index: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let map = index["weight_map"].as_object_mut().unwrap();
    map.retain(|name, _| !name.starts_with("model.layers.0."));
    let names = Tensors::open_files(std::slice::from_ref(&part)).unwrap();
    map.extend(names.names().map(|name| (name.to_owned(), "part-001.safetensors".into())));
    index["metadata"]["seal"] = hasher.finalize().to_hex().to_string().into();
    std::fs::write(&path, index.to_string()).unwrap();
    assert!(!is_finished(&kept).unwrap());
    assert!(source.packed_earlier(dir.path(), source.recipe).unwrap().is_none());
    // Opened directly, as a folder of the user.
    let refused = Checkpoint::open_dir(&kept).unwrap().check().unwrap_err().to_string();
    assert!(refused.contains("int4` was packed by an earlier version; pack its source again: sala-chat"), "{refused}");
    assert_eq!(holds(&source, &source.fingerprint(), &kept), Holds::Free);
    quantized(&source, &kept);
    assert!(is_finished(&kept).unwrap());
    let packed = source.packed_earlier(dir.path(), source.recipe).unwrap().unwrap();
    assert_eq!(logits(&packed), logits(&source));
}
