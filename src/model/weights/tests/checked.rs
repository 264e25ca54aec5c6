//! What is found in a folder that the program packed, before it is packed into again.

use super::kept::quantized;
use super::*;
use crate::model::ModelError;
use crate::model::quantize::{Claim, Condition, check, quantize, quantize_claimed, remove_damaged};
use crate::protocol::engine::Cancel;

/// A source, and a folder that it was packed into.
fn packed() -> (Checkpoint, tempfile::TempDir) {
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.set_recipe(Recipe::Bits8);
    let out = tempfile::tempdir().unwrap();
    quantized(&source, out.path());
    (source, out)
}

fn part(out: &tempfile::TempDir, i: usize) -> PathBuf {
    out.path().join(format!("part-{i:03}.safetensors"))
}

/// Another byte in the middle of a file.
fn change(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn without_hashes_nothing_is_said_of_the_parts_beside_a_missing_one() {
    let (source, out) = packed();
    let index = out.path().join("model.safetensors.index.json");
    let mut json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&index).unwrap()).unwrap();
    json["metadata"].as_object_mut().unwrap().remove("hashes");
    std::fs::write(&index, json.to_string()).unwrap();
    let before = std::fs::read(part(&out, 3)).unwrap();
    change(&part(&out, 3));
    std::fs::remove_file(part(&out, 5)).unwrap();
    let found = check(out.path(), &mut |_, _| ()).unwrap();
    assert_eq!(found.len(), 8);
    for (name, condition) in found {
        let missing = name == "part-005.safetensors";
        let expected = if missing { Condition::Damaged("missing".to_owned()) } else { Condition::NotCompared };
        assert_eq!(condition, expected, "{name}");
    }
    assert!(quantized(&source, out.path()).iter().all(|part| !part.earlier));
    assert!(std::fs::read(part(&out, 3)).unwrap() == before, "the change is not taken for what was written");
}

#[test]
fn a_part_that_the_system_does_not_let_be_read_stays() {
    let (source, out) = packed();
    let (unread, damaged, aside) = (part(&out, 3), part(&out, 5), out.path().join("aside"));
    // A link to itself: nobody can open it, whatever their rights.
    std::fs::rename(&unread, &aside).unwrap();
    std::os::unix::fs::symlink(&unread, &unread).unwrap();
    change(&damaged);
    let found = check(out.path(), &mut |_, _| ()).unwrap();
    assert!(matches!(found["part-003.safetensors"], Condition::Unreadable(_)), "{found:?}");
    assert!(matches!(found["part-005.safetensors"], Condition::Damaged(_)), "{found:?}");
    let refused = quantize(&source, None, out.path(), &Cancel::default(), &mut |_| ());
    assert!(matches!(&refused, Err(ModelError::File { path, .. }) if *path == unread), "{refused:?}");
    assert!(unread.is_symlink() && damaged.exists(), "nothing is removed");
    std::fs::rename(&aside, &unread).unwrap();
    let parts = quantized(&source, out.path());
    let made: Vec<usize> = parts.iter().filter(|part| !part.earlier).map(|part| part.number - 1).collect();
    assert_eq!(made, [5]);
}

#[test]
fn what_is_there_is_compared_once_and_that_can_be_stopped() {
    let (source, out) = packed();
    change(&part(&out, 3));
    let claim = Claim::take(out.path()).unwrap();
    let (stop, mut told) = (Cancel::default(), Vec::new());
    let mut tell = |name: &str, bytes: u64| {
        told.push((name.to_owned(), bytes));
        if told.len() == 6 {
            stop.cancel();
        }
    };
    assert!(remove_damaged(&source, &claim, &stop, &mut tell).unwrap().is_none());
    assert!(told.len() == 6 && told.iter().all(|(_, bytes)| *bytes > 0), "{told:?}");
    assert!(part(&out, 3).exists(), "nothing is removed");

    let stop = Cancel::default();
    let compared = remove_damaged(&source, &claim, &stop, &mut |_, _| ()).unwrap().unwrap();
    assert!(!part(&out, 3).exists());
    // What is noted of a part that stays is what it was compared with, not what it is read as once more.
    change(&part(&out, 4));
    quantize_claimed(&source, None, &claim, &compared, &stop, &mut |_| ()).unwrap().unwrap();
    let found = check(out.path(), &mut |_, _| ()).unwrap();
    let changed: Vec<&str> = found
        .iter()
        .filter(|(_, condition)| **condition != Condition::AsWritten)
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(changed, ["part-004.safetensors"]);
}
