//! Contents of a destination folder, and the files in it that belong to this program.

use std::path::{Path, PathBuf};

use super::statistics::STATISTICS;
use super::write::{LOCK, NOTES, is_claimed, is_partial, remove_lock};
use super::{CONFIG, Errors, METHOD, WEIGHTS, WEIGHTS_INDEX, part_file, parts};
use crate::core::files;
use crate::model::published::is_of_an_earlier_version;
use crate::model::seal::{MADE_FROM, header, is_finished, is_passing, read_index};
use crate::model::weights::FINGERPRINT_DIGITS;
use crate::model::{Checkpoint, ModelError, Result, Tensors};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// No model, or an unfinished run of the same packing.
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
        // Files of an earlier, stopped run of the same packing.
        let ours = |path: &Path| {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let aside = name.starts_with('.') || name == STATISTICS;
            aside || (is_part(name) && header(path).is_none_or(|_| made_from(path, id).is_some()))
        };
        let other = entries(out).into_iter().find(|path| !ours(path));
        let name = other.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        return name.map_or(Holds::Free, Holds::Files);
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

/// Whether a part is missing that [`quantize`](super::quantize) would have to pack.
pub fn is_unfinished(source: &Checkpoint, id: &str, out: &Path) -> Result<bool> {
    for i in 0..parts(source.spec()).len() {
        if written(&out.join(part_file(i)), id)?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

pub fn is_outdated(folder: &Path) -> bool {
    let index = read_index(folder).ok().flatten();
    let names = index.as_ref().and_then(|index| index.get("weight_map")?.as_object());
    names.is_some_and(|names| names.keys().any(|name| is_of_an_earlier_version(name)))
}

/// Bytes free on the disk of a folder that may not exist yet.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    let there = folder.ancestors().find(|d| d.exists())?;
    rustix::fs::statvfs(there).ok().map(|stat| stat.f_bavail * stat.f_frsize)
}

/// The errors noted in a part of the same packing, if its header is whole and its layout is the present one.
pub(super) fn written(path: &Path, id: &str) -> Result<Option<Errors>> {
    match Tensors::open_files(&[path.to_path_buf()]) {
        Ok(tensors) => Ok(made_from(path, id).filter(|_| !tensors.names().any(is_of_an_earlier_version))),
        Err(ModelError::File { path, cause }) if is_passing(&cause) => Err(ModelError::File { path, cause }),
        Err(_) => Ok(None),
    }
}

/// The errors noted in a part of the same packing, even if the file is damaged since or of an earlier version.
fn made_from(path: &Path, id: &str) -> Option<Errors> {
    errors_from(&header(path)?, id)
}

pub(super) fn errors_from(meta: &serde_json::Value, id: &str) -> Option<Errors> {
    let (made_from, errors) = meta.get(MADE_FROM)?.as_str()?.split_once(' ')?;
    let errors: Vec<f64> = errors.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    match *errors.as_slice() {
        _ if made_from != id => None,
        [weights] => Some(Errors { weights, outputs: None }),
        [weights, plain, careful] => Some(Errors { weights, outputs: Some([plain, careful]) }),
        _ => None,
    }
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

/// Whether a file of a packed folder is a lock, notes or a temporary file, and not part of the model.
pub fn is_aside(name: &str) -> bool {
    name == LOCK || name == NOTES || is_partial(name)
}

/// Files of a kept folder with names that [`quantize`](super::quantize) writes, complete or temporary.
fn own_files(folder: &Path) -> Vec<PathBuf> {
    let own = [CONFIG, WEIGHTS_INDEX, NOTES];
    let is_ours = |name: &str| own.contains(&name) || is_partial(name) || is_part(name);
    let files = entries(folder).into_iter();
    files.filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(is_ours) && !is_folder(p)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_other_than_parts_are_known_by_name() {
        assert!(is_aside(LOCK) && is_aside(NOTES) && is_aside(".part-x1y2z3") && !is_aside(".hidden"));
    }
}
