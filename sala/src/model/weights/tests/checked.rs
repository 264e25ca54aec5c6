//! The check of a packed folder before it is packed into again.

use super::kept::quantized;
use super::*;
use crate::engine::protocol::Cancel;
use crate::model::quantize::{Claim, Condition, check, quantize, quantize_claimed, remove_damaged};
use crate::model::{ModelError, WEIGHTS_INDEX};

fn packed() -> (Checkpoint, tempfile::TempDir) {
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.recipe = Recipe::Bits8;
    let out = tempfile::tempdir().unwrap();
    quantized(&source, out.path());
    (source, out)
}

fn part(out: &tempfile::TempDir, i: usize) -> PathBuf {
    out.path().join(format!("part-{i:03}.safetensors"))
}

/// Changes a byte in the middle of a file.
fn change(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn without_hashes_the_parts_next_to_a_missing_one_are_not_reported() {
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
    // A link to itself: no process can open it, whatever its permissions.
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
    let (stop, mut reported) = (Cancel::default(), Vec::new());
    let mut report = |name: &str, bytes: u64| {
        reported.push((name.to_owned(), bytes));
        if reported.len() == 6 {
            stop.cancel();
        }
    };
    assert!(remove_damaged(&source, &claim, &stop, &mut report).unwrap().is_none());
    assert!(reported.len() == 6 && reported.iter().all(|(_, bytes)| *bytes > 0), "{reported:?}");
    assert!(part(&out, 3).exists(), "nothing is removed");

    let stop = Cancel::default();
    let compared = remove_damaged(&source, &claim, &stop, &mut |_, _| ()).unwrap().unwrap();
    assert!(!part(&out, 3).exists());
    // The notes keep the hash that a part was compared with; they do not hash the file again.
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

#[test]
fn parts_that_were_damaged_while_packing_lay_stopped_are_packed_again() {
    let mut source = Checkpoint::open_dir(&fixture("tiny-mixed")).unwrap();
    source.recipe = Recipe::Bits8;
    let (whole, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    quantized(&source, whole.path());
    let notes = out.path().join(".sala-chat.hashes");
    let stopped = |parts: usize| {
        let stop = Cancel::default();
        let mut hear = |part: &crate::model::quantize::Part| {
            if part.number == parts {
                stop.cancel();
            }
        };
        assert_eq!(quantize(&source, None, out.path(), &stop, &mut hear).unwrap(), None);
    };
    let made = |parts: Vec<crate::model::quantize::Part>| -> Vec<usize> {
        parts.iter().filter(|part| !part.earlier).map(|part| part.number - 1).collect()
    };
    let as_whole = || {
        let same = (0..8).all(|i| std::fs::read(part(&out, i)).unwrap() == std::fs::read(part(&whole, i)).unwrap());
        let found = check(out.path(), &mut |_, _| ()).unwrap();
        same && found.values().all(|condition| *condition == Condition::AsWritten) && !notes.exists()
    };

    stopped(4);
    // A value of a weight: header and length stay the same.
    change(&part(&out, 2));
    let mut reported = Vec::new();
    let claim = Claim::take(out.path()).unwrap();
    remove_damaged(&source, &claim, &Cancel::default(), &mut |name, _| reported.push(name.to_owned()))
        .unwrap()
        .unwrap();
    drop(claim);
    assert_eq!(reported, [0, 1, 2, 3].map(|i| format!("part-{i:03}.safetensors")), "it says what it reads");
    assert_eq!(made(quantized(&source, out.path())), [2, 4, 5, 6, 7]);
    assert!(as_whole());

    // Packing into a finished folder again: the hashes survive a stop.
    change(&part(&out, 2));
    stopped(3);
    assert!(!out.path().join(WEIGHTS_INDEX).exists());
    change(&part(&out, 5));
    assert_eq!(made(quantized(&source, out.path())), [5]);
    assert!(as_whole());

    // No notes, as in earlier versions.
    std::fs::remove_file(out.path().join(WEIGHTS_INDEX)).unwrap();
    change(&part(&out, 5));
    assert_eq!(made(quantized(&source, out.path())), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(as_whole());

    // Unreadable notes prove nothing about the parts: they stay.
    std::fs::remove_file(out.path().join(WEIGHTS_INDEX)).unwrap();
    std::os::unix::fs::symlink(&notes, &notes).unwrap();
    let refused = quantize(&source, None, out.path(), &Cancel::default(), &mut |_| ());
    assert!(matches!(&refused, Err(ModelError::File { path, .. }) if *path == notes), "{refused:?}");
    assert!((0..8).all(|i| part(&out, i).exists()));
}
