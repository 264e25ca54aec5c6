//! Contents of a destination folder, and the files in it that belong to this program.

use std::path::{Path, PathBuf};

use super::write::{LOCK, PARTIAL, is_claimed, is_partial, remove, remove_lock};
use super::{CONFIG, METHOD, WEIGHTS, WEIGHTS_INDEX, part_file};
use crate::core::files;
use crate::model::seal::{MADE_FROM, is_finished};
use crate::model::weights::FINGERPRINT_DIGITS;
use crate::model::{Checkpoint, Result};

/// Hashes and statistics, which earlier versions kept in an unfinished folder.
const EARLIER: [&str; 2] = [".sala-chat.hashes", "calibration.safetensors"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// No model, or the same packing, finished or not.
    Free,
    /// The same weights packed to the named form.
    OtherForm(String),
    /// The same weights in this form, calibrated by other text or none.
    OtherCalibration {
        calibrated: bool,
    },
    /// Packed by an earlier version, which did not record the source.
    Unsaid,
    Other,
    /// No model, but the named file, which packing has not written.
    Files(String),
}

/// Contents of `out` before packing `source` into it under the name `id`.
pub fn holds(source: &Checkpoint, id: &str, out: &Path) -> Holds {
    let path = out.join(CONFIG);
    if !path.exists() {
        // Earlier versions wrote config.json after the parts.
        let ours = |name: &String| name.starts_with('.') || EARLIER.contains(&name.as_str()) || is_part(name);
        let names = entries(out).into_iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        return names.into_iter().find(|name| !ours(name)).map_or(Holds::Free, Holds::Files);
    }
    let read = || {
        let text = files::read_text(&path, files::MODEL_CONFIG_BYTES).ok()?;
        let config: serde_json::Value = serde_json::from_str(&text).ok()?;
        config.get("quantization_config").cloned()
    };
    let Some(made) = read() else { return Holds::Other };
    let says = |key: &str| made.get(key).and_then(serde_json::Value::as_str);
    let ours = says("quant_method") == Some(METHOD);
    match (says(MADE_FROM), says(WEIGHTS), says("format")) {
        (Some(made_from), ..) if ours && made_from == id => Holds::Free,
        (_, None, _) if ours => Holds::Unsaid,
        (_, Some(weights), Some(format)) if ours && weights == source.stored_fingerprint() => {
            match format == source.recipe.name() {
                true => Holds::OtherCalibration { calibrated: made.get("calibrated") == Some(&true.into()) },
                false => Holds::OtherForm(format.to_owned()),
            }
        }
        _ => Holds::Other,
    }
}

/// Removes what packing has written into a folder.
pub(super) fn clear(folder: &Path) -> Result<()> {
    // First: with an index, the folder is a checkpoint.
    remove(&folder.join(WEIGHTS_INDEX))?;
    own_files(folder).iter().try_for_each(|file| remove(file))
}

/// Bytes free on the disk of a folder that may not exist yet.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    let there = folder.ancestors().find(|d| d.exists())?;
    rustix::fs::statvfs(there).ok().map(|stat| stat.f_bavail * stat.f_frsize)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Finished,
    Unfinished,
    Going,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFolder {
    pub path: PathBuf,
    pub stage: Stage,
    pub bytes: u64,
}

pub fn kept_folders(dir: &Path) -> Vec<KeptFolder> {
    let folders = if is_folder(dir) { entries(dir) } else { Vec::new() };
    let mut ours: Vec<PathBuf> = folders.into_iter().filter(|p| is_folder(p) && is_fingerprint(p)).collect();
    ours.sort();
    let kept = |path: PathBuf| {
        // A folder that cannot be read counts as unfinished: no start can use it.
        let stage = match (is_claimed(&path), is_finished(&path).unwrap_or(false)) {
            (true, _) => Stage::Going,
            (false, true) => Stage::Finished,
            (false, false) => Stage::Unfinished,
        };
        let bytes: u64 = own_files(&path).iter().map(|file| size(file)).sum();
        KeptFolder { path, stage, bytes }
    };
    ours.into_iter().map(kept).collect()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub files: u64,
    pub bytes: u64,
}

/// Removes all kept folders except those that are being packed. A folder with files of others stays with those files.
pub fn remove_kept(dir: &Path) -> std::io::Result<Removed> {
    let mut removed = Removed::default();
    // Without a claim: a full disk has no room for a new lock file.
    for KeptFolder { path: folder, .. } in kept_folders(dir).into_iter().filter(|kept| kept.stage != Stage::Going) {
        for file in own_files(&folder) {
            let bytes = size(&file);
            std::fs::remove_file(&file)?;
            removed = Removed { files: removed.files + 1, bytes: removed.bytes + bytes };
        }
        remove_lock(&folder);
        match std::fs::remove_dir(&folder) {
            Err(e) if e.kind() != std::io::ErrorKind::DirectoryNotEmpty => return Err(e),
            _ => {}
        }
    }
    Ok(removed)
}

/// Of the file itself, not of a link's target.
fn size(file: &Path) -> u64 {
    file.symlink_metadata().map_or(0, |m| m.len())
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect()
}

/// False for a link: its target may belong to others.
fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| m.is_dir())
}

/// Whether the name has the form of [`Checkpoint::fingerprint`].
fn is_fingerprint(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str());
    name.is_some_and(|n| n.len() == FINGERPRINT_DIGITS && n.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

pub(super) fn is_part(name: &str) -> bool {
    let number = name.strip_prefix("part-").and_then(|rest| rest.strip_suffix(".safetensors"));
    number.is_some_and(|n| n.parse::<usize>().is_ok_and(|i| part_file(i) == name))
}

/// Whether a file of a packed folder is a lock or of an unfinished run, and not part of the model.
pub fn is_aside(name: &str) -> bool {
    name == LOCK || EARLIER.contains(&name) || is_partial(name)
}

/// Files of a packed folder with names that [`quantize`](super::quantize) writes, complete or temporary.
fn own_files(folder: &Path) -> Vec<PathBuf> {
    let files: Vec<PathBuf> = entries(folder).into_iter().filter(|path| !is_folder(path)).collect();
    let name = |path: &PathBuf| path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
    // Other programs use the library's names for temporary files too. The library never ran without one of our own
    // temporary files, so those identify the folder as ours.
    let stopped = files.iter().any(|path| name(path).starts_with(PARTIAL));
    let is_ours = |name: &str| {
        let own = [CONFIG, WEIGHTS_INDEX].contains(&name) || EARLIER.contains(&name) || is_part(name);
        own || (stopped && is_partial(name))
    };
    files.into_iter().filter(|path| is_ours(&name(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_other_than_parts_are_known_by_name() {
        assert!(EARLIER.iter().all(|name| is_aside(name)));
        assert!(is_aside(LOCK) && is_aside(".part-x1y2z3") && !is_aside(".hidden"));
    }

    #[test]
    fn files_of_stopped_runs_are_removed_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let mut names: Vec<String> =
                entries(dir.path()).iter().map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()).collect();
            names.sort();
            names
        };
        let file = |name: &str| std::fs::write(dir.path().join(name), "text").unwrap();
        let others = [".hidden", ".tmp-notes", ".tmpAb12Cd", "part-1.safetensors", "tokenizer.json"];
        others.iter().for_each(|name| file(name));
        EARLIER.iter().for_each(|name| file(name));
        [CONFIG, WEIGHTS_INDEX, "part-000.safetensors"].iter().for_each(|name| file(name));
        clear(dir.path()).unwrap();
        assert_eq!(names(), others, "no temporary file is ours");
        file(".part-x1y2z3");
        clear(dir.path()).unwrap();
        assert_eq!(names(), [".hidden", ".tmp-notes", "part-1.safetensors", "tokenizer.json"]);
    }
}
